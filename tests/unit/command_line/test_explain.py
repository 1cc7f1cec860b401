"""Explanations and histories for people: the summary first, equal nodes once, nothing left out where all is wanted."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fakes.view_answers import a_node, a_placed_pod, a_record, an_explanation
from gpuledger.command_line.commands.explain import alike, asked_for, explain_lines
from gpuledger.command_line.commands.history import history_lines, question
from gpuledger.command_line.options import Named
from gpuledger.command_line.output import age
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand
from gpuledger.reports.explanation import Explanation, Kind, State, asked
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]

NOW = datetime(2026, 8, 1, 12, 5, tzinfo=UTC)
FORTY = [a_node(f"gpu-node-{number}") for number in range(1, 38)] + [
    a_node(f"cpu-node-{number}", offered=False, reason="no-cards", text="no cards", remedy=None) for number in (1, 2, 3)
]


def test_the_summary_comes_first_with_who_and_what_state() -> None:
    lines = explain_lines(an_explanation(*FORTY), Terminal(), NOW)
    assert lines[0] == "default/big: waiting"
    assert lines[1] == "No node has a card with 8000 MiB free; on gpu-node-1, 2,000 MiB are missing."


def test_facts_say_what_is_asked_for_how_long_it_waits_and_what_kube_scheduler_says() -> None:
    text = "\n".join(explain_lines(an_explanation(*FORTY), Terminal(), NOW))
    assert "main: 1 card with 8,000 MiB and 20 % of cores" in text
    assert "for 5 min, last tried 10 s ago" in text
    assert "untolerated taint" in text
    assert "3 nodes with cards, which kube-scheduler itself had ruled out" in text


def test_nodes_with_equal_reasons_are_one_row_though_what_helps_differs() -> None:
    lines = explain_lines(an_explanation(*FORTY), Terminal(), NOW)
    rows = [line for line in lines if "like" in line]
    assert len(rows) == 2
    assert rows[0].startswith("37 nodes like gpu-node-1   offers    ")
    assert "no card with 8000 MiB free   on gpu-node-1: would fit if 2,000 MiB more" in rows[0]
    assert rows[1].split()[:5] == ["3", "nodes", "like", "cpu-node-1", "refuses"]


def test_one_with_a_remedy_is_not_like_one_without() -> None:
    groups = alike([a_node("a"), a_node("b", remedy=None), a_node("c")])
    assert [[node["node"] for node in group] for group in groups] == [["a", "c"], ["b"]]


def test_cards_are_shown_of_one_node_of_each_kind_and_of_all_where_that_is_wanted() -> None:
    few = explain_lines(an_explanation(*FORTY[:2]), Terminal(), NOW)
    many, wide = (explain_lines(an_explanation(*FORTY), Terminal(), NOW, wide) for wide in (False, True))
    assert [sum("Cards of" in line for line in lines) for lines in (few, many, wide)] == [1, 2, 40]
    assert "short by 2000 MiB   default/chat-1, default/chat-2" in "\n".join(few)


def test_cards_that_say_the_same_are_one_row() -> None:
    cards = [
        {"uuid": f"GPU-{n}", "index": n, "model": "", "fits": False, "reason": "no-slot", "text": text, "by": []}
        for n, text in enumerate(("short by 1 slot", "short by 2 slots", "short by 1 slot"))
    ]
    lines = explain_lines(an_explanation(a_node("a", cards=cards)), Terminal(), NOW)
    rows = [line.split() for line in lines if "no-slot" in line and "short" in line]
    assert [row[:5] for row in rows] == [["2", "cards", "index", "0,", "2"], ["1", "GPU-1", "no-slot", "short", "by"]]


def test_whoever_would_have_to_leave_is_named_and_a_crowd_is_counted() -> None:
    leaving = [f"default/{name}" for name in ("one", "two", "three", "four", "five")]
    replicas = [f"default/web-{number}" for number in range(5)]
    for pods, named in (
        (leaving, "default/one, default/two, default/three +2"),
        (replicas, "5 pods like default/web-0"),
    ):
        text = "\n".join(explain_lines(an_explanation(a_node("a", wouldHaveToLeave=pods)), Terminal(), NOW))
        assert named in text


def test_a_placed_pod_shows_its_cards() -> None:
    text = "\n".join(explain_lines(a_placed_pod(), Terminal(), NOW))
    assert "default/big: placed\nIt is on gpu-node-1." in text
    assert "gpu-node-1       0   GPU-gpu-node-1-0   allocated   8000 MiB, 20 % cores" in text
    assert "waits" not in text


def test_a_narrow_terminal_breaks_no_line_of_an_explanation() -> None:
    lines = explain_lines(an_explanation(*FORTY), Terminal(width=60), NOW)
    assert max(map(len, lines)) <= 60
    assert "37 nodes like gpu-node-1" in "\n".join(lines)


def test_an_age_is_in_its_largest_unit_and_a_clock_that_is_behind_is_no_error() -> None:
    times = ["2026-08-01T12:05:30Z", "2026-08-01T12:04:01Z", "2026-08-01T09:05:00Z", "2026-07-01T00:00:00Z", None]
    assert [age(time, NOW) for time in times] == ["0 s", "59 s", "3 h", "31 d", "never"]


def test_records_say_when_what_whose_and_why() -> None:
    yesterday = a_record("refused", "no card with 8000 MiB free", time="2026-07-31T12:00:00Z", node="", cards=[])
    found = {"kept": 2, "dropped": 0, "records": [yesterday, a_record("assigned", "the best of 3 nodes")]}
    assert history_lines(found, Terminal(), NOW) == [
        "TIME                  WHAT       POD           NODE         WHY",
        "2026-07-31 12:00:00   refused    default/big                no card with 8000 MiB free",
        "12:00:00              assigned   default/big   gpu-node-1   the best of 3 nodes",
    ]
    wide = history_lines(found, Terminal(), NOW, wide=True)[2]
    assert wide.endswith("GPU-gpu-node-1-0: 8000 MiB, 20 % cores   gpu-node-2")


def test_no_records_is_a_sentence() -> None:
    assert "No record matches" in history_lines({"kept": 7, "dropped": 0, "records": []}, Terminal(), NOW)[0]


def test_a_history_is_asked_for_by_what_it_is_of() -> None:
    assert question((), None, 5) == {"limit": "5"}
    assert question(("pod/web",), "assigned", 5) == {"limit": "5", "kind": "assigned", "pod": "web"}
    assert question(("pods",), None, 5) == {"limit": "5", "pod": ""}
    assert question(("card/GPU-1",), None, 5) == {"limit": "5", "card": "GPU-1"}
    assert question(("node/a",), None, 5) == {"limit": "5", "node": "a"}
    with pytest.raises(BadInput, match="neither pod/NAME"):
        question(("web",), None, 5)


def a_workload(*nodes: Json, state: str = "waiting-for-cards") -> Json:
    """Return why a workload of Kueue waits, as the operator says it."""
    report = Explanation(
        Kind.WORKLOAD,
        "lab",
        "job-train-1",
        State(state),
        "5 of 8 pods find cards at once",
        owner="Job/train",
        queue="team",
        cluster_queue="low",
        since="2026-08-01T12:00:00Z",
        requests=[asked("main", Demand(1, exclusive=True, cores=100), 8)],
        example="main",
    )
    return {**report.json(), "nodes": list(nodes)}


def test_a_workload_says_what_it_waits_for_and_then_why_node_by_node() -> None:
    lines = explain_lines(a_workload(*FORTY), Terminal(), NOW)
    assert lines[0] == "lab/job-train-1: waiting-for-cards"
    assert lines[1] == "5 of 8 pods find cards at once"
    text = "\n".join(lines)
    for words in (
        "Job/train",
        "team",
        "low",
        "main: 8 pods, each 1 whole card",
        "for 5 min",
        "37 nodes like gpu-node-1",
    ):
        assert words in text
    assert "NODES" not in "\n".join(explain_lines(a_workload(), Terminal(), NOW))


@pytest.mark.parametrize(("state", "placed"), [("waiting-for-quota", False), ("has-quota", False), ("admitted", True)])
def test_a_workload_has_its_place_when_it_is_admitted(state: str, placed: bool) -> None:
    assert a_workload(state=state)["hasPlace"] is placed


@pytest.mark.parametrize("words", [("workload/train",), ("wl", "train")])
def test_a_workload_is_named_as_kubectl_names_it(words: tuple[str, ...]) -> None:
    assert asked_for(words) == Named("workload", "train")


def test_a_pod_says_which_queue_it_is_in() -> None:
    found = an_explanation(*FORTY)
    assert not any(line.split()[:1] == ["queue"] for line in explain_lines(found, Terminal(), NOW))
    lines = explain_lines({**found, "queue": "team of ClusterQueue low"}, Terminal(), NOW)
    assert [line.split(maxsplit=1)[1] for line in lines if line.split()[:1] == ["queue"]] == [
        "team of ClusterQueue low"
    ]
