"""CEL's values as Python's, and how they compare.

null, bool, int, double, string, bytes, list and map are None, bool, int, float, str, bytes, list and dict. What Python
lacks is here. Source: the CEL specification, and cel-go 0.26 (common/types) where it says more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar, cast

from gpuledger.formats.kubernetes.quantity import Quantity
from gpuledger.formats.resource_claims.semver import Version

T = TypeVar("T")
INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1


class CelError(Exception):
    """An error that is a value in CEL: `||`, `&&` and macros may get over it."""


class Unsupported(Exception):  # noqa: N818
    """Something that CEL could do and this evaluation does not. Nothing in an expression gets over it."""


class Uint(int):
    """An unsigned integer: `1u`. It equals the int, and can't be added to it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value, such as `int`."""

    name: str


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be missing."""

    present: bool
    value: object = None


class DomainMap(dict[str, dict[str, object]]):
    """A device's attributes or capacities by domain. A domain that a device does not have is an empty map."""

    __slots__ = ()


EMPTY: dict[str, object] = {}
NOTHING = Optional(False)

_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    DomainMap: "map",
    TypeValue: "type",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
}
TYPE_NAMES = frozenset(_NAMES.values())
NUMBERS = (int, Uint, float)


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return _NAMES[type(value)]


def no_overload(function: str, *args: object) -> CelError:
    """Return the error for arguments that a function is not for."""
    return CelError(f"no such overload: {function}({', '.join(type_name(each) for each in args)})")


def take(name: str, kind: type[T], *args: object) -> list[T]:
    """Return the arguments of a function if they are all of a kind. Raises CelError."""
    if any(type(each) is not kind for each in args):
        raise no_overload(name, *args)
    return cast("list[T]", list(args))


def equal(left: object, right: object) -> bool:
    """Return whether two values are equal as `==` has it. Raises CelError where it is an error to ask.

    Its cost is the size of lists and maps; whoever calls it counts that first (`size`, `parts`).
    """
    kind, other = type(left), type(right)
    if left is None or right is None:
        return left is right
    if kind in NUMBERS and other in NUMBERS:
        return bool(left == right)
    if kind is Quantity or kind is Version:
        if other is not kind or (isinstance(right, Quantity) and right.is_result):
            # Kubernetes' own types refuse what is not of their type, and the right side if add() or sub() made it.
            raise no_overload("_==_", left, right)
        return left == right
    if kind is list and other is list:
        return _equal_lists(left, right)  # type: ignore[arg-type]
    if isinstance(left, dict) and isinstance(right, dict):
        return _equal_maps(left, right)
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    return kind is other and left == right


def _equal_lists(left: list[object], right: list[object]) -> bool:
    return len(left) == len(right) and all(equal(one, two) for one, two in zip(left, right, strict=True))


def _equal_maps(left: dict[object, object], right: dict[object, object]) -> bool:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        found = lookup(right, key)
        if found is MISSING or not equal(value, found):
            return False
    return True


def contains(items: list[object], wanted: object) -> bool:
    """Return whether an item equals a value. Raises CelError if none does, and one can't be compared with it."""
    problem: CelError | None = None
    for item in items:
        try:
            if equal(wanted, item):
                return True
        except CelError as error:
            problem = problem or error
    if problem:
        raise problem
    return False


def same(left: object, right: object) -> bool:
    """Return whether two values are equal; those that can't be compared are not."""
    try:
        return equal(left, right)
    except CelError:
        return False


class _Missing:
    """Stands for a value that is not there."""


MISSING = _Missing()


def lookup(found: dict[object, object], key: object) -> object:
    """Return the value of a key, MISSING if there is none. Raises CelError for what can't be one."""
    if isinstance(found, DomainMap):
        return found.get(key, EMPTY) if isinstance(key, str) else EMPTY
    if isinstance(key, float):
        if not key.is_integer():
            return MISSING
    elif not isinstance(key, str | int):
        raise CelError(f"unsupported key type: {type_name(key)}")
    value = found.get(key, MISSING)
    if value is not MISSING and isinstance(key, bool | int | float):
        # For Python, True is the key 1 as well.
        same = next(each for each in found if each == key)
        if isinstance(same, bool) != isinstance(key, bool):
            return MISSING
    return value


def compare(left: object, right: object) -> int | None:
    """Return -1, 0 or 1, None for NaN, which is in no order. Raises CelError for values that can't be compared."""
    kind, other = type(left), type(right)
    if kind in NUMBERS and other in NUMBERS:
        if (kind is float and math.isnan(left)) or (other is float and math.isnan(right)):  # type: ignore[arg-type]
            return None
    elif kind is not other or kind not in (str, bool, bytes):
        raise no_overload("compare", left, right)
    return bool(left > right) - bool(left < right)  # type: ignore[operator]


def size(value: object) -> int:
    """Return what it costs to look at a value itself, in steps: at a list without what is in it. Costs the same always.

    A text is 32 characters a step, which is what compares, copies and hashes them.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return 1 + (len(cast("str", value)) >> 5)
    if kind is list:
        return 1 + len(cast("list[object]", value))
    if isinstance(value, dict):
        return 1 + 2 * len(value)
    if kind is Version:
        return cast("Version", value).size
    return _QUANTITY_SIZE if kind is Quantity else 1


_QUANTITY_SIZE = 4
"""Numbers of some hundred digits at most."""

_WITHOUT_PARTS = frozenset({type(None), bool, int, Uint, float, TypeValue})


def parts(value: object) -> list[object]:
    """Return the values in a value of which more than their number counts."""
    if type(value) is list:
        return [each for each in value if type(each) not in _WITHOUT_PARTS]
    if isinstance(value, dict):
        inside = [each for each in value.values() if type(each) not in _WITHOUT_PARTS]
        return inside + [each for each in value if type(each) is str]
    return [value.value] if type(value) is Optional and value.present else []
