"""One container's request in any vocabulary: the names in `resources`, and the defaults of omitted ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.custom_resource.gpu_allocation import MAX_MEMORY_MIB
from gpuledger.formats.dialects.sizes import (
    memory_in_bytes_mib,
    template_for,
    template_of_units,
    templated,
    whole_modules,
)
from gpuledger.formats.dialects.totals import MAX_CARDS, demand_of_totals
from gpuledger.formats.dialects.vocabulary import Dialects, Several, Vocabulary, in_use
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container's request, and the parts of it that are defaults."""

    name: str
    demand: Demand
    vocabulary: str
    defaults: frozenset[str]
    """Of "gpus", "memory" and "cores": what the container left out."""
    warnings: tuple[str, ...] = ()


def reader_of(container: Json, dialects: Dialects) -> ContainerReader | None:
    """Return what reads a container's request, None if it names none of the resources. Raises BadInput."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    named = [name for name in asked if name in dialects.by_name]
    if not named:
        return None
    vocabulary = _vocabulary(container, in_use(dialects, named), named)
    counts = [name for name in named if any(name == each.count for each in dialects.by_name[name])]
    if len(counts) > 1:
        raise BadInput(f"container {container['name']} counts its cards twice, as {' and as '.join(counts)}: keep one")
    return ContainerReader(container, asked, vocabulary, counts[0] if counts else "")


def _vocabulary(container: Json, used: Sequence[Vocabulary], named: Sequence[str]) -> Vocabulary:
    """Return the vocabulary of a container: whose words stand beside the count; else the first that has the count."""
    if len({each.vendor for each in used}) > 1 or len({each.model for each in used}) > 1:
        raise BadInput(
            f"container {container['name']} asks for cards of several kinds ({', '.join(named)}): "
            "a container gets cards of one kind, so give each kind a container of its own"
        )
    telling = [each for each in used if any(name in each.request_names for name in named)]
    if len(telling) > 1:
        mixed = ", ".join(name for name in named if any(name in each.request_names for each in telling))
        raise BadInput(
            f"container {container['name']} mixes the words of {' and '.join(each.name for each in telling)} "
            f"({mixed}): keep one of them"
        )
    return (telling or used)[0]


class ContainerReader:
    """Reads one container in one vocabulary."""

    def __init__(self, container: Json, asked: Json, vocabulary: Vocabulary, count_name: str) -> None:
        self._where = f"container {container['name']}"
        self._container = container
        self._asked = asked
        self.vocabulary = vocabulary
        self._count_name = count_name
        self._warnings: list[str] = []

    def read(self) -> ContainerRequest | None:
        """Return the request, None for no card. Raises BadInput."""
        vocabulary = self.vocabulary
        if vocabulary.totals:
            return self._of_totals()
        for name in vocabulary.refused:
            if name in self._asked:
                raise BadInput(f"{self._where}, {name}: {vocabulary.name} can't be asked for that here; drop it")
        if vocabulary.count_is_cores:
            return self._one_of_the_templates()
        cards = self._count()
        if cards and cards > 1 and vocabulary.several is Several.WHOLE:
            if vocabulary.templates:
                self._memory_mib()  # whose largest amount is known: what is more is a mistake here, too
            return self._whole_ones(cards)
        return self._share(cards)

    def _share(self, cards: int | None) -> ContainerRequest | None:
        vocabulary = self.vocabulary
        memory, percent = self._memory_mib(), self._percent()
        cores = self._cores()
        if vocabulary.cores_span_cards and cores and cores > ALL_CORES:
            return self._spanning(cores)
        if cards == 0:
            if memory or percent or cores:
                raise BadInput(
                    f"{self._where} asks for GPU memory or cores on 0 GPUs: "
                    f"set {self._count_name} to 1 or more, or drop the rest"
                )
            return None
        named = {"gpus": cards is not None, "memory": memory or percent, "cores": cores is not None}
        defaults = frozenset(name for name, itself in named.items() if not itself)
        if cards is None:
            cards = vocabulary.default_gpus
            if not cards:
                raise BadInput(
                    f"{self._where} asks for a share of GPUs, but not for a number of them: set {vocabulary.count}"
                )
        if memory and percent:
            memory, percent = self._one_of(memory, percent)
        return self._request(self._cut(cards, memory, percent, cores), defaults)

    def _request(self, demand: Demand, defaults: frozenset[str]) -> ContainerRequest:
        return ContainerRequest(
            str(self._container["name"]), demand, self.vocabulary.name, defaults, tuple(self._warnings)
        )

    def _count(self) -> int | None:
        """Return the number of cards; where they come in modules, that of whole modules."""
        cards = self._amount(self._count_name, MAX_CARDS, "the number of different cards")
        if not cards:
            return cards
        try:
            cards, told = whole_modules(cards, self.vocabulary.count_multiple)
        except BadInput as error:
            raise BadInput(f"{self._where}, {self._count_name}: {error}") from None
        if told:
            self._warnings.append(f"{self._where}, {self._count_name}: {told}")
        return cards

    def _one_of_the_templates(self) -> ContainerRequest | None:
        """Return the share whose size is the count, or the smallest that has the memory and the cores."""
        vocabulary, where = self.vocabulary, f"{self._where}, {self._count_name}"
        if not self._count_name:
            memory, cores = self._memory_mib() or 0, self._cores() or 0
            if not memory and not cores:
                return None
            found = template_for(memory, cores, vocabulary)
            return self._request(templated(found, vocabulary, "") if found else self._whole(1), frozenset({"gpus"}))
        units = self._amount(self._count_name, vocabulary.cores_of_card, "a number of parts of one card")
        if not units:
            return None
        told = f"{self._count_name} says it already, so it has no effect"
        asked = (name for name in vocabulary.request_names if name in self._asked)
        self._warnings += [f"{self._where}, {name}: {told}" for name in asked]
        try:
            template = template_of_units(units, vocabulary)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        return self._request(templated(template, vocabulary, self._count_name), frozenset({"memory", "cores"}))

    def _spanning(self, cores: int) -> ContainerRequest:
        """Return so many whole cards: more cores than one has can only be all of each."""
        vocabulary = self.vocabulary
        cards, rest = divmod(cores, ALL_CORES)
        if rest:
            raise BadInput(
                f"{self._where}, {vocabulary.cores}: more than one card has, and no multiple of that: "
                f"ask for {vocabulary.cores_of_card} per card, or fewer of one"
            )
        return self._request(self._whole(cards), frozenset({"gpus", "memory"}))

    def _of_totals(self) -> ContainerRequest | None:
        vocabulary = self.vocabulary
        if self._count_name not in ("", vocabulary.count):
            raise BadInput(
                f"{self._where} says {self._count_name} beside the words of {vocabulary.name}, whose amounts are sums "
                f"over its cards: count them by {vocabulary.count}"
            )
        demand = demand_of_totals(self._where, self._asked, vocabulary)
        if demand is None:
            return None
        left_out = {"gpus": not demand.resource, "cores": not demand.cores and not demand.exclusive}
        defaults = frozenset(name for name, is_left_out in left_out.items() if is_left_out)
        return ContainerRequest(str(self._container["name"]), demand, vocabulary.name, defaults)

    def _cut(self, cards: int, memory: int | None, percent: int | None, cores: int | None) -> Demand:
        vocabulary = self.vocabulary
        if vocabulary.templates and memory:
            template = next((each for each in vocabulary.templates if memory <= each.memory_mib), None)
            if template is None:
                return self._whole(cards)
            memory, cores = template.memory_mib, template.core_units * ALL_CORES // vocabulary.cores_of_card
        memory = memory or (0 if percent else vocabulary.default_memory_mib)
        whole = not memory and percent in (None, 0, ALL_CORES)
        exclusive = whole and cores is None and vocabulary.default_cores in (0, ALL_CORES)
        if exclusive:
            return self._whole(cards)
        if cores is None:
            cores = vocabulary.default_cores
        return Demand(
            cards=cards,
            memory_mib=memory or None,
            memory_percent=ALL_CORES if memory else percent or ALL_CORES,
            cores=cores,
            exclusive=cores == ALL_CORES,
            resource=self._count_name,
            at_most_card=vocabulary.memory_at_most_card and bool(memory),
        )

    def _whole(self, cards: int) -> Demand:
        return Demand(cards, exclusive=True, resource=self._count_name, module=self.vocabulary.count_multiple)

    def _whole_ones(self, cards: int) -> ContainerRequest:
        """Return several whole cards, whatever else is said: HAMi's webhook writes sums over all of them there."""
        vocabulary = self.vocabulary
        self._warn_of_whole(any(name in self._asked for name in vocabulary.request_names))
        named = {"memory": vocabulary.memory, "cores": vocabulary.cores}
        defaults = frozenset(what for what, name in named.items() if name not in self._asked)
        return self._request(self._whole(cards), defaults)

    def _warn_of_whole(self, more_is_said: bool) -> None:
        if more_is_said:
            self._warnings.append(
                f"{self._where} asks for several {self.vocabulary.name}: they are given whole, whatever else it says"
            )

    def _one_of(self, memory: int, percent: int) -> tuple[int | None, int | None]:
        vocabulary = self.vocabulary
        counts, ignored = vocabulary.memory, vocabulary.memory_percentage
        if vocabulary.percentage_first:
            counts, ignored = ignored, counts
        self._warnings.append(
            f"{self._where} says {counts} and {ignored}: the former counts, as with {vocabulary.name}"
        )
        return (None, percent) if vocabulary.percentage_first else (memory, None)

    def _memory_mib(self) -> int | None:
        vocabulary = self.vocabulary
        unit = vocabulary.memory_unit_mib
        if vocabulary.memory_in_bytes:
            try:
                in_bytes = memory_in_bytes_mib(self._asked.get(vocabulary.memory))
            except BadInput as error:
                raise BadInput(f"{self._where}, {vocabulary.memory}: {error} (memory per card)") from None
            if in_bytes is not None:
                return in_bytes
        meaning = "a number of MiB per card" if unit == 1 else f"memory per card in units of {unit} MiB"
        units = self._amount(vocabulary.memory, MAX_MEMORY_MIB // unit, meaning)
        if not units:
            return units
        if vocabulary.memory_choices and units not in vocabulary.memory_choices:
            choices = ", ".join(map(str, vocabulary.memory_choices))
            raise BadInput(f"{self._where}, {vocabulary.memory}: {units} can't be cut; choose one of {choices}")
        memory_mib = units * unit
        if vocabulary.memory_of_card_mib and memory_mib > vocabulary.memory_of_card_mib:
            raise BadInput(
                f"{self._where}, {vocabulary.memory}: {units} is more than a card has, "
                f"{vocabulary.memory_of_card_mib} MiB"
            )
        return memory_mib

    def _percent(self) -> int | None:
        return self._amount(self.vocabulary.memory_percentage, 100, "a percentage of each card's memory")

    def _cores(self) -> int | None:
        vocabulary = self.vocabulary
        of_card = ALL_CORES if vocabulary.cores_in_percent else vocabulary.cores_of_card
        meaning = "a percentage of each card's cores" if of_card == ALL_CORES else f"a number of {of_card} core groups"
        most = MAX_CARDS * of_card if vocabulary.cores_span_cards and not self._count_name else of_card
        units = self._amount(vocabulary.cores, most, meaning)
        # Rounded down: rounded up, all groups of a card could not be given away. More groups than there are never fit.
        return units and units * ALL_CORES // of_card

    def _amount(self, name: str, maximum: int, meaning: str) -> int | None:
        if not name or name not in self._asked:
            return None
        given, where = self._asked[name], f"{self._where}, {name}"
        try:
            amount = whole_number(given)
        except BadInput as error:
            explained = "" if name == self._count_name else f" ({meaning})"
            raise BadInput(f"{where}: {error}{explained}") from None
        if amount > maximum:
            raise BadInput(f"{where}: {given} is more than {maximum}; it is {meaning}")
        return amount
