"""The history over changes of replicas: each replica follows the others over HTTP, and a new process has it all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from builders import a_pod
from fakes.api_server import ApiServer
from fakes.operator_parts import an_operator
from gpuledger.configuration.settings import Settings
from gpuledger.controller import history as history_module
from gpuledger.controller.history import PATH, History, RecordStreams, Replicas, line_of, settings_of
from gpuledger.formats.kubernetes.other import HISTORY_AUDIENCE, TOKEN_HEADER
from gpuledger.model.errors import Unreachable
from gpuledger.reports.records import Record, RecordKind
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.system_clock import SystemClock

Json = dict[str, Any]

TOKEN = "of-the-operator"


class Reviews:
    """Says whose tokens these are, as the API server would."""

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        if token == "trouble":
            raise Unreachable("no answer")
        return {"username": token} if audience == HISTORY_AUDIENCE and token != "unknown" else None

    async def may_list(self, user: Json, group: str, resource: str) -> bool:
        return bool(user["username"] == TOKEN)


class Replica:
    """One process: its trail, what it serves, and whom it follows."""

    def __init__(self, name: str, directory: Path, settings: dict[str, Any] | None = None) -> None:
        token = directory / "token"
        token.write_text(f"{TOKEN}\n")
        parts = an_operator(ApiServer())
        context = parts.workflows.context
        context.settings = replace(Settings(), explain_port=1, **(settings or {}))
        context.clock = context.trail._clock = SystemClock()
        context.leadership = Leadership(name)
        self.name, self.directory = name, directory / name
        self.trail, self.leadership, self.counts = context.trail, context.leadership, context.counts
        self.replicas = Replicas(name, token, context.clock, context.counts, context.trail.most)
        self.history = History(context, self.replicas)
        self.streams = RecordStreams(self.trail, Reviews())  # type: ignore[arg-type]
        self.heard: list[Record] = []
        self.trail.on_record.append(self.heard.append)
        self.server = TestServer(self._application())

    def _application(self) -> web.Application:
        application = web.Application()
        self.streams.add_to(application)
        return application

    @contextlib.asynccontextmanager
    async def running(self, *others: "Replica") -> AsyncIterator["Replica"]:
        async with self.server:
            for other in others:
                self.replicas.follow(other.name, str(other.server.make_url(PATH)))
            self.replicas.listed.set()
            with self.history.written(self.directory, self.streams):
                run = asyncio.create_task(self.history.run(self.name))
                try:
                    await until(lambda: self.history.is_settled)
                    yield self
                finally:
                    run.cancel()
                    await asyncio.wait([run])

    def becomes(self, active: bool) -> None:
        holder = f"{self.name}_1" if active else "another_2"
        self.leadership.observe({"spec": {"holderIdentity": holder}}, gone=False)

    def evicts(self, *names: str) -> None:
        for name in names:
            self.trail.note(RecordKind.EVICTED, a_pod(name), "node-a", [], "for another")

    @property
    def pods(self) -> list[str]:
        return [record.pod.name for record in self.trail if record.pod.name]

    @property
    def said(self) -> list[str]:
        return [record.text for record in self.trail if record.kind is RecordKind.ACTIVE]


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():  # noqa: ASYNC110 - other tasks bring it about, and tell nobody
            await asyncio.sleep(0.005)


async def test_a_replica_that_comes_has_what_the_others_have_and_gets_each_record_as_it_happens(tmp_path: Path) -> None:
    first, second = Replica("a", tmp_path), Replica("b", tmp_path)
    async with first.running():
        first.evicts("one", "two")
        async with second.running(first):
            assert second.pods == ["one", "two"], "it counts as ready then, and not before"
            first.evicts("three")
            await until(lambda: second.pods == ["one", "two", "three"])
            assert second.heard == [], "parts that act on records act on their own"


async def test_a_rolling_update_of_both_replicas_loses_nothing(tmp_path: Path) -> None:
    old = [Replica("old-a", tmp_path), Replica("old-b", tmp_path)]
    new = [Replica("new-a", tmp_path, {"node_policy": "spread"}), Replica("new-b", tmp_path, {"node_policy": "spread"})]
    async with contextlib.AsyncExitStack() as last:
        async with old[0].running():
            old[0].becomes(active=True)
            await until(lambda: bool(old[0].said))
            async with old[1].running(old[0]):
                old[0].evicts("one")
                await last.enter_async_context(new[0].running(old[0], old[1]))
            old[0].evicts("two")
            await last.enter_async_context(new[1].running(old[0], new[0]))
            await until(lambda: new[1].pods == new[0].pods == ["one", "two"])
        new[1].becomes(active=True)
        await until(lambda: len(new[1].said) == 2)
        assert new[1].said[1] == 'new-b is the active replica; changed: node_policy from the default to "spread"'
        assert new[1].pods == ["one", "two"]


async def test_two_that_follow_each_other_keep_each_record_once(tmp_path: Path) -> None:
    first, second = Replica("a", tmp_path), Replica("b", tmp_path)
    async with first.running(), second.running(first):
        first.replicas.follow("b", str(second.server.make_url(PATH)))
        first.evicts("one")
        second.evicts("two")
        await until(lambda: sorted(first.pods) == sorted(second.pods) == ["one", "two"])
        await asyncio.gather(first.replicas.caught_up(), second.replicas.caught_up())
        assert sorted(first.pods) == sorted(second.pods) == ["one", "two"]


async def test_both_start_again_at_once_and_go_on_from_their_files(tmp_path: Path) -> None:
    """What a replica has got from another one is in its own file, too: that one may have been replaced since."""
    first, second = Replica("a", tmp_path), Replica("b", tmp_path)
    async with first.running():
        first.evicts("one")
        async with second.running(first):
            first.evicts("two")
            await until(lambda: second.pods == ["one", "two"])
    again = Replica("b", tmp_path)
    async with again.running():
        again.becomes(active=True)
        await until(lambda: bool(again.said))
        assert again.pods == ["one", "two"]


async def test_the_replica_that_is_active_already_when_it_starts_asks_the_others_first(tmp_path: Path) -> None:
    """Its container was started again before kube-scheduler's Lease had passed; the other replica knows what it did."""
    second, first = Replica("b", tmp_path), Replica("a", tmp_path)
    second.evicts("one")
    second.trail.active("a", settings_of(Settings()), 1.0)
    first.becomes(active=True)
    async with second.running(), first.running(second):
        await until(lambda: len(first.said) == 2)
        assert first.pods == ["one"]
        assert first.said[1].startswith("a is the active replica; changed: explain_port")


async def test_one_that_can_not_be_reached_keeps_nobody_waiting_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "SETTLE_S", 0.2)
    alone, gone = Replica("a", tmp_path), Replica("b", tmp_path)
    async with gone.server:
        url = str(gone.server.make_url(PATH))
    alone.replicas.follow("b", url)
    async with alone.running():
        assert alone.history.is_settled


async def test_an_older_release_that_has_no_such_path_has_nothing_to_give(tmp_path: Path) -> None:
    alone = Replica("a", tmp_path)
    async with TestServer(web.Application()) as older:
        alone.replicas.follow("b", str(older.make_url(PATH)))
        begin_s = asyncio.get_running_loop().time()
        async with alone.running():
            assert asyncio.get_running_loop().time() - begin_s < history_module.SETTLE_S


async def test_what_another_one_sends_is_read_strictly(tmp_path: Path) -> None:
    alone, other = Replica("a", tmp_path), Replica("b", tmp_path)
    other.evicts("one", "two")
    first, second = map(line_of, other.trail)

    async def answer(request: web.Request) -> web.Response:
        assert request.headers[TOKEN_HEADER] == TOKEN
        return web.Response(body=b"\n".join([first, b"garbage", b"x" * 1_000_000, b"", b"[]", second, first[:50]]))

    application = web.Application()
    application.add_routes([web.get(PATH, answer)])
    async with TestServer(application) as server:
        alone.replicas.follow("b", str(server.make_url(PATH)))
        async with alone.running():
            await until(lambda: alone.pods == ["one", "two"] and alone.counts.trail_lines_skipped._value.get() >= 2)


@pytest.mark.parametrize(
    ("token", "status"),
    [(TOKEN, 200), ("", 401), ("unknown", 401), ("of-somebody", 403), ("trouble", 503)],
)
async def test_who_reads_the_history_needs_a_token_for_it_of_an_account_that_may_list_the_ledger(
    tmp_path: Path, token: str, status: int
) -> None:
    replica = Replica("a", tmp_path)
    async with TestClient(replica.server) as client:
        answer = await client.get(PATH, headers={TOKEN_HEADER: token} if token else {})
        assert answer.status == status
        answer.close()


async def test_a_reader_that_takes_nothing_is_sent_away_and_there_is_room_for_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "UNSENT", 10)
    monkeypatch.setattr(history_module, "READERS", 2)
    replica = Replica("a", tmp_path)
    async with TestClient(replica.server) as client:
        readers = [await client.get(PATH, headers={TOKEN_HEADER: TOKEN}) for _ in range(2)]
        assert (await client.get(PATH, headers={TOKEN_HEADER: TOKEN})).status == 429
        for _ in range(11):
            replica.streams.put(b"{}")
        assert replica.streams._readers == {}
        for reader in readers:
            reader.close()


def a_replicas_pod(name: str, address: str = "10.0.0.7", **status: str) -> Json:
    ports = [{"name": "health", "containerPort": 8889}, {"name": "explain", "containerPort": 8892}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "operator", "ports": ports}]},
        "status": {"phase": "Running", "podIP": address, **status},
    }


async def test_the_pods_of_the_other_replicas_are_followed_where_they_are(tmp_path: Path) -> None:
    replicas = Replica("a", tmp_path).replicas
    replicas.observe(a_replicas_pod("a"), False)
    replicas.observe(a_replicas_pod("loopback", "127.0.0.1"), False)
    replicas.observe(a_replicas_pod("not-yet", ""), False)
    replicas.observe(
        {**a_replicas_pod("leaving"), "metadata": {"name": "l", "uid": "l", "deletionTimestamp": "x"}}, False
    )
    assert replicas._known == {}
    replicas.observe(a_replicas_pod("b"), False)
    replicas.observe(a_replicas_pod("c", "fd00::7"), False)
    assert list(replicas._known.values()) == [f"http://10.0.0.7:8892{PATH}", f"http://[fd00::7]:8892{PATH}"]
    listed = replicas.listing()
    replicas.observe(a_replicas_pod("b", phase="Failed"), False)
    listed(set())
    assert replicas._known == {}
