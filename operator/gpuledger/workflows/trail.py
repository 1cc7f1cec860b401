"""The latest decisions of the operator, in memory: its own, and those of the processes before it and beside it.

The active replica makes the records; all others, and each process that starts, get them by `merge`: from a file, and
from other replicas (controller/trail_files.py, controller/history.py). What is known from two sides is kept once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, Clock, Listeners
from gpuledger.model.errors import Refusal
from gpuledger.model.gang import GangName
from gpuledger.model.share import Holder, Placement, Pod, Share
from gpuledger.placement.choose import Ranking
from gpuledger.reports.records import LONGEST_TEXT, RankedNode, Record, RecordKind

KEPT = 10_000
"""Records in memory; each takes about 1 kB."""

REFUSALS_KEPT = 10_000
"""Pods of which it is remembered why they were refused last."""

GANGS_KEPT = 10_000
"""Pods of which it is remembered which gang they were of: they are gone when their shares are released."""

CHANGES_SHOWN = 5
"""How many changed settings one record spells out."""

NOBODY = Pod("", "", "")


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
    since: float = 0.0
    """Unix time in seconds."""

    def admits(self, record: Record) -> bool:
        """Return whether a record is wanted."""
        return (
            self.namespace in ("", record.pod.namespace)
            and self.pod in ("", record.pod.name)
            and self.node in ("", record.node_name)
            and self.kind in ("", record.kind.value)
            and self.gang in ("", record.gang)
            and record.unix_s >= self.since
            and (not self.card or any(s.uuid.lower().startswith(self.card.lower()) for s in record.shares))
        )


class Trail:
    """The latest records, oldest first."""

    def __init__(self, *, clock: Clock, kept: int = KEPT) -> None:
        self._clock = clock
        self.most = kept
        """How many are kept."""
        self._records: deque[Record] = deque(maxlen=kept)
        self._keys: set[int] = set()  # of these records
        self._refused: BoundedMap[str, Refusal] = BoundedMap(REFUSALS_KEPT)  # pod UID -> why it was refused last
        self._gangs: BoundedMap[str, str] = BoundedMap(GANGS_KEPT)  # pod UID -> name of its gang
        self.gang_of: Callable[[str], str] = lambda uid: ""
        """Returns the name of the gang of the pod with a UID, empty if it has none that is known."""
        self.number = 0
        """How many there were so far."""
        self.on_record = Listeners[[Record]]()
        """Called with each record of this process."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def latest(self, record_filter: RecordFilter, limit: int) -> tuple[list[Record], bool]:
        """Return the last records of this kind, so many at most, oldest first; and whether there are more of them."""
        found: list[Record] = []
        for record in reversed(self._records):
            if record_filter.admits(record):
                if len(found) == limit:
                    return found[::-1], True
                found.append(record)
        return found[::-1], False

    @property
    def kept(self) -> int:
        """Return how many are in memory."""
        return len(self._records)

    @property
    def kept_since(self) -> float | None:
        """Return the time of the oldest that is in memory, in Unix seconds."""
        return self._records[0].unix_s if self._records else None

    @property
    def dropped(self) -> int:
        """Return how many are not kept any more."""
        return self.number - len(self._records)

    def merge(self, records: Iterable[Record]) -> list[Record]:
        """Add the records that are not known yet, each in its place, and return them.

        What is older than all that is kept, where no more is kept, is left out.
        """
        fresh = dict[int, Record]()
        oldest_s = self._records[0].unix_s if len(self._records) == self.most and self._records else float("-inf")
        for record in records:
            key = record.key
            if key not in self._keys and record.unix_s >= oldest_s:
                fresh[key] = record
        if not fresh:
            return []
        self.number += len(fresh)
        self._insert(list(fresh.values()))
        return list(fresh.values())

    def _insert(self, records: Sequence[Record]) -> None:
        """Put records where their times belong, and drop the oldest ones beyond those that are kept."""
        self._keys.update([record.key for record in records])
        first_s = min([record.unix_s for record in records])
        later: list[Record] = []
        while self._records and self._records[-1].unix_s > first_s:
            later.append(self._records.pop())
        if later or len(records) > 1:
            records = sorted([*reversed(later), *records], key=lambda record: record.unix_s)
        surplus = len(self._records) + len(records) - self.most
        dropped = [self._records.popleft() for _ in range(min(surplus, len(self._records)))]
        dropped += records[: max(surplus - len(dropped), 0)]
        self._keys.difference_update([record.key for record in dropped])
        self._records.extend(records)

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
        at_s = round(self._clock.wall().timestamp(), 3)  # as it is written
        self._add_record(Record(at_s, kind, pod, node_name, tuple(shares), _short(text), ranked, gang))

    def _add_record(self, record: Record) -> None:
        self.number += 1
        self._insert((record,))
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
        self._add(kind, NOBODY, card.node_name, (share,), text, (), "")

    def active(self, replica: str, settings: Mapping[str, str], since: float) -> None:
        """Record since when this operator is the active one, and what differs from the settings of the last one."""
        last = next((each for each in reversed(self._records) if each.kind is RecordKind.ACTIVE), None)
        changes = [] if last is None else list(_changes(last.settings, settings))
        more = f" and {len(changes) - CHANGES_SHOWN} more" if len(changes) > CHANGES_SHOWN else ""
        text = f"{replica} is the active replica"
        if changes:
            text += f"; changed: {', '.join(changes[:CHANGES_SHOWN])}{more}"
        at_s = round(since, 3)
        self._add_record(Record(at_s, RecordKind.ACTIVE, NOBODY, "", (), _short(text), settings=settings))

    def refused(self, pod: Pod, refusals: Mapping[str, Refusal]) -> None:
        """Record that no node takes a pod, unless the first one says so for the same reason as the last time.

        `refusals` are by the name of the node. Equal ones are mostly one object, and are counted as such.
        """
        first = next(iter(refusals.values()), None)
        if first is None or self._refused.get(pod.uid) == first:
            return
        self._refused.note(pod.uid, first)
        self.note(RecordKind.REFUSED, pod, "", (), refusals_text(refusals.values()))


DEFAULT = "the default"


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that differ, with both values."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, DEFAULT), now.get(name, DEFAULT)
        if old != new:
            yield f"{name} from {old} to {new}"


def _short(text: str) -> str:
    """Return a text as one line of bounded length; users write parts of some."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def refusals_text(refusals: Collection[Refusal]) -> str:
    """Return reasons with the number of nodes that give them, the most frequent first."""
    counts = Counter(map(id, refusals))  # quickly, for there can be thousands
    by_text: Counter[str] = Counter()
    for refusal in refusals:
        if not counts:
            break
        by_text[refusal.text] += counts.pop(id(refusal), 0)
    return ", ".join(f"{text} ({number} node{'s' if number > 1 else ''})" for text, number in by_text.most_common())
