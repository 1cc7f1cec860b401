"""A pod on a simulated node is shown as a kubelet would show it, at each moment of its life."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from fakes.objects import a_pod_object
from gpuledger.agent.simulated import JOB_RUNTIME_S, KILLED_EXIT_CODE, FakeKubelet, next_status
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import ApiError, Conflict, Invalid, NotFound, Replaced, Unreachable

Json = dict[str, Any]

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2029-12-31T23:59:59Z"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def a_container(name: str = "main", *command: str, **fields: Any) -> Json:
    return {"name": name, "image": "none", **({"command": list(command)} if command else {}), **fields}


def a_pod(*containers: Json, policy: str = "Always", init: tuple[Json, ...] = ()) -> Json:
    spec = {"nodeName": "node-1", "restartPolicy": policy, "initContainers": list(init), "containers": list(containers)}
    return {
        "metadata": {"name": "a", "namespace": "default", "uid": "1"},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [SCHEDULED]},
    }


def sidecar(*command: str) -> Json:
    return a_container("proxy", *command, restartPolicy="Always")


def at(pod: Json, elapsed_s: float) -> Json:
    """Return the pod as it is shown after a time: taken up, and looked at once more."""
    pod = {**pod, "status": {**pod["status"], **(next_status(pod, BEGIN) or {})}}
    return {**pod, "status": {**pod["status"], **(next_status(pod, BEGIN + timedelta(seconds=elapsed_s)) or {})}}


def deleted(pod: Json) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2030-01-01T00:01:00Z"}}


def phase(pod: Json) -> str:
    return str(pod["status"]["phase"])


def container(pod: Json, name: str = "main") -> Json:
    status = pod["status"]
    return next(c for c in (*status["initContainerStatuses"], *status["containerStatuses"]) if c["name"] == name)


def state(pod: Json, name: str = "main") -> str:
    """Return `running`, a reason, or how a container has ended."""
    ((kind, details),) = container(pod, name)["state"].items()
    if kind == "terminated":
        return f"{kind} {details['exitCode']}"
    return str(details.get("reason", kind))


def condition(pod: Json, kind: str) -> str:
    (status,) = (c["status"] for c in pod["status"]["conditions"] if c["type"] == kind)
    return str(status)


def ready(pod: Json) -> set[str]:
    assert condition(pod, "Ready") == condition(pod, "ContainersReady")
    return {condition(pod, "Ready")}


# Pods that run on.


def test_a_pod_of_a_deployment_is_ready_at_once_and_runs_on() -> None:
    pod = at(a_pod(a_container()), 3 * JOB_RUNTIME_S)
    assert (phase(pod), state(pod), ready(pod)) == ("Running", "running", {"True"})
    assert condition(pod, "Initialized") == "True"
    assert container(pod)["ready"]
    assert container(pod)["started"]


def test_nothing_is_written_as_long_as_nothing_changes() -> None:
    pod = at(a_pod(a_container(), init=(a_container("first"), sidecar())), 1)
    assert next_status(pod, BEGIN + timedelta(days=1)) is None


def test_a_pod_that_was_taken_up_is_told_even_if_its_containers_are_as_the_api_server_says() -> None:
    pod = a_pod(a_container())
    assert next_status(pod, BEGIN) is not None


def test_when_the_pod_was_bound_stays_as_kube_scheduler_wrote_it() -> None:
    assert SCHEDULED["lastTransitionTime"] in [
        c["lastTransitionTime"] for c in at(a_pod(a_container()), 1)["status"]["conditions"]
    ]


def test_a_command_that_ends_is_started_again_at_longer_and_longer_intervals() -> None:
    pod = a_pod(a_container("main", "sleep", "5"))
    shown = {
        s: (state(at(pod, s)), container(at(pod, s))["restartCount"], *ready(at(pod, s))) for s in (1, 6, 11, 21, 26)
    }
    assert shown == {
        1: ("running", 0, "True"),
        6: ("running", 1, "True"),
        11: ("CrashLoopBackOff", 1, "False"),
        21: ("running", 2, "True"),
        26: ("CrashLoopBackOff", 2, "False"),
    }
    assert {phase(at(pod, s)) for s in shown} == {"Running"}
    assert container(at(pod, 26))["lastState"]["terminated"]["finishedAt"] == "2030-01-01T00:00:25Z"
    assert container(at(pod, 30 * 86400))["restartCount"] > 8000  # every 305 s, as the longest interval is 300 s


# Pods that end.


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_pod_of_a_job_ends_when_its_command_would(policy: str) -> None:
    pod = a_pod(a_container("main", "sleep", "5"), policy=policy)
    assert phase(at(pod, 4)) == "Running"
    ended = at(pod, 5)
    assert (phase(ended), state(ended), ready(ended)) == ("Succeeded", "terminated 0", {"False"})
    assert container(ended)["state"]["terminated"]["finishedAt"] == "2030-01-01T00:00:05Z"


@pytest.mark.parametrize("command", [(), ("python", "train.py")])
def test_a_pod_of_a_job_with_any_other_command_ends_well_after_a_while(command: tuple[str, ...]) -> None:
    pod = a_pod(a_container("main", *command), policy="Never")
    assert [phase(at(pod, s)) for s in (JOB_RUNTIME_S - 1, JOB_RUNTIME_S)] == ["Running", "Succeeded"]


def test_arguments_without_a_command_are_taken_for_one() -> None:
    pod = a_pod(a_container("main", args=["sleep", "5"]), policy="Never")
    assert [phase(at(pod, s)) for s in (4, 5)] == ["Running", "Succeeded"]


def test_a_command_that_fails_fails_a_pod_that_is_not_run_again() -> None:
    pod = at(a_pod(a_container("main", "sh", "-c", "exit 3"), policy="Never"), 0)
    assert (phase(pod), state(pod)) == ("Failed", "terminated 3")


def test_a_command_that_fails_is_tried_again_in_its_pod_where_that_is_asked_for() -> None:
    pod = at(a_pod(a_container("main", "false"), policy="OnFailure"), 1)
    assert (phase(pod), state(pod), container(pod)["restartCount"]) == ("Running", "CrashLoopBackOff", 1)


def test_a_pod_ends_with_the_last_of_its_containers_and_fails_with_any() -> None:
    pod = a_pod(a_container("main", "false"), a_container("slow", "sleep", "9"), policy="Never")
    assert [phase(at(pod, s)) for s in (8, 9)] == ["Running", "Failed"]


def test_nothing_more_is_said_of_a_pod_that_has_ended() -> None:
    pod = at(a_pod(a_container("main", "true"), policy="Never"), 0)
    assert next_status(pod, BEGIN + timedelta(days=1)) is None
    assert next_status(deleted(pod), BEGIN + timedelta(days=1)) is None


# Init containers and sidecars.


def test_init_containers_have_ended_once_the_others_run() -> None:
    pod = at(a_pod(a_container(), init=(a_container("first"), a_container("second", "true"))), 0)
    assert (phase(pod), state(pod, "first"), state(pod, "second"), ready(pod)) == (
        "Running",
        "terminated 0",
        "terminated 0",
        {"True"},
    )


def test_containers_wait_until_init_containers_would_have_ended() -> None:
    pod = a_pod(a_container(), init=(a_container("first", "sleep", "2"), a_container("second", "sleep", "3")))
    early, late = at(pod, 3), at(pod, 5)
    assert (phase(early), condition(early, "Initialized"), ready(early)) == ("Pending", "False", {"False"})
    assert [state(early, name) for name in ("first", "second", "main")] == [
        "terminated 0",
        "running",
        "PodInitializing",
    ]
    assert (phase(late), condition(late, "Initialized"), ready(late)) == ("Running", "True", {"True"})


def test_a_sidecar_runs_and_is_ready_beside_what_comes_after_it() -> None:
    pod = a_pod(a_container(), init=(sidecar(), a_container("second", "sleep", "2")))
    assert [state(at(pod, 1), name) for name in ("proxy", "second")] == ["running", "running"]
    running = at(pod, 2)
    assert (phase(running), state(running, "proxy"), ready(running)) == ("Running", "running", {"True"})
    assert container(running, "proxy")["ready"]
    assert container(running, "proxy")["started"]


def test_a_job_with_a_sidecar_ends_with_its_main_container() -> None:
    pod = at(a_pod(a_container("main", "sleep", "2"), policy="Never", init=(sidecar(),)), 2)
    assert phase(pod) == "Succeeded"
    assert state(pod, "proxy").startswith("terminated")


@pytest.mark.parametrize(
    ("policy", "shown"), [("Never", ("Failed", "terminated 1")), ("Always", ("Pending", "CrashLoopBackOff"))]
)
def test_containers_never_run_behind_an_init_container_that_fails(policy: str, shown: tuple[str, str]) -> None:
    pod = at(a_pod(a_container(), policy=policy, init=(a_container("first", "false"),)), 5)
    assert (phase(pod), state(pod, "first")) == shown
    assert state(pod) == "PodInitializing"


# Pods that are deleted.


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
def test_a_pod_that_is_deleted_while_it_runs_has_failed(policy: str) -> None:
    """A Job counts it as such, and makes another one."""
    pod = at(deleted(at(a_pod(a_container(), policy=policy, init=(sidecar(),)), 1)), 2)
    assert (phase(pod), ready(pod)) == ("Failed", {"False"})
    for name in ("main", "proxy"):
        end = container(pod, name)["state"]["terminated"]
        assert (end["exitCode"], end["reason"]) == (KILLED_EXIT_CODE, "Error")


def test_a_pod_that_is_deleted_before_its_kubelet_saw_it_has_failed() -> None:
    status = next_status(deleted(a_pod(a_container(), policy="Never")), BEGIN)
    assert status
    assert status["phase"] == "Failed"


def test_a_pod_that_ended_before_it_was_deleted_has_ended_well() -> None:
    pod = at(a_pod(a_container("main", "sleep", "5"), policy="Never"), 1)
    status = next_status(deleted(pod), BEGIN + timedelta(seconds=6))
    assert status
    assert status["phase"] == "Succeeded"


def test_conditions_of_others_are_left_to_them() -> None:
    """They stay, as the API server merges conditions by type: a Job may ignore failures of evicted pods."""
    pod = at(a_pod(a_container(), policy="Never"), 1)
    pod["status"]["conditions"].append(DISRUPTED)
    status = next_status(deleted(pod), BEGIN + timedelta(seconds=2))
    assert status
    assert "DisruptionTarget" not in {each["type"] for each in status["conditions"]}


class OnePodRefused:
    """A client of an API server that takes no status of one pod, and that of all others."""

    def __init__(self, refused: str, error: ApiError) -> None:
        self._refused, self._error = refused, error
        self.shown: list[str] = []

    async def request(self, method: str, path: str, body: Json | None = None, **_: Any) -> Json:
        name = path.split("/pods/")[1].removesuffix("/status")
        if name == self._refused:
            raise self._error
        self.shown.append(name)
        return {}


@pytest.mark.parametrize("error", [Replaced("", 422), NotFound("", 404), Conflict("", 409), Invalid("", 422)])
async def test_a_pod_whose_status_is_refused_keeps_no_other_pod_from_being_played(error: ApiError) -> None:
    client = OnePodRefused("odd", error)
    kubelet = FakeKubelet(cast(KubeClient, client), {"node-1"})
    for name in ("odd", "other"):
        await kubelet.play(a_pod_object(name, node_name="node-1"))
    assert client.shown == ["other"]


async def test_the_fake_kubelet_says_so_when_the_api_server_does_not_answer() -> None:
    kubelet = FakeKubelet(cast(KubeClient, OnePodRefused("odd", Unreachable(""))), {"node-1"})
    with pytest.raises(Unreachable):
        await kubelet.play(a_pod_object("odd", node_name="node-1"))
