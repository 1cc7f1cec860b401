"""Scores the connection of two cards as one number. Pure.

The table is that of HAMi 2.10 (`calculate_score.go`, `links.go`), so scores mean the same for every agent: a
number for the closest PCIe ancestor, and 100 for each NVLink between the two. Cards behind NVSwitches have no links to
each other, but each of them to the switches: the smaller count is what the pair has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

ANCESTOR_SCORES: Mapping[int, int] = {
    0: 60,  # same board
    10: 50,  # one PCIe switch (PIX)
    20: 40,  # several PCIe switches (PXB)
    30: 30,  # the PCIe host bridge (PHB)
    40: 20,  # the same CPU (NODE)
    50: 10,  # across CPUs (SYS)
}
"""NVML's `nvmlGpuTopologyLevel_t` -> points."""

NVLINK_SCORE = 100
"""Points for each NVLink of a pair."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The active NVLinks of one card."""

    uuid: str
    bus_id: str
    peers: tuple[str, ...] = ()
    """PCI address of the card at the other end, once for each link that ends at a card."""
    switch_links: int = 0
    """Links that end at an NVSwitch."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The driver's report on two cards."""

    ancestor: int | None = None
    """The closest common ancestor, as NVML counts; None where it is unknown."""
    nvlink_usable: bool = True
    """Whether they may reach each other's memory over NVLink; a switch alone is no path between two cards."""


@dataclass(frozen=True, slots=True)
class Links:
    """The scores of all pairs, the same in both directions, and a sentence on what is odd."""

    scores: Mapping[str, Mapping[str, int]]
    """Card's UUID -> peer's UUID -> score. Pairs without any score are left out."""
    problems: tuple[str, ...] = ()


def link_scores(cards: Sequence[Wiring], pairs: Mapping[frozenset[str], Pair]) -> Links:
    """Return the score of each pair of cards; `pairs` is keyed by both UUIDs."""
    scores: dict[str, dict[str, int]] = {card.uuid: {} for card in cards}
    problems: list[str] = []
    for one, other in combinations(cards, 2):
        pair = pairs.get(frozenset((one.uuid, other.uuid)), Pair())
        there, back = _nvlinks(one, other), _nvlinks(other, one)
        if there != back:
            problems.append(
                f"cards {one.uuid} and {other.uuid} count {there} and {back} NVLinks to each other: "
                "a link may be broken; the lower count is used"
            )
        links = min(there, back) or min(one.switch_links, other.switch_links)
        score = ANCESTOR_SCORES.get(pair.ancestor, 0) if pair.ancestor is not None else 0
        score += NVLINK_SCORE * links if pair.nvlink_usable else 0
        if score:
            scores[one.uuid][other.uuid] = scores[other.uuid][one.uuid] = score
    return Links(scores, tuple(problems))


def wired(cards: Iterable[Wiring]) -> bool:
    """Tell whether any card has NVLinks at all."""
    return any(card.peers or card.switch_links for card in cards)


def _nvlinks(one: Wiring, other: Wiring) -> int:
    return sum(peer == other.bus_id for peer in one.peers)
