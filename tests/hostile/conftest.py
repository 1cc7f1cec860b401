"""A cluster in which one namespace is a hostile user's."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus

import pytest

from cluster.cluster import DEADLINE_S, NODES, Cluster, Connection, RequestFailed
from cluster.kubernetes import apply_policies
from control_plane import ControlPlane
from hostile.catalogue import NAMESPACE, NODE_PREFIX, PATHS
from hostile.machine import cpu_s
from hostile.others import TOLD_AFTER_S, prepare
from installation import NO_KUBELET, NOTHING_RUNS, Installation

SLOTS = 64
"""Of each card: they are not what others wait for, however many pods there are that say little."""

PLACES = {"pods": "1000"}
"""For pods on each of a few nodes: neither are these."""

FEW_NODES = 3

DESCRIPTORS = 1_024
"""What some container runtimes allow a program, in files and connections."""


@pytest.fixture(scope="module")
def node_count() -> int:
    """Return how many nodes there are; a test can ask for others."""
    return 3


@pytest.fixture(scope="module", params=[False, True], ids=["without policies", "with policies"])
def attacked(request: pytest.FixtureRequest, node_count: int) -> Iterator[Cluster]:
    with ControlPlane.run() as plane:  # of its own: policies, and what users leave behind is without end
        settings = {**NO_KUBELET, "tell_waiting_after_s": TOLD_AFTER_S, **NOTHING_RUNS}
        installation = Installation(plane, settings)
        installation.install()
        if request.param:
            apply_policies(plane)
        operator = installation.start_operator()
        resource.prlimit(operator.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        installation.start_scheduler()
        found = Cluster(plane, installation)
        found.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for node in found.add_nodes(node_count, slots=SLOTS):
            if node_count <= FEW_NODES:
                found.patch(f"{NODES}/{node.name}/status", {"status": {"allocatable": PLACES, "capacity": PLACES}})
        prepare(found)
        yield found
        found.close()


METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"}
"""Asks for no more of objects: all of the hostile ones would be hundreds of megabytes."""


def delete_all(cluster: Cluster, path: str) -> None:
    """Delete all objects of a kind. Of thousands, the API server deletes as many as it can within a minute."""
    connection = Connection(cluster.plane, timeout_s=2 * DEADLINE_S, identity=METADATA)
    for found in connection.request("GET", path)["items"] or ():
        if found["metadata"].get("finalizers"):
            with suppress(RequestFailed):  # controllers delete them, and take their own off, at the same time
                cluster.patch(f"{path}/{found['metadata']['name']}", {"metadata": {"finalizers": None}})
    for is_last in (False, False, False, True):
        try:
            connection.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
            break
        except RequestFailed as error:
            if error.status != HTTPStatus.GATEWAY_TIMEOUT or is_last:
                raise
    connection.close()


def rests(cluster: Cluster, *others: int) -> bool:
    """Return whether the operator, and other processes, compute next to nothing for a moment."""
    operator = cluster.installation.operator
    assert operator is not None
    pids = (operator.pid, *others)
    before_s = [cpu_s(pid) for pid in pids]
    time.sleep(0.5)
    return all(cpu_s(pid) - each_s < 0.05 for pid, each_s in zip(pids, before_s, strict=True))


@pytest.fixture
def cluster(attacked: Cluster) -> Iterator[Cluster]:
    """Yield the cluster; what was created in it is gone afterwards."""
    yield attacked
    for path in PATHS.values():
        delete_all(attacked, path)
    for found in attacked.request("GET", f"{NODES}?labelSelector=!type")["items"]:
        if found["metadata"]["name"].startswith(NODE_PREFIX):
            attacked.request("DELETE", f"{NODES}/{found['metadata']['name']}")
    attacked.delete(*attacked.pods())
    attacked.wait(lambda: rests(attacked), "the operator has read that all is gone")
