"""Pods for which kube-scheduler would allow the same nodes are told from others by what its filters look at."""

from typing import Any

import pytest

from fakes.objects import a_pod_object
from gpuledger.formats.kubernetes.constraints import MOST_BYTES, demands_on_nodes

Json = dict[str, Any]

PORT = {"containerPort": 80, "hostPort": 80}
TOLERATION = {"key": "gpu", "operator": "Exists"}
AFFINITY: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}


def with_spec(container: Json | None = None, **spec: object) -> Json:
    pod = a_pod_object()
    pod["spec"]["containers"][0] |= container or {}
    return {**pod, "spec": {**pod["spec"], **spec}}


@pytest.mark.parametrize(
    "other",
    [
        a_pod_object("other", priority=7),
        with_spec({"env": [{"name": "A", "value": "b"}], "image": "other"}),
        with_spec(tolerations=[], volumes=[{"name": "kube-api-access-x1", "projected": {"sources": []}}]),
        {**a_pod_object(), "status": {"phase": "Pending", "nominatedNodeName": "node-a"}},
    ],
)
def test_what_no_filter_looks_at_makes_no_difference(other: Json) -> None:
    assert demands_on_nodes(other) == demands_on_nodes(a_pod_object())


@pytest.mark.parametrize(
    "other",
    [
        a_pod_object(limits={"cpu": "2"}),
        a_pod_object(scheduler_name="other"),
        with_spec({"ports": [PORT]}),
        with_spec(nodeSelector={"zone": "a"}),
        with_spec(affinity=AFFINITY),
        with_spec(tolerations=[TOLERATION]),
        with_spec(overhead={"cpu": "1"}),
        with_spec(resources={"requests": {"cpu": "3"}}),
        with_spec(hostNetwork=True),
        with_spec(initContainers=a_pod_object()["spec"]["containers"]),
        with_spec({"restartPolicy": "Always"}),
    ],
)
def test_whatever_a_filter_looks_at_makes_a_difference(other: Json) -> None:
    assert demands_on_nodes(other) not in (None, demands_on_nodes(a_pod_object()))


@pytest.mark.parametrize(
    "other",
    [
        with_spec(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        with_spec(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        with_spec(topologySpreadConstraints=[{"maxSkew": 1}]),
        with_spec(resourceClaims=[{"name": "card"}]),
        with_spec(schedulingGates=[{"name": "later"}]),
        with_spec(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
        with_spec(volumes=[{"name": "data", "csi": {"driver": "example.com"}}]),
        with_spec(nodeSelector={"zone": "a" * MOST_BYTES}),
    ],
)
def test_nothing_is_said_of_a_pod_whose_nodes_depend_on_more_or_take_long_to_compare(other: Json) -> None:
    assert demands_on_nodes(other) is None
