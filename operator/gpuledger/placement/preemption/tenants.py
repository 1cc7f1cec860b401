"""A node's cards with the pods on them that could be asked to leave, as the search for victims needs them.

Tenants that differ only in when they have started are of one *kind*. Whatever number of a kind has to leave, it is
those that have started last: exchanging one of them for another frees the same, and costs no less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.model.card import Card
from gpuledger.placement.preemption.card_needs import Numbers
from gpuledger.placement.preemption.cost import Cost, Tenant

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
        tenant = tenants.get(uid)
        taken = share.amounts
        if tenant is None:
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
        above_lowest, size = tenant.above_lowest, len(tenant.uids)
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
