"""Which pods are of which workload or queue, and for how many of them Kueue's rules say who takes their cards."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.objects import a_pod_object
from fakes.queue_objects import a_pod_set
from fakes.queue_scene import WHOLE, QueueScene
from fakes.queue_server import QueueServer
from gpuledger.model.gang import WorkloadName
from gpuledger.workflows.queues.workloads import WorkloadPods

JOB = WorkloadName("default", "job")


def of(workload: str, name: str = "pod", pod_set: str = "main", **more: Any) -> dict[str, Any]:
    pod = a_pod_object(name, **more)
    pod["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": workload}
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/podset": pod_set}
    return pod


def bound(pods: WorkloadPods, pod: dict[str, Any]) -> None:
    pods.observe_bound(pod, bound_before=False)


def test_a_pod_is_known_from_its_creation_to_its_end() -> None:
    pods = WorkloadPods()
    pods.observe_pending(of("job"))
    assert pods.of("uid-pod") == (JOB, "main")
    assert pods.is_pending("uid-pod")
    bound(pods, of("job", node_name="node-a"))
    pods.forget_pending("uid-pod")  # the watch of pods without a node, later
    assert pods.pods(JOB) == {"uid-pod": "main"}
    assert not pods.is_pending("uid-pod")
    bound(pods, of("job", node_name="node-a", phase="Succeeded"))
    assert pods.of("uid-pod") is None
    assert pods.pods(JOB) == {}
    assert (pods.known_bound(), pods.known_pending()) == (set(), set())


def test_a_pod_is_known_in_whichever_order_the_watches_show_that_it_is_bound() -> None:
    pods = WorkloadPods()
    pods.observe_pending(of("job"))
    pods.forget_pending("uid-pod")
    assert pods.of("uid-pod") is None
    bound(pods, of("job", node_name="node-a"))
    assert pods.pods(JOB) == {"uid-pod": "main"}
    pods.forget_bound("uid-pod", None)
    assert pods.pods(JOB) == {}


def test_a_pod_that_says_something_else_by_now_is_of_that_workload_alone() -> None:
    pods = WorkloadPods()
    pods.observe_pending(of("job"))
    pods.observe_pending(of("another", pod_set="workers"))
    assert pods.pods(JOB) == {}
    assert pods.pods(WorkloadName("default", "another")) == {"uid-pod": "workers"}
    pods.observe_pending(a_pod_object("pod"))
    assert pods.of("uid-pod") is None


def test_pods_of_no_workload_are_not_kept() -> None:
    pods = WorkloadPods()
    pods.observe_pending(a_pod_object("one"))
    bound(pods, a_pod_object("two", node_name="node-a"))
    pods.forget_bound("uid-two", None)
    pods.forget_pending("uid-unknown")
    assert (pods.known_bound(), pods.known_pending()) == (set(), set())


def leaves(scene: QueueScene, *names: str) -> list[bool]:
    return [scene.queues.check.leaves_with_workload(f"uid-{name}") for name in names]


async def test_pods_that_users_add_to_a_workload_are_not_protected_by_it(scene: QueueScene) -> None:
    await scene.run("job", WHOLE, pods=2)
    scene.pod("surplus", "job", WHOLE)
    scene.pod("other-set", "job", WHOLE, pod_set="workers")
    scene.pod("orphan", "unknown", WHOLE)
    assert leaves(scene, "job-0", "job-1") == [True, True]
    assert leaves(scene, "surplus", "other-set", "orphan", "no-such-pod") == [False] * 4


async def test_each_set_of_pods_counts_by_itself(scene: QueueScene) -> None:
    scene.submit("job", pod_sets=[a_pod_set("leader", 1, WHOLE), a_pod_set("workers", 2, WHOLE)])
    await scene.work()
    await scene.admit("job")
    for name, pod_set in (("a", "leader"), ("b", "leader"), ("c", "workers"), ("d", "workers"), ("e", "workers")):
        scene.pod(name, "job", WHOLE, pod_set=pod_set)
    assert leaves(scene, *"abcde") == [True, False, True, True, False]


@pytest.mark.parametrize("how", ["not admitted yet", "evicted", "deleted"])
async def test_pods_of_a_workload_that_is_not_admitted_are_pods_as_others(
    api: QueueServer, scene: QueueScene, how: str
) -> None:
    scene.submit("job", WHOLE)
    await scene.work()
    scene.pod("pod", "job", WHOLE)
    if how != "not admitted yet":
        await scene.admit("job")
        assert leaves(scene, "pod") == [True]
    if how == "evicted":
        api.evict_workload("job")
    if how == "deleted":
        api.delete_workload("job")
    scene.parts.watch()
    assert leaves(scene, "pod") == [False]


# Which pods without a node are in which queue: told as long as they wait.


def a_queued_pod(uid: str, labels: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": uid, "namespace": "lab", "labels": labels}, "spec": {}, "status": {}}


QUEUED = a_queued_pod("a", {"kueue.x-k8s.io/queue-name": "team"})


@pytest.fixture
def pods() -> WorkloadPods:
    pods = WorkloadPods()
    pods.observe_pending(QUEUED)
    pods.observe_pending(a_queued_pod("b", {}))
    return pods


def test_a_pod_that_waits_is_in_the_queue_that_it_names(pods: WorkloadPods) -> None:
    assert (pods.queue_of("a"), pods.queue_of("b")) == ("team", "")
    assert pods.known_pending() == {"a"}, "what is known of it has to go when it is not in a full list"


def test_nothing_is_kept_of_a_pod_that_is_bound_or_gone(pods: WorkloadPods) -> None:
    pods.observe_bound(QUEUED, bound_before=False)
    assert (pods.queue_of("a"), pods.known_pending()) == ("", set())
    pods.observe_pending(QUEUED)
    pods.forget_pending("a")
    assert (pods.queue_of("a"), pods.known_pending()) == ("", set())
