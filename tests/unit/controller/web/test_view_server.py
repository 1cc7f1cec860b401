"""The page's server: who gets in, what browsers are told, and what is sent."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from fakes.usage import measure
from fakes.view_cluster import ViewCluster, with_gangs
from gpuledger import __version__
from gpuledger.controller.web import feed as view_feed
from gpuledger.controller.web import view_server
from gpuledger.controller.web.feed import LedgerSource
from gpuledger.controller.web.view_server import (
    LocalAccess,
    TokenAccess,
    ViewServer,
    access_for,
    is_loopback,
    page_files,
)
from gpuledger.model.errors import Unreachable

Json = dict[str, Any]
Client = TestClient[web.Request, web.Application]
GET_PATHS = ["/", "/page.js", "/v1/cluster", "/v1/explain?pod=a/b", "/v1/history", "/v1/usage", "/nowhere"]


class Reviewer:
    """Knows three accounts, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = {"reader"}
        self.error: Exception | None = None

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        self.asked.append(token)
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return {"username": token} if token in ("reader", "stranger") else None

    async def may_list(self, user: Json, group: str, resource: str) -> bool:
        assert (group, resource) == ("gpuledger.dev", "gpuallocations")
        return user["username"] in self.allowed


@pytest.fixture
def cluster() -> ViewCluster:
    cluster = ViewCluster()
    cluster.add_nodes(2, cards=2)
    return cluster


@pytest.fixture
async def client(cluster: ViewCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(view_feed, "INTERVAL_S", 0.01)
    async with TestClient(TestServer(ViewServer(cluster.source, LocalAccess()).application())) as client:
        yield client


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
def three_tokens_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_server, "TOKENS_KNOWN", 3)


@pytest.fixture
async def guarded(cluster: ViewCluster, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(view_feed, "INTERVAL_S", 0.01)
    async with TestClient(TestServer(ViewServer(cluster.source, TokenAccess(reviewer)).application())) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def message(response: aiohttp.ClientResponse) -> Json:
    """Return the next change; skips what only says that nothing is new."""
    while not (line := await response.content.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    found: Json = orjson.loads(line[6:])
    return found


def names(change: Json) -> list[str]:
    return sorted(node["node"] for node in change["nodes"])


# What browsers are told.


@pytest.mark.parametrize("path", GET_PATHS)
async def test_every_answer_keeps_other_websites_out(client: Client, path: str) -> None:
    headers = (await client.get(path)).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


async def test_data_is_never_kept_by_the_browser(client: Client) -> None:
    assert (await client.get("/v1/cluster")).headers["Cache-Control"] == "no-store"


async def test_a_file_is_not_sent_again_unless_it_has_changed(client: Client) -> None:
    first = await client.get("/page.css")
    assert first.headers["Content-Type"].startswith("text/css")
    again = await client.get("/page.css", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, await again.read()) == (304, b"")


def test_the_page_has_nothing_that_its_policy_forbids() -> None:
    files = {file.path: file.content.decode() for file in page_files()}
    assert {"/", "/page.css", "/page.js", "/icon.svg"} <= files.keys()
    assert "style=" not in files["/"]
    assert files["/"].count("<script") == files["/"].count('<script type="module" src=')
    scripts = [text for path, text in files.items() if path.endswith(".js")]
    forbidden = ("innerHTML =", "outerHTML", "insertAdjacentHTML", "eval(", "document.write")
    assert [word for text in scripts for word in forbidden if word in text] == []
    assert [path for path, text in files.items() if "://" in text.replace("http://www.w3.org/2000/svg", "")] == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_can_be_changed(client: Client, method: str) -> None:
    assert [(await client.request(method, path)).status for path in ("/", "/v1/cluster", "/v1/explain")] == [405] * 3


@pytest.mark.parametrize("path", ["/..%2fview_server.py", "/%2e%2e/view_server.py", "/view_server.py", "/page/page.js"])
async def test_only_the_pages_own_files_are_served(client: Client, path: str) -> None:
    assert (await client.get(path)).status == 404


# Who gets in, on a loopback address.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8891", 200),
        ("127.0.0.1:8891", 200),
        ("[::1]:8891", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8891", 403),
        ("10.0.0.1:8891", 403),
        ("[::1", 403),
    ],
)
async def test_a_name_that_points_here_is_not_enough(client: Client, host: str, status: int) -> None:
    """DNS rebinding: a website's own name resolves to 127.0.0.1, and its scripts are of the same origin as we."""
    answers = [(await client.get(path, headers={"Host": host})).status for path in ("/", "/v1/cluster")]
    assert answers == [status, status]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
    ],
)
async def test_other_websites_get_no_data(client: Client, headers: dict[str, str], status: int) -> None:
    assert (await client.get("/v1/cluster", headers=headers)).status == status


async def test_a_link_may_lead_to_the_page_but_no_frame(client: Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.get("/", headers=link)).status == 200
    assert (await client.get("/", headers=link | {"Sec-Fetch-Dest": "iframe"})).status == 403


def test_only_loopback_addresses_need_no_token() -> None:
    local = [host for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost", "0.0.0.0", "::", "10.1.2.3", "a.b")]  # noqa: S104, C416
    assert [is_loopback(host) for host in local] == [True] * 4 + [False] * 4
    assert [access_for(host, Reviewer()).asks_for_token for host in local] == [False] * 4 + [True] * 4


# Who gets in, elsewhere.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer("nobody"), 401),
        (bearer("stranger"), 403),
        (bearer("reader"), 200),
        (bearer(""), 401),
        ({"Authorization": "Basic cmVhZGVy"}, 401),
        (bearer("x" * 7000), 401),
    ],
)
@pytest.mark.parametrize("path", ["/v1/cluster", "/v1/history", "/v1/changes"])
async def test_data_needs_a_token_whose_owner_may_list_cards(
    guarded: Client, path: str, headers: dict[str, str], status: int
) -> None:
    response = await guarded.get(path, headers=headers)
    assert response.status == status
    if status != 200:
        assert (await response.json())["error"]
    response.close()


async def test_the_page_itself_comes_without_a_token_for_it_asks_for_one(guarded: Client, reviewer: Reviewer) -> None:
    assert (await guarded.get("/")).status == 200
    assert reviewer.asked == []


async def test_the_api_server_is_asked_once_about_a_token(guarded: Client, reviewer: Reviewer) -> None:
    await asyncio.gather(*(guarded.get("/v1/history", headers=bearer("reader")) for _ in range(20)))
    assert reviewer.asked == ["reader"]


async def test_a_verdict_does_not_last(guarded: Client, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await guarded.get("/v1/history", headers=bearer("reader"))).status == 200
    reviewer.allowed.clear()
    assert (await guarded.get("/v1/history", headers=bearer("reader"))).status == 200
    late_s = asyncio.get_running_loop().time() + view_server.ALLOWED_S
    monkeypatch.setattr(view_server, "_now_s", lambda: late_s)
    assert (await guarded.get("/v1/history", headers=bearer("reader"))).status == 403


@pytest.mark.usefixtures("three_tokens_known")
async def test_made_up_tokens_do_not_fill_the_memory(guarded: Client, reviewer: Reviewer) -> None:
    for number in range(10):
        await guarded.get("/v1/history", headers=bearer(f"made-up-{number}"))
    await guarded.get("/v1/history", headers=bearer("made-up-9"))
    await guarded.get("/v1/history", headers=bearer("made-up-0"))
    assert reviewer.asked[10:] == ["made-up-0"]


async def test_nobody_gets_in_while_the_api_server_is_away(guarded: Client, reviewer: Reviewer) -> None:
    reviewer.error = Unreachable("no answer")
    assert (await guarded.get("/v1/cluster", headers=bearer("reader"))).status == 503
    reviewer.error = None
    assert (await guarded.get("/v1/cluster", headers=bearer("reader"))).status == 200


async def test_a_stream_ends_when_its_token_does(
    guarded: Client, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_server, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(view_server, "ALLOWED_S", 0.02)
    response = await guarded.get("/v1/changes", headers=bearer("reader"))
    await message(response)
    reviewer.allowed.clear()
    with pytest.raises(aiohttp.ClientError):
        await response.content.read()


# The data.


async def test_the_cluster_is_all_there_is(client: Client, cluster: ViewCluster) -> None:
    cluster.wait("default", "a", "1 x 1 MiB", [])
    found = await (await client.get("/v1/cluster")).json()
    assert names(found) == ["gpu-node-1", "gpu-node-2"]
    assert [card["index"] for card in found["nodes"][0]["cards"]] == [0, 1]
    assert [pod["pod"] for pod in found["waiting"]] == ["a"]


async def test_the_cluster_is_zipped_for_whoever_can_read_that(client: Client) -> None:
    plain = await client.get("/v1/cluster", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        zipped = await session.get(client.make_url("/v1/cluster"), headers={"Accept-Encoding": "gzip"})
        content = await zipped.read()
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(content) == await plain.read()


async def test_a_change_has_only_the_nodes_that_changed(client: Client, cluster: ViewCluster) -> None:
    edition = (await (await client.get("/v1/cluster")).json())["edition"]
    response = await client.get(f"/v1/changes?since={edition}")
    first = await message(response)
    assert (first["nodes"], first["gone"], first["waiting"], first["full"]) == ([], [], None, False)
    card = cluster.ledger.entries_of_node("gpu-node-2")[0].card
    cluster.put(card, cluster.holder(card, 1000, 10, name="newcomer"))
    change = await message(response)
    assert names(change) == ["gpu-node-2"]
    assert change["nodes"][0]["cards"][0]["holders"][0]["pod"] == "newcomer"
    assert change["edition"] > edition
    response.close()


async def test_a_change_of_the_waiting_pods_alone_is_sent(client: Client, cluster: ViewCluster) -> None:
    response = await client.get("/v1/changes")
    assert (await message(response))["waiting"] == []
    cluster.wait("default", "a", "1 x 1 MiB", [])
    change = await message(response)
    assert ([pod["pod"] for pod in change["waiting"]], change["nodes"]) == (["a"], [])
    response.close()


async def test_a_node_that_is_gone_is_named_also_to_whoever_was_away(client: Client, cluster: ViewCluster) -> None:
    edition = (await (await client.get("/v1/cluster")).json())["edition"]
    response = await client.get(f"/v1/changes?since={edition}")
    await message(response)
    for entry in cluster.ledger.entries_of_node("gpu-node-1"):
        cluster.remove(entry.card)
    change = await message(response)
    assert (change["gone"], change["nodes"]) == (["gpu-node-1"], [])
    response.close()
    late = await client.get(f"/v1/changes?since={edition}")
    assert (await message(late))["gone"] == ["gpu-node-1"]
    late.close()


@pytest.mark.parametrize("since", ["", "?since=1", "?since=99999999999999999"])
async def test_whoever_knows_no_edition_of_ours_gets_everything(client: Client, since: str) -> None:
    response = await client.get(f"/v1/changes{since}")
    change = await message(response)
    assert (change["full"], names(change)) == (True, ["gpu-node-1", "gpu-node-2"])
    response.close()


@pytest.mark.parametrize("query", ["since=-1", "since=x", "since=" + "9" * 30, "since=²"])
async def test_an_edition_is_a_number(client: Client, query: str) -> None:
    assert (await client.get(f"/v1/changes?{query}")).status == 400


@pytest.mark.parametrize("pod", ["", "a", "/a", "a/", "A/b", "a/b/c", "a/../b", "a/" + "b" * 300, "a/b%20c"])
async def test_nonsense_is_no_pod(client: Client, cluster: ViewCluster, pod: str) -> None:
    assert (await client.get(f"/v1/explain?pod={pod}")).status == 400
    assert cluster.explained == []


async def test_an_explanation_or_the_news_that_there_is_none(client: Client, cluster: ViewCluster) -> None:
    for explanation in ({"state": "waiting", "nodes": [{"node": "a"}, {"node": "b"}]}, {"state": "x", "nodes": []}):
        cluster.explanations["a/b"] = explanation
        assert await (await client.get("/v1/explain?pod=a/b")).json() == explanation
    unknown = await client.get("/v1/explain?pod=a/c")
    assert (unknown.status, "a/c" in (await unknown.json())["error"]) == (404, True)


async def test_a_gang_is_explained_and_its_records_are_found(client: Client, cluster: ViewCluster) -> None:
    with_gangs(cluster)
    found = await (await client.get("/v1/explain?gang=vision/pretrain")).json()
    assert found == cluster.gang_reports["vision/pretrain"]
    records = (await (await client.get("/v1/history?gang=asr")).json())["records"]
    assert [record["kind"] for record in records] == ["gang-planned", "gang-bound"]
    for gang, status in (("vision/nobody", 404), ("vision/Of_Some.Kind", 404), ("vision", 400), ("vision/a/b", 400)):
        assert (await client.get(f"/v1/explain?gang={gang}")).status == status


async def test_waiting_pods_are_listed_of_all_namespaces_or_of_one(client: Client, cluster: ViewCluster) -> None:
    cluster.waiting = [{"namespace": name, "pod": "big"} for name in ("lab", "team", "lab")]
    assert await (await client.get("/v1/waiting")).json() == {"pods": cluster.waiting}
    assert len((await (await client.get("/v1/waiting?namespace=lab")).json())["pods"]) == 2
    assert await (await client.get("/v1/waiting?namespace=empty")).json() == {"pods": []}
    assert (await client.get("/v1/waiting?namespace=a/b")).status == 400


async def test_every_replica_tells_its_version(client: Client, cluster: ViewCluster) -> None:
    cluster.active_elsewhere = "another"
    assert await (await client.get("/v1/version")).json() == {"version": __version__}


async def test_a_replica_on_standby_names_the_active_one_instead_of_answering_for_it(
    client: Client, cluster: ViewCluster
) -> None:
    cluster.explanations["a/b"] = {"state": "waiting", "nodes": []}
    for active, said in (("gpuledger-7d9f-abcde", "the active one is gpuledger-7d9f-abcde"), ("", "none is active")):
        cluster.active_elsewhere = active
        for path in ("/v1/explain?pod=a/b", "/v1/history", "/v1/waiting"):
            answer = await client.get(path)
            assert (answer.status, said in (await answer.json())["error"]) == (503, True)
    assert cluster.explained == []
    assert (await (await client.get("/v1/cluster")).json())["activeElsewhere"] == ""
    cluster.active_elsewhere = None
    assert (await client.get("/v1/explain?pod=a/b")).status == 200


async def test_history_is_limited(client: Client, cluster: ViewCluster) -> None:
    cluster.records = [{"pod": "a", "number": number} for number in range(12_000)]
    counts = [
        len((await (await client.get(f"/v1/history{query}")).json())["records"])
        for query in ("", "?limit=3", "?limit=999999", "?pod=b")
    ]
    assert counts == [100, 3, view_server.HISTORY_LIMIT, 0]
    assert (await client.get("/v1/history?limit=many")).status == 400
    assert (await client.get("/v1/history?since=yesterday")).status == 400
    assert (await client.get(f"/v1/history?card={'x' * 300}")).status == 400


# What it costs.


async def test_there_is_room_for_so_many_pages_and_no_more(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_server, "CLIENTS_LIMIT", 2)
    open_pages = [await client.get("/v1/changes") for _ in range(2)]
    refused = await client.get("/v1/changes")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
    for page in open_pages:
        page.close()


@pytest.mark.thorough
async def test_who_does_not_read_is_cut_off(cluster: ViewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for such a client is one chunk, and its connection: nothing is put by for it."""
    monkeypatch.setattr(view_server, "MESSAGE_TIMEOUT_S", 0.2)
    cluster.fill(cluster.add_nodes(2000))  # more than the buffers of a connection take
    server = ViewServer(cluster.source, LocalAccess())
    async with TestServer(server.application()) as site:
        reader, writer = await asyncio.open_connection(site.host, site.port, limit=1024)
        writer.write(b"GET /v1/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        assert server.feed.watchers == 1
        while server.feed.watchers:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(2**30)
        writer.close()


async def test_the_streams_end_with_the_server(cluster: ViewCluster) -> None:
    async with TestClient(TestServer(ViewServer(cluster.source, LocalAccess()).application())) as client:
        response = await client.get("/v1/changes")
        await message(response)
    # Leaving the block waits for the handlers; it would hang here if they went on.


async def test_what_is_used_is_said_node_by_node_with_who_is_idle_as_the_viewer_sees_it(
    client: Client, cluster: ViewCluster
) -> None:
    card = cluster.ledger.entries_of_node("gpu-node-1")[0].card
    cluster.put(card, cluster.holder(card, 4_000, 20, name="web"))
    measure(cluster, "gpu-node-1", {"web": {"lastKernelSecondsAgo": 100, "utilizationPercent": 0}})
    found = {}
    for query in ("", "?idleAfterS=60"):
        answer = await client.get(f"/v1/usage{query}")
        assert answer.status == 200
        found[query] = await answer.json()
    assert (found[""]["idleAfterS"], found["?idleAfterS=60"]["idleAfterS"]) == (300, 60)
    (used, idle) = (each["nodes"][0]["cards"][0] for each in found.values())
    assert (used["memoryHeldMiB"], used["memoryUsedMiB"], used["memoryIdleMiB"]) == (4_000, 3_000, 0)
    assert (idle["memoryIdleMiB"], idle["pods"][0]["containers"][0]["state"]) == (4_000, "idle")
    assert found[""]["nodes"][1]["problem"] == "no agent of gpuledger runs there"
    assert (await client.get("/v1/usage?idleAfterS=soon")).status == 400


async def test_where_no_agents_are_asked_nobody_can_say_what_is_used(cluster: ViewCluster) -> None:
    source = LedgerSource(cluster.ledger, list, cluster.explain, cluster.history)
    async with TestClient(TestServer(ViewServer(source, LocalAccess()).application())) as client:
        answer = await client.get("/v1/usage")
        assert (answer.status, await answer.json()) == (404, {"error": "no agents are asked here"})
