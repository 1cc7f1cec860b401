"""Lists are noticed: what a watch has missed is in none of its events. And Kopf gets no more events than it handles."""

import asyncio

import pytest

from gpuledger.controller import kopf_session
from gpuledger.controller.kopf_session import EVENTS_AT_ONCE, InHand, ListsRead


def test_the_first_lists_are_those_of_all_of_kopfs_kinds() -> None:
    lists = ListsRead(["nodes", "pods"])
    for kind in ("namespaces", "nodes", "nodes"):
        lists.read(kind)
        assert not lists.first.is_set()
    lists.read("pods")
    assert lists.first.is_set()
    assert not lists.again.is_set()


def test_a_later_list_is_noticed() -> None:
    lists = ListsRead(["nodes"])
    lists.read("nodes")
    lists.read("nodes")
    assert lists.again.is_set()


def test_the_list_of_a_plain_watch_is_a_later_one_and_counts_when_it_was_read_and_not_before() -> None:
    lists = ListsRead(["nodes"])
    lists.read("nodes")
    listed = lists.listing()
    assert not lists.again.is_set()
    listed(set())
    assert lists.again.is_set()


@pytest.mark.parametrize(("size", "at_once"), [(100, EVENTS_AT_ONCE), (300_000, 3), (10_000_000, 1)])
async def test_no_more_events_are_in_hand_than_a_few_and_no_more_bytes(size: int, at_once: int) -> None:
    in_hand = InHand()
    for _ in range(at_once):
        await in_hand.show(size)
    one_more = asyncio.create_task(in_hand.show(size))
    for _ in range(at_once):
        await asyncio.sleep(0)
        assert not one_more.done()
        in_hand.handled()
    await one_more


async def test_an_event_that_kopf_never_handles_stops_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_session, "LONGEST_HANDLING_S", 0.01)
    in_hand = InHand()
    for _ in range(2 * EVENTS_AT_ONCE):
        await in_hand.show(100)
