"""Python's garbage: what lives long is not looked at again, and pauses are told."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpuledger.controller.telemetry.metrics import ALL_EVERY, STARTING_OBJECTS, YOUNG_OBJECTS, GcTuning

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the collector as it was: it is one for the whole process."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as before


def test_what_is_there_is_left_out_of_later_collections() -> None:
    kept: list[list[object]] = [[] for _ in range(1000)]
    GcTuning(lambda _: None).settle()
    assert gc.get_freeze_count() > len(kept)
    assert not any(kept is each for each in gc.get_objects())


def test_each_collection_is_measured() -> None:
    pauses: list[float] = []
    gc_tuning = GcTuning(pauses.append)
    gc_tuning.start()
    gc.collect()
    assert len(pauses) == 1
    assert pauses[0] > 0


def test_garbage_is_seldom_looked_for_until_all_has_been_read_once() -> None:
    gc_tuning = GcTuning(lambda _: None)
    gc_tuning.start()
    assert gc.get_threshold()[0] == STARTING_OBJECTS > YOUNG_OBJECTS
    gc_tuning.settle()
    assert gc.get_threshold()[0] == YOUNG_OBJECTS


def test_cycles_that_were_there_are_collected_in_the_end() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc_tuning, cycle = GcTuning(lambda _: None), Cycle()
    seen = weakref.ref(cycle)
    gc_tuning.settle()
    del cycle
    gc_tuning.settle()
    assert seen() is not None, "it was left out"
    for _ in range(ALL_EVERY):
        gc_tuning.settle()
    assert seen() is None
