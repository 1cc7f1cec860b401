"""The workflows' reports: counters, which the controller exposes as metrics, and Events.

Counters are those of Prometheus' client library, each declared here and nowhere else: its name, its text, and the
values of its label that are known. Their names begin with `gpuledger_`.

Each Event is posted once, in the background, as the log has it in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuledger.formats.dialects.unsupported import WarningKind
from gpuledger.formats.kubernetes.other import named_once, node_event, pod_event, quota_event_once
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, Conflict, EventReason, Reason
from gpuledger.model.gang import GatherEnd
from gpuledger.model.share import Pod

NAMESPACE: Final = "gpuledger"

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Upper ends of the buckets of a duration."""


class PreemptionOutcome(StrEnum):
    """The outcome of a preemption."""

    BEGUN = "begun"
    DONE = "done"
    FORBIDDEN = "forbidden"
    """PodDisruptionBudgets protect the victims."""
    GIVEN_UP = "given-up"


class AheadOutcome(StrEnum):
    """What has become of a nomination ahead of kube-scheduler's question."""

    FOLLOWED = "followed"
    LATE = "late"
    """kube-scheduler has asked for the pod before it could see it."""
    REFUSED = "refused"
    """The pod does not fit on the node, in kube-scheduler's eyes."""


PLACE_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)
"""Upper ends of the buckets of how long a gang waits."""


class Counts:
    """Counters that only grow, in a registry of their own: there can be several operators in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=NAMESPACE, registry=self.registry)
        self.filters = counter("filters", "Filter requests of kube-scheduler")
        self.pods_examined = counter("pods_examined", "Events of bound pods that the operator examined")
        self.node_events = counter("node_events", "Events of nodes")
        self.nodes_examined = counter("nodes_examined", "Events of nodes that changed the ledger's data")
        self.cards_written = counter(
            "cards_written", "Cards created, changed or deleted, without changes of their status"
        )
        self.releases = counter("releases", "Pods whose shares were released")
        self.usage_entered = counter("usage_entered", "Ended shares entered in the records of what namespaces held")
        self.wake_ups = counter("wake_ups", "Patches of waiting pods that made kube-scheduler retry them")
        self.evictions = counter("evictions", "Pods evicted for pods of higher priority")
        self.failure_evictions = counter("failure_evictions", "Pods evicted from cards that have failed")
        self.conflict_evictions = counter(
            "conflict_evictions", "Pods evicted from cards that have no room for all theirs"
        )
        self.idle_evictions = counter("idle_evictions", "Pods evicted as their shares had not been used for too long")
        self.budget_evictions = counter("budget_evictions", "Pods evicted as the budget of their namespace was spent")
        self.plugin_late = counter("plugin_late", "Pods that HAMi's or Volcano's device plugin did not find in time")
        self.binds = counter("binds", "Bind requests by outcome", ["outcome"])
        _begin(self.binds, ("bound", "failed", "late"))
        self.refusals = counter("refusals", "Filter requests for which no node fits, by reason", ["reason"])
        """The reason is that of the first node."""
        _begin(self.refusals, Reason)
        self.preemptions = counter("preemptions", "Preemptions, by outcome", ["outcome"])
        _begin(self.preemptions, PreemptionOutcome)
        text = "Pods nominated for a node before kube-scheduler asked for them, by what it made of that"
        self.nominated_ahead = counter("nominated_ahead", text, ["outcome"])
        _begin(self.nominated_ahead, AheadOutcome)
        text = "Times that members of a gang stood in Bind and were not bound, by why"
        self.gathers_given_up = counter("gang_gathers_given_up", text, ["reason"])
        _begin(self.gathers_given_up, GatherEnd)
        text = "Times that a gang went first, as many had started that came after it"
        self.gangs_first = counter("gangs_first", text)
        self.gang_place_seconds = Histogram(
            "gang_place_seconds",
            "Time from when the last member that a gang needs was seen until as many are bound as it needs",
            namespace=NAMESPACE,
            registry=self.registry,
            buckets=PLACE_SECONDS,
        )
        text = "What the admission check of cards has said of Kueue's workloads, by state"
        self.workload_checks = counter("workload_checks", text, ["state"])
        _begin(self.workload_checks, ("Pending", "Ready", "Retry"))
        self.words_without_effect = counter(
            "words_without_effect", "Warnings about pods that are taken all the same", ["kind"]
        )
        _begin(self.words_without_effect, WarningKind)
        text = "Lines of the history, from a file or another replica, that are no records of this release"
        self.trail_lines_skipped = counter("trail_lines_skipped", text)
        text = "Records of the history that could not be written to a file"
        self.trail_lines_lost = counter("trail_lines_lost", text)
        self.bad_input = counter("bad_input", "Objects that could not be parsed", ["kind"])
        kinds = ("allocation", "config", "node", "pod", "podgroup", "request", "resourcequota")
        _begin(self.bad_input, (*kinds, "resourceclaims", "resourceclaimtemplates"))


class JournalCounts:
    """Counters of the journal. A write carries `most_entries` at most."""

    def __init__(self, most_entries: int) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=NAMESPACE, registry=self.registry)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=self.registry)
        self.patches = counter("ledger_patches", "Writes of a card's status")
        self.entries = counter("ledger_entries", "Changes in these writes")
        self.refusals = counter("ledger_refusals", "Writes of a card's status that a rule of the ledger rejected")
        text = "Writes of a card's status that failed, without refusals; each is retried"
        self.failures = counter("ledger_write_failures", text, ["kind"])
        _begin(self.failures, ("conflict", "error", "not-found", "unreachable"))
        text = "Shares whose time is in no account, since the card's list of ended shares was full"
        self.lost_time = counter("usage_lost", text)
        text = "Time from a write of a card's status to its response"
        self.write_seconds = histogram("ledger_write_seconds", text, buckets=SECONDS)
        text = "Changes per write of a card's status"
        self.write_entries = histogram("ledger_write_entries", text, buckets=(1, 2, 4, 8, 16, 32, most_entries))


def _begin(counter: Counter, values: Iterable[str]) -> None:
    """Let the values of a label count from 0: Prometheus sees no increase where a sample begins with 1."""
    for value in values:
        counter.labels(value)


logger = logging.getLogger(__name__)

POSTS_AT_ONCE = 16
"""A node that loses all its cards has hundreds of pods to tell."""


class EventRecorder:
    """Posts Events of nodes and pods in the background; none of these calls fails."""

    def __init__(self, store: KubeWrites, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(POSTS_AT_ONCE)

    def post_node_event(self, node_name: str, sentence: str) -> None:
        """Show what is wrong with a node's inventory."""
        self._post(node_event(node_name, EventReason.BAD_INVENTORY, sentence, self._clock.wall()))

    def post_pod_event(self, pod: Pod, warning: bool, reason: EventReason, sentence: str) -> None:
        """Show what has become of a pod's card."""
        self._post(pod_event(pod, warning, reason, sentence, self._clock.wall()))

    def post_pod_event_once(self, pod: Pod, reason: EventReason, sentence: str, key: str) -> None:
        """Warn about a pod, unless it was warned under this key before."""
        self._post(named_once(pod_event(pod, True, reason, sentence, self._clock.wall()), pod, key))

    def post_quota_event_once(self, namespace: str, quota: str, reason: EventReason, sentence: str, key: str) -> None:
        """Warn about a ResourceQuota, unless that was done under this key before."""
        self._post(quota_event_once(namespace, quota, reason, sentence, self._clock.wall(), key))

    def _post(self, event: dict[str, Any]) -> None:
        task = asyncio.create_task(self._create(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, event: dict[str, Any]) -> None:
        try:
            async with self._places:
                await self._store.create_event(event)
        except Conflict:  # the Event exists already
            pass
        except ApiError as error:
            about = event["involvedObject"]
            logger.warning("%s %s: the Event could not be created: %s", about["kind"].lower(), about["name"], error)
