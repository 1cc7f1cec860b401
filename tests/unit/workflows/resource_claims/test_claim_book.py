"""What memory has of claims, from lists and watches."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from builders import a_card, a_pod, stored
from fakes.claims import OUR_CLASS, a_claiming_pod, a_resource_claim, a_template
from fakes.context import a_context
from fakes.virtual_time import StoppedClock
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts
from gpuledger.model.errors import NotFound
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, Share
from gpuledger.workflows.pending.queue import ClaimRequeuer
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind, WaitingClaims
from gpuledger.workflows.tasks import Tasks

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
        waiting = [asyncio.create_task(book.news.of("uid-a")) for _ in range(2)]
        other = asyncio.create_task(book.news.of("uid-b"))
        await asyncio.sleep(0)
        happens()
        await asyncio.gather(*waiting)
        assert not other.done()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    assert book.news._awaited == {}


async def test_a_pod_without_claims_waits_for_no_list() -> None:
    book = a_book()
    pod = a_claiming_pod("a", named="ours")
    del pod["spec"]["resourceClaims"]
    await book.know_claims_of(pod)
    assert not book.wanted.is_set()


async def test_the_first_question_waits_until_each_kind_was_read_or_could_not_be() -> None:
    book = a_book()
    asking = asyncio.create_task(book.know_claims_of(a_claiming_pod("a", named="ours")))
    await asyncio.sleep(0)
    assert book.wanted.is_set()
    book.listing(Kind.CLAIMS)(set())
    book.listing(Kind.TEMPLATES)(set())
    await asyncio.sleep(0)
    assert not asking.done()
    book.can_not_be_read(Kind.CLASSES, "denied")
    await asking


async def test_a_question_does_not_wait_for_ever() -> None:
    await a_book().know_claims_of(a_claiming_pod("a", named="ours"))


async def test_what_a_pod_names_is_read_if_it_came_before_and_is_not_in_memory_any_more() -> None:
    """Also where kube-scheduler does not ask: on the replica that is not active."""
    names = [f"t{number}" for number in range(200)]
    texts = [{"cel": {"expression": f'"{name}{"x" * 30_000}" == ""'}} for name in names]
    objects = [with_uid(a_template(name, selectors=[text]), name) for name, text in zip(names, texts, strict=True)]
    book = a_book(None, *objects)
    for each in objects:
        book.observe(Kind.TEMPLATES, each, gone=False)
    assert book.template("default", "t0") is None
    book.observe_pending(a_claiming_pod("a", template="t0"))
    reading = asyncio.create_task(book.read_what_pods_name())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    found = book.template("default", "t0")
    assert found is not None
    assert "t0xxx" in found.requests[0][0].selectors[0]


async def test_a_question_reads_what_its_pod_names_and_asks_for_nothing_that_is_not_there() -> None:
    book = a_book(None, a_resource_claim("made", owner="a"))
    for kind in Kind:
        book.subscriptions[kind].begin_list()(set())
    await book.know_claims_of(a_claiming_pod("a", template="quarter", made="made"))
    await book.know_claims_of(a_claiming_pod("b", named="nowhere"))
    assert book.claim("default", "made") is not None
    assert isinstance(book._reads, Stored)
    assert book._reads.asked == ["made"]


async def test_a_pod_that_names_too_many_claims_names_none() -> None:
    pod = a_claiming_pod("a", named="ours")
    pod["spec"]["resourceClaims"] = [{"name": f"c{n}", "resourceClaimName": f"claim-{n}"} for n in range(20_000)]
    book = a_book()
    book.observe_pending(pod)
    waiting = book.waiting("uid-a")
    assert waiting is not None
    assert waiting.names == {}
    assert book.naming(Kind.CLAIMS, ("default", "claim-0")) == set()


async def test_bound_pods_name_their_claims_too_until_they_have_ended_or_are_gone() -> None:
    book, ours = a_book(), ("default", "ours")
    book.observe_bound(a_claiming_pod("a", named="ours"), bound_before=True)
    book.observe_bound(a_claiming_pod("b", named="ours"), bound_before=True)
    assert (book.naming(Kind.CLAIMS, ours), book.known_bound()) == ({"uid-a", "uid-b"}, {"uid-a", "uid-b"})
    ended = a_claiming_pod("a", named="ours") | {"status": {"phase": "Succeeded"}}
    book.observe_bound(ended, bound_before=False)
    book.forget_bound("uid-b", None)
    assert (book.naming(Kind.CLAIMS, ours), book.known_bound()) == (set(), set())


class Waker:
    """Notes whom it is asked to wake."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()
        self.woken.append(name)


class CountingBook(ClaimBook):
    """Counts how often it is asked about a pod that waits."""

    looks = 0

    def waiting(self, pod_uid: str) -> WaitingClaims | None:
        self.looks += 1
        return super().waiting(pod_uid)


async def test_a_change_concerns_the_pods_that_name_what_has_changed_and_looks_at_no_others() -> None:
    book, waker = CountingBook(Ledger(), Counts(), Stored()), Waker()
    context = a_context(StoppedClock())
    context.tasks = cast(Tasks, waker)
    claim_waker = ClaimRequeuer(context, book, WaitingPods(context))
    for number in range(500):
        book.observe_pending(a_claiming_pod(f"p{number}", named=f"claim-{number}"))
        claim_waker.refused(a_pod(f"uid-p{number}"))
    book.looks = 0
    for number in range(1_000):
        book.observe(Kind.CLAIMS, a_resource_claim(f"other-{number}"), gone=False)
        book.observe(Kind.TEMPLATES, with_uid(a_template(f"other-{number}"), f"t{number}"), gone=False)
    assert (book.looks, waker.woken) == (0, [])
    book.observe(Kind.CLAIMS, a_resource_claim("claim-7"), gone=False)
    assert len(waker.woken) == 1
    book.observe(Kind.CLASSES, with_uid(OUR_CLASS, "c"), gone=False)
    assert len(waker.woken) == 500
