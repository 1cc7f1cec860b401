"""Cards, shares, ledgers and requests with good defaults, so that a test names only what it is about."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import ALL_CORES, Amounts, Card
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import Demand, Lifetime, PodRequest
from gpuledger.model.share import ContainerShare, Holder, Placement, Pod, Share, StoredCard

MEMORY_MIB = 16_000
SLOTS = 10

OFFER = NodeOffer(resources=frozenset({"nvidia.com/gpu"}))
"""What a node's plugin serves while it answers."""


def a_card(
    index: int = 0,
    node_name: str = "node-a",
    *,
    uuid: str = "",
    memory_mib: int = MEMORY_MIB,
    cores: int = ALL_CORES,
    number: int = SLOTS,
    healthy: bool = True,
) -> Card:
    """Return a card; its UUID says where it is, unless one is given."""
    return Card(
        uuid=uuid or f"GPU-{node_name}-{index}",
        node_name=node_name,
        index=index,
        capacity=Amounts(memory_mib, cores, number),
        healthy=healthy,
    )


def cards_of(
    node_name: str = "node-a", count: int = 8, *, memory_mib: int = MEMORY_MIB, number: int = SLOTS
) -> list[Card]:
    """Return the equal cards of one node."""
    return [a_card(index, node_name, memory_mib=memory_mib, number=number) for index in range(count)]


def linked_cards(
    scores: Sequence[Sequence[int]], numa_nodes: Sequence[int | None] = (), node_name: str = "node-a"
) -> list[Card]:
    """Return the cards of one node, with a row of the table each as links; and on which NUMA nodes they are."""
    cards = cards_of(node_name, len(scores))
    uuids = [card.uuid for card in cards]
    return [
        replace(
            card,
            links={peer: score for peer, score in zip(uuids, scores[card.index], strict=True) if score},
            numa_node=numa_nodes[card.index] if numa_nodes else None,
        )
        for card in cards
    ]


def a_pod(uid: str) -> Pod:
    """Return a pod whose name is its UID."""
    return Pod(uid, "default", uid)


def a_share(card: Card, memory_mib: int = 1_000, cores: int = 0, number: int = 1, *, exclusive: bool = False) -> Share:
    """Return a share of one container."""
    amounts = Amounts(memory_mib, cores, number)
    return Share(card.uuid, amounts, exclusive, (ContainerShare("main", memory_mib, cores),))


def whole_share(card: Card) -> Share:
    """Return a share that leaves nothing to others."""
    return a_share(card, card.capacity.memory_mib, card.capacity.cores, exclusive=True)


def a_holder(uid: str, share: Share) -> Holder:
    """Return a share as the API server stores it."""
    return Holder(a_pod(uid), share, attempt="first")


def first_attempts(holders: Iterable[Holder] | None) -> tuple[Holder, ...]:
    """Return holders as `a_holder` makes them: the names of attempts are random."""
    return tuple(replace(holder, attempt="first") for holder in holders or ())


def stored(card: Card, *holders: Holder, version: int = 1) -> StoredCard:
    """Return a card whose first status is written, with its holders."""
    return StoredCard(card, version, holders, "Ready")


def a_ledger(*cards: Card) -> Ledger:
    """Return a ledger of idle cards; the agents of their nodes answer."""
    ledger = Ledger()
    for card in cards:
        ledger.load(stored(card))
        ledger.set_offer(card.node_name, OFFER)
    return ledger


def occupy(ledger: Ledger, uid: str, *shares: Share) -> None:
    """Let a pod hold shares as if it had just been placed."""
    entry = ledger.entry(shares[0].uuid)
    assert entry is not None
    ledger.seats.take(Seat(uid, Placement(entry.card.node_name, shares), until_s=10.0))


def commit(ledger: Ledger, uid: str) -> None:
    """Let the API server store what is on hold for a pod, and give the hold back."""
    hold = ledger.seats.of(uid)
    assert hold is not None
    for share in hold.placement.shares:
        entry = ledger.entry(share.uuid)
        assert entry is not None
        holders = (*entry.holders.values(), a_holder(uid, share))
        ledger.load(stored(entry.card, *holders, version=entry.resource_version + 1))
    ledger.seats.give_up(uid)


def mib(memory_mib: int, cards: int = 1, cores: int = 0, lifetime: Lifetime = Lifetime.MAIN) -> Demand:
    """Return the demand of a container that names its memory; all cores mean that it is alone on its cards."""
    return Demand(cards, memory_mib, cores=cores, exclusive=cores == ALL_CORES, lifetime=lifetime)


def percent(memory_percent: int, cards: int = 1, cores: int = 0, lifetime: Lifetime = Lifetime.MAIN) -> Demand:
    """Return the demand of a container that shares its cards and names a percentage of their memory."""
    return Demand(cards, None, memory_percent, cores, exclusive=cores == ALL_CORES, lifetime=lifetime)


def whole(cards: int = 1, lifetime: Lifetime = Lifetime.MAIN) -> Demand:
    """Return the demand of a container that names a number of cards and nothing else."""
    return Demand(cards, exclusive=True, lifetime=lifetime)


def a_request(*demands: Demand) -> PodRequest:
    """Return the request of a pod whose containers are called c0, c1, …."""
    return PodRequest(tuple(f"c{position}" for position in range(len(demands))), demands)


def uuids(cards: Iterable[Card]) -> tuple[str, ...]:
    """Return the cards' UUIDs."""
    return tuple(card.uuid for card in cards)
