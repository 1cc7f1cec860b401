"""A container's request in words whose amounts are sums over all of its cards, as Koordinator's are. Pure.

Ours are per card, so each sum is divided by the number of cards; what does not come out even is refused, not rounded.
Source: Koordinator's pkg/scheduler/plugins/deviceshare/utils.go and devicehandler_gpu.go (a7a1b76b, July 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.formats.custom_resource.gpu_allocation import MAX_MEMORY_MIB
from gpuledger.formats.dialects.vocabulary import Vocabulary
from gpuledger.formats.kubernetes.quantity import amount, whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand

MIB = 1024 * 1024
MAX_CARDS = 1024
"""Cards of one container, beyond any node."""


def demand_of_totals(where: str, asked: Mapping[str, object], vocabulary: Vocabulary) -> Demand | None:
    """Return what a container is to get of each card, None if it asks for nothing. An amount of 0 is none at all.

    `where` names the container in messages. Raises BadInput for what can't be read, or divided among the cards.
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
