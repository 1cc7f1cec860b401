"""Several parts of the process that run at once: when one ends, all do."""

import asyncio

import pytest

from gpuledger.model.errors import StateRolledBack
from gpuledger.workflows.tasks import all_within, wait_first


async def goes_on(name: str, ended: list[str]) -> None:
    """Run until cancelled, and record that."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def test_the_first_part_to_fail_is_raised_and_the_others_are_cancelled() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise StateRolledBack("older")

    with pytest.raises(StateRolledBack):
        await wait_first(goes_on("a", ended), fails(), goes_on("b", ended))
    assert ended == ["a", "b"]


async def test_whoever_cancels_the_parts_cancels_each_of_them() -> None:
    ended: list[str] = []
    running = asyncio.create_task(wait_first(goes_on("a", ended), goes_on("b", ended)))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["a", "b"]


async def test_calls_that_take_too_long_are_cancelled_and_the_others_are_done() -> None:
    ended: list[str] = []

    async def is_quick() -> None:
        ended.append("quick")

    await all_within(0.01, [is_quick(), goes_on("slow", ended)])
    assert ended == ["quick", "slow"]
    await all_within(0.01, [])


async def test_what_a_call_raises_is_raised_and_no_call_is_left_running() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise StateRolledBack("older")

    with pytest.raises(StateRolledBack):
        await all_within(0.01, [fails(), goes_on("slow", ended)])
    assert ended == ["slow"]
