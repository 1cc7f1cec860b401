"""Which pods without a node are in which queue: told as long as they wait."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.workflows.queues.workload_pods import WorkloadPods

Json = dict[str, Any]


def a_pod(uid: str, labels: Json) -> Json:
    return {"metadata": {"uid": uid, "name": uid, "namespace": "lab", "labels": labels}, "spec": {}, "status": {}}


QUEUED = a_pod("a", {"kueue.x-k8s.io/queue-name": "team"})


@pytest.fixture
def pods() -> WorkloadPods:
    pods = WorkloadPods()
    pods.observe_pending(QUEUED)
    pods.observe_pending(a_pod("b", {}))
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
