"""Kubernetes quantities, most of which stand for whole numbers here, and Go's words for true and false.

Source: the API server's canonical form. It stores `4000` as `"4k"` and `1000000` as `"1M"`, so plain digits are not
enough to read back what a person wrote.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from gpuledger.model.errors import BadInput

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "n": -9}
_FORM = re.compile(r"^(?P<sign>[+-]?)(?P<digits>\d+)(?:\.(?P<fraction>\d*))?(?P<suffix>[kMGTPEmun]?|[eE][+-]?\d{1,3})$")
MAX_LENGTH = 64
"""Digits of a quantity: the API server stores far fewer, and Python refuses to read some thousands."""

_BINARY = re.compile(r"^[+-]?[\d.]+[KMGTPE]i$")


def whole_number(quantity: object) -> int:
    """Return the value of a quantity such as 3, "4k" or "1e3".

    Raises BadInput for fractions, for negative values, and for binary suffixes: no one counts cards or MiB in Gi.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        raise BadInput(f"{str(quantity)[:MAX_LENGTH]!r} is not a number")
    if (quantity.bit_length() if isinstance(quantity, int) else len(quantity)) > MAX_LENGTH:
        raise BadInput("it is too long for a number")
    text = str(quantity)
    if _BINARY.match(text):
        raise BadInput(f"{text} has a unit of bytes; write a plain whole number")
    match = _FORM.match(text)
    if not match:
        raise BadInput(f"{text!r} is not a number")
    suffix, fraction = match["suffix"], match["fraction"] or ""
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    digits, shift = match["digits"] + fraction, exponent - len(fraction)
    if match["sign"] == "-" and int(digits):
        raise BadInput(f"{text} is negative")
    if shift >= 0:
        return int(digits + "0" * shift)
    value, rest = divmod(int(digits), int("1" + "0" * -shift))
    if rest:
        raise BadInput(f"{text} is not a whole number")
    return value


_UNITS = {
    **{suffix: Decimal(10) ** exponent for suffix, exponent in _DECIMAL.items()},
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
}
_AMOUNT = re.compile(r"^(?P<number>\d+\.?\d*|\.\d+)(?P<suffix>[KMGTPE]i|[kMGTPEmun]?|[eE][+-]?\d{1,2})$")


def amount(text: str, per_unit: int) -> int:
    """Return a quantity such as "500m", "1.5" or "4Gi" in parts of which `per_unit` make one, rounded up.

    Raises BadInput for what is none, or negative.
    """
    match = _AMOUNT.match(text) if len(text) <= MAX_LENGTH else None
    if not match:
        raise BadInput(f"{text[:MAX_LENGTH]!r} is not an amount")
    suffix = match["suffix"]
    unit = _UNITS[suffix] if suffix in _UNITS else Decimal(f"1{suffix}")
    return int((Decimal(match["number"]) * unit * per_unit).to_integral_value(ROUND_CEILING))


# Go's strconv.ParseBool.
_TRUTH = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def truth(text: object) -> bool:
    """Return what a text means that a program in Go would read as a truth value. Raises BadInput for any other."""
    found = _TRUTH.get(text) if isinstance(text, str) else None
    if found is None:
        raise BadInput(f"{str(text)[:32]!r} is neither true nor false")
    return found
