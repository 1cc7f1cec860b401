"""A gang's members get their cards together, or keep none: in every order, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from builders import a_card, a_holder, cards_of, whole_share
from fakes.api_server import ApiServer, Operation, hold_request, refuse
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import HOLD_TTL_S, OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.model.errors import BindFailed, Invalid
from gpuledger.model.gang import GangName
from gpuledger.workflows.gangs.members import UNSEEN_S
from gpuledger.workflows.gangs.plans import COME_S, TRY_PAUSE_S
from gpuledger.workflows.gangs.turns import QUIET_S, TURN_S

Json = dict[str, Any]
WRITE, BIND = Operation.WRITE_STATUS, Operation.BIND
CARDS = cards_of("node-a", 4)
GATHER_S = 20.0
UNBORN = "fewer than 3 members of the pod's gang have been created"
TOO_FEW = "fewer than {} members of the pod's gang find cards at once"


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with four cards."""
    for card in CARDS:
        api.put_card(card)
    return an_operator(api)


def member(name: str, gang: str = "train", minimum: int = 3, limits: Mapping[str, str] | None = None) -> Json:
    found = a_pod_object(name, limits or {GPU: "1"})
    found["metadata"]["labels"] = {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": str(minimum)}
    return found


def come(api: ApiServer, parts: OperatorParts, *pods: Json) -> None:
    for each in pods:
        api.put_pod(each)
    parts.watch()


def come_and_ask(api: ApiServer, parts: OperatorParts) -> None:
    """Have all three members of a gang created, and kube-scheduler ask for each of them."""
    come(api, parts, *map(member, "abc"))
    for name in "abc":
        parts.filter(name, "node-a")


def held(api: ApiServer) -> dict[str, int]:
    """Return pod UID -> how many cards it holds at the API server."""
    uids = [uid for card in CARDS for uid in api.holders_of(card)]
    return {uid: uids.count(uid) for uid in set(uids)}


def on_hold(parts: OperatorParts) -> int:
    return sum(len(entry.seats) for entry in parts.ledger.entries())


async def bind_all(parts: OperatorParts, names: Iterable[str]) -> list[BaseException | None]:
    """Have pods bound at the same time; return what has come of each."""
    return await asyncio.gather(*(parts.bind(name, "node-a") for name in names), return_exceptions=True)


async def test_room_for_all_is_kept_at_the_first_question_once_all_are_there(
    api: ApiServer, parts: OperatorParts
) -> None:
    """One pod that says it is one of many must not keep cards for pods that do not exist."""
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    for name in "ab":
        assert parts.filter(name, "node-a").refused == {"node-a": UNBORN}
    assert on_hold(parts) == 0
    come(api, parts, member("c"))
    assert parts.filter("c", "node-a").node_names == ["node-a"]
    assert on_hold(parts) == 3
    come(api, parts, a_pod_object("other", {GPU: "2"}))
    assert parts.filter("other", "node-a").node_names == []
    assert [parts.filter(name, "node-a").node_names for name in "ab"] == [["node-a"]] * 2
    assert on_hold(parts) == 3


async def test_members_that_are_asked_for_while_others_are_being_created_go_ahead_with_a_place_of_their_own(
    api: ApiServer, parts: OperatorParts
) -> None:
    binding = []
    for number, name in enumerate("abc"):
        come(api, parts, member(name))
        assert parts.filter(name, "node-a").node_names == ["node-a"]
        assert on_hold(parts) == number + 1
        binding.append(asyncio.create_task(bind_all(parts, name)))
        await asyncio.sleep(QUIET_S / 2)
    assert [await each for each in binding] == [[None]] * 3
    assert woken(api, "abc") == []


async def test_members_that_have_gone_ahead_of_others_that_do_not_come_fail_soon_keep_nothing_and_do_so_once(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "ab"))
    for name in "ab":
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    (failed,) = await bind_all(parts, "a")
    assert str(failed) == UNBORN
    assert on_hold(parts) == 0
    for name in "ab":
        assert parts.filter(name, "node-a").refused == {"node-a": UNBORN}
    come(api, parts, member("c"))
    assert parts.filter("c", "node-a").node_names == ["node-a"]


async def test_a_bind_that_comes_after_its_gang_was_given_up_fails_at_once_and_costs_nobody_a_turn(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Five members on four cards: four go ahead, and the fifth finds none. Only cards are short."""
    for name in "abcd":
        come(api, parts, member(name, minimum=5))
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    first = asyncio.create_task(bind_all(parts, "a"))
    await settle()
    come(api, parts, member("e", minimum=5))
    assert parts.filter("e", "node-a").node_names == []
    (late,) = await bind_all(parts, "b")
    assert [str(error) for error in (*await first, late)] == [TOO_FEW.format(5)] * 2
    assert on_hold(parts) == 0
    assert parts.workflows.gangs.turn_of(GangName("default", "train")) is None


async def test_those_that_were_refused_are_woken_when_the_last_member_is_created(
    api: ApiServer, parts: OperatorParts
) -> None:
    room_has_changed = parts.workflows.context.room_has_changed
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    for name in "ab":
        parts.filter(name, "node-a")
    room_has_changed.clear()
    come(api, parts, member("c"))
    await settle()
    assert room_has_changed.is_set()
    await parts.workflows.queue.give_room()
    await settle()
    assert woken(api, "abc") == ["a", "b"]


async def test_a_gang_that_does_not_fit_keeps_nothing(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *(member(name, minimum=5) for name in "abcde"))
    for name in "abcde":
        result = parts.filter(name, "node-a")
        assert (result.node_names, result.refused) == ([], {"node-a": TOO_FEW.format(5)})
    assert on_hold(parts) == 0


async def test_a_gang_is_planned_again_when_kube_scheduler_names_more_nodes(
    api: ApiServer, parts: OperatorParts
) -> None:
    """A taint that is taken off a node changes nothing in the ledger."""
    api.put_card(a_card(0, "node-b"))
    parts.read_cards()
    come(api, parts, *(member(name, minimum=5) for name in "abcde"))
    assert parts.filter("a", "node-a").node_names == []
    await asyncio.sleep(TRY_PAUSE_S)
    assert parts.filter("a", "node-a", "node-b").node_names != []


async def test_room_that_is_kept_for_members_that_never_come_is_given_back(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"))
    parts.filter("a", "node-a")
    await asyncio.sleep(GATHER_S + COME_S)
    parts.placer.expire_holds()
    assert on_hold(parts) == 0


async def test_no_binding_is_sent_before_the_shares_of_all_are_entered(api: ApiServer, parts: OperatorParts) -> None:
    come_and_ask(api, parts)
    first = asyncio.create_task(bind_all(parts, "ab"))
    await settle()
    assert (held(api), api.called(BIND)) == ({}, [])  # two of three stand in Bind
    gate = asyncio.Event()
    api.queue(WRITE, hold_request(gate))
    last = asyncio.create_task(bind_all(parts, "c"))
    await settle()
    assert api.called(BIND) == []  # the share of one is on its way
    gate.set()
    assert await first + await last == [None] * 3
    assert held(api) == {f"uid-{name}": 1 for name in "abc"}
    operations = [call.operation for call in api.calls if call.operation in (WRITE, BIND)]
    assert operations.index(BIND) == 3


async def test_binds_that_the_others_do_not_follow_fail_together_and_keep_nothing(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    found = await bind_all(parts, "ab")
    said = "2 of 3 members of gang train could be bound within 20 s"
    assert [str(error) for error in found] == [said] * 2
    assert all(isinstance(error, BindFailed) for error in found)
    assert (held(api), api.called(BIND, WRITE)) == ({}, [])
    await asyncio.sleep(COME_S)
    parts.placer.expire_holds()
    assert on_hold(parts) == 0


async def test_a_share_that_is_refused_keeps_all_of_them_from_being_bound(api: ApiServer, parts: OperatorParts) -> None:
    come_and_ask(api, parts)
    hold = parts.ledger.seats.of("uid-b")
    assert hold is not None
    taken = next(card for card in CARDS if card.uuid == hold.placement.shares[0].uuid)
    api.put_card(taken, a_holder("other", whole_share(taken)))  # by another operator; no watch has shown it
    found = await bind_all(parts, "abc")
    assert all(isinstance(error, BindFailed) for error in found)
    assert api.called(BIND) == []
    await parts.idle()
    assert held(api) == {"other": 1}


async def test_a_member_that_is_deleted_in_bind_ends_the_others_at_once(api: ApiServer, parts: OperatorParts) -> None:
    come_and_ask(api, parts)
    binding = asyncio.create_task(bind_all(parts, "ab"))
    await settle()
    api.delete_pod("a")
    parts.watch()
    await asyncio.sleep(1)
    assert [str(error) for error in await binding] == ["another member of the gang is gone"] * 2
    assert held(api) == {}


async def test_a_member_whose_binding_is_refused_is_bound_alone_at_the_next_try(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    api.queue(BIND, refuse(Invalid("a policy refuses", 422)))
    found = await bind_all(parts, "abc")
    await parts.idle()
    (late,) = [name for name, error in zip("abc", found, strict=True) if error]
    assert len(held(api)) == 2
    assert parts.filter(late, "node-a").node_names == ["node-a"]
    await parts.bind(late, "node-a")
    assert held(api) == {f"uid-{name}": 1 for name in "abc"}


async def test_an_operator_that_starts_again_in_between_completes_it(api: ApiServer, parts: OperatorParts) -> None:
    come_and_ask(api, parts)
    gate = asyncio.Event()
    api.queue(BIND, *[hold_request(gate)] * 3)
    dying = asyncio.create_task(bind_all(parts, "abc"))
    await settle()
    assert held(api) == {f"uid-{name}": 1 for name in "abc"}
    dying.cancel()
    after = an_operator(api)
    after.watch()
    for name in "abc":  # kube-scheduler asks again, as it has heard nothing
        assert after.filter(name, "node-a").node_names == ["node-a"]
    assert await bind_all(after, "abc") == [None] * 3
    assert held(api) == {f"uid-{name}": 1 for name in "abc"}
    gate.set()
    await settle()


async def test_a_gang_is_woken_together_when_all_of_it_fits(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, a_pod_object("other", {GPU: "2"}))
    parts.filter("other", "node-a")
    await parts.bind("other", "node-a")
    come(api, parts, *map(member, "abc"))
    for name in "abc":
        assert parts.filter(name, "node-a").node_names == []
    api.put_card(a_card(0, "node-b"))
    parts.read_cards()
    await parts.workflows.queue.give_room()
    await settle()
    assert woken(api, "abc") == []  # node-b was not offered
    await asyncio.sleep(TRY_PAUSE_S)
    api.delete_pod("other")
    parts.watch()
    await asyncio.sleep(HOLD_TTL_S * 3)
    await parts.idle()
    await parts.workflows.queue.give_room()
    await settle()
    assert woken(api, "abc") == ["a", "b", "c"]
    assert on_hold(parts) == 3


def woken(api: ApiServer, names: Iterable[str]) -> list[str]:
    pods = {name: api.pods["default", name]["metadata"].get("annotations") or {} for name in names}
    return [name for name, annotations in pods.items() if WOKEN_ANNOTATION in annotations]


async def test_a_gang_that_fails_for_want_of_something_else_is_tried_alone_next_and_not_for_ever(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(name, "first", 2) for name in "ab"), *(member(name, "second", 2) for name in "xy"))
    for name in "abxy":
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    await bind_all(parts, "a")  # kube-scheduler has CPU for one of them
    assert parts.filter("x", "node-a").node_names == ["node-a"]  # what it has already
    parts.ledger.seats.give_up("uid-x")
    parts.ledger.seats.give_up("uid-y")
    text = "another gang, which has found cards and lacked something else, is tried alone for a while"
    assert parts.filter("x", "node-a").refused == {"node-a": text}
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    await asyncio.sleep(TURN_S)
    assert parts.filter("x", "node-a").node_names == ["node-a"]
    await bind_all(parts, "a")
    parts.ledger.seats.give_up("uid-x")
    parts.ledger.seats.give_up("uid-y")
    assert parts.filter("x", "node-a").node_names == ["node-a"]  # no gang has two turns in a row


async def test_members_beyond_the_minimum_are_placed_like_other_pods(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *(member(name, minimum=2) for name in "abc"))
    for name in "ab":
        parts.filter(name, "node-a")
    assert await bind_all(parts, "ab") == [None] * 2
    parts.watch()
    assert parts.filter("c", "node-a").node_names == ["node-a"]
    await parts.bind("c", "node-a")
    assert len(held(api)) == 3


async def test_members_of_different_size_are_planned_together(api: ApiServer, parts: OperatorParts) -> None:
    small = {GPU: "1", MEMORY: "1000"}
    come(api, parts, member("small", limits=small), member("large", limits={GPU: "3"}), member("other", limits=small))
    assert parts.filter("small", "node-a").node_names == ["node-a"]
    assert parts.filter("large", "node-a").node_names == ["node-a"]
    assert parts.filter("other", "node-a").node_names == ["node-a"]
    assert await bind_all(parts, ["small", "large", "other"]) == [None] * 3


async def test_explain_says_how_many_members_there_are(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    parts.filter("a", "node-a")
    found = await parts.explainer.explain("default", "a")
    assert "1 has not been created of 3 members" in found.summary


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"gpuledger.dev/gang": "g"}, "label gpuledger.dev/gang needs gpuledger.dev/gang-minimum beside it"),
        ({"gpuledger.dev/gang-minimum": "3"}, "name it by gpuledger.dev/gang"),
        ({"gpuledger.dev/gang": "g", "gpuledger.dev/gang-minimum": "all"}, "'all' is not a number"),
        ({"gpuledger.dev/gang": "g", "gpuledger.dev/gang-minimum": "257"}, "257 is not between 1 and 256"),
    ],
)
async def test_labels_that_make_no_gang_are_refused_in_words(
    api: ApiServer, parts: OperatorParts, labels: dict[str, str], says: str
) -> None:
    odd = a_pod_object("odd", {GPU: "1"})
    odd["metadata"]["labels"] = labels
    come(api, parts, odd)
    assert says in parts.filter("odd", "node-a").refused["node-a"]


async def test_members_beyond_the_minimum_wait_until_it_is_bound_and_are_pods_like_others_then(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abcd"))
    for name in "abc":
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    assert parts.filter("d", "node-a").refused == {"node-a": "the 3 members that the pod's gang needs go first"}
    assert on_hold(parts) == 3
    assert await bind_all(parts, "abc") == [None] * 3
    parts.watch()
    assert parts.waiting.waiting() == {"uid-d"}
    assert parts.filter("d", "node-a").node_names == ["node-a"]
    await parts.bind("d", "node-a")
    assert len(held(api)) == 4


async def test_the_last_bind_goes_on_when_the_watch_shows_that_the_others_are_bound(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    api.queue(BIND, None, None, refuse(Invalid("a policy refuses", 422)))
    found = await bind_all(parts, "abc")
    (late,) = [name for name, error in zip("abc", found, strict=True) if error]
    again = asyncio.create_task(parts.bind(late, "node-a"))  # kube-scheduler is quicker than the watch
    await settle()
    assert not again.done()
    parts.watch()
    await again
    assert len(held(api)) == 3


async def test_members_that_kube_scheduler_asks_for_are_planned_before_those_that_it_does_not(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It asks nobody about a pod for which no node has CPU: the gang can start without that one."""
    come(api, parts, member("a-first", minimum=2), member("b", minimum=2), member("c", minimum=2))
    assert parts.filter("c", "node-a").node_names == ["node-a"]
    assert parts.filter("b", "node-a").refused == {"node-a": "the 2 members that the pod's gang needs go first"}
    await bind_all(parts, "c")  # nobody else comes
    assert parts.filter("b", "node-a").node_names == ["node-a"]
    assert parts.filter("c", "node-a").node_names == ["node-a"]
    assert await bind_all(parts, "bc") == [None] * 2


async def test_a_pod_whose_labels_change_is_of_its_new_gang_alone(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, member("a", "old", 2), member("b", "new", 2))
    parts.filter("a", "node-a")
    come(api, parts, member("a", "new", 2))
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    come(api, parts, member("c", "old", 2))
    await asyncio.sleep(QUIET_S)
    assert parts.filter("c", "node-a").refused == {"node-a": UNBORN.replace("3", "2")}
    alone = a_pod_object("c", {GPU: "1"})
    come(api, parts, alone)
    assert parts.filter("c", "node-a").node_names == ["node-a"]


async def test_members_whose_kube_scheduler_has_died_count_when_the_next_one_asks_for_them(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It does not know that CPU was found for them: it may have found the same for others of the gang."""
    come_and_ask(api, parts)
    lives = True
    first = [
        asyncio.create_task(parts.placer.bind(BindArguments(f"uid-{name}", "default", name, "node-a"), lambda: lives))
        for name in "ab"
    ]
    await settle()
    lives = False
    last = asyncio.create_task(bind_all(parts, "c"))
    await settle()
    assert (held(api), api.called(BIND)) == ({}, [])
    again = asyncio.create_task(bind_all(parts, "a"))
    await settle()
    assert (held(api), api.called(BIND)) == ({}, [])
    assert await bind_all(parts, "b") == [None]
    assert await last + await again == [None] * 2
    assert len(held(api)) == 3
    await asyncio.gather(*first, return_exceptions=True)


async def test_what_is_entered_is_taken_back_where_kube_scheduler_no_longer_waits(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    hangs_up = [
        parts.placer.bind(BindArguments(f"uid-{name}", "default", name, "node-a"), lambda: False) for name in "abc"
    ]
    found = await asyncio.gather(*hangs_up, return_exceptions=True)
    assert all(isinstance(error, BindFailed) for error in found)
    await parts.idle()
    assert (held(api), api.called(BIND)) == ({}, [])


async def test_a_question_that_is_older_than_what_the_watch_has_shown_makes_no_member_of_a_pod_that_is_gone(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"))
    late = FilterArguments(api.pods["default", "c"], ["node-a"])
    api.delete_pod("c")
    parts.watch()
    assert parts.placer.filter(late).node_names == []
    await asyncio.sleep(QUIET_S)
    assert parts.filter("a", "node-a").refused == {"node-a": UNBORN}
    come(api, parts, member("d"))
    assert parts.filter("a", "node-a").node_names == ["node-a"]


async def test_a_pod_that_no_watch_shows_after_a_question_is_no_member_for_long(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It was gone before this operator listed the pods, and kube-scheduler had not heard of that yet."""
    api.put_pod(member("gone", minimum=2))
    question = FilterArguments(api.pods["default", "gone"], ["node-a"])
    api.delete_pod("gone")
    parts.placer.filter(question)
    come(api, parts, *(member(name, minimum=2) for name in "ab"))
    await asyncio.sleep(UNSEEN_S)
    assert [parts.filter(name, "node-a").node_names for name in "ab"] == [["node-a"]] * 2
    assert on_hold(parts) == 2


async def test_a_gang_of_which_kube_scheduler_has_a_place_yields_to_nobody(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"))
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    come(api, parts, a_pod_object("high", {GPU: "2"}, priority=1))
    assert parts.filter("high", "node-a").node_names == []
    assert on_hold(parts) == 3


async def test_room_that_waits_for_all_members_goes_to_a_pod_of_higher_priority_as_a_whole(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, a_pod_object("first", {GPU: "4"}))
    assert parts.filter("first", "node-a").node_names == ["node-a"]
    come_and_ask(api, parts)
    parts.ledger.seats.give_up("uid-first")
    await asyncio.sleep(TRY_PAUSE_S)
    await parts.workflows.queue.give_room()
    assert on_hold(parts) == 3
    come(api, parts, a_pod_object("high", {GPU: "2"}, priority=1))
    assert parts.filter("high", "node-a").node_names == ["node-a"]
    assert {key for entry in parts.ledger.entries() for key in entry.seats} == {"uid-high"}
    assert parts.filter("a", "node-a").refused == {"node-a": TOO_FEW.format(3)}
    parts.ledger.seats.give_up("uid-high")
    await asyncio.sleep(TRY_PAUSE_S)
    await parts.workflows.queue.give_room()
    assert on_hold(parts) == 3


async def a_gang_waits_beside(api: ApiServer, parts: OperatorParts, priority: int) -> None:
    """Have a single pod's room wait for it on one of two free cards, where a gang of three wants four."""
    come(api, parts, a_pod_object("first", {GPU: "4"}))
    assert parts.filter("first", "node-a").node_names == ["node-a"]
    come(api, parts, a_pod_object("low", {GPU: "2"}))
    assert parts.filter("low", "node-a").node_names == []
    parts.ledger.seats.give_up("uid-first")
    await parts.workflows.queue.give_room()
    assert {key for entry in parts.ledger.entries() for key in entry.seats} == {"uid-low"}
    come(api, parts, *({**each, "spec": {**each["spec"], "priority": priority}} for each in map(member, "abc")))
    for name in "abc":
        parts.filter(name, "node-a")


async def test_a_gang_takes_over_room_that_waits_for_a_pod_of_lower_priority(
    api: ApiServer, parts: OperatorParts
) -> None:
    await a_gang_waits_beside(api, parts, priority=1)
    assert {key for entry in parts.ledger.entries() for key in entry.seats} == {"uid-a", "uid-b", "uid-c"}
    assert parts.waiting.lookup("uid-low"), "the pod waits again, in its order"


async def test_a_gang_of_the_same_priority_takes_over_nothing(api: ApiServer, parts: OperatorParts) -> None:
    await a_gang_waits_beside(api, parts, priority=0)
    assert {key for entry in parts.ledger.entries() for key in entry.seats} == {"uid-low"}


async def test_a_gang_takes_over_nothing_that_kube_scheduler_was_told_of(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, a_pod_object("low", {GPU: "2"}))
    assert parts.filter("low", "node-a").node_names == ["node-a"]
    come(api, parts, *({**each, "spec": {**each["spec"], "priority": 1}} for each in map(member, "abc")))
    for name in "abc":
        assert parts.filter(name, "node-a").node_names == []
