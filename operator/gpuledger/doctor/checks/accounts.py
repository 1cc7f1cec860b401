"""Checks of our accounts' permissions."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.doctor.facts import OVER_HAMI, AccountAccess, Facts, known, name_of, some_of
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.kubernetes.node import node_facts
from gpuledger.model.node import Dialect

SHOWN = 6
"""Number of permissions to name; one remedy fixes them all."""


def check_operator_account(facts: Facts) -> Iterator[Finding]:
    """Yield each thing that the operator has to do and may not."""
    access = known(facts.operator_access)
    needed = [each for each in access.denied if each != OVER_HAMI]
    yield from _denials(FindingKind.OPERATOR_PERMISSION, AccountAccess(access.account, tuple(needed)))


def check_agent_account(facts: Facts) -> Iterator[Finding]:
    """Yield each thing that the node agents have to do and may not."""
    yield from _denials(FindingKind.AGENT_PERMISSION, known(facts.agent_access))


def _denials(kind: FindingKind, access: AccountAccess) -> Iterator[Finding]:
    """Yield one finding for what our own roles grant, and one for each role of Kubernetes' own."""
    lacking: dict[str, list[str]] = {}  # role of Kubernetes' own, or empty -> what it would grant
    for permission in access.denied:
        lacking.setdefault(permission.role, []).append(str(permission))
    for role, permissions in lacking.items():
        remedy = f"kubectl apply -k manifests/, which binds the role {role}" if role else ""
        yield Finding.of(kind, access.account, f"it may not {some_of(permissions, SHOWN)}", remedy)


def check_over_hami(facts: Facts) -> Iterator[Finding]:
    """Yield whether there are nodes with HAMi's plugin, and the operator can't set the lock that it needs."""
    dialects, access = known(facts.release).dialects, known(facts.operator_access)
    if OVER_HAMI not in access.denied:
        return
    for node in known(facts.nodes):
        offer = node_facts(node, dialects).offer
        if offer is not None and offer.dialect is Dialect.HAMI:
            text = f"node {name_of(node)} runs HAMi's device plugin, and the account may not {OVER_HAMI}"
            yield Finding.of(FindingKind.OVER_HAMI_PERMISSION, access.account, text)
            return
