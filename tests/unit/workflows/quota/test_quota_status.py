"""A ResourceQuota's status says what is used of our keys: in few writes, and in none that changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_share, cards_of
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.model.errors import Denied, Unreachable
from gpuledger.model.share import Holder, Pod
from gpuledger.workflows.quota import DENIED_PAUSE_S, GATHER_S

Json = dict[str, Any]
GPUMEM, GPUS, OF_A100 = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem.A100"
HARD = {GPUMEM: "40000", GPUS: "4", "pods": "10"}
CARD = cards_of("node-a", 1)[0]


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over a card of 16,000 MiB, of which a pod holds 5,000."""
    api.put_card(CARD, Holder(Pod("uid-first", "default", "first"), a_share(CARD, 5_000)))
    api.put_pod(a_pod_object("first", {GPU: "1", MEMORY: "5000"}, node_name="node-a", phase="Running"))
    parts = an_operator(api)
    parts.observer.synced = True
    return parts


def a_quota(hard: Json, used: Json | None = None, name: str = "gpus", namespace: str = "default") -> Json:
    metadata = {"uid": f"uid-of-{name}", "name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"hard": hard}, "status": {"hard": hard, "used": used or {}}}


async def pass_by(parts: OperatorParts) -> None:
    """Let as much time pass as a change takes to be written, and let the watches show it."""
    parts.watch()
    await asyncio.sleep(2 * GATHER_S)
    await parts.workflows.accounting.quota_status.worker.idle()
    parts.watch()


def used(api: ApiServer, name: str = "gpus") -> Json:
    return dict(api.quotas["default", name]["status"]["used"])


def writes(api: ApiServer) -> int:
    return len(api.called(Operation.SHOW_QUOTA))


async def test_our_keys_are_shown_and_those_of_others_left(api: ApiServer, parts: OperatorParts) -> None:
    api.put_quota(a_quota(HARD, {"pods": "1"}))
    await pass_by(parts)
    assert used(api) == {"pods": "1", GPUMEM: "5000", GPUS: "1"}
    assert api.called(Operation.SHOW_QUOTA)[0].body["status"] == {"used": {GPUMEM: "5000", GPUS: "1"}}


async def test_what_changes_within_a_short_time_is_one_write_and_nothing_is_written_again(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_quota(a_quota(HARD))
    await pass_by(parts)
    for number in range(3):
        api.put_pod(a_pod_object(f"pod-{number}", {GPU: "1", MEMORY: "1000"}))
        parts.watch()
        parts.filter(f"pod-{number}", "node-a")
    await pass_by(parts)
    assert used(api) == {GPUMEM: "8000", GPUS: "4"}
    assert writes(api) == 2
    for _ in range(3):
        await pass_by(parts)
    assert writes(api) == 2


async def test_what_comes_and_goes_meanwhile_is_not_written(api: ApiServer, parts: OperatorParts) -> None:
    api.put_quota(a_quota(HARD, {GPUMEM: "5k", GPUS: "1"}))
    api.put_pod(a_pod_object("short", {GPU: "1", MEMORY: "1000"}))
    parts.watch()
    parts.filter("short", "node-a")
    parts.ledger.seats.give_up("uid-short")
    await pass_by(parts)
    assert writes(api) == 0


async def test_what_another_writer_has_removed_is_written_again(api: ApiServer, parts: OperatorParts) -> None:
    api.put_quota(a_quota(HARD))
    await pass_by(parts)
    api.put_quota(a_quota(HARD, {"pods": "2"}))
    await pass_by(parts)
    assert used(api) == {"pods": "2", GPUMEM: "5000", GPUS: "1"}


async def test_a_key_for_a_model_is_shown_by_itself(api: ApiServer, parts: OperatorParts) -> None:
    api.put_quota(a_quota({GPUMEM: "40000", OF_A100: "20000"}))
    await pass_by(parts)
    assert used(api) == {GPUMEM: "5000", OF_A100: "0" if "A100" not in CARD.model else "5000"}


async def test_quotas_of_other_namespaces_and_without_our_keys_are_not_written(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_quota(a_quota({"pods": "10"}, name="native"))
    api.put_quota(a_quota({GPUMEM: "10"}, {GPUMEM: "0"}, name="empty", namespace="other"))
    await pass_by(parts)
    assert writes(api) == 0


async def test_who_is_not_active_writes_nothing_and_whoever_takes_over_does(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.observer.synced = False
    api.put_quota(a_quota(HARD))
    await pass_by(parts)
    assert writes(api) == 0
    parts.observer.synced = True
    parts.workflows.accounting.quota_status.look_again()
    await pass_by(parts)
    assert used(api)[GPUMEM] == "5000"


async def test_a_write_that_fails_is_tried_again_with_what_is_used_then(api: ApiServer, parts: OperatorParts) -> None:
    api.put_quota(a_quota(HARD))
    api.queue(Operation.SHOW_QUOTA, *[refuse(Unreachable("down", 503))] * 3)
    await pass_by(parts)
    assert used(api)[GPUMEM] == "5000"
    assert writes(api) == 4


async def test_without_the_permission_it_is_asked_for_seldom_and_pods_are_placed(
    api: ApiServer, parts: OperatorParts, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        api.put_quota(a_quota(HARD, name=f"quota-{number}"))
    api.queue(Operation.SHOW_QUOTA, *[refuse(Denied("not allowed", 403))] * 4)
    parts.watch()
    await asyncio.sleep(2 * GATHER_S + DENIED_PAUSE_S)
    assert writes(api) == 2
    api.put_pod(a_pod_object("next", {GPU: "1", MEMORY: "1000"}))
    parts.watch()
    assert parts.filter("next", "node-a").node_names
    await asyncio.sleep(10 * DENIED_PAUSE_S)
    assert [used(api, f"quota-{number}")[GPUMEM] for number in range(3)] == ["6000"] * 3
    assert sum("not allowed" in record.message for record in caplog.records) == 1
