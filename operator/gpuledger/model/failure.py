"""Failed cards: what a fault means for the pods that hold the card, and when they have to leave it.

Pure. What each class stands for is the node agent's to know (agent/devices/health.py); what follows from it is the
administrator's, by settings, and within their limits the pod's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuledger.model.clock import time_of


class FaultClass(StrEnum):
    """What a card's fault means for the programs on it; the worst comes last."""

    OTHER = "other"
    """Says nothing of them."""
    CONTAINED = "contained"
    """The program that was hit has ended; for the others the card works. It is to be reset when it is free."""
    RESET = "reset"
    """The card works again only after a reset; its programs have ended, or their results are not to be trusted."""
    LOST = "lost"
    """The card has fallen off the bus: its programs are dead."""

    @classmethod
    def _missing_(cls, value: object) -> FaultClass:
        """Return the class of which nothing follows for one that a later release may know."""
        return cls.OTHER

    @property
    def severity(self) -> int:
        """Its place among the classes, 0 for the least."""
        return _SEVERITY[self]


_SEVERITY = {each: place for place, each in enumerate(FaultClass)}


@dataclass(frozen=True, slots=True)
class Failure:
    """The fault by which a card is out of service now."""

    fault_class: FaultClass
    since: str
    """When it began, RFC 3339, by its node's clock."""


WINDOW = timedelta(minutes=5)
"""Faults that begin within it are looked at together."""

MOST_CARDS_PERCENT = 10
"""Of all cards; more than one card and more than these within the window is a storm."""


@dataclass(frozen=True, slots=True)
class StormLimits:
    """How many failures within five minutes are taken for failures of single cards."""

    most_nodes: int = 1
    most_cards_percent: int = MOST_CARDS_PERCENT
    """Of all cards of the cluster; a single card is never too many."""


def storm(
    failure: Failure, all_failures: Mapping[str, Iterable[Failure]], cards: Callable[[], int], limits: StormLimits
) -> str:
    """Return why a failure is taken for one of a storm, for people; empty if it is not.

    Takes the failures of each node, by its name, and what counts all cards. So many at once have a cause that is not in
    the cards, such as a driver that was replaced, or a report that is wrong: moving every pod would do the harm. The
    sentence stays the same while more fail.
    """
    at = time_of(failure.since)
    if at is None:
        return "its node does not say when it began"
    near = {name: [each for each in found if _is_near(each, at)] for name, found in all_failures.items()}
    failed, nodes = sum(map(len, near.values())), [name for name, found in near.items() if found]
    within = f"within {WINDOW.seconds // 60} minutes"
    if len(nodes) > limits.most_nodes:
        most = "one node" if limits.most_nodes == 1 else f"{limits.most_nodes} nodes"
        return f"cards of more than {most} have failed {within}"
    if failed > 1 and failed * 100 > limits.most_cards_percent * cards():
        return f"more than {limits.most_cards_percent} percent of all cards have failed {within}"
    return ""


def _is_near(failure: Failure, at: datetime) -> bool:
    other = time_of(failure.since)
    return other is not None and abs(other - at) <= WINDOW


STAY = "stay"


def patience_s(default_s: float | None, own_s: float | None, longest_s: float) -> float | None:
    """Return how long after a failure began a pod leaves; None: it stays.

    `default_s` is that of the fault's class, None for "stay"; `own_s` is the pod's word, None if it has none, and
    infinity for "stay". The pod decides only for a class by which pods leave, and up to `longest_s`.
    """
    if default_s is None:
        return None
    if own_s is None:
        return default_s
    return min(own_s, max(longest_s, default_s))
