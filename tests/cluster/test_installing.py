"""Installed, applied again, uninstalled, installed anew: what happens to pods, their annotations and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from cluster.cluster import COUNT, DEVICES, MEMORY, NODES, Cluster, RequestFailed, pod
from cluster.dry_runs import as_user, bare, create
from cluster.kubernetes import FILLS_IN, needs_filling_in
from cluster.shared import cluster_on
from cluster.test_audit import run_audit
from control_plane import ControlPlane
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from installation import MANIFESTS, NAMESPACE, Installation

KINDS_OF_POLICIES = ("validating", *(["mutating"] if FILLS_IN else []))
SHARE = {COUNT: 1, MEMORY: 8000}
DELETE_TIMEOUT_S = 240.0
POLICIES = ",".join(f"{kind}admissionpolicy{part}" for kind in KINDS_OF_POLICIES for part in ("", "binding"))
KINDS = f"crd,namespace,clusterrole,clusterrolebinding,deviceclass,{POLICIES}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of its own that may be taken apart, with a pod on a card."""
    with ControlPlane.run() as plane:  # its own: it is uninstalled
        Installation(plane).install(whole=True)
        yield from _with_a_pod(plane)


def _with_a_pod(plane: ControlPlane) -> Iterator[Cluster]:
    with cluster_on(nullcontext(plane), {"adopt_pods": True}) as cluster:
        cluster.add_nodes(1, gpus=2)
        cluster.create(pod("stays", SHARE))
        cluster.wait_bound("stays")
        cluster.settle()
        yield cluster


def objects(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Return kind and name of each of our objects -> how often its content has changed."""
    found = json.loads(cluster.plane.kubectl("get", KINDS, "-l", "app.kubernetes.io/part-of=gpuledger", "-o", "json"))
    return {(item["kind"], item["metadata"]["name"]): item["metadata"].get("generation", 0) for item in found["items"]}


@needs_filling_in
@pytest.mark.promise("installing")
def test_manifests_that_are_applied_again_change_neither_objects_nor_shares(cluster: Cluster) -> None:
    before, held, told = objects(cluster), cluster.holders(), cluster.pod("stays")
    assert len(before) > 8
    cluster.plane.kubectl("apply", "-k", str(MANIFESTS))
    assert objects(cluster) == before
    assert cluster.holders() == held
    assert cluster.pod("stays") == told


@needs_filling_in
def test_pods_of_a_namespace_come_by_its_label_and_nobody_writes_what_a_pod_got(cluster: Cluster) -> None:
    """With the manifests as they stand."""
    cluster.plane.kubectl("create", "namespace", "labelled")
    cluster.plane.kubectl("label", "namespace", "labelled", "gpuledger.dev/admission=true")
    user = as_user(cluster.plane, "somebody")
    asking = bare({MEMORY: 4000})

    def scheduler_in(namespace: str) -> str:
        return str(create(user, asking, namespace)["spec"]["schedulerName"])

    cluster.wait(lambda: scheduler_in("labelled") == "gpuledger", "the policies are in force")
    assert scheduler_in("default") == "default-scheduler"
    forged = {**asking, "metadata": {**asking["metadata"], "annotations": {DEVICES: "{}"}}}
    for namespace in ("labelled", "default"):
        with pytest.raises(RequestFailed, match="gpuledger-devices"):
            create(user, forged, namespace)
    user.close()


def test_pods_keep_their_cards_while_it_is_uninstalled_and_the_ledger_is_rebuilt_from_them(cluster: Cluster) -> None:
    """The operator still runs while its objects are deleted, as it may in a cluster."""
    held, told = cluster.holders(), cluster.pod("stays")
    (node,) = cluster.request("GET", NODES)["items"]

    cluster.plane.kubectl("delete", "-k", str(MANIFESTS), timeout_s=DELETE_TIMEOUT_S)
    cluster.installation.kill_operator()
    left = cluster.plane.kubectl("get", KINDS, "-o", "name").split()
    assert not [name for name in left if "gpuledger" in name]
    assert cluster.pod("stays") == told
    assert DEVICES in told["metadata"]["annotations"]
    (still,) = cluster.request("GET", NODES)["items"]
    assert still["metadata"]["annotations"][REGISTER_ANNOTATION] == node["metadata"]["annotations"][REGISTER_ANNOTATION]

    cluster.installation.install()
    cluster.installation.start_operator()
    cluster.wait(
        lambda: (
            {u: [h["pod"] for h in each] for u, each in cluster.holders().items()}
            == {u: [h["pod"] for h in each] for u, each in held.items()}
        ),
        "the ledger is as it was",
    )
    assert run_audit(cluster).code == 0


def test_nothing_of_it_has_a_finalizer_that_could_keep_a_namespace(cluster: Cluster) -> None:
    pods = cluster.request("GET", "/api/v1/pods")["items"]
    assert pods
    for found in [*pods, *cluster.cards().values(), *cluster.request("GET", NODES)["items"]]:
        assert not found["metadata"].get("finalizers"), found["metadata"]["name"]
    system = cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}")
    assert not system["metadata"].get("finalizers")
