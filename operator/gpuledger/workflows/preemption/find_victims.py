"""Finds a pod's victims, over all nodes that kube-scheduler would take for it.

PodDisruptionBudgets are read only for the namespaces of pods that would be chosen without them: a budget makes a
choice worse and never better, so a choice whose budgets are all known is the best there is.

Victims that were chosen but not yet observed as terminating are tracked. Half a gang is of no use, and would keep its
cards: a gang of more members than it needs can lose the youngest of them one by one. Of the others none leaves without
the rest; and if they leave, those do, too.

Among equal victims, start times of bound pods decide, and pods that are leaving already come first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attrs import define

from gpuledger.formats.kubernetes.other import budget
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.entry import CardEntry, why_not
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.model.request import PodRequest
from gpuledger.model.share import LOWEST_PRIORITY, HolderState, Placement, Pod, shares_of
from gpuledger.placement.policy import CARD_RANKS, FALLBACK, Preference, StepBudget
from gpuledger.placement.preemption.tenants import NOT_STARTED_S
from gpuledger.placement.preemption.victims import WORK_LIMIT, Cost, Eviction, Question, Tenant, cost_of, together
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import GangState, Members
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.tasks import TURN_S, yield_to_loop


@dataclass(slots=True)
class _Choice:
    priority: int
    chosen: set[str] = field(default_factory=set)
    """UIDs of the chosen victims."""
    evicted: set[str] = field(default_factory=set)
    """UIDs of the victims whose eviction was requested, or is in flight."""


class ChosenVictims:
    """Remembers victims, as long as the preemption that has chosen them lasts."""

    def __init__(self) -> None:
        self._choices: dict[str, _Choice] = {}  # pod UID -> its victims
        self._chosen_by: dict[str, set[str]] = {}  # UID of a victim -> UIDs of the pods for which it is to leave

    def choose(self, pod: Pod, victims: Iterable[str]) -> None:
        """Record that pods are to leave for another one."""
        chosen = self._choices.setdefault(pod.uid, _Choice(pod.priority)).chosen
        for uid in victims:
            chosen.add(uid)
            self._chosen_by.setdefault(uid, set()).add(pod.uid)

    def forget(self, pod_uid: str) -> None:
        """Record that no pod leaves for a pod any more."""
        choice = self._choices.pop(pod_uid, None)
        for uid in choice.chosen if choice else ():
            self._chosen_by[uid].discard(pod_uid)
            if not self._chosen_by[uid]:
                del self._chosen_by[uid]

    def leaves_anyway(self, pod_uid: str, pod: Pod) -> bool:
        """Return whether the pod is already being evicted for another preemptor of at least this priority.

        A preemptor of lower priority loses its reservation, and then the pod is not evicted for it any more.
        """
        choosers = self._chosen_by.get(pod_uid)
        if not choosers:
            return False
        return any(uid != pod.uid and self._choices[uid].priority >= pod.priority for uid in choosers)

    def is_evicted(self, pod_uid: str) -> bool:
        """Return whether a pod was asked to leave, or is being asked, for whomever."""
        return any(pod_uid in choice.evicted for choice in self._choices.values())

    def is_to_be_evicted(self, pod: Pod, victim_uid: str) -> bool:
        """Record that a pod is evicted for another; return False if that was done already, for whomever."""
        if self.is_evicted(victim_uid):
            return False
        self._choices.setdefault(pod.uid, _Choice(pod.priority)).evicted.add(victim_uid)
        return True

    def was_not_evicted(self, pod: Pod, victim_uid: str) -> None:
        """Record that a pod could not be evicted: it can be tried again."""
        if pod.uid in self._choices:
            self._choices[pod.uid].evicted.discard(victim_uid)


@define(eq=False, slots=False)
class EvictedTogether(Component):
    """Looks at gangs as they are now."""

    _members: Members
    _lives: PodLifecycles

    def leave_with(self, pod_uid: str) -> list[Pod]:
        """Return the members of a pod's gang that would have to leave with it; none if it can leave by itself.

        Itself included, and without those that leave already. Members that are being bound are among them.
        """
        state = self._members.of(pod_uid)
        if state is None:
            return []
        there = self._there(state)
        spare = self._spare(state)
        if spare > 0:
            youngest_first = sorted(there, key=lambda pod: self._age(pod.uid), reverse=True)
            spared = {pod.uid for pod in youngest_first[:spare]}
            if pod_uid in spared:
                return []
            there = [pod for pod in there if pod.uid not in spared]
        return there if len(there) > 1 and any(pod.uid == pod_uid for pod in there) else []

    def all_who_leave(self, pod_uids: Collection[str]) -> dict[str, Pod]:
        """Return the rest of each gang that is broken when these pods leave, by UID."""
        found: dict[str, Pod] = {}
        for state in {id(each): each for each in map(self._members.of, pod_uids) if each is not None}.values():
            found |= {pod.uid: pod for pod in self._broken(state, pod_uids)}
        return found

    def rest_of_gang(self, pod_uid: str, leaving: Collection[str]) -> list[Pod]:
        """Return the rest of a pod's gang, if that is broken when it leaves with others, of whatever gangs."""
        state = self._members.of(pod_uid)
        return [] if state is None else self._broken(state, {pod_uid, *leaving})

    def waits_for_its_gang(self, pod_uid: str) -> bool:
        """Return whether a pod waits for others of its gang: room for it alone is of no use."""
        state = self._members.of(pod_uid)
        return state is not None and pod_uid in state.pending and state.missing > 0

    def _broken(self, state: GangState, leaving: Collection[str]) -> list[Pod]:
        """Return the members that stay, if they are too few then."""
        there = self._there(state)
        chosen = sum(pod.uid in leaving for pod in there)
        return [pod for pod in there if pod.uid not in leaving] if chosen > self._spare(state) else []

    def _spare(self, state: GangState) -> int:
        """Return how many members the gang can do without."""
        if state.group is not None and state.group.leaves_whole:
            return 0
        leaving = sum(self._lives.is_leaving(uid) for uid in state.bound)
        return max(0, -state.missing - leaving)

    def _there(self, state: GangState) -> list[Pod]:
        """Return the members that hold cards, and stay."""
        found = []
        for uid in (*state.bound, *state.pending):
            holders = self._ledger.holders.of(uid)
            if holders and holders[0][1].state is HolderState.ALLOCATED and not self._lives.is_leaving(uid):
                found.append(holders[0][1].pod)
        return found

    def _age(self, pod_uid: str) -> tuple[int, str]:
        return self._lives.started_s(pod_uid) or NOT_STARTED_S, pod_uid


logger = logging.getLogger(__name__)


SLOW = 2**32
"""Is added, where costs are compared, to the priority of a pod that may take hours to end: it is asked last."""

ATTEMPTS = 3
"""How often all nodes are looked at, because the one that was chosen has changed meanwhile."""

NODES_AT_ONCE = 8
"""Nodes that are looked at before others have their turn, if it did not take too long before."""


@dataclass(slots=True)
class Budgets:
    """The budgets of some namespaces, as they are now."""

    allowed: dict[str, int] = field(default_factory=dict)
    """Budget -> evictions that it allows."""
    covering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Pod UID -> budgets that cover it."""
    namespaces: set[str] = field(default_factory=set)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Namespace -> the name of a budget that allows nothing, and stands for those that could not be read."""

    async def read(self, reader: KubeStore, namespace: str) -> None:
        """Read the budgets of a namespace. Where they can't be read, all its pods are protected."""
        self.namespaces.add(namespace)
        try:
            await self._read(reader, namespace)
        except (ApiError, BadInput) as error:
            logger.warning(
                "namespace %s: its PodDisruptionBudgets can't be read, so none of its pods is evicted: %s",
                namespace,
                error,
            )
            self.unreadable[namespace] = f"{namespace}/* (these can't be read)"

    def of(self, pod: Pod) -> tuple[str, ...]:
        """Return the names of the budgets that cover a pod."""
        covering, unreadable = self.covering.get(pod.uid, ()), self.unreadable.get(pod.namespace)
        return (*covering, unreadable) if unreadable else covering

    async def _read(self, reader: KubeStore, namespace: str) -> None:
        found = [each async for page in reader.budgets(namespace) for each in map(budget, page)]
        for each in found:
            self.allowed[str(each)] = each.allowed
            if each.selector is None:
                continue
            async for page in reader.selected_pods(namespace, each.selector):
                for pod in page:
                    uid = pod["metadata"]["uid"]
                    self.covering[uid] = (*self.covering.get(uid, ()), str(each))


@dataclass(frozen=True, slots=True)
class Victims:
    """A pod's cards on one node, and who has to leave them."""

    placement: Placement
    pods: tuple[Pod, ...]
    """The pods to evict."""
    cost: Cost
    displaced: tuple[str, ...] = ()
    """UIDs of pods of less priority to which these places are promised; they lose them."""
    protected_by: tuple[str, ...] = ()
    """The budgets that do not allow it."""

    def as_group(self, pod: Pod) -> GroupVictims:
        """Return the same for a pod as a group of one."""
        return GroupVictims(((pod, self),), self.pods, self.cost, self.protected_by, leave_anyway=True)


@dataclass(frozen=True, slots=True)
class GroupVictims:
    """A place for each pod of a group, and who has to leave all of these."""

    rooms: tuple[tuple[Pod, Victims], ...]
    """Each pod's cards, and who leaves these; the first one has those as well that leave no pod's cards."""
    pods: tuple[Pod, ...]
    """All pods to evict, each once."""
    cost: Cost
    protected_by: tuple[str, ...]
    """The budgets that do not allow it."""
    leave_anyway: bool
    """Somebody is on the way out of one of the nodes, or may be."""


async def answered(question: Question, below: Cost | None, work: StepBudget) -> Eviction | None:
    """Return the answer to a question; to a hard one from a thread, so that others are served meanwhile."""
    if question.is_hard:
        return await asyncio.to_thread(question.answer, below, work)
    return question.answer(below, work)


@define(eq=False, slots=False)
class VictimFinder(Component):
    """Looks at the ledger of now."""

    _lives: PodLifecycles
    _mates: EvictedTogether
    _leavers: ChosenVictims
    _stays: Sequence[Callable[[str], bool]]
    """Each takes a pod's UID. If one is true, others decide whether the pod leaves, or it would make no room."""

    async def find(
        self,
        pod: Pod,
        request: PodRequest,
        node_names: Sequence[str],
        leaving: Mapping[str, Collection[str]] | None = None,
        hard: StepBudget | None = None,
    ) -> Victims | None:
        """Return the cheapest victims on any of these nodes, the first among equals; None if none help.

        `leaving` is for kube-scheduler, which evicts by itself: pods, by the name of the node, that it makes leave and
        that cost nothing here. Those that are just being bound can be added to them: it knows these on their nodes, and
        does not ask again once they are seen there. True at the moment of returning. Not all nodes are looked at if
        the `hard` steps, those of pods with several containers, are spent before.
        """
        budgets, attempts = Budgets(), 0
        while attempts < ATTEMPTS:
            found = await self._best(pod, request, node_names, budgets, leaving, hard)
            if found is None:
                return None
            question, best = found
            unread = {victim.namespace for victim in self.pods_of(best.victims)} - budgets.namespaces
            for namespace in unread:
                await budgets.read(self._store, namespace)
            if unread:
                continue
            attempts += 1
            others = _on(best.node_name, leaving)
            now = self._question(pod, request, best.node_name, budgets, others)
            if now is not None and (now == question if now.is_hard else now.answer() == best):
                return self._victims(pod, request, best, budgets, others or ())
        return None  # the node does not stand still; each change of it is a reason to ask again

    def _question(
        self, pod: Pod, request: PodRequest, node_name: str, budgets: Budgets, leaving: Collection[str] | None
    ) -> Question | None:
        """Return the search for one node, None if no pod can leave it; `leaving` leave it anyway."""
        tenants = self.tenants(pod, node_name, budgets, leaving)
        if not (tenants or leaving) or not self._host_takes(request, node_name):
            return None
        room, entries = self._ledger.node_room(node_name), self._ledger.entries_of_node(node_name)
        return Question(request.shape, room, entries, tenants, budgets.allowed, self.preference(request)).kept()

    async def _best(
        self,
        pod: Pod,
        request: PodRequest,
        names: Sequence[str],
        budgets: Budgets,
        leaving: Mapping[str, Collection[str]] | None,
        hard: StepBudget | None,
    ) -> tuple[Question, Eviction] | None:
        """Return the cheapest victims of all nodes, and the question that they answer; None if none help."""
        best: tuple[Question, Eviction] | None = None
        since_s = self._clock.work_s()
        for number, name in enumerate(sorted(names, key=self._ledger.slow.__contains__)):
            if best is not None and name in self._ledger.slow:
                break  # rather than for a node that may be dead, pods are evicted for another one
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1 or self._clock.work_s() > since_s + TURN_S:
                since_s = await yield_to_loop(since_s, self._clock)
            question = self._question(pod, request, name, budgets, _on(name, leaving))
            if question is None:
                continue
            below = best[1].cost if best else None
            work = StepBudget(WORK_LIMIT)
            found = await answered(question, below, work)
            best = (question, found) if found else best
            if question.is_hard and hard is not None and not hard.spend(WORK_LIMIT - work.left):
                break
        return best

    def tenants(
        self, pod: Pod, node_name: str, budgets: Budgets, leaving: Collection[str] | None
    ) -> Mapping[str, Tenant]:
        """Return the pods that could leave a node: those on the way out, and those of lower priority.

        Reservations of lower-priority pods are displaced without an eviction. A pod that is being bound stays, unless
        kube-scheduler asks: an eviction would delete it before it has begun, and it can be considered again soon. A pod
        that should have ended long ago stays.
        """
        tenants: dict[str, Tenant] = {}
        for entry in self._ledger.entries_of_node(node_name):
            for uid, holder in entry.holders.items():
                goes = holder.state is HolderState.RELEASING or uid in (leaving or ()) or self._is_leaving(uid, pod)
                waits = holder.state is HolderState.RESERVED
                if uid == pod.uid or uid in tenants or not (goes or self._has_to_yield(holder.pod, pod)):
                    continue
                may_go = goes or waits or leaving is not None or self._lives.is_bound(uid)
                if not may_go or self._lives.refuses_to_go(uid) or not (goes or self._decides(uid)):
                    continue
                goes = goes or waits
                tenants[uid] = self._tenant(holder.pod, budgets, goes)
            for uid, claim in entry.claims.items():
                if self._has_to_yield(claim.holder.pod, pod):
                    tenants.setdefault(uid, Tenant(uid, claim.holder.pod.priority, leaves=True))
        for uid in [uid for uid, tenant in tenants.items() if not tenant.leaves]:
            self._join_mates(pod, uid, tenants, budgets)
        return tenants

    def _has_to_yield(self, other: Pod, pod: Pod) -> bool:
        """Return whether one pod may have to leave for another: it is of lower priority, or idle and to yield then."""
        return other.priority < pod.priority or other.uid in self._ledger.holders.yielding

    def _tenant(self, pod: Pod, budgets: Budgets, leaves: bool = False) -> Tenant:
        priority = LOWEST_PRIORITY if pod.uid in self._ledger.holders.yielding else pod.priority
        priority += SLOW if self._lives.leaves_slowly(pod.uid) else 0
        return Tenant(pod.uid, priority, self._lives.started_s(pod.uid), budgets.of(pod), leaves)

    def _join_mates(self, pod: Pod, uid: str, tenants: dict[str, Tenant], budgets: Budgets) -> None:
        """Have a pod leave only with the rest of its gang, or stay with it."""
        if uid not in tenants or tenants[uid].pods:
            return
        mates = self._mates.leave_with(uid)
        also = self._mates.all_who_leave([mate.uid for mate in mates]).values()
        if all(self._has_to_yield(mate, pod) and self._could_leave(mate.uid) for mate in (*mates, *also)):
            unit = together([self._tenant(mate, budgets) for mate in mates]) if mates else None
            tenants.update({mate.uid: unit for mate in mates} if unit else {})
        else:
            for mate in mates:
                tenants.pop(mate.uid, None)

    def _is_leaving(self, pod_uid: str, pod: Pod) -> bool:
        return self._lives.is_leaving(pod_uid) or self._leavers.leaves_anyway(pod_uid, pod)

    def _could_leave(self, pod_uid: str) -> bool:
        return self._lives.is_bound(pod_uid) and not self._lives.refuses_to_go(pod_uid) and self._decides(pod_uid)

    def _decides(self, pod_uid: str) -> bool:
        return not any(stays(pod_uid) for stays in self._stays)

    def _host_takes(self, request: PodRequest, node_name: str) -> bool:
        """Return whether CPU and memory are enough for the pod beside others to which room is promised there.

        kube-scheduler has found each of them to fit, alone.
        """
        free = self._ledger.hosts.free(node_name)
        return not self.has_promises(node_name) or free is None or request.host.fits_in(free)

    def has_promises(self, node_name: str) -> bool:
        """Return whether room is promised to pods on a node."""
        entries = self._ledger.entries_of_node(node_name)
        return any(entry.promises or entry.claims or _is_reserved(entry) for entry in entries)

    def preference(self, request: PodRequest) -> Preference:
        """Return how a pod's cards are chosen among those that are free then."""
        wished = self._context.policy.wished(request).cards
        return wished if wished in CARD_RANKS else FALLBACK

    def pods_of(self, victims: Collection[str]) -> list[Pod]:
        """Return the victims that are still there, and the rest of gangs that they break.

        Some may have left while others were looked for.
        """
        pods = {uid: self._ledger.holders.of(uid) for uid in victims}
        found = {uid: holders[0][1].pod for uid, holders in pods.items() if holders}
        return [*found.values(), *self._mates.all_who_leave(found).values()]

    def _victims(
        self, pod: Pod, request: PodRequest, eviction: Eviction, budgets: Budgets, leaving: Collection[str]
    ) -> Victims:
        cards = self._ledger.node_room(eviction.node_name).cards
        placement = Placement(eviction.node_name, shares_of(request, eviction.assignment, cards), request.host)
        victims = self.pods_of(eviction.victims)
        cost = self.cost_of(victims, budgets) if len(victims) > len(eviction.victims) else eviction.cost
        return Victims(
            placement=placement,
            pods=tuple(victims),
            cost=cost,
            displaced=self.displaced(pod, placement, {*eviction.victims, *leaving}),
            protected_by=self.protected_by(victims, budgets) if cost[0] else (),
        )

    def cost_of(self, victims: Collection[Pod], budgets: Budgets) -> Cost:
        """Return the cost of evicting these pods."""
        return cost_of([self._tenant(victim, budgets) for victim in victims], budgets.allowed)

    def protected_by(self, victims: Collection[Pod], budgets: Budgets) -> tuple[str, ...]:
        """Return the budgets that do not allow that all of these leave."""
        named = {name for victim in victims for name in budgets.of(victim)}
        return tuple(sorted(name for name in named if budgets.allowed.get(name, 0) < len(victims)))

    def displaced(self, pod: Pod, placement: Placement, going: Collection[str]) -> tuple[str, ...]:
        """Return the pods whose reservations must be displaced for these shares to fit."""
        displaced: set[str] = set()
        for share in placement.shares:
            entry = self._ledger.entry(share.uuid)
            if entry is None:
                continue
            claimants = {uid for uid, claim in entry.claims.items() if self._has_to_yield(claim.holder.pod, pod)}
            gone = {pod.uid, *going}
            for uid, holder in entry.holders.items():
                if holder.state is HolderState.RESERVED and self._has_to_yield(holder.pod, pod):
                    claimants.add(uid)
                elif holder.state is HolderState.RELEASING or self._is_leaving(uid, pod):
                    gone.add(uid)
            if why_not(share, entry.shares(gone), entry.card.capacity):
                displaced |= claimants
        return tuple(sorted(displaced))


def _on(node_name: str, leaving: Mapping[str, Collection[str]] | None) -> Collection[str] | None:
    """Return kube-scheduler's victims on a node; None if the question is not kube-scheduler's."""
    return None if leaving is None else leaving.get(node_name, ())


def _is_reserved(entry: CardEntry) -> bool:
    return any(holder.state is HolderState.RESERVED for holder in entry.holders.values())
