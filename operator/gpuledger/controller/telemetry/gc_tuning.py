"""When Python looks for garbage: at moments of our own choosing, and not in the middle of a Filter.

The ledger of 5,000 nodes is some 600,000 objects that live long. A full collection looks at each of them, which takes
a third of a second, and Python begins one whenever it thinks that enough is new. So after each comparison with full
lists, itself a pause in which little depends on us, what is left is taken out of later collections. Objects are still
freed when nothing refers to them; cycles among those that were there by then wait until, now and then, all is searched.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable

YOUNG_OBJECTS = 2_000
"""New objects after which the young ones are looked at, for about a millisecond; as usual, that is after 700."""

STARTING_OBJECTS = 50_000
"""The same until the first comparison: nearly all that comes by then stays, and each look would find that again."""

ALL_EVERY = 50
"""Comparisons after which everything is looked at once."""


class GcTuning:
    """Collects and measures. `pause` is called with the seconds of each collection, whatever has begun it."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._begin_s = 0.0
        self._settled = 0  # times

    def start(self) -> None:
        """Measure from now on; look at young objects less often, and seldom before all has been read once."""
        gc.callbacks.append(self._measure)
        gc.freeze()  # the program itself stays
        gc.set_threshold(STARTING_OBJECTS, *gc.get_threshold()[1:])

    def settle(self) -> None:
        """Collect what is new since the last time, and leave out the rest; every so often, look at that, too."""
        self._settled += 1
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        if self._settled % ALL_EVERY == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        _give_back()

    def _measure(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin_s = time.perf_counter()
        else:
            self._pause(time.perf_counter() - self._begin_s)


def _give_back() -> None:
    """Have the C library give memory back that lists of thousands of objects have left; others have no such call."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
