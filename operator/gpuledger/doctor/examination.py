"""All checks, their findings, and how each node isolates shares.

The latter is for the nodes' administrators and no finding, since each way can be meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpuledger.doctor import autoscaler_checks, cluster_checks, node_checks, scheduler_checks
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

MADE: tuple[Check, ...] = (
    cluster_checks.check_server_version,
    cluster_checks.check_preemption,
    cluster_checks.check_scheduler_version,
    cluster_checks.check_crd,
    cluster_checks.check_policies,
    cluster_checks.check_defaults,
    cluster_checks.check_webhook,
    cluster_checks.check_operator_account,
    cluster_checks.check_agent_account,
    cluster_checks.check_over_hami,
    scheduler_checks.check_settings,
    scheduler_checks.check_release,
    node_checks.check_other_schedulers,
    scheduler_checks.check_operator,
    scheduler_checks.check_lease,
    scheduler_checks.check_scheduler_errors,
    scheduler_checks.check_scheduler_config,
    scheduler_checks.check_group_gates,
    scheduler_checks.check_groups,
    node_checks.check_inventory,
    node_checks.check_registers,
    node_checks.check_names_of_nodes,
    node_checks.check_plugins,
    node_checks.check_cdi,
    node_checks.check_scores,
    node_checks.check_isolation,
    node_checks.check_unaccounted,
    node_checks.check_claim_class,
    node_checks.check_claims_served,
    node_checks.check_claims_made,
    node_checks.check_claims,
    node_checks.check_foreign_pods,
    node_checks.check_unserved_pods,
    node_checks.check_replicas,
    node_checks.check_card_access,
    autoscaler_checks.check_autoscalers,
    autoscaler_checks.check_keeping_nodes,
    cluster_checks.check_clock_here,
    cluster_checks.check_clocks_of_nodes,
)
"""All checks, in the order in which they are made."""

CHECKS = {check.__name__.removeprefix("check_").replace("_", "-"): check for check in MADE}
"""Name of a check -> the check."""

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
    """Make the checks of these names. Facts that one of them lacks do not stop the others."""
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
