"""Simulated nodes: registered as a node agent and its kubelet would, with cards that exist only on paper."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuledger.agent.fake_kubelet import FakeKubelet
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.writes import KubeletWrites
from gpuledger.model.card import ALL_CORES, Amounts, Card
from gpuledger.model.node import NodeConfig, NodeConfigs

logger = logging.getLogger(__name__)

MODELS_MIB = {
    "T4": 15360,
    "V100-32GB": 32768,
    "A10": 23028,
    "RTX-4090": 24564,
    "L40S": 46068,
    "A100-40GB": 40960,
    "A100-80GB": 81920,
    "H100-80GB": 81559,
    "H200": 143771,
}
"""Model -> memory of a card, in MiB, about what NVML reports."""

AS_THEY_ARE = NodeConfigs()

VENDOR = "nvidia"
"""Of the models above."""

PODS_PER_NODE = 250
NUMA_NODES = 2
CARDS_PER_PCIE_ROOT = 2
NVLINK_SCORE = 200
LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "gpuledger-fake"}
NO_HOST = "-is-simulated-no-container-runs-"
"""Ends the name that the API server looks up for `kubectl logs` and `exec`, and tells when it finds no such host."""


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A node that exists only in the API server."""

    name: str
    cards: tuple[Card, ...]


def fake_nodes(
    prefix: str, count: int, gpus: int, model: str, slots: int | None = None, configs: NodeConfigs = AS_THEY_ARE
) -> list[FakeNode]:
    """Return nodes with cards of a model. The same arguments always give the same UUIDs.

    Raises ValueError for a model that is not in MODELS_MIB.
    """
    if model not in MODELS_MIB:
        raise ValueError(f"there is no model {model!r}; models are {', '.join(MODELS_MIB)}")
    names = [f"{prefix}-{position}" for position in range(1, count + 1)]
    return [_fake_node(name, gpus, model, _with_slots(configs.of(name), slots)) for name in names]


def _with_slots(config: NodeConfig, slots: int | None) -> NodeConfig:
    return config if slots is None else replace(config, split_count=slots)


def _fake_node(name: str, gpus: int, model: str, config: NodeConfig) -> FakeNode:
    uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{name}')}" for index in range(gpus)]
    cards = (
        Card(
            uuid=uuids[index],
            node_name=name,
            index=index,
            capacity=Amounts(MODELS_MIB[model], ALL_CORES, config.split_count),
            vendor=VENDOR,
            model=f"NVIDIA-{model}",
            numa_node=index * NUMA_NODES // max(gpus, 1),
            pcie_root=f"pci0000:{index // CARDS_PER_PCIE_ROOT * 16:02x}",
            links={peer: NVLINK_SCORE for peer in uuids if peer != uuids[index]},
        )
        for index in range(gpus)
    )
    return FakeNode(name, config.offered(cards))


async def register(
    nodes: Sequence[FakeNode],
    count_resources: Sequence[str],
    run_pods: bool,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Create or update the nodes at the API server; with `run_pods`, stay and play their kubelet."""
    client = await KubeClient.connect(kubeconfig, context)
    try:
        for node in nodes:
            await register_node(client, node, count_resources)
        logger.info("%d nodes with %d cards registered", len(nodes), sum(len(node.cards) for node in nodes))
        if run_pods:
            await FakeKubelet(client, {node.name for node in nodes}).run()
    finally:
        await client.close()


async def register_node(client: KubeClient, node: FakeNode, count_resources: Sequence[str]) -> None:
    """Write the annotation as the agent does, and the status as its kubelet does. Idempotent.

    All cards can be asked for by each of the names: the agent serves them all.
    """
    annotations = {REGISTER_ANNOTATION: register_of(node.cards), SERVES_CLAIMS_ANNOTATION: "true"}
    metadata = {"name": node.name, "annotations": annotations}
    labels = {"kubernetes.io/hostname": node.name, **LABELS}
    slots = dict.fromkeys(count_resources, str(sum(card.capacity.number for card in node.cards)))
    amounts = {"cpu": "128", "memory": "1Ti", "pods": str(PODS_PER_NODE), **slots}
    ready = {"type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "simulated by gpuledger"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [ready],
        "addresses": [{"type": "Hostname", "address": f"{node.name}{NO_HOST}"}],
        "nodeInfo": {"osImage": "simulated by gpuledger"},
    }
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "labels": labels}}
    await KubeletWrites(client).put_node(body, status)
