"""Nodes whose cards are held are kept from autoscalers: one write when they fill, and one after they are empty."""

from __future__ import annotations

import asyncio

import pytest

from builders import a_share, cards_of
from fakes.api_server import ApiServer, Operation, lose_answer, refuse
from fakes.objects import a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from gpuledger.formats.kubernetes.kept_node import CLUSTER_AUTOSCALER, KARPENTER, KEEPING, KEPT_ANNOTATION
from gpuledger.model.errors import Conflict, Denied, Unreachable
from gpuledger.model.share import Holder, Pod
from gpuledger.workflows.kept_nodes import DENIED_PAUSE_S, EMPTY_S
from gpuledger.workflows.leadership import Leadership

CARDS = cards_of("node-a", 2)
FIRST, SECOND = (Holder(Pod(f"uid-{name}", "default", name), a_share(CARDS[0], 1_000)) for name in ("a", "b"))
WRITTEN_S = 1.0
"""Longer than a write takes, and its pause."""


def an_operator(api: ApiServer, *, keeps: bool = True, leadership: Leadership | None = None) -> OperatorParts:
    """Return an operator that has just become active and read everything, or the next one after a restart."""
    parts = OperatorParts(api, keep_nodes_in_use=keeps, leadership=leadership or Leadership(None))
    parts.read_cards()
    for node in api.nodes.values():
        parts.observer.node(node, gone=False)
    parts.watch()
    parts.observer.synced = True
    for follower in parts.observer.followers:
        follower.became_active()
    return parts


@pytest.fixture
def api() -> ApiServer:
    """Return an API server with a node of two cards, which nobody holds."""
    api = ApiServer()
    for card in CARDS:
        api.put_card(card)
    api.put_node(a_node_object("node-a", CARDS))
    for name in ("a", "b"):
        api.put_pod(a_pod_object(name, node_name="node-a", phase="Running"))
    return api


def kept(api: ApiServer) -> dict[str, str]:
    found = api.nodes["node-a"]["metadata"]["annotations"]
    return {name: found[name] for name in (*KEEPING, KEPT_ANNOTATION) if name in found}


def writes(api: ApiServer) -> int:
    return len(api.called(Operation.ANNOTATE_NODE))


async def hold(api: ApiServer, parts: OperatorParts, *holders: Holder, wait_s: float = WRITTEN_S) -> None:
    """Let a card have these holders, and so much time pass."""
    api.put_card(CARDS[0], *holders)
    parts.watch()
    await asyncio.sleep(wait_s)
    parts.watch()


KEPT = {CLUSTER_AUTOSCALER: "true", KARPENTER: "true", KEPT_ANNOTATION: f"{CLUSTER_AUTOSCALER},{KARPENTER}"}


async def test_the_first_holder_and_the_last_cause_one_write_each_and_no_other_does(api: ApiServer) -> None:
    parts = an_operator(api)
    await hold(api, parts)
    assert writes(api) == 0
    for holders in ((FIRST,), (FIRST, SECOND), (SECOND,)):
        await hold(api, parts, *holders)
        assert kept(api) == KEPT
        assert writes(api) == 1
    await hold(api, parts, wait_s=EMPTY_S - WRITTEN_S)
    assert (kept(api), writes(api)) == (KEPT, 1)
    await asyncio.sleep(2 * WRITTEN_S)
    assert (kept(api), writes(api)) == ({}, 2)


async def test_a_node_between_two_pods_is_not_written(api: ApiServer) -> None:
    parts = an_operator(api)
    for _ in range(5):
        await hold(api, parts, FIRST)
        await hold(api, parts, wait_s=EMPTY_S * 0.9)
    assert (kept(api), writes(api)) == (KEPT, 1)
    await asyncio.sleep(EMPTY_S)
    assert writes(api) == 2


async def test_with_the_setting_off_nothing_is_written_and_what_is_there_is_taken_away(api: ApiServer) -> None:
    await hold(api, an_operator(api), FIRST)
    assert kept(api) == KEPT
    without = an_operator(api, keeps=False)
    await hold(api, without, FIRST)
    assert kept(api) == {}
    for holders in ((FIRST,), (), (SECOND,)):
        await hold(api, without, *holders, wait_s=EMPTY_S)
    assert writes(api) == 2


async def test_what_a_person_has_written_stays(api: ApiServer) -> None:
    node = a_node_object("node-a", CARDS)
    node["metadata"]["annotations"][KARPENTER] = "true"
    api.put_node(node)
    parts = an_operator(api)
    await hold(api, parts, FIRST)
    assert kept(api) == {**KEPT, KEPT_ANNOTATION: CLUSTER_AUTOSCALER}
    await hold(api, parts, wait_s=EMPTY_S + WRITTEN_S)
    assert kept(api) == {KARPENTER: "true"}


async def test_a_new_operator_writes_what_the_last_one_has_left_undone_and_nothing_twice(api: ApiServer) -> None:
    api.put_card(CARDS[0], FIRST)
    first = an_operator(api)
    await asyncio.sleep(WRITTEN_S)
    again = an_operator(api)
    await hold(api, again, FIRST)
    assert (kept(api), writes(api)) == (KEPT, 1)
    await hold(api, again)
    await first.workflows.context.tasks.stop()
    await again.workflows.context.tasks.stop()  # before the node is let go
    third = an_operator(api)
    await asyncio.sleep(EMPTY_S + WRITTEN_S)
    third.watch()
    assert (kept(api), writes(api)) == ({}, 2)


async def test_only_the_active_replica_writes(api: ApiServer) -> None:
    passive = Leadership("host")
    parts = an_operator(api, leadership=passive)
    await hold(api, parts, FIRST)
    assert writes(api) == 0
    passive.observe({"spec": {"holderIdentity": "host_1"}}, gone=False)
    for follower in parts.observer.followers:
        follower.became_active()
    await asyncio.sleep(WRITTEN_S)
    assert kept(api) == KEPT


async def test_a_write_that_fails_is_tried_again_from_what_the_node_is_then(api: ApiServer) -> None:
    parts = an_operator(api)
    failures = refuse(Conflict("the node has changed", 409)), refuse(Unreachable("down", 503)), lose_answer()
    api.queue(Operation.ANNOTATE_NODE, *failures)
    await hold(api, parts, FIRST, wait_s=5.0)
    assert kept(api) == KEPT
    assert writes(api) == 3  # the last of these was carried out, as the next look at the node shows


async def test_without_the_permission_it_is_asked_for_seldom_and_said_once(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    parts = an_operator(api)
    api.queue(Operation.ANNOTATE_NODE, *[refuse(Denied("not allowed", 403))] * 2)
    await hold(api, parts, FIRST, wait_s=DENIED_PAUSE_S * 1.5)
    assert writes(api) == 2
    await asyncio.sleep(DENIED_PAUSE_S)
    assert kept(api) == KEPT
    assert sum("not allowed" in record.message for record in caplog.records) == 1


async def test_a_node_that_is_gone_is_forgotten(api: ApiServer) -> None:
    parts = an_operator(api)
    await hold(api, parts, FIRST)
    await hold(api, parts)
    api.delete_node("node-a")
    parts.watch()
    await asyncio.sleep(2 * EMPTY_S)
    assert writes(api) == 1
