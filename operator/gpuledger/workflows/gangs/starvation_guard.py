"""Precedence: a gang that others overtake again and again goes first for a while.

A gang holds nothing while it waits, so small gangs that come after it fit into what becomes free, and a large one could
wait for ever. So it is counted how many gangs overtake it: they start while it finds no cards, although they come after
it in the order. After `MOST_OVERTAKING` of them it gets precedence: gangs that come after it are not tried, so that
what becomes free adds up. Single pods go on, and so do gangs that come before it, or of which members run.

It gets precedence only if its members would find cards once all other gangs have ended: else it is of no help to hold
these back. That lasts as long as the gang has been overtaken so far, since runs take minutes here and weeks elsewhere;
then all are tried again for as long. As each time is longer than the one before, one is long enough for the gangs that
run to end. Where they never do, the gang rests longer and longer: see turns.py.

All that is an affair of one namespace, which could make gangs that overtake each other, and never end, at will. A gang
holds back those of other namespaces only if as many of theirs have overtaken it, if cards are all that it lacks, and
if it would find them once those have ended, whatever its own namespace has; for `LONGEST_S` at most; and after a time
of no use, all gangs of its namespace rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.model.clock import Listeners
from gpuledger.model.gang import GangName, SeatKey
from gpuledger.placement.group import Asking, Trial, demand_order
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import GangState, Members
from gpuledger.workflows.gangs.plans import GangPlans, KeptPlaces
from gpuledger.workflows.gangs.turns import ExclusiveTurns, Rank, Turn
from gpuledger.workflows.tasks import by_turns, in_slices

MOST_OVERTAKING = 8
"""Gangs that may overtake one before it gets precedence."""

SHORTEST_S = 10.0
"""How long precedence lasts at least."""

LONGEST_S = 120.0
"""How long gangs of other namespaces are held back at most, at a time."""

LOOK_PAUSE_S = 5.0
"""Between two looks whether a gang would find cards without the others."""

PAUSE_TO_LOOK = 4
"""How many times as long as the last look has taken that is at least; it has rested for three quarters of its time."""

LOOKS_AT_ONCE = 16
"""Gangs that are looked at before others can be the first: of each namespace the first in order, then the next."""


class _Overtaken(NamedTuple):
    """How many gangs have overtaken one, and since when."""

    number: int = 0
    since_s: float = 0.0

    def more(self, number: int, now_s: float) -> _Overtaken:
        return _Overtaken(self.number + number, self.since_s if self.number else now_s)

    @property
    def is_often(self) -> bool:
        return self.number >= MOST_OVERTAKING


NEVER = _Overtaken()

Order = tuple[Rank, GangName]
"""Sort key: lower goes first."""


class _Overtakers(NamedTuple):
    all: _Overtaken = NEVER
    others: _Overtaken = NEVER
    """Those of other namespaces alone."""


@define(eq=False, slots=False)
class StarvationGuard(Component):
    """Which gangs go first, and which ones they hold back."""

    _members: Members
    _plans: GangPlans
    _kept_places: KeptPlaces

    def __attrs_post_init__(self) -> None:
        self._among_all = ExclusiveTurns(self._members.waits)
        self._within: dict[str, ExclusiveTurns] = {}  # namespace -> turns that concern its own gangs alone
        self._overtaken: WeakKeyDictionary[GangState, _Overtakers] = WeakKeyDictionary()
        self._look_again_s: WeakKeyDictionary[GangState, float] = WeakKeyDictionary()
        self._looking: asyncio.Task[None] | None = None
        self._started: list[tuple[Order, str]] = []  # gangs that have started, and their namespaces
        self._counting: asyncio.Task[None] | None = None
        self.on_given = Listeners[[GangState, str]]()
        """Called with a gang that gets precedence, and a sentence."""
        self.on_over = Listeners[[]]()
        """Called when a gang that has precedence has no use for it any more, whatever it was that has changed."""

    def turn_of(self, name: GangName) -> Turn | None:
        """Return the precedence that a gang has now, among all if it has both; None if it has none."""
        return next((turn for turn in self._turns_of_now(name.namespace) if turn.name == name), None)

    def next_s(self) -> float | None:
        """Return when that changes next by itself, None if it does not."""
        found = (turns.next_s() for turns in (self._among_all, *self._within.values()))
        return min((each for each in found if each is not None), default=None)

    def overtaken_by(self, state: GangState) -> int:
        """Return how many gangs have overtaken one that waits."""
        return self._overtakers(state).all.number

    def holding_back(self, state: GangState) -> Turn | None:
        """Return the precedence for which a gang is not to be tried, as another one goes first; None if there is none.

        Returns none for a gang of which members run.
        """
        if state.bound:
            return None
        order = _order(state)
        return next((turn for turn in self._turns_of_now(state.name.namespace) if order > (turn.rank, turn.name)), None)

    def _turns_of_now(self, namespace: str) -> Iterator[Turn]:
        now_s = self._clock.now_s()
        for turns in (self._among_all, self._within.get(namespace)):
            turn = turns.current(now_s) if turns is not None else None
            if turn is not None:
                yield turn

    def needs_none(self, name: GangName) -> None:
        """Record that a gang has found cards, is gone, or would find none even alone: it holds no other gang back."""
        is_over = [self._ends(name, turns) for turns in (self._among_all, self._within.get(name.namespace))]
        if any(is_over):
            self.on_over()

    def _ends(self, name: GangName, turns: ExclusiveTurns | None) -> bool:
        return turns is not None and turns.needs_none(name, self._clock.now_s())

    def is_gone(self, state: GangState) -> None:
        """Record that a gang has no pods any more that wait: a later one of its name is another one."""
        self._overtaken.pop(state, None)

    def starts(self, state: GangState) -> None:
        """Record that a gang has its cards: those before it that find none are overtaken."""
        now_s, own = self._clock.now_s(), state.name.namespace
        for turns in (self._among_all, self._within.get(own)):
            if turns is not None:
                turns.is_bound(state.name, now_s)
        self._overtaken.pop(state, None)
        if state.bound:  # it runs already, and replaces members
            return
        self._started.append((_order(state), own))
        if self._counting is None or self._counting.done():
            self._counting = self._tasks.start(self._count(), "count who is overtaken")

    async def _count(self) -> None:
        """Count the gangs that were overtaken, in slices: thousands may wait."""
        while self._started:
            started, self._started = self._started, []
            await in_slices(self._count_those(started), self._clock)
        self.look()  # nothing else may change for hours

    def _count_those(self, started: Collection[tuple[Order, str]]) -> Iterator[None]:
        now_s = self._clock.now_s()
        for other in list(self._members.all()):
            order, own = _order(other), other.name.namespace
            before = [namespace for later, namespace in started if order < later]
            if before and self._finds_no_cards(other):
                known = self._overtakers(other)
                others = known.others.more(sum(each != own for each in before), now_s)
                self._overtaken[other] = _Overtakers(known.all.more(len(before), now_s), others)
            yield None

    def _overtakers(self, state: GangState) -> _Overtakers:
        return self._overtaken.get(state) or _Overtakers()

    def look(self) -> None:
        """Give precedence to the first in order of the gangs that were overtaken too often, and can use it.

        That is found out in slices, between which other tasks run.
        """
        if self._overtaken and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.start(self._look(), "look who goes first")

    def _is_to_be_looked_at(self, state: GangState, now_s: float) -> bool:
        if not self._overtakers(state).all.is_often or self._look_again_s.get(state, now_s) > now_s:
            return False
        if self.turn_of(state.name) is not None:
            return True
        return (self._may_have_own(state, now_s) or self._may_have(state, now_s)) and self._finds_no_cards(state)

    def _may_have_own(self, state: GangState, now_s: float) -> bool:
        """Return whether a gang can get precedence within its namespace."""
        turns = self._within.get(state.name.namespace)
        return turns is None or _is_free(turns, state.name, now_s)

    def _may_have(self, state: GangState, now_s: float) -> bool:
        """Return whether a gang can get precedence among the gangs of all namespaces."""
        turns, name = self._among_all, state.name
        if not self._overtakers(state).others.is_often or not _enough_were_asked_for(state):
            return False
        if turns.namespace_rests(name.namespace, now_s):
            return False
        return _is_free(turns, name, now_s)

    async def _look(self) -> None:
        found: list[GangState] = []

        def find() -> Iterator[None]:
            now_s = self._clock.now_s()
            for state in list(self._overtaken):
                if self._is_to_be_looked_at(state, now_s):
                    found.append(state)
                yield None

        self._forget_idle()
        await in_slices(find(), self._clock)
        in_turns = by_turns(sorted(found, key=_order), lambda state: state.name.namespace)
        for state in in_turns[:LOOKS_AT_ONCE]:
            if not await self._would_fit(state, and_own=True):
                self.needs_none(state.name)
                continue
            helps = self._overtakers(state).others.is_often and await self._would_fit(state, and_own=False)
            if not helps and self._ends(state.name, self._among_all):
                self.on_over()
            if self._finds_no_cards(state):
                self._give(state, helps)

    def _forget_idle(self) -> None:
        """Forget the turns within namespaces of which no gang waits that was overtaken."""
        waiting = {state.name.namespace for state in self._overtaken}
        self._within = {namespace: turns for namespace, turns in self._within.items() if namespace in waiting}

    def _give(self, state: GangState, among_all: bool) -> None:
        now_s, name, overtaken = self._clock.now_s(), state.name, self._overtakers(state)
        texts: list[str] = []
        if self._may_have_own(state, now_s):
            most_s = max(SHORTEST_S, now_s - overtaken.all.since_s)
            turns = self._within.setdefault(name.namespace, ExclusiveTurns(self._members.waits))
            turns.wants(name, state.rank, most_s, now_s)
            text = f"before gangs of its namespace for {most_s:.0f} s at most: {overtaken.all.number} gangs"
            texts.append(f"{text} have started that came after it")
        if among_all and self._may_have(state, now_s):
            most_s = min(max(SHORTEST_S, now_s - overtaken.others.since_s), LONGEST_S)
            self._among_all.wants(name, state.rank, most_s, now_s)
            texts.append(
                f"before those of all others for {most_s:.0f} s: {overtaken.others.number} of these were theirs"
            )
        if texts:
            self.on_given(state, f"it goes first, {', '.join(texts)}")

    def _finds_no_cards(self, state: GangState) -> bool:
        """Return whether all its missing members are there, and the last try has not found cards for all of them."""
        if self._plans.fitted(state) is None or not self._members.waits(state.name):
            return False
        return not self._plans.have_room(state) and not self._plans.exceeded(state)

    async def _would_fit(self, state: GangState, and_own: bool) -> bool:
        """Return whether its members would find cards if gangs of other namespaces, or `and_own`, had none.

        What its own namespace has says nothing of whether it is of use to hold others back: that may never end.
        """
        own, begin_s = state.name.namespace, self._clock.now_s()
        leaving: set[SeatKey] = {place.key for place in self._kept_places.kept_for(state.name)}
        freed: set[str] = set()

        def leave() -> Iterator[None]:
            for other in list(self._members.all()):
                if other is not state and (and_own or other.name.namespace != own):
                    for uid in (*other.bound, *other.pending):
                        leaving.add(uid)
                        freed.update(card.node_name for card, _ in self._ledger.holders.of(uid))
                yield None

        await in_slices(leave(), self._clock)
        trial = Trial(self._ledger, leaving)
        await in_slices(trial.steps(_asking(state, freed)), self._clock)
        now_s = self._clock.now_s()
        self._look_again_s[state] = now_s + max(LOOK_PAUSE_S, PAUSE_TO_LOOK * (now_s - begin_s))
        return not trial.left


def _asking(state: GangState, freed: Collection[str]) -> list[Asking]:
    """Return the missing members of a gang, for which these nodes become free, too."""
    named: dict[int, Collection[str] | None] = {id(None): None}
    missing = sorted(state.pending.values(), key=lambda member: (member.since, member.pod.uid))[: state.missing]
    asking = []
    for member in sorted(missing, key=lambda member: demand_order(member.request)):
        names = member.node_names
        if id(names) not in named and names is not None:  # CPU that others take can keep nodes from being named
            named[id(names)] = frozenset(freed).union(names)
        asking.append(Asking(member.pod.uid, member.request, named[id(names)]))
    return asking


def _is_free(turns: ExclusiveTurns, name: GangName, now_s: float) -> bool:
    return turns.current(now_s) is None and not turns.are_over(now_s) and not turns.rests(name, now_s)


def _enough_were_asked_for(state: GangState) -> bool:
    """Return whether kube-scheduler has asked for enough members: it never asks for one that finds no CPU anywhere."""
    return sum(member.node_names is not None for member in state.pending.values()) >= state.missing


def _order(state: GangState) -> Order:
    return state.rank, state.name
