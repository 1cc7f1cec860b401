"""Nominates pods that queue for nodes on which they fit, before kube-scheduler asks for them.

On a cluster of thousands of nodes, most of a pod's cost is that kube-scheduler looks at each of them. If a pod has a
`status.nominatedNodeName`, it looks at that node first, and at no other one if the pod fits there. So while it asks
for a pod and names many nodes, cards are chosen for some of the pods that queue behind that one, on nodes that it has
just named for a pod with the same demands. They are held until it asks; others get them if they need them. That is one
more write per pod: it is done neither on small clusters, nor for a pod that comes alone.

Nothing relies on it: a pod whose nomination is late, fails or is refused is placed like any other, and kube-scheduler
takes back a nomination that it could not follow.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.kubernetes.constraints import demands_on_nodes
from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import (
    created_at,
    later_version,
    nominated_node,
    pod_identity,
    resource_version,
    was_tried,
)
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.ledger.seats import Seat, Strength
from gpuledger.model.clock import Backoff, BoundedMap
from gpuledger.model.errors import ApiError, BadInput, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.placement.policy import StepBudget
from gpuledger.workflows.context import Component
from gpuledger.workflows.kept_seats import SeatTakers
from gpuledger.workflows.reporting import AheadOutcome

_Rank = tuple[int, str, int, str]
"""Minus the priority, time of creation, number in the order of coming, UID."""


@dataclass(frozen=True, slots=True)
class UpcomingPod:
    """A pod that kube-scheduler has not asked for."""

    pod: Pod
    request: PodRequest
    demands: bytes
    """The pod's demands on nodes beside cards: see `demands_on_nodes`."""
    created: str
    version: str
    """Its resourceVersion."""


class UpcomingPods:
    """Keeps them in their order."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[_Rank, UpcomingPod]] = {}  # by UID
        self._order: list[_Rank] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._pods)

    def uids(self) -> AbstractSet[str]:
        """Return the UIDs of all."""
        return self._pods.keys()

    def put(self, found: UpcomingPod) -> None:
        """Add a pod that is not there."""
        rank = -found.pod.priority, found.created, self._number, found.pod.uid
        self._number += 1
        insort(self._order, rank)
        self._pods[found.pod.uid] = rank, found

    def drop(self, pod_uid: str) -> None:
        """Remove a pod. Idempotent."""
        known = self._pods.pop(pod_uid, None)
        if known is not None:
            del self._order[bisect_left(self._order, known[0])]

    def pop(self) -> UpcomingPod | None:
        """Remove the first pod and return it; None if there is none."""
        if not self._order:
            return None
        _, found = self._pods.pop(self._order.pop(0)[-1])
        return found


logger = logging.getLogger(__name__)


MOST_AHEAD = 256
"""Pods of the queue that are looked at."""

LONGEST_LEAD = 64.0
"""Pods of the queue that are left out at most, because kube-scheduler will ask before it sees a nomination."""

LATE, IN_TIME, LEFT_OUT = 2.0, -0.25, -0.1
"""Changes to the number of pods left out ahead, when kube-scheduler asks for a pod whose nomination was late, one whose
nomination was in time, or one that was left out: with time those are tried again."""

MOST_QUEUED = 10_000
"""How many pods are followed; later ones are placed without a nomination."""

DEMANDS_KEPT = 256
"""Of which is remembered what nodes kube-scheduler has named: a bit for each node."""

WRITES_AT_ONCE = 16
"""More would be on their way longer, and come too late."""

WRITE_AWAITED_S = 1.0
"""By a Binding. Without its version a Binding can be refused, and is sent again."""

SEARCH_STEPS = 1_024
"""Of a search for one pod, some 10 microseconds each."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""After a nomination that kube-scheduler has refused: then more is asked of nodes than was known here."""


@define(eq=False, slots=False)
class AheadNominator(Component):
    """Follows which pods queue, and what kube-scheduler asks."""

    _seat_takers: SeatTakers

    def __attrs_post_init__(self) -> None:
        self._least_nodes = self._settings.nominate_ahead_nodes if self._settings.nodes_offered == 1 else 0
        self._unasked = UpcomingPods()
        self._node_sets = NodeSets()
        self._feasible: BoundedMap[bytes, NodeSet] = BoundedMap(
            DEMANDS_KEPT
        )  # demands on nodes -> kube-scheduler's nodes
        self._ahead: dict[str, str] = {}  # pod UID -> node for which it is nominated, until it is asked for
        self._left_out: set[str] = set()  # UIDs of pods that were looked at, and that kube-scheduler has to place
        self._lead = 1.0  # pods that kube-scheduler asks for while a nomination is on its way
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._paused_until_s = 0.0
        self._writes: dict[str, asyncio.Task[str]] = {}  # pod UID -> its nomination's write, which returns its version
        self._at_once = asyncio.Semaphore(WRITES_AT_ONCE)
        self._choosing: asyncio.Task[None] | None = None

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        uid = pod["metadata"]["uid"]
        if was_tried(pod):
            self._left_out.discard(uid)
            if uid in self._ahead:  # without a question: kube-scheduler's own rules allow no node
                self._ends(uid, AheadOutcome.REFUSED)
        if uid in self._ahead or uid in self._left_out:
            return
        self._unasked.drop(uid)
        found = self._upcoming(pod) if self._is_large() and len(self._unasked) < MOST_QUEUED else None
        if found is not None:
            self._unasked.put(found)

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self._unasked.drop(pod_uid)
        self._left_out.discard(pod_uid)
        self._writes.pop(pod_uid, None)
        if pod_uid in self._ahead:
            self._give_up(pod_uid)

    def known_pending(self) -> AbstractSet[str]:
        """Return the UIDs of the pods that may be nominated, or are."""
        return self._unasked.uids() | self._left_out | self._ahead.keys() | self._writes.keys()

    def asked(self, arguments: FilterArguments) -> bool:
        """Observe a question of kube-scheduler, and nominate pods that follow.

        Returns whether the question is about the nominated node: if that is refused, kube-scheduler asks again, about
        all nodes.
        """
        uid, outcome = arguments.pod_uid, None
        if uid in self._left_out:
            self._left_out.remove(uid)
            self._change_lead(LEFT_OUT)
        elif uid in self._ahead:
            outcome = self._outcome(self._ahead[uid], arguments)
            self._ends(uid, outcome)
        self._unasked.drop(uid)
        if self._unasked and self._is_large():
            self._look_at_others(arguments)
        return outcome is AheadOutcome.FOLLOWED

    async def version_of(self, pod_uid: str, version: str) -> str:
        """Return the pod's present resourceVersion, if only a nomination has changed it since this one.

        kube-scheduler can ask for a pod while its nomination is written; a Binding needs the version after that.
        """
        write = self._writes.get(pod_uid)
        if write is None or pod_uid in self._ahead:
            return version
        await asyncio.wait({write}, timeout=WRITE_AWAITED_S)
        return later_version(version, write.result()) if write.done() and not write.cancelled() else version

    # Inside.

    def _is_large(self) -> bool:
        return 0 < self._least_nodes <= len(self._ledger.node_names())

    def _look_at_others(self, arguments: FilterArguments) -> None:
        if len(arguments.node_names) >= self._least_nodes:
            self._named(arguments)
        if self._feasible and (self._choosing is None or self._choosing.done()) and self._may_go_on():
            self._choosing = self._tasks.start(self._choose(), "choose nodes for pods that queue")

    def _upcoming(self, pod: Json) -> UpcomingPod | None:
        """Read a pod that can be nominated; return None for one that can't be."""
        if was_tried(pod) or nominated_node(pod) or has_claims(pod):
            return None
        if self._seat_takers.are_for(pod):
            return None
        demands = demands_on_nodes(pod)
        try:
            request, gang = self._formats.request(pod), gang_of(pod)
        except BadInput:
            return None
        if demands is None or request is None or gang is not None:
            return None
        return UpcomingPod(pod_identity(pod), request, demands, created_at(pod), resource_version(pod))

    def _outcome(self, node_name: str, arguments: FilterArguments) -> AheadOutcome:
        if len(arguments.node_names) == 1 and node_name in arguments.node_names:
            return AheadOutcome.FOLLOWED
        return AheadOutcome.REFUSED if nominated_node(arguments.pod) == node_name else AheadOutcome.LATE

    def _ends(self, pod_uid: str, outcome: AheadOutcome) -> None:
        self._counts.nominated_ahead.labels(outcome).inc()
        self._give_up(pod_uid)
        if outcome is AheadOutcome.REFUSED and self._may_go_on():
            self._paused_until_s = self._clock.now_s() + self._backoff.next_s()
        elif outcome is AheadOutcome.FOLLOWED:
            self._backoff.reset()
            self._change_lead(IN_TIME)
        elif outcome is AheadOutcome.LATE:
            self._change_lead(LATE)

    def _change_lead(self, by: float) -> None:
        self._lead = min(max(self._lead + by, 1.0), LONGEST_LEAD)

    def _give_up(self, pod_uid: str) -> None:
        """Forget a nomination. If Filter has already answered for the pod, its hold stays."""
        del self._ahead[pod_uid]
        seat = self._ledger.seats.of(pod_uid)
        if seat is not None and seat.strength is Strength.OFFER:
            self._ledger.seats.give_up(pod_uid)

    def _named(self, arguments: FilterArguments) -> None:
        demands = demands_on_nodes(arguments.pod)
        if demands is not None:
            self._feasible.note(demands, self._node_sets.of(arguments.node_names))

    def _may_go_on(self) -> bool:
        return self._clock.now_s() >= self._paused_until_s and self._is_active()

    async def _choose(self) -> None:
        """Nominate the pods that are next, as many as may be ahead; questions are answered in between."""
        while self._may_go_on() and self._looked_at() < MOST_AHEAD and (found := self._unasked.pop()):
            placement = self._place(found) if self._looked_at() >= self._lead else None
            if placement is None:
                self._left_out.add(found.pod.uid)
            else:
                name = f"nominate pod {found.pod}"
                self._writes[found.pod.uid] = self._tasks.start(self._nominate(found, placement.node_name), name)
            await asyncio.sleep(0)

    def _looked_at(self) -> int:
        """Return how many pods kube-scheduler asks for before the next one that can be nominated."""
        return len(self._ahead) + len(self._left_out)

    def _place(self, found: UpcomingPod) -> Placement | None:
        """Hold cards for a pod; None if there are none for it, or it is not for this part to say."""
        uid, node_names = found.pod.uid, self._feasible.get(found.demands)
        if node_names is None or self._ledger.has_place(uid) or self._ledger.quotas.limits(found.pod.namespace):
            return None
        placement = self._chooser.best(found.request, node_names, StepBudget(SEARCH_STEPS))
        if placement is None or not placement.shares:
            return None
        with suppress(ShareRefused):
            until_s = self._clock.now_s() + self._settings.hold_ttl_s
            self._ledger.seats.take(Seat(uid, placement, until_s, Strength.OFFER))
            self._ahead[uid] = placement.node_name
            return placement
        return None

    async def _nominate(self, found: UpcomingPod, node_name: str) -> str:
        """Nominate a pod that was not asked for meanwhile; return which version it has then, empty if it was not."""
        uid = found.pod.uid
        async with self._at_once:
            if uid not in self._ahead:
                return ""
            try:
                return resource_version(await self._store.nominate_pod(found.pod, node_name, found.version))
            except ApiError as error:  # it has changed, mostly because it is bound already
                logger.debug("pod %s is not nominated for node %s: %s", found.pod, node_name, error)
                if uid in self._ahead:
                    self._ends(uid, AheadOutcome.LATE)
                return ""
