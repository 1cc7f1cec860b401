"""The lag of the event loop: what blocks it is seen, and a loop at rest is not late."""

import asyncio

import pytest

from fakes.virtual_time import VirtualTimeLoop
from gpuledger.controller.telemetry.metrics import INTERVAL_S, LoopLag


@pytest.fixture
def loop() -> VirtualTimeLoop:
    """Return a loop whose clock a test can put forward."""
    return VirtualTimeLoop()


def run(loop: VirtualTimeLoop, steps: object) -> None:
    try:
        loop.run_until_complete(steps)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_a_loop_at_rest_is_in_time_and_a_blocked_one_is_late(loop: VirtualTimeLoop) -> None:
    seen: list[float] = []

    async def steps() -> None:
        lag = LoopLag(seen.append)
        lag.start()
        await asyncio.sleep(2.5 * INTERVAL_S)
        assert seen == [0.0, 0.0]
        loop.now_s += 3.0  # as a callback does that takes so long
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen[2:] == [3.0 - 0.5 * INTERVAL_S]
        lag.stop()
        await asyncio.sleep(3 * INTERVAL_S)
        assert len(seen) == 3

    run(loop, steps())
