"""Which shares a bound pod should have in the ledger: for the audit, adoption and migration. Facts in, steps out.

A pod's annotation is ours, or that of the system that placed it before. Users can write it. It is believed in one
thing, which of the node's cards the pod has, and only where that agrees with the pod's spec. How much the pod takes of
them is what its spec asks for, or what the annotation says if that is more: so no annotation makes a pod count less
than it should. A ResourceClaim's status is compared with the ledger in the same way.

`AuditFindingKind` lists the differences that an audit finds, each with its remedy, and the actions of --fix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self

from gpuledger.ledger.entry import why_not
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, ClusterSnapshot, OldDevices, PodFacts
from gpuledger.model.request import Demand, PodRequest, SeenClaim
from gpuledger.model.share import ClaimRef, Holder, HolderState, Pod, Share, StoredCard, shares_of, stamped

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


class FindCards(Protocol):
    """Cards that the ledger has, and that take pods."""

    def card(self, uuid: str) -> Card | None:
        """Return the card of this UUID."""

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """Return a node's cards."""


def lacks_cards(shares: Sequence[Share], request: PodRequest) -> bool:
    """Return whether a container has fewer cards than it asks for, in each variant of the request."""
    cards = Counter(container.name for share in shares for container in share.containers)
    return all(
        any(cards[name] < demand.cards for name, demand in zip(variant.names, variant.shape, strict=True))
        for variant in request.variants
    )


def missing_shares(pod: PodFacts, held: Sequence[Share], cards: FindCards) -> tuple[Share, ...]:
    """Return what the annotation gives a bound pod beyond what it holds on its node, in the order of the cards.

    Raises BadInput with a sentence where the annotation can't be used, or contradicts spec or ledger.
    """
    annotated = {share.uuid: share for share in _annotated_shares(pod, cards)}
    for share in held:
        if share.uuid not in annotated:
            if _was_handed_over(share):
                continue
            raise BadInput(f"its annotation does not name card {share.uuid}, which it holds")
        if {c.name for c in annotated[share.uuid].containers} != {c.name for c in share.containers}:
            raise BadInput(f"its annotation names other containers for card {share.uuid} than the ledger does")
    has = {share.uuid for share in held}
    return tuple(share for uuid, share in annotated.items() if uuid not in has)


def ambiguous_cards(pod: PodFacts, cards: FindCards) -> tuple[Card, ...]:
    """Return the cards of which the pod may have some, as one number stands for several of them."""
    if pod.annotated is not None or pod.old is None:
        return ()
    numbers = Counter(card.index for card in cards.cards_of(pod.node_name))
    return tuple(
        card for card in cards.cards_of(pod.node_name) if card.index in pod.old.indexes and numbers[card.index] > 1
    )


def _annotated_cards(pod: PodFacts, request: PodRequest, cards: FindCards) -> tuple[AnnotatedCard, ...]:
    if pod.annotated is not None:
        return pod.annotated
    if pod.old is None:
        raise BadInput("no annotation says which cards it has")
    return pod.old.cards or _by_number(pod, pod.old, request, cards)


def _by_number(pod: PodFacts, old: OldDevices, request: PodRequest, cards: FindCards) -> tuple[AnnotatedCard, ...]:
    """Return the cards that have these numbers on the node. One number is for all containers, several are in order."""
    by_index: dict[int, list[Card]] = {}
    for card in cards.cards_of(pod.node_name):
        by_index.setdefault(card.index, []).append(card)
    found: list[str] = []
    for index in old.indexes:
        here = by_index.get(index, [])
        if len(here) != 1:
            many = "several cards have" if here else "no card has"
            raise BadInput(f"annotation {old.annotation} says {index}, and {many} this number on node {pod.node_name}")
        found.append(here[0].uuid)
    if len(found) == 1 and all(demand.cards == 1 for demand in request.shape):
        return tuple(AnnotatedCard(name, found[0], 0, 0) for name in request.names)
    if len(found) != request.cards:
        raise BadInput(f"annotation {old.annotation} names {len(found)} cards; the pod asks for {request.cards}")
    uuids = iter(found)
    return tuple(
        AnnotatedCard(name, next(uuids), 0, 0)
        for name, demand in zip(request.names, request.shape, strict=True)
        for _ in range(demand.cards)
    )


def _annotated_shares(pod: PodFacts, cards: FindCards) -> tuple[Share, ...]:
    request = pod.request
    if pod.bad_annotation:
        raise BadInput(pod.bad_annotation)
    if request is None:
        raise BadInput("it asks for no card")
    annotated_cards = _annotated_cards(pod, request, cards)
    of_container: dict[str, list[str]] = {}
    for annotated in annotated_cards:
        of_container.setdefault(annotated.container, []).append(annotated.uuid)
    request = next((each for each in request.variants if {*each.names} == of_container.keys()), request)
    _check_counts(request, of_container)
    for claim in request.claims:
        if not claim.uid:
            raise BadInput(f"claim {claim.name}: its ResourceClaim is gone")
    used = [_card(uuid, pod.node_name, cards) for uuid in {annotated.uuid for annotated in annotated_cards}]
    assignment = tuple(tuple(of_container[name]) for name in request.names)
    annotated_of = {(annotated.container, annotated.uuid): annotated for annotated in annotated_cards}
    result: list[Share] = []
    for card in sorted(used, key=lambda card: card.place):
        result += shares_of(_at_least(request, card, annotated_of), assignment, [card])
    return tuple(stamped(share, request.claims) for share in result)


def _was_handed_over(share: Share) -> bool:
    """Return whether a pod may have a share from another one with which it shares a claim: no annotation names it."""
    return all(part.claim is not None and part.claim.shared for part in share.containers)


def _check_counts(request: PodRequest, of_container: Mapping[str, Sequence[str]]) -> None:
    for name in of_container:
        if name not in request.names:
            raise BadInput(f"its annotation gives cards to container {name[:63]!r}, which asks for none")
    for name, demand in zip(request.names, request.shape, strict=True):
        number = len(of_container.get(name, ()))
        if number != demand.cards and not (demand.every_card and number):
            raise BadInput(f"its annotation names {number} cards for container {name}, which asks for {demand.cards}")


def _card(uuid: str, node_name: str, cards: FindCards) -> Card:
    card = cards.card(uuid)
    if card is None:
        raise BadInput(f"its annotation names card {uuid}, which is not in the ledger, or takes no pods yet")
    if card.node_name != node_name:
        raise BadInput(f"its annotation names card {uuid}, which is on node {card.node_name}")
    return card


def _at_least(request: PodRequest, card: Card, annotated_of: Mapping[tuple[str, str], AnnotatedCard]) -> PodRequest:
    """Return the request with what the annotation names of this card, where that is more."""
    shape = [
        _raised(demand, card.capacity, annotated_of.get((name, card.uuid)))
        for name, demand in zip(request.names, request.shape, strict=True)
    ]
    return replace(request, shape=tuple(shape))


def _raised(demand: Demand, capacity: Amounts, annotated: AnnotatedCard | None) -> Demand:
    if annotated is None:
        return demand
    asked = demand.amounts_on(capacity)
    return replace(
        demand, memory_mib=max(asked.memory_mib, annotated.memory_mib), cores=max(asked.cores, annotated.cores)
    )


NOT_ALL = "another share of the pod can't be entered"


@dataclass(frozen=True, slots=True)
class Step:
    """A share of a pod that runs already, and why it can't be entered; of a pod without a readable share, only why."""

    pod: Pod
    node_name: str
    source: str
    """The annotation that says which cards the pod has."""
    share: Share | None
    why: str = ""
    """The obstacle; empty if the share can be entered."""


def plan(snapshot: ClusterSnapshot, scheduler_names: Collection[str]) -> tuple[Step, ...]:
    """Return the steps for all pods that lack cards in the ledger, by namespace and name.

    Shares are counted in this order: one that fits in is in the way of the next. Cards that nodes report, and that are
    not in the ledger yet, count as empty.
    """
    cards = _Cards(snapshot)
    counted = (pod for pod in snapshot.pods.values() if not snapshot.only_counts(pod.needs_cards))
    pods = sorted(counted, key=lambda pod: str(pod.pod))
    return tuple(step for pod in pods for step in _together(tuple(_steps(pod, cards, scheduler_names))))


def _together(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a pod's steps; if something stands in the way of one, none is entered."""
    if all(not step.why for step in steps):
        return steps
    return tuple(step if step.why else replace(step, why=NOT_ALL) for step in steps)


def _steps(pod: PodFacts, cards: _Cards, scheduler_names: Collection[str]) -> Iterator[Step]:
    if not pod.needs_cards:
        return
    source = pod.old.annotation if pod.annotated is None and pod.old is not None else "gpuledger.dev/devices"
    if pod.request is None:
        if pod.bad_request:
            yield Step(pod.pod, pod.node_name, source, None, pod.bad_request)
        return
    held = cards.held(pod)
    if not lacks_cards(held, pod.request):
        return
    yield from _lacking(pod, pod.request, held, cards, source, scheduler_names)


def _lacking(
    pod: PodFacts,
    request: PodRequest,
    held: Sequence[Share],
    cards: _Cards,
    source: str,
    scheduler_names: Collection[str],
) -> Iterator[Step]:
    try:
        missing = missing_shares(pod, held, cards)
    except BadInput as error:
        asked = f"it asks for {request.cards} cards"
        yield Step(pod.pod, pod.node_name, source, None, f"{asked}; {error}")
        return
    for share in missing:
        why = cards.enter(share)
        if not why and pod.scheduler_name not in scheduler_names:
            why = not_served(pod.scheduler_name)
        yield Step(pod.pod, pod.node_name, source, share, why)


def not_served(scheduler_name: str) -> str:
    """Return why a pod of this scheduler is not entered."""
    return f"its scheduler is {scheduler_name}: name it in the setting extra_scheduler_names"


class _Cards:
    """The cards of the world, with the shares on them; what is entered counts from then on."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._cards = {card.uuid: card for node in snapshot.nodes.values() for card in node.cards or ()}
        self._cards |= {seen.stored.card.uuid: seen.stored.card for seen in snapshot.cards}
        self._shares: dict[str, list[Share]] = {uuid: [] for uuid in self._cards}
        self._of_pod: dict[str, list[tuple[str, Share]]] = {}  # pod UID -> node name and share
        for seen in snapshot.cards:
            for holder in seen.stored.holders or ():
                self._shares[seen.stored.card.uuid].append(holder.share)
                mine = self._of_pod.setdefault(holder.pod.uid, [])
                mine.append((seen.stored.card.node_name, holder.share))

    def card(self, uuid: str) -> Card | None:
        """Return a card that is in the ledger, or will be."""
        return self._cards.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        """Return a node's cards."""
        return [card for card in self._cards.values() if card.node_name == node_name]

    def held(self, pod: PodFacts) -> list[Share]:
        """Return what a pod holds on its node."""
        return [share for node_name, share in self._of_pod.get(pod.pod.uid, ()) if node_name == pod.node_name]

    def enter(self, share: Share) -> str:
        """Count a share if it fits; return why not."""
        others = self._shares[share.uuid]
        why = why_not(share, others, self._cards[share.uuid].capacity)
        if why:
            return f"the card {why}: it would be listed as a conflict"
        others.append(share)
        return ""


Cards = frozenset[tuple[str, str]]
"""Request, or `request/alternative`, and UUID of a card."""

PODS_NAMED = 5


def claim_findings(snapshot: ClusterSnapshot, lacking: AbstractSet[str]) -> Iterator[AuditFinding]:
    """Yield what claims and ledger say of each other; nothing where claims were not read.

    `lacking` are the UIDs of pods of which it is known that they lack shares.
    """
    if snapshot.claims is None:
        return
    held = _held(snapshot)
    for (pod_uid, ref), (holder, node_name, cards) in held.items():
        pod = snapshot.pods.get(pod_uid)
        if holder.state is HolderState.ALLOCATED and pod is not None and pod.needs_cards == node_name:
            yield from _holder(pod, ref, cards, snapshot.claims.get(ref.uid))
    for pod in snapshot.pods.values():
        yield from _joined(pod, snapshot.claims)
    known = {ref.uid for _, ref in held}
    for claim in snapshot.claims.values():
        if claim.cards and claim.uid not in known and not lacking & {*claim.users}:
            yield _unknown(claim, snapshot)


def _held(snapshot: ClusterSnapshot) -> dict[tuple[str, ClaimRef], tuple[Holder, str, Cards]]:
    """Return what the ledger gives by claims: pod and claim -> a holder of it, its node, and the cards."""
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


def _holder(pod: PodFacts, ref: ClaimRef, cards: Cards, claim: SeenClaim | None) -> Iterator[AuditFinding]:
    first = min(uuid for _, uuid in cards)
    if claim is None:
        detail = f"ResourceClaim {ref.name} is gone, or another one has its name"
        yield _finding(AuditFindingKind.CLAIM_GONE, pod, first, detail)
        return
    detail = _differs(pod, cards, claim)
    if detail:
        alone = {*claim.consumers} <= {pod.pod.uid}
        action = AllocateClaim(pod.pod, ref) if alone else None
        yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod, first, f"ResourceClaim {ref.name} {detail}", action)


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
            yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod, "", detail)


def _unknown(claim: SeenClaim, snapshot: ClusterSnapshot) -> AuditFinding:
    """Return that the ledger has nothing for a claim. What no pod uses is taken back."""
    names = dict(zip(claim.consumers, claim.consumer_names, strict=True))
    users = [names[uid] for uid in claim.users if uid in names]
    more = f" and {len(users) - PODS_NAMED} more" if len(users) > PODS_NAMED else ""
    used = f"pods that use it: {', '.join(users[:PODS_NAMED])}{more}" if users else "no pod uses it"
    detail = f"ResourceClaim {claim} is allocated to {_cards(claim.cards)}; {used}"
    action = None if users else DeallocateClaim(claim)
    first = min(uuid for _, uuid in claim.cards)
    return AuditFinding(
        AuditFindingKind.CLAIM_UNKNOWN, claim.node_name, f"{claim}, {first}", None, readable(detail), action
    )


def _finding(
    kind: AuditFindingKind, pod: PodFacts, card: str, detail: str, action: AllocateClaim | None = None
) -> AuditFinding:
    return AuditFinding(kind, pod.node_name, card, pod.pod, readable(detail), action)


def _cards(cards: Cards) -> str:
    named = sorted({uuid for _, uuid in cards})
    return f"card {named[0]}" if len(named) == 1 else f"cards {', '.join(named)}"
