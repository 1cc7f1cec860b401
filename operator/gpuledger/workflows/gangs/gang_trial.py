"""How far a gang has come, and how many of its members would find cards at once: looked for, and nothing kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import BoundedMap, Clock
from gpuledger.model.gang import MOST_MEMBERS, GangName, GangStage
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.placement.group import Asking, Trial, demand_order
from gpuledger.reports.gang import GangTurn, Lacking, gang_summary
from gpuledger.reports.quota import quota_text
from gpuledger.reports.waiting import demand_text
from gpuledger.workflows.gangs.gang_state import GangState, Member
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.kept_places import KeptPlaces
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.tasks.pauses import in_slices

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
        """Return what the others ask for, that find none."""
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


class GangTrials:
    """Looks at gangs. Takes work in slices, changes nothing, and is asked by people alone."""

    def __init__(self, ledger: Ledger, gangs: Gangs, members: Members, kept_places: KeptPlaces, clock: Clock) -> None:
        self._kept_places = kept_places
        self._ledger = ledger
        self._gangs = gangs
        self._members = members
        self._clock = clock
        self._node_sets = NodeSets()
        self._found: BoundedMap[GangName, tuple[float, GangView]] = BoundedMap(
            KEPT
        )  # gang -> when it was seen, and how

    def gang_of(self, pod_uid: str) -> str:
        """Return the name of a pod's gang in its namespace, empty if it has none."""
        state = self._members.of(pod_uid)
        return state.name.name if state else ""

    def member(self, pod_uid: str) -> Member | None:
        """Return a member that waits; None if the pod is none."""
        state = self._members.of(pod_uid)
        return state.pending.get(pod_uid) if state else None

    def offered(self, member: Member) -> NodeSet | None:
        """Return the nodes that kube-scheduler would take for a member; None if it has not asked yet."""
        return None if member.node_names is None else self._node_sets.of(member.node_names)

    def name_of_place(self, key: str) -> str:
        """Return what people are shown of a place that is kept for a gang; empty for anything else."""
        gang = self._kept_places.gang_of(key)
        return f"{gang} (kept for a member)" if gang else ""

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
        holds = ((uid, self._ledger.hold_of(uid)) for uid in state.pending)
        on_hold = {uid: hold.placement.node_name for uid, hold in holds if hold}
        without = [member for uid, member in state.pending.items() if uid not in on_hold]
        need = min(max(state.missing - len(on_hold), 0), MOST_MEMBERS)
        asked = tuple(sorted(without, key=lambda member: (member.since, member.pod.name))[:need])
        in_order = sorted(asked, key=lambda member: demand_order(member.request))
        asking = [Asking(member.pod, member.request, self.offered(member)) for member in in_order]
        kept = self._kept_places.kept_for(state.name)
        trial = Trial(self._ledger, [place.key for place in kept])
        await in_slices(trial.steps(asking), self._clock)
        return GangView(
            state=state,
            stage=self.stage(state),
            on_hold=on_hold,
            standing=self._gangs.standing(state.name),
            turn=self._turn(state),
            overtaken_by=self._gangs.precedence.overtaken_by(state),
            pause_s=self._gangs.pause_left_s(state),
            kept_places=len(kept),
            trial=trial,
            over_quota=self._over_quota(state),
            asked=asked,
        )

    def stage(self, state: GangState) -> GangStage:
        """Return how far a gang has come."""
        if state.missing <= 0:
            return GangStage.RUNNING
        if self._gangs.standing(state.name):
            return GangStage.GATHERING
        if len(state.pending) < state.missing:
            return GangStage.INCOMPLETE
        if sum(self._ledger.hold_of(uid) is not None for uid in state.pending) >= state.missing:
            return GangStage.ROOM_FOUND
        turn = self._turn(state)
        if turn is None or turn.name == state.name:
            return GangStage.WAITING
        return GangStage.HELD_BACK if turn.is_precedence else GangStage.OTHERS_TURN

    def _over_quota(self, state: GangState) -> str:
        limit, name = self._gangs.limit_of(state), state.name
        return quota_text(name.namespace, limit, self._ledger.quotas.used(name.namespace, limit)) if limit else ""

    def _turn(self, state: GangState) -> GangTurn | None:
        """Return what keeps a gang from being tried, or its own turn."""
        precedence, now_s = self._gangs.precedence, self._clock.now_s()
        turn = self._gangs.turn_of(state.name)
        if turn is not None:
            return GangTurn(turn.name, turn.ends_s - now_s)
        first = precedence.turn_of(state.name) or precedence.holding_back(state)
        return None if first is None else GangTurn(first.name, first.ends_s - now_s, is_precedence=True)
