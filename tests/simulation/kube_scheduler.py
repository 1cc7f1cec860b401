"""A small kube-scheduler: its own watch of pods, one Filter at a time, Binds that overlap, retries with back-off.

What it does when nothing happens matters too: a refused pod sleeps until something changes that kube-scheduler looks
at, or five minutes.
"""

from typing import TYPE_CHECKING

from gpuledger.formats.kubernetes.pod import nominated_node
from gpuledger.formats.scheduler import BindArguments
from gpuledger.model.errors import GpuledgerError
from gpuledger.workflows.placing.place_pod import FilterResult
from simulation.api_server import Json, Kind, everything
from simulation.item import LATE_S, SOON, SOON_S, Item
from simulation.scheduler_preempts import PreemptQuestion
from simulation.scheduling import Attempt, Step
from simulation.watches import Watch

if TYPE_CHECKING:
    from simulation.slot import Slot
    from simulation.world import World

FLUSH_S = 300.0
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 10.0)

SCHEDULED = "PodScheduled"

VOLUMES_S = 40.0
"""How long the volumes of a pod take that is slow to be bound: longer than a hold lasts."""


class KubeScheduler:
    """The scheduler beside one operator."""

    def __init__(self, world: "World", slot: "Slot") -> None:
        self.world = world
        self.slot = slot
        self.name = f"scheduler {slot.number}"
        self.active = False
        self.pods: dict[str, Json] = {}  # UID -> pod, as its watch has shown it
        self.attempts: dict[str, Attempt] = {}  # UID -> attempt, of the pods that are to be scheduled
        self.watch = SchedulerWatch(self)
        self.watch.start(None)

    def end(self) -> None:
        """End the process; another one takes its place."""
        self.stop()
        self.watch.stop()

    def start(self) -> None:
        """Schedule: this one holds the Lease."""
        self.active = True
        for uid in sorted(self.pods):
            self._enqueue(uid)

    def stop(self) -> None:
        """Schedule no more: the process ends, and a new one stands by."""
        self.active = False
        self.attempts.clear()

    # What its watch shows.

    def show(self, kind: str, pod: Json) -> None:
        """Take in a change of a pod."""
        uid, before = pod["metadata"]["uid"], self.pods.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            self.pods.pop(uid, None)
            self.attempts.pop(uid, None)
            if before is not None and before["spec"].get("nodeName"):
                self._room_may_be_free()
            return
        self.pods[uid] = pod
        if pod["spec"].get("nodeName"):
            attempt = self.attempts.get(uid)
            if attempt and (attempt.asleep or attempt.backing_off):
                del self.attempts[uid]
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                self._room_may_be_free()
        elif before is None or before["spec"].get("nodeName") or (self._sleeps(uid) and _has_changed(before, pod)):
            self._enqueue(uid)

    def _room_may_be_free(self) -> None:
        for uid in [uid for uid in self.attempts if self._sleeps(uid)]:
            self._enqueue(uid)

    def _sleeps(self, uid: str) -> bool:
        return uid in self.attempts and self.attempts[uid].asleep

    # The queue.

    def _enqueue(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if not self.active or pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            self.attempts.pop(uid, None)
            return
        before = self.attempts.get(uid)
        attempt = Attempt(uid, before.number if before else 0, told=before.told if before else "")
        self.attempts[uid] = attempt
        self.world.pend(FilterQuestion(self, attempt))

    def filter(self, attempt: Attempt, node_names: list[str]) -> None:
        """Ask where a pod can go, and go on from there.

        Nodes that the scheduler itself has left out come back after a while, and it tries the pod again then.
        """
        pod = self.pods[attempt.uid]
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            del self.attempts[attempt.uid]
            return
        self.world.offered[attempt.uid] = node_names
        try:
            found = self._ask(pod, node_names)
        except GpuledgerError as error:
            self.failed(attempt, "SchedulerError", str(error))
            return
        names = list(found.node_names)
        if names:
            self.world.note(f"    answer: {', '.join(names)}")
            self.world.pend(BindQuestion(self, attempt, names[0]))
        else:
            self.world.note("    answer: no node")
            attempt.asleep = True
            attempt.number += 1
            self._tell(attempt, "Unschedulable", "no node")
            if found.short_of_room and self.world.scenario.preemption == "native":
                self.world.pend(PreemptQuestion(self, attempt, pod, tuple(sorted(found.short_of_room))))
            wait_s = FLUSH_S if len(node_names) == len(self.world.node_names) else LATE_S
            self.world.environment.call_later(wait_s, self._again, attempt)

    def _ask(self, pod: Json, node_names: list[str]) -> FilterResult:
        """Ask for the node for which a pod is nominated, and for all if it does not go there."""
        nominated = nominated_node(pod)
        if nominated in node_names and len(node_names) > 1:
            found = self.slot.process.filter(pod, [nominated])
            if found.node_names:
                return found
        return self.slot.process.filter(pod, node_names)

    def bind(self, attempt: Attempt, node_name: str) -> None:
        """Ask to bind a pod, and wait for the answer for so long."""
        metadata = self.pods[attempt.uid]["metadata"] if attempt.uid in self.pods else None
        if metadata is None:
            del self.attempts[attempt.uid]
            return
        arguments = BindArguments(attempt.uid, metadata["namespace"], metadata["name"], node_name)
        process, starts = self.slot.process, self.world.api.starts

        def answered(error: str) -> None:
            if process.alive:
                if starts == self.world.api.starts:  # else it may have been so, and is undone
                    self.world.check_bound(arguments, error)
                self.world.pend(BindAnswer(self, attempt, arguments.name, error))

        try:
            process.bind(arguments, answered, lambda: self._waits_for(attempt))
        except GpuledgerError as error:
            self.failed(attempt, "SchedulerError", str(error))
            return
        self.world.environment.call_later(self.world.scenario.settings.extender_timeout_s, self._timed_out, attempt)

    def _waits_for(self, attempt: Attempt) -> bool:
        return self.active and self.attempts.get(attempt.uid) is attempt and not attempt.backing_off

    def _timed_out(self, attempt: Attempt) -> None:
        if self._waits_for(attempt):
            self.world.note(f"{self.name}: Bind of {attempt.uid}: no answer in time")
            self.failed(attempt, "SchedulerError", "timeout")

    def answered(self, attempt: Attempt, error: str) -> None:
        """Take in the answer to a Bind."""
        if error:
            self.failed(attempt, "SchedulerError", error)
        else:
            del self.attempts[attempt.uid]

    def failed(self, attempt: Attempt, reason: str, message: str) -> None:
        """Try again, after a while that grows."""
        self.world.note(f"    {self.name} failed: {message}")
        attempt.backing_off = True
        self._tell(attempt, reason, message)
        attempt.number += 1
        self.world.environment.call_later(back_off_s(attempt.number), self._again, attempt)

    def _again(self, attempt: Attempt) -> None:
        if self.attempts.get(attempt.uid) is attempt:
            self._enqueue(attempt.uid)

    def _tell(self, attempt: Attempt, reason: str, message: str) -> None:
        """Write into the pod's status why it waits, if it says something else, as far as the watch has shown.

        This changes its resourceVersion. What is on its way already is not written a second time.
        """
        pod, text = self.pods.get(attempt.uid), f"{reason}: {message}"
        conditions = pod["status"].get("conditions") or () if pod else ()
        says = [f"{found.get('reason')}: {found.get('message')}" for found in conditions if found["type"] == SCHEDULED]
        if attempt.told != text or (says and says != [text]):
            attempt.told = text
            self.world.pend(StatusPatch(self, attempt.uid, reason, message))


def back_off_s(number: int) -> float:
    """Return how long a pod waits after so many attempts before it is tried again."""
    return BACK_OFF_S[min(number, len(BACK_OFF_S)) - 1]


def _has_changed(before: Json, pod: Json) -> bool:
    """Return whether a pod's change is one that makes kube-scheduler try it again: not one of its status."""
    old, new = before["metadata"], pod["metadata"]
    return any(old.get(field) != new.get(field) for field in ("annotations", "labels"))


class SchedulerWatch(Watch):
    """The scheduler's watch of all pods. It breaks only when the API server ends.

    Then it goes on from the version that it has seen last. If that is one that the API server has yet to reach, nothing
    is shown until then; if it is too old, everything is listed again, and what is not in the list is gone.
    """

    __slots__ = ("_scheduler", "_seen")

    def __init__(self, scheduler: KubeScheduler) -> None:
        super().__init__(scheduler.world, scheduler.name, Kind.POD, everything)
        self._scheduler = scheduler
        self._seen = scheduler.world.api.version

    def ways(self) -> int:
        return 3

    def show(self, kind: str, found: Json) -> None:
        self._seen = max(self._seen, int(found["metadata"]["resourceVersion"]))
        self._scheduler.show(kind, found)

    def break_off(self) -> None:
        self.queue.clear()
        if self._seen >= self.world.api.oldest:
            self._after = self._seen
            return
        listed = self._listed()
        uids = {found["metadata"]["uid"] for _, found in listed}
        self.queue.extend(("DELETED", pod) for uid, pod in self._scheduler.pods.items() if uid not in uids)
        self.queue.extend(listed)


class FilterQuestion(Step):
    """A Filter that the scheduler is about to send: for all nodes, or for one that its own plugins have left.

    A pod that was woken has to wait for the end of its back-off, unless nothing else is to be done.
    """

    __slots__ = ()

    def what(self) -> str:
        return f"{self.scheduler.name}: Filter {self.attempt.uid}"

    def ways(self) -> int:
        return 2 + self._single_nodes() + self._may_back_off()

    def _single_nodes(self) -> int:
        nodes = len(self.world.node_names)
        return nodes if nodes > 1 else 0

    def _may_back_off(self) -> bool:
        return self.attempt.number > 0 and not self.attempt.rested

    def way(self, number: int) -> str:
        if number < 2:
            return ("", SOON)[number]
        if number == 2 + self._single_nodes():
            return f"backs off for {back_off_s(self.attempt.number):.0f} s"
        return f"for {self.world.node_names[number - 2]} only"

    def happen(self, way: int) -> None:
        if way == 1:
            self.world.put_off(self, SOON_S)
        elif way == 2 + self._single_nodes():
            self.attempt.rested = True
            self.world.put_off(self, back_off_s(self.attempt.number))
        elif way == 0:
            self.scheduler.filter(self.attempt, list(self.world.node_names))
        else:
            self.scheduler.filter(self.attempt, [self.world.node_names[way - 2]])


class BindQuestion(Step):
    """A Bind that the scheduler is about to send, if all that comes before has gone well."""

    __slots__ = ("node_name",)

    def __init__(self, scheduler: KubeScheduler, attempt: Attempt, node_name: str) -> None:
        super().__init__(scheduler, attempt)
        self.node_name = node_name

    def what(self) -> str:
        return f"{self.scheduler.name}: Bind {self.attempt.uid} to {self.node_name}"

    def ways(self) -> int:
        return 4

    def way(self, number: int) -> str:
        return ("", SOON, f"waits {VOLUMES_S:.0f} s for volumes", "fails in PreBind")[number]

    def happen(self, way: int) -> None:
        if way == 0:
            self.scheduler.bind(self.attempt, self.node_name)
        elif way == 3:
            self.scheduler.failed(self.attempt, "SchedulerError", "PreBind has failed")
        else:
            self.world.put_off(self, SOON_S if way == 1 else VOLUMES_S)


class BindAnswer(Step):
    """The answer to a Bind, on its way to the scheduler."""

    __slots__ = ("error", "pod_name")

    def __init__(self, scheduler: KubeScheduler, attempt: Attempt, pod_name: str, error: str) -> None:
        super().__init__(scheduler, attempt)
        self.pod_name = pod_name
        self.error = error

    def what(self) -> str:
        return f"{self.scheduler.name}: hears of Bind {self.attempt.uid}: {self.error or 'bound'}"

    def is_void(self) -> bool:
        return super().is_void() or self.attempt.backing_off

    def way(self, number: int) -> str:
        return ("", SOON, "is lost")[number]

    def happen(self, way: int) -> None:
        if way == 0:
            self.scheduler.answered(self.attempt, self.error)
        elif way == 1:
            self.world.put_off(self, SOON_S)


class StatusPatch(Item):
    """What the scheduler writes into a pod's status."""

    __slots__ = ("message", "name", "reason", "starts", "uid")

    def __init__(self, scheduler: KubeScheduler, uid: str, reason: str, message: str) -> None:
        super().__init__(scheduler.world)
        self.name = scheduler.name
        self.uid = uid
        self.reason = reason
        self.message = message
        self.starts = scheduler.world.api.starts

    def is_void(self) -> bool:
        return self.starts != self.world.api.starts

    def what(self) -> str:
        return f"{self.name}: writes status of {self.uid}: {self.reason}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None:
            condition = {"type": SCHEDULED, "status": "False", "reason": self.reason, "message": self.message}
            self.world.api.put_pod({**pod, "status": {**pod["status"], "conditions": [condition]}})
