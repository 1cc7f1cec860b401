"""A pod that waits is told why: late, once for each reason, and what is no longer so is put right."""

import asyncio

import pytest

from builders import a_holder, cards_of, whole_share
from fakes.api_server import ApiServer, Json, Operation
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import TELL_WAITING_AFTER_S, OperatorParts, an_operator
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of
from gpuledger.workflows.pending.pod_condition import PAUSE_S, WRITE_PAUSE_S

CARDS = cards_of("node-a", 2)
WHOLE = {GPU: "1"}
SET = Operation.CHANGE_STATUS


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator that knows a node on whose two cards others are."""
    for card in CARDS:
        api.put_card(card, a_holder(f"tenant-{card.index}", whole_share(card)))
    return an_operator(api)


def ask(parts: OperatorParts, name: str = "a", limits: Json = WHOLE) -> bool:
    if ("default", name) not in parts.api.pods:
        parts.api.put_pod(a_pod_object(name, limits))
    return bool(parts.filter(name, "node-a").node_names)


def told(parts: OperatorParts, name: str = "a") -> tuple[str, str] | None:
    condition = condition_of(parts.api.pods["default", name], ALLOCATED)
    return (condition["status"], condition["reason"]) if condition else None


async def let_pass(parts: OperatorParts, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await parts.pod_condition_writer.worker.idle()


async def test_who_has_waited_for_a_while_is_told_the_reason_with_the_numbers_of_now(parts: OperatorParts) -> None:
    assert not ask(parts)
    await let_pass(parts, TELL_WAITING_AFTER_S - 1)
    assert told(parts) is None
    await let_pass(parts, 2)
    assert told(parts) == ("False", "NoWholeCard")
    condition = condition_of(parts.api.pods["default", "a"], ALLOCATED)
    assert condition is not None
    assert condition["message"] == (
        "0 of 1 GPU nodes take it: no card entirely free (1). "
        "node-a would fit once 1 pod has left GPU-node-a-0 (index 0)"
    )
    assert [(uid, reason, key) for uid, reason, _, key in parts.told_once] == [("uid-a", "GPUWaiting", "NoWholeCard")]


async def test_asking_again_for_the_same_reason_writes_nothing(parts: OperatorParts) -> None:
    ask(parts)
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    for _ in range(50):
        ask(parts)
        await let_pass(parts, PAUSE_S)
    assert len(parts.api.called(SET)) == 1
    assert len(parts.told_once) == 1


async def test_another_reason_is_told_but_not_more_often_than_once_in_a_pause(parts: OperatorParts) -> None:
    ask(parts)
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    for ready in (False, True) * 5:
        parts.ledger.set_offer("node-a", parts.ledger.offer("node-a") if ready else None)
        ask(parts)
        await let_pass(parts, 1)
    assert len(parts.api.called(SET)) == 1
    await let_pass(parts, PAUSE_S)
    assert told(parts) == ("False", "AgentNotReady")
    assert len(parts.api.called(SET)) == 2


async def test_who_is_bound_soon_is_never_written_to(parts: OperatorParts) -> None:
    ask(parts)
    parts.api.put_card(CARDS[0])
    parts.watch()
    assert ask(parts)
    await parts.bind("a", "node-a")
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    assert parts.api.called(SET) == []


@pytest.mark.parametrize("restart", [False, True])
async def test_who_was_told_and_is_bound_is_told_so_by_another_operator_too(
    parts: OperatorParts, restart: bool
) -> None:
    ask(parts)
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    parts.api.put_card(CARDS[0])
    if restart:
        await parts.pod_condition_writer.stop()
        parts = an_operator(parts.api)
    parts.watch()
    assert ask(parts)
    await parts.bind("a", "node-a")
    parts.watch()
    await let_pass(parts, 1)
    assert told(parts) == ("True", "Assigned")
    await let_pass(parts, 2 * PAUSE_S)
    assert len(parts.api.called(SET)) == 2


async def test_of_a_pod_that_is_gone_nothing_is_remembered(parts: OperatorParts) -> None:
    ask(parts)
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    parts.api.delete_pod("a")
    parts.watch()
    await let_pass(parts, PAUSE_S)
    kept = vars(parts.pod_condition_writer).items()
    assert [name for name, value in kept if isinstance(value, dict) and "uid-a" in value] == []


async def test_another_pod_of_the_same_name_is_not_told(parts: OperatorParts) -> None:
    ask(parts)
    parts.api.delete_pod("a")
    parts.api.put_pod(a_pod_object("a", WHOLE, uid="another"))
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    assert told(parts) is None


async def test_what_kube_scheduler_sees_first_can_be_another_reason_of_many(parts: OperatorParts) -> None:
    """The condition names the reason that most nodes give, not the first node's."""
    ask(parts, "b", {GPU: "1", MEMORY: "17k"})
    await let_pass(parts, TELL_WAITING_AFTER_S + 1)
    assert told(parts, "b") == ("False", "CardTooSmall")


async def test_hundreds_are_told_one_after_the_other(parts: OperatorParts) -> None:
    names = [f"pod-{number}" for number in range(100)]
    for name in names:
        ask(parts, name)
    await asyncio.sleep(TELL_WAITING_AFTER_S + 1)
    first_second = len(parts.api.called(SET))
    assert 10 <= first_second <= 1 / WRITE_PAUSE_S + 1
    await let_pass(parts, 10)
    assert all(told(parts, name) == ("False", "NoWholeCard") for name in names)
    assert parts.api.most_in_flight[SET] == 1
