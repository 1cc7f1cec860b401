"""A trace's cluster as a ledger, and the placement that is the operator's own.

A card has 1000 MiB, so that thousandths of a card are MiB of it. CPU and memory of the nodes are kube-scheduler's to
check: it shows the operator only nodes that have them, and so does `HostRoom` here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from gpuledger.ledger.book import PINNED, Ledger
from gpuledger.model.card import ALL_CORES, Amounts, Card, CardFilter
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import ANY_NVIDIA, Demand, HostAmounts, PodRequest
from gpuledger.model.share import Placement
from gpuledger.model.stored_card import StoredCard
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Seat
from gpuledger.placement.policy import Policy
from gpuledger.simulation.gang_places import hold_all
from gpuledger.simulation.hosts import HostRoom
from gpuledger.simulation.mix import History, expected_mix
from gpuledger.simulation.trace import CARD_MILLI, PodKind, TraceNode

SLOTS = CARD_MILLI
"""Of a card: a share can be as small as a thousandth."""


class Why(StrEnum):
    """Why a pod found no place: what alone would have let it in, the first that applies."""

    HOST_CPU = "host-cpu"
    """There are cards for it on nodes with too little CPU."""
    HOST_CPU_AND_MEMORY = "host-cpu-and-memory"
    """There are cards for it on nodes that lack both."""
    HOST_MEMORY = "host-memory"
    """There are cards for it on nodes with too little memory."""
    OTHER_MODELS = "other-models"
    """There is room on cards of models that it does not allow."""
    TOO_FEW_CARDS = "too-few-cards"
    """No node of the cluster has as many cards."""
    NO_WHOLE_CARD = "no-whole-card"
    """No node with its CPU and memory has as many cards entirely free."""
    NO_SHARE = "no-share"
    """No card, on nodes with its CPU and memory, has that much free."""
    NOT_ALL_AT_ONCE = "not-all-at-once"
    """There is room for some members of its gang, and not for all of them together."""


class TraceCluster:
    """Nodes with their cards in a ledger, the pods that are placed there, and who chooses.

    `pods` says how many of each kind the trace has.
    """

    def __init__(
        self, nodes: Sequence[TraceNode], pods: Mapping[PodKind, int], policy: Policy, history: History
    ) -> None:
        self.hosts = HostRoom({node.name: node.host for node in nodes})
        self.capacity_milli = sum(node.cards for node in nodes) * CARD_MILLI
        self.allocated_milli = 0
        self.free_milli = [[CARD_MILLI] * node.cards for node in nodes]
        """What is left on each node's cards, in the order of the nodes."""
        self._ledger = _ledger_of(nodes)
        self._requests = {kind: request_of(kind) for kind in pods}
        mix = expected_mix({self._requests[kind]: count for kind, count in pods.items()}, history)
        self._chooser = Chooser(self._ledger, policy, mix, entries_kept=len(pods) * len(nodes))
        self._row_of = {node.name: row for row, node in enumerate(nodes)}
        self._index_of = {_uuid(node.name, index): index for node in nodes for index in range(node.cards)}
        self._largest_node = max(node.cards for node in nodes)
        self._placed: dict[str, tuple[PodKind, Placement]] = {}  # pod -> what it is and where

    def arrived(self, kind: PodKind) -> None:
        """Tell the policy that a new pod has come."""
        self._chooser.arrived(self._requests[kind])

    def place(self, pod: str, kind: PodKind, only: HostRoom | None = None) -> Placement | None:
        """Place a pod on one of the nodes that have its CPU and memory; None if it fits nowhere."""
        hosts = only or self.hosts
        placement = self._chooser.best(self._requests[kind], hosts.asked(kind.host))
        while self._chooser.look_further():
            pass  # the operator does this between its questions
        if placement is not None:
            self._ledger.hold(pod, placement, PINNED)
            self._take(pod, kind, placement)
        return placement

    def place_all(self, pods: Mapping[str, PodKind]) -> bool:
        """Place the pods of a gang as the operator does, all or none; return whether they are placed."""
        nodes = {kind: _NodesWith(kind.host, self._ledger) for kind in pods.values()}
        seats = [Seat(pod, self._requests[kind], nodes[kind]) for pod, kind in pods.items()]
        if hold_all(self._ledger, self._chooser, seats) < len(seats):
            return False
        for pod, kind in pods.items():
            hold = self._ledger.hold_of(pod)
            if hold is not None:
                self._take(pod, kind, hold.placement)
        return True

    def _take(self, pod: str, kind: PodKind, placement: Placement) -> None:
        self._placed[pod] = (kind, placement)
        self._count(kind, placement, +1)
        self._chooser.given_out(kind.asked_milli / CARD_MILLI)

    def remove(self, pod: str) -> str:
        """Take a placed pod off its cards; return its node's name."""
        kind, placement = self._placed.pop(pod)
        self._ledger.drop_hold(pod)
        self._count(kind, placement, -1)
        self._chooser.given_back(kind.asked_milli / CARD_MILLI)
        return placement.node_name

    def why_not(self, kind: PodKind) -> Why:
        """Return why a pod of a kind that fits nowhere does not: what would have to be different for it."""
        if kind.cards > self._largest_node:
            return Why.TOO_FEW_CARDS
        short = self.hosts.recorded(kind.host)
        self._chooser.best(self._requests[kind], short)
        if short.lacks:
            return Why(f"host-{min(short.lacks)}")
        any_model = request_of(PodKind(kind.host, kind.cards, kind.milli))
        if kind.models and self._chooser.best(any_model, self.hosts.asked(kind.host)):
            return Why.OTHER_MODELS
        return Why.NO_WHOLE_CARD if kind.milli == CARD_MILLI else Why.NO_SHARE

    def why_not_all(self, kinds: Iterable[PodKind]) -> Why:
        """Return why a gang finds no place: what one of its members lacks by itself, if one finds none."""
        for kind in dict.fromkeys(kinds):
            if self._chooser.best(self._requests[kind], self.hosts.asked(kind.host)) is None:
                return self.why_not(kind)
        return Why.NOT_ALL_AT_ONCE

    def could_take(self, kind: PodKind, node_name: str) -> bool:
        """Return whether a node has a pod's CPU, memory and cards, models apart: quicker than a placement."""
        if not self.hosts.has(node_name, kind.host):
            return False
        free = self.free_milli[self._row_of[node_name]]
        return sum(milli >= kind.milli for milli in free) >= kind.cards

    def _count(self, kind: PodKind, placement: Placement, sign: int) -> None:
        self.hosts.change(placement.node_name, kind.host, -sign)
        self.allocated_milli += sign * kind.asked_milli
        free = self.free_milli[self._row_of[placement.node_name]]
        for share in placement.shares:
            free[self._index_of[share.uuid]] -= sign * share.amounts.memory_mib


class _NodesWith(Collection[str]):
    """The nodes that have a pod's CPU and memory, less what the ledger holds for others at the moment."""

    def __init__(self, host: HostAmounts, ledger: Ledger) -> None:
        self._host = host
        self._hosts = ledger.hosts

    def __contains__(self, name: object) -> bool:
        free = self._hosts.free(str(name))
        return free is not None and free.cpu_milli >= self._host.cpu_milli and free.memory_mib >= self._host.memory_mib

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._hosts.node_names() if name in self)

    def __len__(self) -> int:
        return len(self._hosts.node_names())


def request_of(kind: PodKind) -> PodRequest:
    """Return what a pod of a kind asks for, as the operator would read it."""
    if not kind.cards:
        return PodRequest((), (), host=kind.host)
    wanted = CardFilter(use_models=tuple(map(_marked, kind.models))) if kind.models else ANY_NVIDIA
    whole = kind.milli == CARD_MILLI
    demand = Demand(kind.cards, None if whole else kind.milli, exclusive=whole, wanted=wanted)
    return PodRequest(("main",), (demand,), host=kind.host)


def _ledger_of(nodes: Iterable[TraceNode]) -> Ledger:
    ledger = Ledger()
    for node in nodes:
        ledger.hosts.set_capacity(node.name, node.host)
        ledger.set_offer(node.name, NodeOffer())
        for index in range(node.cards):
            capacity = Amounts(CARD_MILLI, ALL_CORES, SLOTS)
            card = Card(_uuid(node.name, index), node.name, index, capacity, model=_marked(node.model))
            ledger.load(StoredCard(card, 1, (), "Ready"))
    return ledger


def _uuid(node_name: str, index: int) -> str:
    return f"GPU-{node_name}-{index}"


def _marked(model: str) -> str:
    """Return a model's name with its ends: names are compared as parts, and V100 is a part of V100M16."""
    return f"<{model}>"
