"""A list, then its changes: whatever breaks, everything is shown in the end, and nothing is called gone that came."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, cast

import aiohttp
import orjson
import pytest

from fakes.virtual_time import now_s, settle
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.watch import LONGEST_PAUSE_S, PAUSE_S, follow
from gpuledger.model.errors import ApiError, Conflict, Denied, Unreachable

Json = dict[str, Any]
PATH = "/api/v1/pods"
SELECTOR = {"fieldSelector": "spec.nodeName="}


def found(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def page(version: int, *objects: Json, token: str = "") -> Json:
    return {"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(objects)}


def event(kind: str, of: Json) -> bytes:
    return orjson.dumps({"type": kind, "object": of}) + b"\n"


def error_event(code: int) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "message": "too old resource version"})


TOO_OLD = Conflict("too old resource version", 410)
ENDED = b""
"""The server ends the watch in good order."""

Line = bytes | Exception | float
"""What a watch shows, how it ends, or how long it is silent, in seconds."""

Answer = Json | list[Line] | ApiError
"""A page of a list; what a watch shows, and how it ends (without a word on that: not at all); or an error."""


class Server:
    """Stands where KubeClient stands, and answers in turn; after the last answer it says nothing more."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.asked: list[tuple[str, str]] = []
        """Each request so far: `list` with its continue token, or `watch` with the version to go on from."""
        self.times_s: list[float] = []
        self.version_now = 1_000_000
        """What a list of one object says, which is no request that tests look at."""

    async def request(
        self, method: str, path: str, *, parameters: Mapping[str, str], longest_bytes: int | None = None
    ) -> Json:
        assert (method, path, parameters["fieldSelector"]) == ("GET", PATH, SELECTOR["fieldSelector"])
        assert "watch" not in parameters
        if parameters["limit"] == "1":
            return page(self.version_now)
        return dict(cast(Json, await self._answer("list", parameters.get("continue", ""))))

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (path, parameters["fieldSelector"]) == (PATH, SELECTOR["fieldSelector"])
        assert (parameters["watch"], parameters["allowWatchBookmarks"]) == ("1", "true")
        lines = await self._answer("watch", parameters["resourceVersion"])
        yield self._lines(cast(Iterable[Line], lines))

    async def _answer(self, kind: str, details: str) -> Answer:
        self.asked.append((kind, details))
        self.times_s.append(now_s())
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _lines(self, lines: Iterable[Line]) -> AsyncIterator[bytes]:
        for line in lines:
            if isinstance(line, float):
                await asyncio.sleep(line)
                continue
            if isinstance(line, Exception):
                raise line
            if line == ENDED:
                return
            yield line
        await asyncio.Event().wait()


class Follower:
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, bool]] = []
        self.listings: list[set[str]] = []
        self.listed_before: list[int] = []
        """For each list: how many objects had been shown when it began."""

    def changed(self, of: Json, gone: bool) -> None:
        self.shown.append((of["metadata"]["name"], gone))

    def listing(self) -> Callable[[set[str]], None]:
        self.listed_before.append(len(self.shown))
        return self.listings.append


async def follow_for(seconds: float, *answers: Answer, follower: Follower | None = None) -> tuple[Server, Follower]:
    """Follow a server that answers like this, for a while."""
    server, follower = Server(*answers), follower or Follower()
    task = asyncio.create_task(follow(cast(KubeClient, server), PATH, SELECTOR, follower.changed, follower.listing))
    await asyncio.sleep(seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return server, follower


async def test_everything_is_shown_then_every_change() -> None:
    server, follower = await follow_for(
        0.1,
        page(7, found("a", 3), token="next"),
        page(7, found("b", 5)),
        [event("MODIFIED", found("a", 8)), event("ADDED", found("c", 9)), event("DELETED", found("b", 10))],
    )
    assert follower.shown == [("a", False), ("b", False), ("a", False), ("c", False), ("b", True)]
    assert server.asked == [("list", ""), ("list", "next"), ("watch", "7")]


async def test_the_uids_of_the_whole_list_are_told_once_it_is_read_and_asked_for_before_it_began() -> None:
    _, follower = await follow_for(0.1, page(7, found("a", 3), token="next"), page(7, found("b", 5)))
    assert follower.listings == [{"uid-a", "uid-b"}]
    assert follower.listed_before == [0]


@pytest.mark.parametrize(
    ("how_it_ends", "after_s", "pause_s"),
    [
        (ENDED, 0.0, PAUSE_S),  # a server that ends each watch at once is not asked again at once
        (ENDED, 2.0, 0.0),
        (aiohttp.ClientPayloadError("connection lost"), 0.0, PAUSE_S),
        (TimeoutError(), 0.0, PAUSE_S),
        (ConnectionResetError(), 0.0, PAUSE_S),
    ],
)
async def test_a_watch_that_ends_goes_on_from_the_last_version_it_has_shown(
    how_it_ends: bytes | Exception, after_s: float, pause_s: float
) -> None:
    lines: list[Line] = [event("ADDED", found("a", 8)), event("BOOKMARK", found("", 12)), after_s, how_it_ends]
    server, follower = await follow_for(5.0, page(7), lines, [event("ADDED", found("b", 13))])
    assert server.asked == [("list", ""), ("watch", "7"), ("watch", "12")]
    assert server.times_s[2] - server.times_s[1] == pytest.approx(after_s + pause_s)
    assert follower.shown == [("a", False), ("b", False)]


@pytest.mark.parametrize("too_old", [TOO_OLD, [event("ADDED", found("a", 8)), error_event(410)]])
async def test_whoever_is_too_far_behind_reads_everything_again_and_tells_what_there_is(too_old: Answer) -> None:
    server, follower = await follow_for(5.0, page(7, found("old", 6)), too_old, page(30, found("b", 20)))
    assert server.asked == [("list", ""), ("watch", "7"), ("list", ""), ("watch", "30")]
    assert follower.listings == [{"uid-old"}, {"uid-b"}]
    assert follower.listed_before[1] == len(follower.shown) - 1, "what was shown until then may be missing in the list"


async def test_a_list_that_breaks_off_tells_nothing_and_is_read_anew() -> None:
    server, follower = await follow_for(
        5.0, page(7, found("a", 3), token="next"), TOO_OLD, page(9, found("a", 3), found("b", 8))
    )
    assert server.asked == [("list", ""), ("list", "next"), ("list", ""), ("watch", "9")]
    assert follower.listings == [{"uid-a", "uid-b"}]


async def test_what_only_the_pages_before_a_list_expired_have_shown_is_in_no_list() -> None:
    """It is gone by the second list, and no event will say so."""
    server, follower = await follow_for(5.0, page(7, found("a", 3), token="next"), TOO_OLD, page(9, found("b", 8)))
    assert server.asked == [("list", ""), ("list", "next"), ("list", ""), ("watch", "9")]
    assert follower.shown == [("a", False), ("b", False)]
    assert follower.listings == [{"uid-b"}]


@pytest.mark.parametrize("error", [Unreachable("away"), Unreachable("later", 503), Denied("forbidden", 403)])
async def test_an_error_pauses_and_loses_nothing(error: ApiError) -> None:
    server, _ = await follow_for(10.0, error, page(7), error, error, [event("ADDED", found("a", 8))])
    assert server.asked == [("list", ""), ("list", ""), *[("watch", "7")] * 3]
    pauses = [later - earlier for earlier, later in zip(server.times_s, server.times_s[1:], strict=False)]
    assert pauses == pytest.approx([PAUSE_S, 0.0, PAUSE_S, PAUSE_S])


async def test_a_line_that_was_cut_off_is_read_again() -> None:
    cut_off = event("ADDED", found("b", 9))[:20]
    server, follower = await follow_for(5.0, page(7), [event("ADDED", found("a", 8)), cut_off])
    assert server.asked[1] == ("watch", "7")
    assert server.asked[2][0] == "watch"
    assert int(server.asked[2][1]) <= 8
    assert follower.shown == [("a", False)]


class Choosy(Follower):
    """Cannot take in one of the objects."""

    def changed(self, of: Json, gone: bool) -> None:
        if of["metadata"]["name"] == "odd":
            raise TypeError("an odd object")
        super().changed(of, gone)


async def test_an_object_that_cannot_be_taken_in_is_left_out_and_named_and_the_watch_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, follower = await follow_for(
        60.0,
        page(7, found("odd", 3), found("a", 4)),
        [event("MODIFIED", found("odd", 8)), event("ADDED", found("b", 9))],
        follower=Choosy(),
    )
    assert follower.shown == [("a", False), ("b", False)]
    assert follower.listings == [{"uid-odd", "uid-a"}]
    assert server.asked == [("list", ""), ("watch", "7")]
    assert [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()] == [
        "object odd is skipped: processing it failed"
    ] * 2


async def test_an_event_without_sense_makes_everything_be_listed_again_after_growing_pauses() -> None:
    senseless: list[Answer] = [page(7, found("a", 3)), [b'{"type": "MODIFIED", "object": 5}\n']]
    server, follower = await follow_for(PAUSE_S * 6.5, *senseless * 3, page(9, found("b", 9)), [])
    assert [asked for asked, _ in server.asked] == ["list", "watch"] * 3
    assert [time_s - server.times_s[0] for time_s in server.times_s[::2]] == [0.0, PAUSE_S, 3 * PAUSE_S]
    assert follower.shown == [("a", False)] * 3


def lists_of(server: Server) -> list[float]:
    """Return when each list began."""
    return [at_s for asked, at_s in zip(server.asked, server.times_s, strict=True) if asked == ("list", "")]


FORGETFUL: list[list[Answer]] = [
    [page(7), TOO_OLD],
    [page(7), [error_event(410)]],
    [page(7), [event("ADDED", found("a", 8)), error_event(410)]],
    [page(7), [ENDED], [error_event(410)]],  # a watch that ends at once tells nothing of what the server remembers
    [page(7, token="next"), TOO_OLD],
]


@pytest.mark.parametrize("round_", FORGETFUL)
async def test_a_server_that_forgets_at_once_is_asked_for_lists_less_and_less_often(round_: list[Answer]) -> None:
    """A list of all pods costs both sides seconds."""
    server, _ = await follow_for(200.0, *round_ * 20)
    lists_s = lists_of(server)
    extra_s = PAUSE_S * (len(round_) - 2) if round_[0] == page(7) else 0.0
    pauses = [later - earlier - extra_s for earlier, later in itertools.pairwise(lists_s)]
    assert pauses[:6] == pytest.approx([PAUSE_S, 2, 4, 8, 16, LONGEST_PAUSE_S])
    assert len(lists_s) <= 12


@pytest.mark.parametrize("end", [error_event(410), ENDED])
async def test_after_a_watch_that_lasted_the_pauses_begin_anew(end: bytes) -> None:
    forgetful: list[Answer] = [page(7), TOO_OLD]
    lasted: list[Answer] = [page(8), [LONGEST_PAUSE_S + 1, end], *([TOO_OLD] if end == ENDED else [])]
    server, _ = await follow_for(200.0, *forgetful * 4, *lasted, page(9), [])
    assert server.asked[-1] == ("watch", "9")
    *_, last_but_one_s, last_s = lists_of(server)
    assert last_s - last_but_one_s == pytest.approx(LONGEST_PAUSE_S + 1 + PAUSE_S)


async def test_following_ends_when_it_is_cancelled() -> None:
    task = asyncio.create_task(
        follow(cast(KubeClient, Server(page(7))), PATH, SELECTOR, Follower().changed, Follower().listing)
    )
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("answer", [[aiohttp.ClientError("reset")], Unreachable("away")])
async def test_after_etcd_was_put_back_everything_is_listed_again(answer: Answer) -> None:
    """A watch from a version that is still to come shows nothing until as much has happened again."""
    server, follower = Server(page(7, found("a", 3), found("b", 7)), answer, page(4, found("a", 3))), Follower()
    server.version_now = 4
    task = asyncio.create_task(follow(cast(KubeClient, server), PATH, SELECTOR, follower.changed, follower.listing))
    await asyncio.sleep(5 * PAUSE_S)
    assert server.asked == [("list", ""), ("watch", "7"), ("list", ""), ("watch", "4")]
    assert follower.listings == [{"uid-a", "uid-b"}, {"uid-a"}]
    task.cancel()
