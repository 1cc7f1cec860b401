"""The functions that selectors may use beyond CEL's own: as they are declared, and as they work.

Source: k8s.io/apiserver 0.36 (pkg/cel/library: quantity and semver), and cel-go 0.26 for optional values.

Regular expressions are RE2's, whose work grows with the text and never with its powers. Source: the CEL specification
(`matches`), and k8s.io/apiserver (pkg/cel/library/regex.go) for `find` and `findAll`.

Functions of texts count in characters. `indexOf` and `lastIndexOf` are for lists, too. Source: cel-go 0.26,
ext/strings.go version 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpuledger.formats.kubernetes.quantity import Quantity, TooLong, parse_quantity
from gpuledger.formats.resource_claims.cel.lists import LIST_FUNCTIONS
from gpuledger.formats.resource_claims.cel.operators import Function
from gpuledger.formats.resource_claims.cel.values import CelError, Optional, Unsupported, no_overload, same, take
from gpuledger.formats.resource_claims.semver import Version, normalized, parse_version

MEMORY_BYTES = 256 * 1024
"""What RE2 may use for one pattern. It also limits how long a search may take per character."""

MOST_CLASSES = 4
"""Classes of Unicode's letters, such as `\\pL`, in a pattern: RE2 takes up to 7 ms to compile one."""

_PATTERNS_KEPT = 32
"""Compiled patterns that are remembered, of those that are texts made by an expression."""

_PLAIN_STEPS, _REPEATING_STEPS, _CLASS_STEPS = 100, 1_000, 10_000
"""Of an evaluation, to compile a pattern: any, one with a number of repetitions, one with a class of Unicode's."""

_TOO_LARGE = "pattern too large"


class Pattern:
    """A regular expression, or a text that is none."""

    __slots__ = ("problem", "program", "size", "too_large")

    def __init__(self, text: str) -> None:
        import re2  # as late as the CEL library: most runs meet no selector

        options = re2.Options()
        options.log_errors = False
        options.max_mem = MEMORY_BYTES
        self.program: Any = None
        self.problem, self.too_large, self.size = "", True, 1
        if "\\C" in text:
            self.problem = "\\C"
        elif classes(text) > MOST_CLASSES:
            self.problem = f"it has more than {MOST_CLASSES} classes such as \\pL"
        else:
            try:
                self.program = re2.compile(text, options)
                self.size = int(self.program.programsize)
            except re2.error as error:
                told = error.args[0] if error.args else ""
                told = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
                self.problem, self.too_large = told[:200], _TOO_LARGE in told


_made = lru_cache(maxsize=_PATTERNS_KEPT)(Pattern)


def classes(text: str) -> int:
    """Return how many classes of Unicode's letters a pattern has, or a few more."""
    return text.count("\\p") + text.count("\\P")


def compile_cost(text: str) -> int:
    """Return how many steps of an evaluation it takes at most to compile a pattern."""
    repeating = _REPEATING_STEPS if "{" in text else 0
    return _PLAIN_STEPS + repeating + (_CLASS_STEPS if classes(text) else 0) + len(text)


def pattern_size(pattern: str | Pattern) -> int:
    """Return how much RE2 does for a character of a text at most. Compiles a text."""
    return pattern.size if isinstance(pattern, Pattern) else _made(pattern).size


def _usable(name: str, text: object, pattern: object) -> tuple[str, Any]:
    """Return a text and the program of a pattern, which is one already if it is a literal. Raises CelError."""
    if not isinstance(text, str) or not isinstance(pattern, str | Pattern):
        raise no_overload(name, text, "" if isinstance(pattern, Pattern) else pattern)
    found = _made(pattern) if isinstance(pattern, str) else pattern
    if found.problem and found.too_large:
        raise Unsupported(f"a regular expression that gpuledger does not evaluate: {found.problem}")
    if found.problem:
        raise CelError(f"not a regular expression: {found.problem}")
    return text, found.program


def matches(text: object, pattern: object) -> bool:
    """Return whether a part of the text matches."""
    found, program = _usable("matches", text, pattern)
    return program.search(found) is not None


def find_first(text: object, pattern: object) -> str:
    """Return the first match, an empty text if there is none."""
    found, program = _usable("find", text, pattern)
    match = program.search(found)
    return str(match.group()) if match else ""


def find_all(text: object, pattern: object, limit: object = -1) -> list[object]:
    """Return all matches that do not overlap, or the first of them."""
    found, program = _usable("findAll", text, pattern)
    if type(limit) is not int:
        raise no_overload("findAll", text, "", limit)
    place, end = 0, -1
    matched: list[object] = []
    while place <= len(found) and (limit < 0 or len(matched) < limit):
        match = program.search(found, place)
        if not match:
            break
        start, stop = match.span()
        if stop > start or start != end:  # an empty match right after another one does not count
            matched.append(found[start:stop])
        end = stop
        place = stop if stop > start else stop + 1
    return matched


_SPACE = "".join(
    map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
"""What Go's strings.TrimSpace takes away, which is not quite what Python's strip() does."""


def _char_at(text: object, place: object) -> str:
    (found,), (at,) = take("charAt", str, text), take("charAt", int, place)
    if not 0 <= at <= len(found):
        raise CelError(f"index out of range: {at}")
    return found[at : at + 1]


def _index_of(where: object, what: object, offset: object = 0) -> int:
    if isinstance(where, list):
        return next((at for at, each in enumerate(where) if same(each, what)), -1)
    (text, part), (start,) = take("indexOf", str, where, what), take("indexOf", int, offset)
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.find(part, start) if start < len(text) else -1


def _last_index_of(where: object, what: object, offset: object = None) -> int:
    if isinstance(where, list):
        return next((at for at in range(len(where) - 1, -1, -1) if same(where[at], what)), -1)
    text, part = take("lastIndexOf", str, where, what)
    if offset is None:
        return len(text) if not part else text.rfind(part)
    (start,) = take("lastIndexOf", int, offset)
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return -1 if start >= len(text) else text.rfind(part, 0, start + len(part))


def _lower(text: object) -> str:
    (found,) = take("lowerAscii", str, text)
    return found.translate({code: code + 32 for code in range(65, 91)})


def _upper(text: object) -> str:
    (found,) = take("upperAscii", str, text)
    return found.translate({code: code - 32 for code in range(97, 123)})


def _replace(text: object, old: object, new: object, limit: object = -1) -> str:
    (found, part, other), (count,) = take("replace", str, text, old, new), take("replace", int, limit)
    return found.replace(part, other, max(count, -1))


def _split(text: object, separator: object, limit: object = -1) -> list[object]:
    (found, part), (count,) = take("split", str, text, separator), take("split", int, limit)
    if count == 0:
        return []
    if not part:
        pieces = list(found)
        return [*pieces[: count - 1], "".join(pieces[count - 1 :])] if 0 < count < len(pieces) else [*pieces]
    return [*found.split(part, count - 1 if count > 0 else -1)]


def _substring(text: object, start: object, end: object = None) -> str:
    (found,), (first,) = take("substring", str, text), take("substring", int, start)
    (last,) = take("substring", int, len(found) if end is None else end)
    if end is not None and first > last:
        raise CelError(f"invalid substring range. start: {first}, end: {last}")
    if not 0 <= first <= len(found) or not 0 <= last <= len(found):
        raise CelError(f"index out of range: {first}, {last}")
    return found[first:last]


def _trim(text: object) -> str:
    return take("trim", str, text)[0].strip(_SPACE)


def _join(items: object, separator: object = "") -> str:
    (texts,), (between,) = take("join", list, items), take("join", str, separator)
    return between.join(take("join", str, *texts))


def _text_test(name: str, holds: Callable[[str, str], bool]) -> Function:
    return lambda text, part: holds(*take(name, str, text, part))


TEXT_FUNCTIONS: dict[str, Function] = {
    "contains": _text_test("contains", lambda text, part: part in text),
    "startsWith": _text_test("startsWith", str.startswith),
    "endsWith": _text_test("endsWith", str.endswith),
    "matches": matches,
    "find": find_first,
    "findAll": find_all,
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "lowerAscii": _lower,
    "upperAscii": _upper,
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": _trim,
    "join": _join,
}


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
