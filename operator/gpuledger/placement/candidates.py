"""The candidates for a pod on one node, sets of cards that differ in price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.host import HostAmounts
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import Demand, Shape
from gpuledger.model.share import Assignment
from gpuledger.placement.card_order import worst_connected_first
from gpuledger.placement.fit import choose_cards, fits, refuse_alone, takes_pods
from gpuledger.placement.policy import Preference
from gpuledger.placement.step_budget import StepBudget


@dataclass(frozen=True, slots=True)
class Footprint:
    """What counts of a pod for its placement. Pods with equal footprints go to the same node."""

    shape: Shape
    host: HostAmounts


@dataclass(frozen=True, slots=True)
class Candidate:
    """Cards for every container of a pod, on one node."""

    node: NodeRoom
    assignment: Assignment


def differing_candidates(shape: Shape, node: NodeRoom, work: StepBudget | None = None) -> Sequence[Candidate] | Refusal:
    """Return candidates of which each leaves something else behind, or why the pod does not fit.

    A pod of one container with one card has as many as there are different rooms. Any other pod has one, the tightest:
    its combinations are too many to be priced, and mostly it asks for whole cards, which are all the same. Where rooms
    are the same, the topology decides: a single card is the worst connected of them, several are the best set. `work`
    is what a search may cost, as for `choose_cards`.
    """
    if len(shape) == 1 and shape[0].cards == 1 and not shape[0].joint:
        rooms = _differing_rooms(shape[0], node) if takes_pods(node, shape) else ()
        if rooms:
            return [Candidate(node, ((room.card.uuid,),)) for room in rooms]
        refusal = refuse_alone(shape[0], node)
        if refusal:
            return refusal
    found = choose_cards(shape, node, Preference.BINPACK, work)
    return found if isinstance(found, Refusal) else (Candidate(node, found),)


def _differing_rooms(demand: Demand, node: NodeRoom) -> Sequence[Room]:
    """Return the rooms that a container could have, of those that are alike the first one."""
    found: dict[tuple[object, ...], Room] = {}
    for room in worst_connected_first(node):
        card = room.card
        kind = (room.free, room.idle, card.capacity, card.model, card.vendor, card.mode)
        if kind not in found and demand.admits(card) and fits(demand, room):
            found[kind] = room
    return list(found.values())
