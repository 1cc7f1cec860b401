"""Nodes that Karpenter makes and takes away, with cards of ours on them, and what it says of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest

from cluster.claims import create_class
from cluster.cluster import NODES, Cluster
from cluster.kubernetes import FILLS_IN, MINOR
from control_plane import ControlPlane
from gpuledger.agent.simulated import fake_node
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from installation import MANIFESTS, NO_KUBELET, NOTHING_RUNS, Installation
from karpenter import CLAIMS, POOL, POOL_LABEL, POOLS, TYPES, Karpenter, node_claim, node_pool

Json = dict[str, Any]

EVENTS = "/api/v1/events"
GPUS, MODEL = 8, "A100-40GB"


class KarpenterScene:
    """A cluster beside Karpenter. Nodes go only while the pool's budget allows it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._made = 0

    def open(self) -> None:
        """Create the pool, from which nothing goes as yet."""
        self.cluster.request("POST", POOLS, node_pool(disrupted="0"))

    def let_go(self, disrupted: str) -> None:
        """Set how many nodes may go at a time: "0" for none, "100%" for all."""
        self.cluster.patch(f"{POOLS}/{POOL}", {"spec": node_pool(disrupted=disrupted)["spec"]})

    def add_nodes(self, count: int) -> list[str]:
        """Have Karpenter make nodes, play their kubelets and agents, and wait until their cards can be used."""
        before = self.nodes().keys()
        for _ in range(count):
            self._made += 1
            self.cluster.request("POST", CLAIMS, node_claim(f"node-{self._made}"))

        def are_joined() -> bool:
            self.join()
            return len(self.nodes().keys() - before) == count and all(map(self._is_ready, self.nodes().values()))

        self.cluster.wait(are_joined, f"{count} more nodes are initialized")
        names = sorted(self.nodes().keys() - before)
        self.cluster.wait(lambda: self._ready_cards() >= GPUS * len(self.nodes()), "their cards are ready")
        return names

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait, while the kubelets and agents of nodes that come are played."""

        def comes() -> bool:
            self.join()
            return condition()

        self.cluster.wait(comes, what, timeout_s)

    def nodes(self) -> dict[str, Json]:
        """Return name -> Node of those that Karpenter has made and is not taking away."""
        found = self.cluster.request("GET", f"{NODES}?labelSelector={POOL_LABEL}={POOL}")["items"]
        return {each["metadata"]["name"]: each for each in found if not each["metadata"].get("deletionTimestamp")}

    def said(self, node_name: str, reason: str) -> list[str]:
        """Return the messages of Karpenter's events of one reason about a node."""
        events = self.cluster.request("GET", EVENTS)["items"]
        of_node = (each for each in events if each["involvedObject"].get("name") == node_name)
        return [each["message"] for each in of_node if each["reason"] == reason]

    def wait_looked_at(self, node_name: str, verdict: str, word: str = "") -> None:
        """Let nodes go, and wait until Karpenter has said this of a node, with that word.

        It looks again only after something has changed, such as the pool, and not at nodes that are nominated.
        """
        shares = cycle(("100%", "99%"))

        def is_said() -> bool:
            self.let_go(next(shares))
            return any(word in text for text in self.said(node_name, verdict))

        self.cluster.wait(is_said, f"Karpenter says {verdict} of {node_name}", 120.0)

    def leaving(self) -> list[str]:
        """Return the names of pods that are being evicted."""
        return [name for name, pod in self.cluster.pods().items() if pod["metadata"].get("deletionTimestamp")]

    def clear(self) -> None:
        """Delete pods, and wait until Karpenter has taken all nodes away."""
        self.cluster.delete(*self.cluster.pods())
        self.let_go("100%")
        for claim in self.cluster.request("GET", CLAIMS)["items"]:
            self.cluster.request("DELETE", f"{CLAIMS}/{claim['metadata']['name']}")
        self.cluster.wait(lambda: not self.cluster.request("GET", NODES)["items"], "no node is left", 120.0)
        self.cluster.wait(lambda: not self.cluster.cards(), "no card is left")
        self.let_go("0")

    def join(self) -> None:
        """Play kubelet and agent of the nodes that are new."""
        for name, node in self.nodes().items():
            if REGISTER_ANNOTATION not in node["metadata"].get("annotations", {}):
                self.cluster.register(fake_node(name, GPUS, MODEL))

    def _is_ready(self, node: Json) -> bool:
        return bool(node["metadata"]["labels"].get("karpenter.sh/initialized") == "true")

    def _ready_cards(self) -> int:
        phases = [(card.get("status") or {}).get("phase") for card in self.cluster.cards().values()]
        return phases.count("Ready")


@contextmanager
def beside_karpenter(
    settings: Mapping[str, object], kinds: Sequence[str], kustomization: str, types: Sequence[Json] = TYPES
) -> Iterator[KarpenterScene]:
    """Run a cluster without nodes, with these kinds of policies and this part of manifests/, beside Karpenter.

    Skips the test where policies fill in no pods.
    """
    if not FILLS_IN:
        pytest.skip(f"policies of Kubernetes {MINOR} fill in no pods")
    with ControlPlane.run(every_controller=True) as plane:
        installation = Installation(plane, {**NO_KUBELET, **NOTHING_RUNS, **settings})
        installation.start()
        cluster = Cluster(plane, installation)
        settings_file = str(installation.settings_file)
        command = [sys.executable, "-m", "gpuledger", "admission-policies", "--settings", settings_file]
        for kind in kinds:
            printed = subprocess.check_output([*command, "--kind", kind], text=True)
            plane.kubectl("apply", "-f", "-", stdin=printed)
        plane.kubectl("apply", "-k", str(MANIFESTS / kustomization))
        create_class(cluster)
        Karpenter(plane, types).start()
        scene = KarpenterScene(cluster)
        scene.open()
        yield scene
        cluster.close()
