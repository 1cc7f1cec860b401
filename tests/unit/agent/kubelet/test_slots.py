"""Slots: a number, and whether they can be used."""

import asyncio
from collections.abc import AsyncIterator

from gpuledger.agent.kubelet.device_plugin import VendorSlots

State = tuple[list[str], bool]


async def now(states: AsyncIterator[State]) -> State:
    async with asyncio.timeout(60):
        return await anext(states)


async def nothing_comes(states: AsyncIterator[State]) -> None:
    waiting = asyncio.ensure_future(anext(states))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_before_the_cards_are_known_there_are_none() -> None:
    assert await now(VendorSlots().states()) == ([], False)


async def test_each_listener_is_told_at_once_and_at_each_change() -> None:
    slots = VendorSlots()
    slots.offer(2)
    listeners = [slots.states(), slots.states()]
    for states in listeners:
        assert await now(states) == (["slot-0", "slot-1"], True)
    slots.offer(1)
    for states in listeners:
        assert await now(states) == (["slot-0"], True)


async def test_what_changes_nothing_is_told_to_nobody() -> None:
    slots = VendorSlots()
    slots.offer(2)
    states = slots.states()
    await now(states)
    slots.offer(2)
    await nothing_comes(states)


async def test_withdrawn_slots_are_still_counted_and_come_back() -> None:
    slots = VendorSlots()
    slots.offer(2)
    states = slots.states()
    await now(states)
    slots.withdraw()
    assert await now(states) == (["slot-0", "slot-1"], False)
    slots.withdraw()
    slots.offer(2)
    assert await now(states) == (["slot-0", "slot-1"], True)


async def test_a_change_between_two_looks_is_not_missed() -> None:
    slots = VendorSlots()
    slots.offer(1)
    states = slots.states()
    await now(states)
    slots.offer(2)
    slots.offer(3)
    assert await now(states) == (["slot-0", "slot-1", "slot-2"], True)
    await nothing_comes(states)
