"""The end of a pod's shares: finished or gone is released, all else is kept, and nothing is judged on hearsay."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation, deliver_late, hold_answer, hold_request, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.counters import count
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import KEPT_S, OperatorParts, an_operator
from fakes.virtual_time import LoopClock, settle, wall
from gpuledger.formats.annotations import DEVICES_ANNOTATION, RELEASED_ANNOTATION, devices_annotation
from gpuledger.model.card import Card
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BindFailed, Denied, Invalid, ShareRefused, Unreachable
from gpuledger.model.share import Holder, HolderState, Pod
from gpuledger.workflows.binding.bind_pod import BINDING_ATTEMPTS
from gpuledger.workflows.release import SUSPECT_DELAY_S

CARDS = [a_card(0), a_card(1)]
CARD, SECOND = CARDS
ELSEWHERE = a_card(0, "node-b")
WRITE, ANNOTATE, BIND = Operation.WRITE_STATUS, Operation.ANNOTATE, Operation.BIND
READ_POD = Operation.READ_POD
ONE_CARD = {GPU: "1", MEMORY: "1k"}
TWO_CARDS = {GPU: "2", MEMORY: "1k"}
Json = dict[str, Any]


def held(card: Card = CARD, **fields: Any) -> Holder:
    """Return what pod `a` holds."""
    return replace(a_holder("a", a_share(card)), pod=Pod("uid-a", "default", "a"), **fields)


def running(name: str = "a") -> Json:
    return annotated(a_pod_object(name, node_name="node-a", phase="Running", started=True))


def not_started(name: str = "a") -> Json:
    return annotated(a_pod_object(name, node_name="node-a"))


def annotated(pod: Json, *cards: Card) -> Json:
    """Return the pod as bound with shares of these cards; without any, of the first."""
    text = devices_annotation([held(card).share for card in cards or (CARD,)])
    return {**pod, "metadata": {**pod["metadata"], "annotations": {DEVICES_ANNOTATION: text}}}


def finished(phase: str) -> Json:
    return a_pod_object("a", node_name="node-a", phase=phase, started=True)


@pytest.fixture
def clock() -> LoopClock:
    """Return the clock of the operator's machine."""
    return LoopClock()


@pytest.fixture
async def parts(api: ApiServer, clock: LoopClock) -> OperatorParts:
    """Return an operator over a node whose first card pod `a` holds."""
    api.put_card(CARD, held())
    api.put_card(SECOND)
    return an_operator(api, clock=clock)


async def show(parts: OperatorParts, pod: Json) -> None:
    """Let a pod be like this, and the watch show it."""
    parts.api.put_pod(pod)
    await parts.idle()


def states(api: ApiServer, card: Card = CARD) -> list[HolderState]:
    return [holder.state for holder in api.card(card).holders or ()]


async def check_that_it_ends_in_time(api: ApiServer, *cards: Card) -> None:
    """Check that what is releasing, on the first card unless others are named, stays for its delay and no longer."""
    await asyncio.sleep(KEPT_S - 1)
    assert [states(api, card) for card in cards or (CARD,)] == [[HolderState.RELEASING]] * (len(cards) or 1)
    await asyncio.sleep(3)
    assert [states(api, card) for card in cards or (CARD,)] == [[]] * (len(cards) or 1)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_is_released(api: ApiServer, parts: OperatorParts, phase: str) -> None:
    await show(parts, running())
    assert api.holders_of(CARD) == ["uid-a"]
    await show(parts, finished(phase))
    assert api.holders_of(CARD) == []
    assert count(parts.counts.releases) == 1


@pytest.mark.parametrize("pod", [running(), not_started(), a_pod_object("a", node_name="node-a", phase="Unknown")])
async def test_a_pod_that_is_bound_keeps_its_shares(api: ApiServer, parts: OperatorParts, pod: Json) -> None:
    await show(parts, pod)
    parts.releaser.recheck("uid-a")
    await parts.idle()
    assert api.holders_of(CARD) == ["uid-a"]
    assert api.writes() == []


async def test_a_finished_pod_on_several_cards_is_released_on_all(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card, held(card))
    parts = an_operator(api)
    await show(parts, finished("Succeeded"))
    assert [api.holders_of(card) for card in CARDS] == [[], []]


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
async def test_pods_that_hold_nothing_cost_no_request_and_leave_nothing_behind(
    api: ApiServer, parts: OperatorParts, phase: str
) -> None:
    await show(parts, a_pod_object("plain", node_name="node-a", phase=phase))
    api.delete_pod("plain")
    await parts.idle()
    assert api.calls == []
    assert count(parts.counts.pods_examined) == 2
    assert parts.remembered("uid-plain") == []


async def test_leaving_the_watch_alone_releases_nothing(api: ApiServer, parts: OperatorParts) -> None:
    await show(parts, running())
    parts.observer.pod(running(), gone=True)
    await parts.releaser.worker.idle()
    assert len(api.called(READ_POD)) == 1
    assert api.holders_of(CARD) == ["uid-a"]


def is_gone(api: ApiServer) -> None:
    api.delete_pod("a")


def is_another_one(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", uid="another", node_name="node-a"))


@pytest.mark.parametrize("what_happened", [is_gone, is_another_one])
async def test_a_bound_pod_that_is_gone_before_anybody_said_that_it_has_started_may_run_all_the_same(
    api: ApiServer, parts: OperatorParts, what_happened: Callable[[ApiServer], None]
) -> None:
    """Its kubelet starts containers before it writes that it has taken the pod up, and a watch shows it later still."""
    await show(parts, not_started())
    what_happened(api)
    parts.observer.pod(not_started(), gone=True)
    await parts.idle()
    await check_that_it_ends_in_time(api)


async def test_entries_without_a_bound_pod_are_swept(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("a"))
    parts.releaser.recheck("uid-a")
    await parts.idle()
    assert api.holders_of(CARD) == []


async def force_delete(api: ApiServer, parts: OperatorParts, pod: Json | None = None) -> None:
    """Let the pod be gone while it ran; return when that is taken in."""
    await show(parts, pod or running())
    api.delete_pod("a")
    await parts.idle()


async def test_a_pod_deleted_by_force_while_it_ran_is_shown_as_releasing(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    (holder,) = api.card(CARD).holders or ()
    assert holder.state is HolderState.RELEASING
    assert (
        holder.deadline == "2030-01-01T00:17:40Z"
    )  # the clock began at 1000 s; 30 s were given, and the pod may take 30 s to end
    assert parts.entry(CARD).used() == held().share.amounts


async def test_a_pod_deleted_by_force_is_released_after_its_deadline(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    await check_that_it_ends_in_time(api)


@pytest.mark.parametrize("ahead_s", [0, 10, 25, 60, 7_200])
async def test_an_operator_that_takes_over_counts_the_whole_time_anew_however_far_its_clock_is_ahead(
    api: ApiServer, parts: OperatorParts, ahead_s: int
) -> None:
    await force_delete(api, parts)
    await parts.releaser.worker.stop()
    restarted = an_operator(api, clock=LoopClock(ahead_s))
    restarted.releaser.recheck("uid-a")
    await restarted.idle()
    await check_that_it_ends_in_time(api)


async def test_all_cards_of_a_pod_deleted_by_force_are_released(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card, held(card))
    parts = an_operator(api)
    pod = a_pod_object("a", TWO_CARDS, node_name="node-a", phase="Running", started=True)
    await force_delete(api, parts, annotated(pod, *CARDS))
    assert [states(api, card) for card in CARDS] == [[HolderState.RELEASING]] * 2
    await asyncio.sleep(KEPT_S + 3)
    assert [states(api, card) for card in CARDS] == [[], []]


async def test_nothing_is_judged_while_a_bind_is_in_progress(api: ApiServer, parts: OperatorParts) -> None:
    """The entries are there and the Binding is not: a sweep would take them for left-overs of a crash."""
    api.put_pod(a_pod_object("b"))
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    binding = asyncio.create_task(parts.bind("b", "node-a"))
    await settle()
    reads = len(api.called(READ_POD))
    parts.releaser.recheck("uid-b")
    await parts.releaser.worker.idle()
    assert len(api.called(READ_POD)) == reads
    gate.set()
    await binding
    assert "uid-b" in api.holders_of(CARD)


async def test_a_judgement_that_a_bind_has_overtaken_is_dropped(api: ApiServer, parts: OperatorParts) -> None:
    """The pod was read as unbound; when the answer comes, its Bind has begun."""
    api.put_pod(a_pod_object("a"))
    answer, gate = asyncio.Event(), asyncio.Event()
    api.queue(READ_POD, hold_answer(answer))
    parts.releaser.recheck("uid-a")
    await settle()
    api.queue(BIND, hold_request(gate))
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    answer.set()
    await parts.releaser.worker.idle()
    gate.set()
    await binding
    assert "uid-a" in api.holders_of(CARD)
    assert api.called(ANNOTATE) == []


async def test_a_judgement_that_a_bind_has_overtaken_is_made_after_it(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(finished("Succeeded"))
    answer = asyncio.Event()
    api.queue(READ_POD, hold_answer(answer))
    parts.releaser.recheck("uid-a")
    await settle()
    with parts.releaser.leaves_alone("uid-a"):
        answer.set()
        await parts.releaser.worker.idle()
        assert api.holders_of(CARD) == ["uid-a"]
    await parts.releaser.worker.idle()
    assert api.holders_of(CARD) == []


async def test_a_release_goes_on_after_errors(api: ApiServer, parts: OperatorParts) -> None:
    api.queue(READ_POD, *[lose_request()] * 3)
    api.queue(WRITE, *[lose_request()] * 3)
    parts.releaser.recheck("uid-a")
    await parts.idle()
    await asyncio.sleep(KEPT_S + 2)
    await parts.idle()
    assert api.holders_of(CARD) == []


async def test_a_bind_that_comes_during_a_release_ends_with_its_shares_in_the_ledger(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Left-overs of a crash are being swept when the scheduler binds the pod to the same card."""
    api.put_pod(a_pod_object("a", ONE_CARD))
    gate = asyncio.Event()
    api.queue(WRITE, lose_request(), hold_request(gate))
    parts.releaser.recheck("uid-a")
    await settle()
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    gate.set()
    with pytest.raises(BindFailed, match="is still being released"):
        await binding
    await parts.releaser.worker.idle()
    await parts.bind("a", "node-a")
    assert api.pods["default", "a"]["spec"]["nodeName"] == "node-a"
    assert "uid-a" in api.holders_of(CARD) + api.holders_of(SECOND)


# The fence.


async def sweep(parts: OperatorParts) -> None:
    """Have the shares of pod `a` judged, until nothing is left to do."""
    parts.releaser.recheck("uid-a")
    await parts.idle()


async def at_the_fence(api: ApiServer, parts: OperatorParts) -> asyncio.Event:
    """Have the shares of pod `a` judged up to the fence, which arrives once the event is set that this returns."""
    fence = asyncio.Event()
    api.queue(ANNOTATE, hold_request(fence))
    parts.releaser.recheck("uid-a")
    await settle()
    return fence


async def crash() -> None:
    """End whatever runs, at once. What was sent has been sent."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_share_is_marked_then_its_pod_changed_then_the_share_removed(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("a"))
    fence = await at_the_fence(api, parts)
    assert states(api) == [HolderState.RELEASING]
    assert len(api.patches()) == 1
    fence.set()
    await parts.idle()
    assert api.writes() == [WRITE, ANNOTATE, WRITE]
    (call,) = api.called(ANNOTATE)
    assert (call.body["metadata"]["uid"], *call.body["metadata"]["annotations"]) == ("uid-a", RELEASED_ANNOTATION)
    assert states(api) == []


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_pod_that_nobody_can_bind_any_more_is_not_changed(
    api: ApiServer, parts: OperatorParts, deleted: bool
) -> None:
    pod = a_pod_object("a", phase="Pending" if deleted else "Failed", node_name="" if deleted else "node-a")
    pod["metadata"] |= {"deletionTimestamp": "2030-01-01T00:00:00Z"} if deleted else {}
    api.put_pod(pod)
    await sweep(parts)
    assert api.writes() == [WRITE]
    assert states(api) == []


async def test_shares_of_a_pod_that_turns_out_to_be_bound_are_allocated_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("a", ONE_CARD))
    fence = await at_the_fence(api, parts)
    assert states(api) == [HolderState.RELEASING]
    api.put_pod(annotated(a_pod_object("a", ONE_CARD, node_name="node-a")))
    fence.set()
    await parts.idle()
    assert api.card(CARD).holders == (held(),)


async def test_a_binding_that_arrives_after_the_fence_is_refused_and_nothing_is_left(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("b", ONE_CARD))
    late = asyncio.Event()
    api.queue(BIND, deliver_late(late), *[lose_request()] * (BINDING_ATTEMPTS - 1))
    with pytest.raises(BindFailed):
        await parts.bind("b", "node-a")
    late.set()
    await parts.idle()
    assert api.node_of("b") == ""
    assert parts.shares_left("uid-b") == []


async def test_a_binding_that_arrives_just_before_the_fence_keeps_its_shares(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("b", ONE_CARD))
    late, fence = asyncio.Event(), asyncio.Event()
    api.queue(BIND, deliver_late(late), *[lose_request()] * (BINDING_ATTEMPTS - 1))
    api.queue(ANNOTATE, hold_request(fence))
    binding = asyncio.create_task(parts.bind("b", "node-a"))
    await asyncio.sleep(2.5)
    late.set()
    await settle()
    fence.set()
    await binding
    await parts.idle()
    assert api.node_of("b") == "node-a"
    assert [h.state for h in api.card(CARD).holders or () if h.pod.uid == "uid-b"] == [HolderState.ALLOCATED]


@pytest.mark.parametrize(
    ("never_sent", "left"),
    [
        ((WRITE, 0), [HolderState.ALLOCATED]),
        ((ANNOTATE, 0), [HolderState.RELEASING]),
        ((WRITE, 1), [HolderState.RELEASING]),
    ],
)
async def test_after_a_crash_at_any_step_a_new_operator_takes_the_share_back(
    api: ApiServer, parts: OperatorParts, never_sent: tuple[Operation, int], left: list[HolderState]
) -> None:
    operation, requests_before = never_sent
    api.put_pod(a_pod_object("a"))
    api.queue(operation, *[None] * requests_before, hold_request(asyncio.Event()))
    parts.releaser.recheck("uid-a")
    await settle()
    await crash()
    assert states(api) == left
    await sweep(an_operator(api))
    assert states(api) == []


async def test_a_policy_that_refuses_the_fence_delays_the_release_and_loses_nothing(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("a"))
    api.queue(ANNOTATE, *[refuse_with(Invalid("a policy", 422))] * 3)
    parts.releaser.recheck("uid-a")
    await settle()
    assert states(api) == [HolderState.RELEASING]
    await sweep(parts)
    assert states(api) == []


@pytest.mark.parametrize("what_happened", [is_gone, is_another_one])
async def test_a_pod_that_goes_while_it_is_fenced_is_released_after_a_while(
    api: ApiServer, parts: OperatorParts, what_happened: Callable[[ApiServer], None]
) -> None:
    """It may have been bound and have run in between, and nobody has seen it."""
    api.put_pod(a_pod_object("a"))
    fence = await at_the_fence(api, parts)
    what_happened(api)
    fence.set()
    await parts.releaser.worker.idle()
    assert states(api) == [HolderState.RELEASING]
    await asyncio.sleep(KEPT_S + 3)
    assert states(api) == []


async def test_a_share_that_a_newer_attempt_has_entered_meanwhile_stays(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("a"))
    fence = await at_the_fence(api, parts)
    api.put_card(SECOND, held(SECOND))
    parts.watch()
    fence.set()
    await parts.releaser.worker.idle()
    assert (states(api, CARD), states(api, SECOND)) == ([], [HolderState.ALLOCATED])


async def test_an_attempt_to_bind_that_comes_during_the_fence_does_not_rely_on_the_share(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("a", ONE_CARD))
    fence = asyncio.Event()
    api.queue(ANNOTATE, hold_request(fence))
    other = an_operator(api)
    parts.releaser.recheck("uid-a")
    await settle()
    with pytest.raises(ShareRefused, match="is still being released"):
        await other.journal.add(held(), 10.0)
    fence.set()
    await parts.idle()
    assert states(api) == []


async def test_a_failed_bind_gives_its_shares_back_however_long_the_api_server_takes(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("b", ONE_CARD))
    api.queue(BIND, *[lose_request()] * BINDING_ATTEMPTS)
    later = refuse_with(Unreachable("later", 503))
    api.queue(READ_POD, *[None] * BINDING_ATTEMPTS, later, later)
    api.queue(ANNOTATE, later, later)
    with pytest.raises(BindFailed):
        await parts.bind("b", "node-a")
    await asyncio.sleep(10.0)
    assert parts.shares_left("uid-b") == []
    assert not parts.placer._binder.is_binding("uid-b")


# A bound pod keeps what it is bound with, and nothing else.


async def test_shares_of_a_bound_pod_on_other_nodes_are_given_back(api: ApiServer, parts: OperatorParts) -> None:
    api.put_card(ELSEWHERE, held(ELSEWHERE))
    parts.watch()
    await show(parts, running())
    assert [states(api, card) for card in (CARD, ELSEWHERE)] == [[HolderState.ALLOCATED], []]


async def test_of_more_shares_than_it_asks_for_a_bound_pod_keeps_those_it_was_bound_with(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_card(SECOND, held(SECOND))
    parts.watch()
    await show(parts, annotated(a_pod_object("a", ONE_CARD, node_name="node-a", started=True), SECOND))
    assert [states(api, card) for card in CARDS] == [[], [HolderState.ALLOCATED]]


UNREADABLE = "{"
NONE_OF_ITS_CARDS = devices_annotation([held(ELSEWHERE).share])
ONE_OF_ITS_CARDS = devices_annotation([held().share])


@pytest.mark.parametrize("text", [UNREADABLE, NONE_OF_ITS_CARDS, ONE_OF_ITS_CARDS])
async def test_no_annotation_that_a_user_writes_changes_what_a_pod_holds(api: ApiServer, text: str) -> None:
    for card in CARDS:
        api.put_card(card, held(card))
    parts = an_operator(api)
    pod = a_pod_object("a", TWO_CARDS, node_name="node-a", phase="Running", started=True)
    await show(parts, annotated(pod, *CARDS))
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: text}
    await show(parts, pod)
    assert [states(api, card) for card in CARDS] == [[HolderState.ALLOCATED]] * 2
    assert api.writes() == []


@pytest.mark.parametrize("text", [UNREADABLE, NONE_OF_ITS_CARDS])
async def test_shares_too_many_are_kept_where_the_annotation_does_not_say_which(
    api: ApiServer, parts: OperatorParts, text: str
) -> None:
    api.put_card(SECOND, held(SECOND))
    parts.watch()
    pod = a_pod_object("a", ONE_CARD, node_name="node-a", started=True)
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: text}
    await show(parts, pod)
    assert [states(api, card) for card in CARDS] == [[HolderState.ALLOCATED]] * 2


async def test_a_bound_pod_whose_share_is_marked_gets_it_back_without_a_mark(api: ApiServer) -> None:
    """An operator has crashed between the mark and the fence, and the pod was bound."""
    api.put_card(CARD, held(state=HolderState.RELEASING, deadline="2030-01-01T00:00:00Z"))
    parts = an_operator(api)
    await show(parts, running())
    assert api.card(CARD).holders == (held(),)


# What nobody has told us about.


async def synced(parts: OperatorParts) -> None:
    """Let the operator have read everything: a node with two cards that nobody holds."""
    parts.api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        parts.api.put_card(card)
    await parts.observer.resync()
    await parts.idle()


async def test_an_entry_of_an_abandoned_attempt_that_is_written_late_is_found(
    api: ApiServer, parts: OperatorParts
) -> None:
    await synced(parts)
    api.put_pod(a_pod_object("b", ONE_CARD))
    late = asyncio.Event()
    api.queue(WRITE, deliver_late(late))
    api.queue(BIND, refuse_with(Denied("forbidden", 403)))
    with pytest.raises(BindFailed):
        await parts.bind("b", "node-a")
    assert parts.shares_left("uid-b") == []
    late.set()
    await settle()
    parts.watch()
    await asyncio.sleep(SUSPECT_DELAY_S - 1)
    assert api.holders_of(CARD) == ["uid-b"]
    await asyncio.sleep(2)
    assert parts.shares_left("uid-b") == []


async def test_an_entry_on_another_card_of_a_pod_that_is_bound_is_looked_at(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It was on its way when its operator crashed, and the pod has been bound with other cards since."""
    await show(parts, running())
    await parts.observer.resync()
    api.put_card(ELSEWHERE, held(ELSEWHERE))
    parts.watch()
    await asyncio.sleep(SUSPECT_DELAY_S + 1)
    assert [api.holders_of(card) for card in (CARD, ELSEWHERE)] == [["uid-a"], []]


def reserved(clock: LoopClock, for_s: float) -> Holder:
    return held(state=HolderState.RESERVED, deadline=rfc3339(clock.wall() + timedelta(seconds=for_s)))


async def test_what_another_operator_has_reserved_for_a_pod_that_was_gone_does_not_last_until_its_deadline(
    api: ApiServer, parts: OperatorParts, clock: LoopClock
) -> None:
    """That operator was told of the pod's end late, wrote what it had planned, and was killed."""
    await synced(parts)
    api.put_card(CARD, reserved(clock, 300))
    parts.watch()
    await asyncio.sleep(SUSPECT_DELAY_S + 1)
    assert states(api) == []


async def test_what_is_reserved_for_a_pod_that_waits_costs_one_look_before_its_deadline(
    api: ApiServer, parts: OperatorParts, clock: LoopClock
) -> None:
    await synced(parts)
    api.put_pod(a_pod_object("a", ONE_CARD))
    api.put_card(CARD, reserved(clock, 300))
    parts.watch()
    await asyncio.sleep(295)
    assert states(api) == [HolderState.RESERVED]
    assert len(api.called(READ_POD)) == 1
    await asyncio.sleep(5 + SUSPECT_DELAY_S + 2)
    assert states(api) == []


async def test_a_share_of_a_dead_pod_that_a_late_write_makes_allocated_again_still_ends(
    api: ApiServer, parts: OperatorParts
) -> None:
    await force_delete(api, parts)
    (holder,) = api.card(CARD).holders or ()
    api.put_card(CARD, replace(holder, state=HolderState.ALLOCATED, deadline=None))
    parts.watch()
    await asyncio.sleep(KEPT_S + 5)
    assert api.holders_of(CARD) == []


async def test_a_failed_bind_that_can_not_be_cleared_up_is_not_written_down_again_and_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    """A policy forbids the Binding, and the annotation as well."""
    api.put_card(CARD)
    api.put_pod(a_pod_object("a"))
    parts.watch()
    api.queue(BIND, refuse_with(Denied("a policy forbids it", 403)))
    api.queue(ANNOTATE, *[refuse_with(Denied("a policy forbids it", 403))] * 200)
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await asyncio.sleep(300.0)
    assert binding.done()
    assert len(api.patches()) == 2  # entered, and marked
    binding.exception()


async def test_a_pod_that_is_bound_in_time_is_not_looked_at(api: ApiServer, parts: OperatorParts) -> None:
    await synced(parts)
    api.put_card(CARD, held())
    parts.watch()
    await asyncio.sleep(SUSPECT_DELAY_S / 2)
    await show(parts, running())
    await asyncio.sleep(2 * SUSPECT_DELAY_S)
    assert api.called(READ_POD) == []


async def test_a_pod_that_is_being_bound_is_no_suspect(api: ApiServer, parts: OperatorParts) -> None:
    await synced(parts)
    api.put_pod(a_pod_object("b", ONE_CARD))
    gate = asyncio.Event()
    api.queue(BIND, hold_request(gate))
    binding = asyncio.create_task(parts.bind("b", "node-a"))
    await settle()
    parts.watch()
    assert "_timers" not in parts.remembered("uid-b")
    gate.set()
    await binding


async def test_a_card_that_changes_often_costs_one_look_at_a_suspect(api: ApiServer, parts: OperatorParts) -> None:
    """The pod is bound, and its watch has not shown it yet."""
    await synced(parts)
    api.put_pod(running())
    for number in range(50):
        api.put_card(CARD, held(), phase="Ready" if number % 2 else "Unhealthy")
        parts.observer.allocation(api.cards[CARD.object_name], gone=False)
        await asyncio.sleep(SUSPECT_DELAY_S / 100)
    await asyncio.sleep(0.9 * SUSPECT_DELAY_S)
    assert len(api.called(READ_POD)) == 1


async def test_a_share_that_an_attempt_enters_while_an_older_one_is_given_back_is_looked_at_too(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_node(a_node_object("node-a", CARDS))
    api.put_pod(a_pod_object("a"))
    fence = asyncio.Event()
    api.queue(ANNOTATE, hold_request(fence))
    await parts.observer.resync()
    await settle()
    api.put_card(SECOND, held(SECOND))
    parts.watch()
    await settle()
    fence.set()
    await parts.idle()
    assert [api.holders_of(card) for card in CARDS] == [[], ["uid-a"]]
    await asyncio.sleep(2 * SUSPECT_DELAY_S)
    assert parts.shares_left("uid-a") == []


@pytest.mark.parametrize("end", [is_gone, is_another_one])
async def test_after_a_restart_a_pod_that_is_gone_is_released_after_a_while(
    api: ApiServer, parts: OperatorParts, end: Callable[[ApiServer], None]
) -> None:
    """Nobody knows whether it ran."""
    api.put_pod(running())
    end(api)
    await sweep(parts)
    assert states(api) == [HolderState.RELEASING]
    await check_that_it_ends_in_time(api)


async def test_a_pod_that_is_released_leaves_nothing_behind(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    await asyncio.sleep(KEPT_S + 3)
    assert parts.remembered("uid-a") == []


async def test_a_releasing_share_that_another_operator_removes_leaves_nothing_behind(
    api: ApiServer, parts: OperatorParts
) -> None:
    await force_delete(api, parts)
    assert states(api) == [HolderState.RELEASING]
    api.put_card(CARD)
    parts.watch()
    await asyncio.sleep(KEPT_S + 3)
    parts.releaser.recheck("uid-a")  # as the next comparison does
    assert parts.remembered("uid-a") == []


# A clock that is set while a share is releasing.


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0], ids=["forwards", "backwards"])
async def test_a_clock_that_is_set_moves_the_end_of_a_share_neither_way(
    api: ApiServer, clock: LoopClock, parts: OperatorParts, step_s: float
) -> None:
    await force_delete(api, parts)
    clock.ahead_s = step_s
    await asyncio.sleep(KEPT_S - 1)
    await sweep(parts)
    assert states(api) == [HolderState.RELEASING]
    await asyncio.sleep(4)
    assert states(api) == []
    assert parts.remembered("uid-a") == []


IN_30_S, IN_5_S = "2030-01-01T00:17:10Z", "2030-01-01T00:16:45Z"
"""After the beginning of a test, which is at 1000 s."""


async def test_after_a_restart_and_a_step_backwards_a_share_ends_after_one_more_delay_at_most(
    api: ApiServer,
) -> None:
    api.put_card(CARD, held(state=HolderState.RELEASING, deadline=IN_30_S))
    an_operator(api, clock=LoopClock(-3_600.0)).releaser.recheck("uid-a")
    await check_that_it_ends_in_time(api)


async def test_shares_of_a_pod_end_together_with_the_last_of_them(api: ApiServer) -> None:
    for card, deadline in ((CARD, IN_5_S), (SECOND, IN_30_S)):
        api.put_card(card, held(card, state=HolderState.RELEASING, deadline=deadline))
    an_operator(api).releaser.recheck("uid-a")
    await check_that_it_ends_in_time(api, *CARDS)


async def test_a_pod_that_goes_while_the_answer_to_its_binding_is_on_its_way_leaves_nothing_in_the_end(
    api: ApiServer,
) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.put_pod(a_pod_object("b"))
    gate = asyncio.Event()
    api.queue(Operation.BIND, hold_answer(gate))
    binding = asyncio.create_task(parts.bind("b", "node-a"))
    await settle()
    parts.watch()
    api.delete_pod("b")
    parts.watch()
    await parts.releaser.worker.idle()
    gate.set()
    await binding
    await parts.releaser.worker.idle()
    await asyncio.sleep(KEPT_S + 3)
    assert api.holders_of(CARD) == []
    assert parts.remembered("uid-b") == []


async def test_a_share_that_another_operator_has_marked_is_kept_although_we_never_saw_its_pod_run(
    api: ApiServer, parts: OperatorParts
) -> None:
    await show(parts, not_started())
    api.delete_pod("a")
    deadline = (wall() + timedelta(seconds=KEPT_S)).strftime("%Y-%m-%dT%H:%M:%SZ")
    api.put_card(CARD, held(state=HolderState.RELEASING, deadline=deadline))
    await parts.idle()
    await asyncio.sleep(KEPT_S / 2)
    assert states(api) == [HolderState.RELEASING]
    await asyncio.sleep(KEPT_S)
    assert states(api) == []
