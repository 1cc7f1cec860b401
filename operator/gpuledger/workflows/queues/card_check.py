"""The admission check `gpuledger.dev/cards`: Kueue admits a workload when all of its pods fit on cards now.

Kueue counts quota and does not see cards. A workload that has quota waits here until all of its pods find cards at
once; their room is reserved, and the check says Ready. Waiting workloads are tried again whenever room appears, higher
priority first, then earlier quota reservation first. If the cards are used by another workload that has to give them
back by Kueue's own rules, that one is evicted as a whole: see reclaim.py.

The check is written only as long as the workload is unchanged since it was read. Kueue's objects are followed while the
API server has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from attrs import define

from gpuledger.formats.kubernetes.other import shortened
from gpuledger.formats.kubernetes.workload import CheckState, Workload, check_patch, workload
from gpuledger.kube_api.watch import Listed, all_of, forgetting
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.quotas import Tally
from gpuledger.ledger.seats import Seat, Strength
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import (
    ApiError,
    BadInput,
    Conflict,
    GpuledgerError,
    NotFound,
    ShareRefused,
    WorkLimitExceeded,
)
from gpuledger.model.gang import WorkloadName
from gpuledger.model.json_object import Json
from gpuledger.model.share import SeatFor, StoredSeat
from gpuledger.placement.fit import why_it_waits
from gpuledger.placement.group import Asking, GroupPlanner, Trial
from gpuledger.placement.sketch import Sketch
from gpuledger.reports.explanation import quota_text
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.events import MemberRefused, PodRefused, SelectorsAllowed
from gpuledger.workflows.kept_seats import KeptSeats
from gpuledger.workflows.kinds import DENIED, WORKLOADS, Subscription
from gpuledger.workflows.pending.queue import Attempts, RoomQueue
from gpuledger.workflows.queues.workloads import (
    KueueObjects,
    NodesByRules,
    QueuedWorkload,
    Reservations,
    SeatReader,
    Stage,
    WorkloadPods,
    hardest_first,
)
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind
from gpuledger.workflows.tasks import Step, in_slices, run_cooperatively, sleep_backoff

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""While Kueue is down, the API server refuses each after 10 s, for Kueue's webhook does not answer."""


@define(eq=False, slots=False)
class CheckWriter(Component):
    """Sends one write at a time for each workload, each in a task of its own."""

    def __attrs_post_init__(self) -> None:
        self._writing: dict[str, asyncio.Task[None]] = {}  # UID of a workload -> what is being written of it

    def is_writing(self, uid: str) -> bool:
        """Return whether a write about a workload is under way."""
        return uid in self._writing

    def say(
        self,
        of: Workload,
        check: str,
        state: CheckState,
        message: str,
        done: Callable[[Workload | None], None],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Begin to write, after what is being written already, and after `first`, which may raise GpuledgerError.

        `done` is called with the workload as it is then, None if it could not be written.
        """
        before = self._writing.get(of.uid)

        async def write() -> None:
            written = None
            try:
                if before is not None:
                    await asyncio.wait([before])
                if first is not None:
                    await first()
                written = await self._write(of, check, state, message)
            except GpuledgerError as error:
                logger.info("workload %s: %s", of.name, error)
            finally:
                if self._writing.get(of.uid) is task:
                    del self._writing[of.uid]
                done(written)

        task = self._writing[of.uid] = self._tasks.start(write(), f"check of workload {of.name}")

    async def _write(self, of: Workload, check: str, state: CheckState, message: str) -> Workload | None:
        now = of
        for attempt in range(ATTEMPTS):
            if not self._is_active():
                return None
            patch = check_patch(now, check, state, message, self._clock.wall().isoformat())
            try:
                found = await self._store.patch_workload_status(now.name.namespace, now.name.name, patch)
                self._counts.workload_checks.labels(state.value).inc()
                return workload(found)
            except Conflict:
                try:
                    now = workload(await self._store.workload(now.name.namespace, now.name.name))
                except ApiError:
                    return None
                if attempt and _says(now, of, check, state, message):  # the answer to an earlier attempt was lost
                    return now
                if not _is_as_before(of, now, check):
                    return None
            except NotFound:
                return None
            except ApiError as error:
                logger.info("workload %s: its check %s can't be written: %s", of.name, check, error)
                await sleep_backoff(attempt, error)
        return None


def _says(now: Workload, of: Workload, check: str, state: CheckState, message: str) -> bool:
    """Return whether a workload has the quota that it had, and its check says this."""
    said = now.check((check,)) or {}
    return (
        (now.uid, now.reserved_at) == (of.uid, of.reserved_at)
        and now.has_quota
        and (said.get("state"), said.get("message")) == (state, shortened(message))
    )


def _is_as_before(before: Workload, now: Workload, check: str) -> bool:
    """Return whether what was decided about a workload still holds: the same quota, and the check said the same."""
    state, state_now = (each.check((check,)) or {} for each in (before, now))
    return (
        (now.uid, now.cluster_queue, now.reserved_at, now.is_admitted)
        == (before.uid, before.cluster_queue, before.reserved_at, before.is_admitted)
        and now.has_quota
        and state.get("state") == state_now.get("state")
    )


RESERVED = "cards are reserved for its pods"
NO_CARDS = "its pods ask for no cards"
DISPLACED = "a pod of higher priority has taken over cards that were reserved for its pods"
OTHERS = "cards are looked for when its other checks are ready: "


@define(eq=False, slots=False)
class CardCheck(Component):
    """Follows workloads, and reserves cards for them."""

    _queue: RoomQueue
    _objects: KueueObjects
    _reservations: Reservations
    _pods: WorkloadPods
    _reader: SeatReader
    _writer: CheckWriter

    def __attrs_post_init__(self) -> None:
        self._known: dict[str, QueuedWorkload] = {}  # UID of a workload -> it
        self._uids: dict[WorkloadName, str] = {}  # name of a workload that is known -> its UID
        self._planner = GroupPlanner(self._ledger, self._chooser)
        self._reserve_s = self._settings.kueue_reserve_s
        self._attempts = Attempts[QueuedWorkload](self._clock)
        self.on_due = self._context.room_has_changed.set
        self.on_no_room = Listeners[[QueuedWorkload, list[Asking]]]()
        """Called with a workload for which there is no room, and what its pods ask for."""
        self._ledger.quotas.on_room.append(self._may_have_more)
        self._ledger.seats.on_displaced.append(self._displaced)
        self._events.on(SelectorsAllowed, lambda event: self._may_have_more(event.namespace))
        self._queue.add(self)

    # What the watches show.

    def observe(self, found: Json, gone: bool) -> None:
        """Observe a workload."""
        now = workload(found)
        self._objects.uses(now, found, gone)
        check = now.check(self._objects.checks)
        if gone or not now.has_quota or check is None or check["state"] in (CheckState.RETRY, CheckState.REJECTED):
            self._forget(now.uid)
            return
        queued = self._known.get(now.uid)
        if queued is None or queued.workload.reserved_at != now.reserved_at:
            self._forget(now.uid)
            queued = self._known[now.uid] = QueuedWorkload(now, str(check["name"]))
            self._uids[now.name] = now.uid
        was_admitted = queued.workload.is_admitted
        if not queued.take(now):
            return
        queued.note(found)
        queued.said = str(check.get("message") or "")
        if check["state"] == CheckState.READY:
            self._said_ready(queued, str(check["lastTransitionTime"]), was_admitted)
        elif not self._writer.is_writing(now.uid):
            queued.stage = Stage.WAITING
        if queued.stage is not Stage.READY:
            self.on_due()

    def _said_ready(self, queued: QueuedWorkload, since: str, was_admitted: bool) -> None:
        """Take in that the check says Ready. Another operator may have said so, whose reservation is gone with it."""
        now_s = self._clock.now_s()
        if queued.stage is Stage.WAITING:
            age_s = max(self._clock.wall().timestamp() - datetime.fromisoformat(since).timestamp(), 0.0)
            queued.until_s = now_s + self._reserve_s - age_s
            self._attempts.forget(queued)
            queued.stage = Stage.RESUMED if age_s < self._reserve_s else Stage.READY
            if queued.stage is Stage.READY:
                self._reservations.drop(queued.workload.name)
        if queued.workload.is_admitted and not was_admitted and queued.stage is Stage.READY:
            queued.until_s = now_s + self._reserve_s
            self._reservations.extend(queued.workload.name, queued.until_s)

    def listing(self) -> Listed:
        """Note which workloads are known; return what forgets those that are not in the list read since."""
        return all_of(lambda: forgetting(self._known, self._forget), self._objects.listing)

    def _forget(self, uid: str) -> None:
        queued = self._known.pop(uid, None)
        if queued is not None:
            self._reservations.drop(queued.workload.name)
            if self._uids.get(queued.workload.name) == uid:
                del self._uids[queued.workload.name]

    # What is known.

    def find(self, name: WorkloadName) -> QueuedWorkload | None:
        """Return a workload that has quota and needs the check, None if it is none."""
        uid = self._uids.get(name)
        return self._known.get(uid) if uid else None

    def all(self) -> list[QueuedWorkload]:
        """Return the workloads that have quota and need the check."""
        return list(self._known.values())

    def by_state(self) -> dict[str, int]:
        """Return how many of them wait for cards, have cards reserved and are not admitted yet, and are admitted."""
        found = {"waiting": 0, "reserved": 0, "admitted": 0}
        for each in self._known.values():
            has_cards = "waiting" if each.stage is Stage.WAITING else "reserved"
            found["admitted" if each.workload.is_admitted else has_cards] += 1
        return found

    def leaves_with_workload(self, pod_uid: str) -> bool:
        """Return whether a pod belongs to an admitted workload: Kueue's rules decide then who takes its cards.

        Pods beyond the admitted number do not count: users can claim that any pod belongs to a workload.
        """
        named = self._pods.of(pod_uid) if self._known else None
        queued = self.find(named[0]) if named else None
        if named is None or queued is None or not queued.workload.is_admitted:
            return False
        alike = [uid for uid, pod_set in self._pods.pods(named[0]).items() if pod_set == named[1]]
        return alike.index(pod_uid) < queued.counts.get(named[1], 0)

    def is_waiting(self, queued: QueuedWorkload) -> bool:
        """Return whether a workload still waits for cards, with the quota that it had."""
        return self._known.get(queued.workload.uid) is queued and queued.stage is Stage.WAITING

    def try_again(self, queued: QueuedWorkload) -> None:
        """Have a workload tried again though nothing has changed."""
        self._attempts.renew(queued)
        self.on_due()

    # Room.

    def waiting(self) -> list[QueuedWorkload]:
        """See Groups."""
        return [each for each in self._known.values() if each.stage is not Stage.READY]

    def may_be_tried(self, group: QueuedWorkload) -> bool:
        """See Groups."""
        if self._known.get(group.workload.uid) is not group or self._writer.is_writing(group.workload.uid):
            return False
        return self._attempts.may_be_tried(group, self._state)

    @property
    def _state(self) -> tuple[int, int, int]:
        return self._ledger.changes, self._reader.changes, self._objects.quota_changes

    async def try_now(self, group: QueuedWorkload) -> None:
        """See Groups."""
        queued = group
        if self._has_seats(queued):
            return
        pods = self._pods.pods(queued.workload.name) if queued.stage is Stage.RESUMED else {}
        if others := queued.workload.not_ready(self._objects.checks):  # room is not kept while they take their time
            self.say_why(queued, f"{OTHERS}{', '.join(others)}")
            return
        try:
            seats = await self._reader.seats(
                queued, [each for uid, each in pods.items() if self._ledger.holders.of(uid)]
            )
        except BadInput as error:
            self._attempts.failed(queued, self._state)
            self._is_not_reserved(queued, str(error))
            return
        except WorkLimitExceeded as error:
            self._waits_for_selectors(queued, str(error))
            return
        state = self._state
        trial = Trial(self._ledger)
        await in_slices(trial.steps(hardest_first(seats)), self._clock)
        if self._known.get(queued.workload.uid) is not queued:
            return
        self._attempts.failed(queued, state)
        if trial.left and (why := why_it_waits(each.request.shape for each in trial.left)):
            self._waits_for_selectors(queued, why)
        elif trial.left and queued.stage is not Stage.RESUMED:
            self.on_no_room(queued, seats)
        elif trial.left:
            queued.stage = Stage.READY
        else:
            await self._reserve(queued, seats, trial)

    def _has_seats(self, queued: QueuedWorkload) -> bool:
        """Return whether seats are stored of a workload whose check says Ready; where it does not, nobody needs them.

        They were made by another operator, or by this one before it was started again.
        """
        name = queued.workload.name
        if queued.stage is Stage.WAITING:
            self._reservations.drop(name)
        elif self._reservations.keys_of(name):
            self._reservations.extend(name, queued.until_s)
            queued.stage = Stage.READY
        return queued.stage is Stage.READY

    async def still_wants(self, seat: StoredSeat) -> bool:
        """Return whether a workload needs a seat that was stored: see SeatStore."""
        name, uid = WorkloadName(seat.owner.namespace, seat.owner.name), seat.owner.uid
        queued = self._known.get(uid)
        if queued is not None:
            return queued.stage is not Stage.WAITING and self._clock.now_s() < queued.until_s
        try:
            now = workload(await self._store.workload(name.namespace, name.name))
        except NotFound:
            return False
        check = now.check(self._objects.checks)
        return now.uid == uid and now.has_quota and check is not None and check["state"] == CheckState.READY

    def _waits_for_selectors(self, queued: QueuedWorkload, why: str) -> None:
        """Have a workload tried again when more of its namespace's selectors may be evaluated: see `_may_have_more`."""
        self._attempts.failed(queued, self._state)
        if queued.stage is not Stage.RESUMED:
            self.say_why(queued, why)

    async def _reserve(self, queued: QueuedWorkload, seats: list[Asking], trial: Trial) -> None:
        """Hold room for all, and say so."""
        name = queued.workload.name
        if queued.stage is not Stage.RESUMED:
            queued.until_s = self._clock.now_s() + self._reserve_s
        self._reservations.drop(name)
        tally = Tally(self._ledger.quotas)
        exceeded = next(filter(None, (tally.add(key, (place,)) for key, place in trial.placed.items())), None)
        if exceeded is not None:
            quotas, namespace = self._ledger.quotas, name.namespace
            asked = sum(quotas.besides(key, namespace, place)[exceeded] for key, place in trial.placed.items())
            self._is_not_reserved(queued, quota_text(namespace, quotas.excess(namespace, exceeded, asked)))
            return
        sketch = (await run_cooperatively(self._planned(seats))) or trial.sketch
        if self._known.get(queued.workload.uid) is not queued:
            return
        try:
            sketch.commit(queued.until_s, Strength.WAITING, name, queued.workload.priority)
        except ShareRefused:  # others were faster
            self._attempts.failed(queued, self._state)
        else:
            self._is_reserved(queued)

    def _planned(self, seats: list[Asking]) -> Generator[Step, None, Sketch | None]:
        """Return places by the policy; None if that finds none: then those of a trial have to do."""
        with suppress(WorkLimitExceeded):
            plan = yield from self._planner.plan(seats)
            return None if plan.lacking else plan.sketch
        return None

    def _displaced(self, seats: Sequence[Seat]) -> None:
        """Record that pods of higher priority have taken over seats of workloads: Kueue queues these again."""
        for name in {seat.group for seat in seats if isinstance(seat.group, WorkloadName)}:
            queued = self.find(name)
            if queued is not None:
                logger.info("workload %s: %s", name, DISPLACED)
                self._writer.say(queued.workload, queued.check, CheckState.RETRY, DISPLACED, lambda _: None)

    def _is_reserved(self, queued: QueuedWorkload) -> None:
        name, uid = queued.workload.name, queued.workload.uid
        if queued.stage is Stage.RESUMED:
            queued.stage = Stage.READY
            self._tasks.start(self._reservations.store_or_drop(name, uid), f"store seats of workload {name}")
            return
        queued.stage = Stage.READY

        def done(written: Workload | None) -> None:
            if self._known.get(queued.workload.uid) is not queued:
                return
            if written is None:
                self._reservations.drop(queued.workload.name)
                queued.stage = Stage.WAITING
                self._attempts.pause(queued, self._reserve_s)
                self._queue.look_again_in(self._reserve_s)
            else:
                queued.take(written)

        text = RESERVED if self._ledger.seats.of_group(queued.workload.name) else NO_CARDS
        logger.info("workload %s: %s", queued.workload.name, text)
        self._writer.say(
            queued.workload, queued.check, CheckState.READY, text, done, partial(self._reservations.store, name, uid)
        )

    def _is_not_reserved(self, queued: QueuedWorkload, text: str) -> None:
        """Say why, unless the check has said Ready before: Kueue would stop the pods that have come by then."""
        if queued.stage is Stage.RESUMED:
            queued.stage = Stage.READY
        else:
            self.say_why(queued, text)

    def _may_have_more(self, namespace: str) -> None:
        """Record that a namespace may have more of its quota than before."""
        for queued in self._known.values():
            if queued.workload.name.namespace == namespace and queued.stage is Stage.WAITING:
                self.try_again(queued)

    def say_why(self, queued: QueuedWorkload, text: str) -> None:
        """Write why a workload waits, if that is news."""
        if text == queued.said or self._writer.is_writing(queued.workload.uid):
            return
        queued.said = text

        def done(written: Workload | None) -> None:
            if written is not None:
                queued.take(written)
            self.on_due()

        self._writer.say(queued.workload, queued.check, CheckState.PENDING, text, done)


@define(eq=False, slots=False)
class WorkloadRequeuer(Component):
    """Has Kueue evict and queue again an admitted workload whose pods find no cards: they may be gone, or taken."""

    _check: CardCheck
    _pods: WorkloadPods
    _writer: CheckWriter

    def __attrs_post_init__(self) -> None:
        self._after_s = self._settings.kueue_retry_s
        self._waiting: set[str] = set()  # UIDs of pods that were refused
        self._events.on(PodRefused, lambda event: self._refused(event.uid))
        self._events.on(MemberRefused, lambda event: self._refused(event.uid))

    def _refused(self, pod_uid: str) -> None:
        if self._after_s and self._pods.of(pod_uid) is not None and pod_uid not in self._waiting:
            self._waiting.add(pod_uid)
            self._tasks.after(self._after_s, self._is_overdue, pod_uid)

    def _is_overdue(self, pod_uid: str) -> None:
        named = self._pods.of(pod_uid)
        self._waiting.discard(pod_uid)
        if named is not None and self._pods.is_pending(pod_uid):
            self._retry(named[0])
            self._refused(pod_uid)

    def _retry(self, name: WorkloadName) -> None:
        queued = self._check.find(name)
        if queued is None or not queued.workload.is_admitted or self._writer.is_writing(queued.workload.uid):
            return
        text = f"a pod could not be placed for {self._after_s:g} s, though there were cards for all: it is queued again"
        logger.info("workload %s: %s", queued.workload.name, text)
        self._writer.say(queued.workload, queued.check, CheckState.RETRY, text, lambda _: None)


class Queues:
    """The parts that deal with Kueue. Where it is not turned on, they know nothing and cost next to nothing."""

    def __init__(self, context: Context, queue: RoomQueue, claims: ClaimBook, seats: KeptSeats) -> None:
        self.nodes, self.pods, self.objects = (
            NodesByRules(context.settings.kueue or context.settings.reservations or context.settings.growth != "none"),
            WorkloadPods(),
            KueueObjects(context),
        )
        self.reader = SeatReader(context, self.objects, self.nodes, claims)
        self.reservations, self.writer = Reservations(context, seats.takers, seats.store), CheckWriter(context)
        self.check = CardCheck(context, queue, self.objects, self.reservations, self.pods, self.reader, self.writer)
        seats.store.ask(SeatFor.WORKLOAD, self.check.still_wants)
        claims.on_appeared.append(lambda kind, name: None if kind is Kind.CLAIMS else self.check.on_due())
        self.requeuer = WorkloadRequeuer(context, self.check, self.pods, self.writer)


LISTS_WAIT_S = 10.0
"""Workloads are read after what says which of them are ours, unless that takes longer."""


def queue_subscriptions(objects: KueueObjects, check: CardCheck) -> list[Subscription]:
    """Return a subscription for each kind of Kueue's, workloads first."""
    are_there = asyncio.Event()
    others = objects.subscriptions(are_there)

    async def since() -> str:
        are_there.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTS_WAIT_S):
                for each in others:
                    await each.listed.wait()
        return ""

    def can_not_be_read(why: str) -> None:
        if why == DENIED:
            logger.warning("Kueue's workloads can't be read: %s", why)
        for event in (are_there, *(each.listed for each in others)):
            event.clear()
        check.listing()(set())  # Kueue is gone, and its workloads with it

    workloads = Subscription(WORKLOADS, check.observe, check.listing, since, can_not_be_read=can_not_be_read)
    return [workloads, *others]


async def keep_checks_active(store: KubeStore, objects: KueueObjects) -> None:
    """Write the Active condition of the AdmissionChecks whenever one has changed, until cancelled."""
    changed = asyncio.Event()
    objects.on_change.append(changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            await objects.report_active(store)
    finally:
        objects.on_change.remove(changed.set)
