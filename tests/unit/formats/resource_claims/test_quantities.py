"""Quantities as CEL's library in the API server has them. Its answers were taken from k8s.io/apimachinery 0.36.3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.quantity import Quantity, TooLong, parse_quantity


def quantity(text: str) -> Quantity:
    found = parse_quantity(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("1k", "1000"),
        ("1e3", "1k"),
        ("1E", "1e18"),
        ("500m", "0.5"),
        ("1n", "0.1n"),
        ("-1n", "-0.1n"),
        ("9223372036854775807", "100Ei"),
        ("+5", "5"),
        (".5", "500m"),
        ("1.G", "1G"),
        ("000", "0"),
        ("0.000", "0"),
    ],
)
def test_the_same_number_can_be_written_in_several_ways(one: str, other: str) -> None:
    assert quantity(one) == quantity(other)
    assert hash(quantity(one)) == hash(quantity(other))


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1,5", "200K", "1gi", "1ee3", "1e", "1e+", "1k3", "a", "1Mib", "--1", "\u0661"]
)
def test_other_texts_are_none(text: str) -> None:
    assert parse_quantity(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("50k", 50_000),
        ("1Gi", 2**30),
        ("9223372036854775807", None),  # more digits than it keeps as an integer
        ("1.5Gi", None),
        ("1000m", None),
        ("9E", 9 * 10**18),
        ("12E", None),
    ],
)
def test_an_integer_is_what_the_api_server_keeps_as_one(text: str, number: int | None) -> None:
    assert quantity(text).as_int64() == number


@pytest.mark.parametrize("text", ["1" * 401, "0." + "1" * 401, "1e401", "1e-401", "1e" + "9" * 500])
def test_numbers_without_end_are_not_counted(text: str) -> None:
    with pytest.raises(TooLong):
        parse_quantity(text)


def test_a_number_too_large_for_a_float_is_infinite() -> None:
    assert quantity("1e400").as_float() == float("inf")
    assert quantity("-1e400").as_float() == float("-inf")


NUMBERS = st.integers(-(10**12), 10**12)


@given(NUMBERS, NUMBERS, st.sampled_from(["", "k", "m", "Mi", "e3", "n"]), st.sampled_from(["", "G", "u", "Ki"]))
def test_sums_and_differences_undo_each_other(one: int, two: int, unit: str, other_unit: str) -> None:
    first, second = quantity(f"{one}{unit}"), quantity(f"{two}{other_unit}")
    assert first.plus(second).minus(second) == first
    assert first.plus(second).compare(first) == (second.value > 0) - (second.value < 0)


@given(NUMBERS, NUMBERS)
def test_whole_numbers_are_ordered_as_numbers(one: int, two: int) -> None:
    assert quantity(str(one)).compare(quantity(str(two))) == (one > two) - (one < two)
