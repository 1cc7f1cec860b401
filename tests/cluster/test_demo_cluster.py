"""The control plane of the demo behaves like a cluster: all controllers run, and pods live as their containers would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from cluster.cluster import DEADLINE_S, MEMORY, Cluster, container
from control_plane import ControlPlane, ControlPlaneError
from installation import Installation

Json = dict[str, Any]

NODES = ("gpu-node-1", "gpu-node-2", "gpu-node-3")
SIDECAR = {"name": "proxy", "image": "none", "restartPolicy": "Always"}
IGNORES_EVICTIONS = {
    "podFailurePolicy": {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    },
    "backoffLimit": 0,
}


@pytest.fixture(scope="module")
def demo() -> Iterator[Cluster]:
    """Yield a cluster as `make demo` has it, without the examples."""
    with ControlPlane.run(every_controller=True) as plane:
        plane.start_default_scheduler()
        installation = Installation(plane)
        installation.start()
        installation.fake_nodes("--count", "3", stay=True)
        cluster = Cluster(plane, installation)
        cluster.wait(lambda: len(cluster.cards()) == 24, "the cards are in the ledger")
        yield cluster
        cluster.close()


def template(app: str, **spec: object) -> Json:
    """Return the template of a pod that a scheduler places that every cluster has, unless the spec names another."""
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container({})], **spec}}


def workload(kind: str, name: str, pods: Json, **spec: object) -> Json:
    selected = {"selector": {"matchLabels": {"app": name}}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {**selected, **spec}}


def job(name: str, *command: str, init: tuple[Json, ...] = (), **spec: object) -> Json:
    containers = [container({}, command=list(command))]
    pods = template(name, restartPolicy="Never", containers=containers, initContainers=list(init))
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": pods, **spec}}


def apply(demo: Cluster, *objects: Json) -> None:
    demo.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def status(demo: Cluster, kind: str, name: str) -> Json:
    return dict(json.loads(demo.plane.kubectl("get", kind, name, "-o", "json"))["status"])


def pods_of(demo: Cluster, app: str) -> dict[str, Json]:
    return {name: each for name, each in demo.pods().items() if each["metadata"]["labels"]["app"] == app}


def wait_for_end(demo: Cluster, name: str) -> str:
    """Wait until a Job has ended, and return how."""
    ends: list[str] = []

    def ended() -> bool:
        conditions = status(demo, "job", name).get("conditions") or ()
        ends[:] = [c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"]
        return bool(ends)

    demo.wait(ended, f"Job {name} has ended")
    return ends[0]


def test_the_pods_of_a_stateful_set_become_ready_one_after_the_other(demo: Cluster) -> None:
    first = {"name": "first", "image": "none", "command": ["sleep", "1"]}
    pods = template("db", schedulerName="gpuledger", initContainers=[first, SIDECAR], containers=[container({MEMORY: 1})])
    apply(demo, workload("StatefulSet", "db", pods, replicas=2, serviceName="db"))
    demo.plane.kubectl("rollout", "status", "statefulset/db", f"--timeout={DEADLINE_S:g}s")
    zero, one = pods_of(demo, "db")["db-0"], pods_of(demo, "db")["db-1"]
    assert [c["ready"] for c in (*zero["status"]["containerStatuses"], *zero["status"]["initContainerStatuses"])] == [
        True,
        True,
        True,
    ]
    (became_ready,) = (c["lastTransitionTime"] for c in zero["status"]["conditions"] if c["type"] == "Ready")
    assert zero["metadata"]["creationTimestamp"] < became_ready <= one["metadata"]["creationTimestamp"]
