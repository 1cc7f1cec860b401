"""Replicas, nodes and their programs that die, are drained, and come back."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from installation import REPOSITORY
from kind.cluster import COUNT, MEMORY, NAMESPACE, KindCluster, pod, shares

Json = dict[str, Any]


def test_a_killed_active_replica_is_followed_by_the_other_and_no_pod_is_bound_twice(cluster: KindCluster) -> None:
    cluster.upgrade("operator.replicas=2")
    names = [f"stream-{number}" for number in range(30)]
    with Stream(cluster, names):
        time.sleep(3)
        cluster.kubectl("delete", "pod", active(cluster), f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
    cluster.wait_running("app=stream", len(names))
    assert {name: len(cards) for name, cards in cluster.holders().items() if name in names} == dict.fromkeys(names, 1)
    cluster.upgrade("operator.replicas=1")


def active(cluster: KindCluster) -> str:
    [lease] = cluster.objects("lease/gpuledger-scheduler", f"--namespace={NAMESPACE}")
    return str(lease["spec"]["holderIdentity"]).rpartition("_")[0]


class Stream:
    """Create pods one by one, in a thread."""

    def __init__(self, cluster: KindCluster, names: list[str], pause_s: float = 0.4) -> None:
        self._cluster, self._names, self._pause_s = cluster, names, pause_s
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        for name in self._names:
            self._cluster.wait(partial(self._create, name), f"{name} is created", 30)
            time.sleep(self._pause_s)

    def _create(self, name: str) -> bool:
        """Create a pod, as controllers do: they try again. Raises BuildError where a webhook's replica is gone."""
        self._cluster.apply(pod(name, {COUNT: 1, MEMORY: 2000}, "stream"))
        return True


def have_operator_elsewhere(cluster: KindCluster, node: str) -> None:
    """Move the operator from a node, so that it does not die with it: that is what the test of replicas is for."""
    cluster.kubectl("cordon", node)
    for each in cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE):
        if each["spec"]["nodeName"] == node:
            cluster.kubectl("delete", "pod", each["metadata"]["name"], f"--namespace={NAMESPACE}")
    cluster.wait_rolled_out()
    cluster.kubectl("uncordon", node)


def nodes_of(pods: list[Json]) -> dict[str, str]:
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods}


def test_a_dead_worker_gets_no_more_pods_than_in_its_first_seconds(cluster: KindCluster) -> None:
    """It is the fullest one, and Kubernetes needs 40 s to say that it is dead."""
    cluster.apply(*shares(4, "before"))
    dead = next(iter(nodes_of(cluster.wait_running("app=before", 4)).values()))
    have_operator_elsewhere(cluster, dead)
    cluster.docker.run("docker", "kill", dead)
    begun_s, bound_s = time.monotonic(), dict[str, float]()
    try:
        for number in range(30):
            name = f"stream-{number}"
            cluster.apply(pod(name, {COUNT: 1, MEMORY: 2000}, "stream"))
            bound_s[name] = time.monotonic() - begun_s
            time.sleep(0.5)
        cluster.wait(lambda: all(nodes_of(cluster.pods("app=stream")).values()), "all are bound")
        lost = sorted(bound_s[name] for name, node in nodes_of(cluster.pods("app=stream")).items() if node == dead)
        assert all(each < 8.0 for each in lost), lost
    finally:
        cluster.docker.run("docker", "start", dead)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{dead}", "--timeout=120s")
        cluster.wait_rolled_out()


def test_a_drained_worker_is_left_by_its_pods_and_their_shares(cluster: KindCluster) -> None:
    cluster.apply(*shares(4, "moved"))
    node = next(iter(nodes_of(cluster.wait_running("app=moved", 4)).values()))
    cluster.kubectl("drain", node, "--pod-selector=app=moved", "--force", "--ignore-daemonsets", "--timeout=120s")
    cluster.wait(lambda: not any(name.startswith("moved") for name in cluster.holders()), "their shares are free")
    cluster.apply(*shares(2, "next"))
    assert node not in nodes_of(cluster.wait_running("app=next", 2)).values()


def test_after_a_reboot_pods_with_claims_run_on_the_same_cards(cluster: KindCluster) -> None:
    """Those that count in their limits have failed for good: their kubelet is back before the agent."""
    template = (REPOSITORY / "examples" / "claims" / "01-share.yaml").read_text()
    cluster.kubectl("apply", "--filename=-", stdin=template)
    names = {"claim-chat-1", "claim-chat-2"}
    try:
        cluster.wait(lambda: len(containers(cluster, names)) == len(names), "they run")
        before = containers(cluster, names)
        by_node = {name: node for name, node in nodes_of(cluster.objects("pods")).items() if name in names}
        held = {name: cluster.holders()[name] for name in names}
        for node in set(by_node.values()):
            cluster.docker.run("docker", "restart", "--time=0", node)
            cluster.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")

        cluster.wait(lambda: len(containers(cluster, names) - before) == len(names), "they run again", 240)
        assert {name: cluster.holders()[name] for name in names} == held
    finally:
        cluster.kubectl("delete", "--filename=-", "--force", "--grace-period=0", stdin=template)
        cluster.wait_rolled_out()


def containers(cluster: KindCluster, names: set[str]) -> set[str]:
    """Return the ids of the containers of these pods that are ready."""
    pods = [each for each in cluster.objects("pods") if each["metadata"]["name"] in names]
    statuses = [status for each in pods for status in each["status"].get("containerStatuses", ())]
    return {status["containerID"] for status in statuses if status["ready"]}
