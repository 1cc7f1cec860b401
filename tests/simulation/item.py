"""Something that is on its way, and happens when the explorer says so, in one of several ways."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import World

SOON_S = 0.001
"""Delay of what happens as soon as nothing else is on its way."""

LATE_S = 12.0
"""Delay of what happens after everybody has stopped waiting for it."""

SOON, LATE = "waits for all others", f"comes {LATE_S:.0f} s later"


class Item:
    """One such thing. Its ways are numbered; 0 is how it goes when nothing is wrong."""

    __slots__ = ("number", "world")

    def __init__(self, world: "World") -> None:
        self.world = world
        self.number = 0
        """Set by the world, in the order in which things were first on their way."""

    @property
    def group(self) -> str:
        """What kind of thing it is: explorers have their moods about kinds."""
        return "other"

    def is_void(self) -> bool:
        """Return whether it can't happen any more."""
        return False

    def what(self) -> str:
        """Say what it is; two things that are on their way at once are told apart by it."""
        raise NotImplementedError

    def is_routine(self) -> bool:
        """Return whether it is of no interest once nothing goes wrong any more."""
        return False

    def ways(self) -> int:
        """Return how many ways there are."""
        return 3

    def way(self, number: int) -> str:
        """Say how it is going to happen; nothing for the normal way."""
        return ("", SOON, LATE)[number]

    def happen(self, way: int) -> None:
        """Let it happen, or put it off."""
        if way == 0:
            self.do()
        else:
            self.world.put_off(self, SOON_S if way == 1 else LATE_S)

    def do(self) -> None:
        """Let it happen as it should."""
        raise NotImplementedError
