"""Tells a pending pod's owner why it waits, in a condition of the pod and in an Event.

kube-scheduler says it, too, in a sentence without numbers that it writes again whenever that sentence changes. Here it
is written once for each change of the main reason, and not before the pod has waited for a while; so most pods are
never written to. kube-scheduler tries a pod that an extender has refused once more whenever something of it changes,
its conditions too: one more reason to write seldom.

A gang's condition has the numbers of the moment when it is written: how many members find cards. They change all the
time, and are not written again; the explanation has the present ones. It is written again when the last missing member
has been created, or one is missing again.

Another Event names, once, the fields of a pod that have no effect. Pods for which kube-scheduler itself finds no node
are remembered, because it does not ask the operator about them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from attrs import define

from gpuledger.formats.kubernetes.other import ALLOCATED, allocated_condition, condition_of, condition_reason
from gpuledger.formats.kubernetes.pod import bound_node, created_at, is_finished, pod_identity
from gpuledger.formats.scheduler import SchedulerWords, scheduler_words
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import (
    ASSIGNED,
    ROOM_IS_NO_HELP,
    BadInput,
    Conflict,
    EventReason,
    Invalid,
    NotFound,
    Reason,
    Refusal,
)
from gpuledger.model.gang import GangStage
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.reports.cards import pod_json
from gpuledger.reports.explanation import Explanation, State, moment, request_text
from gpuledger.reports.records import Record, RecordKind
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import SchedulerRefused
from gpuledger.workflows.tasks import KeyedWorker

PODS_AT_ONCE = 1
WRITE_PAUSE_S = 0.05
"""Thousands can wait: telling them has time, and what has to be done at once goes first."""

PAUSE_S = 60.0
"""Between two writes to one pod, however often its reason changes."""


class Explainer(Protocol):
    """Knows why a pod waits."""

    async def explain_object(self, pod: Json, of_now: bool) -> Explanation:
        """Return all that there is to say of a pod that was just read, as of a few seconds ago if it may be."""


@define(eq=False, slots=False)
class PodConditionWriter(Component):
    """Writes a condition and an Event for pods that stay pending too long."""

    _explainer: Explainer

    def __attrs_post_init__(self) -> None:
        self._after_s = self._settings.tell_waiting_after_s
        self._written: dict[str, Pod] = {}  # pod UID -> pod that has the condition, as far as is known
        self._waiting: dict[str, Pod] = {}  # pod UID -> pod that was refused
        self._timers: dict[str, asyncio.TimerHandle] = {}  # pod UID -> when its condition is written
        self._complete: dict[str, bool] = {}  # UID of a written member of a gang -> whether all others had been created
        self.writes = 0
        """How many conditions were written so far."""
        self.worker = KeyedWorker(self._write, PODS_AT_ONCE, self._is_active, self._namespace_of)
        self._trail.on_record.append(self.observe)

    def observe(self, record: Record) -> None:
        """Observe what has happened to a pod: a refusal comes only with another reason than the last one."""
        if not self._after_s:
            return
        uid = record.pod.uid
        if record.kind is RecordKind.REFUSED:
            self._waiting[uid] = record.pod
            self._write_in(uid, PAUSE_S if uid in self._written else self._after_s)
        elif record.kind is RecordKind.ASSIGNED:
            self._waiting.pop(uid, None)
            self._stop_timer(uid)
            if uid in self._written:
                self.worker.mark(uid)

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node: an earlier operator may have written its condition."""
        if self._after_s and condition_of(pod, ALLOCATED) is not None:
            self._written.setdefault(pod["metadata"]["uid"], pod_identity(pod))

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone. If its condition says that it waits, that is corrected."""
        self._waiting.pop(pod_uid, None)
        self._stop_timer(pod_uid)
        if pod_uid in self._written:
            self.worker.mark(pod_uid)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the waiting pods whose condition says so, or did."""
        return self._waiting.keys() | self._written.keys()

    async def stop(self) -> None:
        """Write no more conditions."""
        await self.worker.stop()

    def _write_in(self, uid: str, wait_s: float) -> None:
        if uid not in self._timers:
            self._timers[uid] = self._tasks.after(wait_s, self._due, uid)

    def _stop_timer(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer:
            timer.cancel()

    def _due(self, uid: str) -> None:
        del self._timers[uid]
        self.worker.mark(uid)

    def _namespace_of(self, uid: str) -> str:
        pod = self._waiting.get(uid) or self._written.get(uid)
        return pod.namespace if pod else ""

    async def _write(self, uid: str) -> None:
        pod = self._waiting.get(uid) or self._written.get(uid)
        if pod is None:
            return
        try:
            found = await self._store.pod(pod.namespace, pod.name)
            if found["metadata"]["uid"] != uid:
                raise NotFound(f"pod {pod} has been replaced by another of the same name")
            await self._bring_up_to_date(pod, found)
        except (NotFound, Conflict, Invalid):  # it is gone, or a policy refuses the change, and would the next one
            self._forget(uid)
            self._waiting.pop(uid, None)

    async def _bring_up_to_date(self, pod: Pod, found: Json) -> None:
        explanation = await self._explainer.explain_object(found, of_now=False)
        before = condition_of(found, ALLOCATED)
        if explanation.state is State.WAITING:
            self._written[pod.uid] = pod
            reason = condition_reason(explanation.reason)
            complete = explanation.members is None or explanation.members.state is not GangStage.INCOMPLETE
            is_news = explanation.members is not None and self._complete.get(pod.uid, complete) != complete
            if await self._set(pod, None if is_news else before, "False", reason, explanation.summary):
                key = f"{reason} incomplete" if not complete else reason
                self._event_recorder.post_pod_event_once(pod, EventReason.WAITING, explanation.summary, key)
            self._complete[pod.uid] = complete
        elif bound_node(found) or is_finished(found):
            if explanation.state is State.PLACED and before is not None:
                await self._set(pod, before, "True", ASSIGNED, explanation.summary)
            self._forget(pod.uid)

    def _forget(self, uid: str) -> None:
        self._written.pop(uid, None)
        self._complete.pop(uid, None)

    async def _set(self, pod: Pod, before: Json | None, status: str, reason: str, message: str) -> bool:
        """Write the condition, if it says something else; return whether it did."""
        if before is not None and (before.get("status"), before.get("reason")) == (status, reason):
            return False
        now = rfc3339(self._clock.wall())
        await self._store.set_pod_condition(pod, allocated_condition(status, reason, message, now))
        self.writes += 1
        await asyncio.sleep(WRITE_PAUSE_S)
        return True


MOST_EVENTS = 4
"""Of one pod, however often its annotations change."""


@define(eq=False, slots=False)
class PodWarner(Component):
    """Follows the pods that wait. The Event has a name of its own, so another replica does not post it again."""

    def __attrs_post_init__(self) -> None:
        self._said: dict[str, set[str]] = {}  # pod UID -> what was said of it

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        if not self._is_active():
            return
        warnings = self._formats.warnings(pod)
        if not warnings:
            return
        identity, text = pod_identity(pod), "; ".join(warning.text for warning in warnings)
        said = self._said.setdefault(identity.uid, set())
        if text in said or len(said) >= MOST_EVENTS:
            return
        said.add(text)
        for warning in warnings:
            self._counts.words_without_effect.labels(warning.kind).inc()
        self._event_recorder.post_pod_event_once(identity, EventReason.WORDS_WITHOUT_EFFECT, text, text)

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self._said.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the waiting pods that were warned."""
        return set(self._said)


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """A waiting pod, its request, and the reason."""

    pod: Pod
    request: PodRequest
    created: str
    """RFC 3339."""
    tried_s: float | None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not yet."""
    reasons: Mapping[Refusal, int]
    """Why nodes do not take it, and how many of them for each reason."""
    gang: str = ""
    """The name of its gang in its namespace; empty if it has none."""
    queue: str = ""
    """The queue of Kueue's that it is in; empty if it is in none."""

    @property
    def main_reason(self) -> str:
        """Return the reason that most nodes give; "room-found" if none is known: it is about to be tried again."""
        most = max(self.reasons.items(), key=lambda each: each[1], default=None)
        return most[0].reason.value if most else "room-found"

    @property
    def nearest_reason(self) -> str:
        """Return the reason of most of the nodes that could take it: one that waiting can end, if there is one.

        On a cluster with many kinds of nodes, most of them say of each pod that they lack what it asks for.
        """

        def nearness(refusal: Refusal) -> tuple[bool, bool, int]:
            return refusal.reason not in ROOM_IS_NO_HELP, refusal.reason != Reason.NO_INVENTORY, self.reasons[refusal]

        return max(self.reasons, key=nearness).reason.value if self.reasons else self.main_reason

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        most_first = Counter(dict(self.reasons)).most_common()
        return {
            **pod_json(self.pod),
            "gang": self.gang or None,
            "queue": self.queue or None,
            "priority": self.pod.priority,
            "since": self.created,
            "lastTried": moment(self.tried_s),
            "request": request_text(self.request),
            "reasons": [
                {"reason": refusal.reason.value, "text": refusal.text, "nodes": nodes} for refusal, nodes in most_first
            ],
        }


@define(eq=False, slots=False)
class RefusedByScheduler(Component):
    """Follows the pods without a node, by what kube-scheduler has written into their status."""

    def __attrs_post_init__(self) -> None:
        self._reports: dict[str, WaitingReport] = {}  # pod UID -> why it waits
        self.changes = 0
        """How often a pod has come, gone, or got another reason so far."""

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        words = scheduler_words(pod)
        report = self._report(pod, words) if words.refused_all else None
        uid = pod["metadata"]["uid"]
        if report is None:
            self.forget_pending(uid)
        elif report != self._reports.get(uid):
            self._reports[uid] = report
            self.changes += 1
            self._events.tell(SchedulerRefused(uid, words.rules_out))

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self.changes += self._reports.pop(pod_uid, None) is not None

    def known_pending(self) -> set[str]:
        """Return the UIDs of the pods that kube-scheduler itself refuses."""
        return set(self._reports)

    def reports(self) -> dict[str, WaitingReport]:
        """Return why each of them waits, by the pod's UID."""
        return self._reports

    def _report(self, pod: Json, words: SchedulerWords) -> WaitingReport | None:
        try:
            request = self._formats.request(pod)
        except BadInput:
            return None
        if request is None:
            return None
        reasons = {Refusal(Reason.KUBE_SCHEDULER, text): count for text, count in words.own}
        return WaitingReport(pod_identity(pod), request, created_at(pod), None, reasons)
