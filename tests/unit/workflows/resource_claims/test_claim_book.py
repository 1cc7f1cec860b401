"""What memory has of claims, from lists and watches."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from builders import a_card, a_pod, stored
from fakes.claims import OUR_CLASS, a_claiming_pod, a_resource_claim, a_template
from gpuledger.ledger.book import Ledger
from gpuledger.model.amounts import Amounts
from gpuledger.model.errors import NotFound
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, Share
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.resource_claims.claim_book import ClaimBook
from gpuledger.workflows.resource_claims.kept_objects import Kind

Json = dict[str, Any]

CARD = a_card()


class Stored:
    """The objects that the API server has, and how often one was asked for."""

    def __init__(self, *objects: Json) -> None:
        self.objects = {each["metadata"]["name"]: each for each in objects}
        self.asked: list[str] = []

    async def claim_object(self, kind: str, namespace: str, name: str) -> Json:
        self.asked.append(name)
        if name not in self.objects:
            raise NotFound(name, 404)
        return self.objects[name]


def a_book(ledger: Ledger | None = None, *objects: Json) -> ClaimBook:
    return ClaimBook(ledger or Ledger(), Counts(), Stored(*objects), "gpuledger-all-drivers")


def with_uid(obj: Json, uid: str) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "uid": uid}}


def a_ledger_with(*uids: str, shared: bool = True) -> Ledger:
    claim = ClaimRef("ours", "claim-ours", shared)
    parts = (ContainerShare("gpu/gpu", 1_000, 0, claim),)
    holders = [Holder(a_pod(uid), Share(CARD.uuid, Amounts(1_000, 0, 1), False, parts)) for uid in uids]
    ledger = Ledger()
    ledger.load(stored(CARD, *holders))
    return ledger


def test_objects_come_and_go_as_the_watch_shows_them() -> None:
    book = a_book()
    book.observe(Kind.CLAIMS, a_resource_claim(), gone=False)
    book.observe(Kind.TEMPLATES, with_uid(a_template(), "t"), gone=False)
    book.observe(Kind.CLASSES, with_uid(OUR_CLASS, "c"), gone=False)
    found = book.claim("default", "ours")
    assert found is not None
    assert book.template("default", "quarter") is found.spec
    assert book.device_class(OUR_CLASS["metadata"]["name"]) is not None
    assert book.changes == 2
    book.observe(Kind.CLAIMS, a_resource_claim(), gone=True)
    book.observe(Kind.TEMPLATES, with_uid(a_template(), "t"), gone=True)
    assert (book.claim("default", "ours"), book.template("default", "quarter")) == (None, None)
    assert book.changes == 3


def test_a_deletion_that_is_shown_late_does_not_take_away_a_new_one_of_the_same_name() -> None:
    book = a_book()
    book.observe(Kind.CLAIMS, with_uid(a_resource_claim(), "new"), gone=False)
    book.observe(Kind.CLAIMS, with_uid(a_resource_claim(), "old"), gone=True)
    found = book.claim("default", "ours")
    assert found is not None
    assert found.uid == "new"


def test_what_a_list_no_longer_has_is_forgotten_unless_it_came_meanwhile() -> None:
    book = a_book()
    book.observe(Kind.CLAIMS, a_resource_claim("old"), gone=False)
    listed = book.listing(Kind.CLAIMS)
    book.observe(Kind.CLAIMS, a_resource_claim("new"), gone=False)
    listed(set())
    assert book.claim("default", "old") is None
    assert book.claim("default", "new") is not None


def test_an_object_that_can_not_be_read_leaves_the_others_alone() -> None:
    book = a_book()
    book.observe(Kind.CLAIMS, {"metadata": {"name": "odd"}}, gone=False)
    book.observe(Kind.CLAIMS, a_resource_claim(), gone=False)
    assert book.claim("default", "ours") is not None


def test_who_holds_a_claim_is_among_its_users() -> None:
    book = a_book(a_ledger_with("uid-b"))
    book.observe(Kind.CLAIMS, a_resource_claim("ours", "node-a", [CARD.uuid], ["a", "b"]), gone=False)
    claim = book.claim("default", "ours")
    assert claim is not None
    assert book.holder_of(claim) == "uid-b"
    book.observe(Kind.CLAIMS, a_resource_claim("ours", "node-a", [CARD.uuid], ["a"]), gone=False)
    claim = book.claim("default", "ours")
    assert claim is not None
    assert book.holder_of(claim) == ""


@pytest.mark.parametrize(
    ("users", "shared", "expected"),
    [(["a", "b"], True, True), (["a"], True, False), ([], True, False), (["a", "b"], False, False)],
)
def test_who_shares_with_others_makes_no_room_by_leaving(users: list[str], shared: bool, expected: bool) -> None:
    book = a_book(a_ledger_with("uid-a", shared=shared))
    book.observe(Kind.CLAIMS, a_resource_claim("ours", "node-a", [CARD.uuid], users), gone=False)
    assert book.shares_with_others("uid-a") is expected
    assert not book.shares_with_others("stranger")


def test_only_one_profile_serves_other_drivers_if_there_is_one() -> None:
    assert a_book().serves_other_drivers("gpuledger-all-drivers")
    assert not a_book().serves_other_drivers("gpuledger")
    assert not ClaimBook(Ledger(), Counts(), Stored()).serves_other_drivers("")


async def test_news_of_a_pod_are_its_own_change_and_that_of_a_claim_made_for_it() -> None:
    book = a_book()
    changes: list[Callable[[], None]] = [
        lambda: book.observe_pending(a_claiming_pod("a", template="quarter") | {}),
        lambda: book.observe(Kind.CLAIMS, a_resource_claim(owner="a"), gone=False),
        lambda: book.forget_pending("uid-a"),
    ]
    for happens in changes:
        waiting = [asyncio.create_task(book.news_of("uid-a")) for _ in range(2)]
        other = asyncio.create_task(book.news_of("uid-b"))
        await asyncio.sleep(0)
        happens()
        await asyncio.gather(*waiting)
        assert not other.done()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    assert book._news == {}


async def test_a_pod_without_claims_waits_for_no_list() -> None:
    book = a_book()
    pod = a_claiming_pod("a", named="ours")
    del pod["spec"]["resourceClaims"]
    await book.ready_for(pod)
    assert not book.wanted.is_set()


async def test_the_first_question_waits_until_each_kind_was_read_or_could_not_be() -> None:
    book = a_book()
    asking = asyncio.create_task(book.ready_for(a_claiming_pod("a", named="ours")))
    await asyncio.sleep(0)
    assert book.wanted.is_set()
    book.listing(Kind.CLAIMS)(set())
    book.listing(Kind.TEMPLATES)(set())
    await asyncio.sleep(0)
    assert not asking.done()
    book.can_not_be_read(Kind.CLASSES, "denied")
    await asking


async def test_a_question_does_not_wait_for_ever() -> None:
    await a_book().ready_for(a_claiming_pod("a", named="ours"))
