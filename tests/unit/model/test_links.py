"""A card's links: a mapping like any other, and small."""

import tracemalloc
from sys import intern

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.card import Links

SOME = st.dictionaries(st.text(max_size=5), st.integers(0, 300), max_size=16)


@given(SOME, SOME)
def test_they_are_what_the_dict_is_that_they_were_made_from(one: dict[str, int], other: dict[str, int]) -> None:
    links = Links(one)
    assert dict(links) == one
    assert (len(links), bool(links)) == (len(one), bool(one))
    assert {peer: links[peer] for peer in one} == one
    assert links.get("not a peer") is None
    assert links == one
    assert one == links
    assert (links == Links(other)) == (one == other)
    assert (links == other) == (one == other)


def test_a_peer_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="GPU-9"):
        Links({"GPU-1": 100})["GPU-9"]


def test_they_need_less_memory_than_the_dicts() -> None:
    # Interned before: else the table of all interned strings can come to be enlarged while this measures.
    uuids = [[intern(f"GPU-{node}-{card}") for card in range(8)] for node in range(1000)]
    tracemalloc.start()
    rows = [{peer: 200 for peer in of_node if peer != card} for of_node in uuids for card in of_node]
    dicts, _ = tracemalloc.get_traced_memory()
    links = [Links(row) for row in rows]
    both, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(links) == len(rows)
    assert both - dicts < 0.7 * dicts
