"""Pods that could not be bound, and where.

Several times in a row: they are put off. Whatever is wrong with them, others go first.

On a node: they get another one next time, if one fits. kube-scheduler does not report failures between Filter and
Bind, such as Reserve, Permit or PreBind; it shows when kube-scheduler asks for the pod again without having asked to
bind it. If it names the node again, the node is fit by its own rules, and has led nowhere. If it does not name it, it
keeps the pod off the node by itself, and nothing is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field

from gpuledger.model.clock import BoundedMap, Clock
from gpuledger.model.errors import (
    ApiError,
    BindAbandoned,
    BindFailed,
    Conflict,
    GangIncomplete,
    GpuledgerError,
    NotFound,
    QuotaExceeded,
)
from gpuledger.model.share import Pod

FAILURES_FREE = 3
"""Failed binds in a row before a pod is put off: kube-scheduler's own back-off, of 10 s at most, comes first."""

FIRST_PUT_OFF_S, LONGEST_PUT_OFF_S = 20.0, 300.0

ANSWER_PAUSE_S = 1.0
"""Between two answers that a pod is not bound. kube-scheduler's own back-off is as long; but where it tries groups as a
whole it has none: 1.37 was seen to try a member whose Bind is refused 140 times a second."""

OVERLOADED = (0, 429, 503, 504)
"""Answers (0 is none) that say something of the API server and nothing of the pod."""

NOT_OF_THE_NODE = (NotFound, Conflict, BindAbandoned, GangIncomplete, QuotaExceeded)
"""Errors that say nothing of the node."""

NODES_KEPT = 64
"""Nodes that are remembered of one pod: those that led nowhere last."""


@dataclass(slots=True)
class _Failures:
    number: int = 0
    put_off_until_s: float = 0.0
    offered: tuple[str, ...] = ()
    """Names of the nodes in the last answer to a Filter, as long as no Bind has followed."""
    answered_s: float | None = None
    """When kube-scheduler was told last that the pod is not bound."""
    nodes: BoundedMap[str, None] = field(default_factory=lambda: BoundedMap(NODES_KEPT))
    """Names of the nodes that led nowhere."""


class BindFailures:
    """Counts them. Of a pod that was bound, or is gone, nothing is remembered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}  # pod UID -> its failed binds

    def pod_uids(self) -> set[str]:
        """Return the UIDs of the pods of which something is remembered."""
        return set(self._failures)

    def forget(self, pod_uid: str) -> None:
        """Record that a pod was bound, or is gone."""
        self._failures.pop(pod_uid, None)

    async def pause_before_answer(self, pod_uid: str) -> None:
        """Wait until kube-scheduler may be told again that a pod is not bound; the first time, that is now."""
        failures = self._failures.setdefault(pod_uid, _Failures())
        if failures.answered_s is not None:
            await asyncio.sleep(max(0.0, failures.answered_s + ANSWER_PAUSE_S - self._clock.now_s()))
        failures.answered_s = self._clock.now_s()

    def offered(self, pod_uid: str, node_names: Iterable[str]) -> None:
        """Note which nodes kube-scheduler was offered for a pod."""
        self._failures.setdefault(pod_uid, _Failures()).offered = tuple(node_names)

    def bind_begins(self, pod_uid: str) -> None:
        """Record that kube-scheduler has come as far as Bind with what it was offered."""
        failures = self._failures.get(pod_uid)
        if failures is not None:
            failures.offered = ()

    def led_nowhere(self, pod_uid: str, node_names: Container[str]) -> Collection[str]:
        """Return the nodes that a pod had better not get again, now that kube-scheduler asks with these names."""
        failures = self._failures.get(pod_uid)
        if failures is None:
            return ()
        for name in failures.offered:
            if name in node_names:
                failures.nodes.note(name, None)
        failures.offered = ()
        return failures.nodes

    def avoided(self, pod_uid: str) -> Collection[str]:
        """Return the nodes that have led nowhere, as far as is known."""
        failures = self._failures.get(pod_uid)
        return failures.nodes if failures else ()

    def start_over(self, pod_uid: str) -> None:
        """Record that a pod gets one of these nodes all the same, as no other one fits: all have their turn again."""
        failures = self._failures.get(pod_uid)
        if failures is not None:
            failures.nodes = BoundedMap(NODES_KEPT)

    def note(self, pod_uid: str, node_name: str, error: BaseException) -> None:
        """Note why a bind has failed. What says nothing of the pod, or of the node, does not count."""
        if isinstance(error, ApiError) and error.status in OVERLOADED:
            return
        if isinstance(error, GpuledgerError) and not isinstance(error, NOT_OF_THE_NODE):
            self._failures.setdefault(pod_uid, _Failures()).nodes.note(node_name, None)
        if isinstance(error, ApiError) and not isinstance(error, NotFound):
            self._count(self._failures.setdefault(pod_uid, _Failures()))

    def _count(self, failures: _Failures) -> None:
        failures.number += 1
        if failures.number > FAILURES_FREE:
            put_off_s = min(LONGEST_PUT_OFF_S, FIRST_PUT_OFF_S * 2 ** (failures.number - FAILURES_FREE - 1))
            failures.put_off_until_s = self._clock.now_s() + put_off_s

    def put_off_s(self, pod_uid: str) -> float:
        """Return for how many seconds the pod is still put off."""
        failures = self._failures.get(pod_uid)
        return max(0.0, failures.put_off_until_s - self._clock.now_s()) if failures else 0.0

    def check(self, pod: Pod) -> None:
        """Raise BindFailed if a pod is put off."""
        if self.put_off_s(pod.uid):
            raise BindFailed(f"binding pod {pod} failed several times in a row; the operator retries after a pause")
