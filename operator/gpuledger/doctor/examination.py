"""All checks, their findings, and how each node isolates shares.

The latter is for the nodes' administrators and no finding, since each way can be meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpuledger.doctor.checks.cluster import (
    check_agent_account,
    check_clock_here,
    check_clocks_of_nodes,
    check_crd,
    check_defaults,
    check_operator_account,
    check_over_hami,
    check_policies,
    check_preemption,
    check_scheduler_version,
    check_server_version,
    check_webhook,
)
from gpuledger.doctor.checks.nodes import (
    check_cdi,
    check_claim_class,
    check_claims,
    check_claims_made,
    check_claims_served,
    check_foreign_pods,
    check_inventory,
    check_names_of_nodes,
    check_other_schedulers,
    check_plugins,
    check_registers,
    check_scores,
    check_unaccounted,
)
from gpuledger.doctor.checks.scheduler import (
    check_group_gates,
    check_groups,
    check_lease,
    check_operator,
    check_release,
    check_scheduler_config,
    check_scheduler_errors,
    check_settings,
)
from gpuledger.doctor.facts import Facts, NotCheckedError, Unread
from gpuledger.doctor.kinds import Finding, FindingKind, Severity
from gpuledger.formats.kubernetes.node import node_facts, read_registers
from gpuledger.model.errors import BadInput

UNKNOWN = "unknown"
"""Of a card whose register does not say it."""


def isolation_of(facts: Facts) -> Mapping[str, int]:
    """Return the ways, and on how many nodes: one with several counts for each. Nothing where nodes can't be read."""
    if isinstance(facts.nodes, Unread) or isinstance(facts.release, Unread):
        return {}
    found: Counter[str] = Counter()
    for node in facts.nodes:
        named = node_facts(node, facts.release.dialects)
        try:
            cards = read_registers(named).cards if named.registers else ()
        except BadInput:
            continue  # check_registers says so
        found.update({card.mode or UNKNOWN for card in cards})
    return dict(sorted(found.items()))


Check = Callable[[Facts], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    "server-version": check_server_version,
    "preemption": check_preemption,
    "scheduler-version": check_scheduler_version,
    "crd": check_crd,
    "policies": check_policies,
    "defaults": check_defaults,
    "webhook": check_webhook,
    "operator-account": check_operator_account,
    "agent-account": check_agent_account,
    "over-hami": check_over_hami,
    "settings": check_settings,
    "release": check_release,
    "other-schedulers": check_other_schedulers,
    "operator": check_operator,
    "lease": check_lease,
    "scheduler-errors": check_scheduler_errors,
    "scheduler-config": check_scheduler_config,
    "group-gates": check_group_gates,
    "groups": check_groups,
    "inventory": check_inventory,
    "registers": check_registers,
    "names-of-nodes": check_names_of_nodes,
    "plugins": check_plugins,
    "cdi": check_cdi,
    "scores": check_scores,
    "unaccounted": check_unaccounted,
    "claim-class": check_claim_class,
    "claims-served": check_claims_served,
    "claims-made": check_claims_made,
    "claims": check_claims,
    "foreign-pods": check_foreign_pods,
    "clock-here": check_clock_here,
    "clocks-of-nodes": check_clocks_of_nodes,
}
"""Name -> check, in the order in which they are made."""

BEFORE_THE_OPERATOR = ("server-version", "preemption", "crd", "operator-account")
"""Checks that must pass before the operator starts; the others can't yet, or are no reason to wait."""

FOUND, NOT_CHECKED, NOTHING = 1, 2, 0
"""Exit statuses of the program."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, errors first."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    """Checks that were made to their end."""
    isolation: Mapping[str, int] = field(default_factory=dict)
    """How nodes keep shares apart -> on how many nodes."""

    def json(self) -> dict[str, Any]:
        """Return it as data."""
        findings = [finding.json() for finding in self.findings]
        return {"findings": findings, "checked": list(self.checked), "isolation": dict(self.isolation)}

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that are errors."""
        return tuple(finding for finding in self.findings if finding.kind.severity is Severity.ERROR)

    @property
    def exit_code(self) -> int:
        """1 for an error, else 2 if something was not checked, else 0: warnings alone are no failure."""
        if self.errors:
            return FOUND
        return NOT_CHECKED if any(each.kind is FindingKind.NOT_CHECKED for each in self.findings) else NOTHING


def examine(facts: Facts, names: Sequence[str] = tuple(CHECKS)) -> Examination:
    """Make the checks of these names. What one of them lacks keeps none of the others from its work."""
    findings: list[Finding] = []
    checked: list[str] = []
    unread: dict[Unread, list[str]] = {}  # what could not be read -> checks that needed it
    for name in names:
        try:
            findings.extend(CHECKS[name](facts))  # what it found before it lacked something counts, too
            checked.append(name)
        except NotCheckedError as error:
            unread.setdefault(error.unread, []).append(name)
    for each in fields(facts):  # a check tells of the first thing that it lacks; who may read that may lack another
        value = getattr(facts, each.name)
        if isinstance(value, Unread) and value.what:
            unread.setdefault(value, [])
    findings.extend(_not_checked(unread))
    return Examination(tuple(sorted(findings, key=_place)), tuple(checked), isolation_of(facts))


def _place(finding: Finding) -> tuple[bool, int]:
    """Return where a finding is shown: errors first, then in the order of `Kind`."""
    return finding.kind.severity is not Severity.ERROR, list(FindingKind).index(finding.kind)


def _not_checked(unread: dict[Unread, list[str]]) -> Iterator[Finding]:
    for each, checks in unread.items():
        named = f"not checked: {', '.join(checks)}" if checks else "not read; the skipped checks need it, too"
        text = f"{named}. {each.why}"
        yield Finding.of(FindingKind.NOT_CHECKED, each.what, text, f"needs {each.needs}")
