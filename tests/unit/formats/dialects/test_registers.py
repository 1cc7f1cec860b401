"""Registers of HAMi's and Volcano's device plugins: the same cards as from ours, and a sentence on what is not read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from builders import cards_of
from fakes.dialects import HAMI, VOLCANO, VOLCANO_COUNT, a_foreign_node, dialects_with, hamis_item, inventory_of
from fakes.objects import DIALECTS, GPU
from gpuledger.formats.dialects.registers import MAX_CARDS, SCORES_ANNOTATION, read_scores
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, Inventory, node_facts, register_of
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import Dialect, NodeOffer

V100 = Card(
    "GPU-f571c8f8-948a-71b4-3be1-2bf02c7a1b20",
    "node-a",
    0,
    Amounts(32_768, 100, 10),
    model="NVIDIA-Tesla V100S-PCIE-32GB",
    mode="hami-core",
    numa_node=0,
)
SECOND = replace(V100, uuid="GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec", index=1, numa_node=1)

REPORT = f"{V100.uuid},10,32768,NVIDIA-Tesla V100S-PCIE-32GB,true,hami-core"
"""As the report on 200 nodes prints it: without the closing colon."""

FAQ = (
    "GPU-fc28df76-54d2-c387-e52e-5f0a9495968c,10,49140,100,NVIDIA-NVIDIA L40S,0,true:"
    "GPU-b97db201-0442-8531-56d4-367e0c7d6edd,10,49140,100,..."
)
"""As HAMi's FAQ prints it: cut off."""


def hami(text: str, dialects: Dialects = DIALECTS, scores: str | None = None) -> Inventory:
    annotations = {HAMI: text} | ({} if scores is None else {SCORES_ANNOTATION: scores})
    return inventory_of(a_foreign_node(annotations, {GPU: "20"}), dialects)


def volcano(text: str, dialects: Dialects = DIALECTS) -> Inventory:
    return inventory_of(a_foreign_node({VOLCANO: text}, {VOLCANO_COUNT: "20"}), dialects)


def item(card: Card, **fields: Any) -> dict[str, Any]:
    """Return a card as HAMi's plugin writes it: what is zero or false is left out."""
    whole = hamis_item(card)
    return {name: value for name, value in (whole | fields).items() if value}


def json_of(*items: Any) -> str:
    return orjson.dumps(items).decode()


JSON = json_of(item(V100), item(SECOND))
NINE = (
    f"{V100.uuid},10,32768,100,{V100.model},0,true,0,hami-core:"
    f"{SECOND.uuid},10,32768,100,{SECOND.model},1,true,1,hami-core"
)
SEVEN = f"{V100.uuid},10,32768,100,{V100.model},0,true:{SECOND.uuid},10,32768,100,{SECOND.model},1,true"
SIX = f"{REPORT}:{SECOND.uuid},10,32768,{SECOND.model},true,hami-core"
FIVE = f"{V100.uuid},10,32768,{V100.model},true:{SECOND.uuid},10,32768,{SECOND.model},true"


@pytest.mark.parametrize("closing", ["", ":"])
@pytest.mark.parametrize(
    ("annotation", "text", "numa_is_known"),
    [
        (HAMI, NINE, True),
        (HAMI, SEVEN, True),
        (VOLCANO, SIX, False),
        (VOLCANO, FIVE, False),
    ],
)
def test_all_text_formats_give_the_same_inventory(
    annotation: str, text: str, numa_is_known: bool, closing: str
) -> None:
    found = inventory_of(a_foreign_node({annotation: text + closing}, {GPU: "20", VOLCANO_COUNT: "20"}))
    cards = (V100, SECOND) if numa_is_known else (replace(V100, numa_node=None), replace(SECOND, numa_node=None))
    assert found == Inventory(cards)


def test_hamis_json_and_our_own_register_give_the_same_inventory_as_the_text_formats() -> None:
    assert hami(JSON) == hami("\n  " + JSON) == Inventory((V100, SECOND))
    own = a_foreign_node({REGISTER_ANNOTATION: register_of([V100, SECOND])}, {GPU: "20"})
    assert inventory_of(own) == Inventory((V100, SECOND))


def test_the_register_of_the_report_on_200_nodes_is_read() -> None:
    assert volcano(REPORT) == Inventory((replace(V100, numa_node=None),))


def test_the_register_of_hamis_faq_is_read_as_far_as_it_is_printed() -> None:
    found = hami(FAQ)
    assert found.cards == (
        Card(
            "GPU-fc28df76-54d2-c387-e52e-5f0a9495968c",
            "node-a",
            0,
            Amounts(49_140, 100, 10),
            model="NVIDIA-NVIDIA L40S",
            mode="hami-core",
            numa_node=0,
        ),
    )
    assert found.problems == (
        "node node-a, annotation hami.io/node-nvidia-register, card GPU-b97db201-0442-8531-56d4-367e0c7d6edd: "
        "it has 5 fields, not 7 or 9; the card is left out",
    )


def test_what_hami_leaves_out_is_zero_or_false() -> None:
    (card,) = hami(json_of({"id": "GPU-1", "devmem": 1_000, "count": 1})).cards
    assert (card.healthy, card.index, card.numa_node, card.capacity) == (False, 0, 0, Amounts(1_000, 0, 1))


@pytest.mark.parametrize("health", [{"health": False}, {"health": None}])
def test_absent_health_is_a_fault(health: Mapping[str, Any]) -> None:
    assert [card.healthy for card in hami(json_of(item(V100, **health), item(SECOND))).cards] == [False, True]


@pytest.mark.parametrize(
    ("text", "healthy"), [("true", True), ("1", True), ("T", True), ("false", False), ("0", False)]
)
def test_health_is_read_as_go_reads_it(text: str, healthy: bool) -> None:
    assert [card.healthy for card in volcano(REPORT.replace("true", text)).cards] == [healthy]
    assert [card.healthy for card in hami(SEVEN.replace("true", text)).cards] == [healthy] * 2


def test_a_gpu_in_mig_mode_is_one_that_is_cut_in_every_format_that_has_modes() -> None:
    """HAMi and Volcano list the GPU, and make its instances themselves: it must not be taken for one of these."""
    json = json_of(item(V100, mode="mig", migProfiles=[{"name": "1g.5gb"}]))
    assert [card.mode for card in hami(json).cards] == ["mig-parent"]
    assert [card.mode for card in hami(NINE.replace("hami-core", "mig")).cards] == ["mig-parent"] * 2
    assert [card.mode for card in volcano(SIX.replace("hami-core", "mig")).cards] == ["mig-parent"] * 2


def test_scaled_memory_and_cores_are_taken_as_they_are_registered() -> None:
    """The plugins multiply before they register; a card can offer its cores more than once."""
    (card,) = hami(json_of(item(V100, devmem=65_536, devcore=200))).cards
    assert card.capacity == Amounts(65_536, 200, 10)


def test_volcanos_memory_is_in_units_of_its_factor_and_hamis_is_not() -> None:
    dialects = dialects_with(volcano_memory_unit_mib=1_024)
    assert [card.capacity.memory_mib for card in volcano(REPORT.replace("32768", "32"), dialects).cards] == [32_768]
    assert [card.capacity.memory_mib for card in hami(JSON, dialects).cards] == [32_768] * 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (f"{V100.uuid},10,32768", "it has 3 fields, not 7 or 9"),
        (f"{V100.uuid},10,32768,100,model,0,true,0", "it has 8 fields, not 7 or 9"),
        (f"{V100.uuid},ten,32768,100,model,0,true", "its number of shares 'ten' is not a number"),
        (f"{V100.uuid},10,32G,100,model,0,true", "its memory '32G' is not a number"),
        (f"{V100.uuid},10,-32768,100,model,0,true", "memoryMiB: "),
        (f"{V100.uuid},10,32768,1e2,model,0,true", "its cores '1e2' is not a number"),
        (f"{V100.uuid},10,32768,100,model,zero,true", "its NUMA node 'zero' is not a number"),
        (f"{V100.uuid},10,32768,100,model,0,yes", "its health 'yes' is neither true nor false"),
        (f"{V100.uuid},10,32768,100,model,0,true,-1,hami-core", "index: "),
        (f"{V100.uuid},10,32768,100,model,0,true,x,hami-core", "its index 'x' is not a number"),
        (f"{V100.uuid},0,32768,100,model,0,true", "number: "),
        (f"{V100.uuid},10,9999999999999,100,model,0,true", "its memory '9999999999999' is not a number"),
        (",10,32768,100,model,0,true", "uuid: "),
        ("no card at all", "it has 1 fields, not 7 or 9"),
    ],
)
def test_a_bad_card_in_hamis_text_does_not_hide_the_others(bad: str, problem: str) -> None:
    found = hami(f"{bad}:{SECOND.uuid},10,32768,100,{SECOND.model},1,true,1,hami-core:")
    assert found.cards == (SECOND,)
    (told,) = found.problems
    assert problem in told
    assert told.startswith(f"node node-a, annotation {HAMI}, card ")
    assert told.endswith("; the card is left out")


@pytest.mark.parametrize(
    "bad", [7, None, "GPU-1", [], item(V100, id=""), item(V100, devmem="32768"), item(V100, count=0), {"health": True}]
)
def test_a_bad_card_in_hamis_json_does_not_hide_the_others(bad: Any) -> None:
    found = hami(json_of(bad, item(SECOND)))
    assert (found.cards, len(found.problems)) == ((SECOND,), 1)


@pytest.mark.parametrize(
    "bad", ["GPU-1", "GPU-1,10,32768,model", "GPU-1,10,32768,model,true,hami-core,7", "GPU-1,x,32768,model,true"]
)
def test_a_bad_card_in_volcanos_text_does_not_hide_the_others(bad: str) -> None:
    found = volcano(f"{bad}:{REPORT}")
    assert ([card.uuid for card in found.cards], len(found.problems)) == ([V100.uuid], 1)


@pytest.mark.parametrize("text", ["", " ", ":", "::"])
def test_a_register_of_no_cards_is_none(text: str) -> None:
    assert (hami(text), volcano(text)) == (Inventory(()), Inventory(()))


@pytest.mark.parametrize("text", ["[", "[}", "[1", '[{"id":]'])
def test_a_register_that_starts_like_json_and_is_none_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(BadInput, match=f"node node-a, annotation {HAMI}: it is not JSON"):
        hami(text)


def test_more_cards_than_any_node_has_are_refused_as_a_whole() -> None:
    with pytest.raises(BadInput, match="more than 1024 cards"):
        hami(json_of(*({} for _ in range(MAX_CARDS + 1))))
    with pytest.raises(BadInput, match="more than 1024 cards"):
        volcano("x:" * (MAX_CARDS + 1))


# Registers in which the same has other names.

DRS, SGPU = "enflame.com/gcu-drs-capacity", "metax-tech.com/node-gpu-devices"


def drs(text: str) -> Inventory:
    return inventory_of(a_foreign_node({DRS: text}, {"enflame.com/drs-gcu": "6"}))


def sgpu(**fields: Any) -> Inventory:
    card = {"uuid": "GPU-1", "model": "MXC500", "totalDevCount": 16, "totalCompute": 100, "totalVRam": 65_536}
    text = json_of({**card, "healthy": True, **fields})
    return inventory_of(a_foreign_node({SGPU: text}, {"metax-tech.com/sgpu": "16"}))


def test_cards_without_uuids_are_named_after_their_node_and_numbers_may_be_texts() -> None:
    text = '{"devices": [{"index": "3", "minor": "3", "capacity": "6"}, {"index": 4, "capacity": 6}], "profiles": {}}'
    found = [(card.uuid, card.index, card.capacity) for card in drs(text).cards]
    capacity = Amounts(40_960, 100, 6)
    assert found == [("node-a-enflame-drs-3", 3, capacity), ("node-a-enflame-drs-4", 4, capacity)]


@pytest.mark.parametrize("text", ["[]", "{}", '{"devices": 7}', '"devices"', "7"])
def test_a_register_without_its_list_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(BadInput, match=f"node node-a, annotation {DRS}: it has no list of cards under devices"):
        drs(text)


def test_a_bad_number_does_not_hide_the_other_cards() -> None:
    found = drs('{"devices": [{"index": "one", "capacity": 6}, 7, {"index": "1", "capacity": 6}]}')
    assert [card.index for card in found.cards] == [1]
    assert [problem.partition(", card number ")[2] for problem in found.problems] == [
        "0: its index 'one' is not a number; the card is left out",
        "1: it is no card; the card is left out",
    ]


def test_fields_with_other_names_mean_the_same() -> None:
    [card] = sgpu(numa=1).cards
    assert (card.uuid, card.model, card.vendor, card.numa_node) == ("GPU-1", "MXC500", "metax-sgpu", 1)
    assert (card.capacity, card.healthy) == (Amounts(65_536, 100, 16), True)
    [sick] = sgpu(healthy=False).cards
    assert not sick.healthy
    [problem] = sgpu(totalVRam=0).problems
    assert "memoryMiB" in problem


# Which register counts.


def both(hami_slots: str, volcano_slots: str) -> dict[str, Any]:
    """Return a node with one card in each register."""
    return a_foreign_node(
        {HAMI: json_of(item(SECOND)), VOLCANO: REPORT}, {GPU: hami_slots, VOLCANO_COUNT: volcano_slots}
    )


@pytest.mark.parametrize(
    ("slots", "uuid", "dialect", "served"),
    [
        (("10", "0"), SECOND.uuid, Dialect.HAMI, GPU),
        (("0", "10"), V100.uuid, Dialect.VOLCANO, VOLCANO_COUNT),
    ],
)
def test_of_two_registers_the_one_whose_plugin_answers_counts(
    slots: tuple[str, str], uuid: str, dialect: Dialect, served: str
) -> None:
    """The other one is what a plugin left behind that was replaced."""
    facts = node_facts(both(*slots), DIALECTS)
    assert facts.offer == NodeOffer(dialect, frozenset({served}), frozenset({GPU, VOLCANO_COUNT} - {served}))
    assert [card.uuid for card in inventory_of(both(*slots)).cards] == [uuid]


def test_while_no_plugin_answers_nothing_is_offered_and_the_cards_stay_known() -> None:
    assert node_facts(both("0", "0"), DIALECTS).offer is None
    assert len(inventory_of(both("0", "0")).cards) == 1


@pytest.mark.parametrize(("slots", "answers"), [("10", True), ("0", False)])
def test_our_own_register_goes_first_whatever_others_have_left_there(slots: str, answers: bool) -> None:
    (card,) = cards_of("node-a", 1)
    node = both(slots, "10")
    node["metadata"]["annotations"] |= {REGISTER_ANNOTATION: register_of([card]), SCORES_ANNOTATION: "{"}
    assert inventory_of(node) == Inventory((card,))
    offer = node_facts(node, DIALECTS).offer
    assert (offer and offer.dialect) == (Dialect.NATIVE if answers else None)


def test_handshakes_make_no_difference() -> None:
    plain = a_foreign_node({HAMI: JSON}, {GPU: "20"})
    shaken = a_foreign_node(
        {
            HAMI: JSON,
            "hami.io/node-handshake": "Deleted_2026-08-21 06:20:39",
            "volcano.sh/node-vgpu-handshake": "Reported 2026-05-25 07:58:20.213111834 +0000 UTC",
        },
        {GPU: "20"},
    )
    assert node_facts(shaken, DIALECTS) == node_facts(plain, DIALECTS)


# What a person should know.


def test_a_plugin_that_serves_another_name_than_the_settings_say_is_told_of() -> None:
    node = a_foreign_node({VOLCANO: REPORT}, {GPU: "10", VOLCANO_COUNT: "0"})
    (problem,) = inventory_of(node).problems
    for words_of_it in ("node node-a", f"in {VOLCANO}", f"offers {GPU}", f"none of {VOLCANO_COUNT}", "in the settings"):
        assert words_of_it in problem
    assert node_facts(node, DIALECTS).offer is None


def test_the_same_plugin_is_fine_where_the_settings_say_its_name() -> None:
    node = a_foreign_node({VOLCANO: REPORT}, {GPU: "10", VOLCANO_COUNT: "0"})
    dialects = dialects_with(volcano_count=GPU)
    assert inventory_of(node, dialects).problems == ()
    assert node_facts(node, dialects).offer == NodeOffer(Dialect.VOLCANO, frozenset({GPU}), frozenset({VOLCANO_COUNT}))


def test_a_node_of_volcanos_first_plugin_is_told_of_for_it_lists_no_uuids() -> None:
    found = inventory_of(a_foreign_node({}, {"volcano.sh/gpu-number": "8", "volcano.sh/gpu-memory": "196512"}))
    assert found.cards == ()
    (problem,) = found.problems
    assert problem.startswith("node node-a offers volcano.sh/gpu-number and lists no UUIDs of its cards")


# How cards reach each other.

SCORES = (
    '[{"uuid":"gpu0","score":{"gpu1":"100","gpu2":"100","gpu3":"200"}},'
    '{"uuid":"gpu1","score":{"gpu0":"100","gpu2":"200","gpu3":"100"}}]'
)
"""As HAMi's page on topology prints it; its plugin writes numbers."""


@pytest.mark.parametrize("text", [SCORES, SCORES.replace('"100"', "100").replace('"200"', "200")])
def test_scores_fill_the_links_of_their_cards(text: str) -> None:
    cards = json_of(*(item(V100, id=f"gpu{index}", index=index) for index in range(3)))
    found = hami(cards, scores=text)
    assert [dict(card.links) for card in found.cards] == [
        {"gpu1": 100, "gpu2": 100, "gpu3": 200},
        {"gpu0": 100, "gpu2": 200, "gpu3": 100},
        {},
    ]
    assert found.problems == ()


def test_a_card_has_no_link_to_itself() -> None:
    assert read_scores('[{"uuid":"gpu0","score":{"gpu0":7,"gpu1":8}}]') == {"gpu0": {"gpu1": 8}}


def test_the_highest_score_is_read() -> None:
    assert read_scores('[{"uuid":"gpu0","score":{"gpu1":1000000}}]') == {"gpu0": {"gpu1": 1_000_000}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("{}", "it is not a list of cards"),
        ("[7]", "an entry is no"),
        ('[{"uuid":"gpu0"}]', "an entry is no"),
        ('[{"uuid":7,"score":{}}]', "an entry is no"),
        ('[{"uuid":"gpu0","score":{"gpu1":-1}}]', "the score of gpu0 to gpu1 is no number"),
        ('[{"uuid":"gpu0","score":{"gpu1":true}}]', "the score of gpu0 to gpu1 is no number"),
        ('[{"uuid":"gpu0","score":{"gpu1":1.5}}]', "the score of gpu0 to gpu1 is no number"),
        ('[{"uuid":"gpu0","score":{"gpu1":"1e3"}}]', "the score of gpu0 to gpu1 is no number"),
        ('[{"uuid":"gpu0","score":{"gpu1":1000001}}]', "the score of gpu0 to gpu1 is no number"),
        ('[{"uuid":"gpu0","score":{"gpu1":9999999}}]', "the score of gpu0 to gpu1 is no number"),
    ],
)
def test_scores_that_can_not_be_read_cost_the_links_and_no_card(text: str, sentence: str) -> None:
    found = hami(JSON, scores=text)
    assert found.cards == (V100, SECOND)
    (problem,) = found.problems
    assert sentence in problem
    assert problem.endswith("; the scores are left out")


# Other vendors.

ASCEND = "hami.io/node-register-Ascend310P"
ASCEND_ITEM = item(V100, id="npu0", devmem=21_527, devcore=8, type="Ascend310P", mode="", count=7)


def test_the_register_of_another_vendor_gives_that_vendors_cards() -> None:
    (card,) = inventory_of(a_foreign_node({ASCEND: json_of(ASCEND_ITEM)}, {"huawei.com/Ascend310P": "7"})).cards
    assert (card.vendor, card.model, card.capacity) == ("ascend", "Ascend310P", Amounts(21_527, 100, 7))


def test_ascends_ai_cores_are_read_as_percent_and_percent_stays() -> None:
    """Its plugin lists AI cores, 8 on a 310P, and percent where HAMi-core cuts the card."""
    items = json_of(*(ASCEND_ITEM | {"id": f"npu{cores}", "devcore": cores} for cores in (8, 4, 100)))
    found = inventory_of(a_foreign_node({ASCEND: items}, {"huawei.com/Ascend310P": "7"}))
    assert [card.capacity.cores for card in found.cards] == [100, 50, 100]


def test_vendors_that_write_text_are_read_too() -> None:
    node = a_foreign_node(
        {"hami.io/node-dcu-register": "DCU-0,4,65536,100,DCU-K100_AI,0,true,0,hami-core:"}, {"hygon.com/dcunum": "4"}
    )
    (card,) = inventory_of(node).cards
    assert (card.vendor, card.model, card.capacity) == ("hygon", "DCU-K100_AI", Amounts(65_536, 100, 4))


def test_registers_of_several_vendors_on_a_node_do_not_hide_each_other() -> None:
    node = a_foreign_node({HAMI: JSON, ASCEND: json_of(ASCEND_ITEM)}, {GPU: "20", "huawei.com/Ascend310P": "7"})
    assert {card.vendor for card in inventory_of(node).cards} == {"nvidia", "ascend"}
    assert node_facts(node, DIALECTS).offer == NodeOffer(Dialect.HAMI, frozenset({GPU, "huawei.com/Ascend310P"}))


def test_what_a_plugin_of_another_system_has_beside_the_nodes_dialect_is_not_offered() -> None:
    """A pod is told of all its cards in one system's words: HAMi's plugin for Ascend does not read Volcano's."""
    volcano = f"{V100.uuid},10,16384,V100,true,hami-core:"
    node = a_foreign_node(
        {VOLCANO: volcano, ASCEND: json_of(ASCEND_ITEM)}, {VOLCANO_COUNT: "10", "huawei.com/Ascend310P": "7"}
    )
    assert node_facts(node, DIALECTS).offer == NodeOffer(Dialect.VOLCANO, frozenset({VOLCANO_COUNT}))


def test_a_vendor_whose_plugin_is_gone_is_not_told_to_serve_the_name_of_another_vendor() -> None:
    node = a_foreign_node({HAMI: JSON, ASCEND: json_of(ASCEND_ITEM)}, {GPU: "20", "huawei.com/Ascend310P": "0"})
    assert inventory_of(node).problems == ()


def test_a_vendor_that_is_not_in_use_has_no_register() -> None:
    node = a_foreign_node({ASCEND: json_of(ASCEND_ITEM)}, {"huawei.com/Ascend310P": "7"})
    assert inventory_of(node, dialects_with(vendors=[])) == Inventory(())
