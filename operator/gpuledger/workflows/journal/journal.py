"""The only way into the ledger: one writer per card, which commits in groups.

While a card's PATCH is in flight, further changes of that card gather; the next PATCH carries them all. No lock is
taken and no resourceVersion sent: a writer whose memory is stale computes a wrong total, and the API server refuses it.

`CardReader` reads cards as the API server has them now. A card that is older than memory says that the API server's
data was restored, such as from a backup of etcd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from secrets import token_hex

from attrs import define

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.clock import Backoff, Clock, Listeners
from gpuledger.model.errors import (
    ApiError,
    Conflict,
    GpuledgerError,
    Invalid,
    NotFound,
    ShareRefused,
    StateRolledBack,
    Unreachable,
)
from gpuledger.model.share import Claim, Holder, HolderState, Misfit, StoredCard
from gpuledger.workflows.journal.entries import (
    Add,
    Bequest,
    Change,
    Describe,
    Entry,
    HandOver,
    Remove,
    SetClaim,
    Settle,
    ShowConflict,
    adds_something,
    charged,
    ended_by,
    open_entries,
    patch_of,
    room_for_ended,
)
from gpuledger.workflows.reporting import JournalCounts


def check_age(stored: StoredCard, known_version: int, entry: CardEntry | None) -> None:
    """Raise StateRolledBack for a card in a list that is older than it was before that list was asked for.

    Its versions may repeat, too: then it is not as it was known in the same one.
    """
    version = stored.resource_version
    is_another = entry is not None and version == entry.resource_version and _has_others(entry, stored)
    if version < known_version or is_another:
        others = " with other holders" if is_another else ""
        raise state_rolled_back(f"GPUAllocation {stored.card.object_name}", version, known_version, others)


def state_rolled_back(what: str, version: int, known_version: int, others: str = "") -> StateRolledBack:
    """Return the error for an object that is older than it was."""
    return StateRolledBack(
        f"{what} has version {version}, and had {known_version}{others}: the API server's data was restored from an "
        "older state. The operator's memory no longer matches it, so the operator exits; when it restarts, it reads "
        "the restored data"
    )


def _has_others(entry: CardEntry, stored: StoredCard) -> bool:
    """Return whether a card has other holders than it was known to have; it has none before its first status."""
    known = stored.holders is None or {holder.pod.uid: holder for holder in stored.holders} == entry.listed
    return entry.stored and not known


class OlderThanKnown(Unreachable):
    """A card that was read just now is older than it was before. Nothing that memory says of it may be relied on."""


class CardReader:
    """A read of one object is never older than what was shown before it was asked for, unless etcd was put back."""

    def __init__(self, ledger: Ledger, store: KubeStore, clock: Clock) -> None:
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self.on_older = Listeners[[]]()
        """Called when a card is older than it was."""

    async def read(self, card: CardEntry) -> StoredCard:
        """Return a card as it is now, and bring memory up to date. Raises OlderThanKnown, NotFound or Unreachable."""
        known = card.resource_version  # a watch may show a newer one before the answer comes
        asked_s = self._clock.now_s()
        stored = stored_card(await self._store.allocation(card.card.object_name))
        try:
            check_age(stored, known, card)
        except StateRolledBack as error:
            self.on_older()
            raise OlderThanKnown(str(error)) from None
        self.take(stored, asked_s)
        return stored

    def take(self, stored: StoredCard, asked_s: float) -> None:
        """Take over an answer of the API server to what was sent then."""
        self._ledger.load(stored)
        entry = self._ledger.entry(stored.card.uuid)
        if entry is not None:
            entry.as_of_s = max(entry.as_of_s, asked_s)


logger = logging.getLogger(__name__)


WRITE_TIMEOUT_S = 2.0
"""Less than the time that a Bind has: a lost answer is noticed while there is time to look."""

WRITES_AT_ONCE = 32
"""Requests in flight, over all cards. More make the API server no faster, only each answer later; what waits for its
turn meanwhile gathers more entries."""

GATHER_S = 0.03
"""While pods come faster than this one after the other, the first share on a card waits so long for the next ones: most
go to the same card. A pod that comes by itself does not wait."""

GROUP_LIMIT = 64
"""Changes in one PATCH: bounds the time and the size of a single request."""

REFUSALS_LIMIT = 2
"""Patches that may be refused with an entry in them: one in a group or with stale memory, one alone after a re-read."""

ATTEMPT_BYTES = 8
"""Random bytes in an attempt's name. It only has to differ from those of the same pod's other attempts."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
"""Pause after an error of the API server: doubled each time."""


@dataclass(frozen=True, slots=True)
class Entered:
    """The way in which a holder got into the ledger."""

    attempt: str
    took_over: frozenset[str]
    """The attempts that had entered an equal one; they, too, may have bound the pod. One without a name is ""."""
    may_arrive_late: bool = False
    """Whether a patch that enters it may still be under way: then it can be there again after it was removed."""


@dataclass(slots=True)
class _Shared:
    """What the writers of all cards have."""

    ledger: Ledger
    store: KubeStore
    reader: CardReader
    clock: Clock
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WRITES_AT_ONCE))
    counts: JournalCounts = field(default_factory=lambda: JournalCounts(GROUP_LIMIT))
    on_lost: Listeners[[str]] = field(default_factory=Listeners[[str]])
    """Called with a node's name when the API server does not have one of its cards that memory knows."""
    account_time: Callable[[], datetime | None] = lambda: None
    """Returns the time by which shares are charged; None: they are not."""
    idle_s: Callable[[str, str, datetime], int] = lambda *_: 0
    """Returns for how many seconds a pod's share of a card was idle until a moment."""
    settled: dict[str, set[str]] = field(default_factory=dict)
    """Card UUID -> keys of what is over, which leave its list with the next write."""

    def take_settled(self, uuid: str) -> frozenset[str]:
        """Return these keys of a card, and forget them."""
        return frozenset(self.settled.pop(uuid, ()))


class Journal:
    """Writes holders into the ledger and out of it. Each call returns when the API server has it.

    In a burst of pods, a card's first PATCH waits `gather_s` for more.
    """

    def __init__(self, *, ledger: Ledger, store: KubeStore, clock: Clock, gather_s: float = 0.0) -> None:
        self._ledger = ledger
        self._clock = clock
        self._writers: dict[str, _CardWriter] = {}  # card UUID -> its writer, while it has something to write
        self._shared = shared = _Shared(ledger, store, CardReader(ledger, store, clock), clock)
        self._gather_s = gather_s
        self._newest = ("", float("-inf"))  # UID of the pod that came last, and when, in seconds of the loop's clock
        self.reader, self.counts, self.on_lost = shared.reader, shared.counts, shared.on_lost

    def charge_by(self, account_time: Callable[[], datetime | None]) -> None:
        """Charge shares by the time that this returns; None: they are not charged. It is so at first."""
        self._shared.account_time = account_time

    def tell_idle_by(self, idle_s: Callable[[str, str, datetime], int]) -> None:
        """Enter with shares that end for how long they were idle. It is none at first."""
        self._shared.idle_s = idle_s

    async def add(self, holder: Holder, timeout_s: float) -> Entered:
        """Enter a holder under a new attempt's name, or take over an equal one, entered by an earlier attempt.

        Either way the API server has the name when this returns: no one was taking the share back at that time.

        Raises ShareRefused if the card has no room, Unreachable if there is no answer in time, or what the API server
        says. After an error the entry may still get in: a caller that gives up must `remove`, which waits its turn.
        """
        entry = Add(holder=charged(replace(holder, attempt=token_hex(ATTEMPT_BYTES)), self._shared.account_time()))
        in_a_burst = self._comes_in_a_burst(holder.pod.uid)
        self._submit(holder.share.uuid, entry, self._gather_s if in_a_burst and not holder.share.exclusive else 0.0)
        try:
            async with asyncio.timeout(timeout_s):
                await entry.settled
        except TimeoutError:
            raise Unreachable(
                f"card {holder.share.uuid}: the ledger was not written within {timeout_s:.1f} s"
            ) from None
        return Entered(entry.holder.attempt, frozenset(entry.took_over), entry.may_arrive_late)

    async def still_has(self, holder: Holder) -> bool:
        """Read the card, and return whether this attempt's entry is there and no one has begun to take it back.

        Not for an entry that may arrive late. False, too, when the card can't be read: `add` finds out the rest.
        Raises OlderThanKnown.
        """
        entry = self._ledger.entry(holder.share.uuid)
        if entry is None:
            return False
        try:
            async with self._shared.turns, asyncio.timeout(WRITE_TIMEOUT_S):
                stored = await self.reader.read(entry)
        except OlderThanKnown:
            raise
        except (ApiError, TimeoutError):
            return False
        present = next((other for other in stored.holders or () if other.pod.uid == holder.pod.uid), None)
        return present is not None and (present.attempt, present.state) == (holder.attempt, HolderState.ALLOCATED)

    async def remove(self, uuid: str, pod_uid: str, only: Holder | None = None, is_charged: bool = True) -> None:
        """Take a pod off a card, and list the time of its share to be charged. Done when it is not there.

        With a holder, only that one, as it is: not in another state, nor entered by another attempt. Raises ApiError
        where the API server has not answered, to this or another write of the card: the pod is to be read again then.
        It may have been put back, with etcd, to when it still ran.
        """
        entry = Remove(pod_uid=pod_uid, only=only, is_charged=is_charged)
        self._submit(uuid, entry)
        await entry.settled

    async def hand_over(self, holder: Holder, bequests: Sequence[Bequest], is_charged: bool = True) -> None:
        """Give claims' parts of a share to heirs, by the claims' names there, and take the holder off the card.

        Done when the holder is not there as it was. Raises ApiError like `remove`.
        """
        now = self._shared.account_time()
        entry = HandOver(
            holder=holder,
            bequests=tuple(bequests),
            attempt=token_hex(ATTEMPT_BYTES),
            is_charged=is_charged,
            charged_from=now,
        )
        self._submit(holder.share.uuid, entry)
        await entry.settled

    async def change(self, holder: Holder) -> None:
        """Give a holder this state and deadline; tried until the API server has done it.

        Done when the pod has left the card, or has another share of it.
        """
        entry = Change(holder=holder, charged_from=self._shared.account_time())
        self._submit(holder.share.uuid, entry)
        await entry.settled

    async def describe(self, uuid: str, phase: str, reason: str) -> None:
        """Set a card's phase, if it differs; a card without a status gets its first.

        Raises what the API server says.
        """
        entry = Describe(phase=phase, reason=reason)
        self._submit(uuid, entry)
        await entry.settled

    def note_settled(self, uuid: str, keys: AbstractSet[str]) -> None:
        """Have the card's next write take off its list what is over and in the records. Costs no write of its own."""
        self._shared.settled.setdefault(uuid, set()).update(keys)

    async def settle(self, uuid: str) -> None:
        """Write that now, if it is still to be written. An error leaves it on the list."""
        keys = self._shared.take_settled(uuid)
        if keys:
            entry = Settle(keys=keys)
            self._submit(uuid, entry)
            await entry.settled

    async def claim(self, claim: Claim) -> None:
        """List on a card what is promised to a pod. Raises ShareRefused, or what the API server says."""
        await self._list(claim.share.uuid, SetClaim(pod_uid=claim.holder.pod.uid, claim=claim))

    async def withdraw_claim(self, uuid: str, pod_uid: str) -> None:
        """Take a pod's claim off a card. Done when it is not there. Raises what the API server says."""
        await self._list(uuid, SetClaim(pod_uid=pod_uid, claim=None))

    async def show_conflict(self, uuid: str, misfit: Misfit) -> None:
        """List on a card a share that does not fit there. It does not count.

        Raises ShareRefused if the card can't list it, or what the API server says.
        """
        await self._list(uuid, ShowConflict(pod_uid=misfit.pod.uid, misfit=misfit))

    async def clear_conflict(self, uuid: str, pod_uid: str) -> None:
        """Take a pod off the list of a card's conflicts. Done when it is not there.

        Raises ShareRefused if the card has no status yet, or what the API server says.
        """
        await self._list(uuid, ShowConflict(pod_uid=pod_uid, misfit=None))

    async def _list(self, uuid: str, entry: ShowConflict | SetClaim) -> None:
        self._submit(uuid, entry)
        await entry.settled

    def _comes_in_a_burst(self, pod_uid: str) -> bool:
        """Return whether another pod came just before this one."""
        newest_uid, came_s = self._newest
        now_s = self._clock.now_s()
        if newest_uid != pod_uid:
            self._newest = (pod_uid, now_s)
        return newest_uid != pod_uid and now_s - came_s < self._gather_s

    def _submit(self, uuid: str, entry: Entry, gather_s: float = 0.0) -> None:
        writer = self._writers.get(uuid)
        if writer is None:
            writer = self._writers[uuid] = _CardWriter(uuid, self._shared, gather_s)
            writer.task = asyncio.create_task(self._run(writer), name=f"writer of card {uuid}")
        writer.waiting.append(entry)

    async def _run(self, writer: _CardWriter) -> None:
        try:
            await writer.run()
        finally:
            del self._writers[writer.uuid]


@define(eq=False, slots=False)
class _CardWriter:
    """Writes what is waiting for one card, and ends."""

    uuid: str
    _shared: _Shared
    _pause_s: float
    """How long it waits for more changes before it writes the next time."""

    def __attrs_post_init__(self) -> None:
        self.waiting: list[Entry] = []
        self.task: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stale = False
        """The last write was refused, or had no answer: what memory knows of the card has to be read again."""

    async def run(self) -> None:
        """Work until nothing waits. Each write takes along what has gathered by the time of its turn."""
        group: list[Entry] = []
        while group or self.waiting:
            pause_s, self._pause_s = self._pause_s, 0.0
            if pause_s:  # without holding the turn
                await asyncio.sleep(pause_s)
            try:
                async with self._shared.turns:
                    group = group + self._next(group)
                    group = await self._step(group)
            except Exception as error:  # a defect must not leave anybody waiting
                logger.exception("writing card %s failed", self.uuid)
                for entry in group:
                    entry.fail(GpuledgerError(f"card {self.uuid}: {error!r}"))
                group = []

    def _next(self, group: Sequence[Entry]) -> list[Entry]:
        """Take what can join the group: in order, and never two entries of one pod, whose order would be lost."""
        pods = {entry.subject for entry in group}
        taken = 0
        for entry in self.waiting[: max(0, GROUP_LIMIT - len(group))]:
            if entry.subject in pods:
                break
            pods.add(entry.subject)
            taken += 1
        chosen, self.waiting = self.waiting[:taken], self.waiting[taken:]
        return chosen

    async def _step(self, group: list[Entry]) -> list[Entry]:
        """Write once for the entries that need it; return those that may not be settled yet."""
        group = [entry for entry in group if not entry.settled.done()]
        if group and self._stale and not await self._read_again(group):
            return group
        card = self._shared.ledger.entry(self.uuid)
        if card is None or not card.stored:
            self._card_is_gone(group)
            return []
        group = open_entries(card, [*group, *self._settling(group)], self._vacated(card, group))
        if any(entry.refusals for entry in group):
            # One by one, each in its turn, so that a bad entry takes no neighbour with it.
            await self._write(group[:1], group[1:])
            return group[1:] + group[:1]
        if group:
            await self._write(group)
        return group

    def _settling(self, group: Sequence[Entry]) -> list[Entry]:
        """Return what goes with a write that is made anyway."""
        if not group or any(isinstance(entry, Settle) for entry in group):
            return []
        keys = self._shared.take_settled(self.uuid)
        return [Settle(keys=keys)] if keys else []

    async def _write(self, entries: list[Entry], others: Sequence[Entry] = ()) -> None:
        card = self._shared.ledger.entry(self.uuid)
        if card is None:
            return
        self._shared.counts.patches.inc()
        vacated = self._vacated(card, entries)
        now = self._shared.account_time()
        over = ended_by(card, entries, vacated, now, self._shared.idle_s)
        lost = max(0, len(over) - room_for_ended(card, entries))
        version = card.resource_version  # it may be another one when the answer comes
        begin_s = self._shared.clock.now_s()
        try:
            stored = await self._shared.store.patch_allocation_status(
                card.card.object_name, patch_of(card, entries, vacated, over, now), WRITE_TIMEOUT_S
            )
        except Invalid as error:
            self._refused(entries, error)
        except NotFound:
            self._shared.counts.failures.labels("not-found").inc()
            self._lost(card.card.node_name, version)
        except (Conflict, Unreachable) as error:
            self._shared.counts.failures.labels("conflict" if isinstance(error, Conflict) else "unreachable").inc()
            self._stale = True
            self._unanswered([*entries, *others], error)
        except ApiError as error:  # a caller that gives up a share must not give up on this
            self._shared.counts.failures.labels("error").inc()
            logger.error("card %s: %s", self.uuid, error)
            for entry in entries:
                if isinstance(entry, Add):
                    entry.fail(error)
            self._note_pause(error)
        else:
            self._backoff.reset()
            self._shared.counts.entries.inc(len(entries))
            self._shared.counts.lost_time.inc(lost)
            self._shared.reader.take(stored_card(stored), begin_s)
            for entry in entries:
                entry.succeed()
        finally:
            self._shared.counts.write_seconds.observe(self._shared.clock.now_s() - begin_s)
            self._shared.counts.write_entries.observe(len(entries))

    def _vacated(self, card: CardEntry, entries: Sequence[Entry]) -> list[Holder]:
        """Return the stored seats that leave the card with these entries: those of pods that are entered, and nobody's.

        They stay as long as nobody needs the room. Pods note which seat they had.
        """
        adding = {entry.subject: entry for entry in entries if isinstance(entry, Add)}
        if not adding or not card.stored_seats:
            return []
        found = self._shared.ledger.stored_seats.vacated(card, adding)
        for holder in found:
            key = self._shared.ledger.stored_seats.whose(holder.pod.uid)
            if isinstance(key, str) and key in adding:
                adding[key].sits_in(holder.seat)
        return found

    def _refused(self, entries: list[Entry], error: Invalid) -> None:
        self._shared.counts.refusals.inc()
        self._stale = True
        for entry in entries:
            entry.refusals += 1
            if entry.refusals < REFUSALS_LIMIT:
                continue
            if isinstance(entry, Remove | Change):  # another was quicker again; what is given up has to go
                self._note_pause(error)
            else:
                logger.warning("card %s: the API server refuses an entry: %s", self.uuid, error)
                entry.fail(error)

    async def _read_again(self, group: Sequence[Entry]) -> bool:
        """Bring memory up to date, and return whether that worked; also shows whether a lost write was carried out."""
        card = self._shared.ledger.entry(self.uuid)
        if card is None:
            return True
        version = card.resource_version
        try:
            await self._shared.reader.read(card)
        except NotFound:
            self._lost(card.card.node_name, version)
        except ApiError as error:
            self._unanswered(group, error)
            return False
        self._stale = False
        return True

    def _unanswered(self, group: Sequence[Entry], error: ApiError) -> None:
        for entry in (*group, *self.waiting):
            entry.unanswered(error)
        self._note_pause(error)

    def _lost(self, node_name: str, version: int) -> None:
        """Record that the API server lacks the card that memory has in this version, and have that checked."""
        self._shared.ledger.unload(self.uuid, version)
        self._shared.on_lost(node_name)

    def _note_pause(self, error: ApiError) -> None:
        self._pause_s = max(self._backoff.next_s(), error.retry_after_s)
        logger.info("card %s: retrying in %.2f s after %s", self.uuid, self._pause_s, error)

    def _card_is_gone(self, entries: list[Entry]) -> None:
        for entry in entries:
            if adds_something(entry):
                entry.fail(ShareRefused(f"card {self.uuid} is gone"))
                continue
            card = self._shared.ledger.entry(self.uuid)
            present = card.listed.get(entry.subject) if card else None
            if isinstance(entry, Remove) and entry.applies_to(present):
                self._shared.ledger.change_unstored(self.uuid, entry.pod_uid, None)
            elif isinstance(entry, Change) and present and entry.applies_to(present):
                self._shared.ledger.change_unstored(self.uuid, entry.subject, entry.changed(present))
            entry.succeed()
