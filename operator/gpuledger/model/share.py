"""Shares, the parts of cards that pods hold, and a card with them as the API server stores it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gpuledger.model.card import NOTHING, Amounts, Card, total
from gpuledger.model.request import NO_HOST, Demand, HostAmounts, PodClaim, PodRequest, Shape, phases
from gpuledger.model.usage import NO_CHARGE, Charge, EndedShare, Wasted

Assignment = tuple[tuple[str, ...], ...]
"""For each container of a request, in its order: the UUIDs of its cards, in the order of their index."""

MAX_HOLDERS: Final = 256
"""Pods that one card's object can list as its holders. A card that has so many is full, whatever is free on it."""


DEFAULT_GRACE_S: Final = 30
"""How long pods may take to end, unless they say otherwise: Kubernetes' default."""

LONGEST_GRACE_KEPT_S: Final = 86_400
"""A longer time to end counts as this one: the API server takes 63 bits of seconds."""


SEAT_PREFIX: Final = "seat-"
"""How the UID of a holder begins that is a seat, and no pod."""

LOWEST_PRIORITY: Final = -(2**31)
"""No pod's priority is lower. Preemption takes it off before priorities are summed up, as kube-scheduler does, so that
more pods cost more even where their priorities are negative."""


class HolderState(StrEnum):
    """Why a share counts. All three count."""

    RESERVED = "reserved"
    """Room kept for a pod that is not bound yet, until a deadline, or for one that is to come: see `StoredSeat`."""
    ALLOCATED = "allocated"
    """The pod is bound, or about to be."""
    RELEASING = "releasing"
    """Being taken back: the pod is gone and may still run, until a deadline, or its bind failed."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's identity, and what of it never changes."""

    uid: str
    namespace: str
    name: str
    priority: int = 0
    grace_s: int = DEFAULT_GRACE_S
    """How long it may take to end once it is deleted, at most LONGEST_GRACE_KEPT_S."""
    charge: Charge = field(default=NO_CHARGE, compare=False)
    """To whom its shares are charged; no part of its identity."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim, in the namespace of the pod that it belongs to."""

    name: str
    uid: str
    shared: bool = False
    """Pods name it themselves, so others can join it; one that was made for a pod is that pod's own."""


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """One container's use of a card while it runs, or that of a request of a ResourceClaim."""

    name: str
    """Of the container; `<name of the claim in the pod>/<request>` for a claim."""
    memory_mib: int
    cores: int
    claim: ClaimRef | None = None
    """The claim by which the pod's containers get the card, None for a container's own resources."""


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's part of one card: `amounts` is the pod's peak on it, `containers` break it down."""

    uuid: str
    amounts: Amounts
    exclusive: bool
    containers: tuple[ContainerShare, ...]

    def is_of(self, container_name: str) -> bool:
        """Return whether a container has part of it."""
        return any(part.name == container_name for part in self.containers)

    def is_by_claim(self, claim_uid: str) -> bool:
        """Return whether some of it is had by this ResourceClaim."""
        return any(part.claim is not None and part.claim.uid == claim_uid for part in self.containers)


class SeatFor(StrEnum):
    """The kind of object that keeps shares for pods that are to come."""

    WORKLOAD = "workload"
    """One of Kueue's, of the same namespace."""
    RESERVATION = "reservation"
    """A GPUReservation of the same namespace."""


@dataclass(frozen=True, slots=True)
class SeatOwner:
    """The object whose pods a seat is kept for."""

    kind: SeatFor
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class StoredSeat:
    """What the ledger records of a share that is kept for a pod that does not exist yet, beside the share itself."""

    owner: SeatOwner
    member: str
    """Which of the owner's pods: unique among them."""
    cards: int
    """How many cards the pod gets in all. Where fewer are reserved for it, not all were written."""
    host: HostAmounts = NO_HOST
    """CPU and memory that the pod takes of the node."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A share with its owner, as the ledger records it."""

    pod: Pod
    """Of a seat: its UID, and its owner's name."""
    share: Share
    state: HolderState = HolderState.ALLOCATED
    deadline: str | None = None
    """RFC 3339, for `reserved` and `releasing`."""
    attempt: str = ""
    """The attempt to bind that entered it or relies on it: a random name, empty if the journal has not entered it."""
    seat: StoredSeat | None = None
    """For whom the share is kept, if its pod does not exist yet; of a pod, the seat that it has taken."""
    since: str = field(default="", compare=False)
    """From when on the share is charged, RFC 3339 with milliseconds, by the API server's clock; empty: it is not."""
    waited_s: int = field(default=0, compare=False)
    """How long its pod had waited for it then."""
    wasted_before_ms: int = field(default=0, compare=False)
    """What had been wasted of the card before that: see Wasted."""

    @property
    def is_seat(self) -> bool:
        """Return whether the pod does not exist yet."""
        return self.pod.uid.startswith(SEAT_PREFIX)

    @property
    def title(self) -> str:
        """Return the name to show: the pod's, or that of the object which keeps the share for one."""
        return f"{self.pod} ({self.seat.owner.kind})" if self.seat is not None and self.is_seat else str(self.pod)


@dataclass(frozen=True, slots=True)
class Claim:
    """A share that is promised to a waiting pod as soon as others have left the card. Not counted by the API server."""

    holder: Holder
    """The share as it will be: reserved, until the same deadline."""
    cards: int
    """How many cards the pod gets in all. Where it has fewer claims and reserved shares, not all were written."""
    victims: tuple[str, ...]
    """UIDs of the holders of this card that are to be evicted for it."""

    @property
    def share(self) -> Share:
        """The promised share."""
        return self.holder.share


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod's shares, all on one node, in the order of the cards' index."""

    node_name: str
    shares: tuple[Share, ...]
    host: HostAmounts = NO_HOST
    """CPU and memory that the pod takes of the node."""


def part_of_card(share: Share, card: Card) -> float:
    """Return which part of a card a share is: of its memory or of its cores, whichever is more; 1 is the whole card."""
    if share.exclusive:
        return 1.0
    capacity, amounts = card.capacity, share.amounts
    memory = amounts.memory_mib / max(capacity.memory_mib, 1)
    return min(1.0, max(memory, amounts.cores / max(capacity.cores, 1)))


def covers(shares: Sequence[Share], request: PodRequest, cards: Sequence[Card] = ()) -> bool:
    """Return whether every container has the number of cards that it asks for, none too few and none too many.

    `cards` are those of the node. Without them, a container that asks for every card is content with what it has.
    """
    names = Counter(container.name for share in shares for container in share.containers)
    return all(
        _is_enough(names[name], demand, cards) for name, demand in zip(request.names, request.shape, strict=True)
    )


def _is_enough(number: int, demand: Demand, cards: Sequence[Card]) -> bool:
    if demand.every_card and not cards:
        return number > 0
    return number == demand.on(cards).cards


def fitting_variant(shares: Sequence[Share], request: PodRequest, cards: Sequence[Card] = ()) -> PodRequest | None:
    """Return the first variant of a request that the shares cover, None if they cover none."""
    return next((variant for variant in request.variants if covers(shares, variant, cards)), None)


def shares_of(request: PodRequest, assignment: Assignment, cards: Sequence[Card]) -> tuple[Share, ...]:
    """Return the shares that follow from giving each container its assigned cards.

    `cards` are the node's cards, in the order of their index. A share's amounts are the largest sum over the
    containers that run at the same time, dimension by dimension.
    """
    assigned = {uuid for uuids in assignment for uuid in uuids}
    return tuple(_share_of(request, assignment, card) for card in cards if card.uuid in assigned)


def are_shares_of(shares: Sequence[Share], request: PodRequest, cards: Sequence[Card]) -> bool:
    """Return whether these are the shares that a request, or an alternative of it, gets on these cards of a node."""
    for variant in request.variants:
        uuids = [[share.uuid for share in shares if share.is_of(name)] for name in variant.names]
        if covers(shares, variant, cards) and shares_of(variant, tuple(map(tuple, uuids)), cards) == shares:
            return True
    return False


def stamped(share: Share, claims: Sequence[PodClaim]) -> Share:
    """Return a share that names the ResourceClaims by which its pod gets the card."""
    return replace(share, containers=tuple(_of_claim(part, claims) for part in share.containers))


def _of_claim(part: ContainerShare, claims: Sequence[PodClaim]) -> ContainerShare:
    claim = next((each for each in claims if each.holds(part.name)), None)
    return part if claim is None else replace(part, claim=ClaimRef(claim.object_name, claim.uid, claim.shared))


def peak_on(shape: Shape, assignment: Assignment, card: Card) -> Amounts:
    """Return the amounts that a pod takes of a card: the largest sum over the containers that run at the same time."""
    if len(shape) == 1:
        return shape[0].amounts_on(card.capacity)
    peak = NOTHING
    for phase in phases(shape):
        there = (shape[position] for position in phase if card.uuid in assignment[position])
        peak = peak.peak(total(demand.amounts_on(card.capacity) for demand in there))
    return peak


def _share_of(request: PodRequest, assignment: Assignment, card: Card) -> Share:
    taken = {
        position: demand.amounts_on(card.capacity)
        for position, demand in enumerate(request.shape)
        if card.uuid in assignment[position]
    }
    return Share(
        uuid=card.uuid,
        amounts=peak_on(request.shape, assignment, card),
        exclusive=any(request.shape[position].exclusive for position in taken),
        containers=tuple(
            ContainerShare(request.names[position], amounts.memory_mib, amounts.cores)
            for position, amounts in taken.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class Misfit:
    """A share that a bound pod was found with and that does not fit on the card. Shown there, never counted."""

    pod: Pod
    amounts: Amounts
    why: str


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A GPUAllocation as the API server stores it. `holders` is None before the first status write."""

    card: Card
    resource_version: int
    holders: tuple[Holder, ...] | None
    phase: str = ""
    reason: str = ""
    misfits: tuple[Misfit, ...] = ()
    """Its `status.conflicts`."""
    claims: tuple[Claim, ...] = ()
    """Its `status.claims`."""
    ended: tuple[EndedShare, ...] | None = None
    """Its `status.ended`; None where its definition is of an earlier release, and knows no accounts."""
    account_revision: int | None = None
    """Its `status.accountRevision`; None where no release has written it that knows it."""
    wasted: Wasted | None = None
    """Its `status.wasted`; None if nothing was wasted since it was free."""
    cordoned: str = ""
    """Why a person wants no new pods on the card; empty if it may take some."""
    created: str = ""
    """When its object was created, RFC 3339."""
