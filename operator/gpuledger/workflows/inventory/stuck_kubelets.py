"""Pods that their node does not start: its kubelet hangs, and the node takes no more GPU pods until it goes on.

A kubelet writes `status.startTime` of a pod that it takes up, before it pulls an image or mounts a volume. A device
plugin that does not answer stops the kubelet in the middle of taking up a pod, and the whole node with it.

A pod can also be late by itself: its owner writes so much into it that its status does not fit in any more. So nothing
is concluded from a long one, nor where the kubelet has taken up another pod that was bound after it, whose-ever it is.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuledger.formats.kubernetes.pod import bound_at, bound_node, has_started, is_finished, is_long, pod_identity
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)


LEAST_WAIT_S = 5.0
"""How long it takes at least until a pod is looked at again that was bound before this operator came."""

SETTLE_S = 15.0
"""How long a node stays closed after its kubelet goes on: what is known of its device plugin is from before it stood
still, and a kubelet reports its node's status every 10 s (nodeStatusUpdateFrequency). A pod that came to it earlier,
and found the plugin gone, would fail for good."""

LATER_S = 10.0
"""By how much a pod has to be bound after a late one, to be no proof of the order in which a kubelet takes up pods."""

PODS_AT_ONCE = 16


@dataclass(slots=True)
class _Waiting:
    """A bound pod that was not seen to start."""

    pod: Pod
    node_name: str
    bound_at: str
    """RFC 3339, empty if its status does not say."""
    timer: asyncio.TimerHandle
    is_over: bool = False
    """Its time was over before we looked."""


class StuckKubelets:
    """Knows the bound pods of ours that have not started, and the nodes on which one is late."""

    def __init__(self, *, ledger: Ledger, reader: KubeStore, clock: Clock, timeout_s: float) -> None:
        self._ledger = ledger
        self._reader = reader
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting: dict[str, _Waiting] = {}  # pod UID -> pod that has not started, late or not
        self._late: dict[str, set[str]] = {}  # node name -> UIDs of the late pods among them
        self._excused: set[str] = set()  # UIDs of bound pods that are late by themselves
        self._settling: dict[str, tuple[str, asyncio.TimerHandle]] = {}  # node name -> what was wrong, and till when
        self.worker = KeyedWorker(self._judge, PODS_AT_ONCE)
        self.on_change = Listeners[[str]]()
        """Called with a node's name when `problem` has another answer for it."""

    def problem(self, node_name: str) -> str:
        """Return the problem of a node's kubelet, an empty string for none: "its kubelet ...".

        It names the pod that was bound first, in whatever order they were seen: every operator says the same.
        """
        late = [self._waiting[uid] for uid in self._late.get(node_name, ())]
        if not late:
            return self._settling[node_name][0] if node_name in self._settling else ""
        first = min(late, key=lambda waiting: (waiting.bound_at, str(waiting.pod)))
        return f"its kubelet has not started pod {first.pod} for {self._timeout_s:g} s"

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod. One that was `bound_before` we looked has the less time left, or none."""
        uid = pod["metadata"]["uid"]
        if has_started(pod):
            self._started(uid)
        elif is_finished(pod):
            self.forget_bound(uid)
        elif self._timeout_s and uid not in self._excused:
            age_s = _age_s(pod, self._clock.wall()) if bound_before else 0.0
            if uid not in self._waiting:
                timer = self._timer(uid, max(self._timeout_s - age_s, min(LEAST_WAIT_S, self._timeout_s)))
                self._waiting[uid] = _Waiting(pod_identity(pod), bound_node(pod), bound_at(pod), timer)
            # At once: an operator that starts must not open a node that hangs.
            if age_s >= self._timeout_s and not is_long(pod):
                self._waiting[uid].is_over = True
                self._note_late(uid)

    def cards_read(self) -> None:
        """Record that the ledger knows who holds what: pods can have been seen before."""
        for uid in [uid for uid, waiting in self._waiting.items() if waiting.is_over]:
            self._note_late(uid)

    def forget_bound(self, pod_uid: str, last: Json | None = None) -> None:
        """Record that a pod is gone, or of no interest any more."""
        self._excused.discard(pod_uid)
        self._drop(pod_uid)

    def _drop(self, pod_uid: str) -> None:
        waiting = self._waiting.pop(pod_uid, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        late = self._late.get(waiting.node_name, set())
        if pod_uid in late:
            late.remove(pod_uid)
            if not late:
                del self._late[waiting.node_name]
            self.on_change(waiting.node_name)

    def _started(self, pod_uid: str) -> None:
        """Record that a pod has started: its kubelet goes on, and gets the whole time again for the other pods."""
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        problem = self.problem(waiting.node_name)
        late = self._late.pop(waiting.node_name, None)
        self.forget_bound(pod_uid)
        if late is not None:
            for uid in late - {pod_uid}:
                self._waiting[uid].timer = self._timer(uid, self._timeout_s)
            logger.info("the kubelet of node %s starts pods again", waiting.node_name)
            self._settle(waiting.node_name, problem)

    def _settle(self, node_name: str, problem: str) -> None:
        if node_name in self._settling:
            self._settling[node_name][1].cancel()
        timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settled, node_name)
        self._settling[node_name] = problem, timer

    def _settled(self, node_name: str) -> None:
        del self._settling[node_name]
        self.on_change(node_name)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that were not seen to start."""
        return self._waiting.keys() | self._excused

    def _timer(self, pod_uid: str, wait_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, self.worker.mark, pod_uid)

    async def _judge(self, pod_uid: str) -> None:
        """Look at a pod whose time is over. The API server is asked: a watch can lag behind, or be broken."""
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        found = await self._read(waiting.pod)
        if found is None:
            self.forget_bound(pod_uid)
            return
        self.observe_bound(found, bound_before=False)
        if pod_uid in self._waiting and is_long(found):
            self._excuse(waiting, "its status may be too long for the kubelet to write")
            return
        await self._conclude(pod_uid)

    async def _conclude(self, pod_uid: str) -> None:
        """Close the node of a pod that is late, unless that is the pod's own trouble; look again after a while."""
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        other = await self._taken_up_later(waiting)
        if self._waiting.get(pod_uid) is not waiting:
            return
        if other is not None:
            self._excuse(waiting, f"pod {other}, which was bound to the same node later, has started")
            return
        self._note_late(pod_uid)
        waiting.timer = self._timer(pod_uid, self._timeout_s)

    def _excuse(self, waiting: _Waiting, why: str) -> None:
        logger.warning("pod %s does not start, but its node is not to blame: %s", waiting.pod, why)
        self._excused.add(waiting.pod.uid)
        self._drop(waiting.pod.uid)

    async def _taken_up_later(self, waiting: _Waiting) -> Pod | None:
        """Return a pod that the kubelet has taken up though it came to the node well after this one."""
        since = _time(waiting.bound_at)
        if since is None:
            return None

        def taken_up_later(found: Json) -> Pod | None:
            at = _time(bound_at(found))
            is_later = has_started(found) and at is not None and at > since + timedelta(seconds=LATER_S)
            return pod_identity(found) if is_later else None

        return next(filter(None, await self._reader.pods_of_node(waiting.node_name, taken_up_later)), None)

    def _note_late(self, pod_uid: str) -> None:
        """Close the pod's node, if it still waits for its kubelet."""
        waiting = self._waiting.get(pod_uid)
        # A pod that holds no card is no proof: how it came to the node is unknown.
        if waiting is None or not self._ledger.holders_of(pod_uid):
            return
        before = self.problem(waiting.node_name)
        self._late.setdefault(waiting.node_name, set()).add(pod_uid)
        problem = self.problem(waiting.node_name)
        if problem != before:
            logger.warning("node %s takes no GPU pods: %s", waiting.node_name, problem)
            self.on_change(waiting.node_name)

    async def _read(self, pod: Pod) -> Json | None:
        try:
            found = await self._reader.pod(pod.namespace, pod.name)
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == pod.uid else None


def _age_s(pod: Json, now: datetime) -> float:
    """Return how long the pod has been bound by now; 0 if it does not say."""
    at = _time(bound_at(pod))
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


def _time(text: str) -> datetime | None:
    """Return a time of RFC 3339; None if it is none, or has no time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
