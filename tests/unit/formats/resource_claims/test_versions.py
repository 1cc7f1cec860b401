"""Semantic versions in selectors."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.resource_claims.cel.values import Version, normalized, parse_version

IN_ORDER = (
    *("0.0.0-0", "0.0.0", "1.0.0-2", "1.0.0-11", "1.0.0-A", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta"),
    *("1.0.0-beta", "1.0.0-rc.1", "1.0.0-rc.1.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0", "580.65.6"),
)


def version(text: str) -> Version:
    found = parse_version(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(("one", "next_one"), list(pairwise(IN_ORDER)))
def test_versions_are_in_order(one: str, next_one: str) -> None:
    assert version(one).compare(version(next_one)) == -1
    assert version(next_one).compare(version(one)) == 1
    assert version(one).compare(version(one)) == 0


def test_build_metadata_makes_no_difference() -> None:
    assert version("1.0.0+a.1") == version("1.0.0+b") == version("1.0.0")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "01.2.3",
            "1.02.3",
            "1.2.03",
            "v1.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3-a..b",
            "1.2.3+",
        ),
        *("1.2.3-ä", " 1.2.3", "1.2.3\n", "18446744073709551616.0.0", "1.2.3-18446744073709551616", "-1.2.3"),
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [("v1", "1.0.0"), ("1.2", "1.2.0"), ("v01.002.3", "1.2.3"), ("000.1", "0.1.0"), ("1.2.03-a", "1.2.3-a")],
)
def test_versions_that_people_shorten_can_be_completed(text: str, meant: str) -> None:
    assert parse_version(normalized(text)) == version(meant)


@pytest.mark.parametrize("text", ["", "v", "1.2-rc", "1+a", "x.y", "1.2.3.4"])
def test_not_every_text_can_be_completed(text: str) -> None:
    assert parse_version(normalized(text)) is None


@given(st.tuples(*[st.integers(0, 2**64 - 1)] * 3))
def test_numbers_are_read_as_they_are(numbers: tuple[int, int, int]) -> None:
    found = version(".".join(map(str, numbers)))
    assert (found.major, found.minor, found.patch) == numbers
