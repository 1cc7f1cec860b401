"""ResourceClaims: whether pods that bring them get cards, and whether only the ledger gives cards out by them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gpuledger.doctor.facts import Facts, Json, known
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.finding_kind import FindingKind
from gpuledger.doctor.objects import name_of, some_of, time_of
from gpuledger.formats.objects.node import NodeFacts, node_facts
from gpuledger.formats.objects.pod import bound_node, created_at, is_being_deleted, scheduler_of
from gpuledger.formats.resource_claims.names import (
    DEVICE_CLASS,
    DRIVER,
    SERVES_CLAIMS_ANNOTATION,
    claim_names,
    has_claims,
)
from gpuledger.model.node_offer import Dialect

LATE = timedelta(seconds=30)
"""After this long, a claim that is to be made from a template should be there."""


def check_claim_class(facts: Facts) -> Iterator[Finding]:
    """Yield whether our DeviceClass is missing where pods wait that may need it."""
    if not known(facts.release).resource_claims or known(facts.claims) is None or known(facts.device_class) is not None:
        return
    if waiting := _waiting(facts):
        text = f"there is none, and pods with claims wait: {some_of(waiting)}"
        yield Finding.of(FindingKind.CLAIM_CLASS_MISSING, f"DeviceClass {DEVICE_CLASS}", text)


def check_claims_served(facts: Facts) -> Iterator[Finding]:
    """Yield nodes whose agent gives out cards, though not by claims, where pods bring some."""
    release = known(facts.release)
    if not release.resource_claims or known(facts.claims) is None or not _waiting(facts):
        return
    for node in known(facts.nodes):
        if _is_ours(node_facts(node, release.dialects)) and not _serves(node):
            text = f"its agent has not said that it serves ResourceClaims (annotation {SERVES_CLAIMS_ANNOTATION})"
            yield Finding.of(FindingKind.CLAIMS_NOT_SERVED, f"node {name_of(node)}", text, NODE=name_of(node))


def check_claims_made(facts: Facts) -> Iterator[Finding]:
    """Yield pods for which no claims are made from their templates."""
    now = facts.local_time if not isinstance(facts.server_time, datetime) else facts.server_time
    late = []
    for pod in _pods_with_claims(facts):
        since = time_of(created_at(pod))
        lacking = [template for _, made, template in claim_names(pod) if template and not made]
        if not bound_node(pod) and lacking and since is not None and now - since > LATE:
            late.append(f"{pod['metadata']['namespace']}/{name_of(pod)} (ResourceClaimTemplate {lacking[0]})")
    if late:
        text = f"none is made from their templates for {some_of(late)}"
        yield Finding.of(FindingKind.CLAIMS_NOT_MADE, "ResourceClaims", text)


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Yield claims that have cards of ours without the ledger."""
    held = known(facts.claims_held)
    found: dict[str, list[str]] = {}  # node -> claims
    for claim in known(facts.claims) or ():
        allocated = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        nodes = {str(each.get("pool")) for each in allocated.get("results") or () if each.get("driver") == DRIVER}
        if nodes and claim["metadata"]["uid"] not in held:
            found.setdefault(min(nodes), []).append(f"{claim['metadata']['namespace']}/{name_of(claim)}")
    for node, claims in sorted(found.items()):
        text = f"claims that are not in the ledger have its cards: {some_of(claims)}"
        yield Finding.of(FindingKind.CLAIMS_UNACCOUNTED, f"node {node}", text, NODE=node)


def _pods_with_claims(facts: Facts) -> list[Json]:
    """Return the pods of our profiles that bring claims."""
    names = known(facts.release).scheduler_names
    pods = (pod for pod in known(facts.pods) if has_claims(pod) and not is_being_deleted(pod))
    return [pod for pod in pods if scheduler_of(pod) in names]


def _waiting(facts: Facts) -> list[str]:
    """Return the names of those of them that have no node."""
    waiting = (pod for pod in _pods_with_claims(facts) if not bound_node(pod))
    return [f"{pod['metadata']['namespace']}/{name_of(pod)}" for pod in waiting]


def _serves(node: Json) -> bool:
    return (node["metadata"].get("annotations") or {}).get(SERVES_CLAIMS_ANNOTATION) == "true"


def _is_ours(node: NodeFacts) -> bool:
    return any(register.dialect is Dialect.NATIVE for register, _ in node.registers)
