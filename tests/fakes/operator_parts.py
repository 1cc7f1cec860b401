"""The workflows of one operator over an API server in memory, connected as the real one connects them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from builders import OFFER, a_pod
from fakes.api_server import ApiServer, Json
from fakes.objects import WORDS
from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.controller.parts import Operator
from gpuledger.formats.extender import BindArguments, FilterArguments
from gpuledger.formats.pod import bound_node
from gpuledger.formats.stored_card import stored_card
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.share import DEFAULT_GRACE_S, Holder, Pod, Share
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy
from gpuledger.settings import Settings
from gpuledger.workflows.adopt import Adopter
from gpuledger.workflows.agent_pods import AgentPods
from gpuledger.workflows.carry_out import PreemptionCarrier
from gpuledger.workflows.claim_room import RoomClaimer
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.departures import Departures, ReleaseTimes
from gpuledger.workflows.explain_pod import PodExplainer
from gpuledger.workflows.find_victims import VictimFinder
from gpuledger.workflows.inventory import InventoryKeeper
from gpuledger.workflows.journal import Journal
from gpuledger.workflows.late_starts import LateStarts
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.learn import Learner
from gpuledger.workflows.observe_cluster import ClusterObserver
from gpuledger.workflows.place_pod import FilterResult, PodPlacer
from gpuledger.workflows.placement_settings import PlacementSettings
from gpuledger.workflows.plugin_turns import PluginTurns
from gpuledger.workflows.pod_ends import PodEnds
from gpuledger.workflows.pod_lives import PodLives
from gpuledger.workflows.preempt import Preemption, PreemptionSettings
from gpuledger.workflows.release_pod import PodReleaser
from gpuledger.workflows.tell_waiting import WaitingTeller
from gpuledger.workflows.trail import Trail
from gpuledger.workflows.unlinked_nodes import UnlinkedNodes
from gpuledger.workflows.wake_up import WaitingPods
from gpuledger.workflows.who_preempts import WhoPreempts
from gpuledger.workflows.why_waiting import WhyWaiting

HOLD_TTL_S = 30.0
BIND_TIMEOUT_S = 45.0
RELEASE_DELAY_S = 30.0
LONGEST_RELEASE_S = 3_600.0
KEPT_S = RELEASE_DELAY_S + DEFAULT_GRACE_S
"""How long a pod's shares stay that is gone without a word of its node, if nobody speaks."""

PLUGIN_TIMEOUT_S = 20.0
PREEMPTION_TIMEOUT_S = 60.0
TELL_WAITING_AFTER_S = 10.0
START_TIMEOUT_S = 0.0
"""Most tests play no kubelet."""


@dataclass
class OperatorParts:
    """One operator. A second one over the same API server is another process, or the same after a restart."""

    api: ApiServer
    ledger: Ledger = field(default_factory=Ledger)
    counts: Counts = field(default_factory=Counts)
    told: list[tuple[str, str]] = field(default_factory=list)
    """Node and sentence, for each that was told to a node."""
    told_pods: list[tuple[str, bool, str, str]] = field(default_factory=list)
    """UID of the pod, whether it is a warning, reason and sentence, for each that was told to a pod."""
    told_once: list[tuple[str, str, str, str]] = field(default_factory=list)
    """UID of the pod, reason, sentence and key, for each that was told to a pod once."""
    start_timeout_s: float = START_TIMEOUT_S
    nodes_offered: int = 1
    bind_timeout_s: float = BIND_TIMEOUT_S
    evicts: bool = True
    """Who preempts: the operator, or kube-scheduler, which asks it."""
    despite_budgets: bool = False
    release_delay_s: float = RELEASE_DELAY_S
    adopt_pods: bool = False
    scheduler_names: tuple[str, ...] = ("gpuledger",)
    policy: Policy = field(default_factory=Policy)
    leadership: Leadership = field(default_factory=lambda: Leadership(None))

    def __post_init__(self) -> None:
        self.trail = Trail()
        self.who_preempts = WhoPreempts(operator=self.evicts, scheduler=not self.evicts)
        self.journal = Journal(self.ledger, self.api.store)
        self.chooser = Chooser(self.ledger, self.policy)
        self.waiting = WaitingPods(self.ledger, self.chooser, self.api.store, self.counts, self.leadership.is_active)
        settings = PlacementSettings(WORDS, HOLD_TTL_S, self.bind_timeout_s, self.nodes_offered, self.who_preempts)
        self.agents = AgentPods()
        self.ends = PodEnds(self.agents)
        release_times = ReleaseTimes(self.release_delay_s, LONGEST_RELEASE_S)
        self.releaser = PodReleaser(
            self.ledger,
            self.journal,
            self.api.store,
            self.counts,
            settings.request,
            Departures(self.ends, release_times),
            self.leadership.is_active,
            self.trail,
        )
        self.turns = PluginTurns(
            self.ledger, WORDS, self.api.store, self.counts, PLUGIN_TIMEOUT_S, self.leadership.is_active
        )
        self.placer = PodPlacer(
            self.ledger,
            self.chooser,
            self.journal,
            self.api.store,
            self.releaser,
            self.waiting,
            self.turns,
            settings,
            self.counts,
            clock=asyncio.get_running_loop().time,
            trail=self.trail,
        )
        self.ends.on_news = self.releaser.word_of_node
        self.starts = LateStarts(self.ledger, self.api.store, self.start_timeout_s)
        self.inventory = InventoryKeeper(
            self.ledger,
            self.journal,
            self.api.store,
            self.counts,
            self,
            self.agents,
            self.starts,
            self.leadership.is_active,
        )
        self.journal.on_lost = self.inventory.recheck
        self.adopter = Adopter(
            self.ledger,
            self.journal,
            self.api.store,
            settings.facts,
            settings.stranger,
            self.adopt_pods,
            self.scheduler_names,
            release_times,
            self.leadership.is_active,
            self.trail,
        )
        self.learner = Learner(self.ledger, self.chooser, settings.request)
        self.lives = PodLives()
        self.carrier = PreemptionCarrier(
            self.ledger,
            self.journal,
            self.api.store,
            self.waiting,
            self.lives,
            self,
            self.counts,
            self.despite_budgets,
            self.placer.is_binding,
            self.leadership.is_active,
            self.trail,
        )
        self.preemption = Preemption(
            self.ledger,
            RoomClaimer(self.ledger, self.journal, self.api.store, self.lives, PREEMPTION_TIMEOUT_S),
            self.waiting,
            VictimFinder(self.ledger, self.policy, self.lives, self.api.store),
            self.carrier,
            self,
            self.counts,
            PreemptionSettings(self.who_preempts, self.despite_budgets),
            settings.request,
            self.leadership.is_active,
        )
        self.placer.before_filter = self.carrier.room_comes
        self.placer.on_refused = self.preemption.refused
        self.observer = ClusterObserver(
            self.ledger,
            self.inventory,
            self.releaser,
            self.ends,
            self.placer,
            self.waiting,
            self.turns,
            self.adopter,
            self.starts,
            self.learner,
            self.lives,
            self.preemption,
            self.api.store,
            settings.request,
            WORDS,
            self.scheduler_names,
            self.counts,
        )
        self.explainer = PodExplainer(
            self.ledger,
            self.waiting,
            self.api.store,
            settings.request,
            self.scheduler_names,
            self.placer.held_pod,
            self.lives,
        )
        self.why_waiting = WhyWaiting(self.ledger, self.chooser, self.waiting)
        self.waiting_teller = WaitingTeller(
            self.explainer, self.api.store, self, TELL_WAITING_AFTER_S, self.leadership.is_active
        )
        self.trail.listeners.append(self.waiting_teller.observe)
        self.observer.on_pending = self.waiting_teller.pending
        self.observer.on_waits_no_more = self.waiting_teller.forget
        self.observer.cards_read = True
        self._shown = 0  # changes of the API server that the watches have shown

    def as_operator(self) -> Operator:
        """Return the parts as start-up has them, for the loops that it runs. They have no connection and no server."""
        room_has_changed, kopf_lists = asyncio.Event(), KopfLists()
        kopf_lists.first.set()
        self.agents.listed.set()
        self.ledger.on_change = self.waiting.on_newcomer = room_has_changed.set
        return Operator(
            client=cast(Any, None),
            kopf_lists=kopf_lists,
            leadership=self.leadership,
            observer=self.observer,
            agents=self.agents,
            placer=self.placer,
            waiting=self.waiting,
            preemption=self.preemption,
            who_preempts=self.who_preempts,
            unlinked=UnlinkedNodes(self.ledger, self.policy),
            trail=self.trail,
            view_source=cast(Any, None),
            waiting_teller=self.waiting_teller,
            room_has_changed=room_has_changed,
            counts=self.counts,
            garbage=cast(Any, None),
            server=cast(Any, None),
            settings=Settings(preemption="own"),
        )

    def tell_node(self, node_name: str, sentence: str) -> None:
        """Keep what would be an Event of a node."""
        self.told.append((node_name, sentence))

    def tell_pod(self, pod: Pod, warning: bool, reason: str, sentence: str) -> None:
        """Keep what would be an Event of a pod."""
        self.told_pods.append((pod.uid, warning, reason, sentence))

    def tell_pod_once(self, pod: Pod, reason: str, sentence: str, key: str) -> None:
        """Keep what would be an Event of a pod, under a key."""
        self.told_once.append((pod.uid, reason, sentence, key))

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
        }
        for change in self.api.changes[self._shown :]:
            observe[change.kind](change.object, gone=change.type == "DELETED")
        self._shown = len(self.api.changes)

    def _show_pod(self, pod: Json, gone: bool) -> None:
        """Show a pod by the watch that selects it: there is one of bound pods, and one of those without a node."""
        if bound_node(pod):
            self.observer.pending_pod(pod, gone=True)
            self.observer.pod(pod, gone)
        else:
            self.observer.pending_pod(pod, gone)

    async def idle(self) -> None:
        """Let the watches show everything, and wait until nothing is left to do."""
        while True:
            self.watch()
            await self.inventory.worker.idle()
            await self.releaser.worker.idle()
            await self.carrier.worker.idle()
            if self._shown == len(self.api.changes):
                return

    def filter(self, name: str, *node_names: str) -> FilterResult:
        """Ask where a pod of the API server can go."""
        return self.placer.filter(FilterArguments(self.api.pods["default", name], list(node_names)))

    async def bind(self, name: str, node_name: str, uid: str = "") -> None:
        """Have a pod bound, as kube-scheduler would."""
        await self.placer.bind(BindArguments(uid or f"uid-{name}", "default", name, node_name))

    def shares_left(self, uid: str) -> list[str]:
        """Return where a share of a pod counts: as an entry at the API server, as one in memory, or on hold."""
        cards = (stored_card(card) for card in self.api.cards.values())
        stored = [card.card.uuid for card in cards if uid in [holder.pod.uid for holder in card.holders or ()]]
        known = [entry.card.uuid for entry in self.ledger.entries() if uid in entry.holders or uid in entry.holds]
        return stored + known + ([f"hold of {uid}"] if self.ledger.hold_of(uid) else [])

    def remembered(self, uid: str) -> list[str]:
        """Return the places in the workflows that still know a pod."""
        workflows = (self.placer, self.waiting, self.releaser)
        places = [(name, kept) for workflow in workflows for name, kept in vars(workflow).items()]
        return [name for name, kept in places if isinstance(kept, dict | set) and uid in kept]

    async def add(self, uid: str, share: Share, timeout_s: float = 10.0) -> None:
        """Enter a share into the ledger."""
        await self.journal.add(Holder(a_pod(uid), share), timeout_s)


def an_operator(api: ApiServer, release_delay_s: float = RELEASE_DELAY_S) -> OperatorParts:
    """Return an operator that knows the cards of the API server."""
    parts = OperatorParts(api, release_delay_s=release_delay_s)
    parts.read_cards()
    return parts
