"""A cluster with priorities, on which pods are preempted, and who plays its kubelets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self

from chaos.gang_rule import GANG
from cluster.cluster import COUNT, DEADLINE_S, Cluster, container, uuids
from control_plane import ControlPlane
from faults.proxy import Proxy
from gpuledger.agent.simulated import FakeKubelet
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import Unreachable
from installation import NO_KUBELET, Installation

Json = dict[str, Any]

LOW, HIGH, HIGHER, POLITE = "low", "high", "higher", "polite"
PRIORITIES = {LOW: 10, HIGH: 1000, HIGHER: 2000, POLITE: 3000}
NAMESPACES = ("default", "other")
WHOLE = {COUNT: 1}
PREEMPTION_TIMEOUT_S = 8.0
RELEASE_DELAY_S = 1
"""After a test its pods are deleted by force."""

SETTINGS = {
    **NO_KUBELET,
    "preemption_timeout_s": PREEMPTION_TIMEOUT_S,
    "release_delay_s": RELEASE_DELAY_S,
    "longest_release_s": 2,
}


class Kubelet(FakeKubelet):
    """Plays all nodes, in a thread; pods in `stubborn` do not end, and of those in `left_alone` it reports nothing."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.stubborn: set[str] = set()
        self.left_alone: set[str] = set()
        """UIDs; they end when they are told to."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play_all()), daemon=True)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _play_all(self) -> None:
        client = await KubeClient.connect(self._plane.kubeconfig)
        super().__init__(client, set())
        try:
            while not self._ended.is_set():
                with suppress(Unreachable):  # an API server that is busy or stopped answers later
                    async for page in client.pages("/api/v1/pods", {"fieldSelector": "spec.nodeName!="}):
                        for pod in page:
                            leaving = pod["metadata"].get("deletionTimestamp")
                            stays = pod["metadata"]["name"] in self.stubborn
                            if not (stays if leaving else pod["metadata"]["uid"] in self.left_alone):
                                await self.play(pod)
                await asyncio.sleep(0.1)
        finally:
            await client.close()


class PreemptingCluster(Cluster):
    """A cluster with priorities, namespaces and a kubelet."""

    def __init__(self, plane: ControlPlane, installation: Installation, kubelet: Kubelet, proxy: Proxy) -> None:
        super().__init__(plane, installation)
        self.kubelet, self.proxy = kubelet, proxy
        for name, value in PRIORITIES.items():
            policy = "Never" if name == POLITE else "PreemptLowerPriority"
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            self.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})

    def deploy(self, name: str, limits: Json, replicas: int, priority: str, namespace: str = "default") -> None:
        labels = {"app": name}
        spec = {
            "schedulerName": "gpuledger",
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 5,
            "containers": [container(limits)],
        }
        body = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        self.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body)

    def undeploy(self, name: str, namespace: str = "default") -> None:
        self.request("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")

    def all_pods(self) -> list[Json]:
        return [
            p for namespace in NAMESPACES for p in self.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        ]

    def placed(self, app: str) -> list[Json]:
        """Return the pods of a Deployment, a gang or a name that have cards and are not leaving."""
        found = [p for p in self.all_pods() if p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp")]
        return [p for p in found if app in _names_of(p)]

    def wait_placed(self, app: str, number: int, timeout_s: float = DEADLINE_S) -> list[Json]:
        self.wait(lambda: len(self.placed(app)) == number, f"{number} pods of {app} are placed", timeout_s)
        return self.placed(app)

    def restart_operator(self) -> None:
        """Start it behind the proxy."""
        self.installation.kill_operator()
        self.installation.start_operator(self.proxy.kubeconfig_from(self.installation.kubeconfig))

    def evictions(self, since: int) -> list[str]:
        """Return the names of the pods that were evicted, as often as the API server did it."""
        events = self.plane.api_writes(since)
        return [e.name for e in events if e.subresource == "eviction" and e.code < 300]

    def check(self) -> None:
        """Compare the ledger with all pods that run; no card is given twice, and nobody is left in it."""
        by_uid = {p["metadata"]["uid"]: p for p in self.all_pods()}
        entered: dict[str, set[str]] = {}
        for uuid, card in self.cards().items():
            held = card["status"]["holders"]
            for amount, capacity in card["spec"]["capacity"].items():
                assert sum(holder[amount] for holder in held) == card["status"]["used"][amount] <= capacity
            assert not card["status"].get("claims")
            for holder in held:
                assert holder["podUID"] in by_uid, (uuid, holder)
                assert holder["state"] == "allocated", (uuid, holder)
                entered.setdefault(holder["podUID"], set()).add(uuid)
        for uid, found in by_uid.items():
            if found["spec"].get("nodeName") and not found["metadata"].get("deletionTimestamp"):
                assert entered.get(uid, set()) == set(uuids(found)), found["metadata"]["name"]

    def at_rest(self) -> None:
        """Wait until nobody leaves any more, and check everything."""
        self.wait(lambda: not any(p["metadata"].get("deletionTimestamp") for p in self.all_pods()), "nobody leaves")
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.check()
                return
            except AssertionError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)

    def clear(self) -> None:
        """Remove all that tests create, and start the operator if it is down."""
        self.kubelet.stubborn.clear()
        for namespace in NAMESPACES:
            for kind in ("apps/v1/namespaces/{}/deployments", "policy/v1/namespaces/{}/poddisruptionbudgets"):
                self.request("DELETE", "/apis/" + kind.format(namespace))
            sets = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
            self.wait(lambda path=sets: not self.request("GET", path)["items"], "the Deployments are gone")  # type: ignore[misc]
            self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
        if not (self.installation.operator and self.installation.operator.alive):
            self.restart_operator()
        super().clear()


def a_pod(name: str, limits: Json, priority: str = HIGH, namespace: str = "default", **fields: Any) -> Json:
    spec = {"schedulerName": "gpuledger", "priorityClassName": priority, "terminationGracePeriodSeconds": 5}
    containers = [container(limits, **fields.pop("container", {}))]
    labels = fields.pop("labels", {})
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "containers": containers, **fields},
    }


def eight_low(cluster: PreemptingCluster) -> list[str]:
    """Fill two nodes of four cards with pods of low priority, each on a card of its own; return their names."""
    cluster.add_nodes(2, gpus=4)
    pods = [a_pod(f"low-{number}", WHOLE, LOW) for number in range(8)]
    cluster.create(*pods)
    lows = [pod["metadata"]["name"] for pod in pods]
    cluster.wait_bound(*lows)
    return lows


def _names_of(pod: Json) -> tuple[str | None, ...]:
    """Return what a pod can be called by: its own name, its Deployment's and its gang's."""
    metadata, group = pod["metadata"], pod["spec"].get("schedulingGroup", {})
    labels = metadata.get("labels", {})
    return metadata["name"], labels.get("app"), labels.get(GANG), group.get("podGroupName")


@contextmanager
def preempting_cluster(
    plane: AbstractContextManager[ControlPlane],
    settings: Mapping[str, object] | None = None,
    scheduler_flags: Sequence[str] = (),
) -> Iterator[PreemptingCluster]:
    """Run operator and kube-scheduler on a control plane; the operator behind a proxy."""
    with plane as running:
        installation = Installation(running, {**SETTINGS, **(settings or {})}, scheduler_flags=scheduler_flags)
        installation.install()
        with Proxy.before_api_server(installation.kubeconfig) as proxy, Kubelet(running) as kubelet:
            installation.start_operator(proxy.kubeconfig_from(installation.kubeconfig))
            installation.start_scheduler()
            cluster = PreemptingCluster(running, installation, kubelet, proxy)
            yield cluster
            cluster.close()
