"""Pods that come while something happens to the operator, and what must hold of them afterwards."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import UTC, datetime
from typing import Any, Self

from cluster.cluster import devices
from effort import times
from gpuledger.model.node import NodeConfig
from node.gpu_node import gpu_pod, one_card
from node.pod_cluster import CARDS_PER_NODE, NODES, PodCluster

Json = dict[str, Any]

STREAM_PAUSE_S = times(10, 4) / 10
SOON_S = 15.0
"""How long a pod may wait while replicas end that are asked to, and so give the Lease back."""
RUN_S = 330.0
"""The kubelet's longest pause between two tries to start a container is five minutes."""

SLOTS = len(NODES) * CARDS_PER_NODE * NodeConfig().split_count


def a_pod(name: str, memory_mib: int = 1000, **more: int) -> Json:
    return gpu_pod(name, one_card(memory_mib, **more), hostNetwork=False)


def check(cluster: PodCluster, *names: str) -> None:
    """Compare what containers were told with the ledger, and the ledger with the pods' annotations."""
    for name in names:
        assert cluster.told(name) == cluster.entered(name) != []
    cluster.check_consistent()


class Stream:
    """Pods that are created one after the other, as long as the `with` lasts.

    Slots are not used up, however long that is: once half of them are taken, the pauses grow as the rest gets less.
    """

    def __init__(self, cluster: PodCluster, prefix: str) -> None:
        self.created: dict[str, datetime] = {}
        self._cluster, self._prefix, self._ended = cluster, prefix, threading.Event()
        self._offset = cluster.plane.audit_offset()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(PodCluster(self._cluster.plane, self._cluster.nodes)) as cluster:
            while not self._ended.wait(self._pause_s()):
                name, now = f"{self._prefix}-{len(self.created)}", datetime.now(UTC)
                cluster.create(a_pod(name))
                self.created[name] = now

    def _pause_s(self) -> float:
        left = max(SLOTS - len(self.created), 0.5)
        return STREAM_PAUSE_S * max(1.0, SLOTS / 2 / left)

    def wait_for(self, count: int) -> None:
        """Wait until so many more pods were created."""
        wanted = len(self.created) + count
        self._cluster.wait(
            lambda: len(self.created) >= wanted, f"{count} more pods are created", count * 2 * self._pause_s() + 60
        )

    def longest_wait_s(self) -> float:
        """Return how long a pod has waited for its Binding at most, by the API server's audit log."""
        events = self._cluster.plane.audit_events(self._offset)
        bound = {e.name: e.timestamp for e in events if e.subresource == "binding" and e.code < 300}
        return max((bound[name] - created).total_seconds() for name, created in self.created.items())


def all_placed_soon_and_once(cluster: PodCluster, stream: Stream, within_s: float = SOON_S) -> str:
    """Check that no pod of a stream was lost or had to wait longer, and no card given twice; return what was seen."""
    names = list(stream.created)
    pods = cluster.wait_bound(*names)
    assert all(len(devices(pod)["main"]) == 1 for pod in pods)
    try:
        cluster.wait(lambda: cluster.runs(*names), "all of them run", timeout_s=RUN_S)
    except AssertionError as error:
        pods = [pod for name, pod in cluster.pods().items() if not cluster.runs(name)]
        late_ones = {pod["metadata"]["name"]: (pod["spec"].get("nodeName"), pod["status"]) for pod in pods}
        told = {name: cluster.messages(name) for name in late_ones}
        raise AssertionError(f"these do not: {json.dumps(late_ones, indent=1)}\n{told}\n{error}") from None
    check(cluster, *names)
    longest_s = stream.longest_wait_s()
    assert longest_s < within_s
    return f"{len(names)} pods, the slowest bound after {longest_s:.1f} s"
