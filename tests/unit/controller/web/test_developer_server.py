"""Developers learn why their own pods wait: with a token of the pod's namespace, and without others' names."""

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fakes.view_answers import a_node, an_explanation
from gpuledger.controller.web.view_server import DeveloperServer
from gpuledger.formats.kubernetes.other import AUDIENCE, TOKEN_HEADER, namespace_of_account
from gpuledger.model.errors import Denied, NotFound, Unreachable
from gpuledger.reports.explanation import OTHERS, Kind, redacted_for

Json = dict[str, Any]

ACCOUNTS = {
    "of-team-a": "system:serviceaccount:team-a:default",
    "of-team-b": "system:serviceaccount:team-b:builder",
    "of-a-person": "jane",
}


class Reviews:
    """Says whose tokens these are, as the API server would."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, str]] = []

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        self.asked.append((token, audience))
        if self.error:
            raise self.error
        return {"username": ACCOUNTS[token]} if token in ACCOUNTS else None


class Source:
    """Explains every pod but one alike, when it is let."""

    def __init__(self, active_elsewhere: str | None = None) -> None:
        self._elsewhere = active_elsewhere
        self.go = asyncio.Event()
        self.go.set()
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def active_elsewhere(self) -> str | None:
        return self._elsewhere

    async def explain(self, kind: Kind, namespace: str, name: str) -> Json:
        self.asked.put_nowait(namespace)
        await self.go.wait()
        if name == "nobody":
            raise NotFound("there is no such pod")
        turn = {"gang": "team-b/secret", "kind": "alone", "secondsLeft": 9}
        members = {"turn": turn} if kind is Kind.GANG else None
        return an_explanation(a_node("gpu-node-1"), kind=kind, namespace=namespace, name=name, members=members)


async def status(source: Source, reviews: Reviews, token: str | None, pod: str = "team-a/web") -> int:
    return (await answer(source, reviews, token, {"pod": pod}))[0]


async def answer(source: Source, reviews: Reviews, token: str | None, asked: Json) -> tuple[int, Json]:
    headers = {} if token is None else {TOKEN_HEADER: token}
    server = DeveloperServer(source, reviews)  # type: ignore[arg-type]
    async with TestClient(TestServer(server.application())) as client:
        found = await client.get("/v1/explain", params=asked, headers=headers)
        return found.status, await found.json()


async def test_gangs_of_the_own_namespace_are_explained_without_the_name_of_anothers() -> None:
    code, found = await answer(Source(), Reviews(), "of-team-a", {"gang": "team-a/Train_1.b"})
    assert (code, found["kind"], found["name"]) == (200, "gang", "Train_1.b")
    assert found["members"]["turn"] == {"gang": None, "kind": "alone", "secondsLeft": 9}
    code, found = await answer(Source(), Reviews(), "of-team-b", {"gang": "team-b/train"})
    assert found["members"]["turn"]["gang"] == "team-b/secret"
    for token, gang, expected in (("of-team-a", "team-b/train", 403), ("of-team-a", "team-a/-", 400)):
        assert (await answer(Source(), Reviews(), token, {"gang": gang}))[0] == expected


@pytest.mark.parametrize(
    ("token", "pod", "expected"),
    [
        ("of-team-a", "team-a/web", 200),
        ("of-team-a", "team-a/nobody", 404),
        ("of-team-a", "team-b/web", 403),
        ("of-team-b", "team-a/web", 403),
        ("of-a-person", "team-a/web", 403),
        ("made-up", "team-a/web", 401),
        (None, "team-a/web", 401),
        ("", "team-a/web", 401),
        ("of-team-a", "team-a", 400),
    ],
)
async def test_only_a_token_of_the_pods_own_namespace_gets_an_answer(
    token: str | None, pod: str, expected: int
) -> None:
    assert await status(Source(), Reviews(), token, pod) == expected


async def test_the_api_server_is_asked_about_tokens_for_this_alone() -> None:
    reviews = Reviews()
    await status(Source(), reviews, "of-team-a")
    assert reviews.asked == [("of-team-a", AUDIENCE)]


@pytest.mark.parametrize("error", [Unreachable("no answer"), Denied("not allowed", 403)])
async def test_without_the_api_servers_word_nobody_gets_an_answer(error: Exception) -> None:
    assert await status(Source(), Reviews(error), "of-team-a") == 503


async def test_a_replica_on_standby_says_that_another_one_has_to_be_asked() -> None:
    assert await status(Source(active_elsewhere="gpuledger-1"), Reviews(), "of-team-a") == 421


async def test_one_namespace_has_one_question_under_way() -> None:
    source = Source()
    source.go.clear()
    server = DeveloperServer(source, Reviews())  # type: ignore[arg-type]
    async with TestClient(TestServer(server.application())) as client:

        async def ask(team: str) -> int:
            found = await client.get("/v1/explain", params={"pod": f"{team}/web"}, headers={TOKEN_HEADER: f"of-{team}"})
            return found.status

        first = asyncio.create_task(ask("team-a"))
        await source.asked.get()
        assert await ask("team-a") == 429
        other = asyncio.create_task(ask("team-b"))
        await source.asked.get()
        source.go.set()
        assert (await first, await other) == (200, 200)
        assert await ask("team-a") == 200


def test_pods_of_other_namespaces_are_not_named() -> None:
    card = {"uuid": "GPU-1", "by": ["team-a/own", "team-b/secret", "0d1e-uid"]}
    node = {"node": "n", "wouldHaveToLeave": ["team-b/secret-2"], "cards": [card]}
    explanation = {
        "summary": "waits for team-b/secret, team-b/secret-2, team-a/own to leave 3 cards of n",
        "waitsFor": ["team-b/secret", "team-b/secret-2", "team-a/own"],
        "members": None,
        "nodes": [node],
    }
    seen = redacted_for(explanation, "team-a")
    assert seen["nodes"][0]["cards"][0]["by"] == ["team-a/own", OTHERS, OTHERS]
    assert seen["nodes"][0]["wouldHaveToLeave"] == [OTHERS]
    assert seen["waitsFor"] == [OTHERS, OTHERS, "team-a/own"]
    assert seen["summary"] == f"waits for {OTHERS}, {OTHERS}, team-a/own to leave 3 cards of n"
    assert "secret" not in str(seen)


@pytest.mark.parametrize(
    ("username", "namespace"),
    [
        ("system:serviceaccount:team-a:default", "team-a"),
        ("system:serviceaccount:team-a", ""),
        ("system:serviceaccount:", ""),
        ("jane", ""),
        ("team-a:default", ""),
        ("", ""),
    ],
)
def test_only_service_accounts_speak_for_a_namespace(username: str, namespace: str) -> None:
    assert namespace_of_account(username) == namespace
