"""Precedence: a gang that others overtake again and again goes first for a while.

A gang holds nothing while it waits, so small gangs that come after it fit into what becomes free, and a large one could
wait for ever. So it is counted how many gangs overtake it: they start while it finds no cards, although they come after
it in the order. After `MOST_OVERTAKING` of them it gets precedence: gangs that come after it are not tried, so that
what becomes free adds up. Single pods go on, and so do gangs that come before it, or of which members run.

It gets precedence only if its members would find cards once all other gangs have ended: else it is of no help to hold
these back. That lasts as long as the gang has been overtaken so far, since runs take minutes here and weeks elsewhere;
then all are tried again for as long. As each time is longer than the one before, one is long enough for the gangs that
run to end. Where they never do, the gang rests longer and longer: see turns.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.gang import GangName
from gpuledger.model.latest import Latest
from gpuledger.model.listeners import Listeners
from gpuledger.placement.gang import demand_order
from gpuledger.placement.together import Asking, Trial
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.gangs.kept_places import KeptPlaces
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.gangs.plans import GangPlans
from gpuledger.workflows.gangs.turns import Rank, Turn, Turns
from gpuledger.workflows.tasks.pauses import in_slices

MOST_OVERTAKING = 8
"""Gangs that may overtake one before it gets precedence."""

SHORTEST_S = 10.0
"""How long precedence lasts at least."""

LOOK_PAUSE_S = 5.0
"""Between two looks whether a gang would find cards without the others."""

PAUSE_TO_LOOK = 4
"""How many times as long as the last look has taken that is at least; it has rested for three quarters of its time."""

LOOKS_AT_ONCE = 16
"""Gangs that are looked at, the first in order, before others can be the first."""

REMEMBERED = 1_024
"""Gangs of which it is known that they were overtaken; the last ones."""


class _Overtaken(NamedTuple):
    number: int
    """How many gangs have overtaken this one."""
    since_s: float
    """When the first of them did."""
    look_s: float = float("-inf")
    """From when on it may be looked at again whether it would find cards without the others."""


class Precedence:
    """Which gang goes first, and which ones it holds back."""

    def __init__(
        self, ledger: Ledger, members: Members, plans: GangPlans, kept_places: KeptPlaces, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._members = members
        self._plans = plans
        self._kept_places = kept_places
        self._clock = clock
        self._turns = Turns(members.waits)
        self._overtaken: Latest[GangName, _Overtaken] = Latest(REMEMBERED)
        self._looking: asyncio.Task[None] | None = None
        self.on_given = Listeners[[GangState, str]]()
        """Called with a gang that gets precedence, and a sentence."""
        self.on_over = Listeners[[]]()
        """Called when a gang that has precedence has no use for it any more, whatever it was that has changed."""

    def turn(self) -> Turn | None:
        """Return the precedence of now, None if no gang has it."""
        return self._turns.current(self._clock.now_s())

    def next_s(self) -> float | None:
        """Return when that changes next by itself, None if it does not."""
        return self._turns.next_s()

    def overtaken_by(self, name: GangName) -> int:
        """Return how many gangs have overtaken one that waits."""
        overtaken = self._overtaken.get(name)
        return overtaken.number if overtaken else 0

    def holds_back(self, state: GangState) -> bool:
        """Tell whether a gang is not to be tried, as another one goes first."""
        turn = self.turn()
        if turn is None or turn.name == state.name or state.bound:
            return False
        return _order(state) > (turn.rank, turn.name)

    def needs_none(self, name: GangName) -> None:
        """Note that a gang has found cards, is gone, or would find no cards without others: it holds nobody back."""
        if self._turns.needs_none(name, self._clock.now_s()):
            self.on_over()

    def is_gone(self, name: GangName) -> None:
        """Note that a gang has no pods any more that wait: a later one of its name is another one."""
        self._overtaken.drop(name)

    def starts(self, state: GangState) -> None:
        """Note that a gang has its cards: those before it that find none are overtaken."""
        self._turns.is_bound(state.name, self._clock.now_s())
        self._overtaken.drop(state.name)
        if state.bound:  # it runs already, and replaces members
            return
        for other in self._members.waiting():
            if other is not state and self._finds_no_cards(other) and _order(other) < _order(state):
                before = self._overtaken_of(other)
                self._overtaken.note(other.name, before._replace(number=before.number + 1))

    def _overtaken_of(self, state: GangState) -> _Overtaken:
        return self._overtaken.get(state.name) or _Overtaken(0, self._clock.now_s())

    def look(self) -> None:
        """Give precedence to the first in order of those that were overtaken too often, and have a use for it.

        That is found out in slices, while others go on.
        """
        if self._looking is None or self._looking.done():
            now_s, turn = self._clock.now_s(), self.turn()
            found = self._waiting_for_it() if turn is None else self._with(turn)
            found = [state for state in found if self._overtaken_of(state).look_s <= now_s]
            if found:
                self._looking = asyncio.create_task(self._look(found[:LOOKS_AT_ONCE], turn), name="look who goes first")

    async def stop(self) -> None:
        """Look at nobody any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, states: Collection[GangState], turn: Turn | None) -> None:
        for state in states:
            if not await self._would_fit(state):
                self.needs_none(state.name)
            elif turn is None and self._finds_no_cards(state):
                self._give(state)
                break

    def _give(self, state: GangState) -> None:
        now_s, overtaken = self._clock.now_s(), self._overtaken_of(state)
        most_s = max(SHORTEST_S, now_s - overtaken.since_s)
        self._turns.wants(state.name, state.rank, most_s, now_s)
        text = f"it goes first, for {most_s:.0f} s at most: {overtaken.number} gangs have started that came after it"
        self.on_given(state, text)

    def _waiting_for_it(self) -> list[GangState]:
        now_s = self._clock.now_s()
        if self._turns.are_over(now_s):
            return []
        found = [
            state
            for state in self._members.waiting()
            if self.overtaken_by(state.name) >= MOST_OVERTAKING
            and not self._turns.rests(state.name, now_s)
            and self._finds_no_cards(state)
        ]
        return sorted(found, key=_order)

    def _with(self, turn: Turn) -> list[GangState]:
        return [state for state in self._members.waiting() if state.name == turn.name]

    def _finds_no_cards(self, state: GangState) -> bool:
        """Tell whether all its missing members are there, and the last try has not found cards for all of them."""
        if not self._members.waits(state.name) or self._plans.fitted(state.name) is None:
            return False
        return not self._plans.have_room(state) and not self._plans.exceeded(state.name)

    async def _would_fit(self, state: GangState) -> bool:
        """Tell whether its members would find cards if no other gang had any."""
        others = [other for other in self._members.all() if other is not state]
        leaving = {uid for other in others for uid in (*other.bound, *other.pending)}
        leaving.update(place.key for place in self._kept_places.kept_for(state.name))
        freed = {card.node_name for uid in leaving for card, _ in self._ledger.holders_of(uid)}
        named: dict[int, Collection[str] | None] = {id(None): None}
        missing = sorted(state.pending.values(), key=lambda member: (member.since, member.pod.uid))[: state.missing]
        asking = []
        for member in sorted(missing, key=lambda member: demand_order(member.request)):
            names = member.node_names
            if id(names) not in named and names is not None:  # CPU that others take can keep nodes from being named
                named[id(names)] = freed.union(names)
            asking.append(Asking(member.pod, member.request, named[id(names)]))
        trial, begin_s = Trial(self._ledger, leaving), self._clock.now_s()
        await in_slices(trial.steps(asking), self._clock)
        now_s = self._clock.now_s()
        again_s = now_s + max(LOOK_PAUSE_S, PAUSE_TO_LOOK * (now_s - begin_s))
        self._overtaken.note(state.name, self._overtaken_of(state)._replace(look_s=again_s))
        return not trial.left


def _order(state: GangState) -> tuple[Rank, GangName]:
    return state.rank, state.name
