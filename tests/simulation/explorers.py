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
from simulation.prepared import defects
from simulation.scenario import Scenario
from simulation.world import TO_THE_BACK, Choose, Offer, World

WRONG_WAYS = 9
"""The most ways in which one thing can go wrong."""

PATIENCE = 2_000
"""How often things are made to wait by rules: what they wait for may never come."""

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
    frozenset({Operation.EVICT, Operation.LIST_BUDGETS, Operation.LIST_SELECTED_PODS, "preempt"}),
    frozenset({Operation.LIST_LEASES, "watch"}),
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
    defects.clear()
    world = World(scenario, trace)
    try:
        world.explore(recorder)
    except Violation as found:
        violation = str(found)
    except Exception as error:  # noqa: BLE001 - a defect is worth its story, too
        violation = f"{type(error).__name__}: {error}"
    finally:
        world.end()
    if defects:
        violation = f"an operator has logged a defect: {defects[0]}"
    if violation:
        world.note(f"VIOLATION: {violation}")
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


@dataclass(frozen=True, slots=True)
class Mood:
    """How likely things go another way than they should, from 0 to 1. An empty set of groups means all things."""

    victims: frozenset[str] = frozenset()
    """Groups of things that go wrong."""
    ways: tuple[int, ...] = tuple(range(WRONG_WAYS))
    """Which of the wrong ways."""
    faults: int = 0
    """How many, at most."""
    fault_rate: float = 0.0
    laggards: frozenset[str] = frozenset()
    """Groups of things that lag behind: everything else comes before them, until they catch up."""
    lag_rate: float = 0.0
    catch_up_rate: float = 0.1
    swap_rate: float = 0.0
    """Of letting all others go first."""
    act_rate: float = 0.1

    @classmethod
    def drawn(cls, random: Random) -> "Mood":
        """Return a mood of its own for each seed: calm or hectic, about everything or about a few kinds of things."""
        return cls(
            victims=random.choice(KINDS),
            ways=tuple(random.sample(range(WRONG_WAYS), random.choice((1, 2, 3, WRONG_WAYS)))),
            faults=random.choice((0, 1, 2, 5, 20)),
            fault_rate=random.choice((0.01, 0.03, 0.1, 0.3)),
            laggards=random.choice(KINDS),
            lag_rate=random.choice((0.0, 0.05, 0.2, 0.5)),
            catch_up_rate=random.choice((0.02, 0.1, 0.3)),
            swap_rate=random.choice((0.0, 0.0, 0.1, 0.5)),
            act_rate=random.choice((0.0, 0.02, 0.1, 0.3)),
        )


BREAKING = Mood(frozenset({"watch"}), (2,), 5, 0.3, act_rate=0.2, swap_rate=0.1)
"""Watches break, and begin anew."""

EXPIRING = Mood(
    frozenset({Operation.LIST_PODS, Operation.LIST_NODES, Operation.LIST_CARDS}), (4,), 5, 0.3, act_rate=0.2
)
"""Lists expire between two pages."""


class Moody:
    """Chooses at random, in a mood; without one, each seed has its own."""

    def __init__(self, seed: str, mood: Mood | None = None) -> None:
        self._random = Random(seed)  # noqa: S311 - nothing here is secret
        self._mood = mood or Mood.drawn(self._random)
        self._faults = self._mood.faults
        self._lags: dict[int, bool] = {}  # number of a thing -> whether it lags behind

    def __call__(self, offer: Offer) -> int:
        random, mood = self._random, self._mood
        if offer.acts and random.random() < mood.act_rate:
            return offer.first_act + random.randrange(offer.acts)
        if offer.wrong_ways and self._faults and self._is_struck(offer.things[0]):
            ways = [way for way in mood.ways if way < offer.wrong_ways]
            if ways:
                self._faults -= 1
                return offer.first_wrong + random.choice(ways)
        return self._order(offer) if len(offer.things) > 1 else 0

    def _order(self, offer: Offer) -> int:
        random, mood = self._random, self._mood
        if random.random() < mood.swap_rate:
            return TO_THE_BACK
        if not mood.lag_rate or not self._lags_behind(offer.things[0]) or random.random() < mood.catch_up_rate:
            return 0
        return 0 if all(self._lags_behind(thing) for thing in offer.things) else TO_THE_BACK

    def _is_struck(self, thing: Item) -> bool:
        if self._mood.victims and thing.group not in self._mood.victims:
            return False
        return self._random.random() < self._mood.fault_rate

    def _lags_behind(self, thing: Item) -> bool:
        if self._mood.laggards and thing.group not in self._mood.laggards:
            return False
        if thing.number not in self._lags:
            self._lags[thing.number] = self._random.random() < self._mood.lag_rate
        return self._lags[thing.number]


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that goes another way than it should: the beginning of what it says of itself, and how."""

    thing: str
    until: tuple[str, ...] = ()
    """It waits until things have happened in which these patterns are found, one after the other."""
    skip: int = 0
    """So many of its kind happen as they should before."""
    way: int = 0
    """Then it goes wrong, in this way; only the first one does."""
    act: bool = False
    """Just before the first one, somebody does the first act of the scenario that is possible."""


class Planned:
    """Chooses by rules: for a story that has to be told exactly so."""

    def __init__(self, *rules: Rule) -> None:
        self._until = {rule: list(rule.until) for rule in rules}
        self._skip = {rule: rule.skip for rule in rules}
        self._wrong = [rule for rule in rules if rule.way]
        self._acts = [rule for rule in rules if rule.act]
        self._patience = PATIENCE

    def __call__(self, offer: Offer) -> int:
        if not offer.things:
            return 0
        waits = [self._waits(thing.what()) for thing in offer.things]
        if waits[0] and self._patience:
            self._patience -= 1
            return offer.first_wrong if all(waits) else TO_THE_BACK
        what = offer.things[0].what()
        for rule in self._acts:
            if self._concerns(rule, what) and offer.acts:
                self._acts.remove(rule)
                return offer.first_act
        choice = next((rule.way for rule in self._wrong if self._concerns(rule, what)), 0)
        if choice <= offer.wrong_ways:
            self._wrong = [rule for rule in self._wrong if not self._concerns(rule, what)]
        self._note(what)
        return offer.first_wrong + choice - 1 if 0 < choice <= offer.wrong_ways else 0

    def untold(self) -> list[str]:
        """Return what has not gone as planned."""
        left = [f"{rule.thing} did not wait for {until}" for rule, until in self._until.items() if until]
        left += [f"{rule.thing} did not go wrong in way {rule.way}" for rule in self._wrong]
        left += [f"nobody did anything before {rule.thing}" for rule in self._acts]
        return left if self._patience else [*left, "something had to wait for too long"]

    def _waits(self, what: str) -> bool:
        return any(until and self._concerns(rule, what) for rule, until in self._until.items())

    def _concerns(self, rule: Rule, what: str) -> bool:
        return self._skip[rule] <= 0 and what.startswith(rule.thing)

    def _note(self, what: str) -> None:
        """Take in what happens now."""
        for rule, until in self._until.items():
            if until and re.search(until[0], what):
                del until[0]
            if what.startswith(rule.thing):
                self._skip[rule] -= 1


def random_lives(scenario: Scenario, seeds: range, mood: Mood | None = None) -> Iterator[Life]:
    """Live once for each seed."""
    for seed in seeds:
        yield live(scenario, Moody(f"{scenario.name} {seed}", mood))


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
