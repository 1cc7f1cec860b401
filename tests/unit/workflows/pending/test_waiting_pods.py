"""Who waits gets the room that becomes free: in turn, before anybody else, and called once if it does not come."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

from builders import OFFER, a_card, a_request, cards_of, mib, stored, whole_share
from fakes.api_server import ApiServer, Fault, Operation, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.counters import count
from fakes.objects import DIALECTS, GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import HOLD_TTL_S, OperatorParts, an_operator
from fakes.virtual_time import now_s, settle
from gpuledger.controller import startup
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.scheduler import scheduler_configuration
from gpuledger.model.card import Card
from gpuledger.model.errors import Denied, NotFound, WorkLimitExceeded
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Holder, Placement, Pod
from gpuledger.placement.choose import LOOKED_AT_A_TIME, STEPS_OF_A_LOOK
from gpuledger.placement.policy import StepBudget
from gpuledger.workflows.pending import waiting_pods as wake_up
from gpuledger.workflows.pending.waiting_pods import EARMARK_S, GRACE_S, REFUSED_S

CARDS = cards_of("node-a", 3)
CARD, SECOND, THIRD = CARDS
ELSEWHERE = a_card(0, "node-b")
ANNOTATE = Operation.ANNOTATE
KUBE_SCHEDULERS_LONGEST_BACK_OFF_S = 10
WHOLE = {GPU: "1"}
TWO_CARDS = {GPU: "2"}
OF_MEMORY = {GPU: "1", MEMORY: "16k"}
"""As much as a whole card, in other words: another shape."""


@pytest.fixture
async def parts(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Return an operator that runs, over two nodes each of whose cards a pod has for itself."""
    for card in (*CARDS, ELSEWHERE):
        pod = tenant(card, "Running")
        api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))
        api.put_pod(pod)
    api.put_node(a_node_object("node-a", CARDS))
    api.put_node(a_node_object("node-b", [ELSEWHERE]))
    parts = an_operator(api)
    parts.observer.synced = True
    await parts.idle()
    running = asyncio.create_task(startup._give_room(parts.as_operator()))
    yield parts
    running.cancel()


def tenant(card: Card, phase: str) -> dict[str, Any]:
    name = f"tenant-{card.node_name}-{card.index}"
    return a_pod_object(name, WHOLE, node_name=card.node_name, phase=phase, started=True)


def put_refused_pod(api: ApiServer, name: str) -> None:
    """Put a pod as kube-scheduler leaves one that it found no node for."""
    pod = a_pod_object(name, WHOLE)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    api.put_pod(pod)


async def free(parts: OperatorParts, *cards: Card) -> None:
    """Let the tenants end, and the operator see it."""
    for card in cards:
        parts.api.put_pod(tenant(card, "Succeeded"))
    await parts.idle()
    await settle()


def ask(parts: OperatorParts, name: str, limits: Mapping[str, object] = WHOLE, **fields: Any) -> bool:
    """Let kube-scheduler try a pod on the first node; return whether it fits."""
    if ("default", name) not in parts.api.pods:
        parts.api.put_pod(a_pod_object(name, limits, **fields))
    return parts.filter(name, "node-a").node_names == ["node-a"]


def wait_for_room(parts: OperatorParts, name: str, limits: Mapping[str, object] = WHOLE, **fields: Any) -> None:
    assert not ask(parts, name, limits, **fields)


def kept(parts: OperatorParts) -> list[str]:
    """Return the pods for which something is on hold."""
    return sorted(name for _, name in parts.api.pods if parts.ledger.seats.of(f"uid-{name}"))


def called(api: ApiServer) -> list[str]:
    """Return the pods that were patched so that kube-scheduler tries them, in that order."""
    assert all(list(call.body["metadata"]["annotations"]) == [WOKEN_ANNOTATION] for call in api.called(ANNOTATE))
    return [call.path.rsplit("/", 1)[1] for call in api.called(ANNOTATE)]


# Whose turn it is.


async def test_room_goes_to_the_highest_priority_then_to_the_oldest_whatever_they_ask_for(parts: OperatorParts) -> None:
    wait_for_room(parts, "young", created="2030-01-01T00:00:02Z")
    wait_for_room(parts, "old", OF_MEMORY, created="2030-01-01T00:00:01Z")
    wait_for_room(parts, "high", created="2030-01-01T00:00:03Z", priority=1)
    kept_after_each = []
    for card in CARDS:
        await free(parts, card)
        kept_after_each.append(kept(parts))
    assert kept_after_each == [["high"], ["high", "old"], ["high", "old", "young"]]


async def test_pods_of_one_second_take_turns_as_they_came_and_asking_again_loses_no_turn(
    api: ApiServer, parts: OperatorParts
) -> None:
    for name in ("c", "b", "a", "c"):
        wait_for_room(parts, name)
    api.delete_pod("b")
    await free(parts, CARD)
    assert kept(parts) == ["c"]
    await free(parts, SECOND)
    assert kept(parts) == ["a", "c"]


async def test_who_does_not_fit_keeps_nobody_behind_it_waiting(parts: OperatorParts) -> None:
    wait_for_room(parts, "large", TWO_CARDS, priority=1)
    wait_for_room(parts, "small")
    await free(parts, CARD)
    assert kept(parts) == ["small"]
    await free(parts, SECOND, THIRD)
    assert kept(parts) == ["large", "small"]


async def test_room_that_is_kept_for_a_pod_goes_to_nobody_else(parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    assert not ask(parts, "another")
    assert ask(parts, "a")


async def test_who_asks_just_as_room_appears_comes_after_those_who_wait(api: ApiServer, parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    api.put_card(CARD)
    parts.watch()
    assert not ask(parts, "another")
    assert kept(parts) == ["a"]


@pytest.mark.parametrize("woken", [False, True])
async def test_a_higher_priority_takes_kept_room_and_who_had_it_waits_again(parts: OperatorParts, woken: bool) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    if woken:
        await asyncio.sleep(2 * GRACE_S)
    assert ask(parts, "high", priority=1)
    if woken:  # it comes, because it was called
        assert not ask(parts, "a")
    await asyncio.sleep(2 * EARMARK_S)
    assert kept(parts) == ["high"]
    await free(parts, SECOND)
    assert kept(parts) == ["a", "high"]


@pytest.mark.parametrize("woken", [False, True])
async def test_kept_room_that_is_too_small_for_a_higher_priority_stays_whose_it_was(
    parts: OperatorParts, woken: bool
) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    await free(parts, CARD)
    if woken:
        await asyncio.sleep(2 * GRACE_S)
    wait_for_room(parts, "high", TWO_CARDS, priority=1)
    await settle()
    assert kept(parts) == ["a"]


async def test_only_nodes_that_a_pod_can_go_to_count(api: ApiServer, parts: OperatorParts) -> None:
    nodes = {"first": ["node-a", "node-b"], "second": ["node-a"], "third": ["node-b"]}
    for name, node_names in nodes.items():
        api.put_pod(a_pod_object(name, WHOLE))
        assert parts.filter(name, *node_names).node_names == []
    for card in (SECOND, ELSEWHERE):
        api.put_card(card)
    parts.watch()
    await settle()
    holds = {name: parts.ledger.seats.of(f"uid-{name}") for name in nodes}
    kept_on = {name: hold.placement.node_name for name, hold in holds.items() if hold}
    assert kept_on == {"first": "node-a", "third": "node-b"}


async def test_room_on_a_node_that_a_pod_cannot_go_to_any_more_goes_to_the_next(parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    await free(parts, CARD)
    assert parts.filter("a", "node-b").node_names == []
    await settle()
    assert kept(parts) == ["b"]


async def test_room_whose_pod_is_not_bound_in_time_goes_to_who_waits(parts: OperatorParts) -> None:
    await free(parts, CARD)
    assert ask(parts, "slow")
    wait_for_room(parts, "a")
    await asyncio.sleep(HOLD_TTL_S - 1)
    assert kept(parts) == ["slow"]
    await asyncio.sleep(1.001)
    assert kept(parts) == ["a"]


async def test_nothing_is_looked_at_again_and_again_while_nothing_happens(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    expire_holds = parts.placer.expire_holds

    def counted() -> None:
        looks.append(now_s())
        expire_holds()

    monkeypatch.setattr(parts.placer, "expire_holds", counted)
    wait_for_room(parts, "a", TWO_CARDS)
    await asyncio.sleep(3600)
    looks.clear()
    await asyncio.sleep(3600)
    assert looks == []
    await free(parts, CARD)
    assert ask(parts, "slow")
    begin_s = now_s()
    await asyncio.sleep(3600)
    assert looks[-1] == begin_s + HOLD_TTL_S
    assert len(looks) < 10


@pytest.mark.parametrize("room_is_there", [True, False])
async def test_pods_that_were_refused_before_anybody_looked_get_room_on_any_node(
    api: ApiServer, parts: OperatorParts, room_is_there: bool
) -> None:
    wait_for_room(parts, "large", TWO_CARDS)
    put_refused_pod(api, "a")
    if room_is_there:
        await free(parts, ELSEWHERE)
    await parts.observer.take_over()
    await settle()
    if not room_is_there:
        await free(parts, ELSEWHERE)
    assert kept(parts) == ["a"]


# Who is called.


async def test_a_pod_that_comes_by_itself_is_not_called(api: ApiServer, parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    await asyncio.sleep(0.9 * GRACE_S)
    assert ask(parts, "a")
    await parts.bind("a", "node-a")
    await asyncio.sleep(10 * EARMARK_S)
    assert called(api) == []


async def test_a_pod_that_came_and_gets_other_room_has_its_whole_time_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    await asyncio.sleep(0.9 * GRACE_S)
    assert parts.filter("a", "node-b").node_names == []
    await free(parts, ELSEWHERE)
    assert kept(parts) == ["a"]
    await asyncio.sleep(0.9 * GRACE_S)
    assert called(api) == []


async def test_a_pod_that_sleeps_is_called_once(api: ApiServer, parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    await asyncio.sleep(1.1 * GRACE_S)
    assert called(api) == ["a"]
    assert ask(parts, "a")
    await parts.bind("a", "node-a")
    await asyncio.sleep(10 * EARMARK_S)
    assert called(api) == ["a"]
    assert count(parts.counts.wake_ups) == 1


async def test_a_pod_that_was_refused_before_the_start_is_called_when_there_is_room(api: ApiServer) -> None:
    api.put_node(a_node_object("node-a", [CARD]))
    api.put_card(CARD)
    put_refused_pod(api, "a")
    operator = OperatorParts(api).as_operator()
    running = [asyncio.create_task(startup._keep_in_sync(operator)), asyncio.create_task(startup._give_room(operator))]
    await asyncio.sleep(2 * GRACE_S)
    assert called(api) == ["a"]
    for task in running:
        task.cancel()


def is_gone(api: ApiServer) -> None:
    api.delete_pod("a")


def is_another_one(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", WHOLE, uid="uid-of-another"))


def may_not_be_patched(api: ApiServer) -> None:
    api.queue(ANNOTATE, refuse_with(Denied("forbidden", 403)))


@pytest.mark.parametrize("what_happened", [is_gone, is_another_one, may_not_be_patched])
async def test_room_of_a_pod_that_cannot_be_called_goes_to_the_next(
    api: ApiServer, parts: OperatorParts, what_happened: Callable[[ApiServer], None]
) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    await free(parts, CARD)
    what_happened(api)
    await asyncio.sleep(1.1 * GRACE_S)
    assert kept(parts) == ["b"]
    assert parts.remembered("uid-a") == []


async def test_a_pod_is_called_when_the_api_server_is_back(api: ApiServer, parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    api.queue(ANNOTATE, *[lose_request()] * 6)
    await asyncio.sleep(EARMARK_S + 2)
    assert kept(parts) == ["a"]
    assert called(api) == ["a"] * 7
    assert WOKEN_ANNOTATION in api.pods["default", "a"]["metadata"]["annotations"]


async def test_room_is_kept_for_a_pod_that_was_called_until_kube_scheduler_has_let_it_wait_its_longest(
    api: ApiServer, parts: OperatorParts
) -> None:
    wait_for_room(parts, "high", priority=100)
    await free(parts, CARD)
    await asyncio.sleep(GRACE_S + KUBE_SCHEDULERS_LONGEST_BACK_OFF_S)
    assert not ask(parts, "low")
    assert ask(parts, "high")


def test_the_longest_back_off_is_the_one_that_the_generated_configuration_has() -> None:
    configuration = scheduler_configuration(["own"], DIALECTS, "http://x", 1, leader_elect=True)
    assert configuration["podMaxBackoffSeconds"] == KUBE_SCHEDULERS_LONGEST_BACK_OFF_S < EARMARK_S


async def test_who_was_called_and_does_not_come_loses_the_room_and_is_not_called_until_it_was_refused_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    await free(parts, CARD)
    await asyncio.sleep(GRACE_S + EARMARK_S + 0.1)
    assert kept(parts) == ["b"]
    await free(parts, SECOND)
    await asyncio.sleep(1.1 * GRACE_S)
    assert called(api) == ["a", "b"]
    assert ask(parts, "another")
    wait_for_room(parts, "a")
    await free(parts, THIRD)
    await asyncio.sleep(1.1 * GRACE_S)
    assert called(api) == ["a", "b", "a"]


UNTOLERATED = "0/2 nodes are available: 2 node(s) had untolerated taint {team: blue}. preemption: not helpful."
TOO_SMALL = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No victims."


def refused_with(message: str) -> Callable[[OperatorParts], None]:
    """Return what lets the operator see that kube-scheduler has refused pod a with this message."""

    def show(parts: OperatorParts) -> None:
        pod = deepcopy(parts.api.pods["default", "a"])
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"]["conditions"] = [condition]
        parts.api.put_pod(pod)
        parts.observer.pending_pod(pod, gone=False)

    return show


@pytest.mark.parametrize(
    ("message", "at_once", "soon"),
    [
        (UNTOLERATED, "b", "b"),
        (TOO_SMALL, "a", "b"),  # kube-scheduler may still have to see who has ended
        ("0/2 nodes are available: 2 no card with a free slot.", "a", "a"),  # that is of this operator
    ],
)
async def test_room_of_a_woken_pod_that_kube_scheduler_itself_refuses_is_soon_free(
    parts: OperatorParts, message: str, at_once: str, soon: str
) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    await free(parts, CARD)
    await asyncio.sleep(1.1 * GRACE_S)
    assert (called(parts.api), kept(parts)) == (["a"], ["a"])
    refused_with(message)(parts)
    await settle()
    assert kept(parts) == [at_once]
    await asyncio.sleep(1.1 * REFUSED_S)
    assert kept(parts) == [soon]


async def test_what_kube_scheduler_has_said_before_takes_no_room(parts: OperatorParts) -> None:
    wait_for_room(parts, "a")
    wait_for_room(parts, "b")
    refused_with(UNTOLERATED)(parts)
    await free(parts, CARD)
    await asyncio.sleep(1.1 * GRACE_S)
    refused_with(UNTOLERATED)(parts)
    await settle()
    assert kept(parts) == ["a"]


async def test_a_pod_whose_question_comes_to_no_answer_waits_as_before_and_gets_room_again(
    api: ApiServer, parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_costly(*_: object, **__: object) -> None:
        raise WorkLimitExceeded("the search takes long")

    wait_for_room(parts, "a", priority=100)
    await free(parts, CARD)
    assert kept(parts) == ["a"]
    with monkeypatch.context() as during:
        during.setattr(parts.chooser, "choose", is_costly)
        with pytest.raises(WorkLimitExceeded):
            ask(parts, "a")
    assert not ask(parts, "low")
    assert kept(parts) == ["a"]
    await asyncio.sleep(GRACE_S + EARMARK_S + 0.1)
    assert called(api) == ["a"]
    assert kept(parts) == ["low"]


@pytest.mark.parametrize("refusal", [None, NotFound("gone", 404)])
async def test_the_late_answer_to_a_call_takes_nothing_from_a_pod_that_has_come(
    api: ApiServer, parts: OperatorParts, refusal: NotFound | None
) -> None:
    wait_for_room(parts, "a")
    await free(parts, CARD)
    answer = asyncio.Event()
    api.queue(ANNOTATE, Fault(before=answer, refusal=refusal))
    await asyncio.sleep(2 * GRACE_S)
    assert ask(parts, "a")
    answer.set()
    await asyncio.sleep(2 * EARMARK_S)
    assert kept(parts) == ["a"]


async def called_in_vain(api: ApiServer, parts: OperatorParts) -> None:
    """Let there be room for pod `a`, and the call that tells it get lost."""
    wait_for_room(parts, "a")
    await free(parts, CARD)
    api.queue(ANNOTATE, lose_request())
    await asyncio.sleep(GRACE_S + 0.01)


async def test_nobody_is_called_again_who_has_come_while_the_api_server_was_away(
    api: ApiServer, parts: OperatorParts
) -> None:
    await called_in_vain(api, parts)
    assert ask(parts, "a")
    await asyncio.sleep(2 * EARMARK_S)
    assert called(api) == ["a"]


async def test_a_pod_whose_room_is_taken_while_its_call_is_lost_is_called_when_there_is_room_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    await called_in_vain(api, parts)
    assert ask(parts, "high", priority=1)
    api.delete_pod("high")
    await parts.idle()
    await asyncio.sleep(2 * GRACE_S)
    assert kept(parts) == ["a"]
    assert called(api) == ["a", "a"]


# What is left, and what it costs.


@pytest.mark.parametrize("room_since_s", [None, 0.0, 2 * GRACE_S])
async def test_a_pod_that_is_gone_leaves_nothing_behind(
    api: ApiServer, parts: OperatorParts, room_since_s: float | None
) -> None:
    """It waits and has asked twice; room is kept for it; it was called."""
    for name in ("a", "a", "large"):
        wait_for_room(parts, name, {GPU: "3"} if name == "large" else WHOLE)
    if room_since_s is not None:
        await free(parts, CARD)
        await asyncio.sleep(room_since_s)
    before = called(api)
    api.delete_pod("a")
    await parts.idle()
    assert (parts.remembered("uid-a"), parts.shares_left("uid-a")) == ([], [])
    await free(parts, SECOND)
    await asyncio.sleep(2 * EARMARK_S)
    assert called(api) == before


async def test_a_pod_that_was_gone_and_is_there_again_waits_as_before(api: ApiServer, parts: OperatorParts) -> None:
    """Etcd was put back to before it went. kube-scheduler has written down that it has tried it."""
    put_refused_pod(api, "a")
    wait_for_room(parts, "a")
    pod = api.pods["default", "a"]
    api.delete_pod("a")
    await parts.idle()
    api.put_pod(pod)
    await parts.idle()
    assert parts.waiting.waiting() == {"uid-a"}
    await free(parts, CARD)
    assert kept(parts) == ["a"]


async def test_nothing_is_compared_while_nothing_changes_and_one_node_per_shape_when_it_does(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        wait_for_room(parts, f"p{number}", TWO_CARDS if number % 2 else WHOLE)
    parts.waiting.give_room()
    compared: list[tuple[int, str]] = []
    asked: list[PodRequest] = []
    fits, best = parts.chooser.fits, parts.chooser.best

    def spied_fits(shape: Shape, node_name: str, work: StepBudget) -> bool:
        compared.append((shape[0].cards, node_name))
        return fits(shape, node_name, work)

    def spied_best(request: PodRequest, node_names: Container[str] | None, work: StepBudget) -> Placement | None:
        asked.append(request)
        return best(request, node_names, work)

    monkeypatch.setattr(parts.chooser, "fits", spied_fits)
    monkeypatch.setattr(parts.chooser, "best", spied_best)
    for _ in range(9):
        parts.waiting.give_room()
    await asyncio.sleep(60.0)
    assert (compared, asked) == ([], [])
    await free(parts, ELSEWHERE)
    assert sorted(compared) == [(1, "node-b"), (2, "node-b")]
    assert asked == [], "nobody who waits can go there"
    await free(parts, CARD)
    assert kept(parts) == ["p0"]
    assert len(asked) == 1, "the first of them gets it, and nothing is left for the others to ask for"


async def test_a_crowd_of_one_namespace_makes_no_turn_long_and_pods_of_others_wait_for_one_turn_at_most(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user can have as many waiting pods as he likes, and no two of them alike."""
    monkeypatch.setattr(wake_up, "TURN_STEPS", 50 * STEPS_OF_A_LOOK)
    monkeypatch.setattr(wake_up, "SHAPES_AT_ONCE", 10)
    crowd = [a_request(mib(1_000 + number, cards=2)) for number in range(300)]
    for number, request in enumerate(crowd):
        pod = Pod(f"uid-{number}", "crowd", f"pod-{number}", priority=7)
        parts.waiting.refused(pod, request, "2030-01-01T00:00:00Z", ["node-a", "node-b"])
    wait_for_room(parts, "alone", OF_MEMORY)
    await asyncio.sleep(60.0)
    turns = [Counter[Shape]()]
    fits, give_room = parts.chooser.fits, parts.waiting.give_room

    def spied_fits(shape: Shape, node_name: str, work: StepBudget) -> bool:
        turns[-1][shape] += 1
        return fits(shape, node_name, work)

    def spied_give_room(before: tuple[int, str] | None = None) -> bool:
        turns.append(Counter())
        return give_room(before)

    monkeypatch.setattr(parts.chooser, "fits", spied_fits)
    monkeypatch.setattr(parts.waiting, "give_room", spied_give_room)
    await free(parts, CARD)
    assert kept(parts) == ["alone"]
    await asyncio.sleep(1.0)
    turns = [turn for turn in turns if turn]
    assert max(turn.total() for turn in turns) <= 52
    assert {shape for turn in turns for shape in turn} >= {request.shape for request in crowd}, "each has its turn"
    first = next(number for number, turn in enumerate(turns) if any(shape[0].cards == 1 for shape in turn))
    assert first <= 1 < len(turns) - 4, "others of a higher priority, who came before, were looked at later"


async def test_where_more_shapes_fit_than_a_turn_has_time_for_the_first_of_them_gets_the_room(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_up, "TURN_STEPS", 20 * STEPS_OF_A_LOOK)
    for number in range(100):
        wait_for_room(parts, f"p{number:02}", {GPU: "1", MEMORY: str(9_000 + number)})
    await asyncio.sleep(60.0)
    await free(parts, CARD)
    await asyncio.sleep(GRACE_S / 2)
    assert kept(parts) == ["p00"]


async def test_an_operator_that_has_just_started_looks_at_some_nodes_a_turn_and_gives_room_when_it_has_seen_all(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows who waits, and has not been asked for anybody: nothing is known of any node."""
    monkeypatch.setattr(wake_up, "TURN_STEPS", LOOKED_AT_A_TIME * STEPS_OF_A_LOOK)
    for number in range(3 * LOOKED_AT_A_TIME):
        parts.ledger.load(stored(a_card(0, f"idle-{number}")))
        parts.ledger.set_offer(f"idle-{number}", OFFER)
    waits = Pod("uid-waits", "default", "waits")
    looks = [parts.chooser.evaluations]
    give_room = parts.waiting.give_room

    def spied(before: tuple[int, str] | None = None) -> bool:
        is_more = give_room(before)
        looks.append(parts.chooser.evaluations)
        return is_more

    monkeypatch.setattr(parts.waiting, "give_room", spied)
    parts.waiting.refused(waits, a_request(mib(1_000)), "2030-01-01T00:00:00Z", None)
    for _ in range(10_000):
        if parts.ledger.seats.of(waits.uid) is None:
            await asyncio.sleep(GRACE_S / 100)
    assert parts.ledger.seats.of(waits.uid) is not None
    assert max(later - earlier for earlier, later in pairwise(looks)) <= 2 * LOOKED_AT_A_TIME
    assert looks[-1] >= 3 * LOOKED_AT_A_TIME
