"""What the ledger should say, without an index, a cache or a running total: the model that properties compare it with.

It keeps plain lists and works everything out anew each time it is asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from builders import OFFER, a_holder
from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.card import Amounts, Card
from gpuledger.model.share import Claim, Holder, Share


@dataclass
class Line:
    """What is known of a card."""

    card: Card
    version: int
    holders: list[tuple[str, Share]] = field(default_factory=list)
    claims: dict[str, Share] = field(default_factory=dict)
    """Pod -> what the API server lists as promised to it."""
    promises: dict[str, Share] = field(default_factory=dict)
    """Pod -> what is promised to it in memory."""
    stored: bool = True
    open: bool = True
    reported: bool = True


@dataclass
class Held:
    """What is on hold for a pod."""

    node_name: str
    shares: list[Share]
    deadline_s: float
    spares: dict[str, list[Share]] = field(default_factory=dict)
    """Name of another node -> what is kept there, too."""
    early: bool = False
    """Whether others may have all of it."""

    @property
    def has_spares(self) -> bool:
        return self.early or bool(self.spares)

    def firm_shares(self) -> list[Share]:
        """Return what others can't have."""
        return [] if self.early else self.shares

    def all_shares(self) -> list[Share]:
        return self.shares + [share for shares in self.spares.values() for share in shares]

    def choose(self, name: str) -> None:
        """Keep what is on one node."""
        if name in self.spares:
            self.node_name, self.shares = name, self.spares[name]
        if name == self.node_name:
            self.spares, self.early = {}, False


def a_claim(pod: str, share: Share) -> Claim:
    """Return what the API server lists as promised to a pod."""
    return Claim(a_holder(pod, share), 1, ())


def sums(shares: Iterable[Share]) -> tuple[int, int, int]:
    """Return memory, cores and number of some shares together."""
    amounts = [share.amounts for share in shares]
    return sum(a.memory_mib for a in amounts), sum(a.cores for a in amounts), sum(a.number for a in amounts)


class Naive:
    """All that the ledger should know."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.holds: dict[str, Held] = {}
        self.ready: list[str] = []

    def counted(self, uuid: str, but: str = "", spares: bool = True, promised: bool = True) -> list[Share]:
        """Return the shares on a card: of each pod what it holds, else what is on hold, else what is promised to it."""
        line = self.lines[uuid]
        holders = [pod for pod, _ in line.holders]
        shares = [share for pod, share in line.holders if pod != but]
        on_hold = []
        for pod, held in self.holds.items():
            counting = held.all_shares() if spares else held.firm_shares()
            here = [share for share in counting if share.uuid == uuid]
            on_hold += [pod] * len(here)
            if pod != but and pod not in holders:
                shares += here
        if promised:
            known = [but, *holders, *on_hold]
            shares += [share for pod, share in (line.promises | line.claims).items() if pod not in known]
        return shares

    def takes(self, pod: str, share: Share, spares: bool = False) -> bool:
        """Return whether a pod can have a share of a card, or has this very one already: then it needs no more room.

        Offers to others are in the way only if `spares` says so. The API server may list it on a card that has shrunk
        since; a second attempt of the pod must find it there.
        """
        others = self.counted(share.uuid, pod, spares)
        return (pod, share) in self.lines[share.uuid].holders or self.fits(share, others)

    def fits(self, share: Share, others: list[Share]) -> bool:
        """Return whether a share fits on its card beside some others."""
        used, room = sums([*others, share]), self.capacity(share.uuid)
        alone_or_shared = not others or not (share.exclusive or [other for other in others if other.exclusive])
        return alone_or_shared and all(used[i] <= room[i] for i in range(3))

    def capacity(self, uuid: str) -> tuple[int, int, int]:
        """Return a card's memory, cores and number."""
        capacity = self.lines[uuid].card.capacity
        return capacity.memory_mib, capacity.cores, capacity.number

    def node_room(self, name: str, spares: bool = True) -> NodeRoom:
        """Return what placement should see of a node."""
        known = [line for line in self.lines.values() if line.card.node_name == name]
        lines = sorted((each for each in known if each.reported), key=lambda line: (line.card.index, line.card.uuid))
        rooms = tuple(self.room(line.card, spares) for line in lines if line.open and line.card.healthy)
        return NodeRoom(
            name,
            OFFER if name in self.ready else None,
            tuple(line.card for line in lines),
            rooms,
            unreported=len(known) - len(lines),
        )

    def room(self, card: Card, spares: bool = True) -> Room:
        """Return what should be left on a card."""
        shares, room = self.counted(card.uuid, spares=spares), self.capacity(card.uuid)
        used = sums(shares)
        free = Amounts(room[0] - used[0], room[1] - used[1], room[2] - used[2])
        return Room(card, free, idle=shares == [], shut=[s for s in shares if s.exclusive] != [])

    def held_at_server(self, pod: str) -> list[tuple[Card, Holder]]:
        """Return what the API server says a pod holds, by the cards' index."""
        found = [
            (line.card, a_holder(pod, share))
            for line in self.lines.values()
            for holder, share in line.holders
            if holder == pod
        ]
        return sorted(found, key=lambda pair: (pair[0].index, pair[0].uuid))
