"""Why a pod does not fit on a node: for each card the first reason, and what would make it fit, with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.ledger.quotas import Excess
from gpuledger.model.card import (
    MIG_PARENT,
    NOTHING,
    OWN_DOMAIN,
    Amounts,
    Card,
    CardFilter,
    folded,
    total,
    why_not_chosen,
)
from gpuledger.model.errors import CardVerdict, NodeVerdict, Reason, Refusal
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.node import Dialect
from gpuledger.model.request import Demand, Shape, counted_cards, shape_on
from gpuledger.placement.fit import choose_cards, fits, match, most_by_rules, refuse_alone, rules_text
from gpuledger.placement.policy import Preference, StepBudget


def over_quota(limit: QuotaLimit, asked: int = 0) -> Refusal:
    """Return the refusal of a pod or gang that asks for so much, with which its namespace would exceed a limit."""
    if limit.spent:
        where = f"{limit.key} of ResourceQuota {limit.quota}"
        return Refusal(Reason.BUDGET, f"the pod's namespace has a budget: {limit.spent} ({where})", limit)
    text = f"the quota of the pod's namespace does not allow it: {limit.key} of ResourceQuota {limit.quota}"
    if Excess(limit, asked).is_for_ever:
        text += f" is {limit.as_stated(limit.most):,} in all, and it asks for {limit.as_stated(asked):,}"
    return Refusal(Reason.QUOTA, text, limit)


def amounts_text(amounts: Amounts) -> str:
    """Return amounts as people read them, without those that are zero: "2,000 MiB, 20 % of cores, 1 slot"."""
    slots = f"{amounts.number:,} slot{'s' if amounts.number > 1 else ''}"
    parts = (
        f"{amounts.memory_mib:,} MiB" if amounts.memory_mib else "",
        f"{amounts.cores:,} % of cores" if amounts.cores else "",
        slots if amounts.number else "",
    )
    return ", ".join(part for part in parts if part)


def card_verdict(demand: Demand, entry: CardEntry, room: Room | None, closed: str = "") -> CardVerdict:
    """Return whether a card takes a container. `room` is None for a card on which nothing can be placed.

    `closed` says who may use it without being in the ledger.
    """
    card = entry.card
    if not demand.admits(card):
        return CardVerdict(card, Reason.NOT_WANTED, why_not_wanted(demand, card))
    wanted = demand.amounts_on(card.capacity)
    if not wanted.fits_in(card.capacity):
        short = _lacking(wanted, card.capacity)
        return CardVerdict(card, Reason.CARD_TOO_SMALL, f"has {amounts_text(short)} less than requested", short)
    if not card.healthy:
        return CardVerdict(card, Reason.UNHEALTHY, entry.reason or "its node reports a fault")
    if room is None and entry.cordoned:
        return CardVerdict(card, Reason.CORDONED, f"cordoned: {entry.cordoned}")
    if room is None and closed:
        return CardVerdict(card, Reason.UNACCOUNTED, closed)
    if room is None:
        return CardVerdict(card, Reason.UNHEALTHY, "the operator still looks up its holders")
    if fits(demand, room):
        return CardVerdict(card, None, "takes it")
    return _verdict_on_room(demand, entry, room, wanted)


def _verdict_on_room(demand: Demand, entry: CardEntry, room: Room, wanted: Amounts) -> CardVerdict:
    card, names = entry.card, _by_size(entry)
    if room.shut:
        return CardVerdict(
            card, Reason.NO_WHOLE_CARD, f"taken as a whole{_kept(entry)}", _lacking(wanted, NOTHING), names
        )
    short = _lacking(wanted, room.free)
    if demand.exclusive and not room.idle:
        count = len(names)
        text = f"not entirely free: {count} pod{'s' if count > 1 else ''} on it{_kept(entry)}"
        return CardVerdict(card, Reason.NO_WHOLE_CARD, text, short, names)
    for reason, part in (
        (Reason.NO_MEMORY, Amounts(memory_mib=short.memory_mib)),
        (Reason.NO_CORES, Amounts(cores=short.cores)),
        (Reason.NO_SLOT, Amounts(number=short.number)),
    ):
        if part != NOTHING:
            return CardVerdict(card, reason, f"short by {amounts_text(short)}{_kept(entry)}", short, names)
    text = f"all cores are promised{_kept(entry)}"  # to others, which keeps those out, too, that name none
    return CardVerdict(card, Reason.NO_CORES, text, Amounts(cores=1), names)


def beside_verdict(demand: Demand, verdict: CardVerdict, cards: Sequence[CardVerdict], by_numa: bool) -> CardVerdict:
    """Return the verdict on a card that has room, for a container whose cards have to be on one NUMA node or to match.

    `cards` are all of them.
    """
    if verdict.reason is not None:
        return verdict
    fitting = [other.card for other in cards if other.reason is None]
    if by_numa:
        numa_node = verdict.card.numa_node
        beside = sum(card.numa_node == numa_node for card in fitting)
        where = "its NUMA node" if numa_node is None else f"NUMA node {numa_node}"
        reason, text = Reason.NUMA, f"has room, but {where} has only {beside} of {demand.cards} such cards"
    else:
        beside = most_by_rules(demand, (card for card in fitting if match(demand, card, verdict.card)))
        text = f"has room, but only {beside} of {demand.cards} such cards {rules_text((demand,))}"
        reason = Reason.CONSTRAINT
    return CardVerdict(verdict.card, reason, text, Amounts(number=demand.cards - beside))


def why_not_wanted(demand: Demand, card: Card) -> str:
    """Return why a container may not get a card, whatever is free on it."""
    wanted = demand.wanted
    if card.vendor != wanted.vendor:
        return f"of vendor {card.vendor}, not {wanted.vendor}"
    if card.mode == MIG_PARENT:
        return "cut into MIG devices"
    filtered = _filtered(wanted, card)
    if not filtered and (lacking := demand.attribute_lacking(card)):
        return f"has no {lacking}"
    return filtered or "a MIG device: name it, or ask for one card by memory alone, to get a part of one"


def _filtered(wanted: CardFilter, card: Card) -> str:
    model = folded(card.model)
    if wanted.model and wanted.model.lower() != card.model.lower():
        return f"model {card.model}, not {wanted.model}"
    if wanted.use_models and not any(folded(part) in model for part in wanted.use_models):
        return f"model {card.model}, not {' or '.join(wanted.use_models)}"
    avoided = next((part for part in wanted.avoid_models if folded(part) in model), "")
    if avoided:
        return f"model {card.model}, and the pod avoids {avoided}"
    if wanted.use_uuids and card.uuid not in wanted.use_uuids:
        return "not among the UUIDs that the pod names"
    if card.uuid in wanted.avoid_uuids:
        return "among the UUIDs that the pod avoids"
    if wanted.modes and card.mode not in ("", *wanted.modes):
        return f"mode {card.mode}, not {' or '.join(wanted.modes)}"
    test = next((each for each in wanted.tests if not each.admits(card)), None)
    return why_not_chosen(test, card) if test is not None else ""


def _lacking(wanted: Amounts, free: Amounts) -> Amounts:
    """Return the lacking amounts."""
    missing = wanted - free
    return Amounts(max(0, missing.memory_mib), max(0, missing.cores), max(0, missing.number))


def _by_size(entry: CardEntry) -> tuple[str, ...]:
    """Return who counts on a card, the one with most of its memory first: pods' UIDs, or names of those to come."""
    parts = sorted((-share.amounts.memory_mib, str(key)) for key, share in entry.shares_by_pod())
    return tuple(name for _, name in parts)


def _kept(entry: CardEntry) -> str:
    """Return how much of the taken amounts is only reserved for pods on their way."""
    kept = total(share.amounts for uid, share in entry.shares_by_pod() if uid not in entry.holders)
    return f"; {kept.memory_mib:,} MiB of this are reserved for pods on their way" if kept != NOTHING else ""


_OF_THE_NODE = {
    Reason.ONLY_WHOLE_GPUS: "needs a node whose GPUs are in the ledger: here a pod gets GPUs only by their number",
    Reason.NO_INVENTORY: "needs GPUs that its node agent reports: it reports none",
    Reason.AGENT_NOT_READY: "needs its GPU node agent to be ready: check the agent's pod on the node, and its log",
    Reason.NODE_ARRIVING: "needs a moment: its stand-in, by which an autoscaler was asked for it, is being deleted",
    Reason.NODE_NOT_STARTING: "needs a kubelet and a GPU node agent that start the pods it has: check their logs",
    Reason.PLUGIN_LIMIT: "needs a pod with one container and no init container, or a node with another device plugin",
}

_INCURABLE = frozenset({Reason.NOT_WANTED, Reason.CARD_TOO_SMALL})
"""Waiting changes nothing about these."""


def remedy(refusal: Refusal, shape: Shape, container: int, node: NodeRoom, cards: Sequence[CardVerdict]) -> str:
    """Return the change that would make a refused pod fit. `cards` are the verdicts for one of its containers."""
    demand = shape[container]
    if refusal.reason in _OF_THE_NODE:
        return _OF_THE_NODE[refusal.reason]
    if refusal.reason is Reason.NO_GPU_LEFT:
        left, asked = max(node.counted or 0, 0), counted_cards(shape)
        return f"would fit once pods that have {asked - left} of the node's GPUs have ended: {left} of {asked} are left"
    if refusal.reason is Reason.OTHER_RESOURCE and demand.resource == OWN_DOMAIN:
        return "needs gpuledger's agent, with resource_claims and delivery: cdi in its settings"
    if refusal.reason is Reason.OTHER_RESOURCE:
        served = ", ".join(sorted(node.offer.resources)) if node.offer else ""
        way = " (setting agent_also_serves)" if node.offer and node.offer.dialect is Dialect.NATIVE else ""
        return f"needs a device plugin that serves {demand.resource}; here it serves {served or 'nothing'}{way}"
    if refusal.reason is Reason.CONTAINERS_TOGETHER:
        return _together(shape, node)
    if refusal.reason is Reason.NUMA or by_rules(refusal, demand, node):
        return _beside(refusal, demand, cards)
    missing = demand.cards - sum(verdict.reason is None for verdict in cards)
    curable = [verdict for verdict in cards if verdict.reason not in (None, *_INCURABLE)]
    if len(curable) < missing:
        return _too_few(refusal, demand.cards, cards)
    nearest = sorted(curable, key=_distance)[:missing]
    return "would fit " + " and ".join(_cure(verdict) for verdict in nearest)


def by_rules(refusal: Refusal, demand: Demand, node: NodeRoom) -> bool:
    """Return whether a node has enough cards for a container, and none that match or differ as its rules say."""
    if refusal.reason is Reason.NOT_WANTED:
        return demand.cards > 1 and demand.cards <= sum(map(demand.admits, node.cards))
    return refusal.reason is Reason.CONSTRAINT


def _beside(refusal: Refusal, demand: Demand, cards: Sequence[CardVerdict]) -> str:
    if refusal.reason is Reason.NOT_WANTED:
        return f"has no {demand.cards} cards of the kind that {rules_text((demand,))}"
    nearest_one = min((each for each in cards if each.reason is refusal.reason), key=_distance)
    more, name = nearest_one.short.number, _name(nearest_one)
    text = f"would fit if {more} more {'cards' if more > 1 else 'card'} had room"
    if refusal.reason is Reason.NUMA:
        return f"{text} on the NUMA node of {name}"
    return f"{text} with {name}, so that all {rules_text((demand,))}"


def _too_few(refusal: Refusal, asked: int, cards: Sequence[CardVerdict]) -> str:
    """Name the number of cards that the node would need more."""
    small = [verdict for verdict in cards if verdict.reason is Reason.CARD_TOO_SMALL]
    usable = sum(verdict.reason not in _INCURABLE for verdict in cards)
    if small and not usable:
        largest = min(small, key=_distance)
        return f"has no card that large: its largest, {_name(largest)}, has {amounts_text(largest.short)} too little"
    if refusal.reason is Reason.NOT_WANTED and not usable:
        return "has no card of the kind that the pod asks for"
    kind = "" if refusal.reason is Reason.TOO_FEW_CARDS else " of the kind"
    text = f"needs {asked - usable} more card{'s' if asked - usable > 1 else ''}{kind}: it has {usable} of {asked}"
    if not small:
        return text
    largest = min(small, key=_distance)
    return f"{text}; the largest other one, {_name(largest)}, has {amounts_text(largest.short)} too little"


def _together(shape: Shape, node: NodeRoom) -> str:
    if any(demand.rules for demand in shape):
        return f"each container fits alone, but no cards for all of them {rules_text(shape)}"
    rooms = [room for room in node.rooms if any(demand.admits(room.card) for demand in shape) and not room.shut]
    free = total(room.free for room in rooms)
    memory_mib = sum(demand.cards * (demand.memory_mib or 0) for demand in shape)
    asked = f"{sum(demand.cards for demand in shape)} shares" + (f" with {memory_mib:,} MiB" if memory_mib else "")
    return (
        f"each container fits alone, but not all together: they ask for {asked}, and the cards here have "
        f"{amounts_text(free) or 'nothing'} free in all"
    )


def _distance(verdict: CardVerdict) -> tuple[bool, int, int, int, int]:
    """Sort key: the cards that are nearest to taking the container first."""
    broken = verdict.reason in (Reason.UNHEALTHY, Reason.CORDONED, Reason.UNACCOUNTED)
    return broken, len(verdict.by) if verdict.reason is Reason.NO_WHOLE_CARD else 0, *verdict.shortage


def _cure(verdict: CardVerdict) -> str:
    name = _name(verdict)
    match verdict.reason:
        case Reason.UNHEALTHY:
            return f"once {name} works again"
        case Reason.CORDONED:
            return f"once {name} is uncordoned"
        case Reason.UNACCOUNTED:
            return f"once the pods on {name} that are not in the ledger are entered (`gpuledger audit`) or have ended"
        case Reason.NO_WHOLE_CARD:
            count = len(verdict.by)
            return f"once {count} pod{'s have' if count != 1 else ' has'} left {name}"
    return f"if {amounts_text(verdict.short)} more were free on {name}"


def _name(verdict: CardVerdict) -> str:
    return f"{verdict.card.uuid} (index {verdict.card.index})"


def explain_node(
    shape: Shape,
    node: NodeRoom,
    entries: Sequence[CardEntry],
    work: StepBudget | None = None,
    closed: Mapping[str, str] = MappingProxyType({}),
) -> NodeVerdict:
    """Return the verdict on a node for a pod. `entries` are the ledger's lines of its cards.

    `closed` are those that a pod may use that is not in the ledger: UUID -> why.

    Where the `work` is spent before cards for all containers were found, they count as not fitting together.

    The cards are compared with the first container that would be refused if it were alone; if there is none, with the
    one that is hardest to place.
    """
    shape = shape_on(shape, node.cards)
    if not shape:  # all its cards are those of other pods, by claims that it shares with them
        return NodeVerdict(node.name, None)
    found = choose_cards(shape, node, Preference.BINPACK, work)
    refusal = found if isinstance(found, Refusal) else None
    refused = (position for position, demand in enumerate(shape) if refuse_alone(demand, node))
    position = next(refused, max(range(len(shape)), key=lambda each: _hardness(shape[each])))
    demand, rooms = shape[position], {room.card.uuid: room for room in node.rooms}
    line_of = {entry.card.uuid: entry for entry in entries}
    cards = tuple(
        card_verdict(demand, line_of[card.uuid], rooms.get(card.uuid), closed.get(card.uuid, "")) for card in node.cards
    )
    by_numa = refusal is not None and refusal.reason is Reason.NUMA
    if by_numa or (refusal is not None and by_rules(refusal, demand, node)):
        cards = tuple(beside_verdict(demand, verdict, cards, by_numa) for verdict in cards)
    text = remedy(refusal, shape, position, node, cards) if refusal else ""
    return NodeVerdict(node.name, refusal, text, cards, position)


def _hardness(demand: Demand) -> tuple[int, bool, int, int, int]:
    return demand.cards, demand.exclusive, demand.memory_mib or 0, demand.memory_percent, demand.cores
