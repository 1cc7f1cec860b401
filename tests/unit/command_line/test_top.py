"""The views of `top`: what is added up, in which order it comes, and that the data are the operator's own."""

from typing import Any

import pytest

from builders import a_card
from fakes.allocations import an_allocation, two_nodes
from gpuledger.command_line.top import SORTS, VIEWS
from gpuledger.command_line.top.rows import (
    OtherNode,
    cordoned_nodes,
    lines_of,
    other_nodes,
    top_json,
    top_table,
)
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.reports.cards import CardReport, by_node, report_of_stored
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]


@pytest.fixture
def reports() -> list[CardReport]:
    return [report_of_stored(stored_card(item)) for item in two_nodes()]


def shown(view: str, reports: list[CardReport], **wanted: Any) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in top_table(view, lines_of(view, reports), Terminal(blocks=False), **wanted)]


def test_a_node_is_the_sum_of_its_cards(reports: list[CardReport]) -> None:
    titles, unhealthy, used = shown("nodes", reports)
    assert titles == ["NODE", "CARDS", "MEMORY", "GIB", "COMPUTE", "CORES", "%", "SHARES", "SLOTS", "PODS", "STATE"]
    assert unhealthy == [
        "node-2",
        "1",
        "..........",
        "0.0/16",
        "..........",
        "0/100",
        "..........",
        "0/10",
        "0",
        "Unhealthy",
    ]
    assert used == [
        "node-10",
        "2",
        "#########.",
        "27.3/31",
        "########..",
        "150/200",
        "##........",
        "3/20",
        "3",
        "Ready",
    ]


def test_names_are_in_the_order_in_which_people_count(reports: list[CardReport]) -> None:
    assert [line.name for line in lines_of("nodes", reports)] == ["node-2", "node-10"]


@pytest.mark.parametrize("sort", sorted(SORTS))
def test_the_fullest_or_what_needs_somebody_comes_first(sort: str, reports: list[CardReport]) -> None:
    first = lines_of("nodes", reports, sort)[0].name
    assert first == ("node-2" if sort == "state" else "node-10")


def test_a_namespace_is_what_its_pods_hold(reports: list[CardReport]) -> None:
    assert shown("namespaces", reports)[1:] == [
        ["default", "2", "19.5", "120", "2", "2"],
        ["team", "1", "7.8", "30", "1", "1"],
    ]


def test_a_card_says_who_holds_it_and_why_it_takes_nobody(reports: list[CardReport]) -> None:
    _, unhealthy, shared, _ = shown("cards", reports, wide=True)
    assert unhealthy[-2:] == ["XID", "79"]
    assert shared[:3] == ["node-10", "0", "GPU-node-10-0"]
    assert shared[-2:] == ["default/web,", "team/chat"]


def test_all_of_it_is_the_last_row_where_somebody_reads(reports: list[CardReport]) -> None:
    assert shown("nodes", reports, sums=True)[-1][:4] == ["all", "3", "######....", "27.3/47"]


def test_the_data_of_nodes_and_cards_are_those_of_the_operator(reports: list[CardReport]) -> None:
    nodes = by_node(reports)
    assert top_json("nodes", reports) == {"nodes": [node.json() for node in nodes]}
    assert top_json("cards", reports) == {"cards": [card.json() for node in nodes for card in node.cards]}


def test_the_data_of_models_and_namespaces_have_sums(reports: list[CardReport]) -> None:
    models = {each["model"]: each for each in top_json("models", reports)["models"]}
    assert models["T4"] == {
        "model": "T4",
        "cards": 1,
        "pods": 0,
        "capacity": {"memoryMiB": 16_000, "cores": 100, "number": 10},
        "used": {"memoryMiB": 0, "cores": 0, "number": 0},
    }
    assert top_json("namespaces", reports)["namespaces"][1] == {
        "namespace": "team",
        "cards": 1,
        "pods": 1,
        "used": {"memoryMiB": 8_000, "cores": 30, "number": 1},
    }


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_ledger_has_titles_and_nothing_else(view: str) -> None:
    assert len(top_table(view, lines_of(view, []), Terminal())) == 1
    assert top_json(view, []) == {view: []}


def test_nodes_whose_gpus_are_not_in_the_ledger_come_last_and_count_in_no_sum(reports: list[CardReport]) -> None:
    nodes = [
        {"metadata": {"name": name}, "status": {"allocatable": amounts}}
        for name, amounts in {
            "node-10": {"nvidia.com/gpu": "20"},  # in the ledger
            "node-1": {"nvidia.com/gpu": "8"},
            "a-cpu-node": {"cpu": "8"},
            "plugin-gone": {"nvidia.com/gpu": "0"},
            "classic": {"volcano.sh/gpu-number": "2"},
        }.items()
    ]
    others = other_nodes(nodes, {report.card.node_name for report in reports})
    assert others == (OtherNode("classic", "volcano.sh/gpu-number", 2), OtherNode("node-1", "nvidia.com/gpu", 8))
    lines = lines_of("nodes", reports, "cards", others)
    rows = [row.split() for row in top_table("nodes", lines, Terminal(blocks=False), wide=True, sums=True)]
    assert rows[-3] == ["classic", "2", "Not", "ours", "volcano.sh/gpu-number"]
    assert rows[-2] == ["node-1", "8", "Not", "ours", "nvidia.com/gpu"]
    assert rows[-1][:2] == ["all", "3"]
    assert [each["node"] for each in top_json("nodes", reports, others)["notOurs"]] == ["classic", "node-1"]


def test_a_cordoned_node_is_said_to_be_in_its_row_and_in_those_of_its_cards(reports: list[CardReport]) -> None:
    cordoned = cordoned_nodes([a_node("node-10", unschedulable=True), a_node("node-2")])
    node_2, node_10 = lines_of("nodes", reports, cordoned=cordoned)
    assert node_10.state.startswith("Ready")
    assert "cordoned" in node_10.state
    assert "cordoned" not in node_2.state
    cards = lines_of("cards", reports, cordoned=cordoned)
    assert {line.lead[0] for line in cards if "cordoned" in line.state} == {"node-10"}
    assert len([line for line in cards if "cordoned" in line.state]) == 2


def test_a_cordoned_node_comes_first_where_what_needs_somebody_does() -> None:
    ready = [report_of_stored(stored_card(an_allocation(a_card(0, name)))) for name in ("node-1", "node-2")]
    assert [line.name for line in lines_of("nodes", ready, "state", cordoned={"node-2"})] == ["node-2", "node-1"]


def test_the_data_say_which_nodes_are_cordoned_as_a_node_does(reports: list[CardReport]) -> None:
    nodes = {each["node"]: each for each in top_json("nodes", reports, cordoned={"node-10"})["nodes"]}
    assert nodes["node-10"]["unschedulable"] is True
    assert "unschedulable" not in nodes["node-2"]
    cards = top_json("cards", reports, cordoned={"node-10"})["cards"]
    assert {card["node"] for card in cards if card.get("nodeUnschedulable")} == {"node-10"}


def test_a_cordoned_node_that_is_not_ours_is_still_not_counted(reports: list[CardReport]) -> None:
    (other,) = other_nodes([a_node("theirs", {"nvidia.com/gpu": "8"}, unschedulable=True)], ())
    assert other.json() == {"node": "theirs", "resource": "nvidia.com/gpu", "gpus": 8, "unschedulable": True}
    *_, theirs = lines_of("nodes", reports, others=[other])
    assert "cordoned" in theirs.state
    assert not theirs.in_ledger


def a_node(name: str, allocatable: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable or {}}}
