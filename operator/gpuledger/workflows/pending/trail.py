"""The latest decisions of this operator since it started, in memory.

A setting has all of it written to a file as it happens, one line of JSON each.

Placement learns from what comes and what ends: a help for preferences only. It is learned again after a start, from the
pods that are bound then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, Clock, Listeners
from gpuledger.model.errors import BadInput, Refusal
from gpuledger.model.gang import GangName, GangStage, GatherEnd
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, Placement, Pod, Share, part_of_card
from gpuledger.placement.choose import Chooser, Ranking
from gpuledger.reports.cards import RankedNode, Record, RecordKind
from gpuledger.workflows.gangs.members import GangState
from gpuledger.workflows.reporting import Counts

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


PODS_REMEMBERED = 20_000
"""UIDs of pods that have come lately: a pod that is refused asks again and again, and counts once."""


class DemandHistory:
    """Tells the chooser of every pod once that it has come, and once that it has gone."""

    def __init__(
        self, ledger: Ledger, chooser: Chooser, read_request: Callable[[JsonMapping], PodRequest | None]
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._read_request = read_request
        self._came: BoundedMap[str, None] = BoundedMap(PODS_REMEMBERED)  # UIDs of pods that have counted
        self._running: dict[str, float] = {}  # UID of a bound pod -> its cards

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker: that a pod has come stays true."""

    def known_pending(self) -> AbstractSet[str]:
        """See PendingPodTracker."""
        return frozenset()

    def observe_pending(self, pod: JsonMapping) -> None:
        """Observe a pod that wants cards, or has got some."""
        uid = pod["metadata"]["uid"]
        if uid in self._came:
            return
        self._came.note(uid, None)
        with suppress(BadInput):
            request = self._read_request(pod)
            if request is not None:
                self._chooser.arrived(request)

    def observe_bound(self, pod: JsonMapping, bound_before: bool) -> None:
        """Observe a bound pod; one that was `bound_before` was not given its cards now."""
        uid = pod["metadata"]["uid"]
        if is_finished(pod):
            self.forget_bound(uid, pod)
            return
        if uid in self._running:
            return
        holders = self._ledger.holders_of(uid)
        if not holders:  # asks for no card, or its shares are still to be found
            return
        self._running[uid] = sum(part_of_card(holder.share, card) for card, holder in holders)
        if bound_before:
            self._chooser.taken_over()
        else:
            self._chooser.given_out(self._running[uid])
        self.observe_pending(pod)  # if another operator has placed it, or this one before it was started again

    def forget_bound(self, pod_uid: str, last: JsonMapping | None) -> None:
        """Record that a pod needs its cards no more. Idempotent."""
        cards = self._running.pop(pod_uid, None)
        if cards is not None:
            self._chooser.given_back(cards)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that have cards, as far as was seen."""
        return set(self._running)


KINDS = {GangStage.ROOM_FOUND: RecordKind.GANG_PLANNED, GangStage.GATHERING: RecordKind.GANG_GATHERED}


class GangTrail:
    """A gang that can't start is planned and given up again and again: of that, each thing is said once."""

    def __init__(self, trail: Trail, counts: Counts, clock: Clock, is_active: Callable[[], bool]) -> None:
        self._trail = trail
        self._counts = counts
        self._clock = clock
        self._is_active = is_active
        # When its last missing member was seen.
        self._ready_s: WeakKeyDictionary[GangState, float] = WeakKeyDictionary()
        self._said: WeakKeyDictionary[GangState, set[str]] = WeakKeyDictionary()  # what was said of it since it came

    def member_comes(self, state: GangState) -> None:
        """Note a new member."""
        if len(state.pending) == state.missing > 0:
            self._ready_s[state] = self._clock.now_s()
            self._said.pop(state, None)

    def stage(self, state: GangState, stage: GangStage, text: str) -> None:
        """Record that cards are kept, or entered, for all that are missing."""
        kind = KINDS[stage]
        if self._is_news(state, kind.value):
            self._trail.gang(kind, state.name, text)

    def given_up(self, state: GangState, end: GatherEnd, why: str) -> None:
        """Record that members that stood in Bind are not bound."""
        self._counts.gathers_given_up.labels(end).inc()
        if self._is_news(state, end.value):
            self._trail.gang(RecordKind.GANG_GIVEN_UP, state.name, why)

    def goes_first(self, state: GangState, text: str) -> None:
        """Record that gangs that come after it wait for it."""
        self._counts.gangs_first.inc()
        self._trail.gang(RecordKind.GANG_FIRST, state.name, text)

    def member_is_bound(self, state: GangState) -> None:
        """Note a bound member: with the last one that is needed, the gang runs. Replicas on standby see it, too."""
        ready_s = self._ready_s.get(state)
        if state.missing > 0 or ready_s is None:
            return
        self._ready_s.pop(state, None)
        self._said.pop(state, None)
        if not self._is_active():
            return
        took_s = self._clock.now_s() - ready_s
        self._counts.gang_place_seconds.observe(took_s)
        text = f"{len(state.bound)} members are bound, {took_s:.1f} s after the last that it needs was seen"
        self._trail.gang(RecordKind.GANG_BOUND, state.name, text)

    def _is_news(self, state: GangState, what: str) -> bool:
        said = self._said.setdefault(state, set())
        if what in said:
            return False
        said.add(what)
        return True
