"""What a node says to a pod before its cards are looked at, and what it would serve if its agent answered."""

from __future__ import annotations

from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.constraints import NodeRules, PodRules, refused_by_host, refused_by_rules
from gpuledger.formats.kubernetes.node import NVIDIA, NodeFacts, node_facts
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import Dialect
from gpuledger.model.refusal import Reason
from gpuledger.model.request import HostAmounts, PodRequest


def refused(request: PodRequest, rules: PodRules, node: NodeRules, free: HostAmounts | None) -> tuple[str, str] | None:
    """Return why a node does not take a pod, whatever its cards, as reason and sentence; None if it may."""
    if request.joined_node not in ("", node.name):
        text = f"claim {request.joined[0].name} of the pod is allocated on node {request.joined_node}"
        return Reason.CLAIM_ELSEWHERE.value, text
    return refused_by_rules(rules, node) or refused_by_host(request.host, free)


def as_if_served(node: JsonMapping, facts: NodeFacts, dialects: Dialects) -> NodeFacts:
    """Return what would matter of a node if the device plugins answered that have listed its cards."""
    served = {register.served for register, _ in facts.registers}
    if any(register.dialect is Dialect.NATIVE for register, _ in facts.registers):
        served |= {*dialects.counts(of=NVIDIA)}
    status, metadata = node.get("status") or {}, node["metadata"]
    allocatable = {**(status.get("allocatable") or {}), **dict.fromkeys(served, "1")}
    annotations = {**(metadata.get("annotations") or {}), SERVES_CLAIMS_ANNOTATION: "true"}
    answering = {"metadata": {**metadata, "annotations": annotations}, "status": {**status, "allocatable": allocatable}}
    return node_facts({**node, **answering}, dialects)
