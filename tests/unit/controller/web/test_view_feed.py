"""What is sent of the cluster: encoded once, in slices, and only for those who look."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest

from builders import a_card
from fakes.virtual_time import VirtualTimeLoop
from gpuledger.controller.web import feed as view_feed
from gpuledger.controller.web import pace
from gpuledger.controller.web.feed import Feed, FeedChange, LedgerSource
from gpuledger.reports.cards import CardReport, NodeCards

Json = dict[str, Any]


class StubSource:
    """Nodes with one card each, whose reason can be changed; counts what it is asked."""

    def __init__(self, count: int) -> None:
        self.edition = 0
        self.reasons = {f"node-{number}": "" for number in range(count)}
        self.touched: dict[str, int] = {}
        self.pods: list[Json] = []
        self.limits: list[Json] = []
        self.grafana_url = "https://grafana.example.com/d/gpus"
        self.asked: list[str] = []
        self.looked = 0
        self.elsewhere: str | None = None

    def change(self, name: str, reason: str | None) -> None:
        self.edition += 1
        self.touched[name] = self.edition
        if reason is None:
            del self.reasons[name]
        else:
            self.reasons[name] = reason

    def touched_since(self, edition: int) -> Iterable[str]:
        return [name for name, touched in self.touched.items() if touched > edition] if edition >= 0 else self.reasons

    def node(self, name: str) -> NodeCards | None:
        self.asked.append(name)
        if name not in self.reasons:
            return None
        card = a_card(node_name=name)
        return NodeCards(name, (CardReport(card, "Ready", self.reasons[name], (), 0, 0),))

    def active_elsewhere(self) -> str | None:
        return self.elsewhere

    def waiting(self) -> Iterable[Json]:
        self.looked += 1
        return list(self.pods)

    def growth(self) -> Iterable[Json]:
        return ()

    def namespaces(self) -> Iterable[Json]:
        return list(self.limits)

    def queues(self) -> Iterable[Json]:
        return []


INTERVAL_S = view_feed.INTERVAL_S


def a_feed(source: StubSource, first_edition: int | None = None) -> Feed:
    """Return the feed of a source."""
    return Feed(cast(LedgerSource, source), first_edition)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "INTERVAL_S", 0.0)


async def fed(count: int) -> tuple[StubSource, Feed, int]:
    """Return nodes, a feed that has looked at them once, and its edition."""
    source = StubSource(count)
    feed = a_feed(source)
    await feed.refresh()
    return source, feed, feed.edition


def read(feed: Feed, change: FeedChange) -> Json:
    found: Json = orjson.loads(b"".join(feed.chunks(change)))
    return found


def named(found: Json) -> list[str]:
    return [node["node"] for node in found["nodes"]]


async def test_a_page_hears_that_its_replica_is_no_longer_the_active_one() -> None:
    source, feed, edition = await fed(1)
    source.elsewhere = "another"
    await feed.refresh()
    found = read(feed, feed.since(edition))
    assert (found["activeElsewhere"], found["edition"], named(found)) == ("another", edition + 1, [])
    await feed.refresh()
    assert feed.edition == edition + 1


async def test_a_page_hears_of_a_new_limit_once_and_nothing_else_with_it() -> None:
    source, feed, edition = await fed(1)
    assert read(feed, feed.since(None))["namespaces"] == []
    source.limits = [{"namespace": "team-a", "quota": []}]
    for _ in range(2):
        await feed.refresh()
    found = read(feed, feed.since(edition))
    assert (found["namespaces"], found["edition"]) == (source.limits, edition + 1)
    assert (found["waiting"], found["queues"], named(found)) == (None, None, [])
    assert found["grafanaUrl"] == "https://grafana.example.com/d/gpus"
    assert read(feed, feed.since(edition + 1))["namespaces"] is None
    assert read(feed, feed.since(None))["namespaces"] == source.limits


async def test_nothing_is_done_for_nobody() -> None:
    source = StubSource(3)
    a_feed(source)
    source.change("node-1", "hot")
    await asyncio.sleep(0)
    assert (source.asked, source.looked) == ([], 0)


async def test_the_work_ends_when_the_last_one_leaves() -> None:
    source = StubSource(3)
    feed = a_feed(source)
    async with feed.watch():
        await feed.next(feed.edition, 5)
    looked = source.looked
    assert looked > 0
    for _ in range(20):
        await asyncio.sleep(0)
    assert (source.looked, feed.watchers) == (looked, 0)


async def test_a_node_is_encoded_again_only_after_a_change() -> None:
    source = StubSource(5)
    feed = a_feed(source)
    await feed.refresh()
    source.asked.clear()
    source.change("node-3", "hot")
    await feed.refresh()
    await feed.refresh()
    assert source.asked == ["node-3"]


async def test_what_was_encoded_is_news_though_its_client_left_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    source, feed, edition = await fed(3)
    for name in source.reasons:
        source.change(name, "hot")
    leaving = asyncio.create_task(feed.refresh())
    while len(source.asked) < 5:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert feed.edition > edition
    await feed.refresh()
    assert sorted(named(read(feed, feed.since(edition)))) == ["node-0", "node-1", "node-2"]


async def test_an_error_in_what_is_shown_does_not_end_the_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(view_feed, "FAULT_PAUSE_S", 0.0)
    source = StubSource(1)
    good, source.waiting = source.waiting, lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    feed = a_feed(source)
    async with feed.watch():
        await asyncio.sleep(0)
        while "data can't be updated" not in caplog.text:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0)
        source.waiting = good  # type: ignore[method-assign]
        source.change("node-0", "hot")
        assert await feed.next(feed.edition, 5)


async def test_a_change_that_shows_nothing_new_is_no_news() -> None:
    source, feed, edition = await fed(2)
    source.change("node-1", "")
    await feed.refresh()
    assert feed.edition == edition


async def test_who_reads_slowly_gets_many_changes_as_one() -> None:
    source, feed, edition = await fed(3)
    for number in range(100):
        source.change("node-1", f"reason {number}")
        await feed.refresh()
    found = read(feed, feed.since(edition))
    assert named(found) == ["node-1"]
    assert found["nodes"][0]["cards"][0]["reason"] == "reason 99"


async def test_a_node_that_goes_while_others_are_sent_is_left_out_and_named_next_time() -> None:
    source = StubSource(3)
    feed = a_feed(source)
    await feed.refresh()
    change = feed.since(None)
    source.change("node-1", None)
    await feed.refresh()
    assert named(read(feed, change)) == ["node-0", "node-2"]
    assert read(feed, feed.since(change.edition))["gone"] == ["node-1"]


async def test_a_node_that_comes_back_is_not_gone() -> None:
    source, feed, edition = await fed(2)
    source.change("node-1", None)
    await feed.refresh()
    source.change("node-1", "back")
    await feed.refresh()
    found = read(feed, feed.since(edition))
    assert (named(found), found["gone"]) == (["node-1"], [])


async def test_who_has_missed_too_many_that_are_gone_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "GONE_KNOWN", 2)
    source, feed, edition = await fed(5)
    for number in range(2):
        source.change(f"node-{number}", None)
        await feed.refresh()
    assert not feed.since(edition).full
    source.change("node-2", None)
    await feed.refresh()
    assert feed.since(edition).full
    assert not feed.since(feed.edition - 1).full


async def test_the_memory_is_given_back_a_while_after_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "KEPT_S", 0.0)
    _, feed, edition = await fed(3)
    while feed.since(None).nodes:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0)
    await feed.refresh()
    found = read(feed, feed.since(edition))
    assert (found["full"], len(found["nodes"])) == (True, 3)


async def test_editions_of_another_process_are_unknown() -> None:
    earlier, later = a_feed(StubSource(1), first_edition=1_000), a_feed(StubSource(1), first_edition=2_000)
    await earlier.refresh()
    await later.refresh()
    assert later.since(earlier.edition).full
    assert earlier.since(later.edition).full
    assert not later.since(later.edition).full


async def test_others_have_the_event_loop_while_a_large_cluster_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    feed, turns = a_feed(StubSource(200)), 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    await feed.refresh()
    other.cancel()
    assert turns >= 200


async def test_a_large_message_comes_in_chunks() -> None:
    feed = a_feed(StubSource(2_000))
    await feed.refresh()
    sizes = [len(chunk) for chunk in feed.chunks(feed.since(None))]
    assert sum(sizes) > 4 * view_feed.CHUNK_BYTES
    assert max(sizes) < 2 * view_feed.CHUNK_BYTES


async def test_all_who_wait_are_let_go_at_the_end() -> None:
    feed = a_feed(StubSource(1))
    await feed.refresh()
    waiting = [asyncio.create_task(feed.next(feed.edition, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    feed.close()
    assert await asyncio.gather(*waiting) == [False] * 3


def test_there_are_two_messages_a_second_at_most_also_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "INTERVAL_S", INTERVAL_S)

    async def times_of_ten_messages() -> list[float]:
        source = StubSource(1)
        feed, clock = a_feed(source), asyncio.get_running_loop().time

        async def change_and_come() -> None:
            for number in range(10_000):
                source.change("node-0", f"reason {number}")
                await feed.refresh()
                await asyncio.sleep(0.01)

        times: list[float] = []
        coming = asyncio.create_task(change_and_come())
        async with feed.watch():
            while len(times) < 10:
                if await feed.next(feed.edition, 1):
                    times.append(clock())
        coming.cancel()
        return times

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        times = runner.run(times_of_ten_messages())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0.5
    assert max(gaps) < 0.6
