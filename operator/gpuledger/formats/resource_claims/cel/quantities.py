"""Kubernetes quantities with their arithmetic, exactly as CEL's library has it in the API server.

Source: resource.Quantity of k8s.io/apimachinery (pkg/api/resource/quantity.go, amount.go). It keeps small numbers as
an int64 with a decimal exponent, others as decimals of any size, and what is "an integer" depends on that. Here, both
are a whole number with an exponent, and `is_small` tells which it would be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*+)(?:\.(?P<part>[0-9]*+))?+(?P<suffix>[A-Za-z]*+(?:[+-]?[0-9]++)?)", re.ASCII
)
"""Possessive: a text of any length is looked through once."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{prefix}i": 10 * power for power, prefix in enumerate("KMGTPE", 1)}
_EXPONENT = re.compile(r"[eE](?P<power>[+-]?[0-9]+)", re.ASCII)
_NANO = -9
_INT64 = 2**63
_SMALL_DIGITS = 18
MOST_DIGITS = 400
"""Digits of a number before and after the point, and its largest exponent: no quantity of a device comes near."""


class TooLong(ValueError):  # noqa: N818
    """A quantity with more digits than are counted here."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """The number `value` times 10 to the power of `exponent`."""

    value: int
    exponent: int
    is_small: bool = True
    is_result: bool = field(default=False)
    """Made by add() or sub(): Kubernetes' `==` does not take such a one on its right side."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __hash__(self) -> int:
        return hash(self._scaled(min(self.exponent, _NANO)))

    def _scaled(self, exponent: int) -> int:
        return self.value * int(10 ** (self.exponent - exponent))

    def compare(self, other: Quantity) -> int:
        """Return -1, 0 or 1."""
        exponent = min(self.exponent, other.exponent)
        one, two = self._scaled(exponent), other._scaled(exponent)
        return (one > two) - (one < two)

    def as_int64(self) -> int | None:
        """Return the whole number, None where the API server's library would not."""
        if not self.is_small or self.exponent < 0:
            return None
        value = self._scaled(0)
        return value if -_INT64 <= value < _INT64 else None

    def as_float(self) -> float:
        """Return about the number; infinity if it is too large."""
        try:
            return float(self.value) * 10.0**self.exponent
        except OverflowError:
            return float("inf") if self.value > 0 else float("-inf")

    def plus(self, other: Quantity) -> Quantity:
        """Return the sum."""
        if self.is_small and other.is_small:
            if not self.value or not other.value:
                one = self if not other.value else other
                return Quantity(one.value, one.exponent, True, True)
            exponent = min(self.exponent, other.exponent)
            one_value, two_value = self._scaled(exponent), other._scaled(exponent)
            if all(-_INT64 <= each < _INT64 for each in (one_value, two_value, one_value + two_value)):
                return Quantity(one_value + two_value, exponent, True, True)
        exponent = min(self.exponent, other.exponent)
        return Quantity(self._scaled(exponent) + other._scaled(exponent), exponent, False, True)

    def minus(self, other: Quantity) -> Quantity:
        """Return the difference."""
        return self.plus(Quantity(-other.value, other.exponent, other.is_small))


def parse_quantity(text: str) -> Quantity | None:
    """Return the quantity that a text is, None if it is none. Raises TooLong for one with hundreds of digits."""
    match = _FORM.fullmatch(text)
    if not text or not match:
        return None
    whole, part, suffix = match["whole"].lstrip("0"), match["part"] or "", match["suffix"]
    sign = -1 if match["sign"] == "-" else 1
    if not any(text[len(match["sign"]) :].lstrip("0")):
        return Quantity(0, 0)
    power = _power(suffix)
    if power is None:
        return None
    if max(len(whole), len(part), abs(power[1])) > MOST_DIGITS:
        raise TooLong(f"a quantity of more than {MOST_DIGITS} digits")
    return _quantity(sign, whole or "0", part, *power, has_digits=bool(match["whole"] or part))


def _power(suffix: str) -> tuple[int, int] | None:
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix]
    if suffix in _BINARY:
        return 2, _BINARY[suffix]
    match = _EXPONENT.fullmatch(suffix)
    if not match:
        return None
    if len(match["power"]) > MOST_DIGITS:
        raise TooLong(f"a quantity of more than {MOST_DIGITS} digits")
    return 10, int(match["power"])


def _quantity(sign: int, whole: str, part: str, base: int, power: int, *, has_digits: bool) -> Quantity | None:
    digits = int(whole + part)
    if _fits_small(whole, part, base, power):
        factor, exponent = (1, power - len(part)) if base == 10 else (2**power, 0)
        if exponent >= _NANO and digits * factor < _INT64:
            return Quantity(sign * digits * factor, exponent)
    if not has_digits:
        return None
    # As decimals: rounded up to billionths, and those in bytes no larger than an int64.
    above, below = digits, 10 ** len(part)
    if base == 2:
        above *= 2**power
    elif power >= 0:
        above *= 10**power
    else:
        below *= 10**-power
    nano = -(-above * 10**9 // below)
    if base == 2:
        nano = min(nano, (_INT64 - 1) * 10**9)
    return Quantity(sign * nano, _NANO, is_small=False)


def _fits_small(whole: str, part: str, base: int, power: int) -> bool:
    if base == 10:
        return len(whole) + len(part) <= _SMALL_DIGITS
    return not part and 15 - len(whole) - int(power * 3 / 10) - 1 >= 0
