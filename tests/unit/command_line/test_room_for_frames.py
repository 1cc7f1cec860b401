"""A loop is as quick at any depth of the stack: its calls map no memory."""

import resource

import pytest

from gpuledger.command_line.options import with_room_for_frames

CALLS, DEPTHS = 200, 300
"""300 frames of a small function fill more than one of CPython's chunks."""


def test_no_loop_maps_memory_at_each_call_however_deep_it_is() -> None:
    assert most_page_faults() >= CALLS  # it does so at some depth by itself
    assert with_room_for_frames(most_page_faults) < CALLS / 4  # the first use of a page is one


def test_the_result_and_the_errors_of_the_work_come_through() -> None:
    assert with_room_for_frames(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        with_room_for_frames(lambda: 1 // 0)


def most_page_faults() -> int:
    """Return how many page faults the loop takes at the depth where it takes the most."""
    at_depth(DEPTHS)  # all that it needs is there
    return max(at_depth(depth) for depth in range(DEPTHS))


def at_depth(depth: int) -> int:
    return at_depth(depth - 1) if depth else page_faults()


def page_faults() -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        nothing()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def nothing() -> None:
    """Do nothing."""
