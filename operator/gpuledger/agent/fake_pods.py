"""What a kubelet would report of a pod whose containers exist only on paper: a function of the pod and of the time.

Images, volumes, probes and grace periods play no part: a container runs as soon as its turn comes, is ready at once,
and is killed at once when its pod is deleted. fake_commands.py knows what some commands do. Any other runs on, or for
JOB_RUNTIME_S in a pod that is to end; that of an init container ends at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuledger.agent.fake_commands import AT_ONCE, ENDLESS, Run, run_of
from gpuledger.formats.kubernetes.condition import condition_of
from gpuledger.formats.kubernetes.pod import is_being_deleted, is_finished, started_at
from gpuledger.model.json_object import Json

JOB_RUNTIME_S = 30.0

KILLED_EXIT_CODE = 143
"""128 and the number of SIGTERM."""

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S, DOUBLINGS = 10.0, 300.0, 5
"""A container's second restart waits so long, each later one twice as long as the one before."""

ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
"""Phase of a pod that has ended -> why it is not ready."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of one pod."""

    started: datetime
    now: datetime

    @property
    def elapsed_s(self) -> float:
        """How long ago the pod was taken up."""
        return (self.now - self.started).total_seconds()

    def at(self, elapsed_s: float) -> str:
        """Return a moment of the pod's life, RFC 3339."""
        return _text(self.started + timedelta(seconds=elapsed_s))


def next_status(pod: Json, now: datetime) -> Json | None:
    """Return the status that a kubelet would write now, None where it would write nothing."""
    if is_finished(pod):
        return None
    status = _status(pod, Clock(datetime.fromisoformat(started_at(pod) or _text(now)), now))
    return None if _gist(status) == _gist(pod.get("status") or {}) else status


def _gist(status: Json) -> list[object]:
    """Return what a kubelet writes a new status for."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [(each["name"], each["restartCount"], *(each.get("state") or ())) for each in containers]
    return [bool(status.get("startTime")), status.get("phase"), states]


def _status(pod: Json, clock: Clock) -> Json:
    spec = pod["spec"]
    policy = spec.get("restartPolicy", "Always")
    init, begin_s = _init_containers(spec.get("initContainers") or (), policy, clock)
    main = _main_containers(spec["containers"], policy, begin_s, clock)
    initialized = begin_s <= clock.elapsed_s
    phase = _phase(init, main, initialized)
    if phase not in ENDED and is_being_deleted(pod):
        phase = "Failed"
    if phase in ENDED:
        init, main = ([_killed(each, clock) for each in statuses] for statuses in (init, main))
    unready = [each["name"] for each in (*init, *main) if not each["ready"]]
    return {
        "phase": phase,
        "startTime": clock.at(0),
        "initContainerStatuses": init,
        "containerStatuses": main,
        "conditions": _conditions(pod, phase, initialized, unready, clock),
    }


def _phase(init: Iterable[Json], main: Iterable[Json], initialized: bool) -> str:
    """Return the pod's phase. A container is `terminated` here if it is not run again."""
    if any(each["state"]["terminated"]["exitCode"] for each in init if "terminated" in each["state"]):
        return "Failed"
    if not initialized:
        return "Pending"
    ends = [each["state"].get("terminated") for each in main]
    if not all(ends):
        return "Running"
    return "Failed" if any(end["exitCode"] for end in ends) else "Succeeded"


# Containers.


def _init_containers(containers: Iterable[Json], policy: str, clock: Clock) -> tuple[list[Json], float]:
    """Return their statuses, and when the last of them lets the main containers begin, in seconds of the pod's life."""
    begin_s, statuses = 0.0, []
    for container in containers:
        if container.get("restartPolicy") == "Always":  # a sidecar: the next one begins beside it
            statuses.append(_container_status(container, _run(container, ENDLESS), begin_s, _always, clock))
        else:
            run = _run(container, AT_ONCE)
            again = _never if policy == "Never" else _after_failure
            status = _container_status(container, run, begin_s, again, clock)
            statuses.append({**status, "ready": "terminated" in status["state"] and not run.exit_code})
            begin_s += math.inf if run.exit_code else run.lasts_s
    return statuses, begin_s


def _main_containers(containers: Iterable[Json], policy: str, begin_s: float, clock: Clock) -> list[Json]:
    again = {"Never": _never, "OnFailure": _after_failure}.get(policy, _always)
    default = ENDLESS if again is _always else Run(JOB_RUNTIME_S)
    return [_container_status(each, _run(each, default), begin_s, again, clock) for each in containers]


def _run(container: Json, default: Run) -> Run:
    return run_of([*(container.get("command") or ()), *(container.get("args") or ())]) or default


def _always(_: int) -> bool:
    return True


def _never(_: int) -> bool:
    return False


def _after_failure(exit_code: int) -> bool:
    return exit_code != 0


def _container_status(container: Json, run: Run, begin_s: float, again: Callable[[int], bool], clock: Clock) -> Json:
    """Return what has become of a container; `again` tells by its exit code whether it is started again."""
    restarts, last = 0, Json()
    while (end_s := begin_s + run.lasts_s) <= clock.elapsed_s:
        end = _terminated(run.exit_code, clock.at(begin_s), clock.at(end_s))
        if not again(run.exit_code):
            return _shown(container, end, restarts, last)
        begin_s = end_s + _back_off_s(restarts)
        if begin_s > clock.elapsed_s:
            return _shown(container, {"waiting": {"reason": "CrashLoopBackOff"}}, restarts, end)
        restarts, last = restarts + 1, end
    if begin_s > clock.elapsed_s:
        return _shown(container, {"waiting": {"reason": "PodInitializing"}}, restarts, last)
    return _shown(container, {"running": {"startedAt": clock.at(begin_s)}}, restarts, last)


def _back_off_s(restarts: int) -> float:
    return min(FIRST_BACK_OFF_S * 2 ** min(restarts - 1, DOUBLINGS), LONGEST_BACK_OFF_S) if restarts else 0.0


def _shown(container: Json, state: Json, restarts: int, last: Json) -> Json:
    named = {"name": container["name"], "image": container["image"], "imageID": ""}
    runs = "running" in state
    return {**named, "state": state, "lastState": last, "restartCount": restarts, "ready": runs, "started": runs}


def _terminated(exit_code: int, begin: str, end: str) -> Json:
    reason = "Error" if exit_code else "Completed"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": begin, "finishedAt": end}}


def _killed(status: Json, clock: Clock) -> Json:
    """Return what becomes of a container once its pod has ended: if it runs, it is killed."""
    if "running" not in status["state"]:
        return status
    end = _terminated(KILLED_EXIT_CODE, status["state"]["running"]["startedAt"], _text(clock.now))
    return {**status, "state": end, "ready": False, "started": False}


# Conditions.


def _conditions(pod: Json, phase: str, initialized: bool, unready: Sequence[str], clock: Clock) -> list[Json]:
    """Return the conditions that a kubelet writes; those of others are not its business."""
    ready = phase == "Running" and not unready
    why = "" if ready else ENDED.get(phase, "ContainersNotReady")
    message = f"containers with unready status: [{' '.join(unready)}]" if why == "ContainersNotReady" else ""
    return [
        _condition(pod, "PodScheduled", True, clock),
        _condition(pod, "PodReadyToStartContainers", phase not in ENDED, clock),
        _condition(pod, "Initialized", initialized, clock, "" if initialized else "ContainersNotInitialized"),
        _condition(pod, "ContainersReady", ready, clock, why, message),
        _condition(pod, "Ready", ready, clock, why, message),
    ]


def _condition(pod: Json, kind: str, holds: bool, clock: Clock, reason: str = "", message: str = "") -> Json:
    before = condition_of(pod, kind) or {}
    same = before.get("status") == str(holds)
    since = before.get("lastTransitionTime") if same else _text(clock.now)
    told = {"type": kind, "status": str(holds), "reason": reason, "message": message}
    return {**told, "lastTransitionTime": since}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
