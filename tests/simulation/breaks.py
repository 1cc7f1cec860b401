"""How the program is broken, one safeguard at a time, and by which lives that must show."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from simulation.explorers import Life, Mood, Planned, Rule, all_lives, live, random_lives
from simulation.scenarios import BY_NAME

Json = dict[str, Any]
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Break:
    """A safeguard that is taken away."""

    what: str
    take_away: Callable[[Patch], None]
    scenario: str
    symptom: str
    mood: Mood | None = None
    """What brings it out; without one, all lives with one deviation do."""
    plan: tuple[Rule, ...] = ()
    """What brings it out at once."""
    lives: int = 1_000


def lives(broken: Break) -> Iterator[Life]:
    scenario = BY_NAME[broken.scenario]
    if broken.plan:
        return iter([live(scenario, Planned(*broken.plan))])
    if broken.mood is None:
        return all_lives(scenario, 1)
    return random_lives(scenario, range(broken.lives), broken.mood)
