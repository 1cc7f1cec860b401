"""The kinds of differences that an audit finds, each with its remedy, and the actions of --fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from gpuledger.model.request import SeenClaim
from gpuledger.model.share import ClaimRef, Pod, Share
from gpuledger.model.stored_card import StoredCard

DETAIL_LENGTH = 500
"""Longer details are cut: parts of them come from annotations, which anybody can fill."""


class AuditFindingKind(StrEnum):
    """What can differ, in the order in which it is shown. `remedy` says how to fix it."""

    remedy: str

    def __new__(cls, value: str, remedy: str) -> Self:
        """Return a member with its remedy."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.remedy = remedy
        return kind

    # Holders whose pod has no right to them.
    POD_GONE = "pod-gone", "--fix releases the share, which counts a little longer: its processes may still run."
    POD_FINISHED = "pod-finished", "--fix removes the holder."
    POD_NOT_BOUND = "pod-not-bound", "--fix takes the share back, and makes a late Binding fail."
    OVERDUE = "overdue", "--fix ends the overdue holder. Check that the operator runs: it should have done so."
    SPARE_HOLDER = "spare-holder", "--fix removes the holder: the pod has all its cards without it."
    OTHER_NODE = "other-node", "Enter the pod's cards on its own node (--fix --adopt), or delete the pod."
    HOLDS_MORE = "holds-more", "Delete the pod when you can: which of its cards it does not need is unknown."

    # Pods that the ledger does not know as they are.
    NOT_ENTERED = "not-entered", "Delete the pod, or enter its shares from its annotation with --fix --adopt."
    PARTLY_ENTERED = "partly-entered", "Delete the pod, or enter what is missing from its annotation: --fix --adopt."
    NOT_ADOPTABLE = "not-adoptable", "Correct what the detail names, or delete the pod."
    UNREADABLE_POD = "unreadable-pod", "Delete the pod: its request can't be read, so the ledger does not count it."
    ANNOTATION_DIFFERS = "annotation-differs", "--fix rewrites the annotation from the ledger."

    # ResourceClaims.
    CLAIM_GONE = "claim-gone", "Delete the pod when you can: its containers can't start again without the claim."
    CLAIM_DIFFERS = "claim-differs", "--fix rewrites the claim's status from the ledger, if no other pod uses it."
    CLAIM_UNKNOWN = (
        "claim-unknown",
        "Delete its pods: another scheduler has given it cards of the ledger's. --fix takes back what no pod uses.",
    )

    # Cards.
    OVER_CAPACITY = "over-capacity", "Delete pods of this card until the others fit: the card has become smaller."
    TOO_MANY_SLOTS = "too-many-slots", "Delete pods of this card until the others have slots."
    WRONG_TOTAL = "wrong-total", "Apply this release's CRD, whose rules forbid it, and correct the card's status."
    NOT_ALONE = "not-alone", "Delete one of the pods, and apply this release's CRD, whose rules forbid it."
    CONFLICT = "conflict", "Delete the pod, or make room on the card and enter the share with --fix --adopt."
    CONFLICT_OVER = "conflict-over", "--fix removes it from the card's list."
    ABANDONED_CARD = "abandoned-card", "--fix deletes the card: no pod holds it."
    ABANDONED_HOLDERS = (
        "abandoned-holders",
        "Bring the card back, or delete its pods; the operator then deletes the card.",
    )
    MOVED_CARD = "moved-card", "Check that the operator runs: it moves a card that no pod holds."

    # Nodes.
    TWO_NODES = "two-nodes", "Correct the register of the node that does not have the card."
    NOT_IN_LEDGER = "not-in-ledger", "Check that the operator runs: it enters each card that its node reports."
    UNREADABLE_REGISTER = "unreadable-register", "Correct the node's register, which its agent writes."


@dataclass(frozen=True, slots=True)
class Judge:
    """Have the pod's shares judged as the operator does: gone, finished, not bound, or bound elsewhere."""

    pod_uid: str


@dataclass(frozen=True, slots=True)
class Annotate:
    """Tell the pod what the ledger says."""

    pod: Pod
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Enter shares that a bound pod's annotation names; list those without room as conflicts. Done only on request."""

    pod: Pod
    node_name: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class DeleteCard:
    """Delete a card that no pod holds, if it is still as it was read."""

    stored: StoredCard


@dataclass(frozen=True, slots=True)
class ClearConflict:
    """Take a pod off the list of a card's conflicts."""

    uuid: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class AllocateClaim:
    """Tell a pod's claim what the ledger says."""

    pod: Pod
    claim: ClaimRef


@dataclass(frozen=True, slots=True)
class DeallocateClaim:
    """Take back an allocation that no pod uses, if the claim still names nobody else than it did."""

    claim: SeenClaim


Action = Judge | Annotate | Adopt | DeleteCard | ClearConflict | AllocateClaim | DeallocateClaim


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One difference. `action` is what repairs it, None where a person decides."""

    kind: AuditFindingKind
    node: str = ""
    card: str = ""
    """UUID of a card."""
    pod: Pod | None = None
    detail: str = ""
    action: Action | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The subject of the finding: another read that shows the same has a finding with the same key."""
        return (self.kind, self.node, self.card, self.pod.uid if self.pod else "")

    @property
    def place(self) -> tuple[int, str, str, str, str]:
        """Sort key: by kind, then by what it is about."""
        return (
            list(AuditFindingKind).index(self.kind),
            self.node,
            self.card,
            str(self.pod or ""),
            self.pod.uid if self.pod else "",
        )


def readable(text: str) -> str:
    """Return a text that is safe to print, whatever an annotation had in it."""
    clean = "".join(character if character.isprintable() else "?" for character in text[: DETAIL_LENGTH + 1])
    return clean if len(clean) <= DETAIL_LENGTH else clean[: DETAIL_LENGTH - 1] + "…"
