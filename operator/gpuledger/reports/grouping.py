"""Many that are alike, in one line: the replicas of a Deployment, the pods of a Job.

The ledger knows no owners, so who belongs together is told by names, as controllers make them. That alone joins
nothing: only those are joined of which everything that is shown is equal, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Row = TypeVar("Row")


FEW = 2
"""So many that are alike are shown one by one: there is nothing to gain."""


NAMED = 3
"""Of more names, the others are counted."""


MADE_UP = re.compile(r"(-[bcdfghjklmnpqrstvwxz2456789]{5,10}(?=-|$))|\d+(?=-|$)")
"""What controllers append to their own name: a template's hash or a random end, in Kubernetes' letters; a number."""


def family(name: str) -> str:
    """Return a pod's name with marks for what its controller has appended: "chat-*-*" of a Deployment's replica."""
    return MADE_UP.sub(lambda found: "-*" if found[1] else "#", name)


def gathered(
    rows: Iterable[Row], name: Callable[[Row], str], shown: Callable[[Row], Hashable], few: int = FEW
) -> list[list[Row]]:
    """Return rows in groups of which no more than the end of the name differs, in the order of the first of each."""
    groups: dict[Hashable, list[tuple[int, Row]]] = {}  # family, and what is shown -> places and rows
    for place, row in enumerate(rows):
        groups.setdefault((family(name(row)), shown(row)), []).append((place, row))
    parts = []
    for group in groups.values():
        many = len({name(row) for _, row in group}) > few
        parts += [group] if many else [[each] for each in group]
    return [[row for _, row in part] for part in sorted(parts, key=lambda part: part[0][0])]


def title_of(names: Sequence[str], noun: str = "pods") -> str:
    """Return one name, or "30 pods like default/chat-0"."""
    return names[0] if len(names) == 1 else f"{len(names)} {noun} like {names[0]}"


def pods_named(names: Iterable[str], most: int = NAMED) -> str:
    """Return who is meant in a few words: names, crowds with their number, and how many others there are."""
    groups = gathered(names, str, lambda _: None)
    rest = sum(map(len, groups[most:]))
    return ", ".join(map(title_of, groups[:most])) + (f" +{rest}" if rest else "")


def nodes_named(nodes: Iterable[str]) -> str:
    """Return where many are, each by its node: that node, or "24 on node-1, 6 on node-2"."""
    counts = Counter(nodes)
    return next(iter(counts)) if len(counts) == 1 else listed([f"{count} on {node}" for node, count in counts.items()])


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """Return names in a sentence: "a", "a and b", "a, b, c and 4 more"."""
    if len(names) == 1:
        return names[0]
    shown, rest = (names[:-1], names[-1]) if len(names) <= most else (names[:most], f"{len(names) - most} more")
    return f"{', '.join(shown)} and {rest}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in order, those in a row as one: "0-2, 5"."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)
