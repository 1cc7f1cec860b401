"""Kubernetes' own groups of pods, where they are turned on: the same plan and the same barrier, and no hot loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT, Cluster, pod
from control_plane import ControlPlane
from installation import NO_KUBELET, NOTHING_RUNS, REPOSITORY, Installation
from native_gangs import NativeGangs, native_gangs

Json = dict[str, Any]

EXAMPLE = REPOSITORY / "examples" / "asking" / "gang-kubernetes.yaml"
FILTERS = "gpuledger_filters_total"


@pytest.fixture(scope="module")
def native() -> NativeGangs:
    found = native_gangs()
    if found is None:
        pytest.skip("this Kubernetes has no groups of pods")
    return found


@pytest.fixture(scope="module", params=["pod-by-pod", "own-cycle"])
def running(native: NativeGangs, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ControlPlane.run(feature_gates=native.feature_gates, runtime_config=native.runtime_config) as plane:
        own = request.param == "own-cycle"
        flags = [f"--feature-gates={','.join([*native.feature_gates, 'SchedulerPopFromBackoffQ=false'])}"] if own else []
        installation = Installation(plane, {**NO_KUBELET, **NOTHING_RUNS, "gang_gather_s": 3.0}, scheduler_flags=flags)
        installation.start()
        cluster = Cluster(plane, installation)
        yield cluster
        cluster.close()


@pytest.fixture
def cluster(running: Cluster, native: NativeGangs) -> Iterator[Cluster]:
    yield running
    running.clear()
    running.request("DELETE", groups(native))


def groups(native: NativeGangs) -> str:
    return f"/apis/{native.api_version}/namespaces/default/podgroups"


def create_group(cluster: Cluster, native: NativeGangs, name: str, minimum: int, **spec: object) -> None:
    body = {
        "apiVersion": native.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec},
    }
    cluster.request("POST", groups(native), body)


def members(name: str, count: int, **spec: object) -> list[Json]:
    group = {"podGroupName": name}
    return [pod(f"{name}-{number}", {COUNT: 1}, schedulingGroup=group, **spec) for number in range(count)]


def names(pods: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in pods]


def bound(cluster: Cluster) -> set[str]:
    return {name for name, found in cluster.pods().items() if found["spec"].get("nodeName")}


def held(cluster: Cluster) -> int:
    return sum(map(len, cluster.holders().values()))


def test_a_gang_that_fits_is_bound_with_all_its_cards_entered_first(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(1, gpus=8)
    create_group(cluster, native, "four", 4)
    begin = cluster.plane.audit_offset()
    pods = members("four", 4)
    begin_s = time.monotonic()
    cluster.create(*pods)
    cluster.wait_bound(*names(pods))
    print("bound after", time.monotonic() - begin_s)
    writes = [event for event in cluster.plane.api_writes(begin)]
    print([(e.resource, e.subresource, e.name[-12:], e.code) for e in writes])
    cluster.check_consistent()


def test_a_gang_that_does_not_fit_keeps_nothing_and_does_not_spin(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(1, gpus=8)
    create_group(cluster, native, "nine", 9)
    pods = members("nine", 9)
    cluster.create(*pods)
    cluster.wait_refused("nine-0", "find cards at once")
    cluster.settle(1.0)
    assert (bound(cluster), held(cluster)) == (set(), 0)
    before, begin_s = cluster.metric(FILTERS), time.monotonic()
    time.sleep(20)
    each_s = (cluster.metric(FILTERS) - before) / (time.monotonic() - begin_s)
    print("filters per second", each_s)
    assert each_s < 9
    cluster.add_nodes(1, gpus=1)
    begin_s = time.monotonic()
    cluster.wait_bound(*names(pods), timeout_s=30)
    print("woken after", time.monotonic() - begin_s)


def test_a_large_gang_starts_within_ten_seconds_of_room(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(7, gpus=8)
    create_group(cluster, native, "large", 64)
    pods = members("large", 64)
    cluster.create(*pods)
    cluster.wait_refused("large-0", "find cards at once")
    time.sleep(20)
    begin = cluster.plane.audit_offset()
    begin_s = time.monotonic()
    cluster.add_nodes(1, gpus=8)
    cluster.wait_bound(*names(pods), timeout_s=100)
    print("64 woken after", time.monotonic() - begin_s)
    print([e.code for e in cluster.plane.api_writes(begin) if e.subresource == "binding" and e.code >= 300])


def test_the_example_starts(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(1, gpus=4)
    text = EXAMPLE.read_text().replace("scheduling.k8s.io/v1beta1", native.api_version)
    cluster.plane.kubectl("apply", "-f", "-", stdin=text)
    try:
        cluster.wait(lambda: len(bound(cluster)) == 4, "all pods of the example are bound")
    finally:
        cluster.request("DELETE", "/apis/batch/v1/namespaces/default/jobs", {"propagationPolicy": "Background"})
