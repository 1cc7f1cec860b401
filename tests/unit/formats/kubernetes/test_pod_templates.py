"""Pod templates are found in whatever makes pods, with how many pods are made of each."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.kubernetes.templates import (
    MAX_TEMPLATES,
    MOST_PODS,
    Elsewhere,
    pod_templates,
    resources_elsewhere,
)
from gpuledger.model.errors import BadInput

Json = dict[str, Any]


def pods(name: str = "c") -> Json:
    return {"metadata": {"labels": {"of": name}}, "spec": {"containers": [{"name": name}]}}


WORKLOADS: dict[str, tuple[Json, list[tuple[str, int]]]] = {
    "Deployment": ({"replicas": 3, "template": pods()}, [("spec.template", 3)]),
    "DaemonSet": ({"template": pods()}, [("spec.template", 1)]),
    "ReplicationController": ({"replicas": 0, "template": pods()}, [("spec.template", 0)]),
    "Job": ({"parallelism": 4, "completions": 8, "template": pods()}, [("spec.template", 4)]),
    "CronJob": (
        {"jobTemplate": {"spec": {"parallelism": 2, "template": pods()}}},
        [("spec.jobTemplate.spec.template", 2)],
    ),
    "JobSet": (
        {
            "replicatedJobs": [
                {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": pods()}}}
            ]
        },
        [("spec.replicatedJobs[0].template.spec.template", 6)],
    ),
    "LeaderWorkerSet": (
        {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": pods(), "workerTemplate": pods()}},
        [("spec.leaderWorkerTemplate.leaderTemplate", 2), ("spec.leaderWorkerTemplate.workerTemplate", 6)],
    ),
    "LeaderWorkerSet without a leader's template": (
        {"leaderWorkerTemplate": {"size": 4, "workerTemplate": pods()}},
        [("spec.leaderWorkerTemplate.workerTemplate", 4)],
    ),
    "Volcano's Job": (
        {"tasks": [{"name": "master", "replicas": 1, "template": pods()}, {"replicas": 2, "template": pods()}]},
        [("spec.tasks[0].template", 1), ("spec.tasks[1].template", 2)],
    ),
    "PyTorchJob": (
        {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pods()}, "Worker": {"template": pods()}}},
        [("spec.pytorchReplicaSpecs.Master.template", 1), ("spec.pytorchReplicaSpecs.Worker.template", 1)],
    ),
    "MPIJob": (
        {"slotsPerWorker": 8, "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": pods()}}},
        [("spec.mpiReplicaSpecs.Worker.template", 2)],
    ),
    "RayCluster": (
        {
            "headGroupSpec": {"template": pods()},
            "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 4, "template": pods()}],
        },
        [("spec.headGroupSpec.template", 1), ("spec.workerGroupSpecs[0].template", 8)],
    ),
    "RayService": (
        {"rayClusterConfig": {"headGroupSpec": {"template": pods()}}},
        [("spec.rayClusterConfig.headGroupSpec.template", 1)],
    ),
    "a kind of one's own": ({"deep": {"er": [{"podSpec": {"containers": []}}]}}, [("spec.deep.er[0].podSpec", 1)]),
    "Service": ({"ports": [{"port": 80}], "selector": {"app": "x"}}, []),
    "PersistentVolumeClaim": ({"resources": {"requests": {"storage": "1Gi"}}}, []),
    "a schema": ({"versions": [{"properties": {"containers": {"type": "array"}}}]}, []),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_templates_are_found_with_their_copies(kind: str) -> None:
    spec, expected = WORKLOADS[kind]
    found = pod_templates({"kind": kind, "metadata": {"name": "x"}, "spec": spec})
    assert [(each.path, each.copies) for each in found] == expected


def test_a_template_keeps_its_metadata() -> None:
    (found,) = pod_templates({"kind": "Job", "spec": {"template": pods("train")}})
    assert found.pod == pods("train")


def test_a_pod_template_outside_a_spec_is_found() -> None:
    assert [each.path for each in pod_templates({"kind": "PodTemplate", "template": pods()})] == ["template"]


@pytest.mark.parametrize("number", ["many", -1, 1.5, True, MOST_PODS + 1, 10**30])
def test_a_bad_number_of_copies_is_refused(number: object) -> None:
    with pytest.raises(BadInput, match=r"spec\.replicas: .* is no number from 0 to"):
        pod_templates({"kind": "Deployment", "spec": {"replicas": number, "template": pods()}})


def test_numbers_that_multiply_beyond_the_bound_are_refused() -> None:
    spec = {"replicatedJobs": [{"replicas": MOST_PODS, "template": {"spec": {"parallelism": 2, "template": pods()}}}]}
    with pytest.raises(BadInput, match=f"{2 * MOST_PODS} pods are more than {MOST_PODS}"):
        pod_templates({"kind": "JobSet", "spec": spec})


def test_a_bad_number_where_no_template_is_does_not_matter() -> None:
    assert pod_templates({"kind": "Autoscaler", "spec": {"replicas": "auto"}}) == []


def test_the_search_is_bounded() -> None:
    assert len(pod_templates({"kind": "X", "spec": {"all": [pods()] * 10_000}})) == MAX_TEMPLATES
    deep: Json = pods()
    for _ in range(5_000):
        deep = {"in": deep}
    assert pod_templates({"kind": "X", "spec": deep}) == []
    assert resources_elsewhere({"kind": "X", "spec": deep}, {"of"}) == []
    assert pod_templates({"kind": "X", "spec": {"wide": [0] * 1_000_000}}) == []


def test_resources_outside_templates_are_named() -> None:
    service = {"predictor": {"model": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}}
    found = resources_elsewhere({"kind": "InferenceService", "spec": service}, {"nvidia.com/gpu"})
    assert found == [Elsewhere("spec.predictor.model.resources.limits", {"nvidia.com/gpu": 1})]
    assert resources_elsewhere({"kind": "Job", "spec": {"template": pods()}}, {"name"}) == []


def test_all_places_are_named_and_those_where_a_resource_is_a_value() -> None:
    pools = [{"resource": "nvidia.com/gpu", "count": 2}, {"limits": {"nvidia.com/gpu": "4", "cpu": 1}}]
    found = resources_elsewhere({"kind": "X", "spec": {"pools": pools}}, {"nvidia.com/gpu"})
    assert sorted(found, key=lambda place: place.path) == [
        Elsewhere("spec.pools[0].resource", {}),
        Elsewhere("spec.pools[1].limits", {"nvidia.com/gpu": "4"}),
    ]


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_json_is_searched(value: object) -> None:
    document = {"kind": "X", "spec": value}
    with suppress(BadInput):
        pod_templates(document)
    resources_elsewhere(document, {"a"})
