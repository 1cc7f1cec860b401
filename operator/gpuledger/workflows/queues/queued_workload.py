"""A workload that has quota and needs the check: what its pods ask for, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import orjson

from gpuledger.formats.kubernetes.constraints import pod_rules
from gpuledger.formats.kubernetes.workload import Workload, picked, pod_counts, pod_sets, with_flavors
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.placement.group import Asking, demand_order
from gpuledger.placement.selectors import compiled
from gpuledger.workflows.queues.kueue_objects import KueueObjects
from gpuledger.workflows.queues.nodes_by_rules import NodesByRules
from gpuledger.workflows.queues.reservations import SEAT, Seat
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.tasks.pauses import run_cooperatively

EMPTY = (-1, -1)


class Stage(Enum):
    """How far a workload is."""

    WAITING = "waiting"
    """Its pods do not find cards at once."""
    READY = "ready"
    """Room is reserved, and the check says so, or is about to."""
    RESUMED = "resumed"
    """The check said so before this operator knew of it: room is to be reserved for the pods that are to come."""


@dataclass(slots=True)
class QueuedWorkload:
    """One of them."""

    workload: Workload
    check: str
    """The name of the AdmissionCheck."""
    content: bytes = b"{}"
    """What else matters of it: see `picked`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Set of pods -> with how many it was admitted."""
    stage: Stage = Stage.WAITING
    until_s: float = 0.0
    """For how long room is reserved for it, where it is `RESUMED`."""
    tried: tuple[int, int] = EMPTY
    """Up to which change of the ledger, and of nodes, it has found no room."""
    said: str = ""
    """The message that was written last."""
    again_s: float = 0.0
    """Before then it is not tried again: Kueue did not take what was said of it."""
    seats: tuple[int, list[Seat]] = field(default_factory=lambda: (-1, []))
    """What its pods ask for, and up to which change of nodes that holds."""
    goes_first: bool = False
    """Whether others were evicted for it: what they leave is not for who comes before it."""

    def take(self, now: Workload) -> bool:
        """Take over how the workload is now; return whether it was not known to be later than that."""
        if int(now.version) < int(self.workload.version):
            return False
        self.workload = now
        return True

    def note(self, found: Json) -> None:
        """Note what else matters of it."""
        self.content, self.counts = picked(found), pod_counts(found)

    @property
    def found(self) -> Json:
        """Return what matters of it beside `workload`, as an object."""
        return dict(orjson.loads(self.content))

    @property
    def rank(self) -> tuple[bool, int, str, str]:
        """Sort key: who goes first."""
        return not self.goes_first, -self.workload.priority, self.workload.reserved_at, self.workload.uid

    def pod(self, key: str) -> Pod:
        """Return who stands for one of its pods that does not exist yet."""
        name = self.workload.name
        return Pod(key, name.namespace, name.name, self.workload.priority, 0)


class SeatReader:
    """Reads what the pods of workloads ask for."""

    def __init__(
        self,
        read_request: Callable[[Json], PodRequest | None],
        objects: KueueObjects,
        nodes: NodesByRules,
        claims: ClaimBook,
        clock: Clock,
    ) -> None:
        self._claims = claims
        self._read_request = read_request
        self._objects = objects
        self._nodes = nodes
        self._clock = clock

    @property
    def changes(self) -> int:
        """How often something has changed by which pods may go to other nodes than before, or ask for other cards."""
        return self._nodes.changes + self._objects.changes + self._claims.changes

    async def seats(self, queued: QueuedWorkload, taken: Iterable[str] = ()) -> list[Seat]:
        """Return what each of the pods asks for that need cards, the most of which differ in nothing but their keys.

        `taken` names the set of each pod that has its cards already. Raises BadInput for pods that can't be placed, and
        WorkLimitExceeded if their namespace has to wait for its selectors.
        """
        change, seats = queued.seats
        if change != self.changes:
            change = self.changes
            seats = await self._read(queued)
            queued.seats = change, seats
        left = list(taken)
        return [seat for seat in seats if not _is_taken(seat, left)]

    async def _read(self, queued: QueuedWorkload) -> list[Seat]:
        seats: list[Seat] = []
        for pod_set in pod_sets(queued.found):
            pod = with_flavors(pod_set.pod, self._objects.flavors(pod_set.flavors))
            await self._claims.know_claims_of(pod)
            request = self._read_request(pod)
            if request is None:
                continue
            await run_cooperatively(compiled(request))
            count = pod_set.count
            if len(seats) + count > MOST_MEMBERS:
                raise BadInput(f"its pods with cards are more than {MOST_MEMBERS}, which are not placed at once")
            names = await self._nodes.allowed(pod_rules(pod), self._clock)
            key = f"{queued.workload.uid}/{pod_set.name}"
            seats += [Seat(f"{key}/{number}{SEAT}", pod_set.name, request, names) for number in range(max(count, 0))]
        return seats


def _is_taken(seat: Seat, left: list[str]) -> bool:
    if seat.pod_set not in left:
        return False
    left.remove(seat.pod_set)
    return True


def asking(queued: QueuedWorkload, seats: Iterable[Seat]) -> list[Asking]:
    """Return the pods of seats as a trial takes them: the most demanding first, which then find room most often."""
    hardest_first = sorted(seats, key=lambda seat: demand_order(seat.request))
    return [Asking(queued.pod(seat.key), seat.request, seat.node_names) for seat in hardest_first]
