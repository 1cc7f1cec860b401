"""Lists in which many are alike: replicas are a line with their number, and scripts and `-o wide` still get each."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from builders import a_card, a_holder, a_share, cards_of
from fakes.allocations import a_list, an_allocation
from fakes.kubectl import FakeKubectl
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.view_answers import a_node, a_record, an_explanation
from gpuledger.command_line.commands import audit
from gpuledger.command_line.commands.explain import explain_lines
from gpuledger.command_line.commands.history import history_lines
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.ledger.adoption import Step
from gpuledger.ledger.audit import AuditFinding, AuditFindingKind
from gpuledger.model.card import Card
from gpuledger.model.share import Pod
from gpuledger.reports.tables import Terminal
from gpuledger.workflows.repair import Report

Json = dict[str, Any]

NOW = datetime(2026, 8, 1, 12, 5, tzinfo=UTC)
NODES = [a_node_object(f"node-{letter}", cards_of(f"node-{letter}", 4)) for letter in "ab"]
REPLICAS = [f"chat-678c5fc7f9-{end}" for end in ("2l2fm", "4677n", "4bpvz", "5jkj7", "zm6pp")]


def a_deployment(name: str, limits: Json, replicas: int = 30) -> Json:
    template = {"spec": a_pod_object("x", limits)["spec"]}
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": replicas, "template": template}}


def given(command: str, *documents: object, output: str = "table") -> Result:
    """Give documents to a command on its standard input."""
    text = yaml.safe_dump_all(documents)
    return CliRunner().invoke(main, [command, "-f", "-", "-o", output], input=text)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def rows(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if name in line and "find" not in line]


# simulate


def test_replicas_are_a_row_with_how_many_of_them_are_on_which_node() -> None:
    chat = a_deployment("chat", {GPU: 1, MEMORY: 5000})
    found = given("simulate", *NODES, chat)
    [placed, waiting] = rows(found.stdout, "chat")
    assert placed.startswith("24 pods like default/chat-0")
    assert "12 on node-a and 12 on node-b" in placed or "12 on node-b and 12 on node-a" in placed
    assert placed.split()[-3:] == ["8", "cards", "5000"]
    assert waiting.split("  ")[0] == "6 pods like default/chat-24"
    assert found.stdout.splitlines()[-1] == "24 of 30 pods fit."
    assert len(json.loads(given("simulate", *NODES, chat, output="json").stdout)["pods"]) == 30
    assert len(rows(given("simulate", *NODES, chat, output="wide").stdout, "default/chat-")) == 30


def test_replicas_on_one_node_say_on_which_of_its_cards_they_are_and_how_many_each_has() -> None:
    [row] = rows(given("simulate", NODES[0], a_deployment("pair", {GPU: 2, MEMORY: 5000}, 6)).stdout, "pair")
    assert row.split() == ["6", "pods", "like", "default/pair-0", "node-a", "main", "0-3", "4", "cards,", "2", "each",
                           "5000"]  # fmt: skip
    [row] = rows(given("simulate", NODES[0], a_deployment("one", {GPU: 1, MEMORY: 5000}, 3)).stdout, "one")
    assert row.split()[-3:] == ["0", "GPU-node-a-0", "5000"]


def test_who_finds_no_room_for_the_same_reasons_is_told_together() -> None:
    crowd, other = a_deployment("a", {GPU: "9"}), a_deployment("b", {GPU: "9"}, 1)
    large = a_pod_object("large", {GPU: 1, MEMORY: 99_000})
    lines = given("simulate", *NODES, crowd, other, large).stdout.splitlines()
    reasons = [line for line in lines if line.endswith("no room:")]
    assert reasons == ["30 pods like default/a-0 and default/b-0 find no room:", "default/large finds no room:"]
    assert len([line for line in lines if line.startswith("  2 nodes:")]) == 2


def test_what_is_wrong_with_each_replica_is_said_once_to_people_and_of_each_to_scripts() -> None:
    bad = a_deployment("bad", {GPU: "1.5"})
    found = given("simulate", *NODES, bad)
    [error] = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert "Pod default/bad-0, Pod default/bad-1, Pod default/bad-2 and 27 more: " in error
    assert len(json.loads(given("simulate", *NODES, bad, output="json").stdout)["problems"]) == 30


def test_what_is_skipped_is_one_note_for_a_whole_release() -> None:
    others = [{"kind": "Service", "metadata": {"name": f"web-{number}"}} for number in range(20)]
    found = given("simulate", *NODES, *others)
    [note] = [line for line in found.stderr.splitlines() if line.startswith("note: ")]
    assert "Service web-0, Service web-1, Service web-2 and 17 more" in note


@pytest.mark.parametrize("output", ["table", "wide", "json"])
def test_without_nodes_there_is_no_answer_but_how_to_give_some(output: str) -> None:
    found = given("simulate", a_deployment("chat", {GPU: 1}), output=output)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "no Node was given" in found.stderr
    assert "kubectl get nodes -o yaml" in found.stderr
    assert "--from-cluster" in found.stderr


def test_nodes_of_which_none_can_be_used_are_not_none_that_were_given() -> None:
    found = given("simulate", a_node_object("broken", register="["), a_pod_object("a"))
    assert (found.exit_code, found.stdout) == (2, "")
    assert "Node broken: " in found.stderr
    assert "no node can be used" in found.stderr
    assert "was given" not in found.stderr


def test_to_copy_a_node_where_there_is_none_is_no_other_error() -> None:
    text = yaml.safe_dump(a_pod_object("a"))
    found = CliRunner().invoke(main, ["simulate", "-f", "-", "--add-nodes", "1", "--like", "x"], input=text)
    assert (found.exit_code, "no Node was given" in found.stderr) == (2, True)


def test_of_many_nodes_that_could_be_copied_some_are_named_and_the_others_counted() -> None:
    for count, said in ((5, "n0, n1, n2, n3 and n4\n"), (7, "n0, n1, n2, n3, n4 and 2 more\n")):
        text = yaml.safe_dump_all([a_node_object(f"n{number}", cards_of(f"n{number}", 1)) for number in range(count)])
        found = CliRunner().invoke(main, ["simulate", "-f", "-", "--add-nodes", "1", "--like", "x"], input=text)
        assert said in found.stderr


# inspect


def test_pods_and_nodes_that_are_read_alike_are_shown_once() -> None:
    pods = [a_pod_object(name, {GPU: 1, MEMORY: 5000}) for name in REPLICAS]
    nodes = [a_node_object(f"n{number}", cards_of(f"n{number}", 2)) for number in range(3)]
    other = a_pod_object("chat-678c5fc7f9-xxxxx", {GPU: 1, MEMORY: 6000})
    titles = [line for line in given("inspect", *pods, other, *nodes).stdout.splitlines() if "like" in line]
    assert [title.partition(":")[0] for title in titles] == [f"5 Pods like default/{REPLICAS[0]}", "3 Nodes like n0"]
    assert "Pod default/chat-678c5fc7f9-xxxxx" in given("inspect", *pods, other).stdout
    wide = given("inspect", *pods, *nodes, output="wide").stdout
    assert "like" not in wide
    assert wide.count("Pod default/chat-") == 5
    assert len(json.loads(given("inspect", *pods, *nodes, output="json").stdout)["items"]) == 8


def test_jobs_from_one_template_are_shown_once() -> None:
    jobs = [{**a_deployment(f"run-{number}", {GPU: 1}, 2), "kind": "Job"} for number in range(30)]
    [title] = [line for line in given("inspect", *jobs).stdout.splitlines() if "Pod" in line]
    assert title == "30 Pods like run-0 (spec.template of Job/run-0, 2 of each)"


def test_one_with_a_problem_is_not_among_those_without() -> None:
    pods = [a_pod_object(name, {GPU: 1, MEMORY: "4Gi" if name == REPLICAS[2] else 4000}) for name in REPLICAS]
    found = given("inspect", *pods)
    assert found.exit_code == 1
    assert f"4 Pods like default/{REPLICAS[0]}" in found.stdout
    assert f"Pod default/{REPLICAS[2]}\n" in found.stdout


# describe


def a_running_pod(name: str, card: Card, told_mib: int = 4000) -> Json:
    devices = json.dumps({"main": [{"uuid": card.uuid, "memoryMiB": told_mib, "cores": 20}]})
    metadata = {"name": name, "uid": name, "annotations": {DEVICES_ANNOTATION: devices}}
    return {"metadata": metadata, "spec": {"nodeName": card.node_name}, "status": {"phase": "Running"}}


@pytest.fixture
def crowd(kubectl: FakeKubectl) -> FakeKubectl:
    """Tell of five replicas on the cards of two nodes, the annotation of the last of which says something else."""
    first, second = (a_card(0, f"node-{number}") for number in (1, 2))
    cards = [
        an_allocation(card, *(a_holder(name, a_share(card, 4000)) for name in names))
        for card, names in ((first, REPLICAS[:3]), (second, REPLICAS[3:]))
    ]
    pods = [a_running_pod(name, first if place < 3 else second) for place, name in enumerate(REPLICAS[:4])]
    pods.append(a_running_pod(REPLICAS[4], second, told_mib=1))
    in_team = "/api/v1/namespaces/team/pods"
    each = {f"{in_team}/{pod['metadata']['name']}": pod for pod in pods}
    kubectl.tell({ALLOCATIONS: a_list(*cards), in_team: {"items": pods}, **each})
    return kubectl


def test_describe_pods_shows_one_of_those_that_have_the_same_and_where_all_are(crowd: FakeKubectl) -> None:
    shown = run("describe", "pods", "-n", "team").stdout
    assert f"4 pods like team/{REPLICAS[0]}: Running, 3 on node-1 and 1 on node-2" in shown
    assert f"team/{REPLICAS[4]}: Running, on node node-2" in shown
    assert shown.count("In the ledger") == 2
    wide = run("describe", "pods", "-n", "team", "-o", "wide").stdout
    assert (wide.count("In the ledger"), "like" in wide) == (5, False)
    assert len(json.loads(run("get", "pods", "-n", "team", "-o", "json").stdout)["items"]) == 5


def test_pods_that_are_named_are_all_shown(crowd: FakeKubectl) -> None:
    assert run("describe", "pod", *REPLICAS[:3], "-n", "team").stdout.count("In the ledger:") == 3


def test_who_holds_a_card_is_named_until_it_is_a_crowd(kubectl: FakeKubectl) -> None:
    def rows_of(count: int, *arguments: str) -> list[str]:
        holders = [a_holder(f"web-{number}", a_share(a_card(), 100)) for number in range(count)]
        kubectl.tell({ALLOCATIONS: a_list(an_allocation(a_card(), *holders))})
        return rows(run("describe", "card/GPU-", *arguments).stdout, "web-")

    assert len(rows_of(10)) == 10
    [row] = rows_of(30)
    assert row.startswith("30 pods like default/web-0 ")
    assert len(rows_of(30, "-o", "wide")) == 30


def test_top_counts_replicas_that_hold_a_card(crowd: FakeKubectl) -> None:
    assert f"3 pods like default/{REPLICAS[0]}" in run("top", "cards", "-o", "wide").stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("card/GPU-5", "GPU-5a and GPU-5b; name more of it"),
        ("card/GPU-", "GPU-5a, GPU-5b, GPU-6a, GPU-6b and 2 more; name more of it"),
        ("card/GPU-6", "GPU-6a, GPU-6b, GPU-6c and GPU-6d; name more of it"),
    ],
)
def test_of_cards_that_could_be_meant_all_or_some_are_named_and_it_is_clear_which(
    kubectl: FakeKubectl, name: str, said: str
) -> None:
    names = ("GPU-5a", "GPU-5b", "GPU-6a", "GPU-6b", "GPU-6c", "GPU-6d")
    kubectl.tell({ALLOCATIONS: a_list(*(an_allocation(a_card(uuid=each)) for each in names))})
    found = run("get", name)
    assert found.exit_code == 2
    assert said in found.stderr
    assert "..." not in found.stderr


# explain and history


def test_cards_that_other_replicas_hold_are_one_row_and_each_is_there_where_that_is_wanted() -> None:
    cards = [
        {"uuid": f"GPU-{n}", "index": n, "fits": False, "reason": "no-memory", "text": "short by 1 MiB",
         "by": [f"default/chat-678c5fc7f9-{n}{end}" for end in ("bcdf", "ghjk", "lmnp")]}
        for n in (2, 4, 5)
    ]  # fmt: skip
    found = an_explanation(a_node("a", cards=cards))
    [row] = [line.strip() for line in explain_lines(found, Terminal(), NOW) if "short by" in line]
    assert row.startswith("3 cards   index 2, 4-5 ")
    assert row.endswith("9 pods like default/chat-678c5fc7f9-2bcdf")
    assert sum("short by" in line for line in explain_lines(found, Terminal(), NOW, wide=True)) == 3


def test_what_happens_to_many_replicas_at_one_time_is_one_row() -> None:
    def assigned(second: int, pod: str, node: str = "node-a", text: str = "by policy binpack") -> Json:
        return a_record("assigned", text, pod=pod, node=node, time=f"2026-08-01T12:00:{second:02}Z")

    records = [
        assigned(0, REPLICAS[0]),
        a_record("refused", "no slot", node="", pod="big", time="2026-08-01T12:00:01Z"),
        assigned(2, REPLICAS[1], "node-b"),
        assigned(3, REPLICAS[2]),
        assigned(4, REPLICAS[3], text="another reason"),
        assigned(5, REPLICAS[1], "node-b"),  # again
        assigned(40, REPLICAS[4]),  # much later
    ]
    found = {"kept": 7, "dropped": 0, "records": records}
    shown = [" ".join(line.split()) for line in history_lines(found, Terminal(), NOW)[1:]]
    assert shown == [
        "12:00:01 refused default/big no slot",
        f"12:00:03 assigned 3 pods like default/{REPLICAS[0]} 2 on node-a and 1 on node-b by policy binpack",
        f"12:00:04 assigned default/{REPLICAS[3]} node-a another reason",
        f"12:00:05 assigned default/{REPLICAS[1]} node-b by policy binpack",
        f"12:00:40 assigned default/{REPLICAS[4]} node-a by policy binpack",
    ]
    assert len(history_lines(found, Terminal(), NOW, wide=True)) == 8


# audit and migrate


def test_findings_that_are_the_same_of_many_replicas_are_one_row_and_those_of_cards_stay() -> None:
    def of(name: str, place: int) -> AuditFinding:
        pod = Pod(name, "default", name)
        return AuditFinding(AuditFindingKind.POD_GONE, "node-a", f"GPU-{place}", pod, "1000 MiB, 0 % cores, 1 slot")

    findings = tuple(of(name, place) for place, name in enumerate(REPLICAS))
    cards = tuple(AuditFinding(AuditFindingKind.TWO_NODES, "node-a", f"GPU-{n}", None, "twice") for n in range(5))
    report = Report((), findings + cards)
    lines = list(audit.as_lines(report, Terminal()))
    [row] = [line for line in lines if "1000 MiB" in line]
    assert row.split()[:6] == ["node-a", "5", "cards", "5", "pods", "like"]
    assert sum("twice" in line for line in lines) == 5
    assert lines[-1] == "10 found: 10 left."
    assert sum("1000 MiB" in line for line in audit.as_lines(report, Terminal(), wide=True)) == 5
    assert len(audit.as_json(report)) == 10


def test_shares_of_many_replicas_that_would_be_entered_are_one_row_and_those_of_one_pod_are_not() -> None:
    def of(name: str, place: int, why: str = "") -> Step:
        card = cards_of("node-a", 8)[place]
        return Step(Pod(name, "default", name), "node-a", "hami.io/vgpu-devices-allocated", a_share(card, 1000), why)

    blocked = of(REPLICAS[4], 4, "no such card")
    steps = (*(of(name, place) for place, name in enumerate(REPLICAS[:4])), blocked, *(of("big", n) for n in range(4)))
    lines = list(audit.step_lines(steps, True, Terminal()))
    assert [line.split()[:4] for line in lines if "pods like" in line] == [
        ["4", "pods", "like", f"default/{REPLICAS[0]}"]
    ]
    assert sum("default/big" in line for line in lines) == 4
    assert [line for line in lines if "no such card" in line]
    assert lines[-1] == "8 shares would be entered, 1 needs a decision."
    assert sum("would be entered" in line for line in audit.step_lines(steps, True, Terminal(), wide=True)) == 9
