"""Gangs in the words of Coscheduling, Koordinator and Volcano, on the real API server with their kinds of PodGroups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

from cluster.cluster import COUNT, Cluster, pod
from cluster.gangs import bound, explained, gang_cluster, held, names
from control_plane import ControlPlane
from installation import REPOSITORY

Json = dict[str, Any]

EXAMPLES = REPOSITORY / "examples" / "asking"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Kind = tuple[str, str]
COSCHEDULING: Kind = ("scheduling.x-k8s.io", "v1alpha1")
KOORDINATOR: Kind = ("scheduling.sigs.k8s.io", "v1alpha1")
VOLCANO: Kind = ("scheduling.volcano.sh", "v1beta1")
KINDS = (COSCHEDULING, KOORDINATOR, VOLCANO)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    own = ControlPlane.run()  # with their definitions: an API server is slow to give those up
    with gang_cluster(own) as cluster:
        for kind in KINDS:
            install(cluster, kind)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clear()
    for kind in KINDS:
        running.request("DELETE", groups(kind))


def install(cluster: Cluster, kind: Kind) -> None:
    """Create a kind with the names of the real one, and a schema that takes anything."""
    group, version = kind
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            # Names under k8s.io want a reason why nobody of Kubernetes has approved of them.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": anything}],
        },
    }
    cluster.request("POST", DEFINITIONS, definition)
    cluster.plane.wait_established(f"podgroups.{group}")


def groups(kind: Kind) -> str:
    return "/apis/{}/{}/namespaces/default/podgroups".format(*kind)


def create_group(cluster: Cluster, kind: Kind, name: str, minimum: object) -> None:
    body = {
        "apiVersion": "/".join(kind),
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": minimum},
    }
    cluster.request("POST", groups(kind), body)


def members(kind: Kind, name: str, count: int) -> list[Json]:
    """Return pods that name a group as that system has it, with a card each."""
    found = [pod(f"{name}-{number}", {COUNT: 1}) for number in range(count)]
    for each in found:
        if kind == VOLCANO:
            each["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = name
        else:
            label = "pod-group.scheduling.sigs.k8s.io" if kind == KOORDINATOR else "scheduling.x-k8s.io/pod-group"
            each["metadata"]["labels"] = {label: name}
    return found


@pytest.mark.promise("gangs")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(COSCHEDULING, id="coscheduling", marks=pytest.mark.long),
        pytest.param(KOORDINATOR, id="koordinator", marks=pytest.mark.long),
        pytest.param(VOLCANO, id="volcano"),
    ],
)
def test_a_group_that_fits_starts_and_one_that_does_not_keeps_nothing(cluster: Cluster, kind: Kind) -> None:
    cluster.add_nodes(2, gpus=4)
    create_group(cluster, kind, "large", 5)
    create_group(cluster, kind, "small", 4)
    large, small = members(kind, "large", 5), members(kind, "small", 4)
    cluster.create(*large[:4], *small)
    cluster.wait_bound(*names(small))
    cluster.create(*large[4:])
    cluster.wait_refused("large-4", "fewer than 5 members of the pod's gang find cards at once")
    assert bound(cluster) == {*names(small)}
    cluster.delete(*names(small))
    cluster.wait_bound(*names(large))
    cluster.wait(lambda: held(cluster) == 5, "what the others held is free")
    cluster.check_consistent()


def test_volcanos_controller_is_told_that_it_may_make_pods_and_when_all_run(cluster: Cluster) -> None:
    """It makes the pods of a Job when its PodGroup is Inqueue."""

    def said(name: str) -> Json:
        return dict(cluster.request("GET", f"{groups(VOLCANO)}/{name}").get("status") or {})

    cluster.add_nodes(1, gpus=3)
    with cluster.other_settings(volcano_pod_group_status=True):
        create_group(cluster, VOLCANO, "job", 3)
        cluster.wait(lambda: said("job").get("phase") == "Inqueue", "pods may be made")
        pods = members(VOLCANO, "job", 3)
        cluster.create(*pods)
        cluster.wait_bound(*names(pods))
        cluster.wait(lambda: said("job") == {"phase": "Running", "running": 3, "succeeded": 0}, "all run")
        cluster.delete("job-0")
        cluster.wait(lambda: said("job") == {"phase": "Inqueue", "running": 2, "succeeded": 0}, "one is missing")


def test_two_labels_of_koordinators_need_no_group(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=3)
    pods = [pod(f"light-{number}", {COUNT: 1}) for number in range(3)]
    for each in pods:
        prefix = "pod-group.scheduling.sigs.k8s.io"
        each["metadata"]["labels"] = {f"{prefix}/name": "light", f"{prefix}/min-available": "3"}
    cluster.create(*pods[:2])
    cluster.wait_refused("light-0", "fewer than 3 members of the pod's gang have been created")
    cluster.create(*pods[2:])
    cluster.wait_bound(*names(pods))


def test_a_launcher_without_gpus_counts(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    create_group(cluster, VOLCANO, "mpi", 3)
    pods = members(VOLCANO, "mpi", 3)
    pods[0]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    cluster.create(*pods[1:])
    cluster.wait_refused("mpi-1", "fewer than 3 members of the pod's gang have been created")
    cluster.create(pods[0])
    cluster.wait_bound(*names(pods))
    assert held(cluster) == 2


@pytest.mark.parametrize(("file", "name"), [("gang-coscheduling", "coscheduled"), ("gang-volcano", "volcanic")])
def test_the_examples_start_with_all_of_their_pods(cluster: Cluster, file: str, name: str) -> None:
    cluster.add_nodes(1, gpus=4)
    example = str(EXAMPLES / f"{file}.yaml")
    cluster.plane.kubectl("apply", "-f", example)
    try:
        cluster.wait(lambda: len(bound(cluster)) == 4, "all pods of the example are bound")
        assert all(each.startswith(name) for each in bound(cluster))
    finally:
        cluster.plane.kubectl("delete", "-f", example, "--cascade=foreground", "--wait=false")
        cluster.request("DELETE", "/apis/batch/v1/namespaces/default/jobs", {"propagationPolicy": "Background"})


def test_pods_whose_group_comes_late_wait_for_it_and_start_when_it_comes(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    pods = members(COSCHEDULING, "late", 4)
    cluster.create(*pods)
    cluster.wait_refused("late-0", "PodGroup default/late of scheduling.x-k8s.io does not exist")
    create_group(cluster, COSCHEDULING, "late", 4)
    begin_s = time.monotonic()
    cluster.wait_bound(*names(pods))
    assert time.monotonic() - begin_s < 12  # kube-scheduler's own back-off is up to ten seconds of that
    cluster.check_consistent()


def test_a_minimum_that_is_changed_counts_at_once(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    create_group(cluster, VOLCANO, "shrinks", 6)
    pods = members(VOLCANO, "shrinks", 6)
    cluster.create(*pods)
    cluster.wait_refused("shrinks-0", "fewer than 6 members")
    cluster.patch(f"{groups(VOLCANO)}/shrinks", {"spec": {"minMember": 4}})
    cluster.wait(lambda: len(bound(cluster)) == 4, "as many are bound as are needed now")
    cluster.check_consistent()


def test_a_minimum_that_is_nonsense_is_told_and_stops_nobody_else(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    create_group(cluster, COSCHEDULING, "odd", {"many": "x" * 10_000})
    create_group(cluster, COSCHEDULING, "even", 2)
    pods = members(COSCHEDULING, "even", 2)
    cluster.create(*members(COSCHEDULING, "odd", 1), *pods)
    cluster.wait_bound(*names(pods))
    cluster.wait_refused("odd-0", "PodGroup default/odd: spec.minMember")
    assert cluster.metric('gpuledger_bad_input_total{kind="podgroup"}') >= 1


def test_a_kind_that_is_deleted_and_installed_again_is_followed_again(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    create_group(cluster, COSCHEDULING, "before", 2)
    before = members(COSCHEDULING, "before", 2)
    cluster.create(*before)
    cluster.wait_bound(*names(before))
    cluster.request("DELETE", f"{DEFINITIONS}/podgroups.scheduling.x-k8s.io")
    after = members(COSCHEDULING, "after", 2)
    cluster.create(*after)
    # Not by the pods' condition: it is written once, and the API server may end the watch later than that.
    cluster.wait(lambda: "no such kind" in said(cluster, "after"), "it is known that the kind is gone")
    install(cluster, COSCHEDULING)
    create_group(cluster, COSCHEDULING, "after", 2)
    cluster.wait_bound(*names(after))


def said(cluster: Cluster, gang: str) -> str:
    """Return what the operator says of a gang, nothing as long as it has seen none of its pods."""
    try:
        return str(explained(cluster, gang))
    except HTTPError:
        return ""


def test_an_operator_that_is_killed_knows_the_groups_again(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    create_group(cluster, VOLCANO, "whole", 3)
    pods = members(VOLCANO, "whole", 3)
    cluster.create(*pods[:2])
    cluster.wait_refused("whole-0", "fewer than 3 members")
    cluster.installation.restart_operator()
    cluster.settle(1.0)
    assert bound(cluster) == set()
    cluster.create(*pods[2:])
    cluster.wait_bound(*names(pods))
