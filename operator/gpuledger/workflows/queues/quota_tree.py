"""The tree of ClusterQueues and cohorts, with what each uses of its quota: who borrows, and how much of what there is.

Source: pkg/cache/scheduler/resource_node.go and fair_sharing.go of Kueue 0.19.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from gpuledger.formats.kubernetes.workload import ClusterQueue, Lender, Quota, Usage

Key = tuple[str, str]
NO_QUOTA = Quota()
DominantShare = tuple[bool, float]
"""Whether it borrows with a weight of 0; and how much it borrows, by what could be lent to it and by its weight."""
NO_SHARE: DominantShare = (False, 0.0)


@dataclass(slots=True, eq=False)
class Node:
    """A ClusterQueue or a cohort in its tree."""

    lender: Lender
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    quota: Usage = field(default_factory=dict)
    """Its own, and what those below lend it."""
    used: Usage = field(default_factory=dict)
    """By itself, or by those below beyond what they do not lend."""

    def exceeds(self, keys: Iterable[Key]) -> bool:
        """Return whether it uses more than its quota of one of these."""
        return any(self.used.get(key, 0) > self.quota.get(key, 0) for key in keys)

    def kept(self, key: Key) -> int:
        """Return how much of its quota it does not lend."""
        lends = self.lender.quotas.get(key, NO_QUOTA).lends
        return 0 if lends is None else max(self.quota.get(key, 0) - lends, 0)

    def above(self) -> Iterator[Node]:
        """Yield the cohorts that it belongs to, the root last."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def potential(self, key: Key) -> int:
        """Return how much it could use if nobody else used anything."""
        quota = self.quota.get(key, 0)
        if self.parent is None:
            return quota
        borrows, most = self.lender.quotas.get(key, NO_QUOTA).borrows, self.kept(key) + self.parent.potential(key)
        return most if borrows is None else min(quota + borrows, most)

    def share(self) -> DominantShare:
        """Return its dominant resource share, in thousandths: the lower one takes, and the higher one gives back."""
        borrowed: dict[str, int] = {}
        for key, quota in self.quota.items():
            if (over := self.used.get(key, 0) - quota) > 0:
                borrowed[key[1]] = borrowed.get(key[1], 0) + over
        if self.parent is None or not borrowed:
            return NO_SHARE
        *_, root = self.above()
        lendable: dict[str, int] = {}
        for key in root.quota:
            lendable[key[1]] = lendable.get(key[1], 0) + self.parent.potential(key)
        ratios = (over * 1000 / lendable[each] for each, over in borrowed.items() if lendable.get(each, 0) > 0)
        ratio = max(ratios, default=0.0)  # rounded as Kueue does, for some shares are equal
        weight = self.lender.weight
        return (ratio > 0, ratio) if weight == 0 else (False, ratio / weight)


class QuotaTree:
    """All trees of them at one moment, from which workloads can be taken away, and put back."""

    def __init__(
        self, queues: Iterable[ClusterQueue], cohorts: Iterable[Lender], used: Iterable[tuple[str, Usage]]
    ) -> None:
        """Add up what they have, and what the workloads use, each given with the name of its ClusterQueue."""
        self.queues = {each.name: Node(each) for each in queues}
        """ClusterQueues by their names."""
        self._cohorts = {each.name: Node(each) for each in cohorts}
        self._link()
        for queue, amounts in used:
            if queue in self.queues:
                _count(self.queues[queue].used, amounts)
        nodes = [*self.queues.values(), *self._cohorts.values()]
        for node in sorted(nodes, key=lambda each: -len([*each.above()])):
            _add_up(node)

    def add(self, queue: str, used: Usage, sign: int = 1) -> None:
        """Have a ClusterQueue use more than before; or less, with the sign -1."""
        node = self.queues.get(queue)
        if node is None:
            return
        _count(node.used, used, sign)
        for cohort in node.above():
            for key in used:
                cohort.used[key] = sum(max(each.used.get(key, 0) - each.kept(key), 0) for each in cohort.children)

    def _link(self) -> None:
        """Link each node with its parent; a cohort that nobody has created has no quota of its own."""
        above = {name: node.lender.cohort for name, node in self._cohorts.items()}
        proper = [node for name, node in self._cohorts.items() if not _is_above_itself(name, above)]
        for node in [*self.queues.values(), *proper]:
            if name := node.lender.cohort:
                node.parent = self._cohorts.setdefault(name, Node(Lender(name, "", {}, 1.0)))
                node.parent.children.append(node)


def _is_above_itself(cohort: str, above: Mapping[str, str]) -> bool:
    """Return whether a cohort belongs to itself in the end: Kueue admits nothing there."""
    seen, at = set[str](), cohort
    while at and at not in seen:
        seen.add(at)
        at = above.get(at, "")
    return at == cohort


def _count(into: Usage, used: Usage, sign: int = 1) -> None:
    for key, some in used.items():
        into[key] = into.get(key, 0) + sign * some


def _add_up(node: Node) -> None:
    """Add up quota and usage of a node; those of its children are known."""
    node.quota = {key: quota.nominal for key, quota in node.lender.quotas.items()}
    for child in node.children:
        _count(node.quota, {key: quota - child.kept(key) for key, quota in child.quota.items()})
        _count(node.used, {key: max(some - child.kept(key), 0) for key, some in child.used.items()})


def ways_up(one: Node, other: Node) -> tuple[list[Node], list[Node]] | None:
    """Return each node with the cohorts above it, below the first that both have in common; None if there is none."""
    common = next((each for each in one.above() if each in other.above()), None)
    if common is None:
        return None
    mine, its = (list(takewhile(lambda each: each is not common, [node, *node.above()])) for node in (one, other))
    return mine, its
