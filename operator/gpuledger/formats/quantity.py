"""Kubernetes quantities with their arithmetic, exactly as the API server has it, and Go's words for true and false.

Source: resource.Quantity of k8s.io/apimachinery (pkg/api/resource/quantity.go, amount.go). It keeps small numbers as
an int64 with a decimal exponent, others as decimals of any size, and what is "an integer" depends on that. Here, both
are a whole number with an exponent, and `is_small` tells which it would be. The API server stores `4000` as `"4k"`, so
plain digits are not enough to read back what a person wrote.

CPU and memory of nodes and pods decide between nodes only, so of these what can't be read counts as nothing. Beside
them is the number of cards under the name of an extended resource, counted as kube-scheduler counts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping, all_containers
from gpuledger.model.request import NO_HOST, HostAmounts

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


MAX_LENGTH = 64
"""Characters of a number or an amount: the API server stores far fewer."""


def whole_number(quantity: object) -> int:
    """Return the value of a quantity such as 3, "4k" or "1e3".

    Raises BadInput for fractions, for negative values, and for binary suffixes: no one counts cards or MiB in Gi.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        raise BadInput(f"{str(quantity)[:MAX_LENGTH]!r} is not a number")
    if (quantity.bit_length() if isinstance(quantity, int) else len(quantity)) > MAX_LENGTH:
        raise BadInput("it is too long for a number")
    text = str(quantity)
    found = _read(text)
    if found is None:
        raise BadInput(f"{text!r} is not a number")
    if text.endswith("i"):
        raise BadInput(f"{text} has a unit of bytes; write a plain whole number")
    if found.value < 0:
        raise BadInput(f"{text} is negative")
    if found.exponent < 0 and found.value % 10**-found.exponent:
        raise BadInput(f"{text} is not a whole number")
    return _rounded_up(found, 1)


def amount(text: str, per_unit: int) -> int:
    """Return a quantity such as "500m", "1.5" or "4Gi" in parts of which `per_unit` make one, rounded up.

    Raises BadInput for what is none, or negative.
    """
    found = _read(text) if len(text) <= MAX_LENGTH else None
    if found is None or found.value < 0:
        raise BadInput(f"{text[:MAX_LENGTH]!r} is not an amount")
    return _rounded_up(found, per_unit)


@lru_cache(maxsize=4_096)  # of short texts, which most pods and nodes have in common
def _read(text: str) -> Quantity | None:
    """Return the quantity, None if there is none; Go takes a suffix without digits for zero, and people do not."""
    try:
        return parse_quantity(text) if any(each.isdigit() for each in text) else None
    except TooLong:
        return None


def _rounded_up(found: Quantity, per_unit: int) -> int:
    if found.exponent >= 0:
        return found.value * int(10**found.exponent) * per_unit
    return -(-found.value * per_unit // int(10**-found.exponent))


# Go's strconv.ParseBool.
_TRUTH = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def truth(text: object) -> bool:
    """Return the truth value that Go's strconv.ParseBool reads in a text. Raises BadInput for any other text."""
    found = _TRUTH.get(text) if isinstance(text, str) else None
    if found is None:
        raise BadInput(f"{str(text)[:32]!r} is neither true nor false")
    return found


MIB = 1 << 20

LARGEST = 1 << 53
"""Of any amount: more is a mistake, and would not be exact as a float, in which prices are computed."""


def host_capacity(node: JsonMapping) -> HostAmounts | None:
    """Return the CPU and memory that a Node offers to pods, None if it does not say so."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if "cpu" not in allocatable or "memory" not in allocatable:
        return None
    return _amounts(allocatable, "")


def counted_cards(node: JsonMapping, count: str) -> int:
    """Return how many cards a Node offers to pods under this name."""
    return _amounts((node.get("status") or {}).get("allocatable") or {}, count).cards


def host_request(pod: JsonMapping, count: str = "") -> HostAmounts:
    """Return the total request of a pod.

    Source: Kubernetes' rule for a pod's effective request. Each init container runs beside the sidecars declared before
    it, the main containers beside all sidecars; a request at the level of the pod counts instead; overhead is added.
    """
    spec = pod.get("spec") or {}
    sidecars = peak = NO_HOST
    for container in spec.get("initContainers") or ():
        asked = _asked(container, count)
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars + asked
            peak = peak.peak(sidecars)
        else:
            peak = peak.peak(sidecars + asked)
    peak = peak.peak(sum((_asked(container, count) for container in spec.get("containers") or ()), sidecars))
    own = _asked(spec, "")
    whole = HostAmounts(own.cpu_milli or peak.cpu_milli, own.memory_mib or peak.memory_mib, peak.cards)
    return whole + _amounts(_mapping(spec.get("overhead")), "")


def _asked(described: JsonMapping, count: str) -> HostAmounts:
    """Return the requests of a container, or of a pod; limits stand for what is not said."""
    resources = _mapping(described.get("resources"))
    return _amounts({**_mapping(resources.get("limits")), **_mapping(resources.get("requests"))}, count)


def _mapping(value: object) -> JsonMapping:
    return value if isinstance(value, dict) else {}


def _amounts(quantities: JsonMapping, count: str) -> HostAmounts:
    cards = _amount(quantities.get(count), 1) if count else 0
    return HostAmounts(_amount(quantities.get("cpu"), 1000), _amount(quantities.get("memory"), 1) // MIB, cards)


def _amount(quantity: object, per_unit: int) -> int:
    return _known_amount(str(quantity), per_unit) if isinstance(quantity, str | int | float) else 0


@lru_cache(maxsize=4096)
def _known_amount(quantity: str, per_unit: int) -> int:
    try:
        return min(amount(quantity, per_unit), LARGEST)
    except BadInput:
        return 0


def resources_asked(pod: JsonMapping) -> Iterator[str]:
    """Yield the names of all resources that a pod's containers ask for."""
    for container in all_containers(pod):
        asked = container.get("resources") or {}
        yield from asked.get("limits") or ()
        yield from asked.get("requests") or ()
