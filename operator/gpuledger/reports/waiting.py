"""A pod that waits for cards, in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuledger.model.json_object import Json
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import Demand, PodRequest
from gpuledger.model.share import Pod


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """Who waits, for what, and why."""

    pod: Pod
    request: PodRequest
    created: str
    """RFC 3339."""
    tried_s: float | None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not yet."""
    reasons: Mapping[Refusal, int]
    """Why nodes do not take it, and how many of them for each reason."""
    gang: str = ""
    """The name of its gang in its namespace; empty if it has none."""
    queue: str = ""
    """The queue of Kueue's that it is in; empty if it is in none."""

    @property
    def main_reason(self) -> str:
        """Return the reason that most nodes give; "room-found" if none is known: it is about to be tried again."""
        most = max(self.reasons.items(), key=lambda each: each[1], default=None)
        return most[0].reason.value if most else "room-found"

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        most_first = Counter(dict(self.reasons)).most_common()
        return {
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "podUID": self.pod.uid,
            "gang": self.gang or None,
            "queue": self.queue or None,
            "priority": self.pod.priority,
            "since": self.created,
            "lastTried": moment(self.tried_s),
            "request": request_text(self.request),
            "reasons": [
                {"reason": refusal.reason.value, "text": refusal.text, "nodes": nodes} for refusal, nodes in most_first
            ],
        }


def moment(unix_s: float | None) -> str | None:
    """Return a time in Unix seconds as RFC 3339, in whole seconds of UTC."""
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def request_text(request: PodRequest) -> str:
    """Return what a pod asks for in a line: "2 cards with 8,000 MiB and 30 % of cores each; 1 whole card"."""
    return "; ".join(demand_text(demand) for demand in request.shape)


def demand_text(demand: Demand) -> str:
    """Return what one container asks for in a few words."""
    cards = "1 card" if demand.cards == 1 else f"{demand.cards} cards"
    cards = "every card" if demand.every_card else cards
    if demand.whole:
        return cards.replace(" ", " whole ")
    memory = f"{demand.memory_percent} % of memory" if demand.memory_mib is None else f"{demand.memory_mib:,} MiB"
    cores = f" and {demand.cores} % of cores" if demand.cores else ""
    alone = ", alone" if demand.exclusive else ""
    return f"{cards} with {memory}{cores}{' each' if demand.cards > 1 else ''}{alone}"
