"""One request against one node: which cards, or why not.

Rules couple demands: cards of one demand may have to be on one NUMA node, and claims state constraints on several
cards. While cards are given to one demand after the other, `RulesSoFar` keeps what that leaves to those that follow.

Selectors are compiled before the search, at the expense of the pod's namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain, combinations

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.card import NOTHING, OWN_DOMAIN, Amounts, Card, CardRule, Payer, Value, attribute_of
from gpuledger.model.errors import Reason, Refusal, WorkLimitExceeded
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape, counted_cards, phases, shape_on
from gpuledger.model.share import Assignment
from gpuledger.placement.policy import CardOrder, Preference, StepBudget

UNKNOWN_NUMA_NODE = -1
"""That of the cards of which it is not known: they count as on one."""

ATTRIBUTES_IN_A_TEXT = 3
"""Attributes that a reason names: users write as many rules as they like."""


def numa_node_of(card: Card) -> int:
    """Return the NUMA node of a card."""
    return UNKNOWN_NUMA_NODE if card.numa_node is None else card.numa_node


def most_on_one_numa_node(cards: Iterable[Card]) -> int:
    """Return how many of some cards are on one NUMA node."""
    return max(Counter(map(numa_node_of, cards)).values(), default=0)


def matching(demand: Demand, rooms: Iterable[Room]) -> list[list[Room]]:
    """Return the rooms in groups of those that match: all cards of the demand have to be of one group."""
    groups: dict[tuple[Value | None, ...], list[Room]] = {}
    for room in rooms:
        numa_node = numa_node_of(room.card) if demand.one_numa_node else None
        groups.setdefault((numa_node, *_matched(demand, room.card)), []).append(room)
    return list(groups.values())


def differing(demand: Demand, rooms: Sequence[Room], work: StepBudget) -> Iterator[tuple[Room, ...]]:
    """Yield the sets of cards for a demand of which no two have a value in common that must differ, in their order."""
    rows = [[attribute_of(room.card, name) for room in rooms] for name in _that_differ(demand)]
    chosen: list[int] = []

    def extended(begin: int) -> Iterator[tuple[Room, ...]]:
        missing = demand.cards - len(chosen)
        if not missing:
            yield tuple(rooms[place] for place in chosen)
            return
        for place in range(begin, len(rooms) - missing + 1):
            left = [{*row[place:]} - {row[each] for each in chosen} for row in rows]
            if not work.spend(len(rows)) or any(len(values) < missing for values in left):
                return
            if all(row[place] in values for row, values in zip(rows, left, strict=True)):
                chosen.append(place)
                yield from extended(place + 1)
                chosen.pop()

    return extended(0)


def differ(demand: Demand, cards: Collection[Card]) -> bool:
    """Return whether no two of some cards have a value in common that must differ."""
    return all(len({attribute_of(card, name) for card in cards}) == len(cards) for name in _that_differ(demand))


def most_by_rules(demand: Demand, cards: Iterable[Card]) -> int:
    """Return how many of some cards, which it admits, a demand can have at most by its rules. It may be fewer."""
    groups: dict[tuple[Value | None, ...], list[Card]] = {}
    for card in cards:
        groups.setdefault(_matched(demand, card), []).append(card)
    names = _that_differ(demand)
    numbers = (
        [len(group), *(len({attribute_of(card, name) for card in group}) for name in names)]
        for group in groups.values()
    )
    return max(map(min, numbers), default=0)


def match(demand: Demand, one: Card, other: Card) -> bool:
    """Return whether a demand may have both cards, as far as they must match by its rules."""
    return _matched(demand, one) == _matched(demand, other)


def rules_text(demands: Sequence[Demand]) -> str:
    """Return the rules for the cards of some demands together as text: "have the same … and differ in …"."""
    rules = dict.fromkeys(rule for demand in demands for rule in demand.rules)
    if len(demands) == 1 and demands[0].cards == 1:
        return f"has {_names(rules)}"
    same, other = _names(rule for rule in rules if not rule.distinct), _names(rule for rule in rules if rule.distinct)
    return " and ".join(filter(None, (same and f"have the same {same}", other and f"differ in {other}")))


class RulesSoFar:
    """The choice that the rules leave to the demands that still wait for their cards."""

    def __init__(self, shape: Shape, usable: Sequence[Sequence[Card]]) -> None:
        """Begin; `usable` are the cards that each demand could have if it were alone."""
        # rule -> the values of the cards that were given, in their order
        self._used: dict[CardRule, list[Value | None]] = {rule: [] for demand in shape for rule in demand.rules}
        self._names = list(dict.fromkeys(rule.attribute for rule in self._used))
        # rule by which cards match -> the values of which each demand finds enough cards
        self._possible: dict[CardRule, set[Value | None]] = {}
        for demand, cards in zip(shape, usable, strict=True):
            for rule in demand.rules:
                if not rule.distinct:
                    numbers = Counter(attribute_of(card, rule.attribute) for card in cards)
                    enough = {value for value, number in numbers.items() if number >= demand.cards}
                    self._possible[rule] = enough & self._possible.get(rule, enough)

    def allow(self, demand: Demand, card: Card) -> bool:
        """Return whether the demand, which admits the card, can have it beside those that were given."""
        return all(self._allows(rule, attribute_of(card, rule.attribute)) for rule in demand.rules)

    def _allows(self, rule: CardRule, value: Value | None) -> bool:
        used = self._used[rule]
        if rule.distinct:
            return value not in used
        return value == used[0] if used else value in self._possible[rule]

    def values_of(self, card: Card) -> tuple[Value | None, ...]:
        """Return a value that is equal for cards that are alike to all rules."""
        return tuple(attribute_of(card, name) for name in self._names)

    def give(self, demand: Demand, cards: Collection[Card]) -> None:
        """Record that a demand gets these cards."""
        for rule in demand.rules:
            self._used[rule] += [attribute_of(card, rule.attribute) for card in cards]

    def take_back(self, demand: Demand, cards: Collection[Card]) -> None:
        """Undo the last `give`."""
        for rule in demand.rules:
            del self._used[rule][-len(cards) :]


def _matched(demand: Demand, card: Card) -> tuple[Value | None, ...]:
    """Return the values that all cards of a demand must share with this one."""
    return tuple(attribute_of(card, rule.attribute) for rule in demand.rules if not rule.distinct)


def _that_differ(demand: Demand) -> list[str]:
    """Return the attributes in which the cards of a demand must differ."""
    return list(dict.fromkeys(rule.attribute for rule in demand.rules if rule.distinct))


def _names(rules: Iterable[CardRule]) -> str:
    """Return the first attributes that some rules are about."""
    names = list(dict.fromkeys(rule.attribute for rule in rules))
    more = [f"{len(names) - ATTRIBUTES_IN_A_TEXT} more"] if len(names) > ATTRIBUTES_IN_A_TEXT else []
    return " and ".join(names[:ATTRIBUTES_IN_A_TEXT] + more)


SEARCH_LIMIT = 512
"""Different ways to give a container its cards that are tried for one pod on one node, before it counts as not
fitting. A pod with one container needs one; only several containers of unequal demands make a search of it."""

LOOKS_LIMIT = 16_384
"""Ways that are looked at for one pod on one node, those that come to the same included: of 20 equal cards there are
184,756 ways to choose 10, and pods that request so many must not keep others waiting."""


WORK_LIMIT = 8_192
"""Steps in all: looks, and what it takes to find out which cards there are for a container beside the others. Some
10 to 15 ms: no other request is served meanwhile."""

STEPS_OF_A_CARD = 4
"""To find out whether it is one of them."""


def choose_cards(
    shape: Shape, node: NodeRoom, preference: Preference, work: StepBudget | None = None
) -> Assignment | Refusal:
    """Return the cards of each container, or the first reason why the node can't take the pod.

    Depth-first over the containers, the most demanding first and init containers last, so that these find the cards
    that the main ones have. The first descent is the preferred placement; the search goes on only when it fails.
    What is not found before the `work` is spent counts as not fitting.
    """
    if node.counted is not None:
        return _refuse_counted(shape, node.counted) or tuple(() for _ in shape)
    shape = shape_on(shape, node.cards)
    if takes_pods(node, shape):
        search = _Search(shape, node.rooms, CardOrder(node, preference), work or StepBudget(WORK_LIMIT))
        if search.place(0):
            return search.assignment()
    for demand in shape:
        refusal = refuse_alone(demand, node)
        if refusal:
            return refusal
    if node.offer is not None and not _plugin_serves(node.offer, shape):
        return Refusal(Reason.PLUGIN_LIMIT, "Volcano's device plugin serves only one container, and no init container")
    text = "no cards that hold all containers of the pod at once"
    if any(demand.rules for demand in shape):
        text = f"{text} and {rules_text(shape)}"
    return Refusal(Reason.CONTAINERS_TOGETHER, text)


def takes_pods(node: NodeRoom, shape: Shape) -> bool:
    """Return whether a node takes such pods at all, whatever is free on its cards."""
    offer = node.offer
    if offer is None or node.hangs or node.arriving:
        return not shape
    return _plugin_serves(offer, shape) and all(offer.serves(demand.resource) for demand in shape)


def refuse_alone(demand: Demand, node: NodeRoom) -> Refusal | None:
    """Return why the node could not take one container even if it were its pod's only one, or None.

    What waiting will not change is looked for first, and memory before cores before slots: a reason that flips while
    other pods come and go would cost a write each time.
    """
    if node.counted is not None:
        return _refuse_counted((demand,), node.counted)
    if not node.cards:
        return Refusal(Reason.NO_INVENTORY, _none_reported(node))
    if node.offer is None:
        return Refusal(Reason.AGENT_NOT_READY, "GPU node agent is not ready")
    if node.hangs:
        return Refusal(Reason.NODE_NOT_STARTING, "node starts no pods: its kubelet or GPU node agent hangs")
    if node.arriving:
        return Refusal(Reason.NODE_ARRIVING, "node has just come, and takes pods once its stand-in is deleted")
    if not node.offer.serves(demand.resource):
        return Refusal(Reason.OTHER_RESOURCE, not_served(demand))
    demand = demand.on(node.cards)
    cards = [card for card in node.cards if demand.admits(card)]
    never = _refuse_for_ever(demand, node, cards)
    if never:
        return never
    rooms = [room for room in node.rooms if demand.admits(room.card)]
    if len(rooms) < demand.cards:
        return _refuse_closed(demand, node, cards, len(rooms))
    fitting = [room for room in rooms if fits(demand, room)]
    if len(fitting) < demand.cards:
        return _refuse_for_now(demand, rooms)
    if len(_whole_modules(fitting, demand.module)) * demand.module < demand.cards:
        return Refusal(Reason.NO_COMBINATION, f"{_few(demand, '')} free in whole modules of {demand.module} cards")
    return _refuse_set(demand, [room.card for room in fitting]) if demand.joint else None


def _none_reported(node: NodeRoom) -> str:
    unreported = node.unreported
    if node.replicated:
        return "the node's device plugin gives out each GPU several times, as time slices or by MPS"
    if not unreported:
        return "no GPUs in the ledger"
    return f"the node no longer reports {'its GPU' if unreported == 1 else f'any of its {unreported} GPUs'}"


def not_served(demand: Demand) -> str:
    """Return the reason why a node does not serve the resource by which a container asks for its cards."""
    if demand.resource == OWN_DOMAIN:
        return "the node's agent serves no ResourceClaims"
    return f"the node's device plugin does not serve {demand.resource}"


def _refuse_counted(shape: Shape, left: int) -> Refusal | None:
    """Return why a node whose device plugin only counts its cards can't take a pod; the plugin chooses which it gets.

    None of this is room that others could be evicted for: what its pods have is not in the ledger.
    """
    if not all(demand.only_counts for demand in shape):
        text = "the node's own device plugin gives out whole GPUs only, without a choice"
        return Refusal(Reason.ONLY_WHOLE_GPUS, text)
    cards = counted_cards(shape)
    if cards > left:
        few = "no GPU is" if cards == 1 else f"fewer than {cards} GPUs are"
        return Refusal(Reason.NO_GPU_LEFT, f"{few} left of those that the node's own device plugin counts")
    return None


def _refuse_for_ever(demand: Demand, node: NodeRoom, cards: Sequence[Card]) -> Refusal | None:
    if len(node.cards) < demand.cards:
        return Refusal(Reason.TOO_FEW_CARDS, f"fewer than {demand.cards} GPUs on the node")
    if len(cards) < demand.cards:
        return Refusal(Reason.NOT_WANTED, _few_of_the_kind(demand))
    large_enough = [card for card in cards if demand.amounts_on(card.capacity).fits_in(card.capacity)]
    if len(large_enough) < demand.cards:
        memory_mib = demand.memory_mib or 0
        memory = sum(memory_mib <= card.capacity.memory_mib for card in cards) < demand.cards
        amount = f" as large as {memory_mib} MiB" if memory else f" with {demand.cores} percent cores"
        return Refusal(Reason.CARD_TOO_SMALL, _few(demand, amount))
    if demand.rules and most_by_rules(demand, large_enough) < demand.cards:
        return Refusal(Reason.NOT_WANTED, _few_of_the_kind(demand))
    return None


def _refuse_set(demand: Demand, cards: Sequence[Card]) -> Refusal | None:
    """Return why there is no set for a container among cards that have room, each by itself."""
    if demand.one_numa_node and most_on_one_numa_node(cards) < demand.cards:
        return Refusal(Reason.NUMA, f"{_few(demand, '')} with room on one NUMA node")
    if most_by_rules(demand, cards) < demand.cards:
        return Refusal(Reason.CONSTRAINT, f"{_few(demand, '')} with room that {rules_text((demand,))}")
    return None


def _refuse_closed(demand: Demand, node: NodeRoom, cards: Sequence[Card], opened: int) -> Refusal:
    """Return why too few of the cards take pods, by what would have to change for all of them that are needed."""
    unaccounted = opened + sum(card.uuid in node.unaccounted for card in cards)
    if unaccounted >= demand.cards:
        return Refusal(Reason.UNACCOUNTED, f"{_few(demand, '')} without pods that are not in the ledger")
    if unaccounted + sum(card.uuid in node.cordoned for card in cards) >= demand.cards:
        return Refusal(Reason.CORDONED, f"{_few(demand, '')} that is not cordoned")
    return Refusal(Reason.UNHEALTHY, f"{_few(demand, '')} in working order")


def _refuse_for_now(demand: Demand, rooms: Sequence[Room]) -> Refusal:
    def scarce(fits: Callable[[Room, Amounts], bool]) -> bool:
        return sum(fits(room, demand.amounts_on(room.card.capacity)) for room in rooms) < demand.cards

    if demand.whole or (demand.exclusive and scarce(lambda room, _: room.idle)):
        return Refusal(Reason.NO_WHOLE_CARD, f"{_few(demand, '')} entirely free")
    if scarce(lambda room, wanted: wanted.memory_mib <= room.free.memory_mib):
        return Refusal(Reason.NO_MEMORY, _few(demand, f" with {_memory_text(demand)} free"))
    if scarce(lambda room, wanted: wanted.cores <= room.free.cores and not _all_cores_promised(demand, room)):
        return Refusal(Reason.NO_CORES, _few(demand, f" with {demand.cores or 'any'} percent cores free"))
    if scarce(lambda room, _: room.free.number >= 1):
        return Refusal(Reason.NO_SLOT, _few(demand, " with a free slot"))
    return Refusal(Reason.NO_COMBINATION, _few(demand, f" with {_memory_text(demand)}, cores and a slot free together"))


def _few(demand: Demand, what: str) -> str:
    return f"no card{what}" if demand.cards == 1 else f"fewer than {demand.cards} cards{what}"


def _few_of_the_kind(demand: Demand) -> str:
    that = f" {rules_text((demand,))}" if demand.rules else ""
    return f"{_few(demand, '')} of the kind that the pod asks for{that}"


def _memory_text(demand: Demand) -> str:
    return f"{demand.memory_percent} percent memory" if demand.memory_mib is None else f"{demand.memory_mib} MiB"


def _plugin_serves(offer: NodeOffer, shape: Shape) -> bool:
    """Return whether the node's device plugin finds the cards of such a pod; Volcano's does not for all.

    Source: volcano-vgpu-device-plugin, pkg/util/util.go. It compares the number that the kubelet asks for, which is one
    container's, with the number of the whole pod; and it counts the main containers alone.
    """
    return offer.dialect is not Dialect.VOLCANO or (len(shape) == 1 and shape[0].lifetime is Lifetime.MAIN)


def _whole_modules(rooms: Iterable[Room], size: int) -> list[tuple[Room, ...]]:
    """Return the modules of which all cards are among these, in the order of their first ones."""
    modules: dict[int, list[Room]] = {}
    for room in rooms:
        modules.setdefault(room.card.index // size, []).append(room)
    return [tuple(module) for module in modules.values() if len(module) == size]


def fits(demand: Demand, room: Room) -> bool:
    """Return whether the card takes the container, if nothing else of its pod is there."""
    if room.shut or (demand.exclusive and not room.idle) or _all_cores_promised(demand, room):
        return False
    return demand.amounts_on(room.card.capacity).fits_in(room.free)


def _all_cores_promised(demand: Demand, room: Room) -> bool:
    """Return whether others were promised all cores: then even a container that names none stays out.

    Source: HAMi refuses a request without cores on a card whose cores are all given away.
    """
    return demand.cores == 0 and not demand.whole and room.free.cores <= 0 < room.card.capacity.cores


class _Search:
    """Depth-first search for the cards of all containers of a pod."""

    def __init__(self, shape: Shape, rooms: Sequence[Room], card_order: CardOrder, work: StepBudget) -> None:
        self.shape = shape
        self.card_order = card_order
        self.rooms = card_order.sorted(rooms)
        self.chosen: list[tuple[Room, ...]] = [()] * len(shape)
        self.phases = phases(shape)
        self.phases_of = [tuple(p for p, members in enumerate(self.phases) if c in members) for c in range(len(shape))]
        # card UUID -> phase -> what the pod uses there, and who has it alone
        self.taken: dict[str, list[Amounts]] = {}
        self.alone: dict[str, list[bool]] = {}
        self.kinds: dict[tuple[object, ...], int] = {}  # what cards have in common -> its number
        self.order = sorted(range(len(shape)), key=lambda c: _difficulty(shape[c]))
        self.budget = SEARCH_LIMIT
        self.looks = LOOKS_LIMIT
        self.work = work
        self.rules = self._rules() if any(demand.rules for demand in shape) else None
        # Containers that look at more than a card's room: for these, cards with equal room are not the same.
        self.distinguishable = len(shape) > 1 and any(
            demand.one_numa_node or demand.module > 1 or demand.wanted != shape[0].wanted for demand in shape
        )

    def place(self, depth: int) -> bool:
        """Give cards to the containers from `depth` on; undo what leads nowhere."""
        if depth == len(self.order):
            return True
        container = self.order[depth]
        for rooms in self._combinations(container):
            self.budget -= 1
            if self.budget < 0 or not self.work.spend(len(rooms)):
                return False
            self._take(container, rooms, +1)
            if self._leaves_enough(depth + 1) and self.place(depth + 1):
                self.chosen[container] = rooms
                return True
            self._take(container, rooms, -1)
        return False

    def _leaves_enough(self, depth: int) -> bool:
        """Return whether each of the following containers still has enough cards that its rules allow."""
        if not self.rules:
            return True
        for container in self.order[depth:]:
            demand = self.shape[container]
            if demand.rules:
                rooms = self._possible(container)
                if len(rooms) < demand.cards or most_by_rules(demand, _cards(rooms)) < demand.cards:
                    return False
        return True

    def assignment(self) -> Assignment:
        """Return the cards found, each container's in the order of their index."""
        return tuple(
            tuple(room.card.uuid for room in sorted(rooms, key=lambda room: room.card.place)) for rooms in self.chosen
        )

    def _combinations(self, container: int) -> Iterator[tuple[Room, ...]]:
        """Yield the sets of cards for a container, the preferred first; of equivalent sets only one."""
        demand = self.shape[container]
        fitting = self._possible(container)
        if self.work.is_spent:
            return
        if demand.lifetime is Lifetime.INIT:  # its peak overlaps with what the pod has anyway
            fitting.sort(key=lambda room: room.card.uuid not in self.taken)
        last = len(self.order) == 1
        seen: set[tuple[object, ...]] = set()
        groups = matching(demand, fitting) if demand.joint and demand.cards > 1 else [fitting]
        kinds = {} if last else {room.card.uuid: self._kind(room) for room in fitting}
        card_sets = [self._sets_of(group, demand) for group in groups]
        best: Sequence[tuple[Room, ...]] = ()
        if demand.cards > 1 and demand.module == 1 and self.card_order.tells_sets_apart:
            first = self.taken if demand.lifetime is Lifetime.INIT else ()
            best = self.card_order.best_sets(groups, demand.cards, first)
            if demand.rules:
                best = [rooms for rooms in best if differ(demand, _cards(rooms))]
        for rooms in chain(best, *card_sets):
            self.looks -= 1
            if self.looks < 0 or not self.work.spend():
                return
            if not last:
                kind = tuple(sorted(kinds[room.card.uuid] for room in rooms))
                if kind in seen:
                    continue
                seen.add(kind)
            yield rooms

    def _sets_of(self, rooms: Sequence[Room], demand: Demand) -> Iterator[tuple[Room, ...]]:
        """Yield the sets of cards for a container, in the order of the cards; of whole modules where they come so."""
        if demand.module > 1:
            for modules in combinations(_whole_modules(rooms, demand.module), demand.cards // demand.module):
                found = tuple(chain.from_iterable(modules))
                if differ(demand, _cards(found)):
                    yield found
        elif any(rule.distinct for rule in demand.rules):
            yield from differing(demand, rooms, self.work)
        else:
            yield from combinations(rooms, demand.cards)

    def _rules(self) -> RulesSoFar:
        """Begin to keep the rules."""
        rules = sum(len(demand.rules) for demand in self.shape)
        if not self.work.spend((STEPS_OF_A_CARD * len(self.shape) + rules) * len(self.rooms)):
            return RulesSoFar(self.shape, [[] for _ in self.shape])
        usable = [[r.card for r in self.rooms if demand.admits(r.card) and fits(demand, r)] for demand in self.shape]
        return RulesSoFar(self.shape, usable)

    def _possible(self, container: int) -> list[Room]:
        """Return the rooms that a container can have one of, beside what its pod has already."""
        demand = self.shape[container]
        if not self.work.spend((STEPS_OF_A_CARD + len(demand.rules)) * len(self.rooms)):
            return []
        fitting = [room for room in self.rooms if self._fits_beside(container, room)]
        return [room for room in fitting if self.rules.allow(demand, room.card)] if self.rules else fitting

    def _kind(self, room: Room) -> int:
        """Return a number that cards have in common which are interchangeable for the rest of the search."""
        mine = tuple(self.taken.get(room.card.uuid, ()))
        alone = tuple(self.alone.get(room.card.uuid, ()))
        distinguishable: object = room.card.uuid if self.distinguishable else ""
        if self.rules:
            distinguishable = (distinguishable, self.rules.values_of(room.card))
        kind = (distinguishable, room.card.mode, room.card.capacity, room.free, room.idle, mine, alone)
        return self.kinds.setdefault(kind, len(self.kinds))

    def _fits_beside(self, container: int, room: Room) -> bool:
        """Return whether the container fits on the card beside what its own pod already uses there."""
        demand = self.shape[container]
        if not demand.admits(room.card) or not fits(demand, room):
            return False
        taken = self.taken.get(room.card.uuid)
        if taken is None:
            return True
        alone = self.alone[room.card.uuid]
        wanted = demand.amounts_on(room.card.capacity)
        for phase in self.phases_of[container]:
            if alone[phase] or (demand.exclusive and taken[phase] != NOTHING):
                return False
            if not (taken[phase] + wanted).fits_in(room.free):
                return False
        return True

    def _take(self, container: int, rooms: Sequence[Room], sign: int) -> None:
        demand = self.shape[container]
        if self.rules:
            (self.rules.give if sign > 0 else self.rules.take_back)(demand, _cards(rooms))
        for room in rooms:
            taken = self.taken.setdefault(room.card.uuid, [NOTHING] * len(self.phases))
            alone = self.alone.setdefault(room.card.uuid, [False] * len(self.phases))
            wanted = demand.amounts_on(room.card.capacity)
            for phase in self.phases_of[container]:
                taken[phase] = taken[phase] + wanted if sign > 0 else taken[phase] - wanted
                if demand.exclusive:
                    alone[phase] = sign > 0
            if all(amounts == NOTHING for amounts in taken):
                del self.taken[room.card.uuid], self.alone[room.card.uuid]


def _cards(rooms: Sequence[Room]) -> list[Card]:
    return [room.card for room in rooms]


def _difficulty(demand: Demand) -> tuple[bool, bool, int, int, int]:
    """Sort key: containers of the long phase first, then those that are hardest to place."""
    memory = -demand.memory_mib if demand.memory_mib is not None else -demand.memory_percent * 1_000_000
    return (demand.lifetime is Lifetime.INIT, not demand.exclusive, memory, -demand.cores, -demand.cards)


def payers_of(shape: Shape) -> tuple[Payer, ...]:
    """Return the payers for the selectors of a shape: none for most, one namespace for the others."""
    return tuple({test.payer for demand in shape for test in demand.wanted.tests if test.payer is not None})


def compiled(request: PodRequest) -> Generator[None, None, None]:
    """Compile the selectors of a request that are not, one at each step.

    Raises BadInput for one that can't be compiled, and WorkLimitExceeded if its namespace has to wait.
    """
    for demand in chain.from_iterable(each.shape for each in request.variants):
        for test in demand.wanted.tests:
            if test.payer is None or test.compile():
                continue
            yield
            if not test.compile():
                raise WorkLimitExceeded(test.payer.why_not())


def why_it_waits(shapes: Iterable[Shape]) -> str:
    """Return why selectors of these shapes can't be evaluated for a while, for people; empty if they can."""
    return next((payer.why_not() for shape in shapes for payer in payers_of(shape) if payer.is_spent), "")
