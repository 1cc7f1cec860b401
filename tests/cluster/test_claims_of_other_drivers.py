"""Pods that bring a claim of another driver as well, in the profile that leaves it to kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cluster.claims import API, CLASSES, TEMPLATES, claiming, claims_of, create_class, request, results, share, template
from cluster.cluster import COUNT, Cluster, pod, uuids
from cluster.kubernetes import MINOR, at_least
from cluster.shared import SharedPlane
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.resource_claims.claims import DRIVER, ONLY_TAINT
from gpuledger.formats.resource_claims.slices import NodeOwner, slices_of

Json = dict[str, Any]

PROFILE = "gpuledger-all-drivers"
NIC = "nic.example.com"
TOLERATED = [{"key": ONLY_TAINT, "operator": "Exists"}]

pytestmark = pytest.mark.skipif(not at_least(1, 36), reason=f"Kubernetes {MINOR} shares no device of a slice")


@pytest.fixture(scope="module")
def offering(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster({"all_drivers_scheduler_name": PROFILE}) as cluster:
        create_class(cluster)
        selector = {"cel": {"expression": f'device.driver == "{NIC}"'}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": NIC}}
        cluster.request("POST", CLASSES, {**body, "spec": {"selectors": [selector]}})
        yield cluster


@pytest.fixture
def cluster(offering: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods, and leave it so."""
    for each in (
        template("nic", {"name": "nic", "exactly": {"deviceClassName": NIC}}),
        template("quarter", share("10Gi", 25, tolerations=TOLERATED)),
        template("whole", request(tolerations=TOLERATED)),
    ):
        offering.request("POST", TEMPLATES, each)
    yield offering
    offering.clear()
    offering.request("DELETE", f"{API}/resourceslices")


def add_nodes(cluster: Cluster, nics: tuple[int, ...]) -> list[FakeNode]:
    """Add nodes of two cards each, with their slices, and so many network cards."""
    nodes = cluster.add_nodes(len(nics), gpus=2)
    for node, number in zip(nodes, nics, strict=True):
        uid = cluster.request("GET", f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
        for each in slices_of(NodeOwner(node.name, uid), node.cards, 1).values():
            cluster.request("POST", f"{API}/resourceslices", each)
        cluster.request("POST", f"{API}/resourceslices", nic_slice(node.name, number))
    return nodes


def nic_slice(node_name: str, number: int) -> Json:
    """Return the slice of a driver of network cards."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-nics"},
        "spec": {
            "driver": NIC,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"nic-{index}"} for index in range(number)],
        },
    }


def with_both(name: str, ours: str) -> Json:
    """Return a pod that brings a claim of ours, and one for a network card."""
    return claiming(name, [ours, "nic"], schedulerName=PROFILE)


def on(node: FakeNode) -> Json:
    """Return the affinity of a pod that goes to one node."""
    here = {"key": "metadata.name", "operator": "In", "values": [node.name]}
    required = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def is_free(cluster: Cluster, uuid: str) -> bool:
    """Return whether nobody holds a card."""
    return not cluster.holders()[uuid]


def test_both_claims_are_served_and_the_ledger_chooses_the_card(cluster: Cluster) -> None:
    """kube-scheduler takes the first device that its claims leave; of pods in classic words, it knows nothing."""
    _, node = add_nodes(cluster, nics=(0, 3))
    cluster.create(*(pod(f"classic-{number}", {COUNT: 1}, affinity=on(node)) for number in range(2)))
    cluster.wait_bound("classic-0", "classic-1")
    for name in ("classic-0", "classic-1"):  # each card in turn is the free one
        (free,) = uuids(cluster.pod(name))
        cluster.delete(name)
        cluster.wait(partial(is_free, cluster, free), "the card is free")
        cluster.create(with_both(f"after-{name}", "whole"))
        (found,) = cluster.wait_bound(f"after-{name}")
        ours, nic = claims_of(cluster, f"after-{name}")
        assert uuids(found) == [free]
        assert [each["device"] for each in results(ours)] == [free.lower()]
        assert [(each["driver"], each["pool"]) for each in results(nic)] == [(NIC, node.name)]
    cluster.check_consistent()


def test_a_pod_whose_cards_are_taken_waits_and_keeps_no_claim_allocated(cluster: Cluster) -> None:
    add_nodes(cluster, nics=(1,))
    cluster.create(*(pod(f"classic-{number}", {COUNT: 1}) for number in range(2)))
    cluster.wait_bound("classic-0", "classic-1")
    cluster.create(with_both("waits", "quarter"))
    cluster.wait_refused("waits", "no card with 10240 MiB free")
    assert [results(each) for each in claims_of(cluster, "waits")] == [[], []]
    cluster.delete("classic-0")
    cluster.wait_bound("waits")
    cluster.check_consistent()


def test_without_the_toleration_no_other_scheduler_has_our_devices(cluster: Cluster) -> None:
    add_nodes(cluster, nics=(1,))
    cluster.request("POST", TEMPLATES, template("not-tolerant", share("10Gi")))
    cluster.create(with_both("both", "not-tolerant"))
    cluster.wait_refused("both", "cannot allocate all claims")


def test_in_the_ordinary_profile_a_claim_of_another_driver_is_refused_with_the_way_out(cluster: Cluster) -> None:
    add_nodes(cluster, nics=(1,))
    cluster.create(claiming("ordinary", ["quarter", "nic"]))
    cluster.wait_refused("ordinary", f"claim c1 is of DeviceClass {NIC}, which has no GPUs of {DRIVER}")
