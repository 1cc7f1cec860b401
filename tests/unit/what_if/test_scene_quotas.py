"""What namespaces may have together keeps `gpuledger simulate` to fewer pods than there is room for."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_holder, a_share, cards_of
from fakes.api_server import ApiServer
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.scenes import NODE_A, FakeReads, answered, shown
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.what_if.gangs import GangStatus

Json = dict[str, Any]
GPUMEM, GPUS = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpu"
CARD_MIB = 16_000


def a_quota(hard: Json, namespace: str = "") -> Json:
    metadata = {"name": "gpus", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def statuses(found: Json) -> list[str]:
    return [pod["status"] for pod in found["pods"]]


def reasons(found: Json, name: str) -> list[str]:
    return [each["reason"] for pod in found["pods"] if pod["pod"] == name for each in pod["reasons"]]


@pytest.mark.parametrize("order", [1, -1])
def test_pods_are_placed_until_their_namespace_has_what_it_may(order: int) -> None:
    pods = [a_pod_object(name, {GPU: "1", MEMORY: "1000"}) for name in "abc"]
    found = shown(*[NODE_A, a_quota({GPUMEM: "2500", "pods": "1"}), *pods][::order])
    assert statuses(found) == ["placed", "placed", "no-room"]
    assert [each["reason"] for each in found["pods"][2]["reasons"]] == ["quota"]
    assert "gpumem of ResourceQuota gpus" in found["pods"][2]["reasons"][0]["text"]


def test_whole_cards_count_with_their_memory_and_other_namespaces_not() -> None:
    pods = [a_pod_object(name, {GPU: "1"}) for name in "ab"]
    assert statuses(shown(NODE_A, a_quota({GPUMEM: str(2 * CARD_MIB - 1)}), *pods)) == ["placed", "no-room"]
    assert statuses(shown(NODE_A, a_quota({GPUMEM: "0"}, "elsewhere"), *pods)) == ["placed", "placed"]


def test_a_bound_pod_stays_whatever_it_may_have_and_counts() -> None:
    card = cards_of("node-a", 2)[0]
    told = f'{{"main":[{{"uuid":"{card.uuid}","memoryMiB":4000,"cores":0}}]}}'
    bound = a_pod_object("bound", {GPU: "1", MEMORY: "4000"}, node_name="node-a")
    bound["metadata"]["annotations"] = {"gpuledger.dev/devices": told}
    found = shown(NODE_A, a_quota({GPUMEM: "3000"}), bound, a_pod_object("new", {GPU: "1", MEMORY: "1"}))
    assert statuses(found) == ["bound", "no-room"]
    assert reasons(found, "default/new") == ["quota"]


def test_a_gang_that_is_too_much_as_a_whole_is_not_placed_and_the_quota_is_why() -> None:
    members = [a_pod_object(f"m{number}", {GPU: "1", MEMORY: "1000"}) for number in range(3)]
    for each in members:
        each["metadata"]["labels"] = {GANG_LABEL: "train", MINIMUM_LABEL: "3"}
    found = shown(NODE_A, a_quota({GPUS: "2"}), *members, a_pod_object("single", {GPU: "1", MEMORY: "1000"}))
    assert statuses(found) == ["no-room"] * 3 + ["placed"]
    [gang] = found["gangs"]
    assert (gang["status"], gang["membersWithRoom"]) == (GangStatus.NO_ROOM, 2)
    assert [each["reason"] for each in gang["reasons"]] == ["quota"]


@pytest.mark.parametrize("hard", [{GPUMEM: "a lot"}, {GPUMEM: "1.5"}])
def test_an_amount_that_cannot_be_read_is_named_and_limits_nothing(hard: Json) -> None:
    found = shown(NODE_A, a_quota(hard), a_pod_object("a", {GPU: "1"}))
    assert statuses(found) == ["placed"]
    [problem] = found["problems"]
    assert GPUMEM in str(problem)


@pytest.mark.parametrize("spec", [{"hard": ["x"]}, "x"])
def test_a_quota_that_is_none_is_named(spec: object) -> None:
    found = shown(NODE_A, {**a_quota({}), "spec": spec}, a_pod_object("a", {GPU: "1"}))
    assert statuses(found) == ["placed"]
    assert len(found["problems"]) == 1


async def test_the_quotas_of_a_cluster_count_what_its_ledger_has() -> None:
    api = ApiServer()
    first, second = cards_of("node-a", 2)
    api.put_card(first, a_holder("holder", a_share(first, 10_000)))
    api.put_card(second)
    running = [a_pod_object("holder", {GPU: "1", MEMORY: "10000"}, uid="holder", node_name="node-a")]
    pending = [a_pod_object("small", {GPU: "1", MEMORY: "2000"}), a_pod_object("large", {GPU: "1", MEMORY: "3000"})]
    quota = a_quota({GPUMEM: "12000"}, "default")
    reads = FakeReads([NODE_A], list(api.cards.values()), running, pending, quotas=[quota])
    found = await answered(reads, add_nodes=1, like="node-a")
    assert {each.pod: each.node_name != "" for each in found.pods} == {
        "default/small": True,
        "default/large": False,
    }
    assert (found.before and found.before.fit, found.fit) == (1, 1)


async def test_who_may_not_read_quotas_is_told_that_they_do_not_count() -> None:
    api = ApiServer()
    api.put_card(cards_of("node-a", 1)[0])
    reads = FakeReads([NODE_A], list(api.cards.values()), [], [a_pod_object("a", {GPU: "1"})], quotas=None)
    found = await answered(reads)
    assert found.fit == 1
    assert ["quotas" in note.text for note in found.notes] == [True]
