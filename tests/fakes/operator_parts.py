"""The workflows of one operator over an API server in memory, connected as the real one connects them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from builders import OFFER, a_pod
from fakes.api_server import ApiServer
from fakes.objects import DIALECTS
from fakes.virtual_time import LoopClock, settle
from gpuledger.configuration.node_templates import NewNodes
from gpuledger.configuration.settings import Settings
from gpuledger.controller.kopf_session import ListsRead
from gpuledger.controller.startup import Operator, subscriptions_of
from gpuledger.formats.annotations import STAND_IN_LABEL
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, Clock
from gpuledger.model.share import DEFAULT_GRACE_S, Holder, Pod, Share
from gpuledger.placement.policy import Preference
from gpuledger.workflows.context import Context
from gpuledger.workflows.kinds import Watcher
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.observe_cluster import DemandHistory
from gpuledger.workflows.placing.place_pod import FilterResult
from gpuledger.workflows.wiring import connect

HOLD_TTL_S = 30.0
BIND_TIMEOUT_S = 45.0
RELEASE_DELAY_S = 30.0
LONGEST_RELEASE_S = 3_600.0
KEPT_S = RELEASE_DELAY_S + DEFAULT_GRACE_S
"""How long a pod's shares stay that is gone without a word of its node, if nobody speaks."""

PLUGIN_TIMEOUT_S = 20.0
PREEMPTION_TIMEOUT_S = 60.0
TELL_WAITING_AFTER_S = 10.0
KUEUE_RESERVE_S, KUEUE_RETRY_S = 30.0, 10.0
PATIENCE_S = 300.0
START_TIMEOUT_S = 0.0
"""Most tests play no kubelet."""


@dataclass
class OperatorParts:
    """One operator. A second one over the same API server is another process, or the same after a restart."""

    api: ApiServer
    told: list[tuple[str, str]] = field(default_factory=list)
    """Node and sentence, for each that was told to a node."""
    told_pods: list[tuple[str, bool, str, str]] = field(default_factory=list)
    """UID of the pod, whether it is a warning, reason and sentence, for each that was told to a pod."""
    told_once: list[tuple[str, str, str, str]] = field(default_factory=list)
    """UID of the pod, reason, sentence and key, for each that was told to a pod once."""
    start_timeout_s: float = START_TIMEOUT_S
    nodes_offered: int = 1
    nominate_ahead_nodes: int = Settings().nominate_ahead_nodes
    bind_timeout_s: float = BIND_TIMEOUT_S
    evicts: bool = True
    """Who preempts: the operator, or kube-scheduler, which asks it."""
    despite_budgets: bool = False
    release_delay_s: float = RELEASE_DELAY_S
    adopt_pods: bool = False
    kueue: bool = False
    keep_nodes_in_use: bool = False
    growth: str = "none"
    node_templates: tuple[NewNodes, ...] = ()
    preemption_waits_for_nodes_s: float = 0.0
    scheduler_names: tuple[str, ...] = ("gpuledger",)
    policy: Preference = Preference.BINPACK
    leadership: Leadership = field(default_factory=lambda: Leadership(None))
    clock: Clock = field(default_factory=LoopClock)
    more: Mapping[str, object] = field(default_factory=dict)
    """Other settings."""

    def __post_init__(self) -> None:
        first, *others = self.scheduler_names
        self.settings = Settings(
            scheduler_name=first,
            extra_scheduler_names=tuple(others),
            node_policy=self.policy,
            card_policy=self.policy,
            hold_ttl_s=HOLD_TTL_S,
            bind_timeout_s=self.bind_timeout_s,
            nodes_offered=self.nodes_offered,
            nominate_ahead_nodes=self.nominate_ahead_nodes,
            preemption="own" if self.evicts else "native",
            preempt_despite_budgets=self.despite_budgets,
            preemption_timeout_s=PREEMPTION_TIMEOUT_S,
            release_delay_s=self.release_delay_s,
            longest_release_s=LONGEST_RELEASE_S,
            plugin_timeout_s=PLUGIN_TIMEOUT_S,
            start_timeout_s=self.start_timeout_s,
            tell_waiting_after_s=TELL_WAITING_AFTER_S,
            adopt_pods=self.adopt_pods,
            kueue=self.kueue,
            keep_nodes_in_use=self.keep_nodes_in_use,
            growth=self.growth,
            node_templates=self.node_templates,
            growth_patience_s=PATIENCE_S,
            preemption_waits_for_nodes_s=self.preemption_waits_for_nodes_s,
            kueue_reserve_s=KUEUE_RESERVE_S,
            kueue_retry_s=KUEUE_RETRY_S,
        ).changed(self.more)
        self.workflows = connect(
            Context(self.api.store, self.settings, DIALECTS, cast(Any, self), self.leadership, self.clock)
        )
        self.ledger = self.workflows.context.ledger
        self.counts = self.workflows.context.counts
        self.trail = self.workflows.context.trail
        self.chooser = self.workflows.context.chooser
        self.journal = self.workflows.context.journal
        self.agents = self.workflows.agents
        self.starts = self.workflows.starts
        self.ends = self.workflows.ends
        self.releaser = self.workflows.releaser
        self.turns = self.workflows.turns
        self.waiting = self.workflows.waiting
        self.placer = self.workflows.placer
        self.lives = self.workflows.lives
        self.carrier = self.workflows.preemption.executor
        self.preemption = self.workflows.preemption
        self.inventory = self.workflows.inventory
        self.adopter = self.workflows.adopter
        self.observer = self.workflows.observer
        self.learner = next(each for each in self.observer.followers if isinstance(each, DemandHistory))
        self.explainer = self.workflows.explainer.pods
        self.pod_condition_writer = self.workflows.pod_condition_writer
        self.why_waiting = self.workflows.why_waiting
        self.observer.cards_read = True
        self._shown = 0  # changes of the API server that the watches have shown

    def as_operator(self) -> Operator:
        """Return the parts as start-up has them, for the loops that it runs. They have no connection and no server."""
        lists = ListsRead([])
        lists.first.set()
        followers = subscriptions_of(self.workflows, self.settings, lists, None, Watcher.PLAIN)
        for each in followers:
            each.listed.set()
        return Operator(
            client=cast(Any, None),
            settings=self.settings,
            clock=self.clock,
            workflows=self.workflows,
            lists=lists,
            subscriptions=followers,
            view_source=cast(Any, None),
            gc_tuning=cast(Any, None),
            server=cast(Any, None),
            history=cast(Any, None),
        )

    def post_node_event(self, node_name: str, sentence: str) -> None:
        """Keep what would be an Event of a node."""
        self.told.append((node_name, sentence))

    def post_pod_event(self, pod: Pod, warning: bool, reason: str, sentence: str) -> None:
        """Keep what would be an Event of a pod."""
        self.told_pods.append((pod.uid, warning, reason, sentence))

    def post_pod_event_once(self, pod: Pod, reason: str, sentence: str, key: str) -> None:
        """Keep what would be an Event of a pod, under a key."""
        self.told_once.append((pod.uid, reason, sentence, key))

    def post_quota_event_once(self, namespace: str, quota: str, reason: str, sentence: str, key: str) -> None:
        """Keep what would be an Event of a ResourceQuota, under a key."""
        self.told_once.append((f"{namespace}/{quota}", reason, sentence, key))

    def entry(self, card: Card) -> CardEntry:
        """Return a card's line."""
        entry = self.ledger.entry(card.uuid)
        assert entry is not None
        return entry

    def read_cards(self) -> None:
        """Take over the cards that the API server has; the agents of their nodes answer."""
        for allocation in self.api.cards.values():
            self.observer.allocation(allocation, gone=False)
            self.ledger.set_offer(allocation["spec"]["nodeName"], OFFER)

    def watch(self) -> None:
        """Let the watches show what has changed since the last time."""
        observe = {
            "Node": self.observer.node,
            "Pod": self._show_pod,
            "GPUAllocation": self.observer.allocation,
            "ResourceQuota": self.workflows.quotas.observe,
            "Workload": self.workflows.queues.check.observe,
            "GPUReservation": self.workflows.reservations.book.observe,
            "GPUUsage": _is_not_watched,
        }
        for change in self.api.changes[self._shown :]:
            observe[change.kind](change.object, gone=change.type == "DELETED")
        self._shown = len(self.api.changes)

    def _show_pod(self, pod: dict[str, Any], gone: bool) -> None:
        self.observer.any_pod(pod, gone)
        if STAND_IN_LABEL in (pod["metadata"].get("labels") or {}):
            self.workflows.growth.stand_ins.observe(pod, gone)

    async def idle(self) -> None:
        """Let the watches show everything, and wait until nothing is left to do."""
        while True:
            self.watch()
            await self.inventory.worker.idle()
            await self.releaser.worker.idle()
            await self.carrier.worker.idle()
            await self.workflows.failures.worker.idle()
            await self.workflows.accounting.budgets.worker.idle()
            await self.workflows.accounting.idle.worker.idle()
            if self._shown == len(self.api.changes):
                return

    def filter(self, name: str, *node_names: str) -> FilterResult:
        """Ask where a pod of the API server can go."""
        return self.placer.filter(FilterArguments(self.api.pods["default", name], list(node_names)))

    async def bind(self, name: str, node_name: str, uid: str = "") -> None:
        """Have a pod bound, as kube-scheduler would."""
        await self.placer.bind(BindArguments(uid or f"uid-{name}", "default", name, node_name))

    async def bind_watching(self, name: str, node_name: str) -> None:
        """Have a pod bound, while the watches show what is written."""
        binding = asyncio.create_task(self.bind(name, node_name))
        while not binding.done():
            await settle()
            self.watch()
        await binding

    def shares_left(self, uid: str) -> list[str]:
        """Return where a share of a pod counts: as an entry at the API server, as one in memory, or on hold."""
        cards = (stored_card(card) for card in self.api.cards.values())
        stored = [card.card.uuid for card in cards if uid in [holder.pod.uid for holder in card.holders or ()]]
        known = [entry.card.uuid for entry in self.ledger.entries() if uid in entry.holders or uid in entry.seats]
        return stored + known + ([f"hold of {uid}"] if self.ledger.seats.of(uid) else [])

    def remembered(self, uid: str) -> list[str]:
        """Return the places in the workflows that still know a pod, but those that forget by themselves."""
        workflows = (self.placer, self.waiting, self.releaser)
        places = [(name, kept) for workflow in workflows for name, kept in vars(workflow).items()]
        unbounded = [(name, kept) for name, kept in places if not isinstance(kept, BoundedMap)]
        return [name for name, kept in unbounded if isinstance(kept, dict | set) and uid in kept]

    async def add(self, uid: str, share: Share, timeout_s: float = 10.0) -> None:
        """Enter a share into the ledger."""
        await self.journal.add(Holder(a_pod(uid), share), timeout_s)


def _is_not_watched(found: dict[str, Any], gone: bool) -> None:
    """Show an object that nobody follows."""


def an_operator(api: ApiServer, release_delay_s: float = RELEASE_DELAY_S, clock: Clock | None = None) -> OperatorParts:
    """Return an operator that knows the cards of the API server."""
    parts = OperatorParts(api, release_delay_s=release_delay_s, clock=clock or LoopClock())
    parts.read_cards()
    return parts
