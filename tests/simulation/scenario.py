"""What a simulated world begins with, and what may happen in it beside faults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from builders import a_card
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from gpuledger.configuration.settings import Settings
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.model.card import Card
from simulation.api_server import Json

if TYPE_CHECKING:
    from simulation.world import World

CARD_MIB = 16_000

SETTINGS = Settings(
    start_timeout_s=0, preemption="own", preemption_timeout_s=10.0, bind_timeout_s=1.5, extender_timeout_s=5
)
"""The simulated kubelet starts pods as late as it likes, and that is not what is simulated. Bind has little time: so it
often ends before the API server has answered."""

TIME_TO_GATHER = {"bind_timeout_s": 45.0, "extender_timeout_s": 60}
"""Where pods wait for each other in Bind, which takes longer than kube-scheduler's longest back-off."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod and what it asks for: a number of cards, whole ones if no memory is named."""

    name: str
    memory_mib: int = 0
    cards: int = 1
    priority: int = 0
    gang: str = ""
    """The gang that it is of, of which `minimum` start together."""
    minimum: int = 0

    def pod(self, uid: str, order: int) -> Json:
        """Return the pod's object, created as the n-th."""
        limits = {GPU: str(self.cards)} | ({MEMORY: str(self.memory_mib)} if self.memory_mib else {})
        pod = a_pod_object(self.name, limits, uid=uid)
        pod["metadata"]["creationTimestamp"] = f"2030-01-01T{order // 3600:02}:{order // 60 % 60:02}:{order % 60:02}Z"
        pod["spec"]["priority"] = self.priority
        if self.gang:
            pod["metadata"]["labels"] = {GANG_LABEL: self.gang, MINIMUM_LABEL: str(self.minimum)}
        return pod


class Act(Protocol):
    """Something that a person, a controller or fate may do, once, at any time."""

    def can(self, world: "World") -> bool:
        """Return whether it is possible now."""

    def do(self, world: "World") -> None:
        """Do it."""


@runtime_checkable
class Creates(Protocol):
    """An act that creates a pod."""

    @property
    def wish(self) -> Wish:
        """What the pod asks for."""


@dataclass(frozen=True)
class Scenario:
    """The beginning of a world. Equal scenarios and equal choices give equal worlds."""

    name: str
    nodes: Mapping[str, int]
    """Node name -> number of its cards, 16000 MiB each."""
    wishes: tuple[Wish, ...]
    """Pods that are there from the beginning."""
    acts: tuple[Act, ...] = ()
    replicas: int = 1
    follows_lease: bool = False
    """Only the replica that holds the Lease is active; else all are, all the time."""
    horizon_s: float = 120.0
    """After so long, nothing new goes wrong."""
    then: tuple[Act, ...] = ()
    """What happens once all is in order, one after the other; after each, things may go wrong for as long again."""
    skews_s: tuple[float, ...] = ()
    """By how much the wall clock of each replica's machine is ahead."""

    page: int = 0
    """Objects of a page of a list; 0: all are in one. Lists of several pages can expire in between."""
    behind: int = 0
    """By how many changes the API server is behind that answers a watch which begins anew, without a version."""
    kopf_pods: bool = False
    """Kopf watches pods, and not the plain watch."""
    preemption: str = "own"
    """Who preempts: `own`, the operator; or `native`, kube-scheduler, which asks it."""
    nominate_ahead_nodes: int = 0
    """From how many nodes on pods that queue are nominated."""
    quota_mib: int = 0
    """What all pods may have together; 0: as much as there is."""

    @cached_property
    def settings(self) -> Settings:
        """What all operators are told."""
        wishes = (*self.wishes, *(act.wish for act in (*self.acts, *self.then) if isinstance(act, Creates)))
        gather: dict[str, Any] = TIME_TO_GATHER if any(wish.gang for wish in wishes) else {}
        ahead = self.nominate_ahead_nodes
        return replace(SETTINGS, preemption=self.preemption, nominate_ahead_nodes=ahead, **gather)

    def skew_s(self, slot: int) -> float:
        """Return by how much the wall clock of a replica's machine is ahead."""
        return self.skews_s[slot - 1] if self.skews_s else 0.0

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """The cards of all nodes."""
        return tuple(
            a_card(index, node_name, memory_mib=CARD_MIB)
            for node_name, count in self.nodes.items()
            for index in range(count)
        )

    @cached_property
    def node_objects(self) -> tuple[Json, ...]:
        """The nodes, as the API server has them."""
        objects = [a_node_object(name, [c for c in self.cards if c.node_name == name]) for name in self.nodes]
        for node in objects:
            node["metadata"]["uid"] = f"uid-{node['metadata']['name']}"
        return tuple(objects)
