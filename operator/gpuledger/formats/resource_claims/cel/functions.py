"""The functions that selectors may use: as the CEL library is told of them, as they work, and what a call costs.

Sources: k8s.io/apiserver 0.36 (pkg/cel/library: quantity, semver, regex and lists); cel-go 0.26 for optional values,
texts (ext/strings.go version 2) and lists (ext/lists.go version 3, ext/sets.go); the CEL specification for `matches`.

Functions of texts count in characters. Regular expressions are RE2's, whose work grows with the text and never with
its powers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from itertools import pairwise, product
from typing import Any, cast

from gpuledger.formats.quantity import Quantity, TooLong, parse_quantity
from gpuledger.formats.resource_claims.cel.values import (
    NOTHING,
    VALUE_TYPES,
    CelError,
    Function,
    Optional,
    TypeValue,
    Uint,
    Unsupported,
    Version,
    add,
    compare,
    contains,
    no_overload,
    normalized,
    parse_version,
    same,
)

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


def _program(pattern: str | Pattern) -> Any:
    """Return the program of a pattern. Raises CelError for what is none, Unsupported for one that is too large."""
    found = _made(pattern) if isinstance(pattern, str) else pattern
    if found.problem and found.too_large:
        raise Unsupported(f"a regular expression that gpuledger does not evaluate: {found.problem}")
    if found.problem:
        raise CelError(f"not a regular expression: {found.problem}")
    return found.program


def _find(text: str, pattern: str | Pattern) -> str:
    match = _program(pattern).search(text)
    return str(match.group()) if match else ""


def _find_all(text: str, pattern: str | Pattern, limit: int = -1) -> list[str]:
    """Return all matches that do not overlap, or the first of them."""
    program, place, end = _program(pattern), 0, -1
    matched: list[str] = []
    while place <= len(text) and (limit < 0 or len(matched) < limit):
        match = program.search(text, place)
        if not match:
            break
        start, stop = match.span()
        if stop > start or start != end:  # an empty match right after another one does not count
            matched.append(text[start:stop])
        end = stop
        place = stop if stop > start else stop + 1
    return matched


_SPACE = "".join(
    map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
"""What Go's strings.TrimSpace takes away, which is not quite what Python's strip() does."""

_LOWER, _UPPER = {code: code + 32 for code in range(65, 91)}, {code: code - 32 for code in range(97, 123)}
"""Translations of ASCII letters."""


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise CelError(f"index out of range: {at}")
    return text[at : at + 1]


def _index_in_text(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.find(part, start) if start < len(text) else -1


def _last_index_in_text(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return -1 if start >= len(text) else text.rfind(part, 0, start + len(part))


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if not separator:
        pieces = list(text)
        return [*pieces[: count - 1], "".join(pieces[count - 1 :])] if 0 < count < len(pieces) else pieces
    return text.split(separator, count - 1 if count > 0 else -1)


def _substring(text: str, first: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if end is not None and first > last:
        raise CelError(f"invalid substring range. start: {first}, end: {last}")
    if not 0 <= first <= len(text) or not 0 <= last <= len(text):
        raise CelError(f"index out of range: {first}, {last}")
    return text[first:last]


def _join(items: list[str], separator: str = "") -> str:
    if any(type(each) is not str for each in items):
        raise no_overload("join", *items)
    return separator.join(items)


_LARGEST_RANGE = 10_000
_ORDERED = (int, Uint, float, bool, str, bytes)


def _order(left: object, right: object) -> int | None:
    """Return -1, 0 or 1, None for two that can't be compared: the functions below go on then, as Kubernetes' do."""
    try:
        return compare(left, right)
    except CelError:
        return None


def _comparable(name: str, items: list[object]) -> list[object]:
    if any(type(each) not in _ORDERED for each in items):
        raise no_overload(name, items)
    return items


def _is_sorted(items: list[object]) -> bool:
    return all(_order(one, two) != 1 for one, two in pairwise(_comparable("isSorted", items)))


def _sum(items: list[object]) -> object:
    if any(isinstance(each, float | Uint) for each in items):
        raise Unsupported("sum() of other numbers than integers")  # there, the answer depends on the list's type
    total: object = 0
    for each in items:
        total = add(total, each)
    return total


def _extreme(name: str, sign: int) -> Function:
    def extreme(items: list[object]) -> object:
        if not _comparable(name, items):
            raise CelError(f"{name} called on empty list")
        best = items[0]
        for each in items[1:]:
            if _order(best, each) == -sign:
                best = each
        return best

    return extreme


def _places(items: list[object], wanted: object) -> list[int]:
    return [at for at, each in enumerate(items) if same(each, wanted)]


def _slice(items: list[object], first: int, last: int) -> list[object]:
    if first < 0 or last < first or last > len(items):
        raise CelError(f"cannot slice({first}, {last}), list has length {len(items)}")
    return items[first:last]


def _distinct(items: list[object]) -> list[object]:
    kept: list[object] = []
    for each in items:
        if not any(same(other, each) for other in kept):
            kept.append(each)
    return kept


def _sort(items: list[object]) -> list[object]:
    found = _comparable("sort", items)
    if len({type(each) for each in found}) > 1 or any(each != each for each in found):
        raise CelError("list elements must have the same type, and an order")
    return sorted(found, key=cmp_to_key(lambda one, two: _order(one, two) or 0))


def _flatten(items: list[object], levels: int = 1) -> list[object]:
    if levels < 0:
        raise CelError("level must be non-negative")
    flat: list[object] = []
    for each in items:
        flat += _flatten(each, levels - 1) if isinstance(each, list) and levels > 0 else [each]
    return flat


def _range(count: int) -> list[int]:
    if count > _LARGEST_RANGE:
        raise Unsupported(f"a range of more than {_LARGEST_RANGE} numbers")
    return list(range(max(count, 0)))


def _has_all(items: list[object], wanted: list[object]) -> bool:
    return all(contains(items, each) for each in wanted)


def _parsed_quantity(text: str) -> Quantity | None:
    try:
        return parse_quantity(text)
    except TooLong as error:
        raise Unsupported(str(error)) from None


def _quantity(text: str) -> Quantity:
    found = _parsed_quantity(text)
    if found is None:
        raise CelError(f"quantity({text[:64]!r}): not a quantity")
    return found


def _as_integer(value: Quantity) -> int:
    number = value.as_int64()
    if number is None:
        raise CelError("cannot convert value to integer")
    return number


def _sum_of_quantities(name: str, combine: Callable[[Quantity, Quantity], Quantity]) -> Function:
    def combined(left: Quantity, right: Quantity | int) -> Quantity:
        if not left.is_small:
            # There, Kubernetes changes the quantity itself, so its answer depends on what was asked before.
            raise Unsupported(f"{name}() to a quantity with a fraction, or a very large one")
        return combine(left, Quantity(right, 0) if isinstance(right, int) else right)

    return combined


_plus, _minus = _sum_of_quantities("add", Quantity.plus), _sum_of_quantities("sub", Quantity.minus)


def _parsed_version(text: str, is_tolerant: bool = False) -> Version | None:
    return parse_version(normalized(text) if is_tolerant else text)


def _version(text: str, is_tolerant: bool = False) -> Version:
    found = _parsed_version(text, is_tolerant)
    if found is None:
        raise CelError(f"semver({text[:64]!r}): not a semantic version")
    return found


def _signed(number: int) -> int:
    """Return a part of a version, which the API server's library takes for a signed number."""
    return number - 2**64 if number >= 2**63 else number


def _value(optional: Optional) -> object:
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def _of_non_zero(value: object) -> Optional:
    is_zero = value is None or (isinstance(value, bool | int | float | str | bytes | list | dict) and not value)
    return NOTHING if is_zero else Optional(True, value)


_OWN: dict[str, Function] = {
    "contains(string,string) bool": lambda text, part: part in text,
    "startsWith(string,string) bool": str.startswith,
    "endsWith(string,string) bool": str.endswith,
    "matches(string,pattern) bool": lambda text, pattern: _program(pattern).search(text) is not None,
    "optional.of(dyn) optional_type": lambda value: Optional(True, value),
    "optional.ofNonZeroValue(dyn) optional_type": _of_non_zero,
    "optional.none() optional_type": lambda: NOTHING,
    "hasValue(optional_type) bool": lambda optional: optional.present,
    "value(optional_type) dyn": _value,
}
"""What the CEL library knows without being told; the target of a member is the first parameter. Beside these, the
evaluation has `or` and `orValue`, which do not look at their second argument if they need not."""

_DECLARED: dict[str, Function] = {
    "quantity(string) quantity": _quantity,
    "isQuantity(string) bool": lambda text: _parsed_quantity(text) is not None,
    "sign(quantity) int": lambda found: (found.value > 0) - (found.value < 0),
    "quantity.isGreaterThan(quantity) bool": lambda one, two: one.compare(two) > 0,
    "quantity.isLessThan(quantity) bool": lambda one, two: one.compare(two) < 0,
    "quantity.compareTo(quantity) int": Quantity.compare,
    "quantity.asApproximateFloat() double": Quantity.as_float,
    "quantity.asInteger() int": _as_integer,
    "quantity.isInteger() bool": lambda found: found.as_int64() is not None,
    "quantity.add(quantity) quantity": _plus,
    "quantity.add(int) quantity": _plus,
    "quantity.sub(quantity) quantity": _minus,
    "quantity.sub(int) quantity": _minus,
    "semver(string) semver": _version,
    "semver(string,bool) semver": _version,
    "isSemver(string) bool": lambda text: _parsed_version(text) is not None,
    "isSemver(string,bool) bool": lambda text, is_tolerant: _parsed_version(text, is_tolerant) is not None,
    "semver.isGreaterThan(semver) bool": lambda one, two: one.compare(two) > 0,
    "semver.isLessThan(semver) bool": lambda one, two: one.compare(two) < 0,
    "semver.compareTo(semver) int": Version.compare,
    "semver.major() int": lambda found: _signed(found.major),
    "semver.minor() int": lambda found: _signed(found.minor),
    "semver.patch() int": lambda found: _signed(found.patch),
    "string.find(pattern) string": _find,
    "string.findAll(pattern) texts": _find_all,
    "string.findAll(pattern,int) texts": _find_all,
    "string.charAt(int) string": _char_at,
    "string.indexOf(string) int": _index_in_text,
    "string.indexOf(string,int) int": _index_in_text,
    "string.lastIndexOf(string) int": _last_index_in_text,
    "string.lastIndexOf(string,int) int": _last_index_in_text,
    "string.lowerAscii() string": lambda text: text.translate(_LOWER),
    "string.upperAscii() string": lambda text: text.translate(_UPPER),
    "string.replace(string,string) string": str.replace,
    "string.replace(string,string,int) string": lambda text, old, new, count: text.replace(old, new, max(count, -1)),
    "string.split(string) texts": _split,
    "string.split(string,int) texts": _split,
    "string.substring(int) string": _substring,
    "string.substring(int,int) string": _substring,
    "string.trim() string": lambda text: text.strip(_SPACE),
    "texts.join() string": _join,
    "texts.join(string) string": _join,
    "list.isSorted() bool": _is_sorted,
    "list.sum() dyn": _sum,
    "list.min() dyn": _extreme("min", -1),
    "list.max() dyn": _extreme("max", 1),
    "list.indexOf(dyn) int": lambda items, wanted: next(iter(_places(items, wanted)), -1),
    "list.lastIndexOf(dyn) int": lambda items, wanted: next(iter(_places(items, wanted)[::-1]), -1),
    "list.slice(int,int) list": _slice,
    "list.reverse() list": lambda items: items[::-1],
    "list.distinct() list": _distinct,
    "list.sort() list": _sort,
    "list.flatten() list": _flatten,
    "list.flatten(int) list": _flatten,
    "lists.range(int) list": _range,
    "sets.contains(list,list) bool": _has_all,
    "sets.equivalent(list,list) bool": lambda one, two: _has_all(one, two) and _has_all(two, one),
    "sets.intersects(list,list) bool": lambda one, two: any(same(each, other) for each in one for other in two),
}
"""What the CEL library is told of, beyond its own: receiver, name, parameters, result -> how it works."""

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "pattern": (str, Pattern),
    "int": (int,),
    "bool": (bool,),
    "list": (list,),
    "texts": (list,),
    "quantity": (Quantity,),
    "semver": (Version,),
    "optional_type": (Optional,),
    "dyn": VALUE_TYPES,
}
"""Type of a parameter in the tables above -> the types that its values have."""


@dataclass(frozen=True, slots=True)
class Overload:
    """A function for parameters of some types; the target of a member is the first one."""

    declaration: str
    name: str
    parameters: tuple[str, ...]
    result: str
    is_member: bool
    function: Function


def _overload(declaration: str, function: Function) -> Overload:
    full_name, _, rest = declaration.partition("(")
    parameters, _, result = rest.partition(") ")
    target, _, name = full_name.rpartition(".")
    is_member = target in KINDS
    given = [target] * is_member + [each for each in parameters.split(",") if each]
    return Overload(declaration, name if is_member else full_name, tuple(given), result, is_member, function)


DECLARED = tuple(_overload(declaration, function) for declaration, function in _DECLARED.items())


def _by_types() -> dict[str, dict[tuple[type, ...], Function]]:
    found: dict[str, dict[tuple[type, ...], Function]] = {}
    for each in (*(_overload(*own) for own in _OWN.items()), *DECLARED):
        types = product(*(KINDS[parameter] for parameter in each.parameters))
        found.setdefault(each.name, {}).update(dict.fromkeys(types, each.function))
    return found


FUNCTIONS = _by_types()
"""Name -> types of the arguments -> how the function works for these."""


MOST_STEPS = 10_000
"""Of one evaluation for one device: less than 10 ms. Kubernetes' own limit is about a hundred times this."""

ERROR_STEPS = 8
"""For an error that something gets over."""


class Run:
    """One evaluation: its variables, and the steps that it may still cost."""

    __slots__ = ("left", "names")

    def __init__(self, names: Mapping[str, object], steps: int) -> None:
        self.names = dict(names)
        self.left = steps

    def spend(self, steps: int) -> None:
        """Count steps. Raises Unsupported when there are too many."""
        self.left -= steps
        if self.left < 0:
            raise Unsupported(f"it takes more than {MOST_STEPS} steps for one device")

    def spend_on(self, value: object) -> int:
        """Count what it takes to look at all of a value, a part of it as often as one comes to it; return that.

        Nothing is looked at before it is counted, so this ends. Raises Unsupported.
        """
        before, waiting = self.left, [value]
        while waiting:
            each = waiting.pop()
            self.spend(_own_steps(each))
            if type(each) not in _FLAT:
                waiting += _parts(each)
        return before - self.left


def _own_steps(value: object) -> int:
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

_FLAT = frozenset({str, bytes, bool, int, float, type(None)})
_WITHOUT_PARTS = frozenset({type(None), bool, int, Uint, float, TypeValue})


def _parts(value: object) -> list[object]:
    """Return the values in a value of which more than their number counts."""
    if type(value) is list:
        return [each for each in value if type(each) not in _WITHOUT_PARTS]
    if isinstance(value, dict):
        inside = [each for each in value.values() if type(each) not in _WITHOUT_PARTS]
        return inside + [each for each in value if type(each) is str]
    return [value.value] if type(value) is Optional and value.present else []


Cost = Callable[..., None]
"""Called with the evaluation and the arguments of a call, before it is made; spends steps of it."""


def _cost_of_plus(run: Run, left: object, right: object) -> None:
    """Of `+`: a list is copied without what is in it."""
    for each in (left, right):
        run.spend(1 + (len(each) >> 4) if isinstance(each, list | str | bytes) else 1)


def _cost_of_index(run: Run, container: object, key: object) -> None:
    """Of a look into a map or a list. A number as a key may have to be told from a truth, see `lookup`."""
    run.spend(1 + (len(container) >> 3) if isinstance(container, dict) and isinstance(key, int | float) else 1)
    if isinstance(key, str):
        run.spend_on(key)


def _cost_of_in(run: Run, item: object, container: object) -> None:
    """Of `in`: only a list is looked through."""
    if isinstance(container, dict):
        _cost_of_index(run, container, item)
    else:
        run.spend_on(item)
        run.spend_on(container)


def _cost_of_pairs(run: Run, left: list[object], right: list[object] | None = None) -> None:
    """Of a function that compares items with each other."""
    one = run.spend_on(left)
    run.spend(one * (one if right is None else run.spend_on(right)))


def _cost_of_version(run: Run, text: str, is_tolerant: bool = False) -> None:
    """Of a text that is read as a version: each of its parts is looked at."""
    run.spend(5 + (len(text) >> 1))


def _cost_of_replace(run: Run, text: str, old: str, new: str, limit: int = -1) -> None:
    for each in (text, old, new):
        run.spend_on(each)
    count = text.count(old)
    run.spend((count * len(new) >> 5) + (count >> 3))


def _cost_of_split(run: Run, text: str, separator: str, limit: int = -1) -> None:
    run.spend_on(text)
    run.spend_on(separator)
    run.spend((text.count(separator) if separator else len(text)) >> 2)


def _cost_of_join(run: Run, items: list[object], separator: str = "") -> None:
    run.spend_on(items)
    run.spend(len(items) * (1 + len(separator)) >> 5)


def _cost_of_search(run: Run, text: str, pattern: str | Pattern, searches: int = 1) -> None:
    """Of a regular expression: RE2's work for a character grows with the size of the compiled pattern."""
    run.spend_on(text)
    if isinstance(pattern, str):
        run.spend(compile_cost(pattern))
    run.spend(searches * (4 + (len(text) * pattern_size(pattern) >> 8)))


COSTS: dict[str, Cost] = {
    "_+_": _cost_of_plus,
    "_[_]": _cost_of_index,
    "_[?_]": _cost_of_index,
    "_?._": _cost_of_index,
    "@in": _cost_of_in,
    "distinct": _cost_of_pairs,
    "sort": _cost_of_pairs,
    "sets.contains": _cost_of_pairs,
    "sets.equivalent": _cost_of_pairs,
    "sets.intersects": _cost_of_pairs,
    "semver": _cost_of_version,
    "isSemver": _cost_of_version,
    "lists.range": lambda run, count: run.spend(1 + max(count, 0) // 4),
    "replace": _cost_of_replace,
    "split": _cost_of_split,
    "join": _cost_of_join,
    "matches": _cost_of_search,
    "find": _cost_of_search,
    "findAll": lambda run, text, pattern, limit=-1: _cost_of_search(run, text, pattern, len(text) + 1),
}
"""Functions that are not here cost what it takes to look at all of their arguments. The types of operands are not
checked yet, those of arguments are."""
