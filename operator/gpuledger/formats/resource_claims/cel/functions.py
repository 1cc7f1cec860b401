"""The functions that selectors may use beyond CEL's own: as they are declared, and as they work.

Source: k8s.io/apiserver 0.36 (pkg/cel/library: quantity and semver), and cel-go 0.26 for optional values.
"""

from __future__ import annotations

from gpuledger.formats.resource_claims.cel.lists import LIST_FUNCTIONS
from gpuledger.formats.resource_claims.cel.operators import Function
from gpuledger.formats.resource_claims.cel.quantities import Quantity, TooLong, parse_quantity
from gpuledger.formats.resource_claims.cel.texts import TEXT_FUNCTIONS
from gpuledger.formats.resource_claims.cel.values import CelError, Optional, Unsupported, no_overload, take
from gpuledger.formats.resource_claims.semver import Version, normalized, parse_version

DECLARED = """
quantity(string) quantity
isQuantity(string) bool
sign(quantity) int
quantity.isGreaterThan(quantity) bool
quantity.isLessThan(quantity) bool
quantity.compareTo(quantity) int
quantity.asApproximateFloat() double
quantity.asInteger() int
quantity.isInteger() bool
quantity.add(quantity) quantity
quantity.add(int) quantity
quantity.sub(quantity) quantity
quantity.sub(int) quantity
semver(string) semver
semver(string,bool) semver
isSemver(string) bool
isSemver(string,bool) bool
semver.isGreaterThan(semver) bool
semver.isLessThan(semver) bool
semver.compareTo(semver) int
semver.major() int
semver.minor() int
semver.patch() int
string.find(string) string
string.findAll(string) texts
string.findAll(string,int) texts
string.charAt(int) string
string.indexOf(string) int
string.indexOf(string,int) int
string.lastIndexOf(string) int
string.lastIndexOf(string,int) int
string.lowerAscii() string
string.upperAscii() string
string.replace(string,string) string
string.replace(string,string,int) string
string.split(string) texts
string.split(string,int) texts
string.substring(int) string
string.substring(int,int) string
string.trim() string
texts.join() string
texts.join(string) string
list.isSorted() bool
list.sum() dyn
list.min() dyn
list.max() dyn
list.indexOf(dyn) int
list.lastIndexOf(dyn) int
list.slice(int,int) list
list.reverse() list
list.distinct() list
list.sort() list
list.flatten() list
list.flatten(int) list
lists.range(int) list
sets.contains(list,list) bool
sets.equivalent(list,list) bool
sets.intersects(list,list) bool
"""
"""What the CEL library is told of, beyond its own: receiver, name, parameters, result."""


def _quantity(text: object) -> Quantity:
    found = _parsed_quantity(*take("quantity", str, text))
    if found is None:
        raise CelError(f"quantity({str(text)[:64]!r}): not a quantity")
    return found


def _is_quantity(text: object) -> bool:
    return _parsed_quantity(*take("isQuantity", str, text)) is not None


def _parsed_quantity(text: str) -> Quantity | None:
    try:
        return parse_quantity(text)
    except TooLong as error:
        raise Unsupported(str(error)) from None


def _sign(value: object) -> int:
    (found,) = take("sign", Quantity, value)
    return (found.value > 0) - (found.value < 0)


def _compare_kinds(name: str, left: object, right: object) -> int:
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        return left.compare(right)
    if isinstance(left, Version) and isinstance(right, Version):
        return left.compare(right)
    raise no_overload(name, left, right)


def _as_integer(value: object) -> int:
    (found,) = take("asInteger", Quantity, value)
    number = found.as_int64()
    if number is None:
        raise CelError("cannot convert value to integer")
    return number


def _plus(left: object, right: object) -> Quantity:
    one, two = _operands("add", left, right)
    return one.plus(two)


def _minus(left: object, right: object) -> Quantity:
    one, two = _operands("sub", left, right)
    return one.minus(two)


def _operands(name: str, left: object, right: object) -> tuple[Quantity, Quantity]:
    if type(right) is int:
        right = Quantity(right, 0)
    one, two = take(name, Quantity, left, right)
    if not one.is_small:
        # There, Kubernetes changes the quantity itself, so its answer depends on what was asked before.
        raise Unsupported(f"{name}() to a quantity with a fraction, or a very large one")
    return one, two


def _version(text: object, tolerant: object = False) -> Version:
    found = _parsed_version("semver", text, tolerant)
    if found is None:
        raise CelError(f"semver({str(text)[:64]!r}): not a semantic version")
    return found


def _is_version(text: object, tolerant: object = False) -> bool:
    return _parsed_version("isSemver", text, tolerant) is not None


def _parsed_version(name: str, text: object, tolerant: object) -> Version | None:
    (plain,) = take(name, str, text)
    (is_tolerant,) = take(name, bool, tolerant)
    return parse_version(normalized(plain) if is_tolerant else plain)


def _number_of(part: str) -> Function:
    def number(value: object) -> int:
        (found,) = take(part, Version, value)
        wanted = int(getattr(found, part))
        # The API server's library takes the number for a signed one.
        return wanted - 2**64 if wanted >= 2**63 else wanted

    return number


def _value(optional: object) -> object:
    (found,) = take("value", Optional, optional)
    if not found.present:
        raise CelError("optional.none() dereference")
    return found.value


def _of_non_zero(value: object) -> Optional:
    is_zero = value is None or (isinstance(value, bool | int | float | str | bytes | list | dict) and not value)
    return Optional(False) if is_zero else Optional(True, value)


FUNCTIONS: dict[str, Function] = {
    **TEXT_FUNCTIONS,
    **LIST_FUNCTIONS,
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "sign": _sign,
    "isGreaterThan": lambda left, right: _compare_kinds("isGreaterThan", left, right) > 0,
    "isLessThan": lambda left, right: _compare_kinds("isLessThan", left, right) < 0,
    "compareTo": lambda left, right: _compare_kinds("compareTo", left, right),
    "asApproximateFloat": lambda value: take("asApproximateFloat", Quantity, value)[0].as_float(),
    "asInteger": _as_integer,
    "isInteger": lambda value: take("isInteger", Quantity, value)[0].as_int64() is not None,
    "add": _plus,
    "sub": _minus,
    "semver": _version,
    "isSemver": _is_version,
    "major": _number_of("major"),
    "minor": _number_of("minor"),
    "patch": _number_of("patch"),
    "optional.of": lambda value: Optional(True, value),
    "optional.ofNonZeroValue": _of_non_zero,
    "optional.none": lambda: Optional(False),
    "hasValue": lambda optional: take("hasValue", Optional, optional)[0].present,
    "value": _value,
}
"""By name; the target of a member is the first argument. Beside these, the evaluation has `or` and `orValue`, which do
not look at their second argument if they need not."""
