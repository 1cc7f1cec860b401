"""From Filter to a bound pod: every order of events, every answer that is lost, every crash in between."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest

from builders import a_card, a_holder, a_share, first_attempts, whole_share
from fakes.api_server import ApiServer, Fault, Operation, deliver_late, hold_answer, hold_request, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.counters import by_label
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import BIND_TIMEOUT_S, HOLD_TTL_S, OperatorParts, an_operator
from fakes.virtual_time import now_s, settle
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.model.errors import BindFailed, BindInProgress, Denied, Invalid, Unreachable
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod, Share
from gpuledger.workflows.binding.bind_pod import ANSWER_PAUSE_S, ASKED_AGAIN_S, BINDING_ATTEMPTS, FAILURES_FREE
from gpuledger.workflows.placing.place_pod import MAX_POD_BYTES, TOO_LONG

CARDS = [a_card(0), a_card(1)]
CARD, SECOND = CARDS
ELSEWHERE = a_card(0, "node-b")
WRITE, BIND, READ_POD = Operation.WRITE_STATUS, Operation.BIND, Operation.READ_POD
WHOLE = {GPU: "1"}
BOTH = {GPU: "2"}


def start(step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(step)


def share_of(uid: str) -> Share:
    """Return the share of a pod with the default limits."""
    return replace(a_share(CARD, 4_000), containers=(ContainerShare("main", 4_000, 0),))


def devices_of(api: ApiServer, name: str) -> Any:
    return orjson.loads(api.pods["default", name]["metadata"]["annotations"][DEVICES_ANNOTATION])


# Filter.


async def test_a_hold_makes_the_next_filter_see_the_share_as_taken(api: ApiServer, parts: OperatorParts) -> None:
    for name in "xyz":
        api.put_pod(a_pod_object(name, WHOLE))
    assert [parts.filter(name, "node-a").node_names for name in "xyz"] == [["node-a"], ["node-a"], []]
    assert parts.filter("z", "node-a").refused == {"node-a": "no card entirely free"}
    assert by_label(parts.counts.refusals) == {"no-whole-card": 2}
    assert api.calls == []


async def test_filtering_the_same_pod_again_replaces_its_hold(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("both", BOTH))
    for _ in range(2):
        assert parts.filter("both", "node-a").node_names == ["node-a"]


async def test_a_hold_whose_bind_does_not_come_expires(api: ApiServer, parts: OperatorParts) -> None:
    for name in ("first", "second"):
        api.put_pod(a_pod_object(name, BOTH))
    parts.filter("first", "node-a")
    await asyncio.sleep(HOLD_TTL_S - 1)
    assert parts.filter("second", "node-a").node_names == []
    await asyncio.sleep(1)
    assert parts.filter("second", "node-a").node_names == ["node-a"]


async def test_a_filter_while_the_pod_is_being_bound_answers_its_node_and_no_other(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_card(ELSEWHERE)
    parts.read_cards()
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    (node_name,) = parts.filter("a", "node-a").node_names
    binding = start(parts.bind("a", node_name))
    await settle()
    assert parts.filter("a", "node-b", "node-a").node_names == ["node-a"]
    with pytest.raises(BindInProgress, match="is being bound to node node-a"):
        parts.filter("a", "node-b")
    gate.set()
    await binding
    assert api.node_of("a") == "node-a"
    assert api.holders_of(ELSEWHERE) == []


async def test_a_request_that_makes_no_sense_refuses_every_node_with_its_sentence(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("bad", {GPU: "1", MEMORY: "4Gi"}))
    result = parts.filter("bad", "node-a", "node-b")
    assert result.node_names == []
    assert set(result.refused) == {"node-a", "node-b"}
    assert "container main, nvidia.com/gpumem: 4Gi has a unit of bytes" in result.refused["node-a"]
    assert (by_label(parts.counts.bad_input), by_label(parts.counts.refusals)) == ({"pod": 1}, {"bad-request": 1})


async def test_a_pod_of_such_length_that_nobody_could_write_to_it_any_more_gets_no_cards(
    api: ApiServer, parts: OperatorParts
) -> None:
    """The kubelet could not say that it has started, nor could its Binding be taken back."""
    pod, names = a_pod_object("long", {GPU: "1"}), ["node-a", "node-b"]
    result = parts.placer.filter(FilterArguments(pod, names, pod_bytes=MAX_POD_BYTES + 1))
    assert set(result.refused.values()) == {TOO_LONG}
    assert by_label(parts.counts.bad_input) == {"pod": 1}
    assert parts.placer.filter(FilterArguments(pod, names, pod_bytes=MAX_POD_BYTES)).node_names


async def test_something_that_is_no_pod_refuses_every_node(parts: OperatorParts) -> None:
    result = parts.placer.filter(FilterArguments({"spec": {}}, ["node-a"]))
    assert "not a pod" in result.refused["node-a"]


async def test_a_pod_without_a_gpu_request_passes_all_nodes(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("plain", {"cpu": "1"}))
    result = parts.filter("plain", "node-a", "unknown")
    assert (result.node_names, result.refused) == (["node-a", "unknown"], {})
    arguments = FilterArguments(api.pods["default", "plain"], ["z", "a"])
    assert parts.placer.prioritize(arguments) == ["z", "a"]


# Several nodes to choose from.


@pytest.fixture
async def three(api: ApiServer) -> OperatorParts:
    """Return an operator that offers three nodes, over four with a card each; that of node-d is taken."""
    for name in ("node-a", "node-b", "node-c"):
        api.put_card(a_card(0, name))
    api.put_card(a_card(0, "node-d"), a_holder("other", whole_share(a_card(0, "node-d"))))
    for name in "abcd":
        api.put_pod(a_pod_object(name, WHOLE))
    parts = OperatorParts(api, nodes_offered=3)
    parts.read_cards()
    return parts


ABC = ["node-a", "node-b", "node-c"]
NODES = [*ABC, "node-d"]


def on_hold(parts: OperatorParts) -> list[str]:
    """Return the pods and nodes of all that is on hold."""
    entries = sorted(parts.ledger.entries(), key=lambda entry: entry.card.node_name)
    return [f"{uid[4:]} {entry.card.node_name[5:]}" for entry in entries for uid in entry.seats]


async def test_several_nodes_are_offered_and_all_are_on_hold(three: OperatorParts) -> None:
    assert three.filter("a", *NODES).node_names == ABC
    assert on_hold(three) == ["a a", "a b", "a c"]
    assert three.filter("a", "node-d", "node-c").node_names == ["node-c"]
    assert on_hold(three) == ["a c"]


async def test_offered_nodes_are_preferred_in_the_order_of_the_policy(api: ApiServer, three: OperatorParts) -> None:
    api.put_pod(a_pod_object("small"))
    busy = a_card(0, "node-c")
    api.put_card(busy, a_holder("x", a_share(busy, 8_000)))
    three.read_cards()
    assert three.filter("small", *NODES).node_names == ["node-c", "node-a", "node-b"]
    arguments = FilterArguments(api.pods["default", "small"], ["unknown", "node-b", "node-c"])
    assert three.placer.prioritize(arguments) == ["node-c", "node-b", "unknown"]


async def test_a_bind_keeps_one_node_and_gives_back_the_others_at_once(api: ApiServer, three: OperatorParts) -> None:
    three.filter("a", *NODES)
    answer = asyncio.Event()
    api.queue(WRITE, hold_answer(answer))
    bind = start(three.bind("a", "node-b"))
    await settle()
    assert on_hold(three) == ["a b"]
    answer.set()
    await bind
    assert api.node_of("a") == "node-b"
    assert on_hold(three) == []
    assert api.called(READ_POD) == []


async def test_nobody_is_refused_because_of_nodes_that_others_may_not_choose(three: OperatorParts) -> None:
    three.filter("a", *NODES)
    assert three.filter("b", *NODES).node_names == ["node-b"]
    assert on_hold(three) == ["a a", "b b"]
    assert three.filter("c", *NODES).node_names == ["node-c"]
    assert three.filter("d", *NODES).node_names == []
    assert on_hold(three) == ["a a", "b b", "c c"]


async def test_a_bind_to_a_node_that_was_taken_back_chooses_there_again_or_fails(
    api: ApiServer, three: OperatorParts
) -> None:
    three.filter("a", *NODES)
    three.filter("b", *NODES)
    with pytest.raises(BindFailed, match="node node-b: no card entirely free"):
        await three.bind("a", "node-b")
    assert on_hold(three) == ["b b"]
    three.filter("a", "node-a")
    await three.bind("a", "node-c")
    assert api.node_of("a") == "node-c"


async def test_a_bind_without_a_hold_takes_the_room_that_is_only_offered_to_others(
    api: ApiServer, three: OperatorParts
) -> None:
    three.filter("a", *NODES)
    await three.bind("b", "node-c")
    assert api.node_of("b") == "node-c"
    assert on_hold(three) == ["a a"]


async def test_all_offers_of_a_pod_end_with_its_hold(three: OperatorParts) -> None:
    three.filter("a", *NODES)
    await asyncio.sleep(HOLD_TTL_S)
    three.placer.expire_holds()
    assert on_hold(three) == []
    three.filter("b", *NODES)
    three.placer.forget_pending("uid-b")
    assert on_hold(three) == []


async def test_a_pod_that_waits_gets_room_that_is_only_offered_to_another(api: ApiServer, three: OperatorParts) -> None:
    """Room that appears for it and fits only with what is offered to somebody beside his best node."""
    api.put_pod(a_pod_object("large", {GPU: "1", MEMORY: "12000"}))
    api.put_pod(a_pod_object("small", {GPU: "1", MEMORY: "8000"}))
    for name in ("node-a", "node-b", "node-c"):
        api.put_card(a_card(0, name), a_holder("x", a_share(a_card(0, name), 8_000)))
    three.read_cards()
    assert three.filter("large", *NODES).node_names == []
    assert three.filter("small", *NODES).node_names == ABC
    api.put_card(a_card(0, "node-b"))  # its holder has left
    three.read_cards()
    three.waiting.give_room()
    assert on_hold(three) == ["small a", "large b"]


async def test_who_waits_in_vain_takes_no_choice_from_others(api: ApiServer, three: OperatorParts) -> None:
    api.put_pod(a_pod_object("never", {GPU: "1", MEMORY: "99000"}))
    assert three.filter("never", *NODES).node_names == []
    assert three.filter("a", *NODES).node_names == ABC
    three.waiting.give_room()
    assert on_hold(three) == ["a a", "a b", "a c"]


# Nodes that led nowhere.

ALL = ("node-a", "node-b", "node-c")


def preferred(parts: OperatorParts, *node_names: str) -> str:
    """Return where pod `a` is sent, first of several; no Bind follows."""
    return next(iter(parts.filter("a", *node_names).node_names))


@pytest.fixture
async def one(api: ApiServer, three: OperatorParts) -> OperatorParts:
    """Return an operator over three nodes that offers one of those that fit."""
    one = OperatorParts(api, nodes_offered=1)
    one.read_cards()
    return one


async def test_a_pod_whose_hold_ends_without_a_bind_goes_round_all_nodes_that_fit(one: OperatorParts) -> None:
    """Reserve, Permit or PreBind has failed, and may fail there again and again."""
    sent = [preferred(one, *ALL) for _ in range(6)]
    assert sorted(sent[:3]) == sorted(sent[3:]) == sorted(ALL)


async def test_hold_that_has_expired_before_the_pod_comes_again_has_led_nowhere_too(one: OperatorParts) -> None:
    first = preferred(one, *ALL)
    await asyncio.sleep(HOLD_TTL_S + 1)
    assert preferred(one, *ALL) != first


async def test_offered_nodes_that_led_nowhere_are_not_offered_while_others_fit(
    api: ApiServer, three: OperatorParts
) -> None:
    for name in "def":
        api.put_card(a_card(0, f"node-{name}"))
    three.read_cards()
    names = [f"node-{name}" for name in "abcdef"]
    first, second = (set(three.filter("a", *names).node_names) for _ in range(2))
    assert len(first) == len(second) == 3
    assert not first & second


async def test_a_node_that_led_nowhere_is_given_again_where_no_other_fits(one: OperatorParts) -> None:
    assert [preferred(one, "node-b") for _ in range(3)] == ["node-b"] * 3


async def test_a_node_that_kube_scheduler_rules_out_itself_counts_as_before_when_it_is_named_again(
    one: OperatorParts,
) -> None:
    """Its own plugins come first, and say no; nothing is known of what would have come after Filter."""
    first = preferred(one, *ALL)
    assert preferred(one, *(name for name in ALL if name != first)) != first
    assert preferred(one, *ALL) == first


async def test_a_node_on_which_the_binding_was_refused_comes_last(one: OperatorParts) -> None:
    first = preferred(one, *ALL)
    one.api.queue(BIND, refuse_with(Denied("a policy about this node", 403)))
    with pytest.raises(BindFailed):
        await one.bind("a", first)
    assert preferred(one, *ALL) != first


@pytest.mark.parametrize("away", [0, 429, 503])
async def test_a_bind_that_fails_because_the_api_server_is_away_says_nothing_of_the_node(
    one: OperatorParts, away: int
) -> None:
    first = preferred(one, *ALL)
    one.api.queue(BIND, *[refuse_with(Unreachable("away", away))] * BINDING_ATTEMPTS)
    with pytest.raises(BindFailed):
        await one.bind("a", first)
    assert preferred(one, *ALL) == first


async def test_what_led_nowhere_is_forgotten_when_the_pod_is_bound_or_gone(api: ApiServer, one: OperatorParts) -> None:
    first = preferred(one, *ALL)
    second = preferred(one, *ALL)
    await one.bind("a", second)
    assert one.placer.known_pending() == set()
    api.delete_pod("a")
    api.put_pod(a_pod_object("b"))
    one.filter("b", *ALL)
    one.filter("b", *ALL)
    api.delete_pod("b")
    one.watch()
    assert one.placer.known_pending() == set()
    assert first != second


# Bind.


async def test_two_binds_of_one_pod_join_one_task(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    await asyncio.gather(parts.bind("a", "node-a"), parts.bind("a", "node-a"))
    assert api.writes() == [WRITE, BIND]
    assert by_label(parts.counts.binds) == {"bound": 2}


async def test_a_bind_to_another_node_while_one_is_in_progress_fails(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    first = start(parts.bind("a", "node-a"))
    await asyncio.sleep(0)
    with pytest.raises(BindFailed, match="being bound to node node-a"):
        await parts.bind("a", "node-b")
    await first


HASTY_S = 3.0


@pytest.fixture
async def hasty(api: ApiServer, parts: OperatorParts) -> OperatorParts:
    """Return an operator in which Bind has less time than the API server may take."""
    hasty = OperatorParts(api, bind_timeout_s=HASTY_S)
    hasty.read_cards()
    return hasty


async def until_entered(api: ApiServer) -> None:
    """Wait until pod `a` has its share."""
    while api.holders_of(CARD) != ["uid-a"]:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.1)


async def bind_in_vain(api: ApiServer, hasty: OperatorParts) -> None:
    """Let a Bind of pod `a` fail for want of time, and its share be entered after that."""
    gate = asyncio.Event()
    api.queue(WRITE, *[lose_request()] * 8, hold_request(gate))
    hasty.filter("a", "node-a")
    with pytest.raises(BindFailed):
        await hasty.bind("a", "node-a")
    gate.set()
    await until_entered(api)


async def test_a_bind_whose_time_is_over_sends_no_binding_until_it_is_asked_again(
    api: ApiServer, hasty: OperatorParts
) -> None:
    """kube-scheduler has forgotten the pod's CPU on the node: it may be another pod's by now."""
    gate = asyncio.Event()
    api.queue(WRITE, *[lose_request()] * 8, hold_request(gate))
    hasty.filter("a", "node-a")
    began = now_s()
    with pytest.raises(BindFailed, match="not bound yet"):
        await hasty.bind("a", "node-a")
    assert now_s() - began == pytest.approx(HASTY_S)
    assert by_label(hasty.counts.binds) == {"late": 1}
    gate.set()
    await until_entered(api)
    await asyncio.sleep(ASKED_AGAIN_S - 1)
    assert api.called(BIND) == []
    assert hasty.filter("a", "node-a").node_names == ["node-a"]
    await hasty.bind("a", "node-a")
    assert api.node_of("a") == "node-a"
    assert len(api.called(BIND)) == 1
    assert api.holders_of(CARD) == ["uid-a"]


async def test_a_bind_that_had_to_wait_sends_no_binding_for_a_share_that_etcd_has_lost_meanwhile(
    api: ApiServer, hasty: OperatorParts
) -> None:
    """The pod is as it was: nothing in its Binding would tell."""
    copy = api.cards[CARD.object_name]
    await bind_in_vain(api, hasty)
    api.cards[CARD.object_name] = copy
    assert hasty.filter("a", "node-a").node_names == ["node-a"]
    with pytest.raises(BindFailed):
        await hasty.bind("a", "node-a")
    assert api.called(BIND) == []


async def test_a_bind_that_nobody_asks_for_again_gives_its_shares_back(api: ApiServer, hasty: OperatorParts) -> None:
    await bind_in_vain(api, hasty)
    await asyncio.sleep(ASKED_AGAIN_S - 1)
    assert hasty.placer._binder.is_binding("uid-a")
    await asyncio.sleep(2)
    assert not hasty.placer._binder.is_binding("uid-a")
    assert hasty.shares_left("uid-a") == []
    assert api.called(BIND) == []


async def test_a_bind_whose_node_is_not_named_any_more_gives_its_shares_back_at_once(
    api: ApiServer, hasty: OperatorParts
) -> None:
    api.put_card(ELSEWHERE)
    hasty.read_cards()
    await bind_in_vain(api, hasty)
    with pytest.raises(BindInProgress):
        hasty.filter("a", "node-b")
    await asyncio.sleep(1.0)
    assert hasty.shares_left("uid-a") == []
    assert hasty.filter("a", "node-b").node_names == ["node-b"]


@pytest.mark.parametrize("refused", [True, False])
async def test_a_bind_does_not_say_what_has_become_of_a_binding_under_way_before_it_knows(
    api: ApiServer, hasty: OperatorParts, refused: bool
) -> None:
    entered, arrive = asyncio.Event(), asyncio.Event()
    api.queue(WRITE, hold_request(entered))
    api.queue(BIND, hold_request(arrive))
    hasty.filter("a", "node-a")
    binding = start(hasty.bind("a", "node-a"))
    await asyncio.sleep(HASTY_S - 1)
    entered.set()
    await asyncio.sleep(2)  # the time is over
    assert not binding.done()
    if refused:
        pod = api.pods["default", "a"]
        api.put_pod({**pod, "metadata": {**pod["metadata"], "labels": {"it": "has changed"}}})
    arrive.set()
    if refused:
        with pytest.raises(BindFailed):
            await binding
    else:
        await binding
    await asyncio.sleep(ASKED_AGAIN_S - 1)
    assert api.node_of("a") == ("" if refused else "node-a")
    assert len(api.called(BIND)) == 1


@pytest.mark.parametrize("arrives", ["never", "before it is asked for", "before the fence", "after the fence"])
async def test_a_bind_without_an_answer_ends_with_one_entry_and_one_binding_or_none(
    api: ApiServer, hasty: OperatorParts, arrives: str
) -> None:
    """Whatever the order: what is said is what is so, and stays so."""
    entered, late, read, fence = (asyncio.Event() for _ in range(4))
    api.queue(WRITE, hold_request(entered))
    api.queue(BIND, deliver_late(late))
    api.queue(READ_POD, hold_request(read))
    api.queue(Operation.ANNOTATE, hold_request(fence))
    hasty.filter("a", "node-a")
    binding = start(hasty.bind("a", "node-a"))
    await asyncio.sleep(HASTY_S - 1)
    entered.set()
    await asyncio.sleep(2)  # the time is over, and nobody knows
    assert not binding.done()
    for step, goes_on in (("before it is asked for", read), ("before the fence", fence), ("after the fence", late)):
        if arrives == step:
            late.set()
            await settle()
        if goes_on is not late:
            goes_on.set()
            await asyncio.sleep(1)
    bound = arrives.startswith("before")
    if bound:
        await binding
    else:
        with pytest.raises(BindFailed):
            await binding
    await hasty.idle()
    await asyncio.sleep(ASKED_AGAIN_S)
    assert api.node_of("a") == ("node-a" if bound else "")
    assert api.holders_of(CARD) == (["uid-a"] if bound else [])
    assert len(api.called(BIND)) == 1


async def test_a_bind_whose_caller_has_hung_up_sends_no_binding(api: ApiServer, parts: OperatorParts) -> None:
    """As a kube-scheduler does that still has a shorter time-out in its configuration."""
    gate = asyncio.Event()
    api.queue(WRITE, hold_request(gate))
    parts.filter("a", "node-a")
    heard = [True]
    arguments = BindArguments("uid-a", "default", "a", "node-a")
    first = start(parts.placer.bind(arguments, lambda: heard[0]))
    await settle()
    heard.clear()
    heard.append(False)
    gate.set()
    await asyncio.sleep(5.0)
    assert api.called(BIND) == []
    await parts.bind("a", "node-a")
    await first
    assert api.node_of("a") == "node-a"
    assert api.writes() == [WRITE, BIND]


async def test_a_hold_that_is_being_bound_does_not_expire(api: ApiServer, parts: OperatorParts) -> None:
    for name in ("both", "other"):
        api.put_pod(a_pod_object(name, BOTH))
    api.queue(BIND, lose_request())
    read = asyncio.Event()
    api.queue(READ_POD, *[hold_request(read)] * 20)
    parts.filter("both", "node-a")
    binding = start(parts.bind("both", "node-a"))
    await asyncio.sleep(BIND_TIMEOUT_S - 1)
    assert parts.filter("other", "node-a").node_names == []
    assert parts.ledger.seats.of("uid-both") is not None
    read.set()
    await binding
    assert api.node_of("both") == "node-a"


async def test_a_card_is_not_given_away_while_it_is_written_for_a_pod_that_is_gone(
    api: ApiServer, parts: OperatorParts
) -> None:
    for name in ("both", "other"):
        api.put_pod(a_pod_object(name, BOTH))
    parts.filter("both", "node-a")
    gate = asyncio.Event()
    api.queue(WRITE, *[hold_request(gate)] * 2)
    binding = start(parts.bind("both", "node-a"))
    await settle()
    api.delete_pod("both")
    parts.watch()
    assert parts.filter("other", "node-a").node_names == []
    gate.set()
    with pytest.raises(BindFailed):
        await binding
    assert parts.filter("other", "node-a").node_names == ["node-a"]


async def test_a_caller_that_goes_away_does_not_stop_the_bind(api: ApiServer, parts: OperatorParts) -> None:
    parts.filter("a", "node-a")
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    caller = start(parts.bind("a", "node-a"))
    await settle()
    caller.cancel()
    gate.set()
    await asyncio.sleep(1.0)
    assert api.node_of("a") == "node-a"
    assert not parts.placer._binder.is_binding("uid-a")


def left_by_a_crash(api: ApiServer) -> None:
    """Leave one of the two cards that pod `both` needs entered."""
    pod = Pod("uid-both", "default", "both")
    api.put_card(CARD)
    api.put_card(SECOND, replace(a_holder("both", whole_share(SECOND)), pod=pod))
    api.put_pod(a_pod_object("both", BOTH))


# Bind without a hold: after a restart, or when volumes took long.


async def test_a_bind_without_a_hold_chooses_on_that_node(api: ApiServer, parts: OperatorParts) -> None:
    api.put_card(ELSEWHERE, a_holder("other", a_share(ELSEWHERE, 8_000)))
    parts.read_cards()
    await parts.bind("a", "node-a")  # binpack would have chosen node-b
    assert api.node_of("a") == "node-a"
    assert devices_of(api, "a") == {"main": [{"uuid": CARD.uuid, "memoryMiB": 4_000, "cores": 0}]}
    assert api.writes() == [WRITE, BIND]
    assert parts.ledger.seats.of("uid-a") is None


async def test_a_bind_after_the_hold_has_expired_chooses_again(api: ApiServer, parts: OperatorParts) -> None:
    for name in ("first", "second"):
        api.put_pod(a_pod_object(name, WHOLE))
    parts.filter("first", "node-a")
    await asyncio.sleep(HOLD_TTL_S)
    parts.filter("second", "node-a")  # takes the card that was on hold
    await asyncio.gather(parts.bind("first", "node-a"), parts.bind("second", "node-a"))
    assert sorted(api.holders_of(CARD) + api.holders_of(SECOND)) == ["uid-first", "uid-second"]


async def test_a_bind_without_a_filter_uses_the_room_that_was_kept_for_its_pod(
    api: ApiServer, parts: OperatorParts
) -> None:
    """An operator that has ended since has answered Filter, and there is no other room."""
    api.put_card(CARD, a_holder("other", a_share(CARD)))
    api.put_pod(a_pod_object("both", BOTH))
    parts.watch()
    assert parts.filter("both", "node-a").node_names == []
    await parts.journal.remove(CARD.uuid, "other")
    parts.waiting.give_room()
    assert parts.ledger.seats.of("uid-both")
    await parts.bind("both", "node-a")
    assert [api.holders_of(card) for card in CARDS] == [["uid-both"], ["uid-both"]]
    assert parts.remembered("uid-both") == []


async def test_a_bind_to_another_node_than_the_held_one_chooses_there(api: ApiServer, parts: OperatorParts) -> None:
    api.put_card(ELSEWHERE)
    parts.read_cards()
    parts.filter("a", "node-a")
    await parts.bind("a", "node-b")
    assert set(parts.shares_left("uid-a")) == {ELSEWHERE.uuid}


async def test_a_bind_without_a_hold_and_without_room_fails_with_the_reason(
    api: ApiServer, parts: OperatorParts
) -> None:
    for card in CARDS:
        api.put_card(card, a_holder("other", whole_share(card)))
    parts.read_cards()
    with pytest.raises(BindFailed, match="node node-a: no card with 4000 MiB free"):
        await parts.bind("a", "node-a")
    assert api.writes() == []


async def test_a_bind_after_a_crash_between_ledger_and_binding_uses_the_entries(api: ApiServer) -> None:
    holder = a_holder("a", share_of("a"))
    mine = replace(holder, pod=Pod("uid-a", "default", "a"))
    api.put_card(CARD, a_holder("tighter", a_share(CARD, 8_000)))
    api.put_card(SECOND, replace(mine, share=replace(mine.share, uuid=SECOND.uuid)))
    api.put_pod(a_pod_object("a"))
    parts = an_operator(api)
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    await parts.bind("a", "node-a")
    assert api.writes() == [WRITE, BIND]
    assert first_attempts(api.card(SECOND).holders) == (replace(mine, share=replace(mine.share, uuid=SECOND.uuid)),)
    assert devices_of(api, "a") == {"main": [{"uuid": SECOND.uuid, "memoryMiB": 4_000, "cores": 0}]}


async def test_a_bind_of_a_pod_that_is_bound_there_already_succeeds(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("a", node_name="node-a"))
    await parts.bind("a", "node-a")
    assert api.writes() == []


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod_object("a", node_name="node-b"), "bound to node node-b already"),
        (a_pod_object("a", uid="another"), "has been replaced by another of the same name"),
        (a_pod_object("a", {MEMORY: "4Gi"}), "has a unit of bytes"),
        (a_pod_object("b"), "not found"),
    ],
)
async def test_a_bind_without_a_hold_of_a_pod_that_is_not_as_expected_fails(
    api: ApiServer, parts: OperatorParts, pod: dict[str, Any], reason: str
) -> None:
    api.delete_pod("a")
    api.put_pod(pod)
    with pytest.raises(BindFailed, match=reason):
        await parts.bind("a", "node-a")
    assert api.writes() == []


async def test_a_bind_gives_back_incomplete_entries_of_a_crash_before_it_chooses(api: ApiServer) -> None:
    left_by_a_crash(api)
    parts = an_operator(api)
    await parts.bind("both", "node-a")
    assert [api.holders_of(card) for card in CARDS] == [["uid-both"], ["uid-both"]]
    assert api.node_of("both") == "node-a"
    back = [WRITE, Operation.ANNOTATE, WRITE]
    assert api.writes() == [*back, WRITE, WRITE, BIND]  # one back, two in


# Filter after a crash.


async def test_a_filter_gives_back_incomplete_entries_of_a_crash_before_it_places_anew(api: ApiServer) -> None:
    left_by_a_crash(api)
    parts = an_operator(api)
    with pytest.raises(BindInProgress, match="are still being released"):
        parts.filter("both", "node-a")
    await settle()
    assert parts.shares_left("uid-both") == []
    assert parts.filter("both", "node-a").node_names == ["node-a"]


async def test_a_filter_does_not_rely_on_entries_that_are_being_given_back(api: ApiServer) -> None:
    holder = Holder(Pod("uid-a", "default", "a"), share_of("a"), HolderState.RELEASING, "2030-01-01T00:00:00Z", "first")
    for card in CARDS:
        api.put_card(card)
    api.put_card(CARD, holder)
    api.put_pod(a_pod_object("a"))
    parts = an_operator(api)
    with pytest.raises(BindInProgress, match="are still being released"):
        parts.filter("a", "node-a")
    await settle()
    assert parts.filter("a", "node-a").node_names == ["node-a"]


async def test_entries_of_a_pod_whose_node_is_not_offered_any_more_are_given_back(api: ApiServer) -> None:
    for card in (*CARDS, ELSEWHERE):
        api.put_card(card)
    api.put_card(CARD, replace(a_holder("a", share_of("a")), pod=Pod("uid-a", "default", "a")))
    api.put_pod(a_pod_object("a"))
    parts = an_operator(api)
    with pytest.raises(BindInProgress):
        parts.filter("a", "node-b")
    await settle()
    assert parts.filter("a", "node-b").node_names == ["node-b"]


async def test_entries_of_a_pod_that_turns_out_to_be_bound_there_stay(api: ApiServer) -> None:
    left_by_a_crash(api)
    parts = an_operator(api)
    pod = api.pods["default", "both"]
    api.put_pod({**pod, "spec": {**pod["spec"], "nodeName": "node-a"}})
    with pytest.raises(BindInProgress):
        parts.placer.filter(FilterArguments(pod, ["node-a"]))
    await settle()
    assert api.holders_of(SECOND) == ["uid-both"]


async def placed_before_the_second_clean_up(api: ApiServer) -> tuple[OperatorParts, asyncio.Event]:
    """Let two Filters start two clean-ups, and a third place the pod before the second clean-up has seen the pod.

    Returns the operator, and the event that lets the second clean-up go on.
    """
    left_by_a_crash(api)
    parts = an_operator(api)
    slow = asyncio.Event()
    api.queue(READ_POD, None, hold_answer(slow))
    for _ in range(2):
        with pytest.raises(BindInProgress):
            parts.filter("both", "node-a")
    await settle()
    parts.filter("both", "node-a")
    return parts, slow


async def test_a_clean_up_that_comes_late_leaves_a_newer_bind_alone(api: ApiServer) -> None:
    parts, slow = await placed_before_the_second_clean_up(api)
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    binding = start(parts.bind("both", "node-a"))
    await settle()
    slow.set()
    await settle()
    gate.set()
    await binding
    assert [api.holders_of(card) for card in CARDS] == [["uid-both"], ["uid-both"]]


async def test_a_clean_up_that_comes_late_leaves_a_newer_hold_alone(api: ApiServer) -> None:
    parts, slow = await placed_before_the_second_clean_up(api)
    slow.set()
    await settle()
    assert parts.ledger.seats.of("uid-both") is not None


async def test_a_defect_in_the_journal_leaves_no_hold_for_ever(
    api: ApiServer, parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.filter("a", "node-a")

    async def broken(*_: object) -> None:
        raise Invalid("broken", 422)

    monkeypatch.setattr(parts.journal, "add", broken)
    monkeypatch.setattr(parts.journal, "remove", broken)
    with pytest.raises(BindFailed):
        await parts.bind("a", "node-a")
    assert parts.ledger.seats.of("uid-a") is None


async def test_two_operators_that_bind_at_once_never_share_a_whole_card(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card)
    names = ("a", "b", "c", "d")
    for name in names:
        api.put_pod(a_pod_object(name, WHOLE))
    operators = [an_operator(api), an_operator(api)]
    for number, name in enumerate(names):
        operators[number % 2].filter(name, "node-a")
    binds = [operators[number % 2].bind(name, "node-a") for number, name in enumerate(names)]
    results = await asyncio.gather(*binds, return_exceptions=True)
    bound = [f"uid-{name}" for name in names if api.node_of(name)]
    assert sorted(bound) == sorted(api.holders_of(CARD) + api.holders_of(SECOND))
    assert len(bound) == sum(result is None for result in results) == 2


async def test_a_pod_with_an_amount_of_0_is_bound_without_cards(api: ApiServer, parts: OperatorParts) -> None:
    api.delete_pod("a")
    api.put_pod(a_pod_object("a", {GPU: "0"}))
    await parts.bind("a", "node-a")
    assert api.pods["default", "a"]["spec"]["nodeName"] == "node-a"
    assert not parts.ledger.holders.uids()


async def test_a_bind_costs_one_ledger_write_for_each_card_one_binding_and_no_read(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("both", BOTH))
    parts.filter("both", "node-a")
    await parts.bind("both", "node-a")
    assert [call.operation for call in api.calls] == [WRITE, WRITE, BIND]


# A pod that can't be bound is put off.


async def fail_to_bind(parts: OperatorParts, *faults: Fault) -> None:
    """Place pod `a`, and have its Binding refused: if nothing else is said, for a reason of its own."""
    parts.filter("a", "node-a")
    parts.api.queue(BIND, *(faults or [refuse_with(Denied("a policy", 403))]))
    with pytest.raises(BindFailed):
        await parts.bind("a", "node-a")


def is_put_off(parts: OperatorParts) -> bool:
    try:
        return not parts.filter("a", "node-a").node_names
    except BindFailed:
        return True


async def test_a_pod_costs_one_look_at_one_node(api: ApiServer, parts: OperatorParts) -> None:
    """The hold changes the node; that it becomes a holder, and is dropped, changes nothing for others."""
    api.put_card(ELSEWHERE)
    parts.read_cards()
    for name in "bc":
        api.put_pod(a_pod_object(name))
    parts.filter("a", "node-a", "node-b")
    assert parts.chooser.evaluations == 2
    parts.filter("b", "node-b")
    assert parts.chooser.evaluations == 3
    await parts.bind("a", "node-a")
    parts.watch()
    parts.filter("c", "node-a", "node-b")
    assert parts.chooser.evaluations == 4


async def test_a_pod_whose_bindings_are_always_refused_is_put_off_for_longer_each_time(parts: OperatorParts) -> None:
    for _ in range(FAILURES_FREE):
        await fail_to_bind(parts)
        assert not is_put_off(parts)
        await asyncio.sleep(ANSWER_PAUSE_S)
    for pause_s in (20.0, 40.0, 80.0, 160.0, 300.0, 300.0):
        await fail_to_bind(parts)
        await asyncio.sleep(pause_s - 1)
        assert is_put_off(parts)
        await asyncio.sleep(2)
        assert not is_put_off(parts)


async def test_others_are_bound_while_a_pod_is_put_off(api: ApiServer, parts: OperatorParts) -> None:
    for _ in range(FAILURES_FREE + 1):
        await fail_to_bind(parts)
    assert is_put_off(parts)
    assert parts.shares_left("uid-a") == []
    api.put_pod(a_pod_object("both", BOTH))
    assert parts.filter("both", "node-a").node_names == ["node-a"]
    await parts.bind("both", "node-a")
    assert api.node_of("both") == "node-a"


@pytest.mark.parametrize("status", [0, 429, 503, 504])
async def test_an_api_server_that_is_away_puts_nobody_off(parts: OperatorParts, status: int) -> None:
    away = refuse_with(Unreachable("away", status))
    for _ in range(2 * FAILURES_FREE):
        await fail_to_bind(parts, *[away] * BINDING_ATTEMPTS)
    assert not is_put_off(parts)


async def test_who_was_too_late_for_a_card_is_neither_put_off_nor_changed(api: ApiServer, parts: OperatorParts) -> None:
    for _ in range(2 * FAILURES_FREE):
        parts.filter("a", "node-a")
        for card in CARDS:
            api.put_card(card, a_holder("other", whole_share(card)))
        with pytest.raises(BindFailed):
            await parts.bind("a", "node-a")
        for card in CARDS:
            api.put_card(card)
        parts.watch()
    assert not is_put_off(parts)
    assert api.called(Operation.ANNOTATE) == []


@pytest.mark.parametrize("bound", [True, False])
async def test_a_pod_that_is_bound_or_gone_leaves_nothing_behind(
    api: ApiServer, parts: OperatorParts, bound: bool
) -> None:
    for _ in range(FAILURES_FREE):
        await fail_to_bind(parts)
    parts.filter("a", "node-a")
    if bound:
        await parts.bind("a", "node-a")
    else:
        api.delete_pod("a")
        parts.watch()
        assert parts.shares_left("uid-a") == []
    assert parts.remembered("uid-a") == []


async def test_a_pod_that_goes_before_its_binding_arrives_leaves_nothing_behind(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.filter("a", "node-a")
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    binding = start(parts.bind("a", "node-a"))
    await settle()
    api.delete_pod("a")
    parts.watch()
    gate.set()
    with pytest.raises(BindFailed):
        await binding
    await parts.idle()
    assert parts.remembered("uid-a") == []
