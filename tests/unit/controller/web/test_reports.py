"""`/v1/report`: the command's own report, from the operator; bounded, shared by all who ask, and by namespace."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner

from builders import a_card
from fakes.allocations import a_holder_of, a_list, an_allocation
from fakes.api_server import ApiServer, Operation
from fakes.api_server import refuse as refuse_with
from fakes.kubectl import FakeKubectl
from fakes.usage_records import a_record, days_until, held_hours, many_records
from gpuledger.command_line.commands import report as command
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.controller.web import pace
from gpuledger.controller.web.feed import LedgerSource
from gpuledger.controller.web.reports import ASKED_AT_ONCE, LISTS, Busy, Reports
from gpuledger.controller.web.view_server import DeveloperServer, LocalAccess, ViewServer
from gpuledger.formats.custom_resource.stored_card import ended_json, stored_card
from gpuledger.formats.kubernetes.other import TOKEN_HEADER
from gpuledger.kube_api.reads import KubeReviews
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.usage import ended_share
from gpuledger.model.errors import Denied, NotFound, Unreachable
from gpuledger.model.usage import Line
from gpuledger.reports.account import WAYS, Question, days_asked

Json = dict[str, Any]
Client = TestClient[web.Request, web.Application]

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TODAY = NOW.date()
TEAMS = ("team-a", "team-b", "team-c")
CARDS = [replace(a_card(index), model="A100") for index in range(3)]
USAGES = "/apis/gpuledger.dev/v1alpha1/gpuusages"


def allocations() -> list[Json]:
    """Return three cards: one is held, one lists a share that ended and is in no record, one lists one that is."""
    running = replace(a_holder_of(CARDS[0], "runs", namespace="team-a"), since="2026-11-29T18:00:00Z")
    ended = [
        ended_share(replace(a_holder_of(card, name, namespace="team-b"), since="2026-11-30T08:00:00Z"), card, NOW)
        for card, name in ((CARDS[1], "over"), (CARDS[2], "entered"))
    ]
    found = [an_allocation(CARDS[0], running), an_allocation(CARDS[1]), an_allocation(CARDS[2])]
    for each, share in zip(found[1:], ended, strict=True):
        assert share is not None
        each["status"]["ended"] = [ended_json(share)]
    for each in found:
        each["metadata"]["creationTimestamp"] = "2026-11-20T00:00:00Z"
    return found


def records() -> list[Json]:
    """Return ten days' of three namespaces, and one that has the third card's share already."""
    listed = allocations()[2]["status"]["ended"][0]["key"]
    entered = a_record("team-d", TODAY, {Line("2026-11-30", "A100"): held_hours(4)}, {listed: CARDS[2].uuid})
    return [*many_records(TEAMS, days_until(TODAY, 10)), entered]


@pytest.fixture
def api() -> ApiServer:
    server = ApiServer()
    server.usages = {each["metadata"]["name"]: each for each in records()}
    return server


@pytest.fixture
def reports(api: ApiServer) -> Reports:
    ledger = Ledger()
    for each in allocations():
        ledger.load(stored_card(each))
    return Reports(ledger, api.store, lambda: NOW)


@pytest.fixture
def source(reports: Reports) -> LedgerSource:
    unused = cast(Any, None)
    return LedgerSource(Ledger(), list, unused, unused, report=reports.of, now=reports.now)


@pytest.fixture
async def page(source: LedgerSource) -> AsyncIterator[Client]:
    async with TestClient(TestServer(ViewServer(source, LocalAccess()).application())) as client:
        yield client


def asked(by: str = "namespace", since: str = "30d", *namespaces: str) -> Question:
    return Question(by, days_asked(since, None, TODAY), namespaces)


def lists(api: ApiServer) -> int:
    """Return how often the records were listed."""
    return len(api.called(Operation.LIST_USAGES))


# The same sum.


@pytest.mark.parametrize("by", list(WAYS))
@pytest.mark.parametrize("more", [{}, {"namespace": "team-b"}, {"since": "2026-11-24", "until": "2026-11-30"}])
async def test_it_answers_what_the_command_prints_as_json(
    page: Client, by: str, more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = FakeKubectl(tmp_path)
    kubectl.tell({ALLOCATIONS: a_list(*allocations()), USAGES: a_list(*records())})
    (tmp_path / "kubeconfig").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(command, "utc_now", lambda: NOW)
    options = [f"--{name}={value}" for name, value in more.items()]
    printed = await asyncio.to_thread(CliRunner().invoke, main, ["report", "--by", by, "-o", "json", *options])
    assert printed.exit_code == 0, printed.output
    answer = await page.get("/v1/report", params={"by": by, **more})
    assert (answer.status, await answer.json()) == (200, json.loads(printed.stdout))


async def test_shares_that_run_and_those_that_no_record_has_yet_count_and_none_counts_twice(reports: Reports) -> None:
    rows = {row["name"]: row for row in (await reports.of(asked("namespace", "0d")))["rows"]}
    in_records = 15
    assert rows["team-a"]["shares"] > in_records
    assert rows["team-d"]["cardHours"] == 4.0
    owners = {row["name"]: row["cardHours"] for row in (await reports.of(asked("owner", "0d")))["rows"]}
    part = 4_000 / CARDS[0].capacity.memory_mib
    assert owners["team-b: (no owner)"] == pytest.approx(4 * max(part, 0.2), abs=0.001), "not 8: one is in a record"
    assert owners["team-a: (no owner)"] == pytest.approx(12 * max(part, 0.2), abs=0.001), "today's part"


async def test_namespaces_can_be_several_and_a_star_is_for_the_rest(page: Client) -> None:
    for named, found in (("team-a,team-c", {"team-a", "team-c"}), ("team-*", {*TEAMS, "team-d"}), ("team", set())):
        answer = await (await page.get("/v1/report", params={"namespace": named})).json()
        assert {row["name"] for row in answer["rows"]} == found


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"by": "colour"}, "by is one of namespace, queue, model, owner, node, day"),
        ({"since": "yesterday"}, "since takes a day, such as 2026-11-01"),
        ({"since": "400d"}, "more than 366 days ago"),
        ({"until": "2026-10-31"}, "it has to be after 2026-10-31"),
        ({"namespace": "Team A"}, "namespace has the names of 64 at most"),
        ({"namespace": ",".join(f"ns-{number}" for number in range(65))}, "namespace has the names of 64 at most"),
    ],
)
async def test_what_can_not_be_meant_is_refused_with_what_to_write(
    page: Client, api: ApiServer, parameters: dict[str, str], complaint: str
) -> None:
    answer = await page.get("/v1/report", params=parameters)
    assert answer.status == 400
    assert complaint in (await answer.json())["error"]
    assert lists(api) == 0


# What it costs.


async def test_one_report_is_made_at_a_time_and_all_who_ask_the_same_share_it(api: ApiServer, reports: Reports) -> None:
    same = [reports.of(asked()) for _ in range(5)]
    others = [reports.of(asked("queue")), reports.of(asked("model"))]
    found = await asyncio.gather(*same, *others)
    assert lists(api) == 3 * LISTS
    assert api.most_in_flight[Operation.LIST_USAGES] == LISTS
    assert all(each is found[0] for each in found[:5])
    await reports.of(asked())
    assert lists(api) == 3 * LISTS, "who reloads a page gets the same"


async def test_an_answer_that_is_asked_for_later_is_a_new_one(
    api: ApiServer, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    loop = asyncio.get_running_loop()
    keep = loop.call_later

    def call_later(delay_s: float, function: Any, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
        later.append(lambda: function(*arguments))
        return keep(delay_s, lambda: None, **more)

    monkeypatch.setattr(loop, "call_later", call_later)
    await reports.of(asked())
    monkeypatch.undo()
    for forget in later:
        forget()
    await reports.of(asked())
    assert lists(api) == 2 * LISTS


async def test_more_questions_than_a_few_have_to_come_again(page: Client, reports: Reports) -> None:
    waiting = [asyncio.create_task(reports.of(asked(since=f"{days}d"))) for days in range(ASKED_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await reports.of(asked("queue"))
    await asyncio.gather(*waiting)
    assert (await page.get("/v1/report")).status == 200


async def test_others_have_the_event_loop_meanwhile(
    api: ApiServer, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    await reports.of(asked())
    other.cancel()
    assert turns >= len(api.usages)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (NotFound("no such kind", 404), 404, "its administrator installs the CRD of this release"),
        (Denied("forbidden", 403), 503, "the operator may not list gpuusages.gpuledger.dev"),
        (Unreachable("connection lost"), 503, "connection lost"),
    ],
)
async def test_records_that_can_not_be_read_are_an_error_that_says_why_and_is_not_kept(
    page: Client, api: ApiServer, error: Any, status: int, text: str
) -> None:
    api.queue(Operation.LIST_USAGES, refuse_with(error))
    answer = await page.get("/v1/report")
    assert answer.status == status
    assert text in (await answer.json())["error"]
    assert (await page.get("/v1/report")).status == 200


# Developers.


class Reviews:
    """Says whose tokens these are, as the API server would."""

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        team = token.removeprefix("of-")
        return {"username": f"system:serviceaccount:{team}:default"} if team != token else None


@pytest.fixture
async def developers(source: LedgerSource) -> AsyncIterator[Client]:
    server = DeveloperServer(source, cast(KubeReviews, Reviews()))
    async with TestClient(TestServer(server.application())) as client:
        yield client


@pytest.mark.parametrize("by", list(WAYS))
async def test_a_token_of_a_namespace_is_told_of_that_namespace_alone(
    developers: Client, page: Client, by: str
) -> None:
    question = {"namespace": "team-b", "by": by}
    answer = await developers.get("/v1/report", params=question, headers={TOKEN_HEADER: "of-team-b"})
    found = await answer.json()
    assert (answer.status, found) == (200, await (await page.get("/v1/report", params=question)).json())
    assert "team-a" not in json.dumps(found)


@pytest.mark.parametrize(
    ("token", "namespace", "status"),
    [
        ("of-team-b", "team-a", 403),
        ("of-team-b", "", 403),
        ("of-team-b", "team-b,team-a", 403),
        ("of-team-b", "team-*", 403),
        ("of-team-*", "team-*", 403),
        ("made-up", "team-b", 401),
        ("", "team-b", 401),
    ],
)
async def test_no_token_is_told_of_another_namespace(
    developers: Client, api: ApiServer, token: str, namespace: str, status: int
) -> None:
    answer = await developers.get("/v1/report", params={"namespace": namespace}, headers={TOKEN_HEADER: token})
    assert answer.status == status
    assert lists(api) == 0
