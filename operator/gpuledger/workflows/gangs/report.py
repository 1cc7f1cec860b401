"""Reports on gangs: their state, how many members would find cards at once, and what has happened to them.

The answers come from the ledger of now. A trial looks for room and keeps nothing; nothing is read or written. What
happens is a record each, and numbers for metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.formats.kubernetes.gang import described
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import NotFound
from gpuledger.model.gang import MOST_MEMBERS, GangName, GangStage, GatherEnd
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.model.request import Shape
from gpuledger.placement.group import Asking, Trial, demand_order
from gpuledger.reports.cards import RecordKind
from gpuledger.reports.explanation import NodeReason, demand_text, quota_text
from gpuledger.reports.gang import GangReport, GangTurn, Lacking, MemberState, gang_summary
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.tasks import in_slices

REUSED_S = 10.0
"""How long what was found for a gang counts for the conditions of its members."""

KEPT = 64
"""Gangs of which it is remembered."""


@dataclass(frozen=True, slots=True)
class GangView:
    """A gang at one moment."""

    state: GangState
    stage: GangStage
    on_hold: Mapping[str, str]
    """UID of each member for which cards are kept -> their node."""
    standing: int
    """How many members stand in Bind."""
    turn: GangTurn | None
    """Of the gang that is tried alone, or goes first: this one or another."""
    overtaken_by: int
    """How many gangs have started that came after it."""
    pause_s: float
    """For how many seconds it is not tried."""
    kept_places: int
    """How many places of members that are gone are kept for its next ones."""
    trial: Trial
    over_quota: str = ""
    """How far its namespace is with its quota, if that is why the gang waits."""
    asked: tuple[Member, ...] = field(default=())
    """The members that were tried: those without cards that have to start together."""

    @property
    def missing(self) -> int:
        """Return how many more have to be bound that ask for GPUs."""
        state = self.state
        return state.missing if not state.problem else max(state.minimum - len(state.bound), 0)

    @property
    def fits(self) -> int:
        """Return how many of the members that are missing have cards on hold, or find some at once."""
        return len(self.on_hold) + len(self.trial.placed)

    @property
    def nodes(self) -> Counter[str]:
        """Return on which nodes the members that have no cards yet would find some, and how many on each."""
        return self.trial.nodes()

    @property
    def lacking(self) -> tuple[Lacking, ...]:
        """Return the demands of the members that find no room."""
        demands = Counter[tuple[str, int]]()
        for left in self.trial.left:
            for demand in left.request.shape:
                demands[demand_text(demand), demand.cards] += 1
        return tuple(Lacking(text, number, number * cards) for (text, cards), number in demands.most_common())

    @property
    def summary(self) -> str:
        """Return it in a sentence, without the names of other gangs."""
        state = self.state
        if self.over_quota and self.stage is GangStage.WAITING:
            return f"gang {state.name.name}: {self.over_quota}"
        return gang_summary(
            name=state.name.name,
            stage=self.stage,
            minimum=state.minimum,
            missing=self.missing,
            running=len(state.bound),
            pause_s=self.pause_s,
            on_hold=len(self.on_hold),
            there=len(state.pending),
            standing=self.standing,
            fits=self.fits,
            nodes=self.nodes,
            lacking=self.lacking,
            cut_short=self.trial.is_cut_short,
            problem=state.problem,
        )


@define(eq=False, slots=False)
class GangTrials(Component):
    """Looks at gangs. Takes work in slices, changes nothing, and is asked by people alone."""

    _gangs: Gangs

    def __attrs_post_init__(self) -> None:
        self._members, self._kept_places = self._gangs.members, self._gangs.kept_places
        self._node_sets = NodeSets()
        self._found: BoundedMap[GangName, tuple[float, GangView]] = BoundedMap(
            KEPT
        )  # gang -> when it was seen, and how

    def member(self, pod_uid: str) -> Member | None:
        """Return a member that waits; None if the pod is none."""
        state = self._members.of(pod_uid)
        return state.pending.get(pod_uid) if state else None

    def offered(self, member: Member) -> NodeSet | None:
        """Return the nodes that kube-scheduler would take for a member; None if it has not asked yet."""
        return None if member.node_names is None else self._node_sets.of(member.node_names)

    async def view_of(self, pod_uid: str, of_now: bool = True) -> GangView | None:
        """Return the gang for which a pod waits; None if it waits for none. It may be a few seconds old if it may."""
        state = self._members.of(pod_uid)
        if state is None or pod_uid not in state.pending or state.missing <= 0:
            return None
        found = self._found.get(state.name)
        if of_now or found is None or found[0] < self._clock.now_s() - REUSED_S or found[1].state is not state:
            found = (self._clock.now_s(), await self.view(state))
            self._found.note(state.name, found)
        return found[1]

    async def view(self, state: GangState) -> GangView:
        """Return a gang as it is now."""
        holds = ((uid, self._ledger.seats.of(uid)) for uid in state.pending)
        on_hold = {uid: hold.placement.node_name for uid, hold in holds if hold}
        without = [member for uid, member in state.pending.items() if uid not in on_hold]
        need = min(max(state.missing - len(on_hold), 0), MOST_MEMBERS)
        asked = tuple(sorted(without, key=lambda member: (member.since, member.pod.name))[:need])
        in_order = sorted(asked, key=lambda member: demand_order(member.request))
        asking = [Asking(member.pod.uid, member.request, self.offered(member)) for member in in_order]
        kept = self._kept_places.kept_for(state.name)
        trial = Trial(self._ledger, [place.key for place in kept])
        await in_slices(trial.steps(asking), self._clock)
        return GangView(
            state=state,
            stage=self.stage(state),
            on_hold=on_hold,
            standing=self._gangs.binder.standing(state.name),
            turn=self._turn(state),
            overtaken_by=self._gangs.precedence.overtaken_by(state),
            pause_s=self._gangs.pauses.left_s(state, self._clock.now_s()),
            kept_places=len(kept),
            trial=trial,
            over_quota=self._over_quota(state),
            asked=asked,
        )

    def stage(self, state: GangState) -> GangStage:
        """Return how far a gang has come."""
        if state.missing <= 0:
            return GangStage.RUNNING
        if self._gangs.binder.standing(state.name):
            return GangStage.GATHERING
        if len(state.pending) < state.missing:
            return GangStage.INCOMPLETE
        if sum(self._ledger.seats.of(uid) is not None for uid in state.pending) >= state.missing:
            return GangStage.ROOM_FOUND
        turn = self._turn(state)
        if turn is None or turn.name == state.name:
            return GangStage.WAITING
        return GangStage.HELD_BACK if turn.is_precedence else GangStage.OTHERS_TURN

    def _over_quota(self, state: GangState) -> str:
        limit, name = self._gangs.plans.exceeded(state), state.name
        return quota_text(name.namespace, limit, self._ledger.quotas.used(name.namespace, limit)) if limit else ""

    def _turn(self, state: GangState) -> GangTurn | None:
        """Return the turn that holds a gang back, or its own."""
        precedence, now_s = self._gangs.precedence, self._clock.now_s()
        turn = self._gangs.turn_of(state.name)
        if turn is not None:
            return GangTurn(turn.name, turn.ends_s - now_s)
        first = precedence.turn_of(state.name) or precedence.holding_back(state)
        return None if first is None else GangTurn(first.name, first.ends_s - now_s, is_precedence=True)


MEMBERS_NAMED = 256
"""In a report; others are counted."""


class NodeReasons(Protocol):
    """Knows why nodes do not take a pod."""

    async def nodes_beside(
        self, uid: str, shape: Shape, offered: Collection[str] | None, trial: Trial
    ) -> list[NodeReason]:
        """Return why nodes do not take a pod beside those of a trial, the nearest first."""


@define(eq=False, slots=False)
class GangReporter(Component):
    """Explains gangs. Like a pod's explanation, it is made in slices: kube-scheduler's questions go first."""

    _members: Members
    _trials: GangTrials
    _reasons: NodeReasons

    async def explain(self, namespace: str, name: str) -> GangReport:
        """Return all that there is to say of a gang. Raises NotFound if it has no pod."""
        state = self._members.named(namespace, name)
        if state is None:
            raise NotFound(f"no pod of namespace {namespace} is of a gang {name!r}", 404)
        view = await self._trials.view(state)
        left = {str(each.key) for each in view.trial.left}
        first = next((member for member in view.asked if member.pod.uid in left), None)
        waiting = (_member_state(member, view, left) for member in state.pending.values())
        members = sorted([*self._running(state), *waiting], key=_by_name)
        minus_priority, since = state.rank
        return GangReport(
            name=state.name,
            source=described(state.name),
            stage=view.stage,
            summary=view.summary,
            minimum=state.minimum,
            missing=view.missing,
            without_gpus=len(state.without_gpus),
            kept_places=view.kept_places,
            pause_s=view.pause_s,
            running=len(state.bound),
            waiting=len(state.pending),
            on_hold=len(view.on_hold),
            standing=view.standing,
            fits=view.fits,
            priority=-minus_priority,
            since=since or None,
            turn=view.turn,
            overtaken_by=view.overtaken_by,
            nodes=view.nodes,
            lacking=view.lacking,
            members=members[:MEMBERS_NAMED],
            members_left_out=max(len(members) - MEMBERS_NAMED, 0),
            example=first.pod.name if first else "",
            why=await self._why(first, view) if first and view.stage is not GangStage.RUNNING else (),
        )

    def _running(self, state: GangState) -> Iterator[MemberState]:
        """Yield the running members, as far as the ledger knows them."""
        for uid in state.bound:
            for card, holder in self._ledger.holders_of(uid)[:1]:
                yield MemberState(holder.pod, "running", card.node_name)

    async def _why(self, member: Member, view: GangView) -> list[NodeReason]:
        """Return why nodes do not take a member. That others of its gang leave them is no help."""
        shape, trial = member.request.shape, view.trial
        nodes = await self._reasons.nodes_beside(member.pod.uid, shape, self._trials.offered(member), trial)
        here = trial.nodes()
        return [replace(node, remedy="" if here[node.name] else node.remedy) for node in nodes]


def _member_state(member: Member, view: GangView, left: Collection[str]) -> MemberState:
    uid = member.pod.uid
    found = view.trial.placed.get(uid)
    if found is not None:
        return MemberState(member.pod, "fits", found.node_name)
    if uid in view.on_hold:
        return MemberState(member.pod, "on-hold", view.on_hold[uid])
    return MemberState(member.pod, "no-cards" if uid in left else "waiting", "")


def _by_name(member: MemberState) -> str:
    return member.pod.name


KINDS = {GangStage.ROOM_FOUND: RecordKind.GANG_PLANNED, GangStage.GATHERING: RecordKind.GANG_GATHERED}


@define(eq=False, slots=False)
class GangTrail(Component):
    """A gang that can't start is planned and given up again and again: of that, each thing is said once."""

    _gangs: Gangs

    def __attrs_post_init__(self) -> None:
        self._gangs.on_stage.append(self.stage)
        self._gangs.on_given_up.append(self.given_up)
        self._gangs.precedence.on_given.append(self.goes_first)
        self._gangs.members.on_newcomer.append(self.member_comes)
        self._gangs.members.on_bound.append(self.member_is_bound)
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
