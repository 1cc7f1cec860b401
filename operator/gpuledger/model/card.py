"""A GPU as its node reports it: amounts, attributes, links, and the rules by which requests choose among cards.

Memory is in MiB, cores are in percent of one card's compute. Attributes are what ResourceSlices publish by name, and
what the selectors and constraints of ResourceClaims compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Final, Protocol
from weakref import WeakValueDictionary

from gpuledger.model.failure import Failure


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of one card. Differences can be negative: a card can shrink below what is held on it."""

    memory_mib: int = 0
    cores: int = 0
    number: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.memory_mib + other.memory_mib, self.cores + other.cores, self.number + other.number)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.memory_mib - other.memory_mib, self.cores - other.cores, self.number - other.number)

    def fits_in(self, room: Amounts) -> bool:
        """Return whether every amount is at most the room's."""
        return self.memory_mib <= room.memory_mib and self.cores <= room.cores and self.number <= room.number

    def peak(self, other: Amounts) -> Amounts:
        """Return the larger of each amount: what two users need who are never there at the same time."""
        return Amounts(
            max(self.memory_mib, other.memory_mib), max(self.cores, other.cores), max(self.number, other.number)
        )


NOTHING = Amounts()


def total(parts: Iterable[Amounts]) -> Amounts:
    """Return the sum, without an object for each step."""
    memory_mib = cores = number = 0
    for part in parts:
        memory_mib += part.memory_mib
        cores += part.cores
        number += part.number
    return Amounts(memory_mib, cores, number)


ALL_CORES = 100
"""Percent: a request for all cores of a card means that no other pod may be on it."""


class CardPhase(StrEnum):
    """A card's state, as `kubectl get gpuallocations` shows it."""

    PENDING = "Pending"
    """Its object is new: nothing is placed on it before its node's agent has told what containers have of it."""
    READY = "Ready"
    CORDONED = "Cordoned"
    """A person wants no new pods on the card. Holders stay."""
    UNACCOUNTED = "Unaccounted"
    """A pod may use the card without a share in the ledger. Holders stay, no new pod comes."""
    UNHEALTHY = "Unhealthy"
    """The node reports a fault. Holders stay, no new pod comes."""
    UNAVAILABLE = "Unavailable"
    """The node, its agent or the card is gone. Holders stay, no new pod comes."""


class Outage(StrEnum):
    """Why a card is Unavailable, as its status says it. There is one more: what is wrong with its node's kubelet."""

    NODE_GONE = "its node is gone"
    NOT_REPORTED = "its node no longer reports it"
    AGENT_NOT_READY = "the node's GPU agent is not ready"


@dataclass(frozen=True, slots=True)
class Card:
    """A card, without its holders. `index` is its place on the node, as CUDA and NVML count."""

    uuid: str
    node_name: str
    index: int
    capacity: Amounts
    vendor: str = "nvidia"
    model: str = ""
    mode: str = ""
    numa_node: int | None = None
    pcie_root: str = ""
    """The PCIe root complex, such as "pci0000:16"; empty where the machine does not report it."""
    healthy: bool = True
    links: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Peer card's UUID -> link score, higher is faster."""
    fault: str = field(default="", compare=False)
    """Why the card is not healthy, in its node's words, without numbers that change. Not stored with the card, so it is
    no difference: the reason for its phase shows it."""
    failure: Failure | None = None
    """The class of that fault, and since when it is there; None where the node does not say."""

    @property
    def place(self) -> tuple[int, str]:
        """Sort key: the order of a node's cards, also when two claim one index."""
        return (self.index, self.uuid)

    @property
    def object_name(self) -> str:
        """Name of the card's GPUAllocation object."""
        return self.uuid.lower()


OWN_DOMAIN: Final = "gpu.gpuledger.dev"
"""Of the names that only our cards have."""

STANDARD_DOMAIN: Final = "resource.kubernetes.io"
"""Of the names that mean the same for the devices of all drivers."""

Value = str | int | bool
"""Of an attribute. All values of one attribute are of one type."""

UNNAMED_MODE: Final = "none"
"""`isolation` of a card whose node says nothing of how it keeps shares apart."""


def _numa_node(card: Card) -> int | None:
    """Return the card's NUMA node; Linux says -1 where it does not know."""
    return None if card.numa_node is None or card.numa_node < 0 else card.numa_node


ATTRIBUTES: Final[Mapping[str, Callable[[Card], Value | None]]] = MappingProxyType(
    {
        f"{OWN_DOMAIN}/uuid": lambda card: card.uuid,
        f"{OWN_DOMAIN}/model": lambda card: card.model or None,
        f"{OWN_DOMAIN}/vendor": lambda card: card.vendor or None,
        f"{OWN_DOMAIN}/index": lambda card: card.index,
        f"{OWN_DOMAIN}/isolation": lambda card: card.mode or UNNAMED_MODE,
        f"{OWN_DOMAIN}/numaNode": _numa_node,
        f"{STANDARD_DOMAIN}/pcieRoot": lambda card: card.pcie_root or None,
        f"{STANDARD_DOMAIN}/numaNode": _numa_node,
    }
)
"""Qualified name -> what a card has under it; None where it is not known.

Source: `resource.kubernetes.io/pcieRoot` and `numaNode` are Kubernetes' standard attributes of devices.
"""


def attribute_of(card: Card, name: str) -> Value | None:
    """Return a card's attribute by its qualified name, None if it has none of this name."""
    read = ATTRIBUTES.get(name)
    return None if read is None else read(card)


MIG = "mig"
"""Mode of a MIG device that is a card of its own: one slot, and all of its own cores, which are a part of a GPU's."""

MIG_PARENT = "mig-parent"
"""Mode of a GPU that is cut into MIG devices which are not listed. Nothing here chooses these, so no pod gets it."""


class Payer(Protocol):
    """The payer of expressions' costs, in steps of a microsecond: a namespace with an allowance."""

    @property
    def paid(self) -> int:
        """How many steps it has paid for so far."""

    @property
    def skipped(self) -> int:
        """How often it was said so far that something may not be done now."""

    @property
    def is_spent(self) -> bool:
        """Return whether it has to wait for a while, not only for the next turn of the event loop."""

    def may_go_on(self) -> bool:
        """Return whether an expression may be compiled, or evaluated, now. If not, it is to be asked for again."""

    def pay(self, steps: int) -> None:
        """Count what that has cost."""

    def why_not(self) -> str:
        """Return why something is not evaluated yet, for people."""


class CardTest(Protocol):
    """A condition on a card that is written as an expression. Two of the same text and payer are equal."""

    @property
    def text(self) -> str:
        """The expression."""

    @property
    def payer(self) -> Payer | None:
        """Pays for its cost; None: the cost is unlimited."""

    def compile(self) -> bool:
        """Compile the expression if it is not; return whether it is now. Raises BadInput if it can't be."""

    def admits(self, card: Card) -> bool:
        """Return whether the expression holds for the card. One that fails does not, nor one not evaluated yet."""

    def problem(self, card: Card) -> str:
        """Return the reason why it can't be told whether it holds for the card, empty if it can."""


SELECTOR_LENGTH = 120
"""Of an expression, in a sentence about it."""


def why_not_chosen(test: CardTest, card: Card) -> str:
    """Return why an expression does not choose a card, for people."""
    line = " ".join(test.text.split())
    shown = line if len(line) <= SELECTOR_LENGTH else f"{line[: SELECTOR_LENGTH - 3]}..."
    problem = test.problem(card)
    return f"the selector {shown} fails: {problem}" if problem else f"the selector {shown} does not hold"


def folded(model: str) -> str:
    """Return a model's name, or a part of one, as it is compared: labels of nodes have bars in place of spaces."""
    return model.lower().replace(" ", "-")


@dataclass(frozen=True, slots=True)
class CardFilter:
    """Conditions on a card; an empty one holds for every card, and all must hold.

    Names of models are compared `folded`, as parts: `a100` is any A100. UUIDs are compared whole.
    """

    vendor: str = "nvidia"
    model: str = ""
    """The whole name of the model, for a resource that stands for one model."""
    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    """A card that says nothing of its mode meets this, too."""
    tests: tuple[CardTest, ...] = ()
    """Selectors of a ResourceClaim."""

    is_plain: bool = field(init=False, compare=False, repr=False)
    """Only the vendor matters, as for most pods."""
    has_words: bool = field(init=False, compare=False, repr=False)
    """There are conditions beside the expressions: they are looked at for each of thousands of cards."""

    def __post_init__(self) -> None:
        conditions = (self.model, self.use_models, self.avoid_models, self.use_uuids, self.avoid_uuids, self.modes)
        object.__setattr__(self, "has_words", any(conditions))
        object.__setattr__(self, "is_plain", not self.has_words and not self.tests)

    def names(self, card: Card) -> bool:
        """Return whether the card is wanted by its UUID, or by its mode, or by an expression that holds for it."""
        by_mode = card.mode != "" and card.mode in self.modes
        return card.uuid in self.use_uuids or by_mode or bool(self.tests)

    def admits_model(self, model: str) -> bool:
        """Return whether the parts of models' names that are wanted, or avoided, leave a model."""
        name = folded(model)
        wanted = not self.use_models or any(folded(part) in name for part in self.use_models)
        return wanted and not any(folded(part) in name for part in self.avoid_models)

    def admits(self, card: Card) -> bool:
        """Return whether the card meets all conditions."""
        if card.vendor != self.vendor or card.mode == MIG_PARENT:
            return False
        if self.is_plain:
            return True
        if self.has_words and not self._meets_words(card):
            return False
        for test in self.tests:  # noqa: SIM110 - no generator: there can be tens of thousands of cards
            if not test.admits(card):
                return False
        return True

    def _meets_words(self, card: Card) -> bool:
        return (
            self.model.lower() in ("", card.model.lower())
            and self.admits_model(card.model)
            and (not self.use_uuids or card.uuid in self.use_uuids)
            and card.uuid not in self.avoid_uuids
            and (not self.modes or card.mode in ("", *self.modes))
        )


@dataclass(frozen=True, slots=True)
class CardRule:
    """All cards of all demands of a pod that carry the same rule have the attribute, with the same value or all others.

    A card that two demands use counts for each of them: by a `distinct` rule they can't have the same card.
    """

    attribute: str
    """Qualified, as in `model.card_attributes`."""
    constraint: int
    """Number of the constraint, counted over all of the pod's claims: two of them can be about one attribute."""
    distinct: bool = False
    """No two cards have the same value (`distinctAttribute`); else all have the same one (`matchAttribute`)."""


PATTERNS_SHARED = 4096
"""Different rows of scores of which there is one object each; nodes are built in a few ways."""


class Links(Mapping[str, int]):
    """Peer card's UUID -> link score, in less memory than a dict: there are tens of thousands of them."""

    __slots__ = ("_peers", "_scores")

    def __init__(self, links: Mapping[str, int]) -> None:
        peers = sorted(links)
        self._peers = tuple(map(intern, peers))
        self._scores = _shared(tuple(links[peer] for peer in peers))

    def __getitem__(self, peer: str) -> int:
        try:
            return self._scores[self._peers.index(peer)]
        except ValueError:
            raise KeyError(peer) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Links):
            return self._scores == other._scores and self._peers == other._peers
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as every mapping

    def __repr__(self) -> str:
        return f"Links({dict(self)})"


@lru_cache(PATTERNS_SHARED)
def _shared(scores: tuple[int, ...]) -> tuple[int, ...]:
    return scores


Scores = tuple[tuple[int, ...], ...]
"""Link scores as a symmetric table over the positions of cards, higher is faster; 0 where none is known."""

NumaNodes = tuple[int, ...]
"""The NUMA node of each position; cards of which it is not known count as on one."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Topology:
    """Positions are those of the node's cards in the order of their index.

    There is one object for all nodes that are built alike, and it is compared by identity: what was found out for one
    of them is known for all.
    """

    scores: Scores
    numa_nodes: NumaNodes
    totals: tuple[int, ...]
    """For each card, the sum of its scores to all other cards of the node."""
    linked: bool
    """Some two cards have a score."""
    uneven: bool
    """The totals differ: single cards can be told apart."""


_INTERNED: WeakValueDictionary[tuple[Scores, NumaNodes], Topology] = WeakValueDictionary()
"""One object for each way to build a node, as long as there are such nodes."""


def topology_of(cards: Sequence[Card]) -> Topology | None:
    """Return how a node's cards are connected, None if nothing of that tells one set of them from another."""
    numa_nodes = tuple(-1 if card.numa_node is None else card.numa_node for card in cards)
    links = [dict(card.links) for card in cards]
    if len(cards) < 2 or (not any(links) and len(set(numa_nodes)) == 1):
        return None
    rows = [[known.get(other.uuid, 0) for other in cards] for known in links]
    scores = tuple(
        tuple(0 if one == other else min(rows[one][other], rows[other][one]) for other in range(len(cards)))
        for one in range(len(cards))
    )
    known = _INTERNED.get((scores, numa_nodes))
    if known is None:
        totals = tuple(map(sum, scores))
        known = Topology(scores, numa_nodes, totals, linked=any(totals), uneven=len(set(totals)) > 1)
        _INTERNED[scores, numa_nodes] = known
    return known
