"""Gangs on the command line: how far one has come, what has happened to it, and which cards it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes.allocations import a_list, two_nodes
from fakes.kubectl import FakeKubectl
from fakes.view_answers import a_node, a_record, an_explanation
from fakes.view_server import ViewServer
from gpuledger.command_line.cluster_access import cluster_access
from gpuledger.command_line.commands.explain import explain_lines
from gpuledger.command_line.commands.history import history_lines, question
from gpuledger.command_line.options import names
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.model.gang import GangStage
from gpuledger.reports.explanation import Explanation, FitsOn, GangProgress, GangTurn, Kind, Lacking, MemberState
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]
NOW = datetime(2026, 8, 1, 12, 5, tzinfo=UTC)
PODS = "/api/v1/namespaces/default/pods"


def a_report(**changed: Any) -> Json:
    """Return how far a gang of eight has come of which five find cards."""
    facts: Json = {
        "state": GangStage.WAITING,
        "minimum": 8,
        "needed": 8,
        "running": 0,
        "waiting": 8,
        "on_hold": 0,
        "in_bind": 0,
        "fits": 5,
        "fits_on": [FitsOn("node-a", 3), FitsOn("node-b", 2)],
        "missing": [Lacking("1 card with 40,000 MiB", 3, 3)],
        "pods": [MemberState("train-0", "u", "fits", "node-a")],
    }
    members = GangProgress(**facts | changed)
    explained = Explanation(
        Kind.GANG,
        "lab",
        "train",
        members.state,
        "gang train: 5 of 8 members find cards at once",
        priority=100,
        since="2026-08-01T12:00:00Z",
        gang="train",
        gang_words="label gpuledger.dev/gang=train: 8 of its pods start together",
        members=members,
        example="train-7",
    )
    return {**explained.json(), "nodes": [a_node("node-a"), a_node("node-b")]}


def shown(**changed: Any) -> str:
    return "\n".join(explain_lines(a_report(**changed), Terminal(), NOW))


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environment)


@pytest.fixture
def view() -> Iterator[ViewServer]:
    server = ViewServer()
    yield server
    server.close()


def test_a_gang_is_explained_by_how_many_find_cards_where_and_what_is_missing() -> None:
    text = shown()
    assert text.startswith("lab/train: waiting\ngang train: 5 of 8 members find cards at once\n")
    for words in ("8 of its pods start together", "0 run, 8 wait", "3 members: 1 card with 40,000 MiB", "for 5 min"):
        assert words in text
    assert [line.split() for line in text.splitlines() if line.startswith("node-")] == [
        ["node-a", "3"],
        ["node-b", "2"],
    ]
    assert "Why train-7 finds no cards beside the others:" in text
    assert "2 nodes" not in text.partition("Why train-7")[0]
    assert "train-0" not in text
    assert "train-0   fits    node-a" in "\n".join(explain_lines(a_report(), Terminal(), NOW, wide=True))


def test_the_gang_that_is_tried_alone_is_named_where_it_may_be() -> None:
    turn = GangTurn("other/left", "alone", 12)
    assert "other/left is tried alone, for 12 s more" in shown(turn=turn)
    report = a_report(turn=turn)
    report["members"]["turn"]["gang"] = None
    assert "a gang of another namespace is tried alone" in "\n".join(explain_lines(report, Terminal(), NOW))


def test_the_gang_that_goes_first_is_named_and_how_often_one_was_overtaken() -> None:
    text = shown(turn=GangTurn("other/large", "first", 8), overtaken_by=3)
    assert "other/large goes first, for 8 s more" in text
    assert "by 3 gangs that came after it" in text


def test_explain_of_a_gang_ends_with_one_while_it_waits_and_with_zero_when_it_runs(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    view.answers["/v1/explain"] = (200, a_report())
    result = run("explain", "gang/train", "-n", "lab", "--operator-url", view.url)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "lab/train: waiting")
    assert view.asked == [("/v1/explain", {"gang": "lab/train"}, None)]
    view.answers["/v1/explain"] = (200, a_report(state=GangStage.RUNNING, running=8, waiting=0))
    result = run("explain", "gang", "train", "-o", "json", GPULEDGER_URL=view.url)
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (0, "running")


def test_a_member_points_to_its_gang() -> None:
    text = "\n".join(
        explain_lines(an_explanation(gang="train", gangWords="label gpuledger.dev/gang=train"), Terminal(), NOW)
    )
    assert "gpuledger explain gang/train -n default" in text
    assert "explain gang/" not in "\n".join(explain_lines(an_explanation(), Terminal(), NOW))


def test_a_gangs_history_is_asked_for_and_its_own_records_are_named_by_it() -> None:
    assert question(("gang/train",), None, 5) == {"limit": "5", "gang": "train"}
    records = [
        a_record("gang-planned", "cards for 3 of 3 members are kept", pod="", gang="train", node="", cards=[]),
        a_record("assigned", "the best of 3 nodes", gang="train"),
    ]
    lines = history_lines({"kept": 2, "dropped": 0, "records": records}, Terminal(), NOW)
    assert ["gang default/train" in line for line in lines] == [False, True, False]


def member(name: str, gang: str, uid: str, **status: Any) -> Json:
    labels = {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": "3"}
    metadata = {"namespace": "default", "name": name, "uid": uid, "labels": labels}
    return {"metadata": {**metadata, "creationTimestamp": "2026-08-01T12:00:00Z"}, "spec": {}, "status": status}


def test_top_shows_a_card_s_gang_and_only_the_cards_of_one_where_that_is_wanted(kubectl: FakeKubectl) -> None:
    pods = a_list(member("web", "train", "uid-web"), member("x", "other", "uid-x"))
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), "/api/v1/pods": pods, PODS: pods})
    titles, *lines = run("top", "cards").stdout.splitlines()
    assert titles.split()[-1] == "GANG"
    assert [line.split()[2] for line in lines if line.endswith("default/train")] == ["GPU-node-10-0"]
    found = json.loads(run("top", "cards", "--gang", "default/train", "-o", "json").stdout)
    assert [card["uuid"] for card in found["cards"]] == ["GPU-node-10-0"]
    assert [holder.get("gang") for holder in found["cards"][0]["holders"]] == ["train", None]
    assert run("top", "--gang", "default/train").stdout.splitlines()[1].split()[:2] == ["node-10", "1"]
    nobody = run("top", "--gang", "default/other")
    assert (nobody.exit_code, "No pod of gang default/other holds a card" in nobody.stderr) == (0, True)


def test_top_finds_gangs_that_others_name(kubectl: FakeKubectl) -> None:
    named = member("web", "unused", "uid-web")
    named["metadata"]["labels"] = {}
    named["spec"] = {"schedulingGroup": {"podGroupName": "native"}}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), PODS: a_list(named)})
    found = json.loads(run("top", "cards", "--gang", "default/native", "-o", "json").stdout)
    assert [card["uuid"] for card in found["cards"]] == ["GPU-node-10-0"]


def test_top_without_gangs_has_no_column_for_them_and_needs_no_permission_to_read_pods(kubectl: FakeKubectl) -> None:
    denied = (403, {"reason": "Forbidden", "message": "you may not list pods"})
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes())}, refusals={"/api/v1/pods": denied, PODS: denied})
    result = run("top", "cards")
    assert (result.exit_code, "GANG" in result.stdout) == (0, False)
    assert run("top", "cards", "--gang", "default/train").exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"), [(["--gang", "train"], "NAMESPACE/NAME"), (["-w", "--gang", "a/b"], "watch")]
)
def test_a_gang_that_cannot_be_shown_is_refused_with_why(kubectl: FakeKubectl, words: list[str], said: str) -> None:
    result = run("top", *words)
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_names_of_gangs_are_completed(kubectl: FakeKubectl) -> None:
    kubectl.tell({PODS: a_list(member("a", "train", "u"), member("b", "train", "v"), member("c", "eval", "w"))})
    with cluster_access(None, None) as cluster:
        assert names(cluster, ("pod", "gang"), "ga", None) == ["gang/"]
        assert names(cluster, ("pod", "gang"), "gang/", "default") == ["gang/eval", "gang/train"]


def test_who_may_not_ask_at_all_is_told_what_the_members_say(kubectl: FakeKubectl) -> None:
    lease = "/apis/coordination.k8s.io/v1/namespaces/gpuledger-system/leases/gpuledger-scheduler"
    told = {"type": "GPUAllocated", "status": "False", "message": "gang train: 1 of 3 members find cards at once"}
    pods = [member(name, "train", name, conditions=[told]) for name in "abc"]
    denied = (403, {"reason": "Forbidden", "message": "you may not"})
    token = "/api/v1/namespaces/default/serviceaccounts/default/token"
    kubectl.tell({PODS: a_list(*pods)}, refusals={lease: denied, token: denied})
    result = run("explain", "gang/train", "-n", "default")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[:2]) == (1, ["default/train: waiting", told["message"]])
    assert "gpuledger-developer" in result.stdout
    nobody = run("explain", "gang/nobody", "-n", "default")
    assert (nobody.exit_code, "is of a gang 'nobody'" in nobody.stderr) == (2, True)
