"""To whom a pod's shares are charged: what its metadata says, cut to what a record can hold."""

from typing import Any

import pytest

from fakes.objects import a_pod_object
from gpuledger.formats.kubernetes.pod import CHARGED_LENGTH, pod_identity

Json = dict[str, Any]


def charge(labels: Json | None = None, owners: list[Json] | None = None, priority_class: str = "") -> tuple[str, ...]:
    pod = a_pod_object("a")
    pod["metadata"] |= {"labels": labels or {}, "ownerReferences": owners or []}
    pod["spec"]["priorityClassName"] = priority_class
    found = pod_identity(pod).charge
    return found.owner, found.queue, found.priority_class


def owner(kind: str, name: str, controller: bool = True) -> Json:
    return {"kind": kind, "name": name, "controller": controller}


def test_a_pod_by_itself_has_no_owner() -> None:
    assert charge() == ("", "", "")


@pytest.mark.parametrize(
    ("labels", "owners", "expected"),
    [
        ({}, [owner("Job", "train")], "Job/train"),
        ({}, [owner("Node", "n", controller=False), owner("StatefulSet", "db")], "StatefulSet/db"),
        ({"pod-template-hash": "5d4f"}, [owner("ReplicaSet", "chat-5d4f")], "Deployment/chat"),
        ({"pod-template-hash": "5d4f"}, [owner("ReplicaSet", "other")], "ReplicaSet/other"),
        ({}, [owner("ReplicaSet", "chat-5d4f")], "ReplicaSet/chat-5d4f"),
        ({}, [owner("Job", "j" * 253)], f"Job/{'j' * 253}"[:CHARGED_LENGTH]),
        ({}, [owner("Pod", "x", controller=False)] * 10_000 + [owner("Job", "late")], ""),
    ],
)
def test_the_owner_is_what_made_the_pod(labels: Json, owners: list[Json], expected: str) -> None:
    assert charge(labels, owners)[0] == expected


def test_the_queue_is_kueues_and_the_cluster_queue_goes_first() -> None:
    local, cluster = {"kueue.x-k8s.io/local-queue-name": "mine"}, {"kueue.x-k8s.io/cluster-queue-name": "prod"}
    assert charge(local)[1] == "mine"
    assert charge(local | cluster)[1] == "prod"


def test_the_priority_class_is_told() -> None:
    assert charge(priority_class="high")[2] == "high"


def test_who_is_charged_is_no_part_of_a_pods_identity() -> None:
    one, other = a_pod_object("a"), a_pod_object("a")
    other["metadata"]["ownerReferences"] = [owner("Job", "train")]
    assert pod_identity(one) == pod_identity(other)
