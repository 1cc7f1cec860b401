"""Shares into the ledger, then the Binding: every answer that is lost, and everybody who comes in between."""

import asyncio
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation, deliver_late, hold_request, lose_answer, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.counters import by_label
from fakes.objects import GPU, MEMORY, a_container, a_pod_object
from fakes.operator_parts import KEPT_S, OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.custom_resource.stored_card import CORDON_ANNOTATION
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, BindFailed, Conflict, Denied, Unreachable
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod
from gpuledger.workflows.binding.bind_pod import BINDING_ATTEMPTS, MANY_CARDS_AT_ONCE

CARDS = [a_card(0), a_card(1)]
CARD, SECOND = CARDS
WRITE, BIND = Operation.WRITE_STATUS, Operation.BIND
READ_POD, READ_CARD = Operation.READ_POD, Operation.READ_CARD
BOTH = {GPU: "2"}


def start(step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(step)


def held_by_a(card: Card, **fields: Any) -> Holder:
    """Return what pod `a` gets of a card."""
    share = replace(a_share(card, 4_000), containers=(ContainerShare("main", 4_000, 0),))
    return Holder(Pod("uid-a", "default", "a"), share, attempt="first", **fields)


def change(api: ApiServer, **labels: str) -> None:
    """Let somebody change pod `a`."""
    pod = api.pods["default", "a"]
    api.put_pod({**pod, "metadata": {**pod["metadata"], "labels": labels}})


async def begin_to_bind(api: ApiServer, parts: OperatorParts) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Bind pod `a` until its Binding is on the way; return the task, and what lets the Binding arrive."""
    arrive = asyncio.Event()
    api.queue(BIND, hold_request(arrive))
    parts.filter("a", "node-a")
    task = start(parts.bind("a", "node-a"))
    await settle()
    return task, arrive


def devices_of(api: ApiServer, name: str) -> Any:
    return orjson.loads(api.pods["default", name]["metadata"]["annotations"][DEVICES_ANNOTATION])


def preconditions(api: ApiServer) -> list[tuple[str, str]]:
    """Return the UID and the version of the pod that each Binding so far was for."""
    metadata = [call.body["metadata"] for call in api.called(BIND)]
    return [(of["uid"], of["resourceVersion"]) for of in metadata]


# All is well.


async def test_a_pod_is_entered_into_the_ledger_then_bound_and_nothing_is_read(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    await parts.bind("a", "node-a")
    assert [call.operation for call in api.calls] == [WRITE, BIND]
    assert api.holders_of(CARD) == ["uid-a"]
    assert api.node_of("a") == "node-a"
    assert parts.ledger.seats.of("uid-a") is None
    assert by_label(parts.counts.binds) == {"bound": 1}


async def test_the_annotation_says_what_the_ledger_says(api: ApiServer, parts: OperatorParts) -> None:
    containers = [a_container("one", {GPU: "2", MEMORY: "1k"}), a_container("two", {GPU: "1", MEMORY: "500"})]
    api.put_pod(a_pod_object("pair", containers=containers))
    parts.filter("pair", "node-a")
    await parts.bind("pair", "node-a")
    ledger = {
        (container["name"], card.uuid, container["memoryMiB"], container["cores"])
        for card in CARDS
        for holder in api.cards[card.object_name]["status"]["holders"]
        for container in holder["containers"]
    }
    annotated = {
        (name, device["uuid"], device["memoryMiB"], device["cores"])
        for name, devices in devices_of(api, "pair").items()
        for device in devices
    }
    assert annotated == ledger
    assert [device["uuid"] for device in devices_of(api, "pair")["one"]] == [CARD.uuid, SECOND.uuid]


async def test_annotations_that_the_pod_had_stay(api: ApiServer, parts: OperatorParts) -> None:
    pod = a_pod_object("a")
    pod["metadata"]["annotations"] = {"mine": "1"}
    api.put_pod(pod)
    await parts.bind("a", "node-a")
    assert api.pods["default", "a"]["metadata"]["annotations"].keys() == {"mine", DEVICES_ANNOTATION}


# Its cards are taken.


async def test_a_refusal_on_the_second_card_gives_the_first_one_back(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("both", BOTH))
    parts.filter("both", "node-a")
    api.put_card(SECOND, a_holder("other", a_share(SECOND)))
    with pytest.raises(BindFailed, match=f"card {SECOND.uuid}"):
        await parts.bind("both", "node-a")
    assert api.called(BIND) == []
    assert api.holders_of(SECOND) == ["other"]
    assert parts.shares_left("uid-both") == []
    assert by_label(parts.counts.binds) == {"failed": 1}


async def test_a_card_that_has_gone_since_the_filter_fails_the_bind(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    api.delete_card(CARD)
    parts.watch()
    with pytest.raises(BindFailed, match="is gone"):
        await parts.bind("a", "node-a")
    assert parts.ledger.seats.of("uid-a") is None


def gets_sick(parts: OperatorParts) -> None:
    parts.ledger.set_reported(CARD.uuid, True, sick=True)


def is_reported_no_more(parts: OperatorParts) -> None:
    parts.ledger.set_reported(CARD.uuid, False)


def is_put_into_another_node(parts: OperatorParts) -> None:
    parts.api.cards[CARD.object_name]["spec"]["nodeName"] = "node-b"  # a mover that no rule holds back


def is_cordoned(parts: OperatorParts) -> None:
    parts.api.cards[CARD.object_name]["metadata"]["annotations"] = {CORDON_ANNOTATION: "to be looked at"}


@pytest.mark.parametrize("what_happens", [gets_sick, is_reported_no_more, is_put_into_another_node, is_cordoned])
async def test_a_pod_is_not_bound_to_a_card_that_takes_no_pods_any_more_when_its_share_is_entered(
    api: ApiServer, parts: OperatorParts, what_happens: Callable[[OperatorParts], None]
) -> None:
    parts.filter("a", "node-a")
    arrive = asyncio.Event()
    api.queue(WRITE, hold_request(arrive))
    task = start(parts.bind("a", "node-a"))
    await settle()
    what_happens(parts)
    arrive.set()
    with pytest.raises(BindFailed, match=f"card {CARD.uuid} of node node-a no longer takes new pods"):
        await task
    assert api.called(BIND) == []
    assert parts.shares_left("uid-a") == []


# It can't be bound.


async def check_that_it_is_given_up(
    api: ApiServer, parts: OperatorParts, why: str | None = None, bindings: int = 1
) -> None:
    """Check that pod `a` can't be bound, that so many Bindings were tried, and that nothing is left of it."""
    with pytest.raises(BindFailed, match=why):
        await parts.bind("a", "node-a")
    assert len(api.called(BIND)) == bindings
    assert parts.shares_left("uid-a") == []


def bound_elsewhere(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", node_name="node-b"))


def gone(api: ApiServer) -> None:
    api.delete_pod("a")


def another_pod_of_that_name(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", uid="uid-of-another"))


def another_pod_of_that_name_on_this_node(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", uid="uid-of-another", node_name="node-a"))


def being_deleted(api: ApiServer) -> None:
    pod = a_pod_object("a")
    pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    api.put_pod(pod)


@pytest.mark.parametrize(
    "what_happened",
    [bound_elsewhere, gone, another_pod_of_that_name, another_pod_of_that_name_on_this_node, being_deleted],
)
async def test_a_pod_that_cannot_be_bound_any_more_gives_everything_back(
    api: ApiServer, parts: OperatorParts, what_happened: Callable[[ApiServer], None]
) -> None:
    parts.filter("a", "node-a")
    what_happened(api)
    before = dict(api.pods)
    await check_that_it_is_given_up(api, parts)
    assert api.pods == before


@pytest.mark.parametrize("refusal", [Denied("who may not", 403), Conflict("for another reason", 409)])
async def test_a_refusal_of_a_pod_that_has_not_changed_is_final_and_gives_everything_back(
    api: ApiServer, parts: OperatorParts, refusal: ApiError
) -> None:
    parts.filter("a", "node-a")
    api.queue(BIND, refuse_with(refusal))
    await check_that_it_is_given_up(api, parts, str(refusal))


# No answer.


async def test_a_binding_whose_answer_is_lost_counts_when_the_pod_is_seen_bound(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    api.queue(BIND, lose_answer())
    await parts.bind("a", "node-a")
    assert len(api.called(BIND)) == 1
    assert api.holders_of(CARD) == ["uid-a"]


async def test_a_binding_that_did_not_arrive_is_sent_again(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    api.queue(BIND, lose_request(), lose_request())
    version = api.pods["default", "a"]["metadata"]["resourceVersion"]
    await parts.bind("a", "node-a")
    assert preconditions(api) == [("uid-a", version)] * 3
    assert api.node_of("a") == "node-a"
    assert api.holders_of(CARD) == ["uid-a"]


async def test_a_binding_that_arrives_after_its_repetition_was_sent_is_no_conflict(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    late = asyncio.Event()
    gate = asyncio.Event()
    api.queue(BIND, deliver_late(late), hold_request(gate))
    binding = start(parts.bind("a", "node-a"))
    await asyncio.sleep(0.2)
    late.set()
    await settle()
    gate.set()
    await binding
    assert api.node_of("a") == "node-a"
    assert api.holders_of(CARD) == ["uid-a"]


async def test_a_pod_that_has_ended_gets_nothing_again_from_a_scheduler_that_does_not_know_it(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Its end was shown, and its share given back, before the scheduler tried it once more."""
    unbound = deepcopy(api.pods["default", "a"])
    parts.filter("a", "node-a")
    await parts.bind("a", "node-a")
    bound = api.pods["default", "a"]
    api.put_pod({**bound, "status": {**bound["status"], "phase": "Succeeded"}})
    await parts.idle()
    assert parts.shares_left("uid-a") == []
    assert parts.placer.filter(FilterArguments(unbound, ["node-a"])).node_names == ["node-a"]
    await parts.bind("a", "node-a")
    assert parts.shares_left("uid-a") == []


async def test_the_look_at_the_pod_is_repeated_until_it_is_answered(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    api.queue(BIND, lose_answer())
    api.queue(READ_POD, lose_request(), refuse_with(Unreachable("later", 429, retry_after_s=1.0)))
    await parts.bind("a", "node-a")
    assert len(api.called(BIND)) == 1
    assert api.holders_of(CARD) == ["uid-a"]


async def test_after_several_bindings_without_an_answer_the_pod_is_given_up(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    api.queue(BIND, *[lose_request()] * BINDING_ATTEMPTS)
    await check_that_it_is_given_up(api, parts, "connection reset", BINDING_ATTEMPTS)


async def test_an_entry_that_is_not_written_in_time_gives_everything_back(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    api.queue(WRITE, *[lose_request()] * 20)
    with pytest.raises(BindFailed):
        await parts.bind("a", "node-a")
    await asyncio.sleep(100.0)
    assert api.called(BIND) == []
    assert parts.shares_left("uid-a") == []


# The pod changes meanwhile.


async def test_the_binding_is_for_the_pod_as_it_was_when_its_cards_were_chosen(
    api: ApiServer, parts: OperatorParts
) -> None:
    version = api.pods["default", "a"]["metadata"]["resourceVersion"]
    parts.filter("a", "node-a")
    await parts.bind("a", "node-a")
    ((uid, bound_version),) = preconditions(api)
    assert (uid, bound_version) == ("uid-a", version)


async def test_a_pod_that_has_changed_is_bound_after_another_look_at_its_shares(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    change(api, mine="1")
    version = api.pods["default", "a"]["metadata"]["resourceVersion"]
    await parts.bind("a", "node-a")
    assert [call.operation for call in api.calls] == [WRITE, BIND, READ_POD, READ_CARD, BIND]
    assert preconditions(api)[1] == ("uid-a", version)
    assert api.node_of("a") == "node-a"


async def test_shares_that_cannot_be_looked_at_are_entered_once_more(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    change(api, mine="1")
    api.queue(READ_CARD, lose_request())
    await parts.bind("a", "node-a")
    assert [call.operation for call in api.calls] == [WRITE, BIND, READ_POD, READ_CARD, WRITE, BIND]
    assert api.holders_of(CARD) == ["uid-a"]


async def test_shares_whose_entry_may_still_arrive_once_more_are_entered_anew(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Else it could come back under its name after another operator's removal, and go by a repetition of that."""
    entered_late, removed_late, second, fence = (asyncio.Event() for _ in range(4))
    api.queue(WRITE, deliver_late(entered_late))
    binding, arrive = await begin_to_bind(api, parts)
    await asyncio.sleep(0.5)
    other = an_operator(api)
    api.queue(WRITE, None, deliver_late(removed_late))
    other.releaser.recheck("uid-a")
    await asyncio.sleep(0.5)
    assert api.holders_of(CARD) == []
    entered_late.set()
    await settle()
    assert api.holders_of(CARD) == ["uid-a"]
    api.queue(BIND, hold_request(second))
    arrive.set()
    await asyncio.sleep(0.3)
    other.watch()
    api.queue(Operation.ANNOTATE, hold_request(fence))
    other.releaser.recheck("uid-a")
    await asyncio.sleep(0.1)
    removed_late.set()
    await settle()
    second.set()
    await settle()
    fence.set()
    await binding
    await other.releaser.worker.idle()
    assert (api.node_of("a"), api.holders_of(CARD)) == ("node-a", ["uid-a"])


async def test_a_share_that_another_operator_relies_on_by_now_is_taken_over_from_it(
    api: ApiServer, parts: OperatorParts
) -> None:
    binding, arrive = await begin_to_bind(api, parts)
    api.put_card(CARD, replace(held_by_a(CARD), attempt="theirs"))
    change(api, mine="1")
    arrive.set()
    await binding
    (holder,) = api.card(CARD).holders or ()
    assert holder.attempt not in ("", "first", "theirs")
    assert len(api.called(WRITE)) == 2


async def test_a_pod_whose_shares_are_being_taken_back_is_not_bound(api: ApiServer, parts: OperatorParts) -> None:
    """Another operator has marked them and changed the pod, and we have seen nothing of it."""
    binding, arrive = await begin_to_bind(api, parts)
    api.put_card(CARD, held_by_a(CARD, state=HolderState.RELEASING, deadline="2030-01-01T01:00:00Z"))
    change(api, theirs="1")
    arrive.set()
    with pytest.raises(BindFailed, match="is still being released"):
        await binding
    assert len(api.called(BIND)) == 1
    assert parts.shares_left("uid-a") == []


async def test_a_pod_whose_shares_another_operator_has_taken_back_gets_them_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    binding, arrive = await begin_to_bind(api, parts)
    other = an_operator(api)
    other.releaser.recheck("uid-a")
    await other.idle()
    assert api.holders_of(CARD) == []
    arrive.set()
    await binding
    assert api.node_of("a") == "node-a"
    assert api.holders_of(CARD) == ["uid-a"]


async def test_a_pod_that_changes_again_and_again_is_given_up(api: ApiServer, parts: OperatorParts) -> None:
    gates = [asyncio.Event() for _ in range(BINDING_ATTEMPTS)]
    api.queue(BIND, *map(hold_request, gates))
    parts.filter("a", "node-a")
    binding = start(parts.bind("a", "node-a"))
    for number, gate in enumerate(gates):
        await asyncio.sleep(1.0)
        change(api, number=str(number))
        gate.set()
    with pytest.raises(BindFailed):
        await binding
    await settle()
    assert len(api.called(BIND)) == BINDING_ATTEMPTS
    assert parts.shares_left("uid-a") == []


async def test_a_pod_that_another_operator_has_bound_with_these_cards_counts_as_bound(
    api: ApiServer, parts: OperatorParts
) -> None:
    binding, arrive = await begin_to_bind(api, parts)
    await an_operator(api).bind("a", "node-a")
    arrive.set()
    await binding
    assert api.holders_of(CARD) == ["uid-a"]


@pytest.mark.parametrize("seen_in_time", [True, False])
async def test_a_pod_that_another_operator_has_bound_with_other_cards_keeps_those_alone(
    api: ApiServer, parts: OperatorParts, seen_in_time: bool
) -> None:
    binding, arrive = await begin_to_bind(api, parts)
    theirs = held_by_a(SECOND)
    api.put_card(SECOND, theirs)
    pod = a_pod_object("a", node_name="node-a")
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation([theirs.share])}
    api.put_pod(pod)
    if seen_in_time:
        parts.watch()
    arrive.set()
    with pytest.raises(BindFailed):
        await binding
    await parts.idle()
    assert [api.holders_of(card) for card in CARDS] == [[], ["uid-a"]]
    assert api.card(SECOND).holders == (theirs,)


@pytest.mark.parametrize("theirs", CARDS)
async def test_what_another_operator_has_entered_stays_for_a_while_if_the_pod_is_gone_when_the_binding_arrives(
    api: ApiServer, parts: OperatorParts, theirs: Card
) -> None:
    """It has bound the pod, with this card taken over or with another one, and the pod was deleted by force."""
    binding, arrive = await begin_to_bind(api, parts)
    api.put_card(theirs, replace(held_by_a(theirs), attempt="theirs"))
    parts.watch()
    api.delete_pod("a")
    arrive.set()
    with pytest.raises(BindFailed):
        await binding
    (holder,) = api.card(theirs).holders or ()
    assert (holder.state, holder.attempt) == (HolderState.RELEASING, "theirs")
    assert [api.holders_of(card) for card in CARDS if card != theirs] == [[]]
    await asyncio.sleep(KEPT_S + 5)
    assert [api.holders_of(card) for card in CARDS] == [[], []]


async def test_a_pod_that_is_being_deleted_is_given_up_at_once_even_without_an_answer(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    being_deleted(api)
    api.queue(BIND, lose_request())
    await check_that_it_is_given_up(api, parts)


async def test_shares_of_a_pod_that_may_have_run_before_it_was_gone_stay_for_a_while(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It was bound, the answer was lost, and it was deleted by force before anybody could look."""
    look = asyncio.Event()
    api.queue(BIND, lose_answer())
    api.queue(READ_POD, hold_request(look))
    parts.filter("a", "node-a")
    binding = start(parts.bind("a", "node-a"))
    await settle()
    api.delete_pod("a")
    look.set()
    with pytest.raises(BindFailed):
        await binding
    assert [holder.state for holder in api.card(CARD).holders or ()] == [HolderState.RELEASING]
    await asyncio.sleep(KEPT_S + 3)
    assert parts.shares_left("uid-a") == []


async def test_shares_that_were_looked_at_again_stay_for_a_while_if_the_first_binding_may_have_arrived(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It arrived after the look at the pod, which was deleted by force before the second one."""
    second = asyncio.Event()
    api.queue(BIND, lose_request(), hold_request(second))
    parts.filter("a", "node-a")
    binding = start(parts.bind("a", "node-a"))
    await asyncio.sleep(1.0)
    assert len(api.called(BIND)) == 2
    api.delete_pod("a")
    second.set()
    with pytest.raises(BindFailed):
        await binding
    assert [holder.state for holder in api.card(CARD).holders or ()] == [HolderState.RELEASING]


async def test_a_crowd_of_pods_with_several_cards_does_not_enter_all_at_once(
    api: ApiServer, parts: OperatorParts
) -> None:
    """All would have a part of their shares and be late; the others wait, and hold what they will get in memory."""
    crowd = [a_card(index, "node-b") for index in range(2 * (MANY_CARDS_AT_ONCE + 4))]
    for card in crowd:
        api.put_card(card)
    parts.read_cards()
    arrive = asyncio.Event()
    api.queue(WRITE, *[hold_request(arrive)] * len(crowd))
    names = [f"crowd-{number}" for number in range(MANY_CARDS_AT_ONCE + 4)]
    for name in names:
        api.put_pod(a_pod_object(name, BOTH))
        assert parts.filter(name, "node-b").node_names == ["node-b"]
    tasks = [start(parts.bind(name, "node-b")) for name in names]
    await settle()
    assert len(api.called(WRITE)) == 2 * MANY_CARDS_AT_ONCE
    arrive.set()
    await asyncio.gather(*tasks)
    assert all(api.node_of(name) for name in names)


async def test_pods_whose_shares_can_never_be_given_back_keep_no_place_from_others(
    api: ApiServer, parts: OperatorParts
) -> None:
    """As pods do to which not a byte can be added: neither a Binding nor the fence fits in."""
    names = [f"stuck-{number}" for number in range(MANY_CARDS_AT_ONCE)]
    crowd = [a_card(index, "node-b") for index in range(2 * (MANY_CARDS_AT_ONCE + 1))]
    for card in crowd:
        api.put_card(card)
    parts.read_cards()
    api.queue(BIND, *[refuse_with(Conflict("request is too large", 409))] * len(names))
    api.queue(Operation.ANNOTATE, *[refuse_with(Unreachable("request is too large", 500))] * 100_000)
    for name in [*names, "ordinary"]:
        api.put_pod(a_pod_object(name, BOTH))
        assert parts.filter(name, "node-b").node_names == ["node-b"]
    tasks = [start(parts.bind(name, "node-b")) for name in names]
    await asyncio.sleep(60.0)
    assert len(api.called(Operation.ANNOTATE)) > len(names), "each is tried again and again"
    await parts.bind("ordinary", "node-b")
    assert api.node_of("ordinary") == "node-b"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
