"""The cluster's books compared with each other: facts in, findings out. Nothing is read, nothing is written.

The ledger is the authority on who holds what; pods and nodes say who should. An annotation is only a view of the
ledger, and is compared with it last. A ResourceClaim's status is compared with the ledger in the same way.

`AuditFindingKind` lists the differences that an audit finds, each with its remedy, and the actions of --fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Self

from gpuledger.ledger.adoption import Adopt, SnapshotCards, lacks_cards, missing_shares
from gpuledger.ledger.entry import why_not
from gpuledger.model.card import NOTHING, Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import ClusterSnapshot, PodFacts, SeenCard
from gpuledger.model.request import PodRequest, SeenClaim
from gpuledger.model.share import ClaimRef, Holder, HolderState, Misfit, Pod, Share, StoredCard, fitting_variant

OVERDUE_AFTER = timedelta(minutes=1)
"""How long after its deadline a holder may still be there: the operator looks again soon after, not at once."""


DETAIL_LENGTH = 500
"""Longer details are cut: parts of them come from annotations, which users write."""


class AuditFindingKind(StrEnum):
    """The kinds of findings, in the order in which they are shown. `remedy` says how to fix it."""

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
    PAST_LEDGER = "past-ledger", "Delete the pod, or correct what the detail names: it reaches cards without a share."
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
    """Write the ledger's shares into the pod's annotation."""

    pod: Pod
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
    """Write the ledger's cards into a pod's claim."""

    pod: Pod
    claim: ClaimRef


@dataclass(frozen=True, slots=True)
class DeallocateClaim:
    """Take back an allocation that no pod uses, if the claim still names the same consumers."""

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


def findings(snapshot: ClusterSnapshot) -> tuple[AuditFinding, ...]:
    """Return every difference in the world, in the order of their kinds."""
    audit = _Audit(snapshot)
    pods = list(audit.pods())
    lacking = {each.pod.uid for each in pods if each.pod and each.kind is not AuditFindingKind.PAST_LEDGER}
    found = [*audit.holders(), *pods, *_claim_findings(snapshot, lacking), *audit.cards(), *audit.nodes()]
    return tuple(sorted(found, key=lambda finding: finding.place))


class _Audit:
    """One comparison, with what it looks things up in."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._stored = [seen.stored for seen in snapshot.cards]
        taking_pods = (stored.card for stored in self._stored if stored.holders is not None)
        self._cards = SnapshotCards(snapshot, taking_pods)

    @cached_property
    def _by_uuid(self) -> dict[str, StoredCard]:
        return {stored.card.uuid: stored for stored in self._stored}

    @cached_property
    def _reports(self) -> dict[str, dict[str, Card]]:
        """Name of a card's object -> node that reports the card -> the card."""
        reports: dict[str, dict[str, Card]] = {}
        for name, report in sorted(self._snapshot.nodes.items()):
            for card in report.cards or ():
                reports.setdefault(card.object_name, {})[name] = card
        return reports

    # Holders.

    def holders(self) -> Iterator[AuditFinding]:
        """Find holders whose pod has no right to them."""
        for held in self._cards.held.values():
            for card, holder in held:
                if holder.is_seat:  # the operator asks its object
                    continue
                kind, detail = self._holder(card, holder)
                if kind is not None:
                    action = None if kind is AuditFindingKind.OTHER_NODE else Judge(holder.pod.uid)
                    yield _finding(kind, card.node_name, card.uuid, holder, detail, action)

    def _holder(self, card: Card, holder: Holder) -> tuple[AuditFindingKind | None, str]:
        pod, amounts = self._snapshot.pods.get(holder.pod.uid), _words(holder.share.amounts)
        if holder.state is not HolderState.ALLOCATED:
            report = self._snapshot.nodes.get(card.node_name)
            runs = report is not None and report.runs(holder.pod.uid)
            late = not runs and _is_overdue(holder.deadline, self._snapshot.read_at)
            return (
                AuditFindingKind.OVERDUE if late else None
            ), f"{amounts}, {holder.state} until {holder.deadline or 'now'}"
        if pod is None:
            return AuditFindingKind.POD_GONE, amounts
        if not pod.node_name:
            return AuditFindingKind.POD_NOT_BOUND, amounts
        if pod.finished:
            return AuditFindingKind.POD_FINISHED, amounts
        rightful = self._rightful(pod)
        if card.node_name != pod.node_name:
            kind = AuditFindingKind.OTHER_NODE if rightful is None else AuditFindingKind.SPARE_HOLDER
            return kind, f"{amounts}; the pod is on node {pod.node_name}"
        if rightful is not None and holder.share not in rightful:
            return (
                AuditFindingKind.SPARE_HOLDER,
                f"{amounts}; its annotation names as many cards as it requests, but not this one",
            )
        return None, ""

    def _rightful(self, pod: PodFacts) -> list[Share] | None:
        """Return the shares on its node that the pod has a right to; None if they are too few, or ambiguous."""
        here = self._cards.held_by(pod)
        if pod.request is None or lacks_cards(here, pod.request):
            return None
        if fitting_variant(here, pod.request):
            return here
        named = [share for share in here if share.uuid in {card.uuid for card in pod.annotated or ()}]
        return named if fitting_variant(named, pod.request) else None

    # Pods.

    def pods(self) -> Iterator[AuditFinding]:
        """Find bound pods that the ledger, or their annotation, does not know as they are."""
        for pod in self._snapshot.pods.values():
            if pod.needs_cards and pod.past_ledger:
                yield _finding(AuditFindingKind.PAST_LEDGER, pod.node_name, "", pod, pod.past_ledger)
            if pod.needs_cards and pod.bad_request:
                yield _finding(AuditFindingKind.UNREADABLE_POD, pod.node_name, "", pod, pod.bad_request)
            elif pod.needs_cards and not self._snapshot.only_counts(pod.node_name):
                yield from self._pod(pod)

    def _pod(self, pod: PodFacts) -> Iterator[AuditFinding]:
        here = self._cards.held_by(pod)
        if pod.request is not None and lacks_cards(here, pod.request):
            yield from self._lacking(pod, pod.request, here)
            return
        rightful = here if pod.request is None else self._rightful(pod)
        if rightful is None or (here and pod.request is None) or not _names(rightful) <= _asking(pod, rightful):
            cards = ", ".join(share.uuid for share in here)
            yield _finding(AuditFindingKind.HOLDS_MORE, pod.node_name, "", pod, f"it holds cards {cards}")
            return
        detail = _annotation_differs(pod, rightful)
        if detail and not self._others_say_so(pod, rightful):
            action = Annotate(pod.pod, tuple(rightful))
            yield _finding(AuditFindingKind.ANNOTATION_DIFFERS, pod.node_name, "", pod, detail, action)

    def _others_say_so(self, pod: PodFacts, rightful: Sequence[Share]) -> bool:
        """Return whether a pod lacks our annotation, and that of the system which placed it names these cards."""
        if pod.annotated is not None or pod.bad_annotation or pod.old is None:
            return False
        try:
            return not missing_shares(pod, rightful, self._cards)
        except BadInput:
            return False

    def _lacking(self, pod: PodFacts, request: PodRequest, here: Sequence[Share]) -> Iterator[AuditFinding]:
        asked = f"it asks for {_count(request.cards, 'card')} and holds {len(here)}"
        try:
            missing = missing_shares(pod, here, self._cards)
        except BadInput as error:
            yield _finding(AuditFindingKind.NOT_ADOPTABLE, pod.node_name, "", pod, f"{asked}; {error}")
            return
        new = tuple(share for share in missing if not self._is_known_conflict(pod, share))
        if new:  # the others are findings of their cards
            kind = AuditFindingKind.PARTLY_ENTERED if here else AuditFindingKind.NOT_ENTERED
            named = ", ".join(f"{share.uuid} ({_words(share.amounts)})" for share in new)
            action = Adopt(pod.pod, pod.node_name, new)
            yield _finding(kind, pod.node_name, "", pod, f"{asked}; its annotation names {named}", action)

    def _is_known_conflict(self, pod: PodFacts, share: Share) -> bool:
        stored = self._by_uuid[share.uuid]
        listed = any(misfit.pod.uid == pod.pod.uid for misfit in stored.misfits)
        others = [holder.share for holder in stored.holders or ()]
        return listed and why_not(share, others, stored.card.capacity) is not None

    # Cards.

    def cards(self) -> Iterator[AuditFinding]:
        """Find cards that contradict themselves, their pods or their nodes."""
        for seen in self._snapshot.cards:
            yield from _sums(seen)
            for misfit in seen.stored.misfits:
                yield self._conflict(seen.stored, misfit)
            yield from self._whereabouts(seen.stored)

    def _conflict(self, stored: StoredCard, misfit: Misfit) -> AuditFinding:
        card, pod = stored.card, self._snapshot.pods.get(misfit.pod.uid)
        holds = any(holder.pod.uid == misfit.pod.uid for holder in stored.holders or ())
        if pod is not None and pod.needs_cards == card.node_name and not holds:
            detail = f"{_words(misfit.amounts)} are not counted: {misfit.why}"
            return _finding(AuditFindingKind.CONFLICT, card.node_name, card.uuid, misfit, detail)
        detail = "the share has been entered since" if holds else "the pod is no longer on the card"
        action = ClearConflict(card.uuid, misfit.pod.uid)
        return _finding(AuditFindingKind.CONFLICT_OVER, card.node_name, card.uuid, misfit, detail, action)

    def _whereabouts(self, stored: StoredCard) -> Iterator[AuditFinding]:
        card = stored.card
        report = self._snapshot.nodes.get(card.node_name)
        reporters = self._reports.get(card.object_name, {})
        if (report is not None and report.cards is None) or card.node_name in reporters:
            return
        detail = "its node is gone" if report is None else "its node does not report it"
        if reporters:
            detail += f"; node {' and node '.join(reporters)} does"
        if stored.holders or stored.misfits:
            pods = _pods((*(stored.holders or ()), *stored.misfits))
            yield _finding(AuditFindingKind.ABANDONED_HOLDERS, card.node_name, card.uuid, None, f"{detail}; {pods}")
        elif reporters:
            yield _finding(AuditFindingKind.MOVED_CARD, card.node_name, card.uuid, None, detail)
        else:
            yield _finding(AuditFindingKind.ABANDONED_CARD, card.node_name, card.uuid, None, detail, DeleteCard(stored))

    # Nodes.

    def nodes(self) -> Iterator[AuditFinding]:
        """Find what is wrong with the nodes' registers."""
        for name, report in self._snapshot.nodes.items():
            if report.problems:
                rest = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
                yield _finding(AuditFindingKind.UNREADABLE_REGISTER, name, "", None, report.problems[0] + rest)
        known = {stored.card.object_name: stored.card for stored in self._stored}
        for name, reporters in self._reports.items():
            first, card = next(iter(reporters.items()))
            if len(reporters) > 1:
                owner = f"; the ledger has it on node {known[name].node_name}" if name in known else ""
                detail = f"nodes {' and '.join(reporters)} report it{owner}"
                yield _finding(AuditFindingKind.TWO_NODES, first, card.uuid, None, detail)
            if name not in known:
                yield _finding(AuditFindingKind.NOT_IN_LEDGER, first, card.uuid, None, "its node reports it")


def _finding(
    kind: AuditFindingKind,
    node: str,
    card: str,
    about: Holder | PodFacts | Misfit | None,
    detail: str,
    action: Action | None = None,
) -> AuditFinding:
    return AuditFinding(kind, node, card, about.pod if about else None, readable(detail), action)


def _sums(seen: SeenCard) -> Iterator[AuditFinding]:
    card, holders = seen.stored.card, seen.stored.holders or ()
    held, capacity = sum((holder.share.amounts for holder in holders), NOTHING), card.capacity
    over = [
        f"{used} {unit} of {there}"
        for used, there, unit in (
            (held.memory_mib, capacity.memory_mib, "MiB"),
            (held.cores, capacity.cores, "% cores"),
        )
        if used > there
    ]
    if over:
        yield _finding(
            AuditFindingKind.OVER_CAPACITY, card.node_name, card.uuid, None, f"{', '.join(over)}; {_pods(holders)}"
        )
    if held.number > capacity.number:
        detail = f"{_count(held.number, 'slot')} of {capacity.number}; {_pods(holders)}"
        yield _finding(AuditFindingKind.TOO_MANY_SLOTS, card.node_name, card.uuid, None, detail)
    if seen.total is not None and seen.total != held:
        detail = f"the total says {_words(seen.total)}, the holders add up to {_words(held)}"
        yield _finding(AuditFindingKind.WRONG_TOTAL, card.node_name, card.uuid, None, detail)
    alone = [str(holder.pod) for holder in holders if holder.share.exclusive]
    if alone and len(holders) > 1:
        yield _finding(
            AuditFindingKind.NOT_ALONE, card.node_name, card.uuid, None, f"for {alone[0]} alone, but: {_pods(holders)}"
        )


def _names(shares: Iterable[Share]) -> set[str]:
    return {container.name for share in shares for container in share.containers}


def _asking(pod: PodFacts, shares: Sequence[Share]) -> set[str]:
    """Return the names of the containers that ask for cards, in the variant of which the pod has these."""
    variant = fitting_variant(shares, pod.request) if pod.request else None
    return set(variant.names) if variant else set()


def _annotation_differs(pod: PodFacts, shares: Sequence[Share]) -> str:
    """Say how the annotation differs from the shares; empty if it does not, apart from the order of the cards."""
    if pod.bad_annotation:
        return pod.bad_annotation
    annotated = {(card.container, card.uuid): (card.memory_mib, card.cores) for card in pod.annotated or ()}
    parts = [(part, share.uuid) for share in shares for part in share.containers]
    held = {(part.name, uuid): (part.memory_mib, part.cores) for part, uuid in parts}
    for part, uuid in parts:  # it may have it from a pod that has ended: its own Binding said nothing of it
        if part.claim is not None and part.claim.shared and (part.name, uuid) not in annotated:
            del held[part.name, uuid]
    if pod.annotated is None and held:
        return "it has no annotation"
    for container, uuid in (*held, *annotated):
        where = f"container {container[:63]!r}, card {uuid}"
        if (container, uuid) not in annotated:
            return f"{where}: in the ledger alone"
        if (container, uuid) not in held:
            return f"{where}: in the annotation alone"
        if annotated[container, uuid] != held[container, uuid]:
            memory_mib, cores = annotated[container, uuid]
            right_mib, right_cores = held[container, uuid]
            return f"{where}: annotation {memory_mib} MiB, {cores} %, ledger {right_mib} MiB, {right_cores} %"
    return ""


def _is_overdue(deadline: str | None, now: datetime) -> bool:
    try:
        return deadline is None or datetime.fromisoformat(deadline) + OVERDUE_AFTER < now
    except (ValueError, TypeError):  # no date, or one without a time zone
        return True


def _words(amounts: Amounts) -> str:
    return f"{amounts.memory_mib} MiB, {amounts.cores} % cores, {_count(amounts.number, 'slot')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _pods(users: Sequence[Holder | Misfit]) -> str:
    """Name the first pods and count the rest."""
    named = ", ".join(str(user.pod) for user in users[:5])
    return f"pods {named}" + (f" and {len(users) - 5} more" if len(users) > 5 else "")


Cards = frozenset[tuple[str, str]]
"""Request, or `request/alternative`, and UUID of a card."""

PODS_NAMED = 5


def _claim_findings(snapshot: ClusterSnapshot, lacking: AbstractSet[str]) -> Iterator[AuditFinding]:
    """Yield what claims and ledger say of each other; nothing where claims were not read.

    `lacking` are the UIDs of pods of which it is known that they lack shares.
    """
    if snapshot.claims is None:
        return
    held = _held_by_claims(snapshot)
    for (pod_uid, ref), (holder, node_name, cards) in held.items():
        pod = snapshot.pods.get(pod_uid)
        if holder.state is HolderState.ALLOCATED and pod is not None and pod.needs_cards == node_name:
            yield from _holder_of_claim(pod, ref, cards, snapshot.claims.get(ref.uid))
    for pod in snapshot.pods.values():
        yield from _joined(pod, snapshot.claims)
    known = {ref.uid for _, ref in held}
    for claim in snapshot.claims.values():
        if claim.cards and claim.uid not in known and not lacking & {*claim.users}:
            yield _unknown(claim, snapshot)


def _held_by_claims(snapshot: ClusterSnapshot) -> dict[tuple[str, ClaimRef], tuple[Holder, str, Cards]]:
    """Return the ledger's holders by claim: pod and claim -> a holder of it, its node, and the cards."""
    found: dict[tuple[str, ClaimRef], tuple[Holder, str, Cards]] = {}
    for seen in snapshot.cards:
        card: Card = seen.stored.card
        for holder in seen.stored.holders or ():
            for part in holder.share.containers:
                if part.claim is not None:
                    key = holder.pod.uid, part.claim
                    _, _, before = found.get(key, (holder, card.node_name, frozenset()))
                    entry = part.name.partition("/")[2], card.uuid
                    found[key] = holder, card.node_name, before | {entry}
    return found


def _holder_of_claim(pod: PodFacts, ref: ClaimRef, cards: Cards, claim: SeenClaim | None) -> Iterator[AuditFinding]:
    first = min(uuid for _, uuid in cards)
    if claim is None:
        detail = f"ResourceClaim {ref.name} is gone, or another one has its name"
        yield _finding(AuditFindingKind.CLAIM_GONE, pod.node_name, first, pod, detail)
        return
    detail = _differs(pod, cards, claim)
    if detail:
        alone = {*claim.consumers} <= {pod.pod.uid}
        action = AllocateClaim(pod.pod, ref) if alone else None
        detail = f"ResourceClaim {ref.name} {detail}"
        yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod.node_name, first, pod, detail, action)


def _differs(pod: PodFacts, cards: Cards, claim: SeenClaim) -> str:
    """Say what a claim does not say of its holder; empty if it says what the ledger does."""
    if not claim.cards:
        return f"is not allocated; the ledger has {_cards(cards)} for it"
    if claim.cards != cards:
        return f"is allocated to {_cards(claim.cards)}; the ledger has {_cards(cards)} for it"
    return "" if pod.pod.uid in claim.consumers else "does not name the pod as one that may use it"


def _joined(pod: PodFacts, claims: Mapping[str, SeenClaim]) -> Iterator[AuditFinding]:
    """Yield claims of which others hold the cards, and that do not name the pod."""
    for each in pod.request.joined if pod.request is not None and pod.needs_cards else ():
        claim = claims.get(each.uid)
        if claim is not None and pod.pod.uid not in claim.consumers:
            detail = f"ResourceClaim {claim.name} does not name the pod as one that may use it"
            yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod.node_name, "", pod, detail)


def _unknown(claim: SeenClaim, snapshot: ClusterSnapshot) -> AuditFinding:
    """Return the finding that the ledger has nothing for a claim. An unused allocation is taken back."""
    names = dict(zip(claim.consumers, claim.consumer_names, strict=True))
    users = [names[uid] for uid in claim.users if uid in names]
    more = f" and {len(users) - PODS_NAMED} more" if len(users) > PODS_NAMED else ""
    used = f"pods that use it: {', '.join(users[:PODS_NAMED])}{more}" if users else "no pod uses it"
    detail = f"ResourceClaim {claim} is allocated to {_cards(claim.cards)}; {used}"
    action = None if users else DeallocateClaim(claim)
    first = min(uuid for _, uuid in claim.cards)
    return _finding(AuditFindingKind.CLAIM_UNKNOWN, claim.node_name, f"{claim}, {first}", None, detail, action)


def _cards(cards: Cards) -> str:
    named = sorted({uuid for _, uuid in cards})
    return f"card {named[0]}" if len(named) == 1 else f"cards {', '.join(named)}"
