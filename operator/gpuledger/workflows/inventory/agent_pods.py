"""The pods of the node agents: a node whose agent's pod is not Ready takes no GPU pods.

The kubelet's allocatable amount shows an agent that is gone. One that hangs keeps its socket, and only its readiness
probe shows it. Where no pod of an agent is known, nothing follows: the agent can be a process of the node, or another
system's device plugin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gpuledger.formats.objects.agent_pod import AgentPod, agent_pod, best_by_node
from gpuledger.model.listeners import Listeners

Json = dict[str, Any]

AGENT_SELECTOR = "app.kubernetes.io/name=gpuledger-agent"
"""Label of the agents' pods, in our own namespace: no user can write there."""


class AgentPods:
    """The nodes that have an agent's pod, and those of them whose pod is Ready."""

    def __init__(self) -> None:
        self._known: dict[str, AgentPod] = {}  # UID of an agent's pod -> where it is
        self._pods: dict[str, dict[str, bool]] = {}  # node name -> UID of an agent's pod -> whether it is Ready
        self.listed = asyncio.Event()
        """Set once all pods were shown: before, nothing can be said of a node."""
        self.on_change = Listeners[[str]]()
        """Called with a node's name when `not_ready` has another answer for it."""

    def not_ready(self, node_name: str) -> bool:
        """Tell whether the node has an agent's pod, and none that is Ready."""
        pods = self._pods.get(node_name)
        return pods is not None and not any(pods.values())

    def by_node(self) -> dict[str, AgentPod]:
        """Return node name -> its agent's pod, one that is Ready if there is one."""
        return best_by_node(self._known.values())

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe an agent's pod."""
        uid, agent = pod["metadata"]["uid"], agent_pod(pod)
        if gone:
            self._forget(uid)
        elif agent.node_name:
            before = self.not_ready(agent.node_name)
            self._known[uid] = agent
            self._pods.setdefault(agent.node_name, {})[uid] = agent.ready
            self._notify(agent.node_name, before)

    def listing(self) -> Callable[[set[str]], None]:
        """Return what forgets the pods known now that are not in the list read since."""
        before = set(self._known)

        def listed(uids: set[str]) -> None:
            for uid in before - uids:
                self._forget(uid)
            self.listed.set()

        return listed

    def _forget(self, uid: str) -> None:
        agent = self._known.pop(uid, None)
        if agent is None:
            return
        node_name = agent.node_name
        before = self.not_ready(node_name)
        pods = self._pods[node_name]
        del pods[uid]
        if not pods:
            del self._pods[node_name]
        self._notify(node_name, before)

    def _notify(self, node_name: str, before: bool) -> None:
        if self.not_ready(node_name) != before:
            self.on_change(node_name)
