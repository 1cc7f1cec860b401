"""A pod's request: cards, ResourceClaims, and what it takes of a node beside the cards of the ledger.

The latter is CPU, memory, and cards that only their own plugin counts. kube-scheduler decides about CPU and memory;
here they matter to preferences alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property

from gpuledger.model.card import MIG, Amounts, Card, CardFilter, CardRule, attribute_of


def entry_text(name: str) -> str:
    """Return the name, for people, of an entry of a request or a share: a container, or a request of a claim."""
    claim, _, request = name.partition("/")
    return f"claim {claim}, request {request}" if request else claim


MAX_CARDS = 1024
"""Cards of one container, beyond any node."""

MAX_ENTRIES = 256
"""Models or UUIDs of one pod: no honest pod names more, and each is compared with every card."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim that a pod brings, and that is to be allocated together with it."""

    name: str
    """In the pod's spec; its entries in requests and shares are called `<name>/<request>`."""
    object_name: str = ""
    """Of the ResourceClaim; empty as long as it has not been created from its template."""
    uid: str = ""
    """Of the ResourceClaim; empty likewise."""
    shared: bool = False
    """The pod names the ResourceClaim itself, so other pods can join it."""
    wishes: Hashable = None
    """The claim's spec: compared with its object before cards are entered for it."""

    def holds(self, entry: str) -> bool:
        """Return whether an entry of a request or a share is one of the claim's."""
        return entry.startswith(f"{self.name}/")


@dataclass(frozen=True, slots=True)
class JoinedClaim:
    """A claim that is allocated already, for another pod: a pod that joins shares that one's cards, on its node."""

    name: str
    object_name: str
    uid: str
    node_name: str


@dataclass(frozen=True, slots=True)
class HostAmounts:
    """CPU in thousandths of a core, memory in MiB. Differences can be negative: a node can shrink."""

    cpu_milli: int = 0
    memory_mib: int = 0
    cards: int = 0
    """Whole cards under the name by which NVIDIA's own device plugin serves them."""

    def __add__(self, other: HostAmounts) -> HostAmounts:
        cards = self.cards + other.cards
        return HostAmounts(self.cpu_milli + other.cpu_milli, self.memory_mib + other.memory_mib, cards)

    def __sub__(self, other: HostAmounts) -> HostAmounts:
        cards = self.cards - other.cards
        return HostAmounts(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib, cards)

    def fits_in(self, room: HostAmounts) -> bool:
        """Return whether CPU and memory are at most the room's."""
        return self.cpu_milli <= room.cpu_milli and self.memory_mib <= room.memory_mib

    def peak(self, other: HostAmounts) -> HostAmounts:
        """Return the larger of each amount."""
        cards = max(self.cards, other.cards)
        return HostAmounts(max(self.cpu_milli, other.cpu_milli), max(self.memory_mib, other.memory_mib), cards)


NO_HOST = HostAmounts()


ANY_NVIDIA = CardFilter()

NVIDIAS_COUNT = "nvidia.com/gpu"
"""The name by which NVIDIA's own device plugin serves whole cards."""


class Lifetime(Enum):
    """When a container runs, relative to the others of its pod."""

    MAIN = "main"
    INIT = "init"
    """Runs to its end before the next init container and before the main ones."""
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always: starts in its turn and stays."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One container's request of each of `cards` different cards.

    Memory is `memory_mib`, or `memory_percent` of each card when `memory_mib` is None.
    """

    cards: int
    memory_mib: int | None = None
    memory_percent: int = 100
    cores: int = 0
    exclusive: bool = False
    """Alone on the card, for as long as the container runs."""
    lifetime: Lifetime = Lifetime.MAIN
    resource: str = ""
    """The name by which the cards are counted; empty if the container names none, and gets the default number."""
    wanted: CardFilter = ANY_NVIDIA
    at_most_card: bool = False
    """More memory than a card has stands for all that it has, and does not keep the container from it."""
    one_numa_node: bool = False
    """All cards on one NUMA node."""
    module: int = 1
    """Cards come in modules of so many, by their index, and only whole ones are given: `cards` is a multiple of it."""
    rules: tuple[CardRule, ...] = ()
    """Values that the cards must share, or must not share, with each other and with those of other demands."""
    every_card: bool = False
    """Every card of the node that the demand admits: `cards` is 1 as long as no node is looked at, see `on`."""
    joint: bool = field(init=False, repr=False, compare=False)
    """More counts than which cards it gets and what is free on each: it matters which others there are."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Shapes are keys of many tables, and looked up at each turn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "joint", self.one_numa_node or self.every_card or bool(self.rules))
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _COMPARED)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def whole(self) -> bool:
        """All of the card, whatever its size."""
        return self.exclusive and self.memory_mib is None and self.memory_percent == 100

    def admits(self, card: Card) -> bool:
        """Return whether the container may get this card at all, however much is free on it.

        A MIG device is a part of a GPU. A request for cards, or for percents of one, does not mean a part of a part: it
        has to ask for one card by its memory alone, within the device's memory, or name the device or its mode.
        """
        if not self.wanted.admits(card) or (self.rules and self.attribute_lacking(card)):
            return False
        if card.mode != MIG or self.wanted.names(card):
            return True
        if self.memory_mib is None or self.cores or self.cards > 1 or self.every_card:
            return False
        return not self.at_most_card or self.memory_mib <= card.capacity.memory_mib

    def on(self, cards: Iterable[Card]) -> Demand:
        """Return the demand as it is on a node with these cards: every card is so many, one at least."""
        if not self.every_card:
            return self
        without_rules = replace(self, rules=())
        return replace(self, cards=max(1, sum(map(without_rules.admits, cards))))

    def attribute_lacking(self, card: Card) -> str:
        """Return the first attribute that a rule compares and the card has not; empty if it has all of them."""
        return next((rule.attribute for rule in self.rules if attribute_of(card, rule.attribute) is None), "")

    @property
    def only_counts(self) -> bool:
        """Return whether all that it says of its cards is how many of NVIDIA's it wants, under their own plugin's name.

        So a device plugin that only counts its cards can serve it.
        """
        is_any = self.wanted == ANY_NVIDIA and not self.joint and self.module == 1
        return self.whole and is_any and self.resource == NVIDIAS_COUNT

    def amounts_on(self, capacity: Amounts) -> Amounts:
        """Return the container's amounts on a card of this capacity: one slot, and the resolved memory and cores.

        A percentage is rounded down, so that a hundred single percents fit on a card.
        """
        if self.memory_mib is not None:
            memory_mib = min(self.memory_mib, capacity.memory_mib) if self.at_most_card else self.memory_mib
        else:
            memory_mib = max(1, capacity.memory_mib * self.memory_percent // 100)
        return Amounts(memory_mib, capacity.cores if self.whole else self.cores, 1)


_COMPARED = tuple(each.name for each in fields(Demand) if each.compare)

Shape = tuple[Demand, ...]
"""The demands of a pod's containers: pods of one shape fit on the same nodes."""


def shape_on(shape: Shape, cards: Sequence[Card]) -> Shape:
    """Return a shape as it is on a node with these cards, see `Demand.on`."""
    if not any(demand.every_card for demand in shape):
        return shape
    return tuple(demand.on(cards) for demand in shape)


@dataclass(frozen=True)
class PodRequest:
    """The containers of a pod that ask for a card, in the order of the pod: name and demand."""

    names: tuple[str, ...]
    shape: Shape
    all_containers: tuple[str, ...] = field(default=(), compare=False)
    """Names of all containers of the pod, the init containers first: some formats count positions."""
    init_containers: int = field(default=0, compare=False)
    """How many of these are init containers."""
    node_policy: str = ""
    """How to choose among nodes, as the pod wishes; empty: as the cluster does."""
    card_policy: str = ""
    host: HostAmounts = NO_HOST
    """The whole pod's request of the node's CPU and memory."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Sentences on words that are understood, though hardly meant."""
    claims: tuple[PodClaim, ...] = field(default=(), compare=False)
    """ResourceClaims that are to be allocated with the pod: their requests are among the names."""
    joined: tuple[JoinedClaim, ...] = field(default=(), compare=False)
    """ResourceClaims that are allocated already, on one node, and that the pod is to share."""
    alternatives: tuple[PodRequest, ...] = ()
    """Other requests that the pod accepts where a node does not have this, the preferred first."""

    @property
    def brings_claims(self) -> bool:
        """Return whether something has to be written into ResourceClaims when the pod is bound."""
        return bool(self.claims or self.joined)

    @property
    def joined_node(self) -> str:
        """The node on which the claims are that the pod joins; empty if it joins none."""
        return self.joined[0].node_name if self.joined else ""

    @property
    def variants(self) -> tuple[PodRequest, ...]:
        """All that the pod takes, the preferred first: this request, and its alternatives."""
        return (self, *self.alternatives)

    @cached_property
    def cards(self) -> int:
        """Upper bound of the cards used: nothing is shared between the containers. Every card counts as one."""
        return sum(demand.cards for demand in self.shape)


def counted_cards(shape: Shape) -> int:
    """Return how many cards a node has to have where nothing but their number is known: none is used twice at once."""
    return max((sum(shape[position].cards for position in phase) for phase in phases(shape)), default=0)


def phases(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Return the sets of containers (indexes into the shape) that run at the same time.

    Source: Kubernetes' rule for a pod's effective request. Each init container runs beside the sidecars declared
    before it; the main containers run beside all sidecars. The sets of a starting sidecar are subsets of the last.
    """
    sidecars: list[int] = []
    result: list[tuple[int, ...]] = []
    for position, demand in enumerate(shape):
        if demand.lifetime is Lifetime.SIDECAR:
            sidecars.append(position)
        elif demand.lifetime is Lifetime.INIT:
            result.append((*sidecars, position))
    last = tuple(sidecars) + tuple(i for i, demand in enumerate(shape) if demand.lifetime is Lifetime.MAIN)
    return (*result, last) if last else tuple(result)


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A claim, and what its status gives."""

    namespace: str
    name: str
    uid: str
    node_name: str = ""
    """Where its cards are; empty if none of ours are allocated to it."""
    cards: frozenset[tuple[str, str]] = frozenset()
    """Request, or `request/alternative`, and UUID of a card; the device's name of one that no card has."""
    consumers: tuple[str, ...] = ()
    """UIDs of the pods that may use it."""
    consumer_names: tuple[str, ...] = ()
    """Their names, in the same order."""
    users: tuple[str, ...] = ()
    """UIDs of those of them that are there, and have not ended."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
