"""A node's part in sharing: its configuration, its offer, the measured use of its cards, and foreign pods on it.

`ClusterSnapshot` is the whole cluster as one round of reads shows it, for the audit. `NodeSet` takes one bit for each
node of the cluster, because thousands of pending pods have one each. Measured use comes from agents, and decides
nothing: holders are in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from weakref import WeakValueDictionary

from gpuledger.model.card import MIG, MIG_PARENT, Amounts, Card
from gpuledger.model.request import PodRequest, SeenClaim
from gpuledger.model.share import Pod, StoredCard


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node, or of all.

    It says nothing of MIG devices, which are as they are; a whole GPU that it has in MIG mode is one that is cut.
    """

    split_count: int = 10
    """Slots of each card."""
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = ""
    hidden_uuids: frozenset[str] = frozenset()
    hidden_indexes: frozenset[int] = frozenset()
    log_level: int | None = None
    """How much HAMi-core logs in containers, from 0 to 4; None: as everywhere."""

    def offered(self, cards: Iterable[Card]) -> tuple[Card, ...]:
        """Return a node's own cards as it offers them, rounded down. Not for a register, which is scaled already."""
        seen = (card for card in cards if card.uuid not in self.hidden_uuids and card.index not in self.hidden_indexes)
        return tuple(self._offered(card) for card in seen)

    def _offered(self, card: Card) -> Card:
        if card.mode == MIG:
            return card
        mode = self.mode or card.mode
        if mode in (MIG, MIG_PARENT):
            return replace(card, mode=MIG_PARENT)
        memory_mib = int(card.capacity.memory_mib * self.memory_scaling)
        return replace(card, mode=mode, capacity=Amounts(memory_mib, int(100 * self.core_scaling), self.split_count))


@dataclass(frozen=True, slots=True)
class NodeConfigs:
    """The configurations of all nodes."""

    everywhere: NodeConfig = NodeConfig()
    of_node: Mapping[str, NodeConfig] = field(default_factory=dict)
    """Node name -> its own configuration."""

    def of(self, node_name: str) -> NodeConfig:
        """Return a node's configuration."""
        return self.of_node.get(node_name, self.everywhere)


class Dialect(StrEnum):
    """The system in whose format a node's register is; its device plugin expects assignments in the same."""

    NATIVE = "native"
    HAMI = "hami"
    VOLCANO = "volcano"


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node whose device plugin answers."""

    dialect: Dialect = Dialect.NATIVE
    resources: frozenset[str] = frozenset()
    """Count resources that it serves: the kubelet asks it for no container that counts cards in another name."""
    once: frozenset[str] = frozenset()
    """Others that the node still lists, with nothing allocatable: a plugin that is gone has given out cards by them."""

    def serves(self, resource: str) -> bool:
        """Return whether a container that counts its cards in this name gets them; an empty name stands for any."""
        return not resource or resource in self.resources


class NodeSets:
    """All such sets of one cluster. Equal ones are the same object, as long as one of them is in use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # name of a node -> its bit; nodes that are gone keep theirs
        self._known: WeakValueDictionary[bytes, NodeSet] = WeakValueDictionary()

    def of(self, names: Iterable[str]) -> NodeSet:
        """Return the set of these names."""
        numbers = self._numbers
        own = [numbers.setdefault(name, len(numbers)) for name in names]
        bits = bytearray(max(own, default=-1) // 8 + 1)
        for number in own:
            bits[number >> 3] |= 1 << (number & 7)
        key = bytes(bits)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = NodeSet(numbers, key)
        return known


class NodeSet(AbstractSet[str]):
    """Names of nodes, as `NodeSets` makes it."""

    __slots__ = ("__weakref__", "_bits", "_numbers")

    def __init__(self, numbers: dict[str, int], bits: bytes) -> None:
        self._numbers = numbers
        self._bits = bits

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> AbstractSet[str]:  # type: ignore[override]
        return frozenset(names)  # what `&` and `|` make

    def __contains__(self, name: object) -> bool:
        number = self._numbers.get(name)  # type: ignore[call-overload]  # anything can be looked for
        if number is None or number >> 3 >= len(self._bits):
            return False
        return bool(self._bits[number >> 3] >> (number & 7) & 1)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._numbers if name in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NodeSet) and other._numbers is self._numbers:
            return self._bits == other._bits
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Return a hash that is equal for equal sets of one cluster, without a look at the names."""
        return hash(self._bits)

    def __len__(self) -> int:
        return int.from_bytes(self._bits, "little").bit_count()


@dataclass(frozen=True, slots=True)
class CardUsage:
    """One card. None: the driver does not say."""

    uuid: str
    memory_used_mib: int | None
    utilization_percent: int | None


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """One container's use of one card. None: unknown."""

    pod_uid: str
    container: str
    uuid: str
    memory_used_mib: int | None
    memory_limit_mib: int | None
    """The enforced limit; None where nothing is enforced."""
    utilization_percent: int | None
    last_kernel_s: int | None
    """How many seconds ago it began its last kernel."""
    paused: bool
    """Whether it stands still for a container of higher priority."""
    source: str
    """The source of the measurement: `region`, the shared memory of HAMi-core, or `nvml`, the driver."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """One agent's measurements."""

    node_name: str
    at: str
    """When, RFC 3339."""
    cards: tuple[CardUsage, ...]
    containers: tuple[ContainerUsage, ...]


@dataclass(frozen=True, slots=True)
class AnnotatedCard:
    """One container's part of one card, by the pod's annotation. Users can write it."""

    container: str
    uuid: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class OldDevices:
    """A pod's cards by another system's annotation: the cards themselves, or their numbers on the node."""

    annotation: str
    cards: tuple[AnnotatedCard, ...] = ()
    indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, as far as the audit needs it."""

    pod: Pod
    node_name: str
    """Where it is bound to; empty while it is not."""
    finished: bool
    request: PodRequest | None
    """None if it asks for no card, or if that can't be read."""
    bad_request: str = ""
    """Why what it asks for can't be read."""
    annotated: tuple[AnnotatedCard, ...] | None = None
    """The content of its annotation; None if it has none, or one that can't be read."""
    bad_annotation: str = ""
    """Why its annotation can't be read."""
    old: OldDevices | None = None
    """The annotation of the system that placed it before this one. Counts only where ours says nothing."""
    scheduler_name: str = ""
    taken_up: bool = True
    """Its kubelet has taken it up, or has to decide on it, as a scheduler has bound it."""
    past_ledger: str = ""
    """How it reaches cards that the ledger did not give it; empty if it does not, as far as it says."""

    @property
    def needs_cards(self) -> str:
        """Name of the node on which it needs its cards now; empty for a pod that is not bound, or has ended."""
        return "" if self.finished else self.node_name


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's report of its cards."""

    cards: tuple[Card, ...] | None
    """None if its register can't be read: then nothing is known of its cards."""
    problems: tuple[str, ...] = ()
    ends: Mapping[str, bool] | None = None
    """UID of a pod that has ended without a word of its kubelet -> whether anything of it runs, as its agent says; None
    if no agent reports it."""
    only_counts: bool = False
    """Its own device plugin only counts its cards: what pods have of them is in no ledger."""

    def runs(self, pod_uid: str) -> bool:
        """Return whether the agent says of a pod that anything of it is left."""
        return bool(self.ends and self.ends.get(pod_uid))


@dataclass(frozen=True, slots=True)
class SeenCard:
    """A card as it is stored, with the total that it prints."""

    stored: StoredCard
    total: Amounts | None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Cards, nodes and pods, read in this order: whatever a card shows has happened before its pod was read."""

    cards: tuple[SeenCard, ...]
    nodes: Mapping[str, NodeReport]
    """Node name -> what it reports."""
    pods: Mapping[str, PodFacts]
    """Pod UID -> pod: all of our scheduler profile, and whatever other pod the ledger names."""
    read_at: datetime
    claims: Mapping[str, SeenClaim] | None = None
    """UID -> ResourceClaim, of those that are allocated to our cards, or that the ledger names; None where claims can't
    be read."""

    def only_counts(self, node_name: str) -> bool:
        """Return whether none of a node's cards is in the ledger, as its own device plugin only counts them."""
        report = self.nodes.get(node_name)
        if report is None or not report.only_counts:
            return False
        return all(seen.stored.card.node_name != node_name for seen in self.cards)


@dataclass(frozen=True, slots=True)
class Counted:
    """How many cards one container counts under one name: what the kubelet asks of the device plugin that serves it."""

    container: str
    resource: str
    vendor: str
    cards: int


@dataclass(frozen=True, slots=True)
class UnaccountedPod:
    """A bound pod that has, or is about to get, cards from its node's device plugin, and lacks shares of them."""

    pod: Pod
    node_name: str
    counted: tuple[Counted, ...]
    """Only what is more than zero."""
    assigned: Mapping[Dialect, frozenset[str]] = field(default_factory=dict)
    """Dialect of a device plugin -> UUIDs of the cards that it was told to give out, if it names so many."""
