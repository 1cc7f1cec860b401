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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from attrs import define

from gpuledger.formats.custom_resource.reservation import Phase, Reservation, reservation, status_of, status_patch
from gpuledger.formats.kubernetes.constraints import pod_rules
from gpuledger.formats.kubernetes.pod import deployment_of
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BadInput, Conflict, GpuledgerError, NotFound, ShareRefused, WorkLimitExceeded
from gpuledger.model.gang import GroupSeat
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.share import SeatFor, SeatOwner, StoredSeat
from gpuledger.placement.fit import compiled, why_it_waits
from gpuledger.placement.group import Asking, GroupPlanner, Plan
from gpuledger.reports.explanation import quota_text
from gpuledger.workflows.context import Component
from gpuledger.workflows.kept_seats import KeptSeats
from gpuledger.workflows.list_and_watch import skipping_bad_objects
from gpuledger.workflows.pending.queue import Attempts, RoomQueue
from gpuledger.workflows.queues.workloads import NodesByRules
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.tasks import KeyedWorker, run_cooperatively

logger = logging.getLogger(__name__)

MOST_OF_NAMESPACE = 64
"""Reservations of one namespace that count, the oldest first: each is compared with each of its pods that comes."""

AT_ONCE = 4
PAUSE_S = 5.0
"""Before seats are looked for again that could not be written."""

TOO_MANY = f"the namespace has {MOST_OF_NAMESPACE} reservations that are older, and no more count"
SYSTEM_CLASSES = "system-"
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(slots=True, eq=False, weakref_slot=True)
class KeptReservation:
    """A reservation, and what is known of it beside its object."""

    found: Reservation
    members: dict[str, str]
    """Member -> the UID of its seat."""
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
    owner = SeatOwner(SeatFor.RESERVATION, *found.name[:2], found.uid)
    members = {str(number): StoredSeat(owner, str(number), 1).uid for number in range(found.count)}
    return KeptReservation(found, members, set(found.taken), problem=found.problem)


@define(eq=False, slots=False)
class ReservationKeeper(Component):
    """Follows reservations, keeps seats for them, and says how far each has come."""

    _queue: RoomQueue
    _nodes: NodesByRules
    _claims: ClaimBook
    _seats: KeptSeats
    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._known: dict[str, KeptReservation] = {}  # UID -> it
        self._of_namespace: dict[str, dict[str, KeptReservation]] = {}  # namespace -> UID -> it, the oldest first
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UID -> when it begins or ends
        self._planner = GroupPlanner(self._ledger, self._chooser, needs_host=True)
        self._attempts = Attempts[KeptReservation](self._clock)
        self._longest = timedelta(seconds=self._settings.reservation_longest_s)
        self.worker = KeyedWorker(self._write_status, AT_ONCE, self._may_write)
        self._seats.takers.finders.append(self._for)
        self._seats.store.ask(SeatFor.RESERVATION, self._still_wants)
        self._ledger.stored_seats.on_sitting.append(self._is_taken)
        self._ledger.quotas.on_room.append(self._may_have_more)
        self._queue.add(self)

    # What the watch shows.

    def observe(self, object_: Json, gone: bool) -> None:
        """Observe a reservation."""
        if gone:
            self._forget(str(object_["metadata"]["uid"]))
            return
        with skipping_bad_objects("gpureservation", object_, self._counts):
            self._take(reservation(object_))

    def _take(self, now: Reservation) -> None:
        uid, known = now.uid, self._known.get(now.uid)
        if known is not None and known.found.generation == now.generation:
            known.found = now if now.version >= known.found.version else known.found
            known.taken |= now.taken
        else:
            if known is not None:
                self._give_up(known)
            known = self._known[uid] = _kept(now)
            self._list(known)
            self._is_taken(known.owner)
        self._look_when_due(known)

    def listing(self) -> Listed:
        """Note which are known; return what forgets those that are not in the list read since."""
        return forgetting(self._known, self._forget)

    def became_active(self) -> None:
        """See Follower: another operator may have left a status that is not true any more."""
        for uid in self._known:
            self.worker.mark(uid)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def _list(self, kept: KeptReservation) -> None:
        others = {**self._of_namespace.get(kept.namespace, {}), kept.found.uid: kept}
        in_order = sorted(others.items(), key=lambda item: (item[1].found.created, item[0]))
        self._of_namespace[kept.namespace] = dict(in_order)

    def _forget(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        if known is None:
            return
        others = self._of_namespace[known.namespace]
        del others[uid]
        if not others:
            del self._of_namespace[known.namespace]
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        self._give_up(known)
        self._may_have_more(known.namespace)  # there may have been too many
        self._queue.look_again_in()

    def _give_up(self, kept: KeptReservation) -> None:
        for seat in self._ledger.seats.of_group(kept.found.name):
            if isinstance(seat.key, GroupSeat):
                self._ledger.seats.give_up(seat.key)

    # Time.

    def _end(self, kept: KeptReservation) -> datetime | None:
        ends = [kept.found.expires] if kept.found.expires is not None else []
        if self._longest and kept.found.created:
            ends.append(datetime.fromisoformat(kept.found.created) + self._longest)
        return min(ends, default=None)

    def _is_over(self, kept: KeptReservation) -> bool:
        end = self._end(kept)
        return end is not None and self._clock.wall() >= end

    def _has_begun(self, kept: KeptReservation) -> bool:
        return kept.found.not_before is None or self._clock.wall() >= kept.found.not_before

    def _look_when_due(self, kept: KeptReservation) -> None:
        """Look at a reservation now, and again when it begins or ends."""
        uid, now = kept.found.uid, self._clock.wall()
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        due = [time for time in (kept.found.not_before, self._end(kept)) if time is not None and time > now]
        if due:
            self._timers[uid] = self._tasks.after((min(due) - now).total_seconds(), self._look_when_due, kept)
        if self._is_over(kept):
            self._give_up(kept)
        self._context.room_has_changed.set()
        self.worker.mark(uid)

    # Who has come.

    def _for(self, found_pod: JsonMapping) -> list[Seat]:
        """Return the seats that a pod may take: those of the oldest reservation first."""
        metadata = found_pod["metadata"]
        here = self._of_namespace.get(str(metadata.get("namespace")))
        if not here:
            return []
        labels, made_by = metadata.get("labels") or {}, _controllers(found_pod)
        mine = (each for each in self._counted(here) if any(o.owns(labels, made_by) for o in each.found.owners))
        return [seat for each in mine for seat in self._ledger.seats.of_group(each.found.name)]

    def _counted(self, here: dict[str, KeptReservation]) -> list[KeptReservation]:
        return list(here.values())[:MOST_OF_NAMESPACE]

    def _is_taken(self, owner: SeatOwner) -> None:
        """Record that a pod's share has taken a seat, or that one leaves."""
        kept = self._known.get(owner.uid)
        if kept is None:
            return
        kept.taken |= self._ledger.stored_seats.sitting(owner.uid).keys() & kept.members.keys()
        self._context.room_has_changed.set()
        self.worker.mark(owner.uid)

    async def _still_wants(self, seat: StoredSeat) -> bool:
        """Return whether a reservation needs a seat that was stored: see SeatStore."""
        kept = self._known.get(seat.owner.uid)
        if kept is not None:
            return not self._is_over(kept) and seat.member in kept.members and seat.member not in self._done(kept)
        try:
            found = await self._store.reservation(seat.owner.namespace, seat.owner.name)
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == seat.owner.uid)

    def _done(self, kept: KeptReservation) -> Iterable[str]:
        return kept.taken if kept.found.allocate_once else self._ledger.stored_seats.sitting(kept.found.uid).keys()

    def _open(self, kept: KeptReservation) -> list[str]:
        """Return the members for which there is to be a seat, and is none."""
        if kept.problem or self._is_over(kept) or not self._has_begun(kept):
            return []
        done, whose = self._done(kept), self._ledger.stored_seats.whose
        return [member for member, uid in kept.members.items() if member not in done and whose(uid) is None]

    # Room.

    def waiting(self) -> list[KeptReservation]:
        """See Groups. Seats on cards that take no pods any more are given up, to be looked for elsewhere."""
        for kept in self._known.values():
            for seat in self._ledger.seats.of_group(kept.found.name):
                place, uuids = seat.placement, [share.uuid for share in seat.placement.shares]
                if isinstance(seat.key, GroupSeat) and not self._ledger.node_room(place.node_name).can_give(uuids):
                    self._ledger.seats.give_up(seat.key)
        return [each for each in self._known.values() if self._open(each)]

    def may_be_tried(self, group: KeptReservation) -> bool:
        """See Groups."""
        return self._known.get(group.found.uid) is group and self._attempts.may_be_tried(group, self._state)

    @property
    def _state(self) -> tuple[int, int, int]:
        return self._ledger.changes, self._nodes.changes, self._claims.changes

    async def try_now(self, group: KeptReservation) -> None:
        """See Groups."""
        kept, members = group, self._open(group)
        if kept not in self._counted(self._of_namespace[kept.namespace]):
            self._failed(kept, self._state, TOO_MANY)
            return
        try:
            asking = await self._asking(kept)
            chosen = [each for each in asking if isinstance(each.key, GroupSeat) and each.key.member in members]
            state = self._state
            plan = await run_cooperatively(self._planner.plan(chosen))
        except BadInput as error:
            kept.problem = str(error)
            self.worker.mark(kept.found.uid)
            return
        except WorkLimitExceeded as error:
            self._failed(kept, self._state, str(error))
            return
        if self._known.get(kept.found.uid) is not kept or self._open(kept) != members:
            return
        self._failed(kept, state, self._why(kept, plan))
        if not plan.sketch.places:
            return
        try:
            plan.sketch.commit(FOREVER, Strength.WAITING, kept.found.name, kept.priority or 0)
        except ShareRefused:  # others were faster
            return
        self._tasks.start(self._enter(kept), f"store seats of reservation {kept.found.name}")

    def _failed(self, kept: KeptReservation, state: object, why: str) -> None:
        self._attempts.failed(kept, state)
        kept.why = why
        self.worker.mark(kept.found.uid)

    def _why(self, kept: KeptReservation, plan: Plan) -> str:
        if not plan.lacking:
            return ""
        if plan.exceeded is not None:
            return quota_text(kept.namespace, self._ledger.quotas.excess(kept.namespace, plan.exceeded, 0))
        return f"{plan.lacking} of {kept.found.count} pods find no cards at the moment"

    async def _enter(self, kept: KeptReservation) -> None:
        """Have the API server know of the seats; those that it can't have are looked for again."""
        try:
            await self._seats.store.store(kept.found.name, kept.owner)
        except GpuledgerError as error:
            logger.info("reservation %s: %s", kept.found.name, error)
            self._attempts.pause(kept, PAUSE_S)
            self._queue.look_again_in(PAUSE_S)
            stored = set(self._ledger.stored_seats.uids())
            for seat in self._ledger.seats.of_group(kept.found.name):
                if isinstance(seat.key, GroupSeat) and seat.stored_as not in stored:
                    self._ledger.seats.give_up(seat.key)
        self.worker.mark(kept.found.uid)

    async def _asking(self, kept: KeptReservation) -> list[Asking]:
        """Return what its pods ask for. Raises BadInput if they can't be placed; WorkLimitExceeded."""
        change, asking = kept.asking
        if change == self._nodes.changes + self._claims.changes and kept.priority is not None:
            return asking
        change = self._nodes.changes + self._claims.changes
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
        """Return a PriorityClass' value. Raises BadInput where there is none, or it is not for users."""
        if not name:
            return 0
        if not OBJECT_NAME.fullmatch(name):
            raise BadInput("its priorityClassName is no name")
        if name.startswith(SYSTEM_CLASSES):
            raise BadInput(f"its priorityClassName {name} is for parts of the cluster")
        try:
            found = await self._store.priority_class(name)
        except NotFound:
            raise BadInput(f"there is no PriorityClass {name}") from None
        return int(found["value"])

    def _may_have_more(self, namespace: str) -> None:
        """Record that a namespace may have more of its quota than before."""
        for kept in self._of_namespace.get(namespace, {}).values():
            self._attempts.renew(kept)

    # What it says.

    async def _write_status(self, uid: str) -> None:
        """Write how far a reservation has come, if that is news. Raises ApiError; it is tried again."""
        kept = self._known.get(uid)
        if kept is None:
            return
        found, whose = kept.found, self._ledger.stored_seats.whose
        seats = [seat for seat in self._ledger.seats.of_group(found.name) if isinstance(seat.key, GroupSeat)]
        nodes = {seat.placement.node_name for seat in seats}
        sitting = self._ledger.stored_seats.sitting(uid)
        reserved = sum(whose(its) is not None for member, its in kept.members.items() if member not in sitting)
        taken = kept.taken if found.allocate_once else sitting.keys()
        phase, why = self._phase(kept, len(taken))
        status = status_of(found, phase, reserved, taken, nodes, why, rfc3339(self._clock.wall()))
        if status == found.status:
            return
        try:
            patch = status_patch(found, status)
            written = await self._store.patch_reservation_status(*found.name[:2], patch)
        except (Conflict, NotFound):  # it has changed, which the watch shows
            return
        self.observe(written, gone=False)

    def _phase(self, kept: KeptReservation, taken: int) -> tuple[Phase, str]:
        if kept.problem:
            return Phase.REFUSED, kept.problem
        if self._is_over(kept):
            return Phase.EXPIRED, "its time is over"
        if taken >= len(kept.members):
            return Phase.TAKEN, "all of its pods have come"
        if not self._has_begun(kept):
            return Phase.WAITING, f"it begins at {kept.found.not_before}"
        if self._open(kept):
            return Phase.WAITING, kept.why or "cards are being looked for"
        return Phase.RESERVED, "cards are kept for its pods"


def _controllers(pod: JsonMapping) -> set[tuple[str, str]]:
    """Return kind and name of the object that has made a pod, and of the Deployment behind it."""
    owners = (each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller"))
    found = {(str(each.get("kind")), str(each.get("name"))) for each in owners}
    made = deployment_of(pod)
    return found | {("Deployment", made.name)} if made is not None else found
