"""The verdict on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpuledger.ledger.entry import CardEntry, NodeRoom
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import Demand, Shape, shape_on
from gpuledger.placement.explanation.cards import card_verdict, numa_verdict, rules_verdict
from gpuledger.placement.explanation.remedy import by_rules, remedy
from gpuledger.placement.explanation.verdict import NodeVerdict
from gpuledger.placement.fit import choose_cards, refuse_alone
from gpuledger.placement.policy import Preference
from gpuledger.placement.step_budget import StepBudget


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
        return NodeVerdict(node.name, None, 0, (), "")
    found = choose_cards(shape, node, Preference.BINPACK, work)
    refusal = found if isinstance(found, Refusal) else None
    refused = (position for position, demand in enumerate(shape) if refuse_alone(demand, node))
    position = next(refused, max(range(len(shape)), key=lambda each: _hardness(shape[each])))
    demand, rooms = shape[position], {room.card.uuid: room for room in node.rooms}
    line_of = {entry.card.uuid: entry for entry in entries}
    cards = tuple(
        card_verdict(demand, line_of[card.uuid], rooms.get(card.uuid), closed.get(card.uuid, "")) for card in node.cards
    )
    if refusal is not None and refusal.reason is Reason.NUMA:
        cards = tuple(numa_verdict(demand, verdict, cards) for verdict in cards)
    elif refusal is not None and by_rules(refusal, demand, node):
        cards = tuple(rules_verdict(demand, verdict, cards) for verdict in cards)
    text = remedy(refusal, shape, position, node, cards) if refusal else ""
    return NodeVerdict(node.name, refusal, position, cards, text)


def _hardness(demand: Demand) -> tuple[int, bool, int, int, int]:
    return demand.cards, demand.exclusive, demand.memory_mib or 0, demand.memory_percent, demand.cores
