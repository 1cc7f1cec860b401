"""How many pods find room at once, and where: a trial that counts in its own copies, and leaves nothing in the ledger.

A plan that is carried out keeps room in the ledger, where each change makes others look again. Somebody who only asks
must not cause that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest, Shape, counted_cards
from gpuledger.model.share import Holder, Placement, Pod, Share, shares_of
from gpuledger.placement.choose import STEPS_OF_A_LOOK
from gpuledger.placement.decide import hard_steps
from gpuledger.placement.fit import WORK_LIMIT, choose_cards
from gpuledger.placement.policy import Preference
from gpuledger.placement.step_budget import StepBudget

STEPS = 16 * WORK_LIMIT
"""In all, some 10 microseconds each. What was not found by then counts as not found."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod that has nothing yet."""

    pod: Pod
    request: PodRequest
    node_names: Collection[str] | None
    """The nodes that it may go to; None stands for any."""


class Trial:
    """Places pods one after the other, each beside those before it, on the first node that takes it."""

    def __init__(self, ledger: Ledger, but: Collection[str] = ()) -> None:
        """Take the UIDs under which something is on hold that counts as free for these pods."""
        self._ledger = ledger
        self._but = but
        self._nodes: dict[str, NodeRoom] = {}  # node name -> what is left of it, for the nodes that were looked at
        self._order: list[str] = [*ledger.node_names(), *ledger.counting_nodes()]
        # (shape, identity of the nodes allowed) -> how many nodes, in their order, have refused such pods
        self._refused: dict[tuple[Shape, int], int] = {}
        self._work = StepBudget(STEPS)
        self._taken: list[Pod] = []  # those that were placed
        self.placed: dict[str, Placement] = {}
        """Pod UID -> where it fits."""
        self.left: list[Asking] = []
        """Those that find no room."""

    @property
    def is_cut_short(self) -> bool:
        """Tell whether it was given up before all was looked at: more may fit."""
        return self._work.is_spent

    def steps(self, pods: Collection[Asking]) -> Iterator[None]:
        """Try all of them. Others can have their turn between two steps."""
        for pod in pods:
            yield from self._try(pod)

    def nodes(self) -> Counter[str]:
        """Return on which nodes pods fit, and how many on each."""
        return Counter(placement.node_name for placement in self.placed.values())

    def room(self, node_name: str) -> NodeRoom:
        """Return what is left of a node beside those that were placed."""
        room = self._nodes.get(node_name)
        if room is None:
            ledger, but = self._ledger, self._but
            found = ledger.room_without(node_name, but) if but else ledger.room_without_spares(node_name)
            room = self._nodes[node_name] = found
        return room

    def entries(self, node_name: str) -> list[CardEntry]:
        """Return the lines of a node's cards, with the shares of those that were placed."""
        entries = self._ledger.entries_of_node(node_name)
        here = [pod for pod in self._taken if self.placed[pod.uid].node_name == node_name]
        if not here and not self._but:
            return list(entries)
        copies = {entry.card.uuid: entry.as_it_is() for entry in entries}
        for entry in copies.values():
            entry.holds = {uid: share for uid, share in entry.holds.items() if uid not in self._but}
        for pod in here:
            for share in self.placed[pod.uid].shares:
                if share.uuid in copies:
                    copies[share.uuid].holders[pod.uid] = Holder(pod, share)
        return list(copies.values())

    def _try(self, pod: Asking) -> Iterator[None]:
        shape, key = pod.request.shape, (pod.request.shape, id(pod.node_names))
        for place in range(self._refused.get(key, 0), len(self._order)):
            name = self._order[place]
            if pod.node_names is None or name in pod.node_names:
                yield None
                searched, node = StepBudget(WORK_LIMIT), self.room(name)
                found = choose_cards(shape, node, Preference.BINPACK, searched)
                if not self._work.spend(STEPS_OF_A_LOOK + hard_steps(shape, searched)):
                    break
                if not isinstance(found, Refusal):
                    self._take(pod, Placement(name, shares_of(pod.request, found, node.cards), pod.request.host))
                    return
            self._refused[key] = place + 1  # what is left of it only becomes less
        self.left.append(pod)

    def _take(self, pod: Asking, placement: Placement) -> None:
        self.placed[pod.pod.uid] = placement
        self._taken.append(pod.pod)
        node, taken = self.room(placement.node_name), {share.uuid: share for share in placement.shares}
        rooms = tuple(_beside(taken[room.card.uuid], room) if room.card.uuid in taken else room for room in node.rooms)
        counted = None if node.counted is None else node.counted - counted_cards(pod.request.shape)
        self._nodes[placement.node_name] = replace(node, rooms=rooms, counted=counted)


def _beside(share: Share, room: Room) -> Room:
    """Return what a share leaves of a card's room."""
    return replace(room, free=room.free - share.amounts, idle=False, shut=room.shut or share.exclusive)
