"""The operator's metrics over a ledger, with stand-ins for what it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from builders import a_card, a_request, a_share, mib, stored
from fakes.context import a_context
from fakes.virtual_time import EPOCH, StoppedClock
from gpuledger.controller.telemetry.metrics import Measured, Metrics
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.budgets import Spending
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.gang import Counted, QuotaLimit
from gpuledger.model.share import Holder, Pod
from gpuledger.model.usage import MS_PER_HOUR, Budget, Period
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy
from gpuledger.workflows.accounts import Today
from gpuledger.workflows.audit_runs import AuditRuns
from gpuledger.workflows.idle_shares import IdleShare
from gpuledger.workflows.inventory import NodesWithoutTopology
from gpuledger.workflows.journal.journal import GROUP_LIMIT
from gpuledger.workflows.pending.pod_condition import WaitingReport
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.reporting import Counts, JournalCounts

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Name and sorted labels of a sample -> its value."""

ALL = ("hami", "hami-legacy", "volcano")


@dataclass
class Shown:
    """What metrics are made from, to be changed by a test."""

    ledger: Ledger = field(default_factory=Ledger)
    counts: Counts = field(default_factory=Counts)
    journal: JournalCounts = field(default_factory=lambda: JournalCounts(GROUP_LIMIT))
    active: bool = True
    synced: bool = True
    reports: list[WaitingReport] = field(default_factory=list)
    audits: AuditRuns = field(default_factory=AuditRuns)
    by_state: dict[str, int] = field(default_factory=dict)
    nodes_asked_for: dict[str, tuple[int, int]] = field(default_factory=dict)
    today: Today | None = None
    budgets: list[tuple[str, Spending]] = field(default_factory=list)
    idle: list[IdleShare] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = a_context(StoppedClock())
        self.chooser = self.context.chooser = Chooser(self.ledger, Policy())
        self.context.ledger, self.context.counts = self.ledger, self.counts
        self.waiting = WaitingPods(self.context)

    def metrics(self, compatibility: Sequence[str] = (), *, per_card: bool = True, per_pod: bool = True) -> Metrics:
        """Return the metrics as the operator builds them."""
        unlinked = NodesWithoutTopology(self.ledger, Policy())
        measured = Measured(
            self.ledger,
            self.chooser,
            self.counts,
            self.journal,
            self.waiting,
            cast(Any, ()),
            unlinked,
            is_active=lambda: self.active,
            is_synced=lambda: self.synced,
            pending=lambda: self.reports,
            audits=self.audits,
            workloads_by_state=lambda: self.by_state,
            nodes_asked_for=lambda: self.nodes_asked_for,
            today=lambda: self.today,
            budgets=lambda: self.budgets,
            idle=lambda: self.idle,
        )
        return Metrics(measured, per_card=per_card, per_pod=per_pod, compatibility=compatibility)

    def spends_and_is_idle(self) -> None:
        """Have half of a budget of the namespace `team` spent, and each share be idle."""
        budget = Budget("gpus", "gpuledger.dev/card-hours-per-day", Period.DAY, 10)
        self.budgets.append(("team", Spending(budget, 5 * MS_PER_HOUR, 1.0, EPOCH, EPOCH.date())))
        for entry in self.ledger.entries():
            self.idle += [IdleShare(entry.card, holder, EPOCH) for holder in entry.holders.values()]


def a_report(name: str, created: str, reasons: Mapping[Reason, int]) -> WaitingReport:
    """Return the report of a pod that waits for these reasons, each that of so many nodes."""
    refusals = {Refusal(reason, reason.value): nodes for reason, nodes in reasons.items()}
    return WaitingReport(Pod(name, "team", name), a_request(mib(1)), created, None, refusals)


def everything() -> Metrics:
    """Return metrics of which each has a sample, under all names that there are."""
    shown = Shown()
    card = replace(a_card(), model="A100", mode="mig", numa_node=1)
    shown.ledger.load(stored(card, Holder(Pod("uid-a", "team", "a"), a_share(card, 4_000, 25))))
    shown.waiting.refused(Pod("uid-b", "team", "b"), a_request(mib(99_000)), "2030-01-01T00:00:00Z", ["node-a"])
    limit = QuotaLimit("gpus", "limits.nvidia.com/gpumem", Counted.MEMORY, 40_000, "nvidia")
    shown.ledger.quotas.set_limits("team", [limit])
    shown.today = Today("2030-01-01", EPOCH, {("team", "", "A100"): 1000}, lambda ended: False)
    shown.spends_and_is_idle()
    shown.by_state["waiting"] = 1
    shown.nodes_asked_for["eight-cards"] = (2, 1)
    shown.reports.append(a_report("b", "2030-01-01T00:00:00Z", {Reason.NO_MEMORY: 1}))
    ended = {"type": "Complete", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    shown.audits.observe({"metadata": {"uid": "audit"}, "status": {"conditions": [ended]}}, gone=False)
    out_of_use = replace(card, uuid="GPU-cordoned", model="A100")
    mark = "loud fan (alice, 2030-01-01 00:00 UTC)"
    shown.ledger.load(replace(stored(out_of_use), phase="Cordoned", reason=mark, cordoned=mark))
    return shown.metrics(ALL)


def samples(text: bytes) -> Samples:
    """Read a text as Prometheus does. Raises AssertionError if it has a sample twice: Prometheus drops these."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(text: bytes, name: str, **labels: str) -> float:
    """Return a sample. Raises KeyError if it is not there."""
    return samples(text)[name, tuple(sorted(labels.items()))]


def families(text: bytes) -> dict[str, str]:
    """Return the name of each metric -> its type; when a histogram was created is left out."""
    types = (line.split()[2:4] for line in text.decode().splitlines() if line.startswith("# TYPE "))
    return {name: kind for name, kind in types if not name.endswith("_created")}
