"""What a call costs, counted before it is made.

Functions that are not here cost what it takes to look at all of their arguments. Each of these is called with the
evaluation and the arguments, of whatever type, and spends steps of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuledger.formats.resource_claims.cel.functions import Pattern, compile_cost, pattern_size


class Spending(Protocol):
    """An evaluation."""

    def spend(self, steps: int) -> None:
        """Count steps. Raises Unsupported when there are too many."""

    def spend_on(self, value: object) -> int:
        """Count all of a value; return how much that is. Raises Unsupported."""


Cost = Callable[..., None]


def _join(run: Spending, left: object, right: object) -> None:
    """Of `+`: a list is copied without what is in it."""
    for each in (left, right):
        run.spend(1 + (len(each) >> 4) if isinstance(each, list | str | bytes) else 1)


def _index(run: Spending, container: object, key: object) -> None:
    """Of a look into a map or a list. A number as a key may have to be told from a truth, see `lookup`."""
    is_walked = isinstance(container, dict) and isinstance(key, int | float)
    run.spend(1 + (len(container) >> 3) if is_walked else 1)  # type: ignore[arg-type]
    if isinstance(key, str):
        run.spend_on(key)


def _contained(run: Spending, item: object, container: object) -> None:
    """Of `in`: only a list is looked through."""
    if isinstance(container, dict):
        _index(run, container, item)
    else:
        run.spend_on(item)
        run.spend_on(container)


def _all_with_all(run: Spending, left: object, right: object = None) -> None:
    """Of a function that compares items with each other."""
    one = run.spend_on(left)
    run.spend(one * (one if right is None else run.spend_on(right)))


def _version(run: Spending, text: object, tolerant: object = False) -> None:
    """Of a text that is read as a version: each of its parts is looked at."""
    run.spend(5 + (len(text) >> 1) if isinstance(text, str) else 1)


def _range(run: Spending, count: object) -> None:
    run.spend(1 + max(count, 0) // 4 if isinstance(count, int) else 1)


def _replace(run: Spending, text: object, old: object, new: object, limit: object = None) -> None:
    for each in (text, old, new):
        run.spend_on(each)
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        count = text.count(old)
        run.spend((count * len(new) >> 5) + (count >> 3))


def _split(run: Spending, text: object, separator: object, limit: object = None) -> None:
    run.spend_on(text)
    run.spend_on(separator)
    if isinstance(text, str) and isinstance(separator, str):
        run.spend((text.count(separator) if separator else len(text)) >> 2)


def _joined(run: Spending, items: object, separator: object = "") -> None:
    run.spend_on(items)
    if isinstance(items, list) and isinstance(separator, str):
        run.spend(len(items) * (1 + len(separator)) >> 5)


def _search(run: Spending, text: object, pattern: object, limit: object = None) -> None:
    _look_for(run, text, pattern, 1)


def _search_all(run: Spending, text: object, pattern: object, limit: object = None) -> None:
    _look_for(run, text, pattern, len(text) + 1 if isinstance(text, str) else 1)


def _look_for(run: Spending, text: object, pattern: object, searches: int) -> None:
    """Of a regular expression: RE2's work for a character grows with the size of the compiled pattern."""
    run.spend_on(text)
    if isinstance(pattern, str):
        run.spend(compile_cost(pattern))
    if isinstance(text, str) and isinstance(pattern, str | Pattern):
        run.spend(searches * (4 + (len(text) * pattern_size(pattern) >> 8)))


COSTS: dict[str, Cost] = {
    "_+_": _join,
    "_[_]": _index,
    "_[?_]": _index,
    "_?._": _index,
    "@in": _contained,
    "distinct": _all_with_all,
    "sort": _all_with_all,
    "sets.contains": _all_with_all,
    "sets.equivalent": _all_with_all,
    "sets.intersects": _all_with_all,
    "semver": _version,
    "isSemver": _version,
    "lists.range": _range,
    "replace": _replace,
    "split": _split,
    "join": _joined,
    "matches": _search,
    "find": _search,
    "findAll": _search_all,
}
