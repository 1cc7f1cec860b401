"""What would make a pod fit on a node: a sentence with the numbers that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.amounts import total
from gpuledger.model.card_attributes import OWN_DOMAIN
from gpuledger.model.node_offer import Dialect
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import Demand, Shape, counted_cards
from gpuledger.placement.card_rules import rules_text
from gpuledger.placement.explanation.verdict import CardVerdict, amounts_text

_OF_THE_NODE = {
    Reason.ONLY_WHOLE_GPUS: "needs a node whose GPUs are in the ledger: here a pod gets GPUs only by their number",
    Reason.NO_INVENTORY: "needs GPUs that its node agent reports: the ledger has none of this node",
    Reason.AGENT_NOT_READY: "needs its GPU node agent to be ready: check the agent's pod on the node, and its log",
    Reason.NODE_NOT_STARTING: "needs a kubelet and a GPU node agent that start the pods it has: check their logs",
    Reason.PLUGIN_LIMIT: "needs a pod with one container and no init container, or a node with another device plugin",
}

_INCURABLE = frozenset({Reason.NOT_WANTED, Reason.CARD_TOO_SMALL})
"""Waiting changes nothing about these."""


def remedy(refusal: Refusal, shape: Shape, container: int, node: NodeRoom, cards: Sequence[CardVerdict]) -> str:
    """Return what would make a pod fit that a node refuses. `cards` are the verdicts for one of its containers."""
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
    if refusal.reason is Reason.NUMA:
        nearest_one = min((each for each in cards if each.reason is Reason.NUMA), key=_distance)
        more = nearest_one.short.number
        cards_had = "cards" if more > 1 else "card"
        return f"would fit if {more} more {cards_had} had room on the NUMA node of {_name(nearest_one)}"
    if by_rules(refusal, demand, node):
        return _by_rules(refusal, demand, cards)
    missing = demand.cards - sum(verdict.reason is None for verdict in cards)
    curable = [verdict for verdict in cards if verdict.reason not in (None, *_INCURABLE)]
    if len(curable) < missing:
        return _too_few(refusal, demand.cards, cards)
    nearest = sorted(curable, key=_distance)[:missing]
    return "would fit " + " and ".join(_cure(verdict) for verdict in nearest)


def by_rules(refusal: Refusal, demand: Demand, node: NodeRoom) -> bool:
    """Tell whether a node has enough cards for a container, and none that match or differ as its rules say."""
    if refusal.reason is Reason.NOT_WANTED:
        return demand.cards > 1 and demand.cards <= sum(map(demand.admits, node.cards))
    return refusal.reason is Reason.CONSTRAINT


def _by_rules(refusal: Refusal, demand: Demand, cards: Sequence[CardVerdict]) -> str:
    if refusal.reason is Reason.NOT_WANTED:
        return f"has no {demand.cards} cards of the kind that {rules_text((demand,))}"
    nearest_one = min((each for each in cards if each.reason is Reason.CONSTRAINT), key=_distance)
    more = nearest_one.short.number
    cards_had = "cards" if more > 1 else "card"
    return (
        f"would fit if {more} more {cards_had} had room with {_name(nearest_one)}, so that all {rules_text((demand,))}"
    )


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
    return broken, len(verdict.by) if verdict.reason is Reason.NO_WHOLE_CARD else 0, *_sizes(verdict)


def _sizes(verdict: CardVerdict) -> tuple[int, int, int]:
    return verdict.short.memory_mib, verdict.short.cores, verdict.short.number


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
