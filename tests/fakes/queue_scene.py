"""Workloads over one operator that answers Kueue's check: what comes, and what the operator then does."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from builders import cards_of
from fakes.objects import GPU, PERCENTAGE, SHARE, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.queue_objects import a_check, a_cluster_queue, a_cohort, a_pod_set, a_workload
from fakes.queue_server import QueueServer
from fakes.virtual_time import EPOCH, LoopClock, settle
from gpuledger.model.card import Card
from gpuledger.model.clock import Clock
from gpuledger.model.gang import GroupSeat, SeatKey

Json = dict[str, Any]

WHOLE: Mapping[str, str] = {GPU: "1"}
MOST_ROUNDS = 50


def percent_of(cards: int, percent: int) -> Mapping[str, str]:
    """Return limits: a part of the memory of each of some cards."""
    return {GPU: str(cards), PERCENTAGE: str(percent)}


@dataclass
class QueueScene:
    """One operator, and an API server with Kueue's objects."""

    api: QueueServer
    nodes: Mapping[str, int] = field(default_factory=lambda: {"node-a": 4})
    """Names of nodes -> number of their cards."""
    clock: Clock = field(default_factory=LoopClock)
    submitted: int = 0
    """How many workloads have come."""

    def __post_init__(self) -> None:
        for card in self.cards():
            if card.object_name not in self.api.cards:
                self.api.put_card(card)
        self.restart()

    def cards(self) -> list[Card]:
        """Return all cards."""
        return [card for name, number in self.nodes.items() for card in cards_of(name, number)]

    def restart(self) -> None:
        """Let an operator begin, which knows what the API server has."""
        self.parts = OperatorParts(self.api, kueue=True, clock=self.clock)
        self.parts.read_cards()
        self.queues, self.ledger = self.parts.workflows.queues, self.parts.ledger
        self.queues.objects.check(a_check(), gone=False)
        for name in self.nodes:
            self.queues.nodes.observe_node({"metadata": {"name": name, "labels": {"name": name}}, "spec": {}})
        for queue in ("high", "low"):
            self.cluster_queue(queue)

    def cluster_queue(self, name: str, **more: Any) -> None:
        """Observe a ClusterQueue."""
        self.queues.objects.queue(a_cluster_queue(name, **more), gone=False)

    def cohort(self, name: str, parent: str = "", **more: Any) -> None:
        """Observe a Cohort."""
        self.queues.objects.cohort(a_cohort(name, parent, **more), gone=False)

    def submit(
        self,
        name: str,
        limits: Mapping[str, object] = SHARE,
        pods: int = 1,
        pod_sets: Iterable[Mapping[str, Any]] = (),
        **more: Any,
    ) -> Json:
        """Let Kueue give quota to a workload, later than to those before."""
        self.submitted += 1
        reserved_at = (EPOCH + timedelta(seconds=self.submitted)).isoformat()
        sets = tuple(pod_sets) or (a_pod_set("main", pods, limits),)
        found = self.api.put_workload(a_workload(name, *sets, **{"reserved_at": reserved_at, **more}))
        self.parts.watch()
        return deepcopy(found)

    async def work(self) -> None:
        """Let the operator do what is to be done now, and the watches show it."""
        room_has_changed = self.parts.workflows.context.room_has_changed
        room_has_changed.set()
        for _ in range(MOST_ROUNDS):
            if not room_has_changed.is_set():
                return
            room_has_changed.clear()
            self.parts.placer.expire_holds()
            again = await self.parts.workflows.queue.give_room()
            await settle()
            self.parts.watch()
            if again:
                room_has_changed.set()
        raise AssertionError("the operator does not come to rest")

    async def admit(self, *names: str) -> None:
        """Let Kueue admit workloads."""
        for name in names:
            self.api.set_condition(name, "Admitted")
        self.parts.watch()
        await self.work()

    async def run(self, name: str, limits: Mapping[str, object], pods: int = 1, **more: Any) -> None:
        """Let a workload come, be admitted, and its pods be bound."""
        self.submit(name, limits, pods, **more)
        await self.work()
        assert self.api.state(name) == "Ready"
        await self.admit(name)
        for number in range(pods):
            await self.bind(f"{name}-{number}", name, limits)

    async def bind(self, pod_name: str, workload: str, limits: Mapping[str, object], **more: Any) -> None:
        """Let a pod of a workload come, and be bound."""
        node_names = self.comes(pod_name, workload, limits, **more)
        assert node_names, f"{pod_name} finds no cards"
        await self.parts.bind_watching(pod_name, node_names[0])
        await self.parts.idle()

    def pod(
        self, pod_name: str, workload: str, limits: Mapping[str, object], pod_set: str = "main", **more: Any
    ) -> None:
        """Let a pod of a workload be created."""
        pod = a_pod_object(pod_name, limits, **more)
        pod["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": workload}
        pod["metadata"]["labels"] = {"kueue.x-k8s.io/podset": pod_set}
        self.api.put_pod(pod)
        self.parts.watch()

    def comes(
        self,
        pod_name: str,
        workload: str,
        limits: Mapping[str, object],
        offered: Collection[str] = (),
        **more: Any,
    ) -> list[str]:
        """Let a pod of a workload come; return where it may go."""
        self.pod(pod_name, workload, limits, **more)
        return self.asks(pod_name, offered)

    def asks(self, pod_name: str, offered: Collection[str] = ()) -> list[str]:
        """Let kube-scheduler ask for a pod; return where it may go."""
        return list(self.parts.filter(pod_name, *(offered or self.nodes)).node_names)

    def stranger(self, pod_name: str, limits: Mapping[str, object], **more: Any) -> list[str]:
        """Let a pod of no workload come; return where it may go."""
        self.api.put_pod(a_pod_object(pod_name, limits, **more))
        self.parts.watch()
        return self.asks(pod_name)

    def reserved(self, workload: str) -> list[str]:
        """Return the names of the nodes on which room is on hold for a workload's pods that have not come."""
        holds = (each for entry in self.ledger.entries() for each in entry.seats)
        keys = {key for key in holds if isinstance(key, GroupSeat) and key.group.name == workload}
        found = (self.ledger.seats.of(key) for key in sorted(keys))
        return [hold.placement.node_name for hold in found if hold]

    def on_hold(self) -> set[SeatKey]:
        """Return under what anything is on hold."""
        return {uid for entry in self.ledger.entries() for uid in entry.seats}

    def states(self, *names: str) -> list[str]:
        """Return what the check says of workloads."""
        return [self.api.state(name) for name in names]

    def evicted(self) -> set[str]:
        """Return the workloads that are to be evicted."""
        return {name for name in self.api.workloads if self.api.state(name) == "Retry"}

    async def later(self, seconds: float) -> None:
        """Let the operator work, and time pass, and it work again."""
        await self.work()
        await asyncio.sleep(seconds)
        await self.work()
