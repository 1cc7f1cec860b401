"""Simulated nodes: registered as a node agent and its kubelet would, with cards that exist only on paper.

With `run_pods` it also plays the kubelet: bound pods are shown as running, those of Jobs end after a while, and deleted
pods end in good order.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuledger.formats.objects.node import REGISTER_ANNOTATION, register_of
from gpuledger.formats.objects.pod import has_started, is_finished
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.kubelet_writes import KubeletWrites
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.errors import Conflict, NotFound, Unreachable
from gpuledger.model.node_config import NodeConfig, NodeConfigs

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
NVLINK_SCORE = 200
POLL_INTERVAL_S = 0.3
JOB_RUNTIME_S = 30.0
"""How long a pod of a Job runs, in the play."""

Json = dict[str, Any]


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
    metadata = {"name": node.name, "annotations": {REGISTER_ANNOTATION: register_of(node.cards)}}
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "type": "gpuledger-fake"}
    slots = dict.fromkeys(count_resources, str(sum(card.capacity.number for card in node.cards)))
    amounts = {"cpu": "128", "memory": "1Ti", "pods": str(PODS_PER_NODE), **slots}
    ready = {"type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "simulated by gpuledger"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "labels": labels}}
    await KubeletWrites(client).put_node(body, status)


class FakeKubelet:
    """Shows bound pods as running and lets them end. Polls: it stands for many kubelets, and is no model of one."""

    def __init__(self, client: KubeClient, node_names: set[str]) -> None:
        self._reads, self._writes = KubeReads(client), KubeletWrites(client)
        self._node_names = node_names

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            try:
                async for page in self._reads.all_bound_pods():
                    for pod in page:
                        if pod["spec"]["nodeName"] in self._node_names:
                            await self._play(pod)
            except Unreachable as error:
                logger.info("the API server does not answer: %s", error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _play(self, pod: Json) -> None:
        status, metadata = pod.get("status") or {}, pod["metadata"]
        finished = is_finished(pod)
        try:
            if metadata.get("deletionTimestamp"):
                if not finished:
                    await self._set_phase(pod, "Failed" if _is_long_lived(pod) else "Succeeded")
                await self._writes.remove_pod(pod)
            elif not has_started(pod):
                await self._set_phase(pod, "Running")
            elif not finished and not _is_long_lived(pod) and _age_s(status["startTime"]) > JOB_RUNTIME_S:
                await self._set_phase(pod, "Succeeded")
        except (NotFound, Conflict):
            pass  # it went meanwhile

    async def _set_phase(self, pod: Json, phase: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        started = (pod.get("status") or {}).get("startTime") or now
        running = phase == "Running"
        state = (
            {"running": {"startedAt": now}}
            if running
            else {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
        )
        containers = [
            {"name": c["name"], "image": c["image"], "imageID": "", "restartCount": 0, "ready": running, "state": state}
            for c in pod["spec"]["containers"]
        ]
        condition = {"type": "Ready", "status": str(running), "lastTransitionTime": now}
        scheduled = [c for c in (pod.get("status") or {}).get("conditions") or () if c["type"] != "Ready"]
        status = {
            "phase": phase,
            "startTime": started,
            "containerStatuses": containers,
            "conditions": [*scheduled, condition],
        }
        await self._writes.set_pod_status(pod, status)


def _is_long_lived(pod: Json) -> bool:
    return bool(pod["spec"].get("restartPolicy", "Always") == "Always")


def _age_s(timestamp: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()
