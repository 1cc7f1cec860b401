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


def _order(left: object, right: object) -> int | None:
    """Return -1, 0 or 1, None for two that can't be compared: the functions below go on then, as Kubernetes' do."""
    try:
        return compare(left, right)
    except CelError:
        return None


def _comparable(name: str, items: object) -> list[object]:
    (found,) = take(name, list, items)
    if any(type(each) not in _ORDERED for each in found):
        raise no_overload(name, items)
    return found


def _is_sorted(items: object) -> bool:
    return all(_order(one, two) != 1 for one, two in pairwise(_comparable("isSorted", items)))


def _sum(items: object) -> object:
    (found,) = take("sum", list, items)
    if any(isinstance(each, float | Uint) for each in found):
        raise Unsupported("sum() of other numbers than integers")  # there, the answer depends on the list's type
    total: object = 0
    for each in found:
        total = add(total, each)
    return total


def _extreme(name: str, sign: int) -> Function:
    def extreme(items: object) -> object:
        found = _comparable(name, items)
        if not found:
            raise CelError(f"{name} called on empty list")
        best = found[0]
        for each in found[1:]:
            if _order(best, each) == -sign:
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
    found = _comparable("sort", items)
    if len({type(each) for each in found}) > 1 or any(each != each for each in found):
        raise CelError("list elements must have the same type, and an order")
    return sorted(found, key=cmp_to_key(lambda one, two: _order(one, two) or 0))


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
