"""Pods of lower priority leave for one that waits: the fewest, once each, and only for room that it gets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import cards_of, whole_share
from fakes.api_server import ApiServer, Operation, hold_request, refuse
from fakes.counters import by_label, count
from fakes.objects import CORES, GPU, MEMORY, PERCENTAGE, a_container, a_node_object, a_pod_object
from fakes.operator_parts import PREEMPTION_TIMEOUT_S, OperatorParts, an_operator
from fakes.virtual_time import now_s, settle, wall
from gpuledger.controller import startup
from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S, pod_identity
from gpuledger.formats.scheduler import FilterArguments, PreemptArguments
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, Denied, Unreachable
from gpuledger.model.share import Holder
from gpuledger.placement.preemption.victims import Eviction
from gpuledger.workflows.lifecycles import unix_s
from gpuledger.workflows.preemption.execute import IN_VAIN_S
from gpuledger.workflows.preemption.preempt import FRESH_S, RESTING_S, SETTLE_S

CARDS = cards_of("node-a", 3)
WHOLE = {GPU: "1"}
LOW, HIGH, HIGHER = 1, 100, 200
Json = dict[str, Any]


@pytest.fixture
async def parts(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Yield an operator that runs, over a node each of whose three cards a pod of low priority has for itself."""
    for card in CARDS:
        pod = low(card)
        api.put_pod(pod)
        api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))
    api.put_node(a_node_object("node-a", CARDS))
    async for running in run(api):
        yield running


async def run(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Yield an operator with its loops."""
    parts = an_operator(api)
    await parts.observer.take_over()
    operator = parts.as_operator()
    loops = [asyncio.create_task(startup._give_room(operator)), asyncio.create_task(startup._preempt(operator))]
    await parts.idle()
    yield parts
    for loop in loops:
        loop.cancel()
    await parts.preemption.executor.worker.stop()


def low(card: Card, **fields: Any) -> Json:
    all_fields: dict[str, Any] = {"priority": LOW, "phase": "Running", "started": True} | fields
    pod = a_pod_object(f"low-{card.index}", WHOLE, node_name=card.node_name, **all_fields)
    pod["metadata"]["labels"] = {"app": "low"}
    pod["metadata"]["annotations"] = {"gpuledger.dev/devices": f'{{"main": [{{"uuid": "{card.uuid}"}}]}}'}
    return pod


def refused(name: str, limits: Mapping[str, object] = WHOLE, priority: int = HIGH) -> Json:
    """Return a pod as kube-scheduler leaves one that it found no node for."""
    pod = a_pod_object(name, limits, priority=priority)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return pod


async def ask(parts: OperatorParts, name: str, *node_names: str) -> bool:
    """Let kube-scheduler try a pod; return whether it fits on the node."""
    answer = parts.filter(name, *(node_names or ("node-a",)))
    await parts.idle()
    return answer.node_names == ["node-a"]


async def want(parts: OperatorParts, name: str, limits: Mapping[str, object] = WHOLE, **fields: Any) -> None:
    """Let a pod come that finds no room, and what follows happen."""
    parts.api.put_pod(refused(name, limits, **fields))
    assert not await ask(parts, name)
    await pass_time(parts, 2 * SETTLE_S)


async def pass_time(parts: OperatorParts, seconds: float) -> None:
    await parts.idle()
    await asyncio.sleep(seconds)
    await settle()
    await parts.idle()
    await settle()


def evicted(api: ApiServer) -> list[str]:
    """Return the names of the pods that were told to leave, as often as they were."""
    return [call.path.split("/")[6] for call in api.called(Operation.EVICT)]


async def let_go(parts: OperatorParts, *names: str) -> None:
    """Let pods end in good order, and what follows happen."""
    end(parts.api, *names)
    await pass_time(parts, 0.5)


def end(api: ApiServer, *names: str) -> None:
    for name in names:
        pod = api.pods["default", name]
        api.put_pod({**pod, "status": {**pod["status"], "phase": "Failed"}})
        api.delete_pod(name)


def states(api: ApiServer, uid: str) -> list[tuple[int, str]]:
    """Return the cards on which a pod is a holder, and in which state."""
    cards = [api.card(card) for card in CARDS]
    return [(c.card.index, h.state.value) for c in cards for h in c.holders or () if h.pod.uid == uid]


def claims(api: ApiServer, uid: str) -> list[int]:
    return [c.card.index for c in map(api.card, CARDS) for claim in c.claims if claim.holder.pod.uid == uid]


def reasons(parts: OperatorParts, uid: str) -> list[str]:
    return [reason for told, _, reason, _ in parts.told_pods if told == uid]


async def test_a_pod_gets_the_card_of_one_with_lower_priority(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    [victim] = evicted(api)
    assert len(claims(api, "uid-high")) == 1, "the claim is stored before anybody leaves"
    assert states(api, "uid-high") == []
    await let_go(parts, victim)
    assert claims(api, "uid-high") == []
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    await parts.idle()
    assert [state for _, state in states(api, "uid-high")] == ["allocated"]
    assert "Preempting" in reasons(parts, "uid-high")
    assert reasons(parts, f"uid-{victim}") == ["Preempted"]


def nominations(api: ApiServer) -> list[Any]:
    """Return the nodes that were written into the status of pod `high`, in that order."""
    written = [call.body["status"] for call in api.called(Operation.CHANGE_STATUS) if "/high/" in call.path]
    return [status["nominatedNodeName"] for status in written if "nominatedNodeName" in status]


async def test_a_pod_for_which_room_is_made_is_nominated_for_the_node_before_anybody_leaves(
    parts: OperatorParts, api: ApiServer
) -> None:
    """Or kube-scheduler would give the CPU that the victims free to others."""
    gate = asyncio.Event()
    api.queue(Operation.CHANGE_STATUS, hold_request(gate))
    await want(parts, "high")
    assert claims(api, "uid-high")
    assert evicted(api) == []
    gate.set()
    await pass_time(parts, 0.5)
    [victim] = evicted(api)
    assert api.pods["default", "high"]["status"]["nominatedNodeName"] == "node-a"
    await let_go(parts, victim)
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    await parts.idle()
    assert nominations(api) == ["node-a"], "one write is all"


async def test_a_nomination_ends_with_what_it_was_for(parts: OperatorParts, api: ApiServer) -> None:
    let_stay(parts, "low-0")
    await want(parts, "high")
    await pass_time(parts, PREEMPTION_TIMEOUT_S + 60)
    assert nominations(api)[:2] == ["node-a", None]


@pytest.mark.parametrize("by", ["", "node-z"])
async def test_a_nomination_that_kube_scheduler_has_cleared_or_changed_is_not_cleared_again(
    parts: OperatorParts, api: ApiServer, by: str
) -> None:
    await want(parts, "high")
    pod = api.pods["default", "high"]
    api.put_pod({**pod, "status": {**pod["status"], "nominatedNodeName": by}})
    await parts.idle()
    parts.carrier.give_up("uid-high", "for this test")
    await parts.idle()
    assert nominations(api) == ["node-a"]


async def test_a_nomination_that_was_cleared_is_made_again_with_the_next_step(
    parts: OperatorParts, api: ApiServer
) -> None:
    await want(parts, "high")
    [victim] = evicted(api)
    pod = api.pods["default", "high"]
    api.put_pod({**pod, "status": {**pod["status"], "nominatedNodeName": ""}})
    await parts.idle()
    await let_go(parts, victim)
    assert nominations(api) == ["node-a", "node-a"]


async def test_a_nomination_that_is_cleared_again_and_again_is_made_again_with_pauses(
    parts: OperatorParts, api: ApiServer
) -> None:
    """kube-scheduler tries the pod at each nomination, and clears it where the pod does not fit: without an end."""
    await want(parts, "high")
    for _ in range(100):
        pod = api.pods["default", "high"]
        api.put_pod({**pod, "status": {**pod["status"], "nominatedNodeName": ""}})
        parts.carrier.look_at_all()
        await pass_time(parts, 0.1)
    assert 3 <= len(nominations(api)) <= 6
    await pass_time(parts, 10.0)
    assert api.pods["default", "high"]["status"]["nominatedNodeName"] == "node-a", "without another reason to look"


@pytest.mark.parametrize("reserved", [False, True], ids=["claimed", "reserved"])
async def test_no_pod_leaves_for_one_whose_cpu_is_promised_to_another_with_room_on_that_node(
    parts: OperatorParts, api: ApiServer, reserved: bool
) -> None:
    """Both would be nominated for the node, and kube-scheduler would keep its CPU from either for the other's sake."""
    node = a_node_object("node-a", CARDS)
    node["status"]["allocatable"]["memory"] = "1Ti"
    api.put_node(node)
    await parts.idle()
    await want(parts, "high", {**WHOLE, "cpu": "40"})
    if reserved:
        await let_go(parts, *evicted(api))
    await want(parts, "second", {**WHOLE, "cpu": "40"})
    assert len(evicted(api)) == 1
    await want(parts, "third", {**WHOLE, "cpu": "20"})
    assert len(evicted(api)) == 2


async def test_a_pod_that_cannot_be_nominated_gets_its_room_all_the_same(parts: OperatorParts, api: ApiServer) -> None:
    api.queue(Operation.CHANGE_STATUS, refuse(Denied("a policy", 403)))
    await want(parts, "high")
    assert len(evicted(api)) == 1


async def test_the_node_on_which_room_is_made_is_not_unresolvable_to_kube_scheduler(
    parts: OperatorParts, api: ApiServer
) -> None:
    """Where no preemption can help, up to 1.37, it clears the nomination."""
    await want(parts, "high")
    answer = parts.filter("high", "node-a", "node-b")
    assert list(answer.short_of_room) == ["node-a"]
    assert list(answer.refused) == ["node-b"]


async def test_kube_scheduler_that_sees_the_victim_go_first_gets_the_node_and_no_refusal(
    parts: OperatorParts, api: ApiServer
) -> None:
    """A refusal would make it clear the nomination, and give the CPU to whoever comes next."""
    await want(parts, "high")
    [victim] = evicted(api)
    end(api, victim)  # our own watch has not shown it yet
    question = asyncio.create_task(parts.placer.answer(FilterArguments(api.pods["default", "high"], ["node-a"])))
    await settle()
    assert not question.done()
    await pass_time(parts, 0.5)
    assert (await question).node_names == ["node-a"]


async def test_kube_scheduler_does_not_wait_for_a_victim_that_was_deleted_by_force(
    parts: OperatorParts, api: ApiServer
) -> None:
    """Its share stays for a minute, and kube-scheduler tries no other pod meanwhile."""
    await want(parts, "high")
    [victim] = evicted(api)
    api.delete_pod(victim)  # our own watch has not shown it yet
    begin_s = now_s()
    question = asyncio.create_task(parts.placer.answer(FilterArguments(api.pods["default", "high"], ["node-a"])))
    await settle()
    await parts.idle()
    assert not (await question).node_names
    for _ in range(10):
        assert not (await parts.placer.answer(FilterArguments(api.pods["default", "high"], ["node-a"]))).node_names
    assert now_s() < begin_s + 0.1


async def test_kube_scheduler_waits_once_for_room_that_does_not_come(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    [victim] = evicted(api)
    end(api, victim)  # our own watch shows nothing
    begin_s = now_s()
    for _ in range(10):
        await parts.placer.answer(FilterArguments(api.pods["default", "high"], ["node-a"]))
    assert now_s() < begin_s + 1.1


async def test_kube_scheduler_does_not_wait_for_a_victim_that_is_still_there(
    parts: OperatorParts, api: ApiServer
) -> None:
    await want(parts, "high")
    question = asyncio.create_task(parts.placer.answer(FilterArguments(api.pods["default", "high"], ["node-a"])))
    await settle()
    assert not (await question).node_names


async def test_a_reserved_card_is_called_to_its_pod(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    woken = [call.path for call in api.called(Operation.ANNOTATE)]
    assert [path.split("/")[6] for path in woken] == ["high"]


async def test_room_on_a_node_that_kube_scheduler_leaves_out_is_kept_for_a_while_and_its_pod_not_called_again(
    parts: OperatorParts, api: ApiServer
) -> None:
    """Others have taken the CPU that the victim has left."""
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    calls = len(api.called(Operation.ANNOTATE))
    for _ in range(9):
        assert not await ask(parts, "high", "node-b")
        await pass_time(parts, 1.0)
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    assert len(api.called(Operation.ANNOTATE)) - calls <= 1
    await pass_time(parts, 2.0)
    assert states(api, "uid-high") == []
    assert reasons(parts, "uid-high")[-1] == "PreemptionGivenUp"


async def test_room_is_given_up_too_if_kube_scheduler_would_rather_evict_others_for_cpu(
    parts: OperatorParts, api: ApiServer
) -> None:
    """It finds no node without that, and so asks nobody about cards."""
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    assert await preempt(parts, "high", {"node-a": ("uid-low-1",)}) == {}
    await pass_time(parts, 9.5)
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    await pass_time(parts, 1.0)
    assert states(api, "uid-high") == []


async def test_a_pod_whose_room_is_reserved_while_kube_scheduler_is_about_to_preempt_is_called_once(
    parts: OperatorParts, api: ApiServer
) -> None:
    """Its Filter was before that, at an operator that takes over. Nothing else has kube-scheduler try it in time."""
    await want(parts, "high")
    successor = OperatorParts(api)
    successor.read_cards()
    await successor.observer.resync()
    assert not await ask(successor, "high")
    await let_go(parts, *evicted(api))
    calls = len(api.called(Operation.ANNOTATE))
    successor.watch()
    assert await preempt(successor, "high", {"node-a": ("uid-low-1",)}) == {}
    await pass_time(successor, 5.0)
    assert len(api.called(Operation.ANNOTATE)) == calls + 1
    assert await preempt(successor, "high", {"node-a": ("uid-low-1",)}) == {}
    await pass_time(successor, 1.0)
    assert len(api.called(Operation.ANNOTATE)) == calls + 1


async def test_room_on_a_node_that_kube_scheduler_takes_again_is_used(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    assert not await ask(parts, "high", "node-b")
    await pass_time(parts, 5.0)
    assert await ask(parts, "high")
    await pass_time(parts, 20.0)
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    assert [state for _, state in states(api, "uid-high")] == ["allocated"]


async def test_nobody_else_gets_the_freed_card(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    api.put_pod(a_pod_object("late", WHOLE, priority=LOW))
    assert not await ask(parts, "late")
    assert await ask(parts, "high")


async def test_the_pod_takes_other_room_that_comes_first(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    [victim] = evicted(api)
    other = next(f"low-{card.index}" for card in CARDS if f"low-{card.index}" != victim)
    await let_go(parts, other)
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    await pass_time(parts, 0.5)
    assert [state for _, state in states(api, "uid-high")] == ["allocated"]
    assert claims(api, "uid-high") == []


@pytest.mark.parametrize("priority", [LOW, 0])
async def test_no_pod_leaves_for_one_that_is_not_more_important(
    parts: OperatorParts, api: ApiServer, priority: int
) -> None:
    await want(parts, "equal", priority=priority)
    assert evicted(api) == []


async def test_a_pod_that_never_preempts_makes_nobody_leave(parts: OperatorParts, api: ApiServer) -> None:
    pod = refused("polite")
    pod["spec"]["preemptionPolicy"] = "Never"
    api.put_pod(pod)
    await ask(parts, "polite")
    await pass_time(parts, 1.0)
    assert evicted(api) == []


async def test_nobody_leaves_for_a_request_that_would_not_fit(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "huge", {GPU: "4"})
    assert evicted(api) == []


async def test_only_nodes_that_the_scheduler_would_take_are_cleared(parts: OperatorParts, api: ApiServer) -> None:
    api.put_pod(refused("high"))
    parts.filter("high", "node-b")
    await pass_time(parts, 1.0)
    assert evicted(api) == []


async def test_nobody_leaves_before_the_scheduler_has_tried_everything(parts: OperatorParts, api: ApiServer) -> None:
    """It may ask for one node first, and find another one for the pod in the same attempt."""
    api.put_pod(a_pod_object("high", WHOLE, priority=HIGH))
    await ask(parts, "high")
    await pass_time(parts, 1.0)
    assert evicted(api) == []
    api.put_pod(refused("high"))
    await pass_time(parts, 1.0)
    assert len(evicted(api)) == 1


@pytest.mark.parametrize("is_called", [True, False], ids=["which can be called", "which asks by itself"])
async def test_nobody_leaves_on_an_old_word_of_the_scheduler(
    parts: OperatorParts, api: ApiServer, is_called: bool
) -> None:
    """Room that was not there before can be had minutes after the last attempt; the node may have got a taint since."""
    if not is_called:
        api.queue(Operation.ANNOTATE, refuse(Denied("a policy forbids it", 403)))
    for card in CARDS:
        api.put_pod(low(card, priority=HIGH))
    important = [Holder(pod_identity(low(card, priority=HIGH)), whole_share(card), attempt="first") for card in CARDS]
    for card, holder in zip(CARDS, important, strict=True):
        api.put_card(card, holder)
    await parts.idle()
    await want(parts, "high")
    await pass_time(parts, 2 * FRESH_S)
    api.put_card(CARDS[0], Holder(pod_identity(low(CARDS[0])), whole_share(CARDS[0]), attempt="second"))
    parts.read_cards()
    await pass_time(parts, 1.0)
    assert evicted(api) == []
    assert len(api.called(Operation.ANNOTATE)) == 1, "the scheduler is made to ask again"
    assert not await ask(parts, "high")
    await pass_time(parts, 1.0)
    assert evicted(api) == ["low-0"]


async def test_two_pods_do_not_evict_for_the_same_card(parts: OperatorParts, api: ApiServer) -> None:
    for name in ("first", "second", "third", "fourth"):
        api.put_pod(refused(name))
        await ask(parts, name)
    await pass_time(parts, 1.0)
    assert sorted(evicted(api)) == ["low-0", "low-1", "low-2"]
    claimed = [claims(api, f"uid-{name}") for name in ("first", "second", "third", "fourth")]
    assert sorted(claimed) == [[], [0], [1], [2]]


async def test_several_cards_are_reserved_as_they_become_free(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high", {GPU: "2"})
    first, second = evicted(api)
    await let_go(parts, first)
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    assert not await ask(parts, "high"), "one of two"
    await let_go(parts, second)
    assert [state for _, state in states(api, "uid-high")] == ["reserved", "reserved"]
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    assert [state for _, state in states(api, "uid-high")] == ["allocated", "allocated"]


@pytest.mark.parametrize("left", [0, 1], ids=["all is there", "one is still to leave"])
async def test_what_is_reserved_stays_when_everything_is_read_anew(
    parts: OperatorParts, api: ApiServer, left: int
) -> None:
    """Its pod is not bound, like that of a share which a crash has left; but its time is not over."""
    await want(parts, "high", {GPU: "2"})
    victims = evicted(api)
    await let_go(parts, *victims[: 2 - left])
    await parts.observer.resync()
    await pass_time(parts, 0.5)
    assert [state for _, state in states(api, "uid-high")] == ["reserved"] * (2 - left)
    await parts.preemption.executor.worker.stop()
    async for successor in run(api):
        await pass_time(successor, 0.5)
        assert [state for _, state in states(api, "uid-high")] == ["reserved"] * (2 - left)
        await let_go(successor, *victims[2 - left :])
        assert await ask(successor, "high")
        await successor.bind("high", "node-a")
    assert [state for _, state in states(api, "uid-high")] == ["allocated", "allocated"]
    assert evicted(api) == victims


async def test_room_of_which_a_part_has_gone_while_the_rest_was_reserved_is_given_up(
    parts: OperatorParts, api: ApiServer
) -> None:
    """An administrator can delete a card's object: it is created again, and nobody holds it."""
    await want(parts, "high", {GPU: "2"})
    first, second = evicted(api)
    await let_go(parts, first)
    [(index, _)] = states(api, "uid-high")
    held = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, None, hold_request(held))  # the victim leaves the card; the pod is to have it
    end(api, second)
    parts.watch()
    await asyncio.sleep(0.5)  # less than a write may take
    assert api.in_flight[Operation.WRITE_STATUS] == len(claims(api, "uid-high")) == 1
    await parts.journal.remove(CARDS[index].uuid, "uid-high")
    held.set()
    await pass_time(parts, 0.5)
    assert states(api, "uid-high") == [] == claims(api, "uid-high")
    assert "PreemptionGivenUp" in reasons(parts, "uid-high")


@pytest.mark.parametrize("number", [1, 2])
async def test_of_what_two_operators_have_kept_on_two_nodes_one_node_stays(
    parts: OperatorParts, api: ApiServer, number: int
) -> None:
    """For a moment both were active, and neither had heard of the other's claims."""
    await want(parts, "high", {GPU: "2"})
    await let_go(parts, *evicted(api))
    [ours, _] = [holder for card in CARDS for holder in api.card(card).holders or () if holder.pod.uid == "uid-high"]
    others = cards_of("node-b", 2)
    for place, card in enumerate(others):
        api.put_card(card, *([replace(ours, share=whole_share(card), attempt="other")] if place < number else []))
    api.put_node(a_node_object("node-b", others))
    await pass_time(parts, 0.5)
    kept = [card.node_name for card in (*CARDS, *others) for uid in api.holders_of(card) if uid == "uid-high"]
    assert kept == (["node-a"] * 2 if number < 2 else ["node-b"] * 2)
    assert parts.filter("high", "node-a", "node-b").node_names == kept[:1]
    assert "PreemptionGivenUp" not in reasons(parts, "uid-high")


def reported(api: ApiServer, cards: Sequence[Card] = CARDS, slots: int = 80) -> None:
    """Let the node say what its cards are like, and how many slots its agent serves: none while it is away."""
    api.put_node(a_node_object("node-a", cards, slots=slots))


async def test_a_card_that_fails_while_it_is_kept_for_a_pod_is_not_given_to_it(
    parts: OperatorParts, api: ApiServer
) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    [(index, _)] = states(api, "uid-high")
    reported(api, [replace(card, healthy=card.index != index) for card in CARDS])
    held = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, *[hold_request(held)] * 4)
    for _ in range(3):  # the node's word, and what it changes in the ledger
        parts.watch()
        await asyncio.sleep(0.1)
    assert states(api, "uid-high") == [(index, "reserved")]
    assert parts.filter("high", "node-a").node_names == [], "not even before it is taken back"
    held.set()
    await pass_time(parts, 1.0)
    assert states(api, "uid-high") == []
    assert "PreemptionGivenUp" in reasons(parts, "uid-high")
    await pass_time(parts, 1.0)
    assert len(evicted(api)) == 2, "somebody leaves another card for it"


async def test_nobody_leaves_a_card_that_has_failed_after_it_was_claimed(parts: OperatorParts, api: ApiServer) -> None:
    api.queue(Operation.EVICT, refuse(Unreachable("a budget forbids it", 429)))
    await want(parts, "high")
    [index] = claims(api, "uid-high")
    reported(api, [replace(card, healthy=card.index != index) for card in CARDS])
    await pass_time(parts, 10.0)
    assert claims(api, "uid-high") != [index]
    assert evicted(api).count(f"low-{index}") == 1, "the one that was refused"


async def test_what_is_kept_for_a_pod_waits_for_an_agent_that_is_away(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    reported(api, slots=0)
    await parts.idle()
    assert not await ask(parts, "high")
    await pass_time(parts, 2.0)
    assert [state for _, state in states(api, "uid-high")] == ["reserved"]
    reported(api)
    await parts.idle()
    assert await ask(parts, "high")


async def test_nobody_leaves_while_the_nodes_agent_is_away(parts: OperatorParts, api: ApiServer) -> None:
    api.queue(Operation.EVICT, refuse(Unreachable("a budget forbids it", 429)))
    await want(parts, "high")
    assert len(evicted(api)) == 1
    reported(api, slots=0)
    await pass_time(parts, 10.0)
    assert len(evicted(api)) == 1
    reported(api)
    await pass_time(parts, 1.0)
    assert len(evicted(api)) == 2


async def test_what_the_pod_is_told_does_not_change(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    answers = {parts.filter("high", "node-a").short_of_room["node-a"] for _ in range(3)}
    assert answers == {"cards are being freed for the pod: others have to leave them first"}


async def test_a_pod_that_vanishes_leaves_nothing(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high", {GPU: "2"})
    await let_go(parts, evicted(api)[0])
    api.delete_pod("high")
    await pass_time(parts, 1.0)
    assert claims(api, "uid-high") == [] == states(api, "uid-high")
    await pass_time(parts, 2 * (30 + PREEMPTION_TIMEOUT_S))
    assert parts.remembered("uid-high") == []
    api.put_pod(a_pod_object("late", WHOLE, priority=LOW))
    assert await ask(parts, "late")


def deleted(pod: Json) -> Json:
    """Return a pod that some program's finalizer keeps though it was deleted."""
    metadata = {"deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": ["example.com/books-kept"]}
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


@pytest.mark.parametrize("is_seen_by_the_watch", [True, False])
async def test_a_pod_that_is_deleted_and_kept_by_a_finalizer_wants_no_cards_any_more(
    parts: OperatorParts, api: ApiServer, is_seen_by_the_watch: bool
) -> None:
    await want(parts, "high", {GPU: "2"})
    await let_go(parts, evicted(api)[0])
    if is_seen_by_the_watch:
        api.put_pod(deleted(api.pods["default", "high"]))
    else:
        api.pods["default", "high"] = deleted(api.pods["default", "high"])
        await parts.observer.resync()
    await pass_time(parts, 1.0)
    assert claims(api, "uid-high") == [] == states(api, "uid-high")
    assert parts.waiting.waiting() == set()
    api.put_pod(a_pod_object("late", WHOLE, priority=LOW))
    assert await ask(parts, "late")
    explained = await parts.explainer.explain("default", "high")
    assert explained.summary == (
        "is being deleted, and gets no cards any more; its object stays for example.com/books-kept"
    )


async def test_a_victim_that_does_not_go_ends_the_preemption(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await pass_time(parts, 30 + PREEMPTION_TIMEOUT_S - 5)
    assert len(claims(api, "uid-high")) == 1
    await pass_time(parts, 10)
    assert claims(api, "uid-high") == []
    assert "PreemptionGivenUp" in reasons(parts, "uid-high")


async def test_a_second_operator_goes_on_and_evicts_nobody_twice(parts: OperatorParts, api: ApiServer) -> None:
    held = asyncio.Event()
    api.queue(Operation.EVICT, None, hold_request(held))
    api.put_pod(refused("high", {GPU: "2"}))
    await ask(parts, "high")
    await asyncio.sleep(2 * SETTLE_S)
    first, second = evicted(api)  # the second request never arrives: the operator dies
    await parts.preemption.executor.worker.stop()
    api.calls.clear()
    async for successor in run(api):
        await pass_time(successor, 0.5)
        assert evicted(api) == [second]
        await let_go(successor, first, second)
        assert await ask(successor, "high")
        await successor.bind("high", "node-a")
    assert len(states(api, "uid-high")) == 2
    held.set()


async def test_claims_on_some_of_the_cards_are_taken_back(parts: OperatorParts, api: ApiServer) -> None:
    """An operator can die between the claims, before anybody was told to leave."""
    held = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, None, hold_request(held))
    api.put_pod(refused("high", {GPU: "2"}))
    await ask(parts, "high")
    await asyncio.sleep(2 * SETTLE_S)
    await settle()
    assert len(claims(api, "uid-high")) == 1
    assert evicted(api) == []
    await parts.preemption.executor.worker.stop()
    async for successor in run(api):
        await pass_time(successor, 0.05)
        assert claims(api, "uid-high") == []


async def test_a_budget_is_spared(parts: OperatorParts, api: ApiServer) -> None:
    protect(api, "low-2", allowed=0)
    protect(api, "low-1", allowed=0)
    await want(parts, "high")
    assert evicted(api) == ["low-0"]


def protect(api: ApiServer, name: str, allowed: int) -> None:
    pod = api.pods["default", name]
    pod["metadata"]["labels"] = {"app": name}
    api.put_pod(pod)
    metadata = {"namespace": "default", "name": f"of-{name}"}
    spec = {"selector": {"matchLabels": {"app": name}}}
    api.budgets.append({"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}})


async def test_where_budgets_forbid_nobody_leaves_and_the_pod_is_told(parts: OperatorParts, api: ApiServer) -> None:
    for card in CARDS:
        protect(api, f"low-{card.index}", allowed=0)
    await want(parts, "high")
    assert evicted(api) == []
    assert reasons(parts, "uid-high") == ["PreemptionForbidden"]
    api.budgets[1]["status"]["disruptionsAllowed"] = 1
    await pass_time(parts, 3 * RESTING_S)
    assert len(api.called(Operation.ANNOTATE)) == 1, "the scheduler is made to ask again, once"
    assert not await ask(parts, "high")
    await pass_time(parts, 1.0)
    assert evicted(api) == ["low-1"]


async def test_a_namespace_whose_budgets_cannot_be_read_is_protected_and_the_others_go_on(
    parts: OperatorParts, api: ApiServer
) -> None:
    """As where a selector is longer than the API server takes in a request."""
    cheapest = low(CARDS[0], priority=LOW - 1)
    cheapest["metadata"]["namespace"] = "other"
    api.delete_pod("low-0")
    api.put_pod(cheapest)
    api.put_card(CARDS[0], Holder(pod_identity(cheapest), whole_share(CARDS[0]), attempt="first"))
    parts.watch()
    await parts.idle()
    api.queue(Operation.LIST_BUDGETS, refuse(ApiError("request header fields too large", 431)))
    await want(parts, "high")
    [victim] = evicted(api)
    assert victim in ("low-1", "low-2")


async def test_where_no_budgets_can_be_read_nobody_leaves_and_the_pod_is_told(
    parts: OperatorParts, api: ApiServer
) -> None:
    api.queue(Operation.LIST_BUDGETS, *[refuse(ApiError("request header fields too large", 431))] * 100)
    await want(parts, "high")
    await pass_time(parts, 3 * RESTING_S)
    assert evicted(api) == []
    assert [text for uid, _, _, text in parts.told_pods if uid == "uid-high"] == [
        "pods of lower priority hold the cards, and PodDisruptionBudgets protect them: default/* (these can't be read)"
    ]
    assert len(api.called(Operation.LIST_BUDGETS)) <= 4, "it is not asked again and again"


async def test_nothing_is_remembered_of_a_pod_that_is_asked_for_after_it_was_seen_gone(
    parts: OperatorParts, api: ApiServer
) -> None:
    api.put_pod(refused("late"))
    await parts.idle()
    asked = FilterArguments(api.pods["default", "late"], ["node-a"])
    api.delete_pod("late")
    await parts.idle()
    assert not parts.placer.filter(asked).node_names
    assert parts.preemption.questions._asked_s == {}


def let_stay(parts: OperatorParts, name: str) -> None:
    """Give a pod as long to end as the API server can write."""
    pod = parts.api.pods["default", name]
    parts.api.put_pod({**pod, "spec": {**pod["spec"], "terminationGracePeriodSeconds": 2**63 - 1}})
    parts.watch()


async def test_who_can_stay_for_years_is_asked_last(parts: OperatorParts, api: ApiServer) -> None:
    for index in (0, 1):
        let_stay(parts, f"low-{index}")
    await want(parts, "high")
    assert evicted(api) == ["low-2"]


async def test_who_can_stay_for_years_is_asked_once_and_not_waited_for_so_long(
    parts: OperatorParts, api: ApiServer
) -> None:
    for card in CARDS:
        let_stay(parts, f"low-{card.index}")
    await want(parts, "high")
    [victim] = evicted(api)
    [(claim, now_s)] = [
        (claim, unix_s(wall().strftime("%Y-%m-%dT%H:%M:%SZ"))) for card in map(api.card, CARDS) for claim in card.claims
    ]
    assert unix_s(str(claim.holder.deadline)) - now_s <= LONGEST_GRACE_S + PREEMPTION_TIMEOUT_S
    await pass_time(parts, 20.0)
    assert (evicted(api), by_label(parts.counts.preemptions)["begun"]) == ([victim], 1)


async def test_who_was_deleted_and_can_stay_for_years_does_not_count_as_leaving(
    parts: OperatorParts, api: ApiServer
) -> None:
    pod = api.pods["default", "low-0"]
    leaves = {"deletionTimestamp": "+11476-01-01T00:00:00Z", "deletionGracePeriodSeconds": 2**40}
    api.put_pod({**pod, "metadata": {**pod["metadata"], **leaves}})
    parts.watch()
    await want(parts, "high")
    [victim] = evicted(api)
    assert victim in ("low-1", "low-2")


async def test_a_defect_puts_one_pod_to_rest_and_is_no_hot_loop(
    parts: OperatorParts, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise OverflowError

    monkeypatch.setattr(parts.preemption._starter._claimer, "claim", defect)
    await want(parts, "high")
    await pass_time(parts, 2.5 * RESTING_S)
    assert by_label(parts.counts.preemptions)["begun"] <= 4


async def test_a_setting_puts_pods_above_budgets(parts: OperatorParts, api: ApiServer) -> None:
    for card in CARDS:
        protect(api, f"low-{card.index}", allowed=0)
    parts.despite_budgets = True
    await parts.preemption.executor.worker.stop()
    ruthless = OperatorParts(api, despite_budgets=True)
    ruthless.read_cards()
    await ruthless.observer.take_over()
    loop = asyncio.create_task(startup._preempt(ruthless.as_operator()))
    await want(ruthless, "high")
    (deleted,) = api.called(Operation.DELETE_POD)
    name = deleted.path.split("/")[6]
    (said,) = [each for each in api.pods["default", name]["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (said["status"], said["reason"]) == ("True", "PreemptionByScheduler")
    assert said["message"] == f"gpuledger: preempted for pod default/high of priority {HIGH}"
    before = [call.operation for call in api.calls[: api.calls.index(deleted)]]
    assert before[-1] == Operation.CHANGE_STATUS, "a Job's podFailurePolicy reads it once the pod is gone"
    loop.cancel()


async def test_a_victim_that_asks_for_no_time_gets_a_second_so_that_its_end_is_confirmed(
    parts: OperatorParts, api: ApiServer
) -> None:
    for card in CARDS:
        pod = low(card)
        pod["spec"]["terminationGracePeriodSeconds"] = 0
        api.put_pod(pod)
        api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))
    await parts.idle()
    await want(parts, "high")
    (name,) = evicted(api)
    leaving = api.pods["default", name]
    assert leaving["metadata"]["deletionTimestamp"]
    await let_go(parts, name)
    assert await ask(parts, "high")


async def test_an_eviction_that_is_forbidden_meanwhile_is_asked_for_again(parts: OperatorParts, api: ApiServer) -> None:
    api.queue(Operation.EVICT, refuse(Unreachable("a budget", 429)))
    await want(parts, "high")
    assert len(evicted(api)) == 1
    await pass_time(parts, 6.0)
    assert len(evicted(api)) == 2, "once refused, once done"


async def test_a_more_important_pod_takes_the_place_that_is_kept_for_another(
    parts: OperatorParts, api: ApiServer
) -> None:
    await want(parts, "high", {GPU: "3"})
    await let_go(parts, "low-0", "low-1", "low-2")
    assert len(states(api, "uid-high")) == 3
    await want(parts, "higher", {GPU: "3"}, priority=HIGHER)
    await pass_time(parts, 0.5)
    assert [state for _, state in states(api, "uid-higher")] == ["reserved"] * 3
    assert states(api, "uid-high") == []
    assert len(evicted(api)) == 3, "nobody else leaves for it"


async def test_a_pod_whose_place_others_have_taken_is_not_waited_for_in_vain(
    parts: OperatorParts, api: ApiServer
) -> None:
    """As a bind does that was under way when the operator was restarted: the claim would keep the room for a minute."""
    await want(parts, "high")
    [index], [victim] = claims(api, "uid-high"), evicted(api)
    squatter = low(CARDS[index], priority=HIGH)
    squatter["metadata"] |= {"name": "squatter", "uid": "uid-squatter"}
    api.put_pod(squatter)
    holder = Holder(pod_identity(squatter), whole_share(CARDS[index]), attempt="other")
    api.put_card(CARDS[index], holder, claims=api.card(CARDS[index]).claims)
    end(api, victim)
    await pass_time(parts, IN_VAIN_S / 2)
    assert claims(api, "uid-high") == [index], "it may be seen in a moment that the other one leaves, too"
    await pass_time(parts, IN_VAIN_S)
    assert index not in claims(api, "uid-high")
    assert "PreemptionGivenUp" in reasons(parts, "uid-high")
    assert not await ask(parts, "high")
    await pass_time(parts, 2 * SETTLE_S)
    assert len(evicted(api)) == 2, "another one leaves for it"
    assert claims(api, "uid-high")


@pytest.mark.parametrize("change", [{"deletionTimestamp": "2030-01-01T01:00:00Z"}, {"uid": "uid-not-seen"}])
async def test_who_may_still_leave_is_waited_for(parts: OperatorParts, api: ApiServer, change: Json) -> None:
    await want(parts, "high")
    [index], [victim] = claims(api, "uid-high"), evicted(api)
    other = low(CARDS[index], priority=HIGH)
    other["metadata"] |= {"name": "other", "uid": "uid-other"}
    api.put_pod({**other, "metadata": other["metadata"] | change})
    holder = Holder(pod_identity(other), whole_share(CARDS[index]), attempt="other")
    api.put_card(CARDS[index], holder, claims=api.card(CARDS[index]).claims)
    end(api, victim)
    parts.watch()
    await asyncio.sleep(IN_VAIN_S - 1)
    assert claims(api, "uid-high") == [index]


async def test_a_pod_that_refuses_to_go_is_no_victim_again(parts: OperatorParts, api: ApiServer) -> None:
    for card in CARDS[:2]:
        stuck = low(card)
        stuck["metadata"]["deletionTimestamp"] = (wall() - timedelta(seconds=300)).isoformat()
        api.put_pod(stuck)
    await want(parts, "high")
    assert evicted(api) == ["low-2"]


async def test_what_has_become_of_preemptions_is_counted(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    await let_go(parts, *evicted(api))
    assert await ask(parts, "high")
    await parts.bind("high", "node-a")
    await pass_time(parts, 0.5)
    await want(parts, "gone")
    api.delete_pod("gone")
    await pass_time(parts, 0.5)
    assert by_label(parts.counts.preemptions) == {"begun": 2, "done": 1, "given-up": 1}
    assert count(parts.counts.evictions) == 2


async def test_pods_that_leave_anyway_are_waited_for(parts: OperatorParts, api: ApiServer) -> None:
    leaving = low(CARDS[1])
    leaving["metadata"]["deletionTimestamp"] = (wall() + timedelta(seconds=300)).isoformat()
    api.put_pod(leaving)
    await want(parts, "high")
    assert evicted(api) == []
    assert claims(api, "uid-high") == [1]
    [claim] = api.card(CARDS[1]).claims
    assert datetime.fromisoformat(str(claim.holder.deadline)) > wall() + timedelta(seconds=300)


async def test_a_pod_leaves_for_one_that_waits_once_it_was_seen_bound(parts: OperatorParts, api: ApiServer) -> None:
    for card in CARDS:
        parts.lives.forget_bound(f"uid-low-{card.index}", None)
    await want(parts, "high")
    assert evicted(api) == []
    parts.observer.pod(api.pods["default", "low-1"], gone=False)
    await pass_time(parts, 2 * SETTLE_S)
    assert evicted(api) == ["low-1"]


# kube-scheduler's own preemption, for want of CPU.


async def preempt(parts: OperatorParts, name: str, victims: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any]:
    pod = parts.api.pods["default", name]
    return await parts.preemption.for_scheduler.preempt(PreemptArguments(pod, victims, dict.fromkeys(victims, 0)))


async def test_nobody_leaves_for_cpu_where_the_cards_would_not_do(parts: OperatorParts, api: ApiServer) -> None:
    api.put_pod(a_pod_object("high", {GPU: "4"}, priority=HIGH))
    assert await preempt(parts, "high", {"node-a": ("uid-cpu-hog",)}) == {}
    assert claims(api, "uid-high") == []


async def test_victims_for_cpu_are_completed_by_those_for_cards(parts: OperatorParts, api: ApiServer) -> None:
    api.put_pod(a_pod_object("high", {GPU: "2"}, priority=HIGH))
    answer = await preempt(parts, "high", {"node-a": ("uid-low-1",)})
    [victims] = answer.values()
    assert len(victims) == 2
    assert "uid-low-1" in victims
    assert len(claims(api, "uid-high")) == 2
    await pass_time(parts, 1.0)
    assert evicted(api) == [], "kube-scheduler does that"


async def test_a_pod_that_was_not_yet_seen_bound_is_added_to_the_victims_for_cpu(
    parts: OperatorParts, api: ApiServer
) -> None:
    """kube-scheduler knows it on its node, and asks no second time."""
    parts.lives.forget_bound("uid-low-0", None)
    api.put_pod(a_pod_object("high", {GPU: "3"}, priority=HIGH))
    answer = await preempt(parts, "high", {"node-a": ("uid-cpu-hog",)})
    assert set(answer["node-a"]) == {"uid-cpu-hog", "uid-low-0", "uid-low-1", "uid-low-2"}


async def test_a_protected_pod_is_not_added_to_the_victims_for_cpu(parts: OperatorParts, api: ApiServer) -> None:
    for index in (0, 2):
        protect(api, f"low-{index}", allowed=0)
    api.put_pod(a_pod_object("high", {GPU: "2"}, priority=HIGH))
    assert await preempt(parts, "high", {"node-a": ("uid-low-1",)}) == {}


async def test_the_answer_is_never_a_node_without_victims(parts: OperatorParts, api: ApiServer) -> None:
    await let_go(parts, "low-0")
    api.put_pod(a_pod_object("high", WHOLE, priority=HIGH))
    assert await preempt(parts, "high", {"node-a": ()}) == {}


async def test_kube_scheduler_stays_out_while_our_own_preemption_runs(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high")
    assert await preempt(parts, "high", {"node-a": ("uid-cpu-hog",)}) == {}


async def test_kube_scheduler_stays_out_where_cards_alone_are_short(parts: OperatorParts, api: ApiServer) -> None:
    api.put_pod(a_pod_object("high", WHOLE, priority=HIGH))
    await ask(parts, "high")
    assert await preempt(parts, "high", {"node-b": ("uid-cpu-hog",)}) == {}


async def test_where_preemption_is_off_only_cpu_makes_others_leave(parts: OperatorParts, api: ApiServer) -> None:
    parts.workflows.context.preemption_mode.operator = False
    api.put_pod(a_pod_object("high", WHOLE, priority=HIGH))
    assert await preempt(parts, "high", {"node-a": ("uid-cpu-hog",)}) == {}
    assert await preempt(parts, "high", {"node-a": ("uid-low-1",)}) == {"node-a": ("uid-low-1",)}


async def test_nothing_is_answered_that_could_not_be_claimed(parts: OperatorParts, api: ApiServer) -> None:
    api.put_pod(a_pod_object("high", WHOLE, priority=HIGH))
    api.queue(Operation.WRITE_STATUS, refuse(Unreachable("no answer")), *[refuse(Denied("no", 403))] * 3)
    parts.api.rules.append(lambda card: not (card.get("status") or {}).get("claims"))
    assert await preempt(parts, "high", {"node-a": ("uid-low-1",)}) == {}
    assert not parts.ledger.promises.is_made("uid-high")


async def test_a_later_kube_scheduler_is_told_who_has_to_leave(api: ApiServer) -> None:
    for card in CARDS:
        api.put_pod(low(card))
        api.put_card(card, Holder(pod_identity(low(card)), whole_share(card), attempt="first"))
    api.put_node(a_node_object("node-a", CARDS))
    parts = OperatorParts(api, evicts=False)
    parts.read_cards()
    await parts.observer.take_over()
    api.put_pod(refused("high", {GPU: "2"}))
    answer = parts.filter("high", "node-a")
    assert list(answer.short_of_room) == ["node-a"]
    assert answer.refused == {}
    answered = await preempt(parts, "high", {"node-a": ()})
    assert len(answered["node-a"]) == 2


@pytest.mark.parametrize("who", ["native", "off"])
async def test_who_has_just_started_evicts_nobody_where_that_is_not_the_operators_business(
    api: ApiServer, who: str
) -> None:
    """A pod is refused before the first look of the loop that decides on preemptions."""
    api.put_pod(low(CARDS[0]))
    api.put_card(CARDS[0], Holder(pod_identity(low(CARDS[0])), whole_share(CARDS[0]), attempt="first"))
    api.put_node(a_node_object("node-a", CARDS[:1]))
    parts = OperatorParts(api, evicts=False)
    parts.workflows.context.preemption_mode.scheduler = who == "native"
    parts.read_cards()
    await parts.observer.take_over()
    loop = asyncio.create_task(startup._preempt(parts.as_operator()))
    api.put_pod(refused("high"))
    assert not await ask(parts, "high")
    await pass_time(parts, 10 * SETTLE_S)
    assert evicted(api) == []
    loop.cancel()
    await parts.preemption.executor.worker.stop()


async def an_operator_over(api: ApiServer, cards: Sequence[Card]) -> OperatorParts:
    """Return an operator without its loops, over a node with these cards, which are free."""
    api.put_node(a_node_object("node-a", cards))
    for card in cards:
        api.put_card(card)
    parts = an_operator(api)
    await parts.observer.take_over()
    return parts


async def place(parts: OperatorParts, name: str, limits: Mapping[str, object]) -> None:
    """Let a pod of low priority come, and bind it."""
    parts.api.put_pod(a_pod_object(name, limits, priority=LOW))
    assert await ask(parts, name)
    await parts.bind(name, "node-a")
    await parts.idle()


async def test_three_of_four_leave_for_sixty_percent_of_four_cards(api: ApiServer) -> None:
    parts = await an_operator_over(api, cards_of("node-a", 4))
    for number in range(4):
        await place(parts, f"low-{number}", {GPU: "4", PERCENTAGE: "25", CORES: "25"})
    loop = asyncio.create_task(startup._preempt(parts.as_operator()))
    await want(parts, "high", {GPU: "4", PERCENTAGE: "60", CORES: "60"})
    assert len(evicted(api)) == 3
    loop.cancel()


async def test_nobody_leaves_a_card_where_another_pod_has_made_room(api: ApiServer) -> None:
    """It ends while one of the cards is still being reserved, since the API server is slow."""
    cards = cards_of("node-a", 2)
    parts = await an_operator_over(api, cards)
    await place(parts, "wide", {GPU: "2", PERCENTAGE: "50"})
    await place(parts, "narrow", {GPU: "1", PERCENTAGE: "50"})
    loop = asyncio.create_task(startup._preempt(parts.as_operator()))
    reserved = await begin_to_reserve(parts, {GPU: "2", PERCENTAGE: "25"})
    [victim] = {uid for card in cards for claim in api.card(card).claims for uid in claim.victims}
    end(api, "narrow" if victim == "uid-wide" else "wide")
    parts.watch()
    await asyncio.sleep(0.1)
    reserved.set()
    await pass_time(parts, 1.0)
    assert await ask(parts, "high")
    assert evicted(api) == []
    loop.cancel()


async def test_nobody_leaves_for_a_pod_that_has_come_to_another_node(parts: OperatorParts, api: ApiServer) -> None:
    await let_go(parts, "low-0")
    reserved = await begin_to_reserve(parts, {GPU: "2"})
    others = cards_of("node-b", 2)
    for card in others:
        api.put_card(card)
    api.put_node(a_node_object("node-b", others))
    for _ in range(3):
        parts.watch()
        await asyncio.sleep(0.1)
    assert parts.filter("high", "node-b").node_names == ["node-b"]
    await parts.bind("high", "node-b")
    parts.watch()
    reserved.set()
    await pass_time(parts, 1.0)
    assert evicted(api) == []
    assert states(api, "uid-high") == [] == claims(api, "uid-high")


async def begin_to_reserve(parts: OperatorParts, limits: Mapping[str, object]) -> asyncio.Event:
    """Let a pod come that claims two cards, of which one is free: until the event, the API server reserves it."""
    parts.api.put_pod(refused("high", limits))
    assert not await ask(parts, "high")
    answered = asyncio.Event()
    parts.api.queue(Operation.WRITE_STATUS, None, None, hold_request(answered))  # two claims, and the share
    await asyncio.sleep(2 * SETTLE_S)
    parts.watch()
    await settle()
    assert parts.api.in_flight[Operation.WRITE_STATUS] == 1
    return answered


async def test_memory_in_mib_counts_as_well(parts: OperatorParts, api: ApiServer) -> None:
    await want(parts, "high", {GPU: "1", MEMORY: "4000"})
    assert len(evicted(api)) == 1


def put_two_containers(api: ApiServer, name: str) -> None:
    """Put a refused pod of two containers, each of which wants a card for itself."""
    pod = refused(name)
    pod["spec"]["containers"] = [a_container("one", WHOLE), a_container("two", WHOLE)]
    api.put_pod(pod)


async def test_others_leave_for_a_pod_of_several_containers_as_they_are_when_the_search_has_ended(
    parts: OperatorParts, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its victims are looked for in a thread, and the ledger goes on."""
    found: list[Eviction | None] = []

    async def search(answer: Callable[..., Eviction | None], *arguments: Any) -> Eviction | None:
        found.append(answer(*arguments))
        if len(found) == 1 and found[0] is not None:
            end(api, found[0].victims[0].removeprefix("uid-"))
            await parts.idle()
        return found[-1]

    monkeypatch.setattr(asyncio, "to_thread", search)
    put_two_containers(api, "high")
    assert not await ask(parts, "high")
    await pass_time(parts, 2 * SETTLE_S)
    assert [len(eviction.victims) for eviction in found if eviction] == [2, 1]
    assert len(evicted(api)) == 1, "the other card was free already when somebody was asked to leave"


async def test_a_search_that_takes_long_keeps_no_pod_of_one_container_waiting(
    parts: OperatorParts, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def search(answer: Callable[..., Eviction | None], *arguments: Any) -> Eviction | None:
        await ended.wait()
        return answer(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", search)
    put_two_containers(api, "first")
    assert not await ask(parts, "first")
    await pass_time(parts, 2 * SETTLE_S)
    await want(parts, "second")
    assert (claims(api, "uid-first"), len(claims(api, "uid-second"))) == ([], 1)
    ended.set()
    await pass_time(parts, 2 * SETTLE_S)
    assert len(claims(api, "uid-first")) == 2
