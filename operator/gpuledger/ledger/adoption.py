"""Which shares a bound pod should have in the ledger: for the audit, adoption and migration. Facts in, steps out.

A pod's annotation is ours, or that of the system that placed it before. Users can write it. It is believed in one
thing, which of the node's cards the pod has, and only where that agrees with the pod's spec. How much the pod takes of
them is what its spec asks for, or what the annotation says if that is more: so no annotation makes a pod count less
than it should.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpuledger.ledger.entry import why_not
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, ClusterSnapshot, OldDevices, PodFacts
from gpuledger.model.request import Demand, PodRequest
from gpuledger.model.share import Holder, Pod, Share, shares_of, stamped


@dataclass(frozen=True, slots=True)
class Adopt:
    """Enter shares that a bound pod's annotation names; list those without room as conflicts. Done only on request."""

    pod: Pod
    node_name: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Claimant:
    """A bound pod that uses a card, with a holder in the ledger or as a share that did not fit."""

    pod: Pod
    amounts: Amounts
    since: str
    """When it was bound, RFC 3339."""
    exclusive: bool = False


def without_room(free: Amounts, taken: bool, claimants: Iterable[Claimant]) -> list[Claimant]:
    """Return the claimants for whom a card has no room once those that were bound before them have theirs.

    `free` is the card's room if none of them had a share; `taken` tells that it has holders beside them.
    """
    left: list[Claimant] = []
    shut = False
    for each in sorted(claimants, key=lambda claimant: (claimant.since, claimant.pod.uid)):
        if shut or (each.exclusive and taken) or not each.amounts.fits_in(free):
            left.append(each)
        else:
            free, taken, shut = free - each.amounts, True, each.exclusive
    return left


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
    """Return the shares that a bound pod's annotation names beyond its present ones, in the order of the cards.

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


class SnapshotCards:
    """Cards of a snapshot, and what pods hold."""

    def __init__(self, snapshot: ClusterSnapshot, cards: Iterable[Card]) -> None:
        """Make an index; `cards` are those that count."""
        self._cards = {card.uuid: card for card in cards}
        self.held: dict[str, list[tuple[Card, Holder]]] = {}
        """Pod UID -> what it holds, by node and index."""
        every = (seen.stored for seen in snapshot.cards)
        for stored in sorted(every, key=lambda stored: (stored.card.node_name, stored.card.place)):
            for holder in stored.holders or ():
                self.held.setdefault(holder.pod.uid, []).append((stored.card, holder))

    def card(self, uuid: str) -> Card | None:
        """Return a card that counts."""
        return self._cards.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        """Return a node's cards that count."""
        return [card for card in self._cards.values() if card.node_name == node_name]

    def held_by(self, pod: PodFacts) -> list[Share]:
        """Return a pod's shares on its node."""
        return [holder.share for card, holder in self.held.get(pod.pod.uid, ()) if card.node_name == pod.node_name]


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
    stored = [seen.stored for seen in snapshot.cards]
    reported = [card for node in snapshot.nodes.values() for card in node.cards or ()]
    cards = SnapshotCards(snapshot, (*reported, *(each.card for each in stored)))
    taken = {each.card.uuid: [holder.share for holder in each.holders or ()] for each in stored}

    def why_not_entered(share: Share, pod: PodFacts) -> str:
        """Count a share if it fits; return what stands in its way."""
        card, others = cards.card(share.uuid), taken.setdefault(share.uuid, [])
        why = why_not(share, others, card.capacity) if card is not None else None
        if why:
            return f"the card {why}: it would be listed as a conflict"
        others.append(share)
        return "" if pod.scheduler_name in scheduler_names else not_served(pod.scheduler_name)

    counted = (pod for pod in snapshot.pods.values() if not snapshot.only_counts(pod.needs_cards))
    pods = sorted(counted, key=lambda pod: str(pod.pod))
    return tuple(step for pod in pods for step in _together(tuple(_steps(pod, cards, why_not_entered))))


def _together(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a pod's steps; if something stands in the way of one, none is entered."""
    if all(not step.why for step in steps):
        return steps
    return tuple(step if step.why else replace(step, why=NOT_ALL) for step in steps)


def _steps(pod: PodFacts, cards: SnapshotCards, why_not_entered: Callable[[Share, PodFacts], str]) -> Iterator[Step]:
    if not pod.needs_cards:
        return
    source = pod.old.annotation if pod.annotated is None and pod.old is not None else "gpuledger.dev/devices"
    if pod.request is None:
        if pod.bad_request:
            yield Step(pod.pod, pod.node_name, source, None, pod.bad_request)
        return
    held = cards.held_by(pod)
    if not lacks_cards(held, pod.request):
        return
    try:
        missing = missing_shares(pod, held, cards)
    except BadInput as error:
        yield Step(pod.pod, pod.node_name, source, None, f"it asks for {pod.request.cards} cards; {error}")
        return
    for share in missing:
        yield Step(pod.pod, pod.node_name, source, share, why_not_entered(share, pod))


def not_served(scheduler_name: str) -> str:
    """Return why a pod of this scheduler is not entered."""
    return f"its scheduler is {scheduler_name}: name it in the setting extra_scheduler_names"
