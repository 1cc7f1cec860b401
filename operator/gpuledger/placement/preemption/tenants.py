"""A node's cards with the pods on them that could be asked to leave, as the search for victims needs them.

Tenants that differ only in when they have started are of one *kind*. Whatever number of a kind has to leave, it is
those that have started last: exchanging one of them for another frees the same, and costs no less.

The order of the costs of evictions is that of kube-scheduler: pickOneNodeForPreemption
(pkg/scheduler/framework/preemption/preemption.go).

What must be free on one card for some containers of a pod follows from the rules of `placement.fit`. The search asks
for it with thousands of sets of pods. So it is worked out once for a card, and what is freed is then only added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.model.card import NOTHING, Card, total
from gpuledger.model.request import Shape
from gpuledger.model.share import LOWEST_PRIORITY

NOT_STARTED_S = 2**40
"""Stands for the start of a pod that has not started, in Unix seconds: later than all others, as in kube-scheduler,
which takes the present time."""

Cost = tuple[int, int, int, int, int]
"""Violations of budgets, highest priority of a victim, sum of the priorities above the lowest one, number of victims,
and minus the earliest start in Unix seconds among the victims of the highest priority. The lower is better.

One more victim always makes it larger: none of the first three gets smaller by it, and the fourth grows. So a set of
victims costs more than each set that it contains, and a search may give up what costs too much already."""

FREE: Cost = (0, LOWEST_PRIORITY, 0, 0, -NOT_STARTED_S)
"""No pod has to leave. It is less than every other cost, and adds nothing to one."""

Low = tuple[int, int, int, int]
"""A lower bound of the first four numbers of a cost."""

NONE: Low = FREE[:4]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node that could be asked to leave, or leaves anyway; or several that leave together, see `together`.

    Then `priority` is their highest, `started_s` tells of those that have it, and each of their budgets is named as
    often as it covers one of them.
    """

    uid: str
    priority: int
    started_s: int = 0
    """Unix seconds, 0 if it has not started or that is unknown; then it is taken as having started last."""
    budgets: tuple[str, ...] = ()
    """Names of the PodDisruptionBudgets that cover it, each once."""
    leaves: bool = False
    """It goes anyway: it costs nothing, and is not a victim."""
    pods: tuple[str, ...] = ()
    """UIDs of those that leave together, here and on other nodes; empty for a pod that leaves by itself."""
    weight: int | None = None
    """The sum of their priorities above the lowest one; None for that of one pod."""

    @property
    def uids(self) -> tuple[str, ...]:
        """Return the UIDs of all who leave."""
        return self.pods or (self.uid,)

    @property
    def size(self) -> int:
        """Return how many leave."""
        return len(self.pods) or 1

    @property
    def above_lowest(self) -> int:
        """Return the sum of priorities above the lowest one that is counted."""
        return self.priority - LOWEST_PRIORITY if self.weight is None else self.weight

    @property
    def begin_s(self) -> int:
        """Return the start in Unix seconds that counts."""
        return self.started_s or NOT_STARTED_S


def together(tenants: Sequence[Tenant]) -> Tenant:
    """Return pods that leave together, such as those of a gang, as one tenant that costs as much as all of them."""
    first = min(tenants, key=lambda tenant: tenant.uid)
    highest = max(tenant.priority for tenant in tenants)
    begin_s = min(tenant.begin_s for tenant in tenants if tenant.priority == highest)
    return Tenant(
        first.uid,
        highest,
        0 if begin_s == NOT_STARTED_S else begin_s,
        tuple(sorted(name for tenant in tenants for name in tenant.budgets)),
        pods=tuple(sorted(uid for tenant in tenants for uid in tenant.uids)),
        weight=sum(tenant.above_lowest for tenant in tenants),
    )


def cost_of(victims: Collection[Tenant], allowed: Mapping[str, int]) -> Cost:
    """Return what it costs that these pods leave; those that leave anyway cost nothing.

    `allowed` tells how many evictions each budget allows now, by its name; less than none, and a budget that it does
    not name, are none. Each victim beyond that is a violation, once for each of its budgets. kube-scheduler counts a
    pod that violates two budgets once, and its count depends on the order in which it looks at the pods.
    """
    counted = [tenant for tenant in victims if not tenant.leaves]
    if not counted:
        return FREE
    covered = Counter(name for tenant in counted for name in tenant.budgets)
    violations = sum(max(0, number - max(0, allowed.get(name, 0))) for name, number in covered.items())
    highest = max(tenant.priority for tenant in counted)
    above_lowest = sum(tenant.above_lowest for tenant in counted)
    begin_s = min(tenant.begin_s for tenant in counted if tenant.priority == highest)
    return violations, highest, above_lowest, sum(tenant.size for tenant in counted), -begin_s


def joined(one: Cost, other: Cost) -> Cost:
    """Return the cost of two sets without a common victim, if their violations just add up."""
    if one[1] < other[1]:
        one, other = other, one
    last = max(one[4], other[4]) if one[1] == other[1] else one[4]
    return one[0] + other[0], one[1], one[2] + other[2], one[3] + other[3], last


def at_least(cost: Cost, low: Low) -> Cost:
    """Return what a cost becomes at least when something is added.

    The earliest start can only become earlier, unless there is a new highest priority.
    """
    last = cost[4] if low[1] <= cost[1] else FREE[4]
    return cost[0] + low[0], max(cost[1], low[1]), cost[2] + low[2], cost[3] + low[3], last


Numbers = tuple[int, int, int]
"""Memory in MiB, cores in percent of one card's compute, and slots."""


class Need(NamedTuple):
    """The containers' needs on a card that no other pod has alone."""

    free: Numbers
    idle: bool
    """No other pod may be there."""


def need_on(card: Card, shape: Shape, containers: Sequence[int], phases: Sequence[Sequence[int]]) -> Need | None:
    """Return what some containers of a pod, by their position in the shape, need of a card; None if it can't be theirs.

    `phases` are the sets of containers that run at the same time, as `model.request.phases` tells.
    """
    demands = [shape[container] for container in containers]
    if not all(demand.admits(card) for demand in demands):
        return None
    capacity = card.capacity
    peak = demands[0].amounts_on(capacity) if len(demands) == 1 else NOTHING
    for phase in phases if len(demands) > 1 else ():
        there = [shape[container] for container in phase if container in containers]
        if len(there) > 1 and any(demand.exclusive for demand in there):
            return None
        peak = peak.peak(total(demand.amounts_on(capacity) for demand in there))
    if not peak.fits_in(capacity):
        return None
    cores = peak.cores
    if capacity.cores > 0 and any(demand.cores == 0 and not demand.whole for demand in demands):
        cores = max(cores, 1)  # a container that names no cores stays out where others were promised all of them
    return Need((peak.memory_mib, cores, peak.number), any(demand.exclusive for demand in demands))


Place = tuple[int, int, int, int, bool]
"""A pod's part of a card: the card's position, memory in MiB, cores in percent, slots, and whether it is alone."""


@dataclass(slots=True)
class TenantKind:
    """Tenants that come to the same for everybody else, those first that leave first."""

    places: tuple[Place, ...]
    priority: int
    above_lowest: int
    """The sum of the priorities of one tenant's pods, above the lowest one."""
    size: int
    """Pods of one tenant."""
    budgets: tuple[str, ...]
    tenants: list[Tenant]
    first: int = 0
    """The number of the first tenant among all of the node; the others follow."""
    blocked: int = 0
    """How often a tenant is covered by budgets that allow no eviction: so many violations for each."""
    counted: tuple[int, ...] = ()
    """Positions, in `NodeTenants.limits`, of the budgets that allow some evictions and less than all, each as often as
    it covers a tenant."""

    @property
    def shared(self) -> bool:
        """The tenants are on several cards: who leaves one of them leaves the others as well."""
        return len(self.places) > 1

    def cost(self, number: int) -> Cost:
        """Return what it costs that so many leave, one at least, without the budgets that are counted."""
        above_lowest, pods = number * self.above_lowest, number * self.size
        return self.blocked * number, self.priority, above_lowest, pods, -self.tenants[number - 1].begin_s

    def bits(self, number: int) -> int:
        """Return the set of the first so many tenants: one bit for each, at its number among all of the node."""
        return ((1 << number) - 1) << self.first


@dataclass(slots=True)
class OccupiedCard:
    """A card and who is on it, after those that leave anyway have left."""

    card: Card
    free: Numbers
    fixed: bool
    """A pod is there that stays."""
    shut: bool
    """A pod that stays has the card alone."""
    kinds: list[tuple[TenantKind, Numbers, bool]] = field(default_factory=list)
    """The kinds on it, the cheapest first; what each of their tenants takes of it, and whether alone."""


@dataclass(frozen=True, slots=True)
class NodeTenants:
    """A node's cards and all its tenants that do not leave anyway."""

    cards: list[OccupiedCard]
    tenants: list[Tenant]
    """By number: those of a kind follow each other."""
    kind_of: list[TenantKind]
    """The kind of each."""
    limits: tuple[int, ...]
    """Evictions that each budget allows which is counted."""
    leaving: frozenset[str]
    """UIDs of those on the node that leave anyway."""

    @staticmethod
    def numbers(bits: int) -> Iterator[int]:
        """Yield the numbers of the tenants in a set, the highest first."""
        while bits:
            number = bits.bit_length() - 1
            bits ^= 1 << number
            yield number

    def chosen(self, bits: int) -> list[Tenant]:
        """Return the tenants in a set."""
        return [self.tenants[number] for number in self.numbers(bits)]


def find_tenants(
    node: NodeRoom, entries: Sequence[CardEntry], tenants: Mapping[str, Tenant], allowed: Mapping[str, int]
) -> NodeTenants:
    """Return who could be asked to leave on a node. Of `tenants`, only those on its cards are looked at.

    Pods that leave together have the same tenant, and its UID is that of one of them.
    """
    entry_of = {entry.card.uuid: entry for entry in entries}
    places: dict[str, list[Place]] = {}
    leaving: set[str] = set()
    cards = [
        _occupied_card(position, room, entry_of[room.card.uuid], tenants, places, leaving)
        for position, room in enumerate(node.rooms)
    ]
    kinds = _kinds(places, tenants)
    limits = _note_budgets(kinds, allowed)
    kinds.sort(key=_cheapest_first)
    everybody: list[Tenant] = []
    kind_of: list[TenantKind] = []
    for kind in kinds:
        kind.first = len(everybody)
        everybody += kind.tenants
        kind_of += [kind] * len(kind.tenants)
        for position, memory_mib, cores, number, alone in kind.places:
            cards[position].kinds.append((kind, (memory_mib, cores, number), alone))
    return NodeTenants(cards, everybody, kind_of, limits, frozenset(leaving))


def _cheapest_first(kind: TenantKind) -> tuple[int, int, int, str]:
    """Sort key: of those that cost as much, the largest first; the UID leaves nothing to chance."""
    return kind.blocked, kind.priority, -sum(place[1] for place in kind.places), kind.tenants[0].uid


def _occupied_card(
    position: int,
    room: Room,
    entry: CardEntry,
    tenants: Mapping[str, Tenant],
    places: dict[str, list[Place]],
    leaving: set[str],
) -> OccupiedCard:
    """Return a card without its kinds; note in `places` who is on it, and in `leaving` who leaves it anyway."""
    memory_mib, cores, number = room.free.memory_mib, room.free.cores, room.free.number
    fixed = shut = False
    for uid, share in entry.shares_by_pod():
        tenant = tenants.get(uid) if isinstance(uid, str) else None
        taken = share.amounts
        if not isinstance(uid, str) or tenant is None:
            fixed = True
            shut = shut or share.exclusive
        elif tenant.leaves:
            leaving.add(uid)
            memory_mib, cores, number = memory_mib + taken.memory_mib, cores + taken.cores, number + taken.number
        else:
            place = (position, taken.memory_mib, taken.cores, taken.number, share.exclusive)
            its_places = places.setdefault(tenant.uid, [])
            if its_places and its_places[-1][0] == position:  # of another one that leaves with it
                place = _beside(its_places.pop(), place)
            its_places.append(place)
    return OccupiedCard(room.card, (memory_mib, cores, number), fixed, shut)


def _beside(one: Place, other: Place) -> Place:
    return one[0], one[1] + other[1], one[2] + other[2], one[3] + other[3], one[4] or other[4]


def _kinds(places: Mapping[str, list[Place]], tenants: Mapping[str, Tenant]) -> list[TenantKind]:
    """Return the kinds of tenants on a node."""
    kinds: dict[tuple[object, ...], TenantKind] = {}
    for uid, its_places in places.items():
        tenant, where = tenants[uid], tuple(its_places)
        above_lowest, size = tenant.above_lowest, tenant.size
        key = (where, tenant.priority, above_lowest, size, tenant.budgets)
        kind = kinds.get(key)
        if kind is None:
            kinds[key] = TenantKind(where, tenant.priority, above_lowest, size, tenant.budgets, [tenant])
        else:
            kind.tenants.append(tenant)
    for kind in kinds.values():
        if len(kind.tenants) > 1:
            kind.tenants.sort(key=lambda tenant: (-tenant.begin_s, tenant.uid))
    return list(kinds.values())


def _note_budgets(kinds: Sequence[TenantKind], allowed: Mapping[str, int]) -> tuple[int, ...]:
    """Note what each kind has to do with budgets that can be violated here; return the limits of those to be counted.

    A budget that allows to evict all that it covers here can be left out. One that allows nothing costs the same for
    each of its tenants. Only for the others it matters who else leaves.
    """
    covered: Counter[str] = Counter()
    for kind in kinds:
        for name in kind.budgets:
            covered[name] += len(kind.tenants)
    limits: dict[str, int] = {}
    for name, number in covered.items():
        limit = max(0, allowed.get(name, 0))
        if number > limit:
            limits[name] = limit
    counted = [name for name, limit in limits.items() if limit]
    for kind in kinds:
        kind.blocked = sum(limits.get(name) == 0 for name in kind.budgets)
        kind.counted = tuple(counted.index(name) for name in kind.budgets if limits.get(name))
    return tuple(limits[name] for name in counted)
