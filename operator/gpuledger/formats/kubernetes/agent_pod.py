"""The pod of a node's agent: where it is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from gpuledger.formats.kubernetes.pod import bound_node, is_ready
from gpuledger.model.json_object import JsonMapping

PORT_NAME = "health"
"""As manifests/agent/daemonset.yaml has it."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """One agent's pod."""

    name: str
    node_name: str
    """Empty while it is bound to none."""
    address: str
    """Its IP address, as its kubelet says; empty as long as that says none."""
    port: int
    """Of HTTP; 0 if its containers declare none."""
    ready: bool


def agent_pod(pod: JsonMapping) -> AgentPod:
    """Return what is needed to ask an agent, of a pod as the API server has it."""
    status, containers = pod.get("status") or {}, (pod.get("spec") or {}).get("containers") or ()
    declared = (port for container in containers for port in container.get("ports") or ())
    port = next((int(each["containerPort"]) for each in declared if each.get("name") == PORT_NAME), 0)
    return AgentPod(pod["metadata"]["name"], bound_node(pod), str(status.get("podIP") or ""), port, is_ready(pod))


def best_by_node(pods: Iterable[AgentPod]) -> dict[str, AgentPod]:
    """Return node name -> its agent's pod: while one follows another, the one that is Ready."""
    found: dict[str, AgentPod] = {}
    for pod in pods:
        before = found.get(pod.node_name)
        if pod.node_name and (before is None or (pod.ready and not before.ready)):
            found[pod.node_name] = pod
    return found


def host_of(address: str) -> str:
    """Return a pod's address as a URL has it; empty for one that no pod has.

    A kubelet says which address its pods have, and it must not lead whoever asks there to his own machine.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return ""
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return ""
    mapped = getattr(ip, "ipv4_mapped", None)
    if mapped is not None:
        return host_of(str(mapped))
    if getattr(ip, "scope_id", None):
        return ""
    return f"[{ip}]" if ip.version == 6 else str(ip)
