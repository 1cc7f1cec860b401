"""CEL's values as Python's, how they compare, and the operators and conversions.

null, bool, int, double, string, bytes, list and map are None, bool, int, float, str, bytes, list and dict. What Python
lacks is here, as are semantic versions, which Kubernetes adds.

Source: the CEL specification with its list of standard definitions, and cel-go 0.26 (common/types) where it says more.
Versions: blang/semver 4.0.0, which Kubernetes uses: semver.org's rules, with numbers up to 64 bits; and
`normalizeAndParse` of k8s.io/apiserver (pkg/cel/library/semverlib.go) for versions that people shorten.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from gpuledger.formats.quantity import Quantity, truth
from gpuledger.model.errors import BadInput

Function = Callable[..., object]
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


_VERSION = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-(?P<before>[0-9A-Za-z.-]*))?(?:\+(?P<build>[0-9A-Za-z.-]*))?",
    re.ASCII,
)
_LARGEST_NUMBER = 2**64
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. Build metadata does not count in comparisons."""

    major: int
    minor: int
    patch: int
    before_release: tuple[str, ...] = ()
    build: tuple[str, ...] = field(default=(), compare=False)
    size: int = field(default=1, compare=False)
    """What it costs to compare it, in steps of an evaluation."""

    def compare(self, other: Version) -> int:
        """Return -1, 0 or 1."""
        return (self._order > other._order) - (self._order < other._order)

    @property
    def _order(self) -> tuple[object, ...]:
        # A version comes after those before its release; numbers come before words; fewer parts before more.
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.before_release)
        return (self.major, self.minor, self.patch, not self.before_release, parts)


def parse_version(text: str) -> Version | None:
    """Return the version that a text is, None if it is none."""
    match = _VERSION.fullmatch(text)
    if not match or any(len(number) > _MOST_DIGITS or int(number) >= _LARGEST_NUMBER for number in match.groups()[:3]):
        return None
    before, build = ((match[part] or "").split(".") if match[part] is not None else [] for part in ("before", "build"))
    if not all(before) or not all(build) or not all(_is_part(part) for part in before):
        return None
    size = 4 + 2 * len(before) + (len(text) >> 5)
    return Version(int(match[1]), int(match[2]), int(match[3]), tuple(before), tuple(build), size)


def _is_part(part: str) -> bool:
    if not part.isdigit():
        return True
    return part == "0" or (part[0] != "0" and len(part) <= _MOST_DIGITS and int(part) < _LARGEST_NUMBER)


def normalized(text: str) -> str:
    """Return the text with three numbers: without a `v`, without leading zeros, and with the numbers that it lacks.

    A text that can't be normalized is returned as no version.
    """
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) for part in parts]
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            return ""
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    short = part.lstrip("0")
    return short if short[:1] in tuple("0123456789") else "0" + short


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
TYPE_NAMES, VALUE_TYPES = frozenset(_NAMES.values()), tuple(_NAMES)
NUMBERS = (int, Uint, float)


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return _NAMES[type(value)]


def no_overload(function: str, *args: object) -> CelError:
    """Return the error for arguments that a function is not for."""
    return CelError(f"no such overload: {function}({', '.join(type_name(each) for each in args)})")


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


MISSING = object()
"""Stands for a value that is not there."""


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


_FEWEST_PLAIN_DIGITS = 6
"""From 10 to this power on, a number becomes a text with an exponent."""

_INT_TEXT = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_UINT_TEXT = re.compile(r"[0-9]{1,30}", re.ASCII)
_FLOAT_TEXT = re.compile(
    r"[+-]?([0-9]++\.?+[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?|[+-]?(inf|infinity)|nan", re.ASCII | re.IGNORECASE
)
"""Possessive, as all forms here that texts of any length are compared with: no way is tried twice."""


def in_range(kind: type, value: int) -> int:
    """Return an integer of the kind. Raises CelError if it is too large for it."""
    if kind is Uint:
        if not 0 <= value <= UINT_MAX:
            raise CelError("unsigned integer overflow")
        return Uint(value)
    if not INT_MIN <= value <= INT_MAX:
        raise CelError("integer overflow")
    return int(value)


def _arithmetic(name: str, calculate: Callable[[Any, Any], Any], *others: type) -> Function:
    """Return an operator on two numbers of one type, or on two values of one of the other types."""
    kinds = frozenset((*NUMBERS, *others))

    def calculated(left: object, right: object) -> object:
        kind = type(left)
        if kind is not type(right) or kind not in kinds:
            raise no_overload(name, left, right)
        found = calculate(left, right)
        return in_range(kind, found) if kind is int or kind is Uint else found

    return calculated


def _quotient(left: float, right: float) -> float:
    """Return left / right, for integers without its fraction."""
    if isinstance(left, float):
        if right:
            return left / right
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)
    if right == 0:
        raise CelError("division by zero")
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


def _remainder(left: float, right: float) -> float:
    """Return what is left of integers after a division, with the sign of the left one."""
    if isinstance(left, float):
        raise no_overload("_%_", left, right)
    if right == 0:
        raise CelError("modulus by zero")
    found = abs(left) % abs(right)
    return -found if left < 0 else found


add = _arithmetic("_+_", operator.add, str, bytes, list)


def negate(value: object) -> object:
    """Return -value."""
    if type(value) is float:
        return -value
    if type(value) is int:
        return in_range(int, -value)
    raise no_overload("-_", value)


def logical_not(value: object) -> object:
    """Return !value."""
    if isinstance(value, bool):
        return not value
    raise no_overload("!_", value)


def _ordering(meets: Callable[[int], bool]) -> Function:
    def ordered(left: object, right: object) -> bool:
        found = compare(left, right)
        return found is not None and meets(found)

    return ordered


def is_in(item: object, container: object) -> bool:
    """Return whether a list has an item, or a map a key."""
    if isinstance(container, list):
        return contains(container, item)
    if isinstance(container, dict):
        plain = dict(container) if isinstance(container, DomainMap) else container
        return lookup(plain, item) is not MISSING
    raise no_overload("@in", item, container)


def find(container: object, key: object) -> object:
    """Return the item at an index, or the value of a key; MISSING if there is none. Raises CelError."""
    if isinstance(container, dict):
        return lookup(container, key)
    if isinstance(container, list):
        if isinstance(key, bool) or not isinstance(key, int | float) or key % 1 != 0:  # of infinity, that is NaN
            raise CelError("a list is indexed by whole numbers")
        return container[int(key)] if 0 <= key < len(container) else MISSING
    raise no_overload("_[_]", container, key)


def index(container: object, key: object) -> object:
    """Return container[key]."""
    if isinstance(container, Optional):
        return optional_index(container, key)
    found = find(container, key)
    if found is MISSING:
        raise CelError(f"no such key: {str(key)[:64]}" if isinstance(container, dict) else f"index out of range: {key}")
    return found


def optional_index(container: object, key: object) -> Optional:
    """Return container[?key]."""
    if isinstance(container, Optional):
        return optional_index(container.value, key) if container.present else container
    found = find(container, key)
    return NOTHING if found is MISSING else Optional(True, found)


def select(container: object, key: str) -> object:
    """Return container.key."""
    if isinstance(container, Optional):
        return optional_index(container, key)
    if not isinstance(container, dict):
        raise CelError(f"no such key: {key}")
    found = lookup(container, key)
    if found is MISSING:
        raise CelError(f"no such key: {key}")
    return found


def has(container: object, key: str) -> bool:
    """Return whether a map has a key. Other values have none."""
    if isinstance(container, Optional):
        return container.present and has(container.value, key)
    return isinstance(container, dict) and lookup(container, key) is not MISSING


def size(value: object) -> int:
    """Return the number of characters, bytes, items or keys."""
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    raise no_overload("size", value)


def _to_integer(name: str, kind: type, form: re.Pattern[str], is_in_range: Callable[[float], bool]) -> Function:
    """Return the conversion of numbers, and of texts of this form, to an integer type."""

    def convert(value: object) -> int:
        if isinstance(value, float):
            return in_range(kind, int(value) if is_in_range(value) else UINT_MAX + 1)
        if (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, str) and form.fullmatch(value)
        ):
            return in_range(kind, int(value))
        raise _no_conversion(value, name)

    return convert


def _to_double(value: object) -> float:
    """Return double(value)."""
    if type(value) in NUMBERS:
        return float(cast("float", value))
    if isinstance(value, str):
        if "x" in value.lower() or "_" in value:
            raise Unsupported("double() of a text in another form than a decimal number")
        if _FLOAT_TEXT.fullmatch(value):
            number = float(value)
            if math.isinf(number) and "i" not in value.lower():
                raise CelError("the number is too large for a double")
            return number
    raise _no_conversion(value, "double")


def _to_text(value: object) -> str:
    """Return string(value)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
    raise _no_conversion(value, "string")


def _float_text(value: float) -> str:
    """Return a number as Go's %g has it, with the fewest digits that mean it."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    exact = Decimal(repr(value)).normalize()
    exponent = exact.adjusted() if value else 0
    if -4 <= exponent < _FEWEST_PLAIN_DIGITS:
        return f"{exact:f}"
    mantissa, _, _ = f"{exact:e}".partition("e")
    return f"{mantissa}e{exponent:+03d}"


def _to_bool(value: object) -> bool:
    """Return bool(value)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return truth(value)
        except BadInput:
            pass
    raise _no_conversion(value, "bool")


def _to_bytes(value: object) -> bytes:
    """Return bytes(value)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise _no_conversion(value, "bytes")


def _no_conversion(value: object, name: str) -> CelError:
    return CelError(f"type conversion error: {type_name(value)} to {name}")


OPERATORS: dict[str, Function] = {
    "_+_": add,
    "_-_": _arithmetic("_-_", operator.sub),
    "_*_": _arithmetic("_*_", operator.mul),
    "_/_": _arithmetic("_/_", _quotient),
    "_%_": _arithmetic("_%_", _remainder),
    "-_": negate,
    "!_": logical_not,
    "_==_": equal,
    "_!=_": lambda left, right: not same(left, right),  # values that can't be compared are not equal
    "_<_": _ordering(lambda found: found < 0),
    "_<=_": _ordering(lambda found: found <= 0),
    "_>_": _ordering(lambda found: found > 0),
    "_>=_": _ordering(lambda found: found >= 0),
    "@in": is_in,
    "_[_]": index,
    "_[?_]": optional_index,
    "_?._": optional_index,
    "size": size,
    "int": _to_integer("int", int, _INT_TEXT, lambda number: -(2.0**63) < number < 2.0**63),
    "uint": _to_integer("uint", Uint, _UINT_TEXT, lambda number: 0 <= number < 2.0**64),
    "double": _to_double,
    "string": _to_text,
    "bool": _to_bool,
    "bytes": _to_bytes,
    "type": lambda value: TypeValue(type_name(value)),
    "dyn": lambda value: value,
}
