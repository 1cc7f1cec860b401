"""Cards of other vendors: how each can be cut, and a table of one's own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from builders import a_card
from fakes.dialects import (
    HAMI,
    a_foreign_node,
    a_vendors_node,
    demand_of,
    dialects_with,
    inventory_of,
    placed,
    request_of,
    warnings_of,
)
from fakes.objects import DIALECTS, GPU, MEMORY, a_container, a_pod_object
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.assignments import hami_assignment
from gpuledger.formats.dialects.request import counted, pod_request
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vendors import VendorRow, rows_in_use, vendor_rows
from gpuledger.formats.kubernetes.pod import pod_facts
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, Reason, Refusal
from gpuledger.model.node import AnnotatedCard, OldDevices
from gpuledger.model.request import Demand
from gpuledger.model.share import ContainerShare, Share

ROWS = {row.name: row for row in vendor_rows()}


def cut(limits: Mapping[str, object]) -> tuple[int | None, int]:
    """Return memory and cores of what is a share of one card."""
    found = demand_of(limits)
    assert not found.exclusive
    assert found.cards == 1
    return found.memory_mib, found.cores


def is_whole(limits: Mapping[str, object], cards: int = 1) -> bool:
    found = demand_of(limits)
    return found.whole and found.exclusive and found.cards == cards


def ascend(model: str, memory: int | None = None, cards: int = 1) -> dict[str, object]:
    name = f"huawei.com/{model}"
    return {name: str(cards), **({} if memory is None else {f"{name}-memory": str(memory)})}


# The rows of HAMi's FAQ.


def test_nvidia_is_cut_by_one_mib_and_one_percent_and_several_cards_are_cut_too() -> None:
    assert cut({GPU: "1", MEMORY: "1", "nvidia.com/gpucores": "1"}) == (1, 1)
    assert demand_of({GPU: "2", MEMORY: "1"}) == Demand(2, 1)


@pytest.mark.parametrize(
    ("model", "card_mib", "templates"),  # memory and cores of each template, ascending
    [
        ("Ascend910A", 32_768, [(2_184, 6), (4_369, 13), (8_738, 26), (17_476, 53)]),
        ("Ascend910B2", 65_536, [(8_192, 12), (16_384, 25), (32_768, 50)]),
        ("Ascend910B3", 65_536, [(16_384, 25), (32_768, 50)]),
        ("Ascend310P", 24_576, [(3_072, 12), (6_144, 25), (12_288, 50)]),
    ],
)
def test_ascend_is_cut_by_its_templates(model: str, card_mib: int, templates: list[tuple[int, int]]) -> None:
    smaller_mib = 0
    for memory_mib, cores in templates:
        assert cut(ascend(model, smaller_mib + 1)) == cut(ascend(model, memory_mib)) == (memory_mib, cores)
        smaller_mib = memory_mib
    assert is_whole(ascend(model))
    assert is_whole(ascend(model, smaller_mib + 1))
    assert is_whole(ascend(model, card_mib))
    with pytest.raises(BadInput, match=f"{card_mib + 1} is more than a card has, {card_mib} MiB"):
        demand_of(ascend(model, card_mib + 1))
    for memory in (None, 1, card_mib):
        assert is_whole(ascend(model, memory, cards=2), cards=2)
    with pytest.raises(BadInput, match=f"{card_mib + 1} is more than a card has, {card_mib} MiB"):
        demand_of(ascend(model, card_mib + 1, cards=2))


@pytest.mark.parametrize(
    ("count", "memory", "cores", "asked", "given"),
    [
        ("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores", (2_001, 61), (2_001, 61)),
        ("cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore", (4, 10), (1_024, 10)),
        *(
            (
                f"iluvatar.ai/{model}-vgpu",
                f"iluvatar.ai/{model}.vMem",
                f"iluvatar.ai/{model}.vCore",
                (64, 50),
                (16_384, 50),
            )
            for model in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
        ),
    ],
)
def test_cards_are_cut_in_the_vendors_units_and_by_one_percent_and_several_are_whole(
    count: str, memory: str, cores: str, asked: tuple[int, int], given: tuple[int, int]
) -> None:
    amounts = {memory: str(asked[0]), cores: str(asked[1])}
    assert cut({count: "1", **amounts}) == given
    assert is_whole({count: "1"})
    assert is_whole({count: "2", memory: str(asked[0])}, cards=2)
    assert is_whole({count: "2", **amounts}, cards=2)


@pytest.mark.parametrize(
    "vendor", ["hygon.com/dcunum hygon.com/dcumem", "cambricon.com/vmlu cambricon.com/mlu.smlu.vmemory"]
)
def test_who_names_no_cores_of_a_hygon_or_cambricon_card_has_all_of_them(vendor: str) -> None:
    count, memory = vendor.split()
    found = demand_of({count: "1", memory: "8"})
    assert (found.cores, found.exclusive, found.whole) == (100, True, False)


MTHREADS, SGPU_MEMORY, SGPU_CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"


def test_mthreads_is_cut_on_its_grid_of_512_mib_and_by_core_groups_and_several_are_whole() -> None:
    for units in (2, 4, 8, 16, 32, 64, 96):
        assert cut({MTHREADS: "1", SGPU_MEMORY: str(units), SGPU_CORES: "8"}) == (units * 512, 50)
    assert cut({MTHREADS: "1", SGPU_MEMORY: "2", SGPU_CORES: "1"}) == (1_024, 6)
    assert is_whole({MTHREADS: "1"})
    assert is_whole({MTHREADS: "2", SGPU_MEMORY: "8"}, cards=2)


@pytest.mark.parametrize("units", ["1", "3", "5", "48", "97"])
def test_mthreads_memory_off_the_grid_is_refused_with_what_there_is(units: str) -> None:
    with pytest.raises(BadInput, match=f"{units} can't be cut; choose one of 2, 4, 8, 16, 32, 64, 96"):
        demand_of({MTHREADS: "1", SGPU_MEMORY: units})


def test_mthreads_has_sixteen_core_groups() -> None:
    assert demand_of({MTHREADS: "1", SGPU_MEMORY: "2", SGPU_CORES: "16"}).exclusive
    with pytest.raises(BadInput, match="17 is more than 16; it is a number of 16 core groups"):
        demand_of({MTHREADS: "1", SGPU_MEMORY: "2", SGPU_CORES: "17"})


def test_metax_is_never_cut() -> None:
    assert is_whole({"metax-tech.com/gpu": "1"})
    assert is_whole({"metax-tech.com/gpu": "3"}, cards=3)
    assert ROWS["Metax"].vocabulary().request_names == ()


@pytest.mark.parametrize(
    "limits",
    [
        {MTHREADS: "2", SGPU_MEMORY: "192", SGPU_CORES: "32"},
        {MTHREADS: "2", SGPU_MEMORY: "3"},
        {"iluvatar.ai/BI-V150-vgpu": "2", "iluvatar.ai/BI-V150.vCore": "200"},
    ],
)
def test_sums_that_hamis_webhook_writes_beside_several_cards_are_no_error(limits: Mapping[str, object]) -> None:
    assert is_whole(limits, cards=2)


def test_who_says_more_of_several_whole_cards_is_told_that_it_has_no_effect() -> None:
    limits = {MTHREADS: "2", SGPU_MEMORY: "8"}
    assert warnings_of(limits) == (
        "container main asks for several Mthreads: they are given whole, whatever else it says",
    )
    assert warnings_of({MTHREADS: "2"}) == ()
    assert warnings_of(ascend("Ascend310P", 24_000, cards=2)) == (
        "container main asks for several Ascend310P: they are given whole, whatever else it says",
    )


# The words of single vendors.


def test_metax_memory_with_a_suffix_is_in_bytes_and_without_one_in_gib() -> None:
    names = ("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore")
    for amount, memory_mib in {"4": 4_096, "2048Mi": 2_048, "1Gi": 1_024, "1M": 1, "4k": 4_096_000}.items():
        assert cut(dict(zip(names, ("1", amount, "10"), strict=True))) == (memory_mib, 10)
    for amount in ("-1Gi", "1.5.5Gi", "Gi"):
        with pytest.raises(BadInput, match=rf"container main, metax-tech\.com/vmemory: .*{amount}' is not an amount"):
            demand_of({names[0]: "1", names[1]: amount})
    with pytest.raises(BadInput, match="90000Ti is more than"):
        demand_of({names[0]: "1", names[1]: "90000Ti"})


def test_drs_parts_of_enflames_cards_are_its_profiles() -> None:
    parts, memory, cores = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
    assert [cut({parts: str(number)}) for number in (1, 3)] == [(6_144, 16), (20_480, 50)]
    assert demand_of({parts: "6"}).exclusive
    with pytest.raises(BadInput, match=r"enflame\.com/drs-gcu: 2 can't be cut; choose one of 1, 3, 6"):
        demand_of({parts: "2"})
    assert cut({memory: "1"}) == cut({cores: "16"}) == (6_144, 16)
    assert cut({memory: "1", cores: "17"}) == cut({memory: "6145"}) == (20_480, 50)
    assert warnings_of({parts: "3", memory: "1"}) == (
        f"container main, {memory}: {parts} says it already, so it has no effect",
    )
    assert pod_request(a_pod_object(limits={parts: "0"}), DIALECTS) is None
    assert pod_request(a_pod_object(limits={memory: "0"}), DIALECTS) is None


def test_a_count_that_is_of_parts_of_a_card_is_one_card_to_the_kubelet() -> None:
    """Else a pod that holds its three parts of one card would count as one that lacks two cards."""
    [found] = counted(a_pod_object(limits={"enflame.com/drs-gcu": "3"}), DIALECTS)
    assert (found.vendor, found.cards) == ("enflame-drs", 1)


def test_neuron_cores_are_of_one_device_or_all_of_several() -> None:
    cores, devices = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"
    one = demand_of({cores: "1"})
    assert (one.cards, one.memory_percent, one.cores) == (1, 100, 50)
    assert demand_of({cores: "2"}).whole
    assert is_whole({cores: "4"}, cards=2)
    with pytest.raises(BadInput, match="more than one card has, and no multiple of that: ask for 2 per card"):
        demand_of({cores: "3"})
    with pytest.raises(BadInput, match=r"neuroncore: 4 is more than 2"):
        demand_of({devices: "1", cores: "4"})


def test_ascend_910c_comes_in_modules_of_two() -> None:
    assert is_whole(ascend("Ascend910C"), cards=2)
    assert is_whole(ascend("Ascend910C", cards=4), cards=4)
    with pytest.raises(
        BadInput, match=r"huawei\.com/Ascend910C: 3 is no multiple of 2: these cards come in modules of 2"
    ):
        demand_of(ascend("Ascend910C", cards=3))


def test_a_plugin_that_is_told_of_one_container_gets_no_second_one() -> None:
    pod = a_pod_object(containers=[a_container("a", {MTHREADS: "1"}), a_container("b", {MTHREADS: "1"})])
    with pytest.raises(BadInput, match="containers a and b ask for cards of Mthreads, whose device plugin serves one"):
        pod_request(pod, DIALECTS)
    other = a_pod_object(containers=[a_container("a", {MTHREADS: "1"}), a_container("b", {GPU: "1"})])
    assert len(request_of(other).shape) == 2


def test_names_of_a_vendor_that_the_table_lacks_are_told_and_those_of_others_are_not() -> None:
    old = "cambricon.com/mlu370.smlu.vcore"
    pod = a_pod_object(limits={"cambricon.com/vmlu": "1", old: "10", "example.com/x": "1"})
    [warning] = pod_warnings(pod, DIALECTS)
    assert warning.text == f"resource {old} is not known: did you mean cambricon.com/mlu.smlu.vcore?"


# Cards go to those who ask for their vendor.


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.templates], ids=lambda row: row.name)
def test_every_template_fits_on_a_card_as_its_plugin_registers_it(row: VendorRow) -> None:
    [card] = inventory_of(a_vendors_node(row)).cards
    for template in row.templates:
        limits = {str(row.resources.memory): str(template.memory_mib)}
        limits |= {} if row.count_is_cores else {row.resources.count: str(row.count_multiple)}
        if row.count_multiple == 1:
            assert placed(limits, a_vendors_node(row)) == ((card.uuid,),)


def test_a_pod_never_gets_another_vendors_card() -> None:
    """On a node with our agent, which serves all names, only the cards themselves tell."""
    for row in ROWS.values():
        items = [{"uuid": "GPU-0", "index": 0, "memoryMiB": 65_536, "vendor": row.vendor, "model": row.model}]
        node = a_foreign_node(
            {"gpuledger.dev/gpus": orjson.dumps(items).decode()}, dict.fromkeys(DIALECTS.counts(), "10")
        )
        for asked in (*ROWS.values(), None):
            if asked is not None and asked.count_multiple > 1:
                continue
            found = placed({asked.resources.count if asked else GPU: "1"}, node)
            if asked is not None and (asked.vendor, asked.model) == (row.vendor, row.model):
                assert found == (("GPU-0",),)
            else:
                assert isinstance(found, Refusal)
                assert found.reason is Reason.NOT_WANTED


def test_a_vendors_own_annotations_choose_among_its_cards() -> None:
    row = ROWS["Ascend310P"]
    assert (row.use_uuid, row.avoid_uuid) == ("hami.io/use-Ascend310P-uuid", "hami.io/no-use-Ascend310P-uuid")
    pod = a_pod_object(containers=[a_container("npu", ascend("Ascend310P")), a_container("gpu", {GPU: "1"})])
    pod["metadata"]["annotations"] = {row.use_uuid: "card-1, card-2", row.avoid_uuid: "card-2"}
    npu, gpu = request_of(pod).shape
    assert (npu.wanted.use_uuids, npu.wanted.avoid_uuids) == (("card-1", "card-2"), ("card-2",))
    assert (gpu.wanted.use_uuids, gpu.wanted.avoid_uuids) == ((), ())


# The table, and one's own.

OWN: dict[str, Any] = {
    "name": "Own",
    "vendor": "own",
    "resources": {"count": "own.example/card", "memory": "own.example/memory"},
}


CAPACITY = {"cards": "own.example/card", "memory_mib": 1_024, "id": "own"}
ASSIGNMENT: dict[str, Any] = {"prefix": "own.example/cards", "word": "OWN"}


def own(*rows: Any) -> str:
    return yaml.safe_dump({"vendors": list(rows)})


def test_all_rows_are_in_use_or_those_that_are_named() -> None:
    assert rows_in_use(vendor_rows(), ["all"]) == vendor_rows()
    assert [row.name for row in rows_in_use(vendor_rows(), ["Hygon"])] == ["Hygon"]
    assert rows_in_use(vendor_rows(), []) == ()
    with pytest.raises(BadInput, match="settings: vendors: there is no row 'Hygn'"):
        rows_in_use(vendor_rows(), ["Hygn", "Metax"])


def test_a_vendor_that_is_not_in_use_is_not_understood() -> None:
    assert "hygon.com/dcunum" in DIALECTS.resources()
    assert "hygon.com/dcunum" not in dialects_with(vendors=["Metax"]).resources()


def test_a_row_of_ones_own_is_added(tmp_path: Path) -> None:
    file = tmp_path / "vendors.yaml"
    file.write_text(own(OWN | {"memory_unit_mib": 512, "several": "whole"}))
    dialects = dialects_of(Settings(vendors_file=str(file)))
    found = demand_of({"own.example/card": "1", "own.example/memory": "4"}, dialects)
    assert (found.memory_mib, found.wanted.vendor) == (2_048, "own")
    assert "hygon.com/dcunum" in dialects.resources()


def test_a_row_of_ones_own_replaces_the_one_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "vendors.yaml"
    file.write_text(own({"name": "Hygon", "vendor": "hygon", "resources": {"count": "own.example/dcu"}}))
    dialects = dialects_of(Settings(vendors_file=str(file)))
    assert "own.example/dcu" in dialects.resources()
    assert "hygon.com/dcunum" not in dialects.resources()


def test_a_file_without_text_changes_nothing() -> None:
    assert vendor_rows("") == vendor_rows()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": ""}, "own.yaml, vendors.0.name: String should have at least 1 character"),
        ({"name": None}, "own.yaml, vendors.0.name: Input should be a valid string"),
        ({"vendor": "Own Inc"}, "own.yaml, vendors.0.vendor: String should match pattern"),
        ({"resources": {}}, "own.yaml, vendors.0.resources.count: Field required"),
        ({"resources": {"count": "card"}}, "own.yaml, vendors.0.resources.count: String should match pattern"),
        ({"resources": {"count": "own.example/c", "core": "x/y"}}, "own.yaml, vendors.0.resources.core: Extra inputs"),
        ({"memory_unit_mib": 0}, "own.yaml, vendors.0.memory_unit_mib: Input should be greater than"),
        ({"memory_unit_mib": "many"}, "own.yaml, vendors.0.memory_unit_mib: Input should be a valid integer"),
        ({"memory_choices": [4, 2]}, "own.yaml, vendors.0: Value error, memory_choices and templates must ascend"),
        ({"memory_choices": [2, 2]}, "own.yaml, vendors.0: Value error, memory_choices and templates must ascend"),
        ({"memory_choices": [0]}, "own.yaml, vendors.0.memory_choices.0: Input should be greater than"),
        ({"cores_of_card": 0}, "own.yaml, vendors.0.cores_of_card: Input should be greater than"),
        ({"default_cores": 101}, "own.yaml, vendors.0.default_cores: Input should be less than"),
        ({"several": "sometimes"}, "own.yaml, vendors.0.several: Input should be 'split' or 'whole'"),
        ({"several": "refuse"}, "own.yaml, vendors.0.several: Input should be 'split' or 'whole'"),
        ({"register": "node register"}, "own.yaml, vendors.0.register.annotation: String should match pattern"),
        ({"register": {"annotation": "a/b", "fields": {"size": "s"}}}, "own.yaml, vendors.0.register.fields.size"),
        ({"register": "a/b"}, "own.yaml, vendors.0: Value error, register or capacity goes with an assignment"),
        ({"capacity": CAPACITY}, "own.yaml, vendors.0: Value error, register or capacity goes with an assignment"),
        (
            {"register": "a/b", "capacity": CAPACITY, "assignment": ASSIGNMENT},
            "own.yaml, vendors.0: Value error, register or capacity: two rows",
        ),
        (
            {"capacity": {"cards": "own.example/card", "id": "own"}, "assignment": ASSIGNMENT},
            "own.yaml, vendors.0.capacity: Value error, either memory, or memory_mib",
        ),
        ({"capacity": CAPACITY | {"id": "Own!"}}, "own.yaml, vendors.0.capacity.id: String should match pattern"),
        (
            {"capacity": CAPACITY, "assignment": ASSIGNMENT | {"texts": {"a/b": "{colour}"}}},
            "own.yaml, vendors.0.assignment: Value error, a/b: braces may hold uuid, index,",
        ),
        (
            {"assignment": ASSIGNMENT | {"details": {"a/b": {"layout": "list", "fields": {"a": "colour"}}}}},
            "own.yaml, vendors.0.assignment.details.a/b: Value error, 'colour' is no part of a share; parts are uuid,",
        ),
        ({"assignment": ASSIGNMENT | {"answer": "a b"}}, "own.yaml, vendors.0.assignment.answer: String should match"),
        ({"count_is_cores": True}, "own.yaml, vendors.0: Value error, count_is_cores needs templates"),
        ({"count_multiple": 0}, "own.yaml, vendors.0.count_multiple: Input should be greater than"),
        ({"use_uuid": "uuid"}, "own.yaml, vendors.0.use_uuid: String should match pattern"),
        ({"colour": "green"}, "own.yaml, vendors.0.colour: Extra inputs are not permitted"),
        (
            {"templates": [{"name": "small", "memory_mib": 1}], "memory_of_card_mib": 2},
            "own.yaml, vendors.0.templates.0.core_units: Field required",
        ),
        (
            {"templates": [{"name": "small", "memory_mib": 2, "core_units": 1}], "memory_of_card_mib": 1},
            "own.yaml, vendors.0: Value error, templates need resources.memory, and a memory_of_card_mib",
        ),
        (
            {"templates": [{"name": "small", "memory_mib": 1, "core_units": 101}], "memory_of_card_mib": 1},
            "own.yaml, vendors.0: Value error, templates can't have more core_units than cores_of_card",
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_place_and_key(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        vendor_rows(own(OWN | changed), "own.yaml")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    "text",
    ["vendors: 7", "[]", "just text", "rows: []", "vendors: [7]", "vendors: []\nothers: []"],
)
def test_a_file_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^own\.yaml, "):
        vendor_rows(text, "own.yaml")


@pytest.mark.parametrize(
    "text", ["vendors: [", "a: !!bool x", "a: !!timestamp x", "a: 2020-13-45", 'a: !!int ""', "\x00", "[" * 1_000]
)
def test_a_file_that_is_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^own\.yaml is not YAML: "):
        vendor_rows(text, "own.yaml")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([OWN, OWN], "own.yaml: there are two rows 'Own'"),
        ([OWN, OWN | {"name": "Other"}], "own.yaml: Other and Own both have the resource own.example/card"),
        (
            [OWN | {"resources": {"count": "own.example/card", "memory": "hygon.com/dcumem"}}],
            "own.yaml: Own and Hygon both have the resource hygon.com/dcumem",
        ),
        (
            [OWN | {"resources": {"count": "own.example/card", "cores": "own.example/card"}}],
            "own.yaml: Own and Own both have the resource own.example/card",
        ),
    ],
)
def test_rows_that_could_not_be_told_apart_are_refused(rows: list[Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        vendor_rows(own(*rows), "own.yaml")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("mine", "rows"),
    [("mlu", "Cambricon and Own"), ("my-kunlun", "Own and Kunlun"), ("metax", "Metax and Own")],
)
def test_names_of_cards_that_two_nodes_could_have_are_refused(mine: str, rows: str) -> None:
    """Card 0 of node `a-cambricon` would be `a-cambricon-mlu-0`, which is one of Cambricon's of node `a`."""
    row = OWN | {"capacity": CAPACITY | {"id": mine}, "assignment": ASSIGNMENT}
    with pytest.raises(BadInput) as caught:
        vendor_rows(own(row), "own.yaml")
    assert str(caught.value) == f"own.yaml: cards of {rows} could have the same name: change an id"


def test_a_row_of_ones_own_can_list_cards_by_capacity_and_tell_its_plugin(tmp_path: Path) -> None:
    assignment = ASSIGNMENT | {"answer": "none", "texts": {"own.example/where": "{node}/{indexes}"}}
    file = tmp_path / "vendors.yaml"
    file.write_text(own(OWN | {"capacity": CAPACITY, "assignment": assignment}))
    dialects = dialects_of(Settings(vendors_file=str(file)))
    node = a_foreign_node({}, {"own.example/card": "2"})
    node["status"]["capacity"] = {"own.example/card": "2"}
    cards = inventory_of(node, dialects).cards
    assert [card.uuid for card in cards] == ["node-a-own-0", "node-a-own-1"]
    shares = [Share(card.uuid, Amounts(1, 1, 1), False, (ContainerShare("main", 1, 1),)) for card in cards]
    indexes = {card.uuid: card.index for card in cards}
    told = hami_assignment(["main"], shares, lambda _: dialects.assignment(cards[0]), "node-a", 7, indexes.__getitem__)
    assert told["own.example/where"] == "node-a/0,1"


@pytest.mark.parametrize("name", [GPU, MEMORY, "nvidia.com/priority", "volcano.sh/vgpu-number"])
def test_a_row_that_takes_a_word_of_nvidias_is_refused(name: str, tmp_path: Path) -> None:
    """Else every container that uses the word would ask for cards of several kinds."""
    file = tmp_path / "vendors.yaml"
    file.write_text(own(OWN | {"resources": {"count": name}}))
    with pytest.raises(BadInput, match=f"settings: Own and NVIDIA both have the resource {name}"):
        dialects_of(Settings(vendors_file=str(file)))


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\xff")
    for file in (str(tmp_path / "missing"), str(tmp_path), str(binary)):
        with pytest.raises(BadInput, match="settings: vendors_file: "):
            dialects_of(Settings(vendors_file=file))


def test_each_row_has_another_annotation_or_capacity() -> None:
    registers = [each.place.split()[1] for each in DIALECTS.registers]
    assert len(registers) == len(set(registers))
    assert HAMI in registers


def test_ascends_cores_are_for_another_way_of_cutting_and_are_refused() -> None:
    limits = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-core": "20"}
    with pytest.raises(BadInput, match=r"huawei\.com/Ascend910B3-core: Ascend910B3 can't be asked for that here"):
        pod_request(a_pod_object(limits=limits), DIALECTS)


def test_hamis_plugin_for_a_vendor_is_told_in_its_own_annotation() -> None:
    card = replace(a_card(), vendor="ascend", model="Ascend910B3")
    annotations = DIALECTS.assignment(card)
    share = Share("NPU-1", Amounts(16_384, 25, 1), False, (ContainerShare("main", 16_384, 25),))
    told = hami_assignment(["main"], [share], lambda _: annotations, "node-a", 7)
    assert told["hami.io/Ascend910B3-devices-to-allocate"] == "NPU-1,Ascend910B3,16384,25:;"
    assert told["hami.io/Ascend910B3-devices-allocated"] == "NPU-1,Ascend910B3,16384,25:;"
    assert orjson.loads(told["huawei.com/Ascend910B3"]) == [
        {"UUID": "NPU-1", "temp": "vir05_1c_16g", "memory": 16_384, "core": 25}
    ]
    assert "hami.io/vgpu-devices-to-allocate" not in told


def test_a_pod_that_hami_gave_a_vendors_card_is_read() -> None:
    pod = a_pod_object(limits={"hygon.com/dcunum": "1"})
    pod["metadata"]["annotations"] = {"hami.io/dcu-devices-allocated": "DCU-1,DCU,1000,30:;"}
    assert pod_facts(pod, DIALECTS).old == OldDevices(
        "hami.io/dcu-devices-allocated", (AnnotatedCard("main", "DCU-1", 1_000, 30),)
    )
