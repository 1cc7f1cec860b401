"""What pods held is in their namespaces' records exactly once, whatever happens between any two writes."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer, Fault, Operation, deliver_late, lose_answer, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, settle, wall
from gpuledger.formats.custom_resource.usage import record
from gpuledger.model.errors import BindFailed, Conflict, Denied, Invalid, NotFound
from gpuledger.model.usage import Held, total_of
from gpuledger.workflows import accounts
from gpuledger.workflows.accounts import GATHER_S, GIVEN_UP_S, SETTLE_S, Accounts
from gpuledger.workflows.leadership import Leadership

CARDS = [a_card(0), a_card(1)]
HALF = {GPU: "1", MEMORY: str(CARDS[0].capacity.memory_mib // 2)}
HOUR_S = 3600.0
Json = dict[str, Any]


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    """Return an API server with a node of two cards, whose definition knows accounts."""
    api.keep_accounts()
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    return api


async def an_operator(api: ApiServer, **settings: object) -> OperatorParts:
    """Return an operator that has read everything."""
    parts = OperatorParts(api, clock=LoopClock(), more=settings)
    await parts.observer.resync()
    await parts.idle()
    return parts


async def rest(*operators: OperatorParts, seconds: float = GATHER_S + 1) -> None:
    """Let time pass, while the watches show what is written."""
    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        for parts in operators:
            await parts.idle()
        await asyncio.sleep(max(0.5, seconds / 200))


async def hold(parts: OperatorParts, name: str, seconds: float, limits: dict[str, str] | None = None) -> None:
    """Have a pod hold a share for so long, from its Binding to the write that takes it off."""
    parts.api.put_pod(a_pod_object(name, limits or HALF))
    parts.watch()
    await parts.bind(name, "node-a")
    await parts.idle()
    await asyncio.sleep(seconds)
    await end(parts, name)


async def end(parts: OperatorParts, name: str) -> None:
    pod = parts.api.pods["default", name]
    parts.api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
    await parts.idle()


def held(api: ApiServer) -> Held:
    """Return what is in all records."""
    return sum((total_of(record(each).lines) for each in api.usages.values()), Held())


def listed(api: ApiServer) -> int:
    """Return how many shares the cards list as ended."""
    return sum(len(api.card(card).ended or ()) for card in CARDS)


async def test_half_a_card_for_an_hour_is_half_an_hour_in_the_record_of_the_day(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", HOUR_S)
    assert listed(api) == 1
    await rest(parts)
    assert held(api).card_ms == pytest.approx(HOUR_S / 2 * 1000, abs=2)
    (usage,) = api.usages.values()
    assert usage["metadata"]["name"] == f"default.{wall():%Y-%m-%d}"
    ((line, in_line),) = record(usage).lines.items()
    assert (line.node, in_line.shares, in_line.memory_mib_s) == ("node-a", 1, 3600 * int(HALF[MEMORY]))
    assert usage["status"]["cardHours"] == 0.5


async def test_the_list_is_emptied_once_and_then_nothing_is_written(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 60)
    await rest(parts)
    assert listed(api) == 1
    await rest(parts, seconds=SETTLE_S + 1)
    assert listed(api) == 0
    before = len(api.writes())
    await rest(parts, seconds=2 * HOUR_S)
    assert len(api.writes()) == before


async def test_the_next_pod_of_the_card_empties_its_list_without_a_write_more(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 60)
    await rest(parts)
    before = len(api.patches())
    api.put_pod(a_pod_object("b", HALF))
    parts.watch()
    await parts.bind("b", "node-a")
    await parts.idle()
    assert (listed(api), len(api.patches())) == (0, before + 1)


async def test_a_thousand_short_pods_are_entered_with_few_writes_of_records(api: ApiServer) -> None:
    parts = await an_operator(api)
    for number in range(100):
        await hold(parts, f"p{number}", 1)
    await rest(parts)
    assert held(api).shares == 100
    assert len(api.called(Operation.WRITE_USAGE)) <= 100 / GATHER_S + 2


async def test_cards_of_which_own_writes_have_told_are_not_read(api: ApiServer) -> None:
    parts = await an_operator(api)
    for number in range(6):
        await hold(parts, f"p{number}", 60)
        await rest(parts)
    assert held(api).shares == 6
    assert len(api.called(Operation.READ_CARD)) == 0


async def test_of_a_record_that_was_there_before_each_card_is_read_once(api: ApiServer) -> None:
    first = await an_operator(api)
    await hold(first, "a", 60)
    await rest(first)
    await first.workflows.stop()
    parts = await an_operator(api)
    for number in range(6):
        await hold(parts, f"p{number}", 60)
        await rest(parts)
    assert held(api).shares == 7
    assert len(api.called(Operation.READ_CARD)) <= len(CARDS)


async def test_a_record_names_no_more_shares_than_etcd_can_store_and_enters_all_of_them_in_the_end(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MOST_ENTERED", 5)
    parts = await an_operator(api)
    for number in range(12):
        await hold(parts, f"p{number}", 1)
    named = 0
    for _ in range(40):
        await rest(parts, seconds=SETTLE_S / 4)
        named = max(named, *(len(each["status"].get("entered", ())) for each in api.usages.values()))
    assert (held(api).shares, listed(api)) == (12, 0)
    assert named == 5


@pytest.mark.parametrize("restarts", [False, True], ids=["the same operator", "its successor"])
@pytest.mark.parametrize("after_s", [1.0, GATHER_S + SETTLE_S + 10], ids=["while it is listed", "when it is entered"])
async def test_a_write_that_arrives_when_its_share_is_over_enters_it_no_more(
    api: ApiServer, after_s: float, restarts: bool
) -> None:
    parts = await an_operator(api)
    late = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, deliver_late(late))
    api.put_pod(a_pod_object("a", HALF))
    parts.watch()
    await parts.bind("a", "node-a")
    await asyncio.sleep(600)
    await end(parts, "a")
    await rest(parts, seconds=after_s)
    if restarts:
        parts = await an_operator(api)
    before = copy.deepcopy(api.cards)
    late.set()
    await settle()
    assert api.cards == before
    await rest(parts, seconds=2 * SETTLE_S + GATHER_S)
    assert held(api).card_ms == pytest.approx(600 / 2 * 1000, rel=0.01)
    assert (held(api).shares, listed(api)) == (1, 0)


async def test_a_share_that_another_attempt_has_entered_meanwhile_is_the_one_that_is_charged(api: ApiServer) -> None:
    parts = await an_operator(api)
    api.put_pod(a_pod_object("a", HALF))
    parts.watch()
    await parts.bind("a", "node-a")
    parts.watch()
    (card,) = (each for each in CARDS if api.holders_of(each))
    other = copy.deepcopy(api.cards[card.object_name])
    other["status"]["holders"][0]["attempt"] = "another"
    api._put("GPUAllocation", api.cards, card.object_name, other)
    await asyncio.sleep(600)
    pod = api.pods["default", "a"]
    parts.observer.any_pod(api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}}), False)
    await parts.idle()
    assert [ended.key for ended in api.card(card).ended or ()] == [f"another.{pod['metadata']['uid']}"]


async def test_time_spent_waiting_is_charged_with_the_share(api: ApiServer) -> None:
    parts = await an_operator(api)
    api.put_pod(with_created(a_pod_object("a", HALF), wall() - timedelta(seconds=90)))
    parts.watch()
    await parts.bind("a", "node-a")
    await parts.idle()
    await asyncio.sleep(10)
    await end(parts, "a")
    await rest(parts)
    assert held(api).waited_s == 90


def with_created(pod: Json, moment: Any) -> Json:
    created = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**pod, "metadata": {**pod["metadata"], "creationTimestamp": created}}


async def test_a_pod_that_could_not_be_bound_has_held_nothing(api: ApiServer) -> None:
    parts = await an_operator(api)
    api.put_pod(a_pod_object("a", HALF))
    parts.watch()
    api.queue(Operation.BIND, refuse_with(Denied("forbidden", 403)))
    with pytest.raises(BindFailed):
        await parts.bind("a", "node-a")
    await rest(parts, seconds=SETTLE_S)
    assert (listed(api), api.usages) == (0, {})


async def test_without_accounts_nothing_is_written(api: ApiServer) -> None:
    parts = await an_operator(api, usage_kept_days=0)
    await hold(parts, "a", 60)
    await rest(parts, seconds=SETTLE_S)
    assert (listed(api), api.usages) == (0, {})


async def test_old_records_are_deleted_with_the_first_of_a_new_day(api: ApiServer) -> None:
    parts = await an_operator(api, usage_kept_days=2)
    for _ in range(5):
        await hold(parts, f"p{wall():%d}", 10)
        await rest(parts, seconds=24 * HOUR_S)
    kept = sorted(usage["spec"]["date"] for usage in api.usages.values())
    assert len(kept) == 3
    assert kept[-1] >= f"{wall() - timedelta(days=1):%Y-%m-%d}"


@pytest.mark.parametrize("fault", [lose_request(), lose_answer(), refuse_with(Conflict("another was first", 409))])
@pytest.mark.parametrize("operation", [Operation.CREATE_USAGE, Operation.WRITE_USAGE, Operation.READ_CARD])
async def test_a_request_that_fails_loses_nothing_and_enters_nothing_twice(
    api: ApiServer, operation: Operation, fault: Fault
) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 100)
    api.queue(operation, fault)
    await rest(parts, seconds=GATHER_S + SETTLE_S + 10)
    assert held(api).card_ms == pytest.approx(50_000, abs=2)
    assert (held(api).shares, listed(api)) == (1, 0)


async def test_a_release_does_not_wait_for_the_records(api: ApiServer) -> None:
    """Whoever deletes their definition loses accounts, and no card."""
    parts = await an_operator(api)
    api.queue(Operation.READ_USAGE, *[refuse_with(NotFound("no such kind", 404))] * 8)
    api.queue(Operation.CREATE_USAGE, *[refuse_with(NotFound("no such kind", 404))] * 4)
    await hold(parts, "a", 10)
    assert api.holders_of(CARDS[0]) == []
    await rest(parts, seconds=10 * SETTLE_S)
    assert held(api).shares == 1


async def before_the_record(parts: OperatorParts) -> None:
    """Stop when the card lists the share."""


async def before_the_list_is_emptied(parts: OperatorParts) -> None:
    """Stop when the record has the share."""
    await rest(parts)


async def after_all(parts: OperatorParts) -> None:
    """Stop when the list is empty, and the record names the key."""
    await rest(parts, seconds=GATHER_S + SETTLE_S + 2)


@pytest.mark.parametrize("until", [before_the_record, before_the_list_is_emptied, after_all])
async def test_an_operator_that_dies_between_any_two_writes_leaves_the_rest_to_the_next(
    api: ApiServer, until: Callable[[OperatorParts], Awaitable[None]]
) -> None:
    first = await an_operator(api)
    await hold(first, "a", 100)
    await until(first)
    await first.workflows.stop()
    second = await an_operator(api)
    await second.observer.take_over()
    await hold(second, "b", 200)
    await rest(second, seconds=GATHER_S + SETTLE_S + 2)
    assert held(api).card_ms == pytest.approx(150_000, abs=4)
    assert (held(api).shares, listed(api)) == (2, 0)
    assert len(entered(api)) == 1


async def test_two_operators_that_both_take_themselves_for_active_enter_each_share_once(api: ApiServer) -> None:
    first, second = await an_operator(api), await an_operator(api)
    for number in range(20):
        await hold(first, f"p{number}", 5)
        await settle()
        second.watch()
    await rest(first, second, seconds=GATHER_S + SETTLE_S + 2)
    assert (held(api).shares, listed(api)) == (20, 0)


def becomes_active(parts: OperatorParts, active: bool = True) -> None:
    """Let an operator hold the Lease, or another one."""
    parts.leadership.observe({"spec": {"holderIdentity": "host_1" if active else "other_1"}}, gone=False)
    if active:
        (accounts,) = (each for each in parts.observer.followers if isinstance(each, Accounts))
        accounts.became_active()


async def a_passive_operator(api: ApiServer) -> OperatorParts:
    parts = OperatorParts(api, clock=LoopClock(), leadership=Leadership("host"))
    await parts.observer.resync()
    await parts.idle()
    return parts


async def test_an_operator_whose_watch_stands_still_does_not_enter_again_what_has_left_its_card(api: ApiServer) -> None:
    """Another one has entered it, taken it off the list, and forgotten its key."""
    ahead, behind = await an_operator(api), await a_passive_operator(api)
    await hold(ahead, "a", 5)
    behind.watch()
    await rest(ahead, seconds=GATHER_S + SETTLE_S + 2)
    await hold(ahead, "b", 5)
    await rest(ahead, seconds=GATHER_S + 2)
    assert len(entered(api)) == 1
    becomes_active(behind)
    await asyncio.sleep(GATHER_S + 5)
    assert held(api).shares == 2


def entered(api: ApiServer) -> dict[str, str]:
    """Return the keys that the one record names."""
    (usage,) = api.usages.values()
    return dict(record(usage).entered)


async def test_a_record_forgets_a_key_when_its_card_has(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 5)
    await rest(parts, seconds=GATHER_S + SETTLE_S + 2)
    api.put_pod(a_pod_object("stays", {GPU: "1", MEMORY: str(CARDS[0].capacity.memory_mib)}))
    parts.watch()
    await parts.bind("stays", "node-a")
    await hold(parts, "b", 5)
    await rest(parts)
    assert list(entered(api).values()) == [CARDS[1].uuid]


async def test_operators_that_take_turns_add_to_each_others_records(api: ApiServer) -> None:
    one, other = await a_passive_operator(api), await a_passive_operator(api)
    for number in range(4):
        active, passive = (one, other) if number % 2 else (other, one)
        becomes_active(passive, active=False)
        becomes_active(active)
        await hold(active, f"p{number}", 5)
        passive.watch()
        await rest(active, seconds=GATHER_S + 5)
        passive.watch()
        assert held(api).shares == number + 1


async def test_a_card_that_its_node_has_given_up_goes_when_its_last_share_is_entered(api: ApiServer) -> None:
    """Its list was to be emptied a minute after an earlier share was entered, while its node still had the card."""
    parts = await an_operator(api)
    for name in "ab":
        api.put_pod(a_pod_object(name, {GPU: "2", MEMORY: "1000"}))
        parts.watch()
        await parts.bind(name, "node-a")
    await asyncio.sleep(60)
    await end(parts, "a")
    await rest(parts)
    assert listed(api) == 2, "they are in the record"
    api.put_node(a_node_object("node-a", []))
    await rest(parts, seconds=1)
    assert listed(api) == 0, "the write that closed the cards has taken them along"
    await end(parts, "b")
    await rest(parts, seconds=10 * GIVEN_UP_S)
    assert api.cards == {}


async def test_a_list_whose_write_is_refused_is_emptied_later(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 5)
    await rest(parts)
    api.queue(Operation.WRITE_STATUS, *[refuse_with(Invalid("a policy is against it", 422))] * 3)
    await rest(parts, seconds=3 * SETTLE_S)
    assert (listed(api), held(api).shares) == (0, 1)


async def test_a_card_that_its_node_has_lost_stays_until_its_list_is_in_the_records(api: ApiServer) -> None:
    parts = await an_operator(api)
    await hold(parts, "a", 10)
    api.queue(Operation.WRITE_USAGE, *[lose_request()] * 5)
    api.put_node(a_node_object("node-a", CARDS[1:]))
    await rest(parts, seconds=4)
    assert CARDS[0].object_name in api.cards
    await rest(parts, seconds=60)
    assert CARDS[0].object_name not in api.cards
    assert held(api).shares == 1
