"""What every part of the operator is given, and what the observer asks of each of them.

A part is a `Component`: it gets the context, and other parts that stand below it in the order of rooms, which
pyproject.toml has. What it overrides is what it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from attrs import define

from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.unsupported import PodWarning
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.pod import PodReader, ResourceNames, pod_facts, resource_names, stranger
from gpuledger.formats.resource_claims.claims import ClaimObjects, has_claims
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.clock import Clock
from gpuledger.model.json_object import Json
from gpuledger.model.node import PodFacts, UnaccountedPod
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.events import Bus
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.list_and_watch import WatchedUpTo
from gpuledger.workflows.reporting import Counts, EventRecorder
from gpuledger.workflows.tasks import Tasks
from gpuledger.workflows.trail import Trail

NONE: frozenset[str] = frozenset()


class PodFormats:
    """Reads pods, by the names of resources that the settings give."""

    def __init__(self, dialects: Dialects) -> None:
        self.dialects = dialects
        self.claims: ClaimObjects | None = None
        """Reads the demands of pods' ResourceClaims; None where claims are not served."""
        self._pods = PodReader(dialects)

    def request(self, pod: Mapping[str, Any]) -> PodRequest | None:
        """Return a pod's request, None if it asks for no card. Raises BadInput."""
        if self.claims is not None and has_claims(pod):
            return pod_request(pod, self.dialects, self.claims)
        return self._pods.request(pod)

    def warnings(self, pod: Mapping[str, Any]) -> tuple[PodWarning, ...]:
        """Return warnings about the fields of a pod that have no effect."""
        return self._pods.warnings(pod)

    def words(self, pod: Mapping[str, Any], container_name: str) -> ResourceNames:
        """Return the names of resources that a pod's container has."""
        return resource_names(pod, container_name, self.dialects)

    def facts(self, pod: Mapping[str, Any]) -> PodFacts:
        """Return the facts about a pod that the ledger needs, whether its request is readable or not."""
        return pod_facts(pod, self.dialects, self.claims)

    def host(self, pod: Mapping[str, Any]) -> HostAmounts:
        """Return the CPU and memory that a pod takes of its node."""
        return self._pods.host(pod)

    def stranger(self, pod: Mapping[str, Any]) -> UnaccountedPod | None:
        """Return the cards that a pod may have got from its node's device plugin, None if it can have none."""
        return stranger(pod, self._pods.counted(pod), self.dialects)


ASKS_EXTENDERS = (1, 38)
"""From this version on kube-scheduler asks an extender for victims on nodes that only the extender has refused."""


@dataclass(slots=True)
class PreemptionMode:
    """Which program evicts; no program, as long as it is not known."""

    operator: bool = False
    scheduler: bool = False
    """kube-scheduler preempts, and asks the operator for victims."""

    @property
    def is_known(self) -> bool:
        """Return whether any program evicts."""
        return self.operator or self.scheduler

    @classmethod
    def by_setting(cls, preemption: str) -> PreemptionMode:
        """Return the mode of a setting: own, native, off, or auto, which is detected later."""
        return cls(operator=preemption == "own", scheduler=preemption == "native")

    def know(self, version: tuple[int, int]) -> None:
        """Observe the API server's version, major and minor."""
        self.scheduler = version >= ASKS_EXTENDERS
        self.operator = not self.scheduler


class Context:
    """The ledger, the API server, the clock, and all else that has no workflow in it."""

    def __init__(
        self,
        store: KubeStore,
        settings: Settings,
        dialects: Dialects,
        event_recorder: EventRecorder,
        leadership: Leadership,
        clock: Clock,
        gather_s: float = 0.0,
    ) -> None:
        """`gather_s` is how long the journal waits for more of a card."""
        self.store, self.settings, self.event_recorder = store, settings, event_recorder
        self.leadership, self.clock = leadership, clock
        self.formats = PodFormats(dialects)
        self.events, self.tasks, self.counts = Bus(), Tasks(), Counts()
        self.trail = Trail(clock=clock, kept=settings.trail_kept)
        self.ledger = Ledger(settings.gang_zones)
        self.policy = Policy(*map(Preference, settings.policies))
        self.chooser = Chooser(self.ledger, self.policy)
        self.journal = Journal(ledger=self.ledger, store=store, clock=clock, gather_s=gather_s)
        self.preemption_mode = PreemptionMode.by_setting(settings.preemption)
        self.cards_watched = WatchedUpTo()
        self.room_has_changed = asyncio.Event()
        """Set whenever a pod that waits may have room now."""
        self.ledger.on_change.append(self.room_has_changed.set)


class Follower:
    """Follows what the watches show. Here the methods do nothing: a part overrides what it follows."""

    # Bound pods of our scheduler profiles.

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod, which may have ended; `bound_before` says that it was bound when this process began."""

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod is gone, with what the watch has shown last; None: a full list does not have it.

        Idempotent, and harmless for a pod that was never seen.
        """

    def known_bound(self) -> AbstractSet[str]:
        """Return the UIDs of the bound pods of which something is kept."""
        return NONE

    # Pods of our scheduler profiles that have no node.

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod waits no more: it is bound or gone. Idempotent."""

    def known_pending(self) -> AbstractSet[str]:
        """Return the UIDs of the pods without a node of which something is kept."""
        return NONE

    # Nodes and cards.

    def observe_node(self, node: Json) -> None:
        """Observe a Node."""

    def forget_node(self, node_name: str) -> None:
        """Record that a node is gone."""

    def observe_card(self, entry: CardEntry) -> None:
        """Observe a card as the API server has it, once all that is known at the start has been read."""

    def became_active(self) -> None:
        """Continue what another operator has left: this one has become active, and has read everything."""

    async def stop(self) -> None:
        """End what is under way, and begin nothing any more."""


@define(eq=False, slots=False)
class Component(Follower):
    """A part of the operator, with what every part is given."""

    _context: Context

    def __attrs_pre_init__(self, context: Context, *_: Any, **__: Any) -> None:
        self._ledger, self._chooser, self._journal = context.ledger, context.chooser, context.journal
        self._store, self._clock, self._settings = context.store, context.clock, context.settings
        self._counts, self._trail, self._event_recorder = context.counts, context.trail, context.event_recorder
        self._formats, self._events, self._tasks = context.formats, context.events, context.tasks
        self._is_active = context.leadership.is_active
