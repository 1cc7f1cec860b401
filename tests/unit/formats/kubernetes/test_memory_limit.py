"""A limit above the share is read as it is written, never below the share, and never more than the card has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.annotations import ALL, LONGEST_TEXT, MEMORY_LIMIT_ANNOTATION, limit_of, memory_limits
from gpuledger.model.errors import BadInput

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
AMOUNTS = st.integers(1, 999_999_999)


def pod(text: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {MEMORY_LIMIT_ANNOTATION: text}}}


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        (" ", {}),
        ("16000", {ALL: 16000}),
        ("main=16000", {"main": 16000}),
        ("main=16000, tools=4000", {"main": 16000, "tools": 4000}),
        ("main=16000,4000", {"main": 16000, ALL: 4000}),
    ],
)
def test_what_is_written_is_read(text: str, limits: dict[str, int]) -> None:
    assert memory_limits(pod(text)) == limits


def test_a_pod_without_the_annotation_wishes_nothing() -> None:
    assert memory_limits({"metadata": {}}) == memory_limits({"metadata": {"annotations": None}}) == {}


@pytest.mark.parametrize(
    "text", ["0", "-1", "16Gi", "main=", "=1", "main=1,main=2", "1,2", "Main=1", "a=b=1", "1" * 10, "1," * LONGEST_TEXT]
)
def test_what_can_not_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="main=16000,tools=4000"):
        memory_limits(pod(text))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = memory_limits(pod(text))
    except BadInput:
        return
    assert all(1 <= each <= 999_999_999 for each in found.values())


@given(st.dictionaries(NAMES | st.just(ALL), AMOUNTS, max_size=8), NAMES, AMOUNTS, AMOUNTS)
def test_a_limit_is_at_least_the_share_and_at_most_the_card(
    limits: dict[str, int], container: str, one: int, other: int
) -> None:
    share_mib, card_mib = sorted((one, other))
    found = limit_of(container, limits, share_mib, card_mib)
    assert share_mib <= found <= card_mib
    if container not in limits and ALL not in limits:
        assert found == share_mib
