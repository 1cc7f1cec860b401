"""CEL's functions of lists.

Source: k8s.io/apiserver 0.36 (pkg/cel/library/lists.go), and cel-go 0.26 (ext/lists.go version 3, ext/sets.go).
"""

from __future__ import annotations

from functools import cmp_to_key
from itertools import pairwise

from gpuledger.formats.resource_claims.cel.operators import Function, add
from gpuledger.formats.resource_claims.cel.values import (
    CelError,
    Uint,
    Unsupported,
    compare,
    contains,
    no_overload,
    same,
    take,
)

_LARGEST_RANGE = 10_000
_ORDERED = (int, Uint, float, bool, str, bytes)


def _order(left: object, right: object) -> int:
    found = compare(left, right)
    if found is None:
        raise CelError("NaN values cannot be ordered")
    return found


def _comparable(name: str, items: object) -> list[object]:
    (found,) = take(name, list, items)
    if len({type(each) for each in found}) > 1 or any(type(each) not in _ORDERED for each in found):
        raise no_overload(name, items)
    return found


def _is_sorted(items: object) -> bool:
    found = _comparable("isSorted", items)
    return all(_order(one, two) <= 0 for one, two in pairwise(found))


def _sum(items: object) -> object:
    (found,) = take("sum", list, items)
    if any(type(each) not in (int, Uint, float) for each in found):
        raise no_overload("sum", items)
    if not found:
        return 0
    total = found[0]
    for each in found[1:]:
        total = add(total, each)
    return total


def _extreme(name: str, sign: int) -> Function:
    def extreme(items: object) -> object:
        found = _comparable(name, items)
        if not found:
            raise CelError(f"{name} called on empty list")
        best = found[0]
        for each in found[1:]:
            if _order(each, best) == sign:
                best = each
        return best

    return extreme


def _slice(items: object, start: object, end: object) -> list[object]:
    (found,), (first, last) = take("slice", list, items), take("slice", int, start, end)
    if first < 0 or last < first or last > len(found):
        raise CelError(f"cannot slice({first}, {last}), list has length {len(found)}")
    return found[first:last]


def _reverse(items: object) -> list[object]:
    return take("reverse", list, items)[0][::-1]


def _distinct(items: object) -> list[object]:
    kept: list[object] = []
    for each in take("distinct", list, items)[0]:
        if not any(same(other, each) for other in kept):
            kept.append(each)
    return kept


def _sort(items: object) -> list[object]:
    return sorted(_comparable("sort", items), key=cmp_to_key(_order))


def _flatten(items: object, depth: object = 1) -> list[object]:
    (found,), (levels,) = take("flatten", list, items), take("flatten", int, depth)
    if levels < 0:
        raise CelError("level must be non-negative")
    flat: list[object] = []
    for each in found:
        if isinstance(each, list) and levels > 0:
            flat += _flatten(each, levels - 1)
        else:
            flat.append(each)
    return flat


def _range(count: object) -> list[object]:
    (number,) = take("lists.range", int, count)
    if number > _LARGEST_RANGE:
        raise Unsupported(f"a range of more than {_LARGEST_RANGE} numbers")
    return list(range(max(number, 0)))


def _sets_contain(items: object, wanted: object) -> bool:
    found, others = take("sets.contains", list, items, wanted)
    return all(contains(found, each) for each in others)


def _sets_intersect(items: object, wanted: object) -> bool:
    found, others = take("sets.intersects", list, items, wanted)
    return any(any(same(each, other) for other in others) for each in found)


LIST_FUNCTIONS: dict[str, Function] = {
    "isSorted": _is_sorted,
    "sum": _sum,
    "min": _extreme("min", -1),
    "max": _extreme("max", 1),
    "slice": _slice,
    "reverse": _reverse,
    "distinct": _distinct,
    "sort": _sort,
    "flatten": _flatten,
    "lists.range": _range,
    "sets.contains": _sets_contain,
    "sets.equivalent": lambda left, right: _sets_contain(left, right) and _sets_contain(right, left),
    "sets.intersects": _sets_intersect,
}
