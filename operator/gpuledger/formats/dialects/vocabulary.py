"""The words by which containers ask for cards: HAMi's, which are also ours, Volcano's, and those of other vendors.

A vocabulary is data: names of resources, the units behind their numbers, and what a vendor's cards allow. One
container uses one vocabulary. Sources: HAMi 2.10's `pkg/device/*` and FAQ, Volcano 1.15's device plugin and guide,
Koordinator's `apis/extension/device_share.go` of July 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.node_offer import Dialect


class Several(StrEnum):
    """A container's part of each card if it requests several."""

    SPLIT = "split"
    """Shares of each, as of one card alone."""
    WHOLE = "whole"
    """Whole cards only: amounts beside the count are taken for the whole card."""
    REFUSE = "refuse"
    """Whole cards only: a share of each is refused."""


@dataclass(frozen=True, slots=True)
class Template:
    """A size in which a vendor's cards are cut."""

    name: str
    memory_mib: int
    core_units: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Names of resources and what they mean. A name that is empty does not exist."""

    name: str
    count: str
    memory: str = ""
    memory_percentage: str = ""
    cores: str = ""
    both: str = ""
    """Percent of a card's cores and of its memory, in one word."""
    priority: str = ""
    vendor: str = "nvidia"
    model: str = ""
    """The cards' model, where a resource stands for one model."""
    totals: bool = False
    """Amounts are sums over all cards of a container, and memory is in bytes: totals.py reads them."""
    memory_unit_mib: int = 1
    memory_choices: tuple[int, ...] = ()
    """The only numbers of units that exist, ascending; none: all."""
    templates: tuple[Template, ...] = ()
    """The only sizes that exist, ascending; memory is rounded up to one of them."""
    memory_of_card_mib: int = 0
    """Memory up to which a request beyond the largest template gets a whole card."""
    cores_of_card: int = ALL_CORES
    """Units of compute on a card; requests are in these."""
    refused: tuple[str, ...] = ()
    """Names that a vendor has, and that nothing here can give."""
    several: Several = Several.SPLIT
    memory_at_most_card: bool = False
    """More memory than a card has stands for all of it; otherwise the pod waits for a larger card."""
    percentage_first: bool = False
    """Of memory in MiB and in percent the latter counts; otherwise the former."""
    default_gpus: int = 1
    default_memory_mib: int = 0
    """Memory for a container that asks for none; 0: the whole card."""
    default_cores: int = 0
    """Percent of the card, for a container that does not say."""
    use_uuid: str = ""
    """Annotation on pods: only these cards."""
    avoid_uuid: str = ""
    """Annotation on pods: none of these cards."""

    @property
    def request_names(self) -> tuple[str, ...]:
        """Return the names, other than the count, that ask for cards."""
        names = (self.memory, self.memory_percentage, self.cores, self.both, *self.refused)
        return tuple(name for name in names if name)

    @property
    def resources(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(name for name in (self.count, *self.request_names, self.priority) if name)


@dataclass(frozen=True, slots=True)
class NodeRegister:
    """A node annotation in which a device plugin lists its cards."""

    annotation: str
    format: str
    """One of "native", "hami", "volcano": registers.py has a reader for each."""
    dialect: Dialect
    count: str
    """The resource that this plugin serves; at 0 it is gone."""
    vendor: str = "nvidia"
    memory_unit_mib: int = 1
    cores_of_card: int = ALL_CORES
    """Units of compute on a card, where the plugin counts these; it may count percent all the same."""


@dataclass(frozen=True, slots=True)
class AssignmentAnnotations:
    """How HAMi's device plugin for a kind of card learns which cards a pod has: two annotations, a word in them."""

    to_allocate: str = "hami.io/vgpu-devices-to-allocate"
    allocated: str = "hami.io/vgpu-devices-allocated"
    word: str = "NVIDIA"
    details: str = ""
    """One more annotation, a JSON list of {UUID, temp, memory, core}, which Ascend's plugin reads."""
    templates: tuple[Template, ...] = ()


MOST_CONTAINERS = 8


@dataclass(frozen=True, slots=True)
class Dialects:
    """All vocabularies that are understood, and the registers of nodes.

    Of two vocabularies that share a count, the first explains a count alone.
    """

    vocabularies: tuple[Vocabulary, ...]
    registers: tuple[NodeRegister, ...] = ()
    assignments: Mapping[tuple[str, str], AssignmentAnnotations] = field(default_factory=dict, compare=False)
    """(Vendor, model) of a card -> how HAMi's plugin names it; a model that is empty stands for all."""
    node_label: tuple[str, str] | None = None
    """Key and value of the label without which a node's cards are not ours."""
    most_containers: int = MOST_CONTAINERS
    """Of one pod that ask for cards: a search takes time that grows steeply with their number."""
    by_name: Mapping[str, tuple[Vocabulary, ...]] = field(init=False, compare=False, repr=False)
    """Name of a resource that asks for cards -> the vocabularies that have it."""

    def __post_init__(self) -> None:
        found: dict[str, tuple[Vocabulary, ...]] = {}
        for vocabulary in self.vocabularies:
            for name in (vocabulary.count, *vocabulary.request_names):
                if name:
                    found[name] = (*found.get(name, ()), vocabulary)
        object.__setattr__(self, "by_name", found)

    def assignment(self, card: Card) -> AssignmentAnnotations:
        """Return how a card is named to HAMi's device plugin."""
        found = self.assignments.get((card.vendor, card.model)) or self.assignments.get((card.vendor, ""))
        return found or AssignmentAnnotations()

    def hami_annotations(self) -> tuple[str, ...]:
        """Return the annotations in which HAMi notes which cards a pod has."""
        every = (AssignmentAnnotations(), *self.assignments.values())
        return tuple(dict.fromkeys(each.allocated for each in every))

    @property
    def volcano_memory_unit_mib(self) -> int:
        """The unit of Volcano's memory, in MiB."""
        units = [each.memory_unit_mib for each in self.registers if each.dialect is Dialect.VOLCANO]
        return units[0] if units else 1

    def resources(self) -> tuple[str, ...]:
        """Return every name: the scheduler must send pods that ask for any, and count none itself."""
        return tuple(dict.fromkeys(name for each in self.vocabularies for name in each.resources))

    def in_bytes(self) -> tuple[str, ...]:
        """Return the names whose amounts are bytes."""
        return tuple(each.memory for each in self.vocabularies if each.totals)

    def hundreds(self) -> tuple[str, ...]:
        """Return the names of which each whole hundred is a card, where no number of cards is given."""
        totals = [each for each in self.vocabularies if each.totals]
        return tuple(name for each in totals for name in (each.memory_percentage, each.both))

    def priorities(self) -> tuple[str, ...]:
        """Return the names of the priority on a card."""
        return tuple(each.priority for each in self.vocabularies if each.priority)

    def counts(self, of: str = "", but: str = "") -> tuple[str, ...]:
        """Return the names by which cards are counted: all, those of one vendor, or those of the others."""
        chosen = (each for each in self.vocabularies if of in ("", each.vendor) and each.vendor != but)
        return tuple(dict.fromkeys(each.count for each in chosen if each.count))


HAMI = Vocabulary(
    name="hami",
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    memory_percentage="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    priority="nvidia.com/priority",
)
"""HAMi's words for NVIDIA's cards. They are ours, too."""

VOLCANO = Vocabulary(
    name="volcano",
    count="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    memory_percentage="volcano.sh/vgpu-memory-percentage",
    cores="volcano.sh/vgpu-cores",
    memory_at_most_card=True,
    percentage_first=True,
)
"""The words of Volcano's vGPU: memory beyond a card is the card's, and a percentage goes before MiB."""

VOLCANO_CLASSIC = Vocabulary(name="volcano-classic", count="volcano.sh/gpu-number", memory="volcano.sh/gpu-memory")
"""The words of Volcano's first GPU plugin: whole cards by number, or memory of one card."""

KOORDINATOR = Vocabulary(
    name="koordinator",
    count="koordinator.sh/gpu.shared",
    memory="koordinator.sh/gpu-memory",
    memory_percentage="koordinator.sh/gpu-memory-ratio",
    cores="koordinator.sh/gpu-core",
    both="koordinator.sh/gpu",
    totals=True,
)
"""Koordinator's words: amounts are sums over the cards among which they are divided. Whole cards are nvidia.com/gpu."""


def in_use(dialects: Dialects, asked: Sequence[str]) -> tuple[Vocabulary, ...]:
    """Return the vocabularies of which a container uses a word, in their order."""
    used = {each.name for name in asked for each in dialects.by_name.get(name, ())}
    return tuple(each for each in dialects.vocabularies if each.name in used)
