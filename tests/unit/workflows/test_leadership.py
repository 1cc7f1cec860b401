"""Of several operators the one beside the scheduler that schedules writes; the others look on, and catch up in turn."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from builders import a_share, cards_of
from fakes.api_server import ApiServer, Operation
from fakes.objects import GPU, SHARE, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import settle
from gpuledger.controller import startup
from gpuledger.model.share import Holder, Pod
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.pending.waiting_pods import GRACE_S

CARDS = cards_of("node-a", 3)
CARD, SECOND, THIRD = CARDS
OURS, THEIRS = "host-a", "host-b"


def lease(host_name: str) -> dict[str, Any]:
    return {"spec": {"holderIdentity": f"{host_name}_0e6f4c" if host_name else ""}}


def test_without_a_host_name_an_operator_is_always_active() -> None:
    assert Leadership(None).is_active()


@pytest.mark.parametrize(
    ("held_by", "gone", "active"),
    [(OURS, False, True), (THEIRS, False, False), ("", False, False), ("host-a_b", False, False), (OURS, True, False)],
)
def test_an_operator_is_active_while_its_own_scheduler_holds_the_lease(held_by: str, gone: bool, active: bool) -> None:
    for before in (OURS, THEIRS):
        leadership = Leadership(OURS)
        leadership.observe(lease(before), gone=False)
        leadership.observe(lease(held_by), gone)
        assert leadership.is_active() == active


async def test_whoever_waits_for_a_change_hears_of_it_and_of_nothing_else() -> None:
    leadership = Leadership(OURS)
    await leadership.wait_passive()
    active = asyncio.create_task(leadership.wait_active())
    leadership.observe(lease(THEIRS), gone=False)
    await settle()
    assert not active.done()
    leadership.observe(lease(OURS), gone=False)
    await active
    passive = asyncio.create_task(leadership.wait_passive())
    leadership.observe(lease(OURS), gone=False)
    await settle()
    assert not passive.done()
    leadership.observe(lease(OURS), gone=True)
    await passive


# A whole operator.


@pytest.fixture
async def parts(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Return an operator that runs and looks on, with a write of every kind to be done."""
    ended = Pod("uid-ended", "default", "ended")
    api.put_node(a_node_object("node-a", CARDS[:2]))
    api.put_card(CARD, Holder(ended, a_share(CARD), attempt="first"))
    api.put_pod(a_pod_object("ended", node_name="node-a", phase="Succeeded"))
    put_refused_pod(api, "waits")
    parts = OperatorParts(api, leadership=Leadership(OURS))
    operator = parts.as_operator()
    running = [asyncio.create_task(startup._keep_in_sync(operator)), asyncio.create_task(startup._give_room(operator))]
    await live(parts, 1_000.0)
    yield parts
    for task in running:
        task.cancel()


def put_refused_pod(api: ApiServer, name: str, limits: Mapping[str, object] = SHARE) -> None:
    pod = a_pod_object(name, limits)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    api.put_pod(pod)


def called(api: ApiServer) -> list[str]:
    """Return the pods that were patched so that kube-scheduler tries them."""
    return [call.path.rsplit("/", 1)[1] for call in api.called(Operation.ANNOTATE)]


async def live(parts: OperatorParts, seconds: float) -> None:
    """Let time pass, and the watches show what happens."""
    for _ in range(10):
        parts.watch()
        await asyncio.sleep(seconds / 10)


async def test_an_operator_that_looks_on_writes_nothing(api: ApiServer, parts: OperatorParts) -> None:
    assert parts.observer.synced
    assert api.writes() == []


async def test_an_operator_that_becomes_active_catches_up_with_everything(api: ApiServer, parts: OperatorParts) -> None:
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, 10 * GRACE_S)
    assert {api.card(card).phase for card in CARDS[:2]} == {"Ready"}
    assert api.holders_of(CARD) == []
    assert called(api) == ["waits"]


async def test_an_operator_that_is_active_no_more_leaves_what_comes_then_to_the_others(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, 20.0)
    parts.leadership.observe(lease(THEIRS), gone=False)
    written = api.writes()
    api.put_node(a_node_object("node-a", CARDS))
    api.put_card(SECOND, Holder(Pod("uid-gone", "default", "gone"), a_share(SECOND), attempt="first"))
    put_refused_pod(api, "waits-too")
    await live(parts, 1_000.0)
    assert api.writes() == written
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, 100.0)
    assert api.card(THIRD).phase == "Ready"
    assert api.holders_of(SECOND) == []


async def test_an_operator_that_is_active_no_more_calls_nobody_until_it_is_active_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    put_refused_pod(api, "large", {GPU: "3"})
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, 20.0)
    parts.leadership.observe(lease(THEIRS), gone=False)
    api.put_node(a_node_object("node-a", CARDS))
    api.put_card(THIRD)
    await live(parts, 100.0)
    assert called(api) == ["waits"]
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, 10.0)
    assert "large" in called(api)


async def test_an_operator_that_is_active_no_more_keeps_no_room_for_those_it_was_about_to_call(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.leadership.observe(lease(OURS), gone=False)
    await live(parts, GRACE_S / 2)
    assert parts.ledger.seats.of("uid-waits")
    parts.leadership.observe(lease(THEIRS), gone=False)
    await live(parts, 10 * GRACE_S)
    assert called(api) == []
    assert parts.ledger.seats.of("uid-waits") is None


async def test_a_passive_operator_compares_with_full_lists_after_a_gap_of_a_watch(api: ApiServer) -> None:
    """What was deleted in the gap is in no event."""
    parts = OperatorParts(api, leadership=Leadership(OURS))
    api.put_pod(a_pod_object("gone", node_name="node-a", limits=SHARE))
    operator = parts.as_operator()
    running = asyncio.create_task(startup._keep_in_sync(operator))
    await asyncio.sleep(1)
    assert parts.lives.known_bound() == {"uid-gone"}
    api.delete_pod("gone")
    await asyncio.sleep(1_000)
    assert parts.lives.known_bound() == {"uid-gone"}
    operator.lists.again.set()
    await asyncio.sleep(10)
    assert parts.lives.known_bound() == set()
    assert api.writes() == []
    running.cancel()
