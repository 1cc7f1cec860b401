"""The words by which containers ask for cards: HAMi's, which are also ours, Volcano's, and those of other vendors.

A vocabulary is data: names of resources, the units behind their numbers, and what a vendor's cards allow. One
container uses one vocabulary. Sources: HAMi 2.10's `pkg/device/*` and FAQ, Volcano 1.15's device plugin and guide,
Koordinator's `apis/extension/device_share.go` of July 2026.

Koordinator's amounts are sums over all cards of a container, and ours are per card. So each sum is divided by the
number of cards; what does not come out even is refused, not rounded. Source: its pkg/scheduler/plugins/deviceshare,
utils.go and devicehandler_gpu.go (a7a1b76b, July 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuledger.formats.custom_resource.stored_card import MAX_MEMORY_MIB
from gpuledger.formats.quantity import MIB, amount, whole_number
from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import Dialect
from gpuledger.model.request import MAX_CARDS, Demand

SUM_MEMORY: Final = "gpuledger.dev/memory-mib"
SUM_CORES: Final = "gpuledger.dev/cores"
SUM_GPUS: Final = "gpuledger.dev/gpus"
SUMS: Final = (SUM_MEMORY, SUM_CORES, SUM_GPUS)
"""What admission writes beside a container's own words: see sums.py. No node has them: kube-scheduler is told to ignore
them, and the kubelet drops what its node does not list."""

HIDING: Final = "gpuledger.dev/managed"
"""What admission writes on pods that autoscalers are to leave alone: see autoscalers.py. No node has it, either."""


class Several(StrEnum):
    """A container's part of each card if it requests several."""

    SPLIT = "split"
    """Shares of each, as of one card alone."""
    WHOLE = "whole"
    """Whole cards only: amounts beside the count are taken for the whole card."""


@dataclass(frozen=True, slots=True)
class Template:
    """A size in which a vendor's cards are cut."""

    name: str
    memory_mib: int
    core_units: int
    id: str = ""
    """The vendor's number for it, where its plugin needs that."""


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
    """Amounts are sums over all cards of a container, and memory is in bytes: see `demand_of_totals`."""
    memory_unit_mib: int = 1
    memory_choices: tuple[int, ...] = ()
    """The only numbers of units that exist, ascending; none: all."""
    templates: tuple[Template, ...] = ()
    """The only sizes that exist, ascending; memory is rounded up to one of them."""
    memory_of_card_mib: int = 0
    """Memory up to which a request beyond the largest template gets a whole card."""
    cores_of_card: int = ALL_CORES
    """Units of compute on a card; requests are in these."""
    memory_in_bytes: bool = False
    """Memory with a suffix, such as 2Gi, is in bytes; without one it is in units."""
    cores_in_percent: bool = False
    """Requests for cores are in percent all the same; templates, and a count that stands for cores, are in units."""
    cores_span_cards: bool = False
    """More cores than one card has stand for so many whole cards."""
    count_is_cores: bool = False
    """The count is a number of units of compute of one card: the template of exactly that size."""
    count_multiple: int = 1
    """Cards come in modules of so many: 1 stands for one, and other counts that leave a part of one are refused."""
    one_container: bool = False
    """The plugin serves one container: a pod can have no second one with these cards."""
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
    use_model: str = ""
    """Annotation on pods: only cards whose model has one of these parts in its name."""
    avoid_model: str = ""
    """Annotation on pods: no card whose model has one of these parts in its name."""

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
class NodeCapacity:
    """Cards of which a node's `status.capacity` says how many there are, and nothing of each. They are all alike."""

    cards: str
    """The resource whose amount tells the number of cards."""
    per_card: int = 1
    """How much of it a card is."""
    memory: str = ""
    """The resource that tells the memory of all cards together; empty if none does."""
    number: int = 1
    """Slots of a card."""
    numa_nodes: int = 0
    """Over how many NUMA nodes the cards are spread evenly, in the order of their indexes; 0 if that is not known."""
    unless: str = ""
    """The annotation in which another plugin lists the same cards, where they are cut: then that is read, not this."""


@dataclass(frozen=True, slots=True)
class NodeRegister:
    """Where a device plugin lists its cards: an annotation of the node, or the amounts of its capacity."""

    annotation: str
    """Empty for a capacity."""
    format: str
    """One of "native", "hami", "volcano", "capacity": there is a reader for each."""
    dialect: Dialect
    count: str
    """The resource by which pods count these cards."""
    vendor: str = "nvidia"
    memory_unit_mib: int = 1
    cores_of_card: int = ALL_CORES
    """Units of compute on a card, where the plugin counts these; it may count percent all the same."""
    model: str = ""
    """Of cards that say none."""
    memory_mib: int = 0
    """Of cards that say none."""
    id: str = ""
    """Cards without a UUID of their own are NODE-ID-INDEX."""
    fields: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Our name for a part of a card -> the register's; empty: as HAMi has them."""
    entries: str = ""
    """The key under which the list of cards is; empty: the register is the list."""
    alive: str = ""
    """The resource that this plugin serves, if it is not the one by which pods count; at 0 it is gone."""
    capacity: NodeCapacity | None = None

    @property
    def place(self) -> str:
        """Return where on the node it is, for messages."""
        return f"capacity {self.capacity.cards}" if self.capacity else f"annotation {self.annotation}"

    @property
    def served(self) -> str:
        """Return the resource whose allocatable amount shows that the plugin is there."""
        return self.alive or self.count


HAMI_PHASE = "hami.io/bind-phase"
"""On pods: how far HAMi's plugins have come with it."""


PARTS = (
    "uuid",
    "index",
    "indexes",
    "node",
    "time_s",
    "time_ns",
    "cores",
    "core_units",
    "core_indexes",
    "memory_mib",
    "memory_units",
    "template",
    "template_id",
)
"""The parts of a share that a plugin can be given: of its first card; and of all its cards, or of all cores that it has
of them, the indexes on the node, with commas."""


class Layout(StrEnum):
    """How an annotation with details as JSON is laid out."""

    LIST = "list"
    """An object for each card of each container."""
    LISTS = "lists"
    """The same, in a list for each container of the pod."""
    BY_CONTAINER = "by_container"
    """The object of a container's first card, by the container's name."""


@dataclass(frozen=True, slots=True)
class Details:
    """An annotation that tells a plugin of a pod's cards as JSON."""

    annotation: str
    layout: Layout
    fields: tuple[tuple[str, str | bool], ...]
    """The plugin's key -> which of PARTS it is, or a value that is always the same. Zero is left out."""


@dataclass(frozen=True, slots=True)
class AssignmentAnnotations:
    """How the device plugin for a kind of card learns which cards a pod has: two annotations, a word in them, more."""

    to_allocate: str = "hami.io/vgpu-devices-to-allocate"
    allocated: str = "hami.io/vgpu-devices-allocated"
    word: str = "NVIDIA"
    details: tuple[Details, ...] = ()
    templates: tuple[Template, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """More annotations: name -> a text with some of PARTS in braces."""
    texts_by_cores: tuple[tuple[str, str], ...] = ()
    """The same, instead of those of these names, for containers that ask for cores without a count."""
    answer: str = HAMI_PHASE
    """The annotation in which the plugin says that it has found the pod: HAMi's, or one that it turns from false to
    true. Empty if it says nothing, so that no one waits for it."""
    cores_of_card: int = ALL_CORES
    memory_unit_mib: int = 1

    @property
    def others(self) -> tuple[str, ...]:
        """Return the annotations beside the two that HAMi has for every kind of card."""
        texts = (name for name, _ in (*self.texts, *self.texts_by_cores))
        answer = () if self.answer in ("", HAMI_PHASE) else (self.answer,)
        return (*answer, *texts, *(each.annotation for each in self.details))


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
    elsewhere: str = ""
    """The name by which nodes without the label may count cards that pods of ours can get; empty: they get none."""
    replicas_elsewhere: bool = False
    """Whether that holds where NVIDIA's plugin gives out each card several times."""
    most_containers: int = MOST_CONTAINERS
    """Of one pod that ask for cards: a search takes time that grows steeply with their number."""
    by_name: Mapping[str, tuple[Vocabulary, ...]] = field(init=False, compare=False, repr=False)
    """Name of a resource that asks for cards -> the vocabularies that have it."""
    hami_annotations: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """The annotations in which HAMi notes which cards a pod has."""
    volcano_memory_unit_mib: int = field(init=False, compare=False, repr=False)
    """The unit of Volcano's memory, in MiB."""

    def __post_init__(self) -> None:
        found: dict[str, tuple[Vocabulary, ...]] = {}
        for vocabulary in self.vocabularies:
            for name in (vocabulary.count, *vocabulary.request_names):
                if name:
                    found[name] = (*found.get(name, ()), vocabulary)
        every = (AssignmentAnnotations(), *self.assignments.values())
        units = (each.memory_unit_mib for each in self.registers if each.dialect is Dialect.VOLCANO)
        object.__setattr__(self, "by_name", found)
        object.__setattr__(self, "hami_annotations", tuple(dict.fromkeys(each.allocated for each in every)))
        object.__setattr__(self, "volcano_memory_unit_mib", next(units, 1))

    def assignment(self, card: Card) -> AssignmentAnnotations:
        """Return how a card is named to HAMi's device plugin."""
        found = self.assignments.get((card.vendor, card.model)) or self.assignments.get((card.vendor, ""))
        return found or AssignmentAnnotations()

    def answers(self) -> tuple[str, ...]:
        """Return the annotations, other than HAMi's, in which plugins say that they have found a pod."""
        every = {each.answer for each in self.assignments.values()}
        return tuple(sorted(every - {"", HAMI_PHASE}))

    def resources(self) -> tuple[str, ...]:
        """Return every name: the scheduler must send pods that ask for any, and count none itself."""
        return tuple(dict.fromkeys(name for each in self.vocabularies for name in each.resources))

    def in_bytes(self) -> tuple[str, ...]:
        """Return the names whose amounts may be bytes, and have a unit of these."""
        return tuple(each.memory for each in self.vocabularies if each.totals or each.memory_in_bytes)

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


KNOWN_COUNTS = ("nvidia.com/gpu", "volcano.sh/vgpu-number", "volcano.sh/gpu-number")
"""Count resources that a device plugin may serve under its own name, whatever the settings say."""

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


def demand_of_totals(where: str, asked: Mapping[str, object], vocabulary: Vocabulary) -> Demand | None:
    """Return a container's demand on each card, None if it asks for nothing. An amount of 0 is none at all.

    `where` names the container in messages. Raises BadInput for amounts that can't be read, or divided among the cards.
    """
    given = _Given(where, asked, vocabulary)
    if not any((given.cards, given.cores, given.percent, given.memory_bytes)):
        return None
    cards = given.number_of_cards()
    percent = given.each(vocabulary.memory_percentage, given.percent, cards)
    cores = given.each(vocabulary.cores, given.cores, cards)
    counted = vocabulary.count if vocabulary.count in asked else ""
    if percent == ALL_CORES and cores in (0, ALL_CORES):  # all memory: nothing that asks for any fits beside it
        return Demand(cards, exclusive=True, resource=counted)
    if percent:
        return Demand(cards, memory_percent=percent, cores=cores, resource=counted)
    return Demand(cards, memory_mib=given.memory_mib(cards), cores=cores, resource=counted)


class _Given:
    """The amounts of a container, as sums, of which none contradicts another."""

    def __init__(self, where: str, asked: Mapping[str, object], vocabulary: Vocabulary) -> None:
        self._where, self._asked, self._words = where, asked, vocabulary
        self.cards = self._whole(vocabulary.count, MAX_CARDS, "the number of different cards")
        both = self._percent(vocabulary.both)
        self.cores, self.percent = self._percent(vocabulary.cores), self._percent(vocabulary.memory_percentage)
        self.memory_bytes = self._bytes()
        self._check(both)
        if both:
            self.cores = self.percent = both

    def number_of_cards(self) -> int:
        """Return the number of cards: as given, else one for each whole hundred percent of memory."""
        words = self._words
        if words.count in self._asked:
            if not self.cards:
                raise BadInput(
                    f"{self._where} asks for GPU memory or cores on 0 GPUs: "
                    f"set {words.count} to 1 or more, or drop the rest"
                )
            return self.cards
        cards = self.percent // ALL_CORES if self.percent % ALL_CORES == 0 else 0
        return cards or 1

    def each(self, name: str, total: int, cards: int) -> int:
        """Return the percent of each card. Raises BadInput if there is a rest, or more than a card has."""
        name = name if name in self._asked else self._words.both
        if total % cards:
            raise BadInput(
                f"{self._where}, {name}: {total} percent can't be divided among {cards} cards: "
                f"write a multiple of {cards}"
            )
        if total > cards * ALL_CORES:
            raise BadInput(
                f"{self._where}, {name}: {total} percent is more than {cards} "
                f"{'card has' if cards == 1 else 'cards have'}: for several whole cards write multiples of {ALL_CORES} "
                f"for memory and cores alike, and otherwise the number of cards as {self._words.count}"
            )
        return total // cards

    def memory_mib(self, cards: int) -> int:
        """Return the memory of each card. Raises BadInput if that is no whole number of MiB."""
        name, given = self._words.memory, self._asked[self._words.memory]
        memory_mib, rest = divmod(self.memory_bytes, cards * MIB)
        if rest:
            raise BadInput(
                f"{self._where}, {name}: {given} on {cards} {'card' if cards == 1 else 'cards'} is no whole number of "
                f"MiB for each: write a multiple of {cards}Mi, such as {(memory_mib + 1) * cards}Mi"
            )
        if memory_mib > MAX_MEMORY_MIB:
            raise BadInput(f"{self._where}, {name}: {given} is more than any card has")
        return memory_mib

    def _check(self, both: int) -> None:
        words = self._words
        said = (words.memory, self.memory_bytes), (words.memory_percentage, self.percent), (words.cores, self.cores)
        also = [name for name, amount_ in said if amount_]
        if both and also:
            raise BadInput(
                f"{self._where} says {words.both}, which stands for cores and memory, and {' and '.join(also)}: "
                "keep one of them"
            )
        if self.memory_bytes and self.percent:
            raise BadInput(f"{self._where} says {words.memory} and {words.memory_percentage}: keep one of them")
        if not (both or self.memory_bytes or self.percent) and (self.cores or self.cards):
            raise BadInput(
                f"{self._where} asks for GPUs, but for none of their memory: add {words.memory} (bytes) or "
                f"{words.memory_percentage} (percent)"
            )

    def _percent(self, name: str) -> int:
        return self._whole(name, MAX_CARDS * ALL_CORES, "percent, summed up over the container's cards")

    def _whole(self, name: str, most: int, meaning: str) -> int:
        if name not in self._asked:
            return 0
        try:
            number = whole_number(self._asked[name])
        except BadInput as error:
            raise BadInput(f"{self._where}, {name}: {error} ({meaning})") from None
        if number > most:
            raise BadInput(f"{self._where}, {name}: {self._asked[name]} is more than {most}; it is {meaning}")
        return number

    def _bytes(self) -> int:
        name = self._words.memory
        if name not in self._asked:
            return 0
        try:
            return amount(str(self._asked[name]), 1)
        except BadInput as error:
            raise BadInput(f"{self._where}, {name}: {error}; it is a number of bytes, such as 8Gi") from None
