"""Keeps namespaces to the card hours of their budgets.

A spent budget is a limit like those of a ResourceQuota: nothing more, beside what the namespace's pods have. So it
holds wherever a quota holds: for pods, gangs, workloads, reservations and claims, in explanations and what-if.

What is spent is what the records have since the period began, and what ended or runs and is in none. It is looked at
when shares come or go, and when it is known to reach the next step by itself; so a quiet cluster costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from attrs import define

from gpuledger.formats.custom_resource.usage import Record, RecordName, record, record_name
from gpuledger.formats.kubernetes.budgets import spent_limit
from gpuledger.ledger.budgets import Piece, Spending, spending
from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.usage import ended_share
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.errors import EventReason
from gpuledger.model.share import Holder
from gpuledger.model.usage import MS_PER_HOUR, Budget, Period
from gpuledger.workflows.accounts import Accounts
from gpuledger.workflows.card_evictions import PAUSE_S, Cause, Evictions
from gpuledger.workflows.context import Component
from gpuledger.workflows.quota import NamespaceQuotas
from gpuledger.workflows.tasks import KeyedWorker, in_slices

logger = logging.getLogger(__name__)

GATHER_S = 2.0
"""From a change of a share to the new sum; so much later than it could be, a budget may be found spent."""

LONGEST_WAIT_S = 6 * 3600.0
"""Until a sum is looked at again: clocks of machines differ a little."""

READ_AT_ONCE = 40
"""Namespaces whose records are read by one list."""

TOLD_KEPT = 4_096

READ, LEAVE = "read", "leave"
"""Keys of the work there is."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What counts of a record."""

    version: int
    card_ms: dict[tuple[str, str], int]
    """Day and model -> milliseconds of a card."""
    entered: frozenset[str]


@define(eq=False, slots=False)
class Budgets(Component):
    """Follows what namespaces with a budget have had in its period."""

    _quotas: NamespaceQuotas
    _accounts: Accounts
    _evictions: Evictions
    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._is_following = False
        self._pieces: dict[str, tuple[Piece, ...]] = {}  # card UUID -> what it has, of all namespaces
        self._cards: defaultdict[str, set[str]] = defaultdict(set)  # namespace -> UUIDs of cards that have such a piece
        self._records: defaultdict[str, dict[RecordName, _Recorded]] = defaultdict(dict)
        self._are_read: set[str] = set()  # namespaces of which all records of the longest period are known
        self._due: set[str] = set()  # namespaces that are to be looked at
        self._timer: asyncio.TimerHandle | None = None
        self._next: dict[str, asyncio.TimerHandle] = {}  # namespace -> when it changes by itself
        self._spendings: dict[str, tuple[Spending, ...]] = {}
        self._told: BoundedMap[tuple[str, Budget, str, str], None] = BoundedMap(TOLD_KEPT)
        self.on_change = Listeners[[str]]()
        """Called with a namespace of which something else is to be shown."""
        self.worker = KeyedWorker(self._work, 2, self._may_write)
        self._quotas.on_budgets.append(self._budgets_changed)
        self._accounts.on_record.append(self._note)

    # What is asked.

    def of(self, namespace: str) -> tuple[Spending, ...]:
        """Return what is spent of a namespace's budgets, as of the last look; none before the first."""
        return self._spendings.get(namespace, ())

    def hours_shown(self, namespace: str) -> dict[Budget, int]:
        """Return the spent card hours that are shown of a namespace's budgets."""
        return {each.budget: each.hours_shown for each in self.of(namespace)}

    def all(self) -> Iterator[tuple[str, Spending]]:
        """Yield each namespace with what is spent of each of its budgets."""
        for namespace, found in sorted(self._spendings.items()):
            for each in found:
                yield namespace, each

    # What is followed.

    def became_active(self) -> None:
        """Read what another operator has written."""
        self._are_read.clear()
        self._look_soon(self._quotas.with_budgets())

    def observe_card(self, entry: CardEntry) -> None:
        """See Follower."""
        if self._is_following:
            self._look_soon(self._take_pieces(entry))

    async def stop(self) -> None:
        """See Follower."""
        await self.worker.stop()

    def _budgets_changed(self, namespace: str) -> None:
        if not self._is_following:
            self._is_following = True
            for entry in self._ledger.entries():
                self._take_pieces(entry)
        budgets = self._quotas.budgets(namespace)
        if not budgets:
            self._forget(namespace)
        elif namespace not in self._spendings and (now := self._store.server_now()) is not None:
            # Nothing has to be read to know that none are left of no hours: a pod may be on its way with its quota.
            none = (each for each in budgets if not each.card_hours)
            limits = [spent_limit(each, f"from {each.period.end(now.date())} on") for each in none]
            self._quotas.set_spent(namespace, limits)
        self._look_soon((namespace,))

    def _forget(self, namespace: str) -> None:
        self._are_read.discard(namespace)
        self._records.pop(namespace, None)
        self._stop_timer(namespace)

    def _take_pieces(self, entry: CardEntry) -> set[str]:
        """Note what a card has now; return the namespaces for which that is something else."""
        uuid, before = entry.card.uuid, self._pieces.pop(entry.card.uuid, ())
        running = (_running(holder, entry) for holder in entry.holders.values())
        ended = (
            Piece(each.namespace, each.key, entry.card.model, each.since, each.until, each.part)
            for each in entry.ended or ()
        )
        now = tuple(each for each in (*running, *ended) if each is not None)
        if now:
            self._pieces[uuid] = now
        if now == before:
            return set()
        for piece in before:
            self._cards[piece.namespace].discard(uuid)
        for piece in now:
            self._cards[piece.namespace].add(uuid)
        return {piece.namespace for piece in (*before, *now)}

    def _note(self, found: Record) -> None:
        """Take a record as it was read or written, unless a newer version is known."""
        namespace = found.name.namespace
        if not self._quotas.budgets(namespace):
            return
        known = self._records[namespace].get(found.name)
        if known is None or known.version < found.version:
            card_ms: defaultdict[tuple[str, str], int] = defaultdict(int)
            for line, held in found.lines.items():
                card_ms[line.day, line.model] += held.card_ms
            self._records[namespace][found.name] = _Recorded(found.version, dict(card_ms), frozenset(found.entered))
            self._look_soon((namespace,))

    # What is spent.

    def _look_soon(self, namespaces: Iterable[str]) -> None:
        self._due.update(each for each in namespaces if each in self._spendings or self._quotas.budgets(each))
        if self._due and self._timer is None:
            self._timer = self._tasks.after(GATHER_S, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        if self._may_write():
            due, self._due = self._due, set()
            self._tasks.start(in_slices(map(self._look, sorted(due)), self._clock), "add up what budgets have spent")
        elif self._is_active():  # it has not read everything yet
            self._look_soon(())

    def _look(self, namespace: str) -> None:
        """Add up what is spent of a namespace's budgets, and hold it to that."""
        budgets, now = self._quotas.budgets(namespace), self._store.server_now()
        if budgets and namespace not in self._are_read:
            self.worker.mark(READ)
        if now is None or (budgets and namespace not in self._are_read):
            return
        self._forget_old(namespace, now)
        found = self._spent_of(namespace, budgets, now)
        before = self._spendings.pop(namespace, ())
        if found:
            self._spendings[namespace] = found
            self._look_again(namespace, min(each.changes_in_s() for each in found))
        limits = [spent_limit(each.budget, f"from {each.end} on") for each in found if each.is_spent]
        self._quotas.set_spent(namespace, limits)
        if [(each.budget, each.hours_shown) for each in before] != [(each.budget, each.hours_shown) for each in found]:
            self.on_change(namespace)
        for each in found:
            self._tell(namespace, each)
        if any(each.is_spent and each.budget.evicts for each in found):
            self.worker.mark(f"{LEAVE} {namespace}")

    def _forget_old(self, namespace: str, now: datetime) -> None:
        """Forget records of no period any more, and which shares those have entered that no card can list by now."""
        records = self._records.get(namespace, {})
        first, recent = (f"{now - timedelta(days=ago):%Y-%m-%d}" for ago in (Period.MONTH.days, 2))
        for name in [name for name in records if name.date < first]:
            del records[name]
        for name, each in records.items():
            if name.date < recent and each.entered:
                records[name] = replace(each, entered=frozenset())
        for uuid in [uuid for uuid in self._cards.get(namespace, ()) if self._ledger.entry(uuid) is None]:
            self._cards[namespace].discard(uuid)  # its object is gone
            self._pieces.pop(uuid, None)

    def _spent_of(self, namespace: str, budgets: Iterable[Budget], now: datetime) -> tuple[Spending, ...]:
        records = self._records.get(namespace, {})
        recorded: defaultdict[tuple[str, str], int] = defaultdict(int)
        for each in records.values():
            for day_and_model, held_ms in each.card_ms.items():
                recorded[day_and_model] += held_ms
        pieces = list(self._pieces_of(namespace, records))
        return tuple(spending(budget, now, recorded, pieces) for budget in budgets)

    def _pieces_of(self, namespace: str, records: dict[RecordName, _Recorded]) -> Iterator[Piece]:
        """Yield what no record has yet."""
        for uuid in self._cards.get(namespace, ()):
            for piece in self._pieces.get(uuid, ()):
                if piece.namespace != namespace:
                    continue
                has = piece.until and records.get(record_name(namespace, piece.until))
                if not has or piece.key not in has.entered:
                    yield piece

    def _look_again(self, namespace: str, wait_s: float) -> None:
        self._stop_timer(namespace)
        wait_s = min(max(wait_s, 0.0) + 0.1, LONGEST_WAIT_S)
        self._next[namespace] = self._tasks.after(wait_s, self._look_soon, (namespace,))

    def _stop_timer(self, namespace: str) -> None:
        timer = self._next.pop(namespace, None)
        if timer is not None:
            timer.cancel()

    def _tell(self, namespace: str, found: Spending) -> None:
        """Tell a namespace once in a period that a budget of it is low, and once that it is spent."""
        budget = found.budget
        reason = EventReason.BUDGET_SPENT if found.is_spent else EventReason.BUDGET_LOW
        about = (namespace, budget, str(found.end), reason)
        if not found.is_low or about in self._told:
            return
        self._told.note(about, None)
        if found.is_spent:
            sentence = f"{spent_limit(budget, f'from {found.end} on').spent}: new pods get no cards until then"
        else:
            hours = f"{found.spent_ms // MS_PER_HOUR:,} of its {budget.card_hours:,} card hours"
            sentence = f"{hours} of this {budget.period} are spent, and when all are, new pods get no cards"
        logger.warning("namespace %s, %s of ResourceQuota %s: %s", namespace, budget.key, budget.quota, sentence)
        key = f"{budget.key} {budget.card_hours} {found.end} {reason}"
        self._event_recorder.post_quota_event_once(namespace, budget.quota, reason, f"{budget.key}: {sentence}", key)

    # What has to be done.

    async def _work(self, key: str) -> None:
        if key == READ:
            await self._read()
        else:
            await self._have_pods_leave(key.removeprefix(f"{LEAVE} "))

    async def _read(self) -> None:
        """Read the records of those namespaces of which they are not known. Raises ApiError."""
        unread = [each for each in self._quotas.with_budgets() if each not in self._are_read]
        now = self._store.server_now()
        for start in range(0, len(unread), READ_AT_ONCE):
            namespaces = unread[start : start + READ_AT_ONCE]
            if now is None:
                return
            dates = [f"{now - timedelta(days=ago):%Y-%m-%d}" for ago in range(Period.MONTH.days)]
            async for page in self._store.usages(dates, namespaces):
                for each in map(record, page):
                    self._note(each)
            self._are_read.update(namespaces)
            self._look_soon(namespaces)

    async def _have_pods_leave(self, namespace: str) -> None:
        """Evict the pods of a namespace that hold cards for which nothing is left. Raises ApiError."""
        limits = self._quotas.spent(namespace)
        evicting = {each.budget.key for each in self.of(namespace) if each.is_spent and each.budget.evicts}
        is_done = True
        for uuid in sorted(self._cards.get(namespace, ())):
            entry = self._ledger.entry(uuid)
            if entry is None:
                continue
            limit = next((each for each in limits if each.key in evicting and each.counts("", entry.card.model)), None)
            holders = [each for each in entry.holders.values() if each.pod.namespace == namespace]
            holders = [each for each in holders if self._evictions.may_leave(each)]
            if limit is not None and holders:
                is_done &= await self._evictions.evict(self._cause(entry, limit.spent), holders)
        if not is_done:
            self._tasks.after(PAUSE_S, self.worker.mark, f"{LEAVE} {namespace}")

    def _cause(self, entry: CardEntry, spent: str) -> Cause:
        return Cause(
            card=entry.card,
            why=f"the budget of its namespace: {spent}",
            state=f"is held beyond the budget of the namespace: {spent}",
            evicted=EventReason.EVICTED_FOR_BUDGET,
            held=EventReason.STAYS_BEYOND_BUDGET,
            count=self._counts.budget_evictions,
        )


def _running(holder: Holder, entry: CardEntry) -> Piece | None:
    if not holder.since:
        return None
    far = datetime.max.replace(tzinfo=UTC)
    share = ended_share(holder, entry.card, far)
    if share is None:
        return None
    return Piece(share.namespace, share.key, entry.card.model, share.since, None, share.part)
