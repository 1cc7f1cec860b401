"""Who waits and may want more nodes, as `placement/growth.py` takes it, and the nodes that can be added.

Pods that no scheduler has asked about count, too: kube-scheduler asks about none where its own rules leave no node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from attrs import define

from gpuledger.configuration.node_templates import NewNodes
from gpuledger.formats.kubernetes.constraints import PodRules, pod_rules, refused_by_rules
from gpuledger.formats.kubernetes.pod import created_at, pod_identity
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, BadInput, WorkLimitExceeded
from gpuledger.model.gang import GangName, GroupSeat, ReservationName, WorkloadName
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.placement.group import Asking
from gpuledger.placement.growth import Seeker, Seekers, Why
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import GangState, Members
from gpuledger.workflows.growth.templates import Templates, rules_of
from gpuledger.workflows.lifecycles import unix_s
from gpuledger.workflows.pending.queue import Order
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.workloads import NodesByRules, QueuedWorkload, SeatReader, Stage, pod_set_of
from gpuledger.workflows.reservations import KeptReservation, Reservations
from gpuledger.workflows.tasks import TURN_S, in_slices, yield_to_loop

RECENT_S = 60.0
"""A node that has come since kube-scheduler was asked about a pod is not among those that it has named."""

RULES_KEPT, LONGEST_RULES = 1_024, 16_384
"""How many rules for nodes are known at a time, and how long those of a pod may be, in bytes: users write them."""

MOST_PODS = 1_000
"""For so many pods nodes are looked for at a time; the others have their turn when these have some."""

UNREAD_KEPT, UNREAD_S = 256, 5.0
"""Pods whose ResourceClaims are not known yet: how many are kept, and how often they are tried again."""

NOWHERE: frozenset[str] = frozenset()


def gang_seekers(name: GangName) -> str:
    """Return the name of a gang among those who seek room; that of a pod is its UID."""
    return f"gang {name}"


def workload_seekers(name: WorkloadName) -> str:
    """Return the same of a workload of Kueue."""
    return f"workload {name}"


def reservation_seekers(name: ReservationName, member: str) -> str:
    """Return the same of a pod for which a reservation keeps nothing yet."""
    return f"reservation {name} {member}"


@dataclass(frozen=True, slots=True)
class _Pending:
    pod: Pod
    request: PodRequest
    rules: PodRules
    created: str
    since_s: float
    """Since when it has waited, by the operator's clock, as far as that matters."""

    @property
    def order(self) -> Order:
        return True, -self.pod.priority, self.created, self.pod.uid


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Who may seek room: a pod, a gang, or a workload or a pod of a reservation, which do not exist yet."""

    order: Order
    name: str
    pods: Sequence[_Pending] = ()
    is_gang: bool = False
    queued: QueuedWorkload | None = None
    kept: KeptReservation | None = None
    member: str = ""
    """Of the reservation."""


class WhoWaits(NamedTuple):
    """The parts that know who waits, beside Kueue's queues."""

    pods: WaitingPods
    gangs: Members
    reservations: Reservations


@dataclass(frozen=True, slots=True)
class Seeking:
    """Who waits, in their order, and a pod of each that can be told something."""

    seekers: tuple[Seekers, ...]
    pods: Mapping[str, Pod]
    """Name of seekers -> one of their pods; workloads have none yet."""
    next_s: float | None
    """In how many seconds another one will have waited long enough, None if none does."""


@define(eq=False, slots=False)
class Demand(Component):
    """Follows the pods that wait, where the settings want growth; else it knows and costs nothing."""

    _who: WhoWaits
    _check: CardCheck
    _reader: SeatReader
    _nodes: NodesByRules
    _templates: Templates

    def __attrs_post_init__(self) -> None:
        self._is_on = self._settings.growth != "none"
        self._waiting, self._members, self._reservations = self._who
        self._pods: dict[str, _Pending] = {}  # UID -> pod without a node that asks for cards
        self._rules: BoundedMap[bytes, PodRules] = BoundedMap(RULES_KEPT)  # equal ones are the same object
        self._unread: BoundedMap[str, Json] = BoundedMap(UNREAD_KEPT)  # UID -> pod whose claims may not be known yet
        self._came_s: dict[str, float] = {}  # name of a node -> when it was seen first
        self.pods_of_seekers: Mapping[str, Pod] = {}
        """Name of those that waited at the last look -> one of their pods."""

    def __len__(self) -> int:
        return len(self._pods)

    def observe_pending(self, pod: Json) -> None:
        """See Follower."""
        if not self._is_on:
            return
        uid = str(pod["metadata"]["uid"])
        self._unread.drop(uid)
        request: PodRequest | None = None
        rules: PodRules | None = None
        try:
            request = None if pod["spec"].get("schedulingGates") else self._formats.request(pod)
            rules = self._rules_of(pod) if request is not None and request.shape and not request.joined else None
        except BadInput:
            if has_claims(pod):
                self._unread.note(uid, pod)
        if request is None or rules is None:
            self._pods.pop(uid, None)
            return
        before, created = self._pods.get(uid), created_at(pod)
        since_s = before.since_s if before else self._clock.now_s() - self._age_s(created)
        self._pods[uid] = _Pending(pod_identity(pod), request, rules, created, since_s)

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        self._pods.pop(pod_uid, None)
        self._unread.drop(pod_uid)

    def known_pending(self) -> set[str]:
        """See Follower."""
        return self._pods.keys() | self._unread.keys()

    def _age_s(self, created: str) -> float:
        """Return for how long a pod has waited when it is seen first, `growth_delay_s` at most."""
        age_s = self._clock.wall().timestamp() - unix_s(created) if created else 0.0
        return min(max(age_s, 0.0), self._settings.growth_delay_s)

    def observe_node(self, node: Json) -> None:
        """See Follower."""
        if self._is_on:
            self._came_s.setdefault(str(node["metadata"]["name"]), self._clock.now_s())

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        self._came_s.pop(node_name, None)

    def gang_of(self, pod_uid: str) -> str:
        """Return the name of a pod's gang among those who seek room, empty if it has none."""
        state = self._members.of(pod_uid)
        return gang_seekers(state.name) if state else ""

    def waits_since_s(self, pod_uid: str) -> float:
        """Return since when a pod waits, by the operator's clock; long ago for one that is not known."""
        return self._pods[pod_uid].since_s if pod_uid in self._pods else float("-inf")

    def pod_of(self, seekers: str) -> Pod | None:
        """Return a pod of those that still wait."""
        pod = self.pods_of_seekers.get(seekers)
        return pod if pod is not None and pod.uid in self._pods else None

    def _long_empty(self, template: str) -> list[str]:
        return [name for name in self._templates.empty(template) if not self.is_recent(name)]

    def is_recent(self, node_name: str) -> bool:
        """Return whether kube-scheduler may not have known a node when it was asked about pods that wait."""
        return self._clock.now_s() < self._came_s.get(node_name, 0.0) + RECENT_S

    def _rules_of(self, pod: Json) -> PodRules | None:
        """Return a pod's rules for nodes, None for rules that are too long to be compared. Raises BadInput."""
        spec = pod.get("spec") or {}
        said = [spec.get(name) for name in ("nodeSelector", "tolerations")]
        key = orjson.dumps([*said, (spec.get("affinity") or {}).get("nodeAffinity")])
        if len(key) > LONGEST_RULES:
            return None
        if key not in self._rules:
            self._rules.note(key, pod_rules(pod))
        return self._rules[key]

    async def seeking(self, templates: Collection[NewNodes]) -> Seeking:
        """Return who has waited long enough, in their order, and whether they may go to nodes of these templates."""
        for pod in list(self._unread.values()):
            self.observe_pending(pod)
        due: list[float] = [UNREAD_S] * bool(self._unread)
        candidates: list[_Candidate] = []
        await in_slices(self._find(candidates, due), self._clock)
        places = _Places(self, templates, {each.name: self._long_empty(each.name) for each in templates})
        found: list[Seekers] = []
        left, since_s = MOST_PODS, self._clock.work_s()
        for each in sorted(candidates, key=lambda candidate: candidate.order):
            seekers = await self._seekers(each, places)
            if seekers is not None:
                found.append(seekers)
                left -= len(seekers.pods)
            if left <= 0:
                break
            if self._clock.work_s() > since_s + TURN_S:
                since_s = await yield_to_loop(since_s, self._clock)
        pods = {each.name: each.pods[0].pod for each in candidates if each.pods}
        return Seeking(tuple(found), pods, min(due, default=None))

    def _find(self, candidates: list[_Candidate], due: list[float]) -> Iterator[None]:
        """Collect who may seek room, and in how many seconds others may; others have their turn between two steps."""
        now_s, delay_s = self._clock.now_s(), self._settings.growth_delay_s
        for each in list(self._pods.values()):
            uid, wait_s = each.pod.uid, each.since_s + delay_s - now_s
            state = self._members.of(uid)
            if (state is not None and state.missing > 0) or self._ledger.has_place(uid):
                continue
            if wait_s > 0:
                due.append(wait_s)
            elif self._waiting.limit_of(uid) is None:
                candidates.append(_Candidate(each.order, uid, [each]))
            yield None
        for state in list(self._members.waiting()):
            members = self._missing(state)
            wait_s = max((each.since_s for each in members), default=now_s) + delay_s - now_s
            if members and wait_s > 0:
                due.append(wait_s)
            elif members:
                candidates.append(_Candidate(state.order, gang_seekers(state.name), members, is_gang=True))
            yield None
        for queued in self._check.waiting():
            if queued.stage is Stage.WAITING:
                candidates.append(_Candidate(queued.order, workload_seekers(queued.workload.name), queued=queued))
            yield None
        for kept in self._reservations.book.all_counted():
            candidates += self._of_open_members(kept)
            yield None

    def _of_open_members(self, kept: KeptReservation) -> Iterator[_Candidate]:
        """Yield the pods for which a reservation is to keep cards, and keeps none.

        Only where nodes in use are kept: an autoscaler would remove a node without pods, and bring it again and again.
        """
        if not self._settings.keep_nodes_in_use:
            return
        for member in self._reservations.book.open(kept):
            yield _Candidate(kept.order, reservation_seekers(kept.found.name, member), kept=kept, member=member)

    async def _seekers(self, candidate: _Candidate, places: _Places) -> Seekers | None:
        """Return a candidate with the nodes to which its pods can go; None if that is not known."""
        if candidate.queued is not None:
            try:
                seats = await self._reader.seats(candidate.queued)
            except (BadInput, WorkLimitExceeded):  # its check says why
                return None
            rules = candidate.queued.rules
            found = [places.seeker_of(seat, rules.get(pod_set_of(seat.key))) for seat in seats]
            return Seekers(candidate.name, tuple(found), is_gang=True) if found else None
        if candidate.kept is not None:
            return await self._of_reservation(candidate.kept, candidate, places)
        pods = [await places.seeker(each, self._offered(each.pod.uid)) for each in candidate.pods]
        return Seekers(candidate.name, tuple(pods), candidate.is_gang)

    async def _of_reservation(self, kept: KeptReservation, candidate: _Candidate, places: _Places) -> Seekers | None:
        try:
            asking = await self._reservations.keeper.asking(kept)
            rules = self._rules_of(kept.found.pod)
        except (ApiError, BadInput, WorkLimitExceeded):  # its status says why
            return None
        mine = [each for each in asking if isinstance(each.key, GroupSeat) and each.key.member == candidate.member]
        return Seekers(candidate.name, (places.seeker_of(mine[0], rules),)) if mine and rules is not None else None

    def _offered(self, pod_uid: str) -> NodeSet | None:
        """Return the nodes that kube-scheduler would take for a pod; None if it has not said."""
        state, waiting = self._members.of(pod_uid), self._waiting.find(pod_uid)
        member = state.pending.get(pod_uid) if state else None
        return waiting.node_names if waiting else member.node_names if member else None

    def _missing(self, state: GangState) -> list[_Pending]:
        """Return the members for which a complete gang lacks room."""
        if state.problem or len(state.pending) < state.missing:
            return []
        without = [uid for uid in state.pending if not self._ledger.has_place(uid)]
        lacking = state.missing - (len(state.pending) - len(without))
        known = [self._pods[uid] for uid in without if uid in self._pods]
        return known[:lacking] if 0 < lacking <= len(known) else []

    async def allowed(self, rules: PodRules) -> NodeSet:
        """Return the nodes to which such pods can go by their rules. Raises BadInput for too many of them."""
        return await self._nodes.allowed(rules, self._clock)


class _Places:
    """To which nodes pods can go, in one search: equal sets are one object."""

    def __init__(self, demand: Demand, templates: Iterable[NewNodes], empty: Mapping[str, Sequence[str]]) -> None:
        """`empty`: template -> its nodes that have been there for a while, and nobody uses."""
        self._demand, self._empty = demand, empty
        self._templates = [(each.name, rules_of(each)) for each in templates]
        # The same identities -> template -> why it is of no use
        self._barred: dict[tuple[int, int], dict[str, Why]] = {}
        self._allowed: dict[tuple[int, int], Collection[str]] = {}  # identities of rules and of what was offered
        self._kept: list[object] = []  # whose identities are keys here

    async def seeker(self, pending: _Pending, offered: NodeSet | None) -> Seeker:
        """Return a pod; `offered` are the nodes that kube-scheduler would take, None if it has not said."""
        key = id(pending.rules), id(offered)
        if key not in self._allowed:
            self._kept += [pending.rules, offered]
            self._allowed[key] = await self._names(pending.rules, offered)
        why_not = self._why_not(pending.rules, offered)
        return Seeker(Asking(pending.pod.uid, pending.request, self._allowed[key]), why_not)

    async def _names(self, rules: PodRules, offered: NodeSet | None) -> Collection[str]:
        try:
            by_rules = await self._demand.allowed(rules)
        except BadInput:  # more of them than are looked at
            return offered or NOWHERE
        if offered is None:
            return by_rules
        return frozenset(name for name in by_rules if name in offered or self._demand.is_recent(name))

    def seeker_of(self, seat: Asking, rules: PodRules | None) -> Seeker:
        """Return a pod of a workload."""
        return Seeker(seat, self._why_not(rules, None) if rules is not None else {})

    def _why_not(self, rules: PodRules, offered: NodeSet | None) -> Mapping[str, Why]:
        key = id(rules), id(offered)
        if key not in self._barred:
            self._kept += [rules, offered]
            found = (
                (name, refused_by_rules(rules, node) or self._not_even_empty(name, offered))
                for name, node in self._templates
            )
            self._barred[key] = {name: why for name, why in found if why is not None}
        return self._barred[key]

    def _not_even_empty(self, template: str, offered: NodeSet | None) -> Why | None:
        """Return why kube-scheduler would not take a node of a template: it takes none of those that are empty.

        It has more rules than are evaluated here, and sees the CPU that others take. Without this, one node after the
        other would be asked for.
        """
        empty = self._empty.get(template, ())
        if offered is None or not empty or any(name in offered for name in empty):
            return None
        many = "one is" if len(empty) == 1 else f"{len(empty)} are"
        return "kube-scheduler", f"kube-scheduler takes the pod on no such node, although {many} empty"
