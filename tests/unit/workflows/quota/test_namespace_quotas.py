"""A namespace's pods get no more of the cards than its quota says together, and all that it says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer
from fakes.counters import by_label
from fakes.objects import CORES, GPU, MEMORY, PERCENTAGE, a_pod_object
from fakes.operator_parts import RELEASE_DELAY_S, OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.model.errors import BindFailed, Reason
from gpuledger.workflows.pending.waiting_pods import GRACE_S, GROUPS_AT_ONCE

Json = dict[str, Any]
LARGE, SMALL = cards_of("node-a", 4), cards_of("node-b", 2, memory_mib=8_000)
GPUMEM, GPUS, GPUCORES = (f"limits.nvidia.com/{name}" for name in ("gpumem", "gpu", "gpucores"))


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over four cards of 16,000 MiB on one node, and two of 8,000 on another."""
    for card in (*LARGE, *SMALL):
        api.put_card(card)
    return an_operator(api)


def set_quota(parts: OperatorParts, hard: Mapping[str, object], name: str = "gpus", namespace: str = "default") -> None:
    metadata = {"uid": f"uid-of-{name}", "name": name, "namespace": namespace}
    parts.workflows.quotas.observe({"metadata": metadata, "spec": {"hard": dict(hard)}}, gone=False)


def come(api: ApiServer, parts: OperatorParts, name: str, limits: Mapping[str, str], **more: Any) -> bool:
    """Create a pod, and ask for it; return whether it gets cards."""
    api.put_pod(a_pod_object(name, limits, **more))
    parts.watch()
    return asks(parts, name)


def asks(parts: OperatorParts, name: str, *nodes: str) -> bool:
    return bool(parts.filter(name, *(nodes or ("node-a", "node-b"))).node_names)


async def bind(parts: OperatorParts, name: str) -> None:
    hold = parts.ledger.seats.of(f"uid-{name}")
    assert hold is not None
    await parts.bind_watching(name, hold.placement.node_name)


async def ends(api: ApiServer, parts: OperatorParts, name: str) -> None:
    api.delete_pod(name)
    parts.watch()
    await asyncio.sleep(2 * RELEASE_DELAY_S)
    await parts.idle()


async def look(parts: OperatorParts) -> None:
    while await parts.workflows.queue.give_room():
        pass
    await asyncio.sleep(2 * GRACE_S)
    await settle()


def woken(api: ApiServer) -> list[str]:
    pods = {name: pod["metadata"].get("annotations") or {} for (_, name), pod in api.pods.items()}
    return [name for name, annotations in pods.items() if WOKEN_ANNOTATION in annotations]


async def test_what_is_on_hold_counts_and_what_is_held_and_the_last_mib_can_be_had(
    api: ApiServer, parts: OperatorParts
) -> None:
    set_quota(parts, {GPUMEM: "10000"})
    assert come(api, parts, "a", {GPU: "1", MEMORY: "6000"})
    assert not come(api, parts, "b", {GPU: "1", MEMORY: "4001"})
    assert come(api, parts, "c", {GPU: "2", MEMORY: "2000"})
    await bind(parts, "a")
    await bind(parts, "c")
    parts.watch()
    assert not come(api, parts, "d", {GPU: "1", MEMORY: "1"})
    assert by_label(parts.counts.refusals) == {"quota": 2}


async def test_who_is_refused_is_told_which_limit_of_which_quota(api: ApiServer, parts: OperatorParts) -> None:
    set_quota(parts, {GPUMEM: "3000"})
    api.put_pod(a_pod_object("a", {GPU: "1", MEMORY: "4000"}))
    parts.watch()
    (text,) = set(parts.filter("a", "node-a").refused.values())
    assert text == (
        "the quota of the pod's namespace does not allow it: limits.nvidia.com/gpumem of ResourceQuota gpus is 3,000 "
        "in all, and it asks for 4,000"
    )
    found = await parts.explainer.explain("default", "a")
    assert found.reason == "quota"
    assert found.summary == (
        "asks for 4,000 MiB, more than namespace default may have in all (limits.nvidia.com/gpumem of ResourceQuota "
        "gpus): ask for at most 3,000"
    )
    assert found.quota is not None
    assert (found.quota["never"], found.quota["asked"], found.quota["left"]) == (True, 4_000, 3_000)
    assert {node.reason for node in found.nodes} == {Reason.QUOTA}, "none of them takes it, though they have room"
    assert [report.main_reason for report in parts.why_waiting.reports()] == ["quota"]


async def test_who_has_to_wait_is_told_what_is_left_and_who_has_the_most(api: ApiServer, parts: OperatorParts) -> None:
    set_quota(parts, {GPUMEM: "9000"})
    for name, memory_mib in (("small", 1_000), ("large", 4_000), ("larger", 3_000)):
        assert come(api, parts, name, {GPU: "1", MEMORY: str(memory_mib)})
        await bind(parts, name)
    assert not come(api, parts, "late", {GPU: "1", MEMORY: "2000"})
    (text,) = set(parts.filter("late", "node-a").refused.values())
    assert text == "the quota of the pod's namespace does not allow it: limits.nvidia.com/gpumem of ResourceQuota gpus"
    asks_for = (
        "asks for 2,000 MiB, and namespace default has 1,000 of 9,000 MiB left (limits.nvidia.com/gpumem of "
        "ResourceQuota gpus); most is held by large 4,000, larger 3,000, small 1,000"
    )
    assert (await parts.explainer.explain("default", "late")).summary == asks_for
    api.delete_pod("large")
    parts.watch()
    await asyncio.sleep(RELEASE_DELAY_S / 2)
    found = await parts.explainer.explain("default", "late")
    assert found.summary == f"{asks_for}; 4,000 are about to be free: their pods have ended"


async def test_what_depends_on_the_card_is_told_of_the_cards_that_would_do(
    api: ApiServer, parts: OperatorParts
) -> None:
    """The smallest whole card has 8,000 MiB."""
    set_quota(parts, {GPUMEM: "7000"})
    assert not come(api, parts, "whole", {GPU: "1"})
    (text,) = set(parts.filter("whole", "node-a", "node-b").refused.values())
    assert text.endswith("is 7,000 in all, and it asks for 8,000")
    found = await parts.explainer.explain("default", "whole")
    assert found.summary.startswith("asks for 8,000 MiB, more than namespace default may have in all")
    set_quota(parts, {GPUMEM: "9000"})
    assert come(api, parts, "part", {GPU: "1", MEMORY: "2000"})
    assert not asks(parts, "whole")
    found = await parts.explainer.explain("default", "whole")
    assert found.summary.startswith("asks for 8,000 MiB, and namespace default has 7,000 of 9,000 MiB left")


async def test_pods_of_other_namespaces_and_of_none_with_a_quota_are_not_limited(
    api: ApiServer, parts: OperatorParts
) -> None:
    set_quota(parts, {GPUMEM: "1"}, namespace="other")
    assert come(api, parts, "a", {GPU: "1", MEMORY: "4000"})


@pytest.mark.parametrize(
    ("hard", "fits", "not_any_more"),
    [
        ({GPUS: "2"}, {GPU: "2"}, {GPU: "1", MEMORY: "1"}),
        ({GPUCORES: "130"}, {GPU: "1", MEMORY: "10", CORES: "60"}, {GPU: "1", MEMORY: "10", CORES: "71"}),
        ({GPUMEM: "16000"}, {GPU: "1", PERCENTAGE: "50"}, {GPU: "2", PERCENTAGE: "60"}),
        ({GPUCORES: "100"}, {GPU: "1"}, {GPU: "1", MEMORY: "1", CORES: "1"}),
    ],
)
async def test_slots_cores_percentages_and_whole_cards_count(
    api: ApiServer, parts: OperatorParts, hard: Json, fits: Json, not_any_more: Json
) -> None:
    set_quota(parts, hard)
    assert come(api, parts, "a", fits)
    assert not come(api, parts, "b", not_any_more)


async def test_a_whole_card_that_is_too_large_leaves_a_smaller_one_to_be_had(
    api: ApiServer, parts: OperatorParts
) -> None:
    set_quota(parts, {GPUMEM: "10000"})
    assert come(api, parts, "a", {GPU: "1"})
    hold = parts.ledger.seats.of("uid-a")
    assert hold is not None
    assert {placement.node_name for placement in hold.placements} == {"node-b"}
    assert not come(api, parts, "b", {GPU: "1"})


async def test_who_waits_is_woken_in_its_order_as_soon_as_a_share_is_released(
    api: ApiServer, parts: OperatorParts
) -> None:
    set_quota(parts, {GPUMEM: "6000"})
    assert come(api, parts, "a", {GPU: "1", MEMORY: "6000"})
    await bind(parts, "a")
    for name, memory in (("b", "4000"), ("c", "4000"), ("d", "2000")):
        assert not come(api, parts, name, {GPU: "1", MEMORY: memory}, created=f"2030-01-01T00:00:0{ord(name) - 97}Z")
    await look(parts)
    assert woken(api) == []
    await ends(api, parts, "a")
    await look(parts)
    assert woken(api) == ["b", "d"]
    assert [asks(parts, name) for name in "bcd"] == [True, False, True]


@pytest.mark.parametrize("memory", ["4000", "5000"])
@pytest.mark.parametrize("number", [1, 3 * GROUPS_AT_ONCE])
async def test_who_finds_no_cards_within_the_quota_does_not_keep_it_from_the_next_pod(
    api: ApiServer, parts: OperatorParts, memory: str, number: int
) -> None:
    """Each could have what the quota leaves, and none that is first finds it on the nodes where it can go."""
    set_quota(parts, {GPUMEM: "6000"})
    assert come(api, parts, "a", {GPU: "1", MEMORY: "6000"})
    await bind(parts, "a")
    for each in range(number):
        api.put_pod(a_pod_object(f"b-{each}", {GPU: "1", MEMORY: memory}, created="2030-01-01T00:00:00Z"))
        parts.watch()
        assert not asks(parts, f"b-{each}", f"node-without-cards-{each}")
    assert not come(api, parts, "c", {GPU: "1", MEMORY: "4000"}, created="2030-01-01T00:00:01Z")
    assert not come(api, parts, "d", {GPU: "1", MEMORY: "4000"}, created="2030-01-01T00:00:02Z")
    await ends(api, parts, "a")
    await look(parts)
    assert woken(api) == ["c"]
    assert [report.main_reason for report in parts.why_waiting.reports()].count("quota") == 1


async def test_a_quota_that_is_raised_or_deleted_wakes_who_waits(api: ApiServer, parts: OperatorParts) -> None:
    set_quota(parts, {GPUS: "0"})
    for name in "abc":
        assert not come(api, parts, name, {GPU: "1"})
    set_quota(parts, {GPUS: "1"})
    await look(parts)
    assert len(woken(api)) == 1
    parts.workflows.quotas.listing()(set())
    await look(parts)
    assert woken(api) == ["a", "b", "c"]


async def test_a_quota_below_what_is_used_keeps_new_pods_out_and_nobody_else(
    api: ApiServer, parts: OperatorParts
) -> None:
    assert come(api, parts, "a", {GPU: "1", MEMORY: "6000"})
    await bind(parts, "a")
    set_quota(parts, {GPUMEM: "1000"})
    parts.watch()
    assert parts.shares_left("uid-a")
    assert not come(api, parts, "b", {GPU: "1", MEMORY: "10"})


async def test_a_pod_whose_cards_are_chosen_is_not_bound_when_its_quota_has_become_less(
    api: ApiServer, parts: OperatorParts
) -> None:
    assert come(api, parts, "a", {GPU: "1", MEMORY: "6000"})
    set_quota(parts, {GPUMEM: "1000"})
    with pytest.raises(BindFailed, match="quota"):
        await bind(parts, "a")
    await parts.idle()
    assert not parts.shares_left("uid-a")


async def test_all_quotas_of_a_namespace_count(api: ApiServer, parts: OperatorParts) -> None:
    set_quota(parts, {GPUMEM: "9000"}, "memory")
    set_quota(parts, {GPUS: "1"}, "cards")
    assert come(api, parts, "a", {GPU: "1", MEMORY: "10"})
    assert not come(api, parts, "b", {GPU: "1", MEMORY: "10"})


async def test_a_key_that_can_not_be_read_is_counted_once(api: ApiServer, parts: OperatorParts) -> None:
    for _ in range(3):
        set_quota(parts, {GPUMEM: "40Gi"})
    assert by_label(parts.counts.bad_input) == {"resourcequota": 1}
    assert come(api, parts, "a", {GPU: "1"})


async def test_a_gang_that_exceeds_the_quota_as_a_whole_keeps_nothing_and_starts_when_it_may(
    api: ApiServer, parts: OperatorParts
) -> None:
    set_quota(parts, {GPUS: "2"})
    for name in "abc":
        pod = a_pod_object(name, {GPU: "1"})
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "3"}
        api.put_pod(pod)
    parts.watch()
    assert not any(asks(parts, name) for name in "abc")
    assert not any(parts.ledger.seats.of(f"uid-{name}") for name in "abc")
    found = (await parts.workflows.explainer.gangs.explain("default", "train")).json()
    assert found["summary"] == (
        "gang train asks for 3 cards or parts of cards, more than namespace default may have in all "
        "(limits.nvidia.com/gpu of ResourceQuota gpus): ask for at most 2"
    )
    assert found["quota"]["never"]
    assert found["members"]["fitsOn"] == []
    assert {each["state"] for each in found["members"]["pods"]} == {"waiting"}, "cards are not what they lack"
    member = await parts.explainer.explain("default", "a")
    assert (member.summary, member.quota) == (found["summary"], found["quota"])
    (text,) = set(parts.filter("a", "node-a").refused.values())
    assert text.endswith("limits.nvidia.com/gpu of ResourceQuota gpus is 2 in all, and it asks for 3")
    for _ in range(5):
        await look(parts)
    parts.workflows.context.room_has_changed.clear()
    await asyncio.sleep(10)
    assert not parts.workflows.context.room_has_changed.is_set()  # in a cluster at rest nothing runs
    set_quota(parts, {GPUS: "3"})
    await look(parts)
    assert all(asks(parts, name) for name in "abc")
