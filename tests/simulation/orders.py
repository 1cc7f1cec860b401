"""Every order of the steps of a race, up to those that make no difference.

Two steps that neither belong to one operator nor concern one object can be swapped, and no operator would notice. The
checker might, for it compares pods with cards; but it does so at each change of either, whichever comes first. Of all
the orders that differ by swaps, one is lived through: sleep sets, as in P. Godefroid, "Partial-Order Methods for the
Verification of Concurrent Systems", 1996, chapter 5. What goes wrong is bounded: so many wrong steps in one life.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from simulation.checker import Violation
from simulation.prepared import defects
from simulation.race import Outcome, Race, RaceWorld, Step


@dataclass(slots=True)
class Fork:
    """A moment of a life at which something was chosen."""

    steps: list[Step]
    asleep: list[Step]
    """Steps that need not be taken here: each was taken before, and everything since can be swapped with it."""
    place: int = 0
    """Number of the step that is taken now."""

    def is_awake(self, place: int) -> bool:
        """Return whether a step has to be taken here."""
        return all(self.steps[place].what != other.what for other in self.asleep)

    def next_place(self) -> int | None:
        """Return the next step that has to be taken here, None if there is none."""
        places = range(self.place + 1, len(self.steps))
        return next((place for place in places if self.is_awake(place)), None)

    def asleep_after(self) -> list[Step]:
        """Return the steps that need not be taken after the present one."""
        taken = self.steps[self.place]
        before = [step for place, step in enumerate(self.steps[: self.place]) if self.is_awake(place)]
        return [step for step in (*self.asleep, *before) if step.can_swap(taken)]


@dataclass(slots=True)
class Lived:
    """One order, and what came of it."""

    race: Race
    places: tuple[int, ...]
    """Number of the step that was taken, at each moment."""
    steps: tuple[Step, ...]
    outcome: Outcome
    violation: str = ""


@dataclass(slots=True)
class Orders:
    """Goes through the orders of a race."""

    race: Race
    wrong: int
    """How many steps may go wrong in one life."""
    swaps: bool = True
    """Whether orders are left out that differ only by swaps that make no difference."""
    lives: int = 0
    abandoned: int = 0
    """Lives that were given up on the way, since every step from there on was asleep."""
    _path: list[Fork] = field(default_factory=list)
    _depth: int = 0

    def __iter__(self) -> Iterator[Lived]:
        """Live through one order after the other; those that were abandoned are not shown."""
        while True:
            lived = self._live()
            if lived is not None:
                self.lives += 1
                yield lived
            if not self._turn():
                return

    def _live(self) -> Lived | None:
        self._depth = 0
        world = RaceWorld(self.race)
        violation = _run(world, self._choose)
        if self._depth < 0 and not violation:
            self.abandoned += 1
            return None
        places, steps = [fork.place for fork in self._path], [fork.steps[fork.place] for fork in self._path]
        return Lived(self.race, tuple(places), tuple(steps), world.outcome, violation)

    def _choose(self, world: RaceWorld) -> Step | None:
        steps = world.right_steps()
        if sum(fork.steps[fork.place].is_wrong for fork in self._path[: self._depth]) < self.wrong:
            steps += world.wrong_steps()
        if self._depth < len(self._path):
            fork = self._path[self._depth]
            fork.steps = steps  # the same, in this world
        else:
            asleep = self._path[-1].asleep_after() if self._path and self.swaps else []
            fork = Fork(steps, asleep, place=-1)
            place = fork.next_place()
            if place is None:
                self._depth = -1
                return None
            fork.place = place
            self._path.append(fork)
        self._depth += 1
        return fork.steps[fork.place]

    def _turn(self) -> bool:
        """Turn to the next order; return whether there is one."""
        while self._path:
            place = self._path[-1].next_place()
            if place is not None:
                self._path[-1].place = place
                return True
            self._path.pop()
        return False


def _run(world: RaceWorld, choose: Callable[[RaceWorld], Step | None]) -> str:
    """Run a race; return what was wrong in it."""
    defects.clear()
    violation = ""
    try:
        world.race(choose)
    except Violation as found:
        violation = str(found)
    except Exception as error:  # noqa: BLE001 - a defect is a finding, too
        violation = f"{type(error).__name__}: {error}"
    finally:
        world.end()
    return f"an operator has logged a defect: {defects[0]}" if defects else violation


def told(race: Race, places: Sequence[int]) -> tuple[str, str]:
    """Live one order again; return what was wrong in it, and the whole of it with the command that repeats it."""
    trace: list[str] = []
    world, left = RaceWorld(race, trace), list(places)

    def choose(world: RaceWorld) -> Step | None:
        return [*world.right_steps(), *world.wrong_steps()][left.pop(0)] if left else None

    violation = _run(world, choose)
    again = f"cd tests && python -m simulation --race '{race.name}' --places {','.join(map(str, places))}"
    return violation, "\n".join(
        [*trace, f"VIOLATION: {violation}" if violation else "nothing wrong", "", f"again: {again}"]
    )
