"""The demo's control plane behaves like a cluster: all controllers run, and pods live as their containers would."""

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
IGNORES_EVICTIONS: Json = {
    "podFailurePolicy": {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    },
    "backoffLimit": 0,
}


@pytest.fixture(scope="module")
def demo() -> Iterator[Cluster]:
    """Yield a cluster as `make demo` has it, without the examples."""
    with ControlPlane.run(every_controller=True) as plane:  # as `make demo` has it
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
    pods = template(
        "db", schedulerName="gpuledger", initContainers=[first, SIDECAR], containers=[container({MEMORY: 1})]
    )
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


def test_a_daemon_set_and_a_deployment_get_their_pods_without_our_scheduler(demo: Cluster) -> None:
    web = workload("Deployment", "web", template("web"), replicas=2)
    apply(demo, workload("DaemonSet", "exporter", template("exporter")), web)
    for name in ("daemonset/exporter", "deployment/web"):
        demo.plane.kubectl("rollout", "status", name, f"--timeout={DEADLINE_S:g}s")
    assert sorted(each["spec"]["nodeName"] for each in pods_of(demo, "exporter").values()) == sorted(NODES)
    assert len(pods_of(demo, "web")) == 2


def test_a_cron_job_makes_jobs(demo: Cluster) -> None:
    nightly = job("nightly", "true")
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": nightly["spec"]}}
    apply(demo, {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec})
    long_ago = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    missed = json.dumps({"status": {"lastScheduleTime": long_ago}})  # need not wait for the next full minute
    demo.plane.kubectl("patch", "cronjob", "nightly", "--subresource=status", "--type=merge", "-p", missed)
    demo.wait(
        lambda: bool(status(demo, "cronjob", "nightly").get("lastSuccessfulTime")), "a Job of nightly has ended well"
    )


def test_a_job_ends_when_its_command_would_and_its_sidecar_with_it(demo: Cluster) -> None:
    apply(demo, job("short", "sleep", "1", init=(SIDECAR,)))
    assert wait_for_end(demo, "short") == "Complete"
    assert status(demo, "job", "short")["succeeded"] == 1


def test_a_job_whose_command_fails_has_failed(demo: Cluster) -> None:
    apply(demo, job("broken", "false", backoffLimit=0))
    assert wait_for_end(demo, "broken") == "Failed"
    assert status(demo, "job", "broken")["failed"] == 1


def test_a_job_whose_pod_is_deleted_or_evicted_tries_again(demo: Cluster) -> None:
    """A deletion counts as a failure; an eviction need not, as the API server's reason for it stays with the pod."""
    apply(demo, job("deleted", "sleep", "infinity"), job("evicted", "sleep", "infinity", **IGNORES_EVICTIONS))
    for name in ("deleted", "evicted"):
        demo.plane.kubectl("wait", "job", name, "--for=jsonpath={.status.ready}=1", f"--timeout={DEADLINE_S:g}s")
    before = pods_of(demo, "deleted").keys() | pods_of(demo, "evicted").keys()
    (victim,), (other_victim,) = pods_of(demo, "deleted"), pods_of(demo, "evicted")
    demo.plane.kubectl("delete", "pod", victim, "--wait=false")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": other_victim, "namespace": "default"},
    }
    demo.request("POST", f"/api/v1/namespaces/default/pods/{other_victim}/eviction", eviction)
    demo.wait(
        lambda: all(
            [p["status"]["phase"] for name, p in pods_of(demo, app).items() if name not in before] == ["Running"]
            for app in ("deleted", "evicted")
        ),
        "another pod of each Job runs",
    )
    assert status(demo, "job", "deleted")["failed"] == 1
    assert not status(demo, "job", "evicted").get("failed")


def test_who_asks_for_logs_is_told_that_the_node_is_simulated(demo: Cluster) -> None:
    demo.plane.kubectl("run", "talks", "--image=none", "--labels=app=talks", "--", "echo", "hello")
    demo.wait(lambda: bool(pods_of(demo, "talks")["talks"]["status"].get("startTime")), "the pod was taken up")
    node = pods_of(demo, "talks")["talks"]["spec"]["nodeName"]
    with pytest.raises(ControlPlaneError, match=f"{node}-is-simulated"):
        demo.plane.kubectl("logs", "talks")
