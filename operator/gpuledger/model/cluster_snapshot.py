"""The cluster as one round of reads shows it: what an audit compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from gpuledger.model.request import PodRequest
from gpuledger.model.seen_claim import SeenClaim
from gpuledger.model.share import Pod
from gpuledger.model.stored_card import StoredCard


@dataclass(frozen=True, slots=True)
class AnnotatedCard:
    """One container's part of one card, by the pod's annotation. Users can write it."""

    container: str
    uuid: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class OldDevices:
    """A pod's cards by another system's annotation: the cards themselves, or their numbers on the node."""

    annotation: str
    cards: tuple[AnnotatedCard, ...] = ()
    indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, as far as the audit needs it."""

    pod: Pod
    node_name: str
    """Where it is bound to; empty while it is not."""
    finished: bool
    request: PodRequest | None
    """None if it asks for no card, or if that can't be read."""
    bad_request: str = ""
    """Why what it asks for can't be read."""
    annotated: tuple[AnnotatedCard, ...] | None = None
    """The content of its annotation; None if it has none, or one that can't be read."""
    bad_annotation: str = ""
    """Why its annotation can't be read."""
    old: OldDevices | None = None
    """The annotation of the system that placed it before this one. Counts only where ours says nothing."""
    scheduler_name: str = ""
    taken_up: bool = True
    """Its kubelet has taken it up, or has to decide on it, as a scheduler has bound it."""

    @property
    def needs_cards(self) -> str:
        """Name of the node on which it needs its cards now; empty for a pod that is not bound, or has ended."""
        return "" if self.finished else self.node_name


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's report of its cards."""

    cards: tuple[Card, ...] | None
    """None if its register can't be read: then nothing is known of its cards."""
    problems: tuple[str, ...] = ()
    ends: Mapping[str, bool] | None = None
    """UID of a pod that has ended without a word of its kubelet -> whether anything of it runs, as its agent says; None
    if no agent reports it."""
    only_counts: bool = False
    """Its own device plugin only counts its cards: what pods have of them is in no ledger."""

    def runs(self, pod_uid: str) -> bool:
        """Tell whether the agent says of a pod that anything of it is left."""
        return bool(self.ends and self.ends.get(pod_uid))


@dataclass(frozen=True, slots=True)
class SeenCard:
    """A card as it is stored, with the total that it prints."""

    stored: StoredCard
    total: Amounts | None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Cards, nodes and pods, read in this order: whatever a card shows has happened before its pod was read."""

    cards: tuple[SeenCard, ...]
    nodes: Mapping[str, NodeReport]
    """Node name -> what it reports."""
    pods: Mapping[str, PodFacts]
    """Pod UID -> pod: all of our scheduler profile, and whatever other pod the ledger names."""
    read_at: datetime
    claims: Mapping[str, SeenClaim] | None = None
    """UID -> ResourceClaim, of those that are allocated to our cards, or that the ledger names; None where claims can't
    be read."""

    def only_counts(self, node_name: str) -> bool:
        """Tell whether none of a node's cards is in the ledger, as its own device plugin only counts them."""
        report = self.nodes.get(node_name)
        if report is None or not report.only_counts:
            return False
        return all(seen.stored.card.node_name != node_name for seen in self.cards)
