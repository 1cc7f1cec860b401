"""GPUReservations: seats that a namespace keeps for pods of its own before these exist.

What is to be kept is compared with what is, whenever something changes: for each member of a reservation that no pod
has taken there is to be a seat, from `notBefore` until its end. Seats are looked for like the places of a gang, but
fewer than all are of use, too. They yield to pods of higher priority, and are looked for again then.

The ledger says who sits in which seat, so a new operator knows what has been taken. The status repeats it, as a member
stays taken after its pod has left the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import nsmallest

from attrs import define

from gpuledger.formats.custom_resource.reservation import Phase, Reservation, reservation, status_of, status_patch
from gpuledger.formats.kubernetes.constraints import pod_rules
from gpuledger.formats.kubernetes.pod import deployment_of
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.clock import Listeners, rfc3339
from gpuledger.model.errors import (
    ApiError,
    BadInput,
    Conflict,
    GpuledgerError,
    NotFound,
    ShareRefused,
    WorkLimitExceeded,
)
from gpuledger.model.gang import GroupSeat
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.share import SeatFor, SeatOwner, StoredSeat
from gpuledger.placement.fit import compiled, why_it_waits
from gpuledger.placement.group import Asking, GroupPlanner, Plan
from gpuledger.reports.explanation import quota_text
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.kept_seats import KeptSeats, SeatStore, drop, untaken
from gpuledger.workflows.list_and_watch import skipping_bad_objects
from gpuledger.workflows.pending.queue import Attempts, RoomQueue
from gpuledger.workflows.queues.workloads import NodesByRules
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.tasks import KeyedWorker, run_cooperatively

logger = logging.getLogger(__name__)

MOST_OF_NAMESPACE = 64
"""Reservations of one namespace that count, the oldest first: each is compared with each of its pods that comes."""

AT_ONCE = 4
PAUSE_S, READ_PAUSE_S = 5.0, 30.0
"""Before seats are looked for again that could not be written, or of which something could not be read."""

LONGEST_WAIT_S = 86_400.0
"""A timer for a later time looks again before."""

TOO_MANY = f"the namespace has {MOST_OF_NAMESPACE} reservations that are older, and no more count"
SYSTEM_CLASSES = "system-"
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(slots=True, eq=False, weakref_slot=True)
class KeptReservation:
    """A reservation, and what is known of it beside its object."""

    found: Reservation
    members: tuple[str, ...]
    """Those that there are."""
    taken: set[str]
    """Members that have been taken."""
    priority: int | None = None
    """None before it was looked up."""
    problem: str = ""
    """Why it can't be had as it is."""
    why: str = ""
    """Why it waits."""
    asking: tuple[int, list[Asking]] = field(default_factory=lambda: (-1, []))
    """What its pods ask for, and the number of the change of nodes up to which that holds."""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Return its place in the queue of all who wait."""
        return True, -(self.priority or 0), self.found.created, self.found.uid

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return self.found.name.namespace

    @property
    def owner(self) -> SeatOwner:
        """Return what the ledger calls it."""
        return SeatOwner(SeatFor.RESERVATION, *self.found.name[:2], self.found.uid)


def _kept(found: Reservation) -> KeptReservation:
    members = tuple(map(str, range(found.count)))
    return KeptReservation(found, members, set(found.taken), problem=found.problem)


@define(eq=False, slots=False)
class ReservationBook(Component):
    """Knows the reservations: which count, which have begun and not ended, and what is missing of each."""

    def __attrs_post_init__(self) -> None:
        self.known: dict[str, KeptReservation] = {}  # UID -> it
        self._of_namespace: dict[str, dict[str, KeptReservation]] = {}  # namespace -> UID -> it
        self._counting: dict[str, list[KeptReservation]] = {}  # namespace -> those that count, the oldest first
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UID -> when it begins or ends
        self._longest = timedelta(seconds=self._settings.reservation_longest_s)
        self.on_change = Listeners[[KeptReservation]]()
        """Called when something about one may have changed: it has come, begins, ends, is gone, or others are."""
        self.on_status = Listeners[[KeptReservation]]()
        """Called when there may be something else to say of one."""
        self._ledger.stored_seats.on_sitting.append(self._is_taken)

    def observe(self, object_: Json, gone: bool) -> None:
        """Observe a reservation."""
        if gone:
            self._forget(str(object_["metadata"]["uid"]))
            return
        with skipping_bad_objects("gpureservation", object_, self._counts):
            self._take(reservation(object_))

    def _take(self, now: Reservation) -> None:
        uid, known = now.uid, self.known.get(now.uid)
        if known is not None and known.found.generation == now.generation:
            known.found = now if now.version >= known.found.version else known.found
            known.taken |= now.taken
        else:
            if known is not None:
                self.give_up(known)
            known = self.known[uid] = _kept(now)
            self._of_namespace.setdefault(known.namespace, {})[uid] = known
            self._counting.pop(known.namespace, None)
            self._is_taken(known.owner)
        if known not in self.counted(known.namespace):  # its content is read when it does
            known.found = replace(known.found, pod={}, owners=())
        self._look_when_due(known)

    def listing(self) -> Listed:
        """Note which are known; return what forgets those that are not in the list read since."""
        return forgetting(self.known, self._forget)

    def _forget(self, uid: str) -> None:
        known = self.known.pop(uid, None)
        if known is None:
            return
        others = self._of_namespace[known.namespace]
        del others[uid]
        if not others:
            del self._of_namespace[known.namespace]
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        self.give_up(known)
        self.on_change(known)
        self._counts_otherwise(known.namespace)

    def counted(self, namespace: str) -> list[KeptReservation]:
        """Return the reservations of a namespace that count."""
        known = self._counting.get(namespace)
        if known is None:
            here = self._of_namespace.get(namespace, {}).values()
            known = nsmallest(MOST_OF_NAMESPACE, here, key=lambda each: (each.found.created, each.found.uid))
            if known:
                self._counting[namespace] = known
        return known

    def _counts_otherwise(self, namespace: str) -> None:
        """Record that others of a namespace may count now."""
        self._counting.pop(namespace, None)
        for kept in self.counted(namespace):
            self.on_change(kept)

    def _end(self, kept: KeptReservation) -> datetime | None:
        ends = [kept.found.expires] if kept.found.expires is not None else []
        if self._longest and kept.found.created:
            ends.append(datetime.fromisoformat(kept.found.created) + self._longest)
        return min(ends, default=None)

    def is_over(self, kept: KeptReservation) -> bool:
        """Return whether its time has ended."""
        end = self._end(kept)
        return end is not None and self._clock.wall() >= end

    def has_begun(self, kept: KeptReservation) -> bool:
        """Return whether its time has begun."""
        return kept.found.not_before is None or self._clock.wall() >= kept.found.not_before

    def _look_when_due(self, kept: KeptReservation) -> None:
        """Look at a reservation now, and again when it begins or ends."""
        uid, now = kept.found.uid, self._clock.wall()
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        due = [time for time in (kept.found.not_before, self._end(kept)) if time is not None and time > now]
        if due:
            self._timers[uid] = self._tasks.after(
                min((min(due) - now).total_seconds(), LONGEST_WAIT_S), self._look_when_due, kept
            )
        if self.is_over(kept):
            self.give_up(kept)
        self.on_change(kept)

    def seats_for(self, found_pod: JsonMapping) -> list[Seat]:
        """Return the seats that a pod may take: those of the oldest reservation first."""
        metadata = found_pod["metadata"]
        namespace = str(metadata.get("namespace"))
        if namespace not in self._of_namespace:
            return []
        labels, made_by = metadata.get("labels") or {}, _controllers(found_pod)
        mine = (each for each in self.counted(namespace) if any(o.owns(labels, made_by) for o in each.found.owners))
        return [seat for each in mine for seat in self._ledger.seats.of_group(each.found.name)]

    def _is_taken(self, owner: SeatOwner) -> None:
        """Record that a pod's share has taken a seat, or that one leaves."""
        kept = self.known.get(owner.uid)
        if kept is None:
            return
        kept.taken |= self._ledger.stored_seats.sitting(owner.uid).keys() & set(kept.members)
        self.on_change(kept)

    async def still_wants(self, seat: StoredSeat) -> bool:
        """Return whether a reservation needs a seat that was stored: see SeatStore."""
        kept = self.known.get(seat.owner.uid)
        if kept is not None:
            return not self.is_over(kept) and seat.member in kept.members and seat.member not in self.done(kept)
        try:
            found = await self._store.reservation(seat.owner.namespace, seat.owner.name)
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == seat.owner.uid)

    def done(self, kept: KeptReservation) -> Iterable[str]:
        """Return the members that pods have taken, and for which nothing is to be kept."""
        return kept.taken if kept.found.allocate_once else self._ledger.stored_seats.sitting(kept.found.uid).keys()

    def open(self, kept: KeptReservation) -> list[str]:
        """Return the members for which there is to be a seat, and is none."""
        if kept.problem or self.is_over(kept) or not self.has_begun(kept):
            return []
        there = {*self.done(kept), *self.reserved(kept)}
        return [member for member in kept.members if member not in there]

    def reserved(self, kept: KeptReservation) -> set[str]:
        """Return the members for which there is a seat, though a pod may be about to take it."""
        seats = self._ledger.seats.of_group(kept.found.name)
        own = {seat.key.member for seat in seats if isinstance(seat.key, GroupSeat)}
        return own | self._ledger.stored_seats.members(kept.found.uid)

    def give_up(self, kept: KeptReservation) -> None:
        """Give up the seats that no pod has taken."""
        drop(self._ledger, kept.found.name)

    def all_counted(self) -> list[KeptReservation]:
        """Return the reservations that count."""
        return [each for namespace in self._of_namespace for each in self.counted(namespace)]

    def of_namespace(self, namespace: str) -> Iterable[KeptReservation]:
        """Return a namespace's, whether they count or not."""
        return self._of_namespace.get(namespace, {}).values()


@define(eq=False, slots=False)
class ReservationKeeper(Component):
    """Keeps seats for reservations, in the queue of all who wait."""

    _book: ReservationBook
    _queue: RoomQueue
    _nodes: NodesByRules
    _claims: ClaimBook
    _seat_store: SeatStore

    def __attrs_post_init__(self) -> None:
        self._planner = GroupPlanner(self._ledger, self._chooser, needs_host=True)
        self._attempts = Attempts[KeptReservation](self._clock)
        self._book.on_change.append(self._try_again)
        self._ledger.quotas.on_room.append(self._may_have_more)
        self._queue.add(self)

    def waiting(self) -> list[KeptReservation]:
        """See Groups. Seats on cards that take no pods any more are given up, to be looked for elsewhere."""
        counted = self._book.all_counted()
        for kept in counted:
            for seat in untaken(self._ledger, kept.found.name):
                place, uuids = seat.placement, [share.uuid for share in seat.placement.shares]
                if not self._ledger.node_room(place.node_name).can_give(uuids):
                    self._ledger.seats.give_up(seat.key)
        return [each for each in counted if self._book.open(each)]

    def may_be_tried(self, group: KeptReservation) -> bool:
        """See Groups."""
        return self._book.known.get(group.found.uid) is group and self._attempts.may_be_tried(group, self._state)

    @property
    def _state(self) -> tuple[int, int, int]:
        return self._ledger.changes, self._nodes.changes, self._claims.changes

    async def try_now(self, group: KeptReservation) -> None:
        """See Groups."""
        kept, members = group, self._book.open(group)
        try:
            asking = await self.asking(kept)
            chosen = [each for each in asking if isinstance(each.key, GroupSeat) and each.key.member in members]
            state = self._state
            plan = await run_cooperatively(self._planner.plan(chosen))
        except BadInput as error:
            kept.problem = str(error)
            self._book.on_status(kept)
            return
        except WorkLimitExceeded as error:
            self._failed(kept, self._state, str(error))
            return
        except ApiError as error:  # a PriorityClass is not there, or the API server is not
            kept.why = str(error)
            self._rest(kept, READ_PAUSE_S)
            return
        if self._book.known.get(kept.found.uid) is not kept or self._book.open(kept) != members:
            return
        self._failed(kept, state, self._why(kept, plan))
        if not plan.sketch.places:
            return
        try:
            plan.sketch.commit(FOREVER, Strength.WAITING, kept.found.name, kept.priority or 0)
        except ShareRefused:  # others were faster
            return
        self._tasks.start(self._enter(kept), f"store seats of reservation {kept.found.name}")

    def _rest(self, kept: KeptReservation, pause_s: float) -> None:
        self._attempts.pause(kept, pause_s)
        self._queue.look_again_in(pause_s)
        self._book.on_status(kept)

    def _failed(self, kept: KeptReservation, state: object, why: str) -> None:
        self._attempts.failed(kept, state)
        kept.why = why
        self._book.on_status(kept)

    def _why(self, kept: KeptReservation, plan: Plan) -> str:
        if not plan.lacking:
            return ""
        if plan.exceeded is not None:
            return quota_text(kept.namespace, self._ledger.quotas.excess(kept.namespace, plan.exceeded, 0))
        return f"{plan.lacking} of {kept.found.count} pods find no cards at the moment"

    async def _enter(self, kept: KeptReservation) -> None:
        """Have the API server know of the seats; those that it can't have are looked for again."""
        try:
            await self._seat_store.store(kept.found.name, kept.owner)
        except GpuledgerError as error:
            logger.info("reservation %s: %s", kept.found.name, error)
            self._rest(kept, PAUSE_S)
            stored = set(self._ledger.stored_seats.uids())
            for seat in untaken(self._ledger, kept.found.name):
                if seat.stored_as not in stored:
                    self._ledger.seats.give_up(seat.key)
        self._book.on_status(kept)

    async def asking(self, kept: KeptReservation) -> list[Asking]:
        """Return what its pods ask for. Raises BadInput if they can't be placed, WorkLimitExceeded, and ApiError."""
        change, asking = kept.asking
        if change == self._nodes.changes + self._claims.changes and kept.priority is not None:
            return asking
        change = self._nodes.changes + self._claims.changes
        if not kept.found.pod:
            kept.found = reservation(await self._store.reservation(*kept.found.name[:2]))
        request = self._formats.request(kept.found.pod)
        if request is None:
            raise BadInput("its template asks for no GPU")
        if request.brings_claims:
            raise BadInput("its template names ResourceClaims, for which nothing can be reserved")
        await run_cooperatively(compiled(request))
        if why := why_it_waits([request.shape]):
            raise WorkLimitExceeded(why)
        kept.priority = await self._priority(kept.found.priority_class)
        names = await self._nodes.allowed(pod_rules(kept.found.pod), self._clock)
        asking = [Asking(GroupSeat(kept.found.name, member), request, names) for member in kept.members]
        kept.asking = change, asking
        return asking

    async def _priority(self, name: str) -> int:
        """Return a PriorityClass' value. Raises BadInput for one that is not for users, and ApiError."""
        if not name:
            return 0
        if not OBJECT_NAME.fullmatch(name):
            raise BadInput("its priorityClassName is no name")
        if name.startswith(SYSTEM_CLASSES):
            raise BadInput(f"its priorityClassName {name} is for parts of the cluster")
        try:
            found = await self._store.priority_class(name)
        except NotFound:
            raise NotFound(f"there is no PriorityClass {name}") from None
        return int(found["value"])

    def _may_have_more(self, namespace: str) -> None:
        """Record that a namespace may have more of its quota than before."""
        for kept in self._book.of_namespace(namespace):
            self._attempts.renew(kept)

    def _try_again(self, kept: KeptReservation) -> None:
        self._attempts.renew(kept)
        self._context.room_has_changed.set()


@define(eq=False, slots=False)
class ReservationStatus(Component):
    """Writes how far reservations have come."""

    _book: ReservationBook
    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self.worker = KeyedWorker(self._write_status, AT_ONCE, self._may_write)
        for listeners in (self._book.on_change, self._book.on_status):
            listeners.append(lambda kept: self.worker.mark(kept.found.uid))

    def became_active(self) -> None:
        """See Follower: another operator may have left a status that is not true any more."""
        for uid in self._book.known:
            self.worker.mark(uid)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    async def _write_status(self, uid: str) -> None:
        """Write how far a reservation has come, if that is news. Raises ApiError; it is tried again."""
        kept = self._book.known.get(uid)
        if kept is None:
            return
        found = kept.found
        seats = untaken(self._ledger, found.name)
        nodes = {seat.placement.node_name for seat in seats}
        sitting = self._ledger.stored_seats.sitting(uid)
        entered = self._ledger.stored_seats.members(uid) - sitting.keys()
        # Of nodes whose cards are only counted, nothing can be entered.
        entered |= {seat.key.member for seat in seats if isinstance(seat.key, GroupSeat) and not seat.placement.shares}
        taken = kept.taken if found.allocate_once else sitting.keys()
        phase, why = self._phase(kept, len(taken), set(kept.members) - {*entered, *self._book.done(kept)})
        status = status_of(found, phase, len(entered), taken, nodes, why, rfc3339(self._clock.wall()))
        if status == found.status:
            return
        try:
            patch = status_patch(found, status)
            written = await self._store.patch_reservation_status(*found.name[:2], patch)
        except (Conflict, NotFound):  # it has changed, which the watch shows
            return
        self._book.observe(written, gone=False)

    def _phase(self, kept: KeptReservation, taken: int, missing: Collection[str]) -> tuple[Phase, str]:
        """Return how far it has come, and why no further; `missing` are the members for which nothing is stored."""
        if kept.problem:
            return Phase.REFUSED, kept.problem
        if kept not in self._book.counted(kept.namespace):
            return Phase.REFUSED, TOO_MANY
        if self._book.is_over(kept):
            return Phase.EXPIRED, "its time is over"
        if taken >= len(kept.members):
            return Phase.TAKEN, "all of its pods have come"
        if not self._book.has_begun(kept):
            return Phase.WAITING, f"it begins at {kept.found.not_before}"
        if missing:
            return Phase.WAITING, kept.why or "cards are being looked for"
        return Phase.RESERVED, "cards are kept for its pods"


class Reservations:
    """The parts that deal with GPUReservations."""

    def __init__(
        self,
        context: Context,
        queue: RoomQueue,
        nodes: NodesByRules,
        claims: ClaimBook,
        seats: KeptSeats,
        may_write: Callable[[], bool],
    ) -> None:
        self.book = ReservationBook(context)
        self.keeper = ReservationKeeper(context, self.book, queue, nodes, claims, seats.store)
        self.status = ReservationStatus(context, self.book, may_write)
        seats.takers.finders.append(self.book.seats_for)
        seats.store.ask(SeatFor.RESERVATION, self.book.still_wants)


def _controllers(pod: JsonMapping) -> set[tuple[str, str]]:
    """Return kind and name of the object that has made a pod, and of the Deployment behind it."""
    owners = (each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller"))
    found = {(str(each.get("kind")), str(each.get("name"))) for each in owners}
    made = deployment_of(pod)
    return found | {("Deployment", made.name)} if made is not None else found
