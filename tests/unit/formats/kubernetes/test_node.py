"""A node's register: every card that can be read is read, and each that can't be is told of in a sentence."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from builders import a_card, cards_of
from fakes.dialects import CLASSIC_COUNT, VOLCANO_COUNT
from fakes.objects import COUNTS, DIALECTS, GPU, a_node_object
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.custom_resource.gpu_allocation import CardSpec, card_spec
from gpuledger.formats.kubernetes.node import (
    REGISTER_ANNOTATION,
    Inventory,
    NodeFacts,
    node_facts,
    read_registers,
    register_of,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.model.request import HostAmounts

CARDS = cards_of("node-a", 2)


def read(*items: Any) -> Inventory:
    return read_registers(facts(orjson.dumps(items).decode()))


def facts(register: str | None) -> NodeFacts:
    node = a_node_object("node-a", register=register or "")
    if register is None:
        node["metadata"]["annotations"] = {}
    return node_facts(node, DIALECTS)


def item(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"uuid": f"GPU-{index}", "index": index, "memoryMiB": 16_000, **fields}


def test_the_facts_are_name_register_and_offer() -> None:
    found = node_facts(a_node_object("node-a", CARDS, slots=20), DIALECTS)
    assert (found.name, [text for _, text in found.registers]) == ("node-a", [register_of(CARDS)])
    assert found.offer == NodeOffer(Dialect.NATIVE, frozenset(COUNTS))


@pytest.mark.parametrize(
    ("allocatable", "served"),
    [
        ({GPU: "8", VOLCANO_COUNT: "8", CLASSIC_COUNT: "8"}, {GPU, VOLCANO_COUNT, CLASSIC_COUNT}),
        ({GPU: "8", VOLCANO_COUNT: "8", CLASSIC_COUNT: "0"}, {GPU, VOLCANO_COUNT}),
        ({GPU: "8", "huawei.com/Ascend310P": "2"}, {GPU, "huawei.com/Ascend310P"}),
        ({GPU: "0", VOLCANO_COUNT: "8", "huawei.com/Ascend310P": "2"}, {"huawei.com/Ascend310P"}),
        ({GPU: "8", "example.com/other": "8"}, {GPU}),
    ],
)
def test_a_node_of_ours_serves_the_names_of_which_something_is_allocatable(
    allocatable: dict[str, str], served: set[str]
) -> None:
    """The kubelet asks nobody for a container that counts in another name: such a pod would run without a card."""
    node = a_node_object("node-a", CARDS)
    node["status"]["allocatable"] = allocatable
    assert node_facts(node, DIALECTS).offer == NodeOffer(Dialect.NATIVE, frozenset(served))


@pytest.mark.parametrize(
    "node",
    [
        {"metadata": {"name": "node-a"}},
        {"metadata": {"name": "node-a", "annotations": None}, "status": {"allocatable": None}},
        {"metadata": {"name": "node-a", "annotations": {"other": ""}}, "status": {"allocatable": {"cpu": "1"}}},
    ],
)
def test_a_node_without_cards_has_no_register_and_offers_nothing(node: dict[str, Any]) -> None:
    assert node_facts(node, DIALECTS) == NodeFacts("node-a", (), None, frozenset(), None)


@pytest.mark.parametrize(
    ("allocatable", "answers"),
    [("80", True), ("1k", True), ("0", False), ("many", False), ("1500m", False), (None, False)],
)
def test_slots_that_are_no_number_count_as_none(allocatable: object, answers: bool) -> None:
    node = a_node_object("node-a", CARDS)
    node["status"]["allocatable"][GPU] = allocatable
    assert (node_facts(node, DIALECTS).offer is not None) == answers


def test_other_resources_say_nothing_about_the_agent() -> None:
    node = a_node_object("node-a", CARDS, slots=0)
    node["status"]["allocatable"] |= {"nvidia.com/gpumem": "8", "volcano.sh/vgpu-number": "80"}
    assert node_facts(node, DIALECTS).offer is None
    assert read_registers(node_facts(node, DIALECTS)).problems == ()


def test_cards_survive_the_way_through_the_register() -> None:
    links = {a_card(0).uuid: 200}
    full = replace(
        a_card(1), model="A100", mode="mps", numa_node=-1, pcie_root="pci0", healthy=False, vendor="amd", links=links
    )
    cards = (a_card(0), full)
    assert read_registers(facts(register_of(cards))) == Inventory(cards)


def test_a_fault_is_listed_in_one_line_that_the_ledger_takes_and_only_where_there_is_one() -> None:
    broken = replace(a_card(0), healthy=False, fault="Xid 79: fallen off the bus")
    (card,) = read_registers(facts(register_of([broken]))).cards
    assert (card.healthy, card.fault) == (False, "Xid 79: fallen off the bus")
    (card,) = read_registers(facts(register_of([replace(broken, fault="x" * 1000)]))).cards
    assert card.fault == "x" * 256
    assert "fault" not in register_of(CARDS)


def test_the_same_cards_give_the_same_text() -> None:
    assert register_of(cards_of("node-a", 3)) == register_of(cards_of("node-a", 3))


def test_what_a_register_leaves_out_has_a_default() -> None:
    (card,) = read(item()).cards
    assert (card.capacity.cores, card.capacity.number, card.vendor, card.healthy) == (100, 10, "nvidia", True)


def test_no_register_is_no_cards() -> None:
    assert read_registers(facts(None)) == Inventory(())


def test_fields_of_a_newer_agent_are_skipped() -> None:
    assert read(item(colour="green")).problems == ()


@pytest.mark.parametrize(
    ("register", "what"), [("{", "is not JSON"), ("", "is not JSON"), ("{}", "no list"), ("1", "no list")]
)
def test_a_register_that_is_no_json_list_is_refused_as_a_whole(register: str, what: str) -> None:
    with pytest.raises(BadInput, match=what.replace("no list", "is not a list of cards")) as caught:
        read_registers(facts(register))
    assert str(caught.value).startswith(f"node node-a, annotation {REGISTER_ANNOTATION}")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (item(0, memoryMiB=0), "memoryMiB"),
        (item(0, memoryMiB="16000"), "memoryMiB"),
        (item(0, memoryMiB=2**40), "memoryMiB"),
        (item(0, cores=-1), "cores"),
        (item(0, number=0), "number"),
        (item(-1), "index"),
        (item(1024), "index"),
        (item(0, numaNode=5_000), "numaNode"),
        (item(0, uuid=""), "uuid"),
        (item(0, uuid="GPU/0"), "uuid"),
        (item(0, uuid="GPU-0\n"), "uuid"),
        (item(0, uuid="x" * 254), "uuid"),
        (item(0, healthy="no"), "healthy"),
        (item(0, links={"GPU-1": -1}), "links"),
        (item(0, links={f"GPU-{number}": 1 for number in range(65)}), "links"),
        (item(0, model="x" * 257), "model"),
        ({"uuid": "GPU-0"}, "index"),
        ("GPU-0", "entry"),
        (None, "entry"),
    ],
)
def test_a_bad_card_is_left_out_and_told_of(bad: Any, field: str) -> None:
    found = read(bad, item(1))
    assert [card.uuid for card in found.cards] == ["GPU-1"]
    (problem,) = found.problems
    assert f": {field}" in problem
    assert problem.endswith("; the card is left out")


def test_a_problem_names_the_card_or_its_place() -> None:
    assert "card GPU-0: memoryMiB" in read(item(0, memoryMiB=0)).problems[0]
    assert "card number 1: entry" in read(item(0), 7).problems[0]


def test_a_card_that_is_listed_twice_counts_once_whatever_its_case() -> None:
    found = read(item(0, uuid="GPU-a"), item(1, uuid="gpu-A"))
    assert [card.uuid for card in found.cards] == ["GPU-a"]
    assert "listed twice; the first one counts" in found.problems[0]


def test_every_card_that_is_read_can_be_written() -> None:
    """The register's limits are those of the CRD: otherwise a card would be tried for ever."""
    extreme = item(
        1023, memoryMiB=16 * 1024 * 1024, cores=10_000, number=1024, numaNode=1023, model="x" * 256, mode="y" * 32
    )
    for card in read(item(0), extreme).cards:
        assert CardSpec.model_validate(card_spec(card)).uuid == card.uuid


@pytest.mark.parametrize("uuid", ["GPU-1..2", "GPU-1.-2", ".GPU-1", "GPU-1-"])
def test_a_uuid_that_can_not_be_the_name_of_an_object_is_left_out(uuid: str) -> None:
    register = orjson.dumps([{"uuid": uuid, "index": 0, "memoryMiB": 1000}]).decode()
    inventory = read_registers(facts(register))
    assert not inventory.cards
    assert f"card {uuid}: uuid" in inventory.problems[0]


def test_where_a_label_is_asked_for_nodes_without_it_are_left_alone() -> None:
    dialects = dialects_of(Settings().changed({"node_label": "volcano.sh/vgpu.enabled=true"}))
    node = a_node_object("node-a", CARDS)
    assert (node_facts(node, dialects).registers, node_facts(node, dialects).offer) == ((), None)
    node["metadata"]["labels"] = {"volcano.sh/vgpu.enabled": "true"}
    assert read_registers(node_facts(node, dialects)).cards == tuple(CARDS)


OURS = {"gpu": "on"}
MIXED = dialects_of(Settings(node_label="gpu=on"))


def a_counting_node(labels: dict[str, str], annotations: dict[str, str], allocatable: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "node-b", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "status": {"allocatable": {"cpu": "8", "memory": "32Gi", **allocatable}}}


def test_a_node_without_our_label_whose_plugin_counts_its_cards_is_known_by_their_number() -> None:
    found = node_facts(a_counting_node({}, {}, {GPU: "4"}), MIXED)
    assert found == NodeFacts("node-b", (), None, frozenset(), None, HostAmounts(8_000, 32 * 1024, 4))
    assert found.takes_pods


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        ({"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}, {}),
        ({"nvidia.com/gpu.replicas": "10"}, {"replicas_elsewhere": "as-gpus"}),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, {"replicas_elsewhere": "as-gpus"}),
    ],
)
def test_a_node_whose_plugin_gives_out_each_gpu_once_or_where_that_is_allowed_counts(
    labels: dict[str, str], settings: dict[str, Any]
) -> None:
    dialects = dialects_of(Settings(node_label="gpu=on", **settings))
    found = node_facts(a_counting_node(labels, {}, {GPU: "10"}), dialects)
    assert (found.takes_pods, found.replicated) == (True, False)


def test_a_node_that_is_ours_says_nothing_of_replicas() -> None:
    found = node_facts(a_counting_node({"gpu": "on", "nvidia.com/gpu.replicas": "10"}, {}, {GPU: "10"}), MIXED)
    assert not found.replicated


@pytest.mark.parametrize(
    ("labels", "annotations", "allocatable", "settings"),
    [
        (OURS, {}, {GPU: "4"}, {}),  # it has not listed its cards yet
        ({}, {"hami.io/node-nvidia-register": ""}, {GPU: "40"}, {}),  # these are slots
        ({}, {"volcano.sh/node-vgpu-register": ""}, {GPU: "40"}, {}),
        ({"gpuledger.dev/agent": "true"}, {}, {GPU: "40"}, {}),  # our agent comes, or is there
        ({}, {}, {GPU: "0"}, {}),
        ({}, {}, {GPU: "many"}, {}),
        ({}, {}, {VOLCANO_COUNT: "4"}, {}),
        ({}, {}, {GPU: "4"}, {"whole_gpus_elsewhere": False}),
        ({"nvidia.com/gpu.replicas": "10"}, {}, {GPU: "10"}, {}),  # ten parts of one card
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, {}, {GPU: "2"}, {}),
        ({}, {}, {GPU: "4"}, {"resource_count": "gpuledger.dev/gpu"}),  # kube-scheduler counts that name by itself
        ({}, {}, {GPU: "4"}, {"node_label": ""}),  # nothing tells it from one whose cards are to come
    ],
)
def test_no_other_node_gets_pods_by_a_number_alone(
    labels: dict[str, str], annotations: dict[str, str], allocatable: dict[str, str], settings: dict[str, Any]
) -> None:
    dialects = dialects_of(Settings(**{"node_label": "gpu=on", **settings}))
    found = node_facts(a_counting_node(labels, annotations, allocatable), dialects)
    assert not found.takes_pods
    assert found.host is None or not found.host.cards
