"""CEL's operators and conversions.

Source: the CEL specification's list of standard definitions, and cel-go 0.26 (common/types) for what it leaves open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import cast

from gpuledger.formats.kubernetes.quantity import truth
from gpuledger.formats.resource_claims.cel.values import (
    INT_MAX,
    INT_MIN,
    MISSING,
    NUMBERS,
    UINT_MAX,
    CelError,
    DomainMap,
    Optional,
    TypeValue,
    Uint,
    Unsupported,
    compare,
    contains,
    equal,
    lookup,
    no_overload,
    type_name,
)
from gpuledger.model.errors import BadInput

Function = Callable[..., object]

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


def _pair(name: str, left: object, right: object) -> type:
    kind = type(left)
    if kind is not type(right) or kind not in NUMBERS:
        raise no_overload(name, left, right)
    return kind


def add(left: object, right: object) -> object:
    """Return left + right: a sum, or texts or lists joined."""
    if type(left) is type(right) and isinstance(left, str | bytes | list):
        return left + right  # type: ignore[operator]
    kind = _pair("_+_", left, right)
    total = cast("int", left) + cast("int", right)
    return total if kind is float else in_range(kind, total)


def subtract(left: object, right: object) -> object:
    """Return left - right."""
    kind = _pair("_-_", left, right)
    rest = cast("int", left) - cast("int", right)
    return rest if kind is float else in_range(kind, rest)


def multiply(left: object, right: object) -> object:
    """Return the product."""
    kind = _pair("_*_", left, right)
    product = cast("int", left) * cast("int", right)
    return product if kind is float else in_range(kind, product)


def divide(left: object, right: object) -> object:
    """Return left / right, for integers without its fraction."""
    kind = _pair("_/_", left, right)
    if kind is float:
        return _divide_floats(cast("float", left), cast("float", right))
    one, two = cast("int", left), cast("int", right)
    if two == 0:
        raise CelError("division by zero")
    quotient = abs(one) // abs(two)
    return in_range(kind, quotient if (one < 0) == (two < 0) else -quotient)


def _divide_floats(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def remainder(left: object, right: object) -> object:
    """Return what is left of integers after a division, with the sign of the left one."""
    kind = _pair("_%_", left, right)
    if kind is float:
        raise no_overload("_%_", left, right)
    one, two = cast("int", left), cast("int", right)
    if two == 0:
        raise CelError("modulus by zero")
    rest = abs(one) % abs(two)
    return in_range(kind, -rest if one < 0 else rest)


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


def not_equal(left: object, right: object) -> bool:
    """Return left != right. Values that can't be compared are not equal, as in the API server."""
    try:
        return not equal(left, right)
    except CelError:
        return True


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
    return Optional(False) if found is MISSING else Optional(True, found)


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


def to_int(value: object) -> int:
    """Return int(value)."""
    kind = type(value)
    if kind in (int, Uint):
        return in_range(int, cast("int", value))
    if kind is float:
        number = cast("float", value)
        if not -(2.0**63) < number < 2.0**63:
            raise CelError("integer overflow")
        return int(number)
    if isinstance(value, str) and _INT_TEXT.fullmatch(value):
        return in_range(int, int(value))
    raise _no_conversion(value, "int")


def to_uint(value: object) -> int:
    """Return uint(value)."""
    kind = type(value)
    if kind in (int, Uint):
        return in_range(Uint, cast("int", value))
    if kind is float:
        number = cast("float", value)
        if not 0 <= number < 2.0**64:
            raise CelError("unsigned integer overflow")
        return Uint(int(number))
    if isinstance(value, str) and _UINT_TEXT.fullmatch(value):
        return in_range(Uint, int(value))
    raise _no_conversion(value, "uint")


def to_double(value: object) -> float:
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


def to_text(value: object) -> str:
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
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits, power = f"{abs(value):.17e}".split("e")
    for places in range(17):
        digits, power = f"{abs(value):.{places}e}".split("e")
        if float(f"{digits}e{power}") == abs(value):
            break
    sign, exponent, plain = "-" if value < 0 else "", int(power), digits.replace(".", "")
    if exponent < -4 or exponent >= _FEWEST_PLAIN_DIGITS:
        return f"{sign}{digits}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{plain}"
    whole = plain.ljust(exponent + 1, "0")
    return sign + whole[: exponent + 1] + ("." + whole[exponent + 1 :] if len(whole) > exponent + 1 else "")


def to_bool(value: object) -> bool:
    """Return bool(value)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return truth(value)
        except BadInput:
            pass
    raise _no_conversion(value, "bool")


def to_bytes(value: object) -> bytes:
    """Return bytes(value)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise _no_conversion(value, "bytes")


def to_type(value: object) -> TypeValue:
    """Return type(value)."""
    return TypeValue(type_name(value))


def unchanged(value: object) -> object:
    """Return dyn(value): the same, only its type is not checked."""
    return value


def _no_conversion(value: object, name: str) -> CelError:
    return CelError(f"type conversion error: {type_name(value)} to {name}")


OPERATORS: dict[str, Function] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": remainder,
    "-_": negate,
    "!_": logical_not,
    "_==_": equal,
    "_!=_": not_equal,
    "_<_": _ordering(lambda found: found < 0),
    "_<=_": _ordering(lambda found: found <= 0),
    "_>_": _ordering(lambda found: found > 0),
    "_>=_": _ordering(lambda found: found >= 0),
    "@in": is_in,
    "_[_]": index,
    "_[?_]": optional_index,
    "_?._": optional_index,
    "size": size,
    "int": to_int,
    "uint": to_uint,
    "double": to_double,
    "string": to_text,
    "bool": to_bool,
    "bytes": to_bytes,
    "type": to_type,
    "dyn": unchanged,
}
