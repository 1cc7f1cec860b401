"""Kueue's objects in memory: workloads that need the check, their pods, and the nodes that these may go to.

A workload's pods do not exist yet, so kube-scheduler can't be asked about their nodes. Which pods are of a workload,
users can write, and only about workloads of their own namespace. So it decides no more than who gets
what is reserved for the workload, and which pods leave when Kueue evicts it.

Room that is kept for the pods of a workload between its admission and their coming: a seat for each of them. A pod that
comes takes a seat of its set of pods, if kube-scheduler would let it go there. When the first member of a gang comes,
all seats become places that are kept for the gang, which is placed as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from sys import intern
from typing import Any, NamedTuple

import orjson
from attrs import define

from gpuledger.formats.kubernetes.constraints import NodeRules, PodRules, node_rules, pod_rules, refused_by_rules
from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.kubernetes.workload import (
    ClusterQueue,
    Flavor,
    Lender,
    QueueState,
    Usage,
    Workload,
    active_patch,
    cluster_queue,
    cohort,
    flavor,
    is_ours,
    pod_counts,
    pod_sets,
    queue_of,
    queue_state,
    usage,
    with_flavors,
    workload_of,
    workload_text,
)
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.seats import Seat
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import ApiError, BadInput, Conflict, GpuledgerError, NotFound
from gpuledger.model.gang import MOST_MEMBERS, GroupSeat, SeatKey, WorkloadName
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.model.share import SeatFor, SeatOwner
from gpuledger.placement.fit import compiled
from gpuledger.placement.group import Asking, demand_order
from gpuledger.workflows.context import Component, Follower
from gpuledger.workflows.kept_seats import SeatStore, SeatTakers, drop
from gpuledger.workflows.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, COHORTS, FLAVORS, Subscription
from gpuledger.workflows.queues.quota_tree import QuotaTree
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.tasks import in_slices, run_cooperatively, sleep_backoff


def seat_key(name: WorkloadName, pod_set: str, number: int) -> GroupSeat:
    """Return the key of the seat of a workload's pod, by its set of pods and its number in it."""
    return GroupSeat(name, f"{pod_set}/{number}")


def pod_set_of(key: SeatKey) -> str:
    """Return the set of pods of such a seat."""
    return key.member.partition("/")[0] if isinstance(key, GroupSeat) else ""


@define(eq=False, slots=False)
class Reservations(Component):
    """What is kept for workloads between their admission and the coming of their pods."""

    _takers: SeatTakers
    _seat_store: SeatStore

    def __attrs_post_init__(self) -> None:
        self._takers.finders.append(self._for)

    def keys_of(self, name: WorkloadName) -> set[SeatKey]:
        """Return the keys of a workload's seats."""
        return {seat.key for seat in self._ledger.seats.of_group(name)}

    async def store(self, name: WorkloadName, uid: str) -> None:
        """Have the API server know of what is kept for a workload. Raises as `SeatStore.store` does."""
        await self._seat_store.store(name, SeatOwner(SeatFor.WORKLOAD, name.namespace, name.name, uid))

    async def store_or_drop(self, name: WorkloadName, uid: str) -> None:
        """Do the same; where that fails, the workload's pods have to look for cards themselves."""
        try:
            await self.store(name, uid)
        except GpuledgerError as error:
            logger.info("workload %s: %s", name, error)
            self.drop(name)

    def drop(self, name: WorkloadName) -> None:
        """Give up what is kept for a workload. Idempotent."""
        drop(self._ledger, name)

    def extend(self, name: WorkloadName, until_s: float) -> None:
        """Extend the workload's reservation."""
        for seat in self._ledger.seats.of_group(name):
            self._ledger.seats.strengthen(seat.key, seat.strength, until_s)

    def _for(self, found_pod: JsonMapping) -> list[Seat]:
        """Return the seats of a pod's workload that are for pods of its set."""
        named = workload_of(found_pod)
        seats = self._ledger.seats.of_group(named[0]) if named is not None else []
        return [seat for seat in seats if named is not None and pod_set_of(seat.key) == named[1]]


logger = logging.getLogger(__name__)


class Used(NamedTuple):
    """What a workload uses of a ClusterQueue's quota."""

    name: WorkloadName
    queue: str
    amounts: Usage


@define(eq=False, slots=False)
class KueueObjects(Component):
    """Knows AdmissionChecks of ours, ResourceFlavors, ClusterQueues and cohorts, and who uses their quota."""

    def __attrs_post_init__(self) -> None:
        self._checks: dict[
            str, tuple[str, JsonMapping | None]
        ] = {}  # UID of a check of ours -> name, and what to write there
        self._flavors: dict[str, tuple[str, Flavor]] = {}  # UID -> name, and what it adds to pods
        self._queues: dict[str, ClusterQueue] = {}  # UID -> the ClusterQueue
        self._states: dict[str, QueueState] = {}  # UID of a ClusterQueue -> what it says of itself, for people
        self._cohorts: dict[str, Lender] = {}  # UID -> the Cohort
        self._used: dict[str, Used] = {}  # UID of a workload that has quota, and keeps it -> what it uses of it
        self.changes = 0
        """How often a flavor has come, gone, or changed so far."""
        self.quota_changes = 0
        """The same of ClusterQueues, cohorts, and the quota that workloads use."""
        self.on_change = Listeners[[]]()
        """Called when there is a check more, or a flavor, ClusterQueue or cohort says something else."""
        self.on_change.append(self._context.room_has_changed.set)

    @property
    def checks(self) -> list[str]:
        """Return the names of the AdmissionChecks that gpuledger answers."""
        return [name for name, _ in self._checks.values()]

    def flavors(self, names: tuple[str, ...]) -> list[Flavor]:
        """Return those of these flavors that are known."""
        by_name = dict(self._flavors.values())
        return [by_name[name] for name in names if name in by_name]

    def check(self, found: JsonMapping, gone: bool) -> None:
        """Observe an AdmissionCheck."""
        uid = str(found["metadata"]["uid"])
        if gone or not is_ours(found):
            self._checks.pop(uid, None)
            return
        patch = active_patch(found, self._clock.wall().isoformat())
        self._checks[uid] = str(found["metadata"]["name"]), patch
        self.on_change()

    def flavor(self, found: JsonMapping, gone: bool) -> None:
        """Observe a ResourceFlavor."""
        uid = str(found["metadata"]["uid"])
        known = None if gone else (str(found["metadata"]["name"]), flavor(found))
        before = self._flavors.pop(uid, None)
        if known is not None:
            self._flavors[uid] = known
        if known != before:
            self.changes += 1
            self.on_change()

    def queue(self, found: JsonMapping, gone: bool) -> None:
        """Observe a ClusterQueue. One that can't be read takes nothing back, and gives nothing."""
        self._states.pop(str(found["metadata"]["uid"]), None)
        if not gone:
            self._states[str(found["metadata"]["uid"])] = queue_state(found)
        self._observe(self._queues, cluster_queue, found, gone)

    def cohort(self, found: JsonMapping, gone: bool) -> None:
        """Observe a Cohort. One that can't be read has no quota of its own, and no cohort above it."""
        self._observe(self._cohorts, cohort, found, gone)

    def _observe(
        self, known: dict[str, Any], read: Callable[[JsonMapping], Lender], found: JsonMapping, gone: bool
    ) -> None:
        uid = str(found["metadata"]["uid"])
        before = known.pop(uid, None)
        with suppress(BadInput):
            if not gone:
                known[uid] = read(found)
        if known.get(uid) != before:
            self.quota_changes += 1
            self.on_change()

    def queues(self) -> dict[str, ClusterQueue]:
        """Return the ClusterQueues by their names."""
        return {queue.name: queue for queue in self._queues.values()}

    def states(self) -> list[QueueState]:
        """Return what the ClusterQueues say of themselves, by name."""
        return sorted(self._states.values(), key=lambda state: state.name)

    def uses(self, now: Workload, found: JsonMapping, gone: bool) -> None:
        """Observe what a workload uses of its queue's quota: nothing as soon as it is to leave."""
        before = self._used.pop(now.uid, None)
        if now.has_quota and not gone and not now.is_to_leave:
            self._used[now.uid] = used = Used(now.name, now.cluster_queue, {})
            with suppress(BadInput):
                used.amounts.update(usage(found))
        self.quota_changes += self._used.get(now.uid) != before

    def used_by(self, uid: str) -> Usage:
        """Return the quota that a workload uses; nothing if that can't be read."""
        return self._used[uid].amounts if uid in self._used else {}

    def tree(self, without: Collection[WorkloadName]) -> QuotaTree:
        """Return what queues and cohorts have and use, without these workloads."""
        used = ((each.queue, each.amounts) for each in self._used.values() if each.name not in without)
        return QuotaTree(self._queues.values(), self._cohorts.values(), used)

    @property
    def share_fairly(self) -> bool:
        """Return whether Kueue's fair sharing is on."""
        return any(queue.shares_fairly for queue in self._queues.values())

    def listing(self) -> Listed:
        """Note which workloads use quota; return what forgets those that are not in the list read since."""
        return _listing(self._used)

    async def report_active(self, store: KubeStore) -> None:
        """Set the AdmissionCheck's Active condition; without it Kueue admits nothing from its queues."""
        attempt = 0
        while (failed := await self._try_to_report_active(store)) is not None:
            if attempt == 0:
                logger.warning("admission checks can't be said to be active, retrying: %s", failed)
            await sleep_backoff(attempt, failed)
            attempt += 1

    async def _try_to_report_active(self, store: KubeStore) -> ApiError | None:
        failed = None
        for uid, (name, patch) in list(self._checks.items()):
            if patch is None:
                continue
            try:
                await store.patch_admission_check_status(name, patch)
            except (Conflict, NotFound):  # it has changed, which the watch shows
                pass
            except ApiError as error:
                failed = error
                continue
            if self._checks.get(uid) == (name, patch):
                self._checks[uid] = name, None
        return failed

    def subscriptions(self, are_there: asyncio.Event) -> list[Subscription]:
        """Return a follower for each kind; they are read while Kueue is there."""
        return [
            Subscription(ADMISSION_CHECKS, self.check, partial(_listing, self._checks), wanted=are_there),
            Subscription(FLAVORS, self.flavor, partial(_listing, self._flavors), wanted=are_there),
            Subscription(CLUSTER_QUEUES, self.queue, self._listing_queues, wanted=are_there),
            Subscription(COHORTS, self.cohort, partial(_listing, self._cohorts), wanted=are_there),
        ]

    def _listing_queues(self) -> Listed:
        def forget(uid: str) -> None:
            self._queues.pop(uid, None)
            self._states.pop(uid, None)

        return forgetting(self._states, forget)


def _listing(known: dict[str, Any]) -> Listed:
    return forgetting(known, lambda uid: known.pop(uid, None))


MOST_CONDITIONS = 256
"""Of a pod. Users choose how many, and each is compared with each node."""


class NodesByRules(Follower):
    """Knows labels and taints of all nodes, where that is wanted: they take some 4 kB for each node."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._rules: dict[str, NodeRules] = {}
        self._sets = NodeSets()
        self.changes = 0
        """How often a node has come, gone, or changed so far."""

    def observe_node(self, node: Json) -> None:
        """Observe a Node. One that can't be read takes no pods of this kind."""
        if not self._is_wanted:
            return
        name = str(node["metadata"]["name"])
        try:
            found = node_rules(node)
        except BadInput:
            self.forget_node(name)
            return
        labels = {intern(key): intern(value) for key, value in found.labels.items()}
        found = NodeRules(name, labels, found.taints)
        if self._rules.get(name) != found:
            self._rules[name] = found
            self.changes += 1

    def forget_node(self, node_name: str) -> None:
        """Record that a node is gone."""
        self.changes += self._rules.pop(node_name, None) is not None

    async def allowed(self, rules: PodRules, clock: Clock) -> NodeSet:
        """Return the nodes whose labels and taints do not keep such a pod off; others have their turn meanwhile.

        Raises BadInput for more conditions than are looked at.
        """
        if conditions(rules) > MOST_CONDITIONS:
            raise BadInput(f"its affinity, node selector and tolerations have more than {MOST_CONDITIONS} conditions")
        names: list[str] = []

        def look() -> Iterator[None]:
            for name, node in list(self._rules.items()):
                if refused_by_rules(rules, node) is None:
                    names.append(name)
                yield None

        await in_slices(look(), clock)
        return self._sets.of(names)


def conditions(rules: PodRules) -> int:
    """Return how many labels, values and tolerations a node is compared with at most."""
    expressions = [
        each for term in rules.terms or () for each in (*(term.matchExpressions or ()), *(term.matchFields or ()))
    ]
    values = sum(len(each.values or ()) for each in expressions)
    return len(rules.selector) + len(rules.tolerations) + len(expressions) + values


class Stage(Enum):
    """How far a workload is."""

    WAITING = "waiting"
    """Its pods do not find cards at once."""
    READY = "ready"
    """Room is reserved, and the check says so, or is about to."""
    RESUMED = "resumed"
    """The check said so before this operator knew of it: room is to be reserved for the pods that are to come."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class QueuedWorkload:
    """One of them."""

    workload: Workload
    check: str
    """The name of the AdmissionCheck."""
    content: bytes = b"{}"
    """What else matters of it: see `workload_text`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Set of pods -> with how many it was admitted."""
    stage: Stage = Stage.WAITING
    until_s: float = 0.0
    """Until when room is kept for those of its pods that have not come, once its check says Ready."""
    said: str = ""
    """The message that was written last."""
    seats: tuple[int, list[Asking]] = field(default_factory=lambda: (-1, []))
    """The requests of its pods, and the number of the change of nodes up to which they hold."""
    rules: Mapping[str, PodRules] = field(default_factory=dict)
    """Set of pods -> its rules for nodes, as of the same."""
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
        self.content, self.counts = workload_text(found), pod_counts(found)

    @property
    def found(self) -> Json:
        """Return its needed fields beside `workload`, as an object."""
        return dict(orjson.loads(self.content))

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Return its place in the queue of all who wait."""
        return not self.goes_first, -self.workload.priority, self.workload.reserved_at, self.workload.uid

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return self.workload.name.namespace


@define(eq=False, slots=False)
class SeatReader(Component):
    """Reads what the pods of workloads ask for."""

    _objects: KueueObjects
    _nodes: NodesByRules
    _claims: ClaimBook

    @property
    def changes(self) -> int:
        """How often something has changed by which pods may go to other nodes than before, or ask for other cards."""
        return self._nodes.changes + self._objects.changes + self._claims.changes

    async def seats(self, queued: QueuedWorkload, taken: Iterable[str] = ()) -> list[Asking]:
        """Return the request of each pod that needs cards; most of them differ in nothing but their keys.

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

    async def _read(self, queued: QueuedWorkload) -> list[Asking]:
        seats: list[Asking] = []
        rules: dict[str, PodRules] = {}
        for pod_set in pod_sets(queued.found):
            pod = with_flavors(pod_set.pod, self._objects.flavors(pod_set.flavors))
            await self._claims.know_claims_of(pod)
            request = self._formats.request(pod)
            if request is None:
                continue
            await run_cooperatively(compiled(request))
            count = pod_set.count
            if len(seats) + count > MOST_MEMBERS:
                raise BadInput(f"its pods with cards are more than {MOST_MEMBERS}, which are not placed at once")
            rules[pod_set.name] = pod_rules(pod)
            names = await self._nodes.allowed(rules[pod_set.name], self._clock)
            name = queued.workload.name
            seats += [Asking(seat_key(name, pod_set.name, number), request, names) for number in range(max(count, 0))]
        queued.rules = rules
        return seats


def _is_taken(seat: Asking, left: list[str]) -> bool:
    pod_set = pod_set_of(seat.key)
    if pod_set not in left:
        return False
    left.remove(pod_set)
    return True


def hardest_first(seats: Iterable[Asking]) -> list[Asking]:
    """Return pods as a trial takes them: the most demanding first, which then find room most often."""
    return sorted(seats, key=lambda seat: demand_order(seat.request))


class WorkloadPods(Follower):
    """Follows pods, with a node or without."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[WorkloadName, str]] = {}  # pod UID -> its workload, and which of its sets of pods
        self._pods: dict[WorkloadName, dict[str, str]] = {}  # workload -> pod UID -> set of pods
        self._bound: set[str] = set()
        self._queues: dict[str, str] = {}  # UID of a pod without a node -> the queue that it is in

    def of(self, pod_uid: str) -> tuple[WorkloadName, str] | None:
        """Return a pod's workload and set of pods, None if it has none."""
        return self._of.get(pod_uid)

    def is_pending(self, pod_uid: str) -> bool:
        """Return whether a pod is of a workload, and has no node."""
        return pod_uid in self._of and pod_uid not in self._bound

    def queue_of(self, pod_uid: str) -> str:
        """Return which queue a pod without a node is in, for people; empty if it is in none."""
        return self._queues.get(pod_uid, "")

    def pods(self, name: WorkloadName) -> dict[str, str]:
        """Return the pods of a workload, by UID, each with its set of pods."""
        return self._pods.get(name, {})

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See BoundPodTracker."""
        uid = str(pod["metadata"]["uid"])
        self._queues.pop(uid, None)
        if is_finished(pod):
            self.forget_bound(uid, pod)
        elif self._note(pod):
            self._bound.add(uid)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See BoundPodTracker."""
        self._bound.discard(pod_uid)
        self._forget(pod_uid)

    def known_bound(self) -> set[str]:
        """See BoundPodTracker."""
        return self._bound

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        self._note(pod)
        if queue := queue_of(pod):
            self._queues[str(pod["metadata"]["uid"])] = queue

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._queues.pop(pod_uid, None)
        if pod_uid not in self._bound:
            self._forget(pod_uid)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return (self._of.keys() - self._bound) | self._queues.keys()

    def _note(self, pod: Json) -> bool:
        uid, named = str(pod["metadata"]["uid"]), workload_of(pod)
        if named == self._of.get(uid):
            return named is not None
        self._forget(uid)
        if named is None:
            return False
        self._of[uid] = named
        self._pods.setdefault(named[0], {})[uid] = named[1]
        return True

    def _forget(self, pod_uid: str) -> None:
        named = self._of.pop(pod_uid, None)
        if named is None:
            return
        pods = self._pods[named[0]]
        del pods[pod_uid]
        if not pods:
            del self._pods[named[0]]
