"""The latest decisions of this operator since it started, in memory.

A setting has all of it written to a file as it happens, one line of JSON each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, Clock, Listeners
from gpuledger.model.errors import Refusal
from gpuledger.model.gang import GangName
from gpuledger.model.share import Holder, Placement, Pod, Share
from gpuledger.placement.choose import Ranking
from gpuledger.reports.cards import RankedNode, Record, RecordKind

KEPT = 10_000
"""Records in memory; each takes about 1 kB."""

REFUSALS_KEPT = 10_000
"""Pods of which it is remembered why they were refused last."""

GANGS_KEPT = 10_000
"""Pods of which it is remembered which gang they were of: they are gone when their shares are released."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records a caller wants; what is empty does not matter."""

    namespace: str = ""
    pod: str = ""
    card: str = ""
    """UUID, or how it begins."""
    node: str = ""
    kind: str = ""
    gang: str = ""

    def admits(self, record: Record) -> bool:
        """Return whether a record is wanted."""
        return (
            self.namespace in ("", record.pod.namespace)
            and self.pod in ("", record.pod.name)
            and self.node in ("", record.node_name)
            and self.kind in ("", record.kind.value)
            and self.gang in ("", record.gang)
            and (not self.card or any(s.uuid.lower().startswith(self.card.lower()) for s in record.shares))
        )


class Trail:
    """The latest records, oldest first."""

    def __init__(self, *, clock: Clock, kept: int = KEPT) -> None:
        self._clock = clock
        self._records: deque[Record] = deque(maxlen=kept)
        self._refused: BoundedMap[str, Refusal] = BoundedMap(REFUSALS_KEPT)  # pod UID -> why it was refused last
        self._gangs: BoundedMap[str, str] = BoundedMap(GANGS_KEPT)  # pod UID -> name of its gang
        self.gang_of: Callable[[str], str] = lambda uid: ""
        """Returns the name of the gang of the pod with a UID, empty if it has none that is known."""
        self.number = 0
        """How many there were so far."""
        self.on_record = Listeners[[Record]]()
        """Called with each record."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def latest(self, record_filter: RecordFilter, limit: int) -> list[Record]:
        """Return the last records of this kind, so many at most, oldest first."""
        found: list[Record] = []
        for record in reversed(self._records):
            if len(found) == limit:
                break
            if record_filter.admits(record):
                found.append(record)
        return found[::-1]

    @property
    def kept(self) -> int:
        """Return how many are in memory."""
        return len(self._records)

    @property
    def dropped(self) -> int:
        """Return how many are not kept any more."""
        return self.number - len(self._records)

    def note(
        self,
        kind: RecordKind,
        pod: Pod,
        node_name: str,
        shares: Sequence[Share],
        text: str,
        ranked: Sequence[RankedNode] = (),
    ) -> None:
        """Add a record of a pod."""
        self._add(kind, pod, node_name, shares, text, ranked, self._gang(pod.uid))

    def gang(self, kind: RecordKind, name: GangName, text: str) -> None:
        """Add a record of a gang."""
        self._add(kind, Pod("", name.namespace, ""), "", (), text, (), name.name)

    def _gang(self, uid: str) -> str:
        name = self.gang_of(uid)
        if name:
            self._gangs.note(uid, name)
        return name or self._gangs.get(uid) or ""

    def _add(
        self,
        kind: RecordKind,
        pod: Pod,
        node_name: str,
        shares: Sequence[Share],
        text: str,
        ranked: Sequence[RankedNode],
        gang: str,
    ) -> None:
        record = Record(self._clock.wall().timestamp(), kind, pod, node_name, tuple(shares), text, ranked, gang)
        self._records.append(record)
        self.number += 1
        self.on_record(record)

    def assigned(self, pod: Pod, placement: Placement, ranking: Ranking | None) -> None:
        """Record that a pod was bound with cards, and how its node compared with others when it was chosen."""
        self._refused.drop(pod.uid)
        if not placement.shares:
            return
        planned = "as planned for its gang" if self._gang(pod.uid) else "on the node that was decided on before"
        why, ranked = planned, tuple[RankedNode, ...]()
        if ranking is not None:
            nodes = "node that fits" if ranking.fitting == 1 else "nodes that fit"
            why = f"by policy {ranking.policy}, of {ranking.fitting} {nodes}"
            ranked = tuple(RankedNode(name, rank) for rank, name in ranking.best)
        self.note(RecordKind.ASSIGNED, pod, placement.node_name, placement.shares, why, ranked)

    def released(self, holders: Sequence[tuple[Card, Holder]], still: Sequence[tuple[Card, Holder]], why: str) -> None:
        """Note what a pod had on its cards before, and what it still has."""
        kept = {card.uuid for card, _ in still}
        lost = [(card, holder) for card, holder in holders if card.uuid not in kept]
        if lost:
            shares = [holder.share for _, holder in lost]
            self.note(RecordKind.RELEASED, lost[0][1].pod, lost[0][0].node_name, shares, why)

    def cordoned(self, entry: CardEntry, before: str) -> None:
        """Record it if a person has cordoned a card, for another reason than before, or if nobody does any more."""
        if entry.cordoned == before:
            return
        card, kind = entry.card, RecordKind.CORDONED if entry.cordoned else RecordKind.UNCORDONED
        share = Share(card.uuid, card.capacity, exclusive=True, containers=())
        text = f"card {card.index}: {entry.cordoned or before}"
        self._add(kind, Pod("", "", ""), card.node_name, (share,), text, (), "")

    def refused(self, pod: Pod, refusals: Mapping[str, Refusal]) -> None:
        """Record that no node takes a pod, unless the first one says so for the same reason as the last time.

        `refusals` are by the name of the node. Equal ones are mostly one object, and are counted as such.
        """
        first = next(iter(refusals.values()), None)
        if first is None or self._refused.get(pod.uid) == first:
            return
        self._refused.note(pod.uid, first)
        self.note(RecordKind.REFUSED, pod, "", (), refusals_text(refusals.values()))


def refusals_text(refusals: Collection[Refusal]) -> str:
    """Return reasons with the number of nodes that give them, the most frequent first."""
    counts = Counter(map(id, refusals))  # quickly, for there can be thousands
    by_text: Counter[str] = Counter()
    for refusal in refusals:
        if not counts:
            break
        by_text[refusal.text] += counts.pop(id(refusal), 0)
    return ", ".join(f"{text} ({number} node{'s' if number > 1 else ''})" for text, number in by_text.most_common())
