"""Who somebody is, and what they may do: the words of the API server, read so that only a clear yes is one."""

from typing import Any, cast

import pytest

from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ACCESS_REVIEWS, TOKEN_REVIEWS, KubeReviews

Json = dict[str, Any]


class StubClient:
    """Remembers what it was asked, and answers with one status."""

    def __init__(self, status: object) -> None:
        self.status = status
        self.asked: list[tuple[str, str, Json]] = []

    async def request(self, method: str, path: str, body: Json) -> Json:
        self.asked.append((method, path, body))
        return {"status": self.status}


def reviews_with(status: object) -> tuple[KubeReviews, StubClient]:
    client = StubClient(status)
    return KubeReviews(cast(KubeClient, client)), client


async def test_the_owner_of_a_token() -> None:
    user = {"username": "jane", "groups": ["dev"]}
    reviews, client = reviews_with({"authenticated": True, "user": user})
    assert await reviews.user_of("secret") == user
    ((method, path, body),) = client.asked
    assert (method, path, body["spec"]) == ("POST", TOKEN_REVIEWS, {"token": "secret"})


@pytest.mark.parametrize(
    "status", [{}, None, {"authenticated": False, "user": {"username": "x"}}, {"error": "expired"}]
)
async def test_a_token_that_is_not_clearly_somebodys_is_nobodys(status: object) -> None:
    assert await reviews_with(status)[0].user_of("secret") is None


async def test_all_that_is_known_of_a_user_is_asked_about() -> None:
    reviews, client = reviews_with({"allowed": True})
    user = {"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a"]}}
    assert await reviews.may_list(user, "gpuledger.dev", "gpuallocations")
    ((method, path, body),) = client.asked
    assert (method, path) == ("POST", ACCESS_REVIEWS)
    assert body["spec"] == {
        "user": "jane",
        "uid": "7",
        "groups": ["dev"],
        "extra": {"scopes": ["a"]},
        "resourceAttributes": {"verb": "list", "group": "gpuledger.dev", "resource": "gpuallocations"},
    }


@pytest.mark.parametrize(
    "status", [{}, None, {"allowed": False}, {"allowed": False, "denied": True}, {"allowed": "no"}]
)
async def test_what_is_not_clearly_allowed_is_not(status: object) -> None:
    assert not await reviews_with(status)[0].may_list({"username": "jane"}, "g", "r")
