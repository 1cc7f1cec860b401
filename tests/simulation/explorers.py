"""Two ways through the choices of a world: all that differ from the normal course in a few places, and random ones.

A life of a world is repeated from its scenario and its *deviations*: the steps at which not the first choice was
taken, and which one was. Nothing else is random, so they are all that a failure has to tell.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from simulation.api_server import Operation
from simulation.checker import Violation
from simulation.item import Item
from simulation.scenario import Scenario
from simulation.world import Choose, Offer, World

WRONG_WAYS = 9
"""The most ways in which one thing can go wrong."""

KINDS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset(),
    frozenset({Operation.BIND}),
    frozenset({Operation.WRITE_STATUS}),
    frozenset({Operation.ANNOTATE}),
    frozenset({Operation.BIND, Operation.WRITE_STATUS}),
    frozenset({Operation.BIND, Operation.WRITE_STATUS, Operation.ANNOTATE}),
    frozenset({Operation.READ_POD, Operation.READ_CARD}),
    frozenset({"watch"}),
)
"""What a mood may be about: an empty set is everything."""

Deviations = tuple[tuple[int, int], ...]
"""Step and choice, for each step at which the choice is not 0."""


@dataclass(frozen=True, slots=True)
class Life:
    """How a world has fared."""

    scenario: Scenario
    deviations: Deviations
    sizes: tuple[int, ...]
    """How many choices there were, step by step."""
    violation: str = ""

    @property
    def kind(self) -> str:
        """The violation without names and numbers: what is the same in many lives."""
        return re.sub(r"uid-[-\w]+|GPU-[-\w]+|gpu-[-\w]+|operator \d'*|\d+(\.\d+)?|node-\w", "…", self.violation)

    def __str__(self) -> str:
        return f"{self.scenario.name}: {self.violation or 'nothing wrong'}"


class _Recorder:
    """Asks a chooser and remembers what was chosen."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.sizes: list[int] = []
        self.deviations: list[tuple[int, int]] = []

    def __call__(self, offer: Offer) -> int:
        choice = self._choose(offer)
        if choice:
            self.deviations.append((len(self.sizes), choice))
        self.sizes.append(offer.size)
        return choice


def live(scenario: Scenario, choose: Choose, trace: list[str] | None = None) -> Life:
    """Let a world live with these choices, and tell how it went."""
    recorder, violation = _Recorder(choose), ""
    world = World(scenario, trace)
    try:
        world.explore(recorder)
    except Violation as found:
        violation = str(found)
        world.note(f"VIOLATION: {found}")
    finally:
        world.end()
    return Life(scenario, tuple(recorder.deviations), tuple(recorder.sizes), violation)


class Repeat:
    """Chooses as before. Where a choice is not there any more, nothing goes wrong."""

    def __init__(self, deviations: Deviations) -> None:
        self._choices = dict(deviations)
        self._step = -1

    def __call__(self, offer: Offer) -> int:
        self._step += 1
        choice = self._choices.get(self._step, 0)
        return choice if choice < offer.size else 0


class Moody:
    """Chooses at random, each seed in a mood of its own.

    Calm or hectic, faithful or full of faults; most moods know a few kinds of faults only, so that two that need each
    other meet more often. In some, things lag behind: once overtaken, a thing stays behind for long.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        random = self._random = Random(f"{scenario.name} {seed}")  # noqa: S311 - nothing here is secret
        self._victims = random.choice(KINDS)
        self._faults = random.choice((0, 1, 2, 5, 20))
        self._fault_rate = random.choice((0.03, 0.1, 0.3) if self._victims else (0.01, 0.03, 0.1, 0.3))
        self._act_rate = random.choice((0.0, 0.02, 0.1, 0.3))
        self._swap_rate = random.choice((0.0, 0.0, 0.1, 0.5))
        self._laggards = random.choice(KINDS)
        self._lag_rate = random.choice((0.0, 0.05, 0.2, 0.5))
        self._catch_up_rate = random.choice((0.02, 0.1, 0.3))
        self._ways = random.sample(range(WRONG_WAYS), random.choice((1, 2, 3, WRONG_WAYS)))
        self._lags: dict[int, bool] = {}  # number of a thing -> whether it lags behind

    def __call__(self, offer: Offer) -> int:
        random = self._random
        if offer.acts and random.random() < self._act_rate:
            return offer.first_act + random.randrange(offer.acts)
        if offer.wrong_ways and self._faults and self._is_struck(offer.things[0]):
            ways = [way for way in self._ways if way < offer.wrong_ways]
            if ways:
                self._faults -= 1
                return offer.first_wrong + random.choice(ways)
        return self._order(offer) if len(offer.things) > 1 else 0

    def _order(self, offer: Offer) -> int:
        random = self._random
        if random.random() < self._swap_rate:
            return random.randrange(len(offer.things))
        if not self._lag_rate or random.random() < self._catch_up_rate:
            return 0
        return next((place for place, thing in enumerate(offer.things) if not self._lags_behind(thing)), 0)

    def _is_struck(self, thing: Item) -> bool:
        if self._victims and thing.group not in self._victims:
            return False
        return self._random.random() < self._fault_rate

    def _lags_behind(self, thing: Item) -> bool:
        if self._laggards and thing.group not in self._laggards:
            return False
        if thing.number not in self._lags:
            self._lags[thing.number] = self._random.random() < self._lag_rate
        return self._lags[thing.number]


def random_lives(scenario: Scenario, seeds: range) -> Iterator[Life]:
    """Live once for each seed."""
    for seed in seeds:
        yield live(scenario, Moody(scenario, seed))


def all_lives(scenario: Scenario, bound: int, part: int = 0, parts: int = 1) -> Iterator[Life]:
    """Live every life with up to `bound` deviations, those with fewer first; or one of several equal parts of them."""
    level: list[Deviations] = [()]
    for depth in range(bound + 1):
        following: list[Deviations] = []
        for number, deviations in enumerate(level):
            if depth > 0 and number % parts != part:
                continue
            life = live(scenario, Repeat(deviations))
            yield life
            if depth < bound:
                following += _with_one_more(life)
        level = following
        if depth > 0:
            part, parts = 0, 1


def _with_one_more(life: Life) -> Iterator[Deviations]:
    first = life.deviations[-1][0] + 1 if life.deviations else 0
    for step in range(first, len(life.sizes)):
        for choice in range(1, life.sizes[step]):
            yield (*life.deviations, (step, choice))


def shortened(life: Life) -> Life:
    """Return a life that fails in the same way, with as few deviations as can be found by leaving some out."""
    size = len(life.deviations) // 2
    while size:
        start = 0
        while start < len(life.deviations):
            fewer = life.deviations[:start] + life.deviations[start + size :]
            shorter = live(life.scenario, Repeat(fewer))
            if shorter.kind == life.kind and len(shorter.deviations) < len(life.deviations):
                life = shorter
            else:
                start += size
        size = size // 2
    return life


def story(life: Life) -> str:
    """Tell a life from its beginning, and how to see it again."""
    trace: list[str] = []
    live(life.scenario, Repeat(life.deviations), trace)
    return "\n".join([*trace, "", f"again: {command(life)}"])


def command(life: Life) -> str:
    """Return the command that repeats a life."""
    choices = ",".join(f"{step}:{choice}" for step, choice in life.deviations) or "none"
    return f"cd tests && python -m simulation --scenario '{life.scenario.name}' --choices {choices}"
