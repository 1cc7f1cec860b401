"""A List that is still being sent yields what it holds, wherever it is cut."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.plugin.cards import ITEM_BEGIN
from gpuledger.plugin.list_items import list_items

NASTY = 'a text with ,{"apiVersion":"gpuledger.dev/v1alpha1","kind":"GPUAllocation", in it'


def a_list(texts: list[str], **other: Any) -> tuple[bytes, list[Any]]:
    items = [{"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GPUAllocation", "spec": {"why": text}} for text in texts]
    content = {"apiVersion": "gpuledger.dev/v1alpha1", "items": items, "kind": "GPUAllocationList", **other}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n", items


@given(st.lists(st.text() | st.just(NASTY), max_size=6), st.lists(st.integers(0, 2_000), max_size=8))
def test_however_it_is_cut_nothing_is_lost(texts: list[str], cuts: list[int]) -> None:
    whole, items = a_list(texts, metadata={"resourceVersion": "7"})
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(places)]
    assert list(list_items(pieces, ITEM_BEGIN)) == items


def test_items_come_before_the_list_has_ended() -> None:
    whole, items = a_list(["a", "b", "c"])
    sent = whole.index(b'"c"')

    def so_far() -> Iterator[bytes]:
        yield whole[:sent]
        raise AssertionError("nobody has to wait for the rest")

    coming = list_items(so_far(), ITEM_BEGIN)
    assert [next(coming), next(coming)] == items[:2]


def test_a_list_that_looks_different_is_read_as_a_whole() -> None:
    _, items = a_list(["a", "b"])
    turned = [dict(reversed(item.items())) for item in items]
    assert list(list_items([json.dumps({"items": turned}, indent=2).encode()], ITEM_BEGIN)) == items


@pytest.mark.parametrize("text", [b"", b"Unauthorized", b'{"items":['])
def test_what_is_no_list_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|char|document"):
        list(list_items([text], ITEM_BEGIN))
