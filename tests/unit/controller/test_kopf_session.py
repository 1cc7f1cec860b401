"""No answer of the API server ends Kopf: tested with the requests that it sends, and with how it reads the answers.

What Kopf does without our session is tested, too. Where a next release survives by itself, that test fails, and the
part of the session that it is about can go.
"""

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

import kopf
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import Configuration

from fakes.objects import a_node_object
from gpuledger.controller import kopf_session
from gpuledger.controller.kopf_frame import configure, show
from gpuledger.controller.kopf_session import ListsRead, SteadyAnswers, session
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.clock import Backoff

Json = dict[str, Any]


START_S = 30.0
"""How long a server may take to start on a busy machine."""


def event(kind: str, /, **fields: Any) -> bytes:
    """Return an event of a watch, as the API server writes it."""
    return json.dumps({"type": kind, "object": fields}, separators=(",", ":")).encode() + b"\n"


def error(code: int) -> bytes:
    return event("ERROR", reason="made up by the test", code=code)


def page(*items: Json, token: str = "") -> Json:
    return {"metadata": {"resourceVersion": "7", "continue": token}, "items": list(items)}


def node(name: str) -> Json:
    found = a_node_object(name)
    return {**found, "metadata": {"uid": f"uid-{name}", "resourceVersion": "8", **found["metadata"]}}


Answer = int | str | Json | list[bytes]
"""A status, a body that is no JSON, one that is, or the chunks of a watch."""


class Server:
    """An API server that answers each list or watch with the next of its answers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, str]] = []
        self.authorizations: list[str | None] = []
        self.writes: list[str] = []
        self.on_used_up: Callable[[], object] = bool
        """Called when there is no answer any more; who asks then waits until the server is told to end."""
        self.ended = threading.Event()

    async def write(self, request: web.Request) -> web.Response:
        self.writes.append(f"{request.method} {request.path}")
        return web.json_response({})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.authorizations.append(request.headers.get("Authorization"))
        if not self.answers:
            self.on_used_up()
            await asyncio.to_thread(self.ended.wait)
            return web.Response(status=503)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, str):
            return web.Response(text=answer, content_type="application/json")
        if isinstance(answer, dict):
            return web.json_response(answer)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in answer:
            await response.write(chunk)
            await asyncio.sleep(0)
        return response


class StubClient:
    """An account whose token is another one each time."""

    def __init__(self, host: str = "") -> None:
        self.configuration = Configuration()
        self.configuration.host = host
        self._tokens = 0

    async def authorization(self) -> str | None:
        self._tokens += 1
        return f"Bearer token-{self._tokens}"


@pytest.fixture
def lists() -> ListsRead:
    """Return lists of which none has been read yet."""
    return ListsRead(["nodes"])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_session, "PAUSE_S", 0.0)


async def ask(
    server: Server, lists: ListsRead, query: str, middleware: SteadyAnswers | None = None
) -> tuple[int, bytes]:
    """Send one request as Kopf does; return the status and the body of its answer, read as Kopf reads it."""
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    middleware = middleware or SteadyAnswers(cast(KubeClient, StubClient()), lists)
    async with (
        TestServer(application) as running,
        ClientSession(middlewares=[middleware]) as opened,
        opened.get(running.make_url(f"/api/v1/nodes?{query}")) as response,
    ):
        if "watch" in query:
            return response.status, b"".join([chunk async for chunk in response.content.iter_chunked(1024)])
        return response.status, json.dumps(await response.json()).encode()


async def watched(server: Server, lists: ListsRead, query: str) -> list[Json]:
    status, content = await ask(server, lists, query)
    assert status == 200
    return [json.loads(line) for line in content.splitlines()]


async def test_a_watch_that_is_refused_as_too_old_has_kopf_list_anew(lists: ListsRead) -> None:
    """Begun without a version, it would show what was already there, and that maybe as it was before."""
    server = Server(410)
    found = await watched(server, lists, "watch=true&fieldSelector=x%3Dy&resourceVersion=7")
    assert found == [{"type": "ERROR", "object": {"code": 410}}]
    assert server.asked == [{"watch": "true", "fieldSelector": "x=y", "resourceVersion": "7"}]


@pytest.mark.parametrize("refused", [410, [error(410)]], ids=["at its beginning", "in its first line"])
async def test_a_server_that_forgets_at_once_is_asked_less_and_less_often(
    lists: ListsRead, refused: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, all nodes are listed again, and compared."""
    pauses: list[float] = []

    class Recorded(Backoff):
        def next_s(self) -> float:
            pauses.append(super().next_s())
            return pauses[-1]

    monkeypatch.setattr(kopf_session, "PAUSE_S", 0.001)
    monkeypatch.setattr(kopf_session, "Backoff", Recorded)
    middleware = SteadyAnswers(cast(KubeClient, StubClient()), lists)
    for _ in range(4):
        await ask(Server(refused), lists, "watch=true", middleware)
    assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.008])
    monkeypatch.setattr(kopf_session, "LONGEST_PAUSE_S", -1.0)  # the next one lasts longer
    await ask(Server([error(410)]), lists, "watch=true", middleware)
    assert pauses[-1] == 0.001


BROKEN = {
    "500": error(500),
    "504": error(504),
    "no JSON": b"{\n",
    "no object": b'{"type":"ADDED"}\n',
    "a list": b"[]\n",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
async def test_a_watch_has_just_ended_before_a_line_that_kopf_would_not_survive(lists: ListsRead, line: bytes) -> None:
    whole = event("ADDED", name="a")
    found = await watched(Server([whole[:9], whole[9:] + line, event("ADDED", name="b")]), lists, "watch=true")
    assert [each["object"]["name"] for each in found] == ["a"]
    assert not lists.again.is_set()


async def test_an_error_after_which_kopf_lists_anew_reaches_it(lists: ListsRead) -> None:
    found = await watched(Server([event("ADDED", name="a"), error(410)]), lists, "watch=true")
    assert [each["type"] for each in found] == ["ADDED", "ERROR"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("query", ["limit=1", "watch=true"])
async def test_what_is_refused_is_asked_again_with_a_token_of_that_time(
    lists: ListsRead, status: int, query: str
) -> None:
    good: Answer = page() if query == "limit=1" else [event("ADDED", name="a")]
    server = Server(status, status, good)
    assert (await ask(server, lists, query))[0] == 200
    assert server.authorizations == [f"Bearer token-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize("text", ["", "{", "<html/>", "[]"])
async def test_an_answer_that_is_no_object_is_asked_for_again(lists: ListsRead, text: str) -> None:
    found = json.loads((await ask(Server(text, page()), lists, "limit=1"))[1])
    assert found == {"metadata": {"resourceVersion": "7"}, "items": []}


async def test_a_list_is_given_without_its_objects_and_ends_with_its_first_page(lists: ListsRead) -> None:
    """The operator reads all nodes itself after each list, and Kopf would have a task for each of them."""
    await ask(Server({"resources": []}), lists, "")
    assert not lists.first.is_set()
    _, answer = await ask(Server(page(node("a"), token="next")), lists, "limit=1")
    assert json.loads(answer) == {"metadata": {"resourceVersion": "7"}, "items": []}
    assert lists.first.is_set()
    assert not lists.again.is_set()


# With Kopf itself.

NAMES = ("namespaces", "nodes", "events")
RESOURCES = [
    {"name": name, "kind": name[:-1].title(), "singularName": "", "namespaced": False, "verbs": ["list", "watch"]}
    for name in NAMES
]
DISCOVERY: dict[str, Json] = {
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": []},
    "/api/v1": {"resources": RESOURCES},
}


@contextlib.contextmanager
def kopfs_answers(server: Server) -> Iterator[str]:
    """Serve what Kopf asks for before it lists; from then on the server's answers.

    In a thread: Kopf would wait for the server's tasks when it ends, as for all of its loop.
    """

    async def discovered(request: web.Request) -> web.Response:
        return web.json_response(DISCOVERY[request.path])

    application = web.Application()
    for path in DISCOVERY:
        application.router.add_get(path, discovered)
    application.router.add_get("/api/v1/nodes", server.answer)
    application.router.add_route("*", "/{path:.*}", server.write)
    address: SimpleQueue[str] = SimpleQueue()

    async def serve() -> None:
        async with TestServer(application) as running:
            address.put(str(running.make_url("")).rstrip("/"))
            await asyncio.to_thread(server.ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield address.get(timeout=START_S)
    finally:
        server.ended.set()
        thread.join()


async def run_kopf(server: Server, lists: ListsRead, with_our_session: bool) -> list[tuple[str | None, str]]:
    """Run Kopf until the server has no more answers; return type and name of what it has shown. Raises what ends it."""
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    configure(settings)
    if not with_our_session:
        settings.persistence.finalizer = kopf.OperatorSettings().persistence.finalizer
    seen: list[tuple[str | None, str]] = []

    loop = asyncio.get_running_loop()
    with kopfs_answers(server) as host:

        @kopf.on.login(registry=registry)
        async def log_in(**_: Any) -> kopf.AiohttpSession | kopf.ConnectionInfo:
            client = cast(KubeClient, StubClient(host))
            return session(client, lists) if with_our_session else kopf.ConnectionInfo(server=host)

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def shown(event: kopf.RawEvent, **_: Any) -> None:
            seen.append((event["type"], event["object"]["metadata"]["name"]))
            if with_our_session:
                await show(lambda _, gone: None, lists.in_hand["nodes"], event)

        running = asyncio.create_task(kopf.operator(registry=registry, settings=settings, clusterwide=True))
        server.on_used_up = partial(loop.call_soon_threadsafe, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return seen


async def test_kopf_goes_on_after_all_of_it_and_shows_what_there_is(lists: ListsRead) -> None:
    server = Server(
        *(404, "<html/>", page(node("a"), token="next")),
        *(403, [error(500)], [b"{\n"], [event("MODIFIED", **node("a"))]),
        *(
            410,
            page(),
            [event("ADDED", **node("c")), error(410)],
            503,
            page(node("d")),
            [event("DELETED", **node("d"))],
        ),
    )
    found = await run_kopf(server, lists, with_our_session=True)
    assert found == [("MODIFIED", "a"), ("ADDED", "c"), ("DELETED", "d")]
    assert lists.first.is_set()
    assert lists.again.is_set()
    assert {key for query in server.asked for key in query} >= {"limit", "watch", "resourceVersion"}


FATAL: dict[str, tuple[list[Answer], str]] = {
    "a list that is refused": ([404], "APINotFoundError"),
    "a page that is too old": ([page(node("a"), token="next"), 410], "APIClientError"),
    "a list that is no JSON": (["<html/>"], "JSONDecodeError"),
    "a watch that is refused as too old": ([page(), 410], "APIClientError"),
    "a watch that tells of an error": ([page(), [error(500)]], "WatchingError"),
    "a line that is no JSON": ([page(), [b"{\n"]], "JSONDecodeError"),
}
"""What ends Kopf, and the name of what it raises then."""


@pytest.mark.parametrize(("answers", "raised"), FATAL.values(), ids=FATAL)
async def test_kopf_by_itself_would_have_ended(lists: ListsRead, answers: list[Answer], raised: str) -> None:
    running = run_kopf(Server(*answers), lists, with_our_session=False)
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    assert type(outcome).__name__ == raised, repr(outcome)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_nothing_is_written_to_what_another_operator_of_kopf_has_marked(lists: ListsRead, is_ours: bool) -> None:
    """Kopf by itself would take the finalizer away, which every operator of Kopf has by default."""
    marked = node("a")
    marked["metadata"]["finalizers"] = [kopf.OperatorSettings().persistence.finalizer]
    marked["metadata"]["annotations"] = {"kopf.zalando.org/last-handled-configuration": "{}"}
    server = Server(page(), [event("ADDED", **marked), event("MODIFIED", **marked)])
    assert await run_kopf(server, lists, with_our_session=is_ours) == [("ADDED", "a"), ("MODIFIED", "a")]
    assert bool(server.writes) != is_ours


@pytest.mark.parametrize("is_ours", [True, False])
async def test_what_can_be_long_of_an_object_does_not_wait_for_a_collection_of_garbage(
    lists: ListsRead, is_ours: bool
) -> None:
    """Kopf by itself keeps it: its own objects refer to each other in circles."""
    text = ["a text that may have a million letters"]
    nodes = [node(name) for name in ("a", "b", "c")]
    for each in nodes:
        each["status"]["texts"] = [text]
    server = Server(page(), [event("ADDED", **each) for each in nodes])
    gc.disable()
    try:
        assert len(await run_kopf(server, lists, is_ours)) == len(nodes)
        kept = sum(1 for each in gc.get_objects() if type(each) is list and each == text and each is not text)
    finally:
        gc.enable()
    assert (kept == 0) is is_ours, kept
