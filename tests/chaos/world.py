"""The nodes as they are at the moment, and what their agents and kubelets write about them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from chaos.admin import Admin
from chaos.arithmetic import COUNT, CPUS_OF_NODE, REGISTER
from chaos.plan import PlannedNode
from gpuledger.model.clock import rfc3339

Json = dict[str, Any]


SERVES_CLAIMS = "gpuledger.dev/serves-claims"
"""What the agent says of a node whose kubelet prepares claims."""


@dataclass
class _Node:
    """A node, there or not."""

    name: str
    model: str
    cards: list[Json]
    """What the register says of them, and `present`."""
    claimed: dict[str, Json] = field(default_factory=dict)
    """UUID -> card of another node that this one reports too."""
    has_agent: bool = True
    exists: bool = True

    def register(self) -> str:
        """Return the annotation in which the node's agent lists its cards."""
        own = [{k: v for k, v in card.items() if k != "present"} for card in self.cards if card["present"]]
        return json.dumps([*own, *self.claimed.values()])

    def amounts(self) -> Json:
        """Return what the kubelet says there is. Without the agent, there are no slots."""
        slots = sum(card["number"] for card in self.cards) if self.has_agent else 0
        return {"cpu": str(CPUS_OF_NODE), "memory": "1Ti", "pods": "250", COUNT: str(slots)}


class World:
    """All nodes of a plan. Each call changes what is so, and tells the API server, where the node exists."""

    def __init__(self, admin: Admin, nodes: tuple[PlannedNode, ...]) -> None:
        self._admin = admin
        self._nodes = {node.name: _node(node) for node in nodes}

    def add(self, name: str) -> None:
        """Register a node."""
        node = self._nodes[name]
        node.exists = True
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        metadata = {"name": name, "labels": labels, "annotations": {REGISTER: node.register(), SERVES_CLAIMS: "true"}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        self._admin.try_to("POST", "/api/v1/nodes", body)
        self._write_status(node)

    def add_all(self) -> None:
        """Register all nodes."""
        for name in self._nodes:
            self.add(name)

    def delete(self, name: str) -> None:
        """Delete a node."""
        self._nodes[name].exists = False
        self._admin.try_to("DELETE", f"/api/v1/nodes/{name}")

    def collect_pods(self, name: str) -> None:
        """Delete by force the pods of a node that is gone, as the pod collector does."""
        if self._nodes[name].exists:
            return
        for pod in self._admin.pods().values():
            if pod["spec"].get("nodeName") == name:
                metadata = pod["metadata"]
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                self._admin.try_to(
                    "DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", options
                )

    def set_agent(self, name: str, is_there: bool) -> None:
        """Let the GPU agent of a node go or come back."""
        node = self._nodes[name]
        node.has_agent = is_there
        if node.exists:
            self._write_status(node)

    def change_card(self, name: str, card: int, field_name: str, value: object) -> None:
        """Change what a node says of one of its cards."""
        said = self._nodes[name].cards[card]
        if field_name == "faultClass":
            said.pop("failure", None)
            said["healthy"] = value is None
            if value is not None:
                said["failure"] = {"faultClass": value, "since": rfc3339(datetime.now(UTC))}
        else:
            said[field_name] = value
        self._write_register(name)

    def claim_card(self, name: str, owner: str, card: int, is_claimed: bool) -> None:
        """Let a node report a card of another one, or stop that."""
        node, theirs = self._nodes[name], self._nodes[owner].cards[card]
        if is_claimed:
            plain = {key: value for key, value in theirs.items() if key != "present"}
            node.claimed[theirs["uuid"]] = {**plain, "index": len(node.cards)}
        else:
            node.claimed.pop(theirs["uuid"], None)
        self._write_register(name)

    def _write_register(self, name: str) -> None:
        node = self._nodes[name]
        if node.exists:
            change = {"metadata": {"annotations": {REGISTER: node.register()}}}
            self._admin.patch(f"/api/v1/nodes/{name}", change)

    def _write_status(self, node: _Node) -> None:
        amounts = node.amounts()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletPlayer", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._admin.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})


def _node(planned: PlannedNode) -> _Node:
    cards = [
        {
            "uuid": card.uuid,
            "index": index,
            "model": planned.model,
            "memoryMiB": card.memory_mib,
            "number": card.number,
            "healthy": True,
            "present": True,
        }
        for index, card in enumerate(planned.cards)
    ]
    return _Node(planned.name, planned.model, cards)
