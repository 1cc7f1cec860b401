"""A card with its holders as people are shown it: the facts of its GPUAllocation, spelled as there.

Every view is made from these reports: those of the operator from its memory, those of a command from what the API
server stores. What is only on its way there, a hold, is in none of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.amounts import NOTHING, Amounts, total
from gpuledger.model.card import Card
from gpuledger.model.share import Holder
from gpuledger.model.stored_card import StoredCard

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card. Memory is in MiB, cores are in percent of the card, the number counts slots."""

    card: Card
    phase: str
    """Why it takes pods or not, in a word; empty before its first status."""
    reason: str
    """The same in a sentence; empty if it takes pods."""
    holders: tuple[Holder, ...]
    claims: int
    """How many pods wait until others have left the card."""
    conflicts: int
    """Shares that were found on the card, and that it has no room for."""
    gangs: Mapping[str, str] = field(default_factory=dict)
    """UID of each holder that is of a gang -> the name of that in the pod's namespace, as far as it is known."""

    @property
    def used(self) -> Amounts:
        """Return what the holders take together."""
        return total(holder.share.amounts for holder in self.holders)

    @property
    def alone(self) -> bool:
        """Tell whether a pod has the card alone."""
        return any(holder.share.exclusive for holder in self.holders)

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        card = self.card
        return {
            "uuid": card.uuid,
            "node": card.node_name,
            "index": card.index,
            "vendor": card.vendor,
            "model": card.model,
            "mode": card.mode,
            "numaNode": card.numa_node,
            "phase": self.phase,
            "reason": self.reason,
            "capacity": amounts_json(card.capacity),
            "used": amounts_json(self.used),
            "claims": self.claims,
            "conflicts": self.conflicts,
            "holders": [_holder_json(holder, self.gangs.get(holder.pod.uid, "")) for holder in self.holders],
        }


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node's cards, by index, and their sums."""

    name: str
    cards: tuple[CardReport, ...]

    @property
    def capacity(self) -> Amounts:
        """Return what the cards have in all."""
        return total(report.card.capacity for report in self.cards)

    @property
    def used(self) -> Amounts:
        """Return what is taken of it."""
        return total(report.used for report in self.cards)

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        return {
            "node": self.name,
            "capacity": amounts_json(self.capacity),
            "used": amounts_json(self.used),
            "cards": [report.json() for report in self.cards],
        }


def report_of(entry: CardEntry, gang_of: Callable[[str], str] = lambda uid: "") -> CardReport:
    """Return the report of a line of the ledger in memory. `gang_of` tells a pod's gang by its UID."""
    holders = tuple(entry.holders.values())
    gangs = {uid: gang for uid in entry.holders if (gang := gang_of(uid))}
    return CardReport(entry.card, entry.phase, entry.reason, holders, len(entry.claims), len(entry.misfits), gangs)


def report_of_stored(stored: StoredCard, gangs: Mapping[str, str] | None = None) -> CardReport:
    """Return the report of a card that was read from the API server; `gangs` are those that are known by pods' UIDs."""
    holders, known = stored.holders or (), gangs or {}
    here = {holder.pod.uid: known[holder.pod.uid] for holder in holders if holder.pod.uid in known}
    return CardReport(stored.card, stored.phase, stored.reason, holders, len(stored.claims), len(stored.misfits), here)


def by_node(reports: Iterable[CardReport]) -> list[NodeCards]:
    """Return the nodes by name, each with its cards by index."""
    found: dict[str, list[CardReport]] = defaultdict(list)
    for report in reports:
        found[report.card.node_name].append(report)
    return [
        NodeCards(name, tuple(sorted(cards, key=lambda report: report.card.place)))
        for name, cards in sorted(found.items())
    ]


def by_namespace(reports: Iterable[CardReport]) -> Mapping[str, Amounts]:
    """Return what the pods of each namespace hold together."""
    found: dict[str, Amounts] = defaultdict(lambda: NOTHING)
    for report in reports:
        for holder in report.holders:
            found[holder.pod.namespace] += holder.share.amounts
    return dict(sorted(found.items()))


def by_model(reports: Iterable[CardReport]) -> Mapping[str, list[CardReport]]:
    """Return the cards of each model."""
    found: dict[str, list[CardReport]] = defaultdict(list)
    for report in sorted(reports, key=attrgetter("card.model")):
        found[report.card.model].append(report)
    return dict(found)


def amounts_json(amounts: Amounts) -> Json:
    """Spell amounts as the GPUAllocation does."""
    return {"memoryMiB": amounts.memory_mib, "cores": amounts.cores, "number": amounts.number}


def _holder_json(holder: Holder, gang: str) -> Json:
    pod, share = holder.pod, holder.share
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "podUID": pod.uid,
        "priority": pod.priority,
        **amounts_json(share.amounts),
        "exclusive": share.exclusive,
        "state": holder.state.value,
        **({"gang": gang} if gang else {}),
    }
