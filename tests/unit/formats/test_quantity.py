"""Kubernetes quantities that stand for whole numbers."""

import pytest

from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (0, 0),
        (3, 3),
        ("3", 3),
        ("+3", 3),
        ("-0", 0),
        ("4k", 4_000),
        ("1M", 1_000_000),
        ("2G", 2 * 10**9),
        ("1E", 10**18),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("10e-1", 1),
        ("1.5k", 1_500),
        ("2.", 2),
        ("2.0", 2),
        (".5k", 500),
        ("4000m", 4),
        ("4000000u", 4),
        ("4000000000n", 4),
    ],
)
def test_whole_numbers_are_read_in_every_form(quantity: object, value: int) -> None:
    assert whole_number(quantity) == value


@pytest.mark.parametrize(
    ("quantity", "what"),
    [
        ("1500m", "is not a whole number"),
        ("0.5", "is not a whole number"),
        ("1e-1", "is not a whole number"),
        ("-1", "is negative"),
        ("-1k", "is negative"),
        (-1, "is negative"),
        ("4Gi", "has a unit of bytes"),
        ("1.5Mi", "has a unit of bytes"),
        ("-2Ki", "has a unit of bytes"),
        ("", "is not a number"),
        ("k", "is not a number"),
        ("4 k", "is not a number"),
        ("4K", "is not a number"),
        ("four", "is not a number"),
        ("1e", "is not a number"),
        ("1e9999", "is not a number"),
        ("0x10", "is not a number"),
        (True, "is not a number"),
        (1.0, "is not a number"),
        (None, "is not a number"),
        ([], "is not a number"),
    ],
)
def test_everything_else_is_refused_with_the_reason(quantity: object, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        whole_number(quantity)
