"""Other vendors' cards from end to end: a node lists them, they are in the ledger, pods get what they ask for.

The rows are those of HAMi's FAQ and of the folders of its examples, by their names and amounts.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from fakes.api_server import ApiServer
from fakes.dialects import a_foreign_node, a_node_with_capacity, a_vendors_node
from fakes.objects import GPU, MEMORY, a_container, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.dialects.vendors import vendor_rows
from gpuledger.model.card import Amounts, CardPhase

Json = dict[str, Any]

ROWS = {row.name: row for row in vendor_rows()}
NVIDIA = "NVIDIA"
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
ANSWERS = ("CAMBRICON_DSMLU_ASSIGNED", "enflame.com/gcu-assigned", "NEURON_ALLOCATED")


@dataclass(frozen=True)
class Case:
    """Pods that are all alike, on a node with some cards of a vendor."""

    row: str
    limits: Mapping[str, object]
    gets: tuple[int, int, int]
    """Cards, and MiB and percent of each."""
    cards: int
    """Of the node."""
    pods: int
    """How many find room there; the next one does not."""

    def __str__(self) -> str:
        return f"{self.row}: " + ", ".join(f"{name} {amount}" for name, amount in self.limits.items())


def ascend(model: str, count: int, memory: int | None = None) -> dict[str, object]:
    name = f"huawei.com/{model}"
    return {name: count, **({f"{name}-memory": memory} if memory else {})}


def iluvatar(model: str, count: int, **amounts: int) -> dict[str, object]:
    return {f"iluvatar.ai/{model}-vgpu": count, **{f"iluvatar.ai/{model}.{name}": n for name, n in amounts.items()}}


def hygon(count: int, **amounts: int) -> dict[str, object]:
    return {f"hygon.com/{name}": amount for name, amount in {"dcunum": count, **amounts}.items()}


def sgpu(count: int, **amounts: int | str) -> dict[str, object]:
    return {f"metax-tech.com/{name}": amount for name, amount in {"sgpu": count, **amounts}.items()}


MLU, MLU_MEMORY, MLU_CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
VGPU, SGPU_MEMORY, SGPU_CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
VXPU, VXPU_MEMORY = "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
DRS, GCU_MEMORY, GCU_CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
NEURON, NEURON_CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"

CASES = [
    Case(NVIDIA, {GPU: 1, MEMORY: 3_000, "nvidia.com/gpucores": 30}, (1, 3_000, 30), cards=1, pods=3),
    Case(NVIDIA, {GPU: 2, "nvidia.com/gpumem-percentage": 50}, (2, 32_768, 0), cards=2, pods=2),
    Case("Ascend910A", ascend("Ascend910A", 1, 2_000), (1, 2_184, 6), cards=1, pods=10),
    Case("Ascend910B2", ascend("Ascend910B2", 1, 2_000), (1, 8_192, 12), cards=1, pods=8),
    Case("Ascend910B3", ascend("Ascend910B3", 1, 2_000), (1, 16_384, 25), cards=1, pods=4),
    Case("Ascend910B4", ascend("Ascend910B4", 1, 2_000), (1, 8_192, 25), cards=1, pods=4),
    Case("Ascend910B4-1", ascend("Ascend910B4-1", 1, 2_000), (1, 16_384, 25), cards=1, pods=4),
    Case("Ascend310P", ascend("Ascend310P", 1, 2_000), (1, 3_072, 12), cards=1, pods=8),
    Case("Ascend310P", ascend("Ascend310P", 2), (2, 24_576, 100), cards=3, pods=1),
    Case("Ascend910C", ascend("Ascend910C", 1, 16_384), (2, 65_536, 100), cards=5, pods=2),
    Case("Ascend910C", ascend("Ascend910C", 4), (4, 65_536, 100), cards=4, pods=1),
    Case("Hygon", hygon(1, dcucores=60, dcumem=2_000), (1, 2_000, 60), cards=2, pods=2),
    Case("Hygon", hygon(2), (2, 65_536, 100), cards=3, pods=1),
    Case("Cambricon", {MLU: 1}, (1, 65_536, 100), cards=2, pods=2),
    Case("Cambricon", {MLU: 1, MLU_MEMORY: 20, MLU_CORES: 10}, (1, 5_120, 10), cards=1, pods=10),
    Case("Cambricon", {MLU: 2, MLU_MEMORY: 20}, (2, 65_536, 100), cards=3, pods=1),
    *(
        Case(f"Iluvatar-{model}", limits, gets, cards=cards, pods=pods)
        for model in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
        for limits, gets, cards, pods in (
            (iluvatar(model, 1, vCore=50, vMem=64), (1, 16_384, 50), 1, 2),
            (iluvatar(model, 2), (2, 65_536, 100), 3, 1),
        )
    ),
    Case("Mthreads", {VGPU: 1}, (1, 65_536, 100), cards=2, pods=2),
    Case("Mthreads", {VGPU: 1, SGPU_MEMORY: 32, SGPU_CORES: 8}, (1, 16_384, 50), cards=1, pods=2),
    Case("Mthreads", {VGPU: 2}, (2, 65_536, 100), cards=3, pods=1),
    Case("Metax", {"metax-tech.com/gpu": 1}, (1, 65_536, 100), cards=2, pods=2),
    Case("Metax-SGPU", sgpu(1), (1, 65_536, 100), cards=2, pods=2),
    Case("Metax-SGPU", sgpu(1, vcore=60, vmemory=4), (1, 4_096, 60), cards=2, pods=2),
    Case("Metax-SGPU", sgpu(1, vcore=30, vmemory="2048Mi"), (1, 2_048, 30), cards=1, pods=3),
    Case("Metax-SGPU", sgpu(4), (4, 65_536, 100), cards=4, pods=1),
    Case("Kunlun", {"kunlunxin.com/xpu": 1}, (1, 98_304, 100), cards=2, pods=2),
    Case("Kunlun-vXPU", {VXPU: 1}, (1, 98_304, 100), cards=2, pods=2),
    Case("Kunlun-vXPU", {VXPU: 1, VXPU_MEMORY: 24_576}, (1, 24_576, 25), cards=1, pods=4),
    Case("Enflame", {"enflame.com/gcu": 2}, (2, 40_960, 100), cards=3, pods=1),
    Case("Enflame-DRS", {DRS: 1}, (1, 6_144, 16), cards=1, pods=6),
    Case("Enflame-DRS", {DRS: 3}, (1, 20_480, 50), cards=1, pods=2),
    Case("Enflame-DRS", {GCU_MEMORY: 20_480, GCU_CORES: 40}, (1, 20_480, 50), cards=1, pods=2),
    Case("Biren", {"birentech.com/gpu": 1}, (1, 65_536, 100), cards=2, pods=2),
    Case("Vastai", {"vastaitech.com/va": 1}, (1, 65_536, 100), cards=2, pods=2),
    Case("AWS-Neuron", {NEURON: 1}, (1, 32_768, 100), cards=2, pods=2),
    Case("AWS-Neuron", {NEURON_CORES: 1}, (1, 32_768, 50), cards=2, pods=2),
    Case("AWS-Neuron", {NEURON_CORES: 4}, (2, 32_768, 100), cards=3, pods=1),
    Case("AMD", {"amd.com/gpu": 1, "amd.com/gpumem": 1_000, "amd.com/gpucores": 20}, (1, 1_000, 20), cards=1, pods=5),
    Case("AMD", {"amd.com/gpu": 1, "amd.com/gpumem": 1_000}, (1, 1_000, 100), cards=2, pods=2),
]


def a_node(row: str, cards: int) -> Json:
    if row != NVIDIA:
        return a_vendors_node(ROWS[row], cards)
    items = [
        {"id": f"card-{index}", "index": index, "count": 10, "devmem": 65_536, "devcore": 100, "health": True}
        for index in range(cards)
    ]
    return a_foreign_node({"hami.io/node-nvidia-register": orjson.dumps(items).decode()}, {GPU: "10"})


async def a_cluster(api: ApiServer, *nodes: Json) -> OperatorParts:
    """Return an operator that has seen these nodes, and whose ledger has their cards."""
    for node in nodes:
        api.put_node(node)
    parts = an_operator(api)
    await parts.idle()
    return parts


def change_node(api: ApiServer, **status: Mapping[str, str]) -> None:
    node = api.nodes["node-a"]
    api.put_node({**node, "status": {**node["status"], **{name: dict(value) for name, value in status.items()}}})


def told(api: ApiServer, name: str) -> dict[str, str]:
    """Return the annotations of a pod."""
    return dict(api.pods["default", name]["metadata"]["annotations"])


def find(parts: OperatorParts, name: str) -> None:
    """Have the device plugins find the pod, each in its own words; HAMi's removes the lock of its node, too."""
    api, found = parts.api, {PHASE: "success", **dict.fromkeys(ANSWERS, "true")}
    pod, node = api.pods["default", name], api.nodes["node-a"]
    annotations = {key: found.get(key, value) for key, value in pod["metadata"]["annotations"].items()}
    api.put_pod({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})
    kept = {key: value for key, value in (node["metadata"].get("annotations") or {}).items() if key != LOCK}
    api.put_node({**node, "metadata": {**node["metadata"], "annotations": kept}})
    parts.watch()


def amounts_of(api: ApiServer, uid: str) -> list[Amounts]:
    """Return what a pod has of each of its cards, at the API server."""
    cards = (stored_card(card) for card in api.cards.values())
    return [holder.share.amounts for card in cards for holder in card.holders or () if holder.pod.uid == uid]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_vendors_cards_come_into_the_ledger_and_pods_share_them_as_the_vendor_allows(
    api: ApiServer, case: Case
) -> None:
    parts = await a_cluster(api, a_node(case.row, case.cards))
    stored = [stored_card(card) for card in api.cards.values()]
    assert len(stored) == case.cards
    assert {card.phase for card in stored} == {"Ready"}
    names = [f"pod-{index}" for index in range(case.pods + 1)]
    for name in names:
        api.put_pod(a_pod_object(name, dict(case.limits)))
    for name in names[:-1]:
        assert parts.filter(name, "node-a").node_names == ["node-a"]
        await parts.bind(name, "node-a")
        assert api.node_of(name) == "node-a"
        find(parts, name)
        cards, memory_mib, cores = case.gets
        assert amounts_of(api, f"uid-{name}") == [Amounts(memory_mib, cores, 1)] * cards
    assert parts.filter(names[-1], "node-a").node_names == []


def test_every_row_of_the_table_has_a_case() -> None:
    assert {case.row for case in CASES} == {NVIDIA, *ROWS}


# How each plugin is told.

ALWAYS = {"gpuledger.dev/devices", "hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time", PHASE}
"""Annotations that every pod on such a node has."""

NOW_S = "1893457000"
TOLD: dict[str, tuple[Mapping[str, object], dict[str, str]]] = {
    "Cambricon": (
        {MLU: 1, MLU_MEMORY: 20, MLU_CORES: 10},
        {
            "CAMBRICON_DSMLU_ASSIGNED": "false",
            "CAMBRICON_DSMLU_PROFILE": "0_10_20",
            "hami.io/cambricon-mlu-devices-allocated": "node-a-cambricon-mlu-0,MLU,5120,10:;",
        },
    ),
    "Mthreads": (
        {VGPU: 2},
        {
            "mthreads.com/gpu-index": "0,1",
            "mthreads.com/predicate-node": "node-a",
            "mthreads.com/predicate-time": NOW_S + "0" * 9,
            "hami.io/mthreads-vgpu-devices-allocated": (
                "node-a-mthreads-0,Mthreads,65536,100:node-a-mthreads-1,Mthreads,65536,100:;"
            ),
        },
    ),
    "Metax": (
        {"metax-tech.com/gpu": 1},
        {"hami.io/metax-gpu-devices-allocated": "node-a-metax-0,Metax-GPU,65536,100:;"},
    ),
    "Metax-SGPU": (
        sgpu(1, vcore=60, vmemory=4),
        {
            "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"card-0","compute":60,"vRam":4096}]]',
            "metax-tech.com/predicate-time": NOW_S + "0" * 9,
            "hami.io/metax-sgpu-devices-allocated": "card-0,Metax-SGPU,4096,60:;",
        },
    ),
    "Kunlun": (
        {"kunlunxin.com/xpu": 2},
        {
            "BAIDU_COM_DEVICE_IDX": "0,1",
            "hami.io/kunlun-allocated": "node-a-kunlun-0,kunlun,98304,100:node-a-kunlun-1,kunlun,98304,100:;",
        },
    ),
    "Kunlun-vXPU": ({VXPU: 1, VXPU_MEMORY: 1}, {"hami.io/xpu-devices-allocated": "card-0,XPU,24576,25:;"}),
    "Enflame": ({"enflame.com/gcu": 1}, {"hami.io/enflame-gcu-devices-allocated": "node-a-GCU-0,GCU,40960,100:;"}),
    "Enflame-DRS": (
        {DRS: 3},
        {
            "enflame.com/gcu-assigned": "false",
            "enflame.com/gcu-assigned-index": "0",
            "enflame.com/gcu-assigned-id": "0",
            "enflame.com/gcu-assigned-minor": "0",
            "enflame.com/gcu-assigned-time": NOW_S + "0" * 9,
            "enflame.com/gcu-request-size": "3",
            "assigned-containers": ('{"main":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}'),
            "hami.io/enflame-vgpu-devices-allocated": "node-a-enflame-drs-0,Enflame,20480,50:;",
        },
    ),
    "Biren": ({"birentech.com/gpu": 1}, {"hami.io/Biren-devices-allocated": "card-0,Biren,65536,100:;"}),
    "Vastai": ({"vastaitech.com/va": 1}, {"hami.io/Vastai-devices-allocated": "card-0,Vastai,65536,100:;"}),
    "AWS-Neuron": (
        {NEURON: 2},
        {
            "AWS_NEURON_IDS": "0,1",
            "NEURON_ALLOCATED": "false",
            "NEURON_ALLOC_TIME": NOW_S + "0" * 9,
            "aws.amazon.com/predicate-node": "node-a",
            "hami.io/aws-neuron-devices-allocated": (
                "node-a-AWSNeuron-0,AWSNeuron,32768,100:node-a-AWSNeuron-1,AWSNeuron,32768,100:;"
            ),
        },
    ),
    "AMD": ({"amd.com/gpu": 1, "amd.com/gpumem": 9}, {"hami.io/amd-devices-allocated": "card-0,AMD,9,100:;"}),
    "Ascend910C": (
        ascend("Ascend910C", 2),
        {
            "predicate-time": NOW_S,
            "huawei.com/Ascend910C": (
                '[{"UUID":"card-0","memory":65536,"core":100},{"UUID":"card-1","memory":65536,"core":100}]'
            ),
            "hami.io/Ascend910C-devices-allocated": ("card-0,Ascend910C,65536,100:card-1,Ascend910C,65536,100:;"),
        },
    ),
}


@pytest.mark.parametrize("row", TOLD)
async def test_a_vendors_plugin_is_told_of_a_pods_cards_in_its_own_annotations(api: ApiServer, row: str) -> None:
    limits, expected = TOLD[row]
    parts = await a_cluster(api, a_vendors_node(ROWS[row], 2))
    api.put_pod(a_pod_object("pod", dict(limits)))
    assert parts.filter("pod", "node-a").node_names == ["node-a"]
    await parts.bind("pod", "node-a")
    said = {name: text for name, text in told(api, "pod").items() if name not in ALWAYS}
    assert {name: text for name, text in said.items() if not name.endswith("-to-allocate")} == expected
    [to_allocate] = [text for name, text in said.items() if name.endswith("-to-allocate")]
    assert to_allocate in expected.values()


async def test_who_asks_for_cores_of_a_neuron_device_is_told_the_cores(api: ApiServer) -> None:
    """The second container has a core of another device: nothing in the ledger says which core of one is whose."""
    parts = await a_cluster(api, a_vendors_node(ROWS["AWS-Neuron"], 2))
    cores: dict[str, object] = {NEURON_CORES: 1}
    api.put_pod(a_pod_object("pod", containers=[a_container("a", cores), a_container("b", cores)]))
    parts.filter("pod", "node-a")
    await parts.bind("pod", "node-a")
    said = told(api, "pod")
    assert (said["AWS_NEURON_IDS"], said["NEURON_RESOURCE_TYPE"]) == ("0,2", NEURON_CORES)


@pytest.mark.parametrize("row", ["Mthreads", "Metax", "Kunlun", "Enflame"])
async def test_nobody_waits_for_a_plugin_that_says_nothing(api: ApiServer, row: str) -> None:
    """HAMi's own pods stay "allocating" there for ever; and its lock would keep the node shut."""
    parts = await a_cluster(api, a_vendors_node(ROWS[row], 2))
    for name in ("a", "b"):
        api.put_pod(a_pod_object(name, {ROWS[row].resources.count: 1}))
        parts.filter(name, "node-a")
        await parts.bind(name, "node-a")
        assert told(api, name)[PHASE] == "success"
        parts.watch()
    assert LOCK not in (api.nodes["node-a"]["metadata"].get("annotations") or {})


async def test_modules_are_given_whole_though_single_cards_of_others_are_free(api: ApiServer) -> None:
    """Card 1 is at fault: cards 0 and 2 are free, and of different modules."""
    node = a_vendors_node(ROWS["Ascend910C"], 5)
    register = orjson.loads(node["metadata"]["annotations"]["hami.io/node-register-Ascend910C"])
    register[1]["health"] = False
    node["metadata"]["annotations"]["hami.io/node-register-Ascend910C"] = orjson.dumps(register).decode()
    parts = await a_cluster(api, node)
    for name in ("a", "b"):
        api.put_pod(a_pod_object(name, ascend("Ascend910C", 2)))
    parts.filter("a", "node-a")
    await parts.bind("a", "node-a")
    cards = "card-2,Ascend910C,65536,100:card-3,Ascend910C,65536,100:;"
    assert told(api, "a")["hami.io/Ascend910C-devices-allocated"] == cards
    assert parts.filter("b", "node-a").refused == {"node-a": "fewer than 2 cards free in whole modules of 2 cards"}


# A capacity that changes.


async def test_cards_of_a_capacity_have_names_of_their_own_on_each_node_and_the_same_after_a_restart(
    api: ApiServer,
) -> None:
    nodes = [a_node_with_capacity(ROWS["Cambricon"], 2, name) for name in ("node-a", "node-b")]
    await a_cluster(api, *nodes)
    names = [f"{node}-cambricon-mlu-{index}" for node in ("node-a", "node-b") for index in (0, 1)]
    assert sorted(api.cards) == names
    await asyncio.sleep(1)  # their lists of managers go
    writes = len(api.writes())
    again = an_operator(api)
    for node in nodes:
        api.put_node(node)
    await again.idle()
    assert sorted(api.cards) == names
    assert len(api.writes()) == writes


async def a_held_node(api: ApiServer) -> OperatorParts:
    """Return an operator over a node with two cards of Cambricon's, a pod on each."""
    parts = await a_cluster(api, a_node_with_capacity(ROWS["Cambricon"], 3))
    for name in ("a", "b"):
        api.put_pod(a_pod_object(name, {MLU: 1}))
        parts.filter(name, "node-a")
        await parts.bind(name, "node-a")
        find(parts, name)
    return parts


def phases(api: ApiServer) -> dict[str, tuple[str, int]]:
    """Return phase and number of holders of each card, by its index."""
    found = (stored_card(card) for card in api.cards.values())
    return {card.card.uuid[-1]: (card.phase, len(card.holders or ())) for card in found}


READY, GONE = CardPhase.READY.value, CardPhase.UNAVAILABLE.value


async def test_a_capacity_that_shrinks_closes_the_cards_that_it_no_longer_has(api: ApiServer) -> None:
    parts = await a_held_node(api)
    one: dict[str, str] = {MLU_CORES: "100", MLU_MEMORY: "256"}
    change_node(api, capacity=one, allocatable=one)
    await parts.idle()
    assert phases(api) == {"0": (READY, 1), "1": (GONE, 1)}
    three: dict[str, str] = {MLU_CORES: "300", MLU_MEMORY: "768"}
    change_node(api, capacity=three, allocatable=three)
    await parts.idle()
    assert phases(api) == {"0": (READY, 1), "1": (READY, 1), "2": (READY, 0)}


@pytest.mark.parametrize("amounts", [{}, {MLU_CORES: "0", MLU_MEMORY: "0"}])
async def test_a_capacity_that_vanishes_closes_all_cards_and_keeps_their_holders(
    api: ApiServer, amounts: dict[str, str]
) -> None:
    parts = await a_held_node(api)
    change_node(api, capacity=amounts, allocatable=amounts)
    await parts.idle()
    assert phases(api) == {"0": (GONE, 1), "1": (GONE, 1)}
    api.put_pod(a_pod_object("c", {MLU: 1}))
    assert parts.filter("c", "node-a").node_names == []


async def test_a_plugin_that_is_gone_closes_its_cards_before_the_capacity_says_so(api: ApiServer) -> None:
    parts = await a_held_node(api)
    change_node(api, allocatable={MLU_CORES: "0", MLU_MEMORY: "0"})
    await parts.idle()
    assert phases(api) == {"0": (GONE, 1), "1": (GONE, 1), "2": (GONE, 0)}


async def test_an_amount_that_can_not_be_read_changes_nothing_and_is_told(api: ApiServer) -> None:
    parts = await a_held_node(api)
    before = phases(api)
    change_node(api, capacity={MLU_CORES: "300"})
    await parts.idle()
    assert phases(api) == before
    assert parts.told == [
        (
            "node-a",
            f"node node-a, capacity {MLU_CORES}: the node says nothing of {MLU_MEMORY}, the memory of these cards; "
            "its cards stay as they are in the ledger",
        )
    ]


async def test_a_card_that_is_at_fault_is_told_though_the_node_does_not_say_which(api: ApiServer) -> None:
    parts = await a_held_node(api)
    change_node(api, allocatable={MLU_CORES: "200", MLU_MEMORY: "768"})
    await parts.idle()
    [(_, sentence)] = parts.told
    assert sentence.startswith(f"node node-a, capacity {MLU_CORES}, only 200 of 300 are allocatable: some card is at")


async def test_cards_that_a_register_lists_are_not_listed_by_the_capacity_again(api: ApiServer) -> None:
    """Both ways of reporting would give out the same card twice."""
    node = a_vendors_node(ROWS["Kunlun-vXPU"], 2)
    node["status"]["allocatable"]["kunlunxin.com/xpu"] = "2"
    node["status"]["capacity"] = {"kunlunxin.com/xpu": "2"}
    parts = await a_cluster(api, node)
    assert sorted(api.cards) == ["card-0", "card-1"]
    [(_, sentence)] = parts.told
    assert sentence == (
        "node node-a, capacity kunlunxin.com/xpu: not read, because the annotation hami.io/node-register-xpu lists "
        "the cards already; pods that ask for kunlunxin.com/xpu get none here"
    )
    api.put_pod(a_pod_object("pod", {"kunlunxin.com/xpu": 1}))
    assert parts.filter("pod", "node-a").node_names == []
