"""`top --usage`: what the agents say beside what the ledger has, whoever of them answers."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import a_card
from fakes.allocations import a_holder_of, a_list, two_nodes
from fakes.kubectl import FakeKubectl
from fakes.usage import a_used_card, a_used_share, an_answer
from fakes.view_server import ViewServer
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.command_line.top.usage import SORTS, VIEWS, usage_rows, usage_table
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]

PODS = "/api/v1/namespaces/gpuledger-system/pods"
FIRST, SECOND = a_card(0, "node-10"), a_card(1, "node-10")
WEB, CHAT = a_holder_of(FIRST, "web"), a_holder_of(FIRST, "chat", 8_000, 30, "team")
TRAIN = a_holder_of(SECOND, "train", 16_000, 100)
REGION = {"memoryLimitMiB": 4_000, "lastKernelSecondsAgo": 4, "source": "region"}


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["top", "--usage", *arguments], env=environment)


def an_agent(node: str, address: str = "10.0.0.7", ready: bool = True) -> Json:
    """Return the pod of a node's agent."""
    ports = [{"name": "health", "containerPort": 8890}]
    status: Json = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {
        "metadata": {"name": f"agent-of-{node}", "uid": f"uid-{node}"},
        "spec": {"nodeName": node, "containers": [{"ports": ports}]},
        "status": status,
    }


def usage_of(node: str) -> str:
    return f"{PODS}/agent-of-{node}:8890/proxy/usage"


def node_10(name: str = "node-10") -> Json:
    """Return what the agent of node-10 answers: web works, chat has nothing on the card, train is not known."""
    cards = [a_used_card(FIRST, 1_300, 37), a_used_card(SECOND, 0, 0)]
    uses = [a_used_share(FIRST, WEB, 1_200, 12, **REGION), a_used_share(FIRST, CHAT, 0, 0)]
    return an_answer(name, cards, uses)


def tell(kubectl: FakeKubectl, answers: Json | None = None, refusals: Json | None = None) -> None:
    agents = a_list(an_agent("node-10"), an_agent("node-2", address=""))
    known = {ALLOCATIONS: a_list(*two_nodes()), PODS: agents, "/version": {}, usage_of("node-10"): node_10()}
    kubectl.tell(known | (answers or {}), refusals)


def words(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def test_a_container_is_a_row_with_what_it_uses_beside_what_it_holds(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    titles, *rows = words(run())
    train, web, chat = sorted(rows, key=lambda row: row[2])
    assert " ".join(titles) == (
        "NODE INDEX POD CONTAINER USED OF HELD USED GIB HELD GIB LIMIT GIB CORES % BUSY % LAST KERNEL STATE"
    )
    (used_of_held,) = [cell for cell in web if "░" in cell]
    assert [cell for cell in web if cell != used_of_held] == (
        ["node-10", "0", "default/web", "main", "1.2", "3.9", "3.9", "20", "12", "4", "s", "ago", "in", "use"]
    )
    assert chat[2:4] + chat[5:] == ["team/chat", "main", "0.0", "7.8", "30", "0", "idle"]
    assert train[2:4] + train[5:] == ["default/train", "main", "?", "15.6", "100", "?", "not", "started"]


def test_agents_are_asked_once_each_and_what_is_not_known_is_said(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    result = run("cards")
    assert result.stderr == "not known of node-2: its agent does not run yet, or not any more\n"
    asked = [path for _, path, _ in kubectl.requests if "/proxy/" in path]
    assert asked == [usage_of("node-10")]
    selected = [path for _, path, _ in kubectl.requests if path.startswith(f"{PODS}?")]
    assert selected == [f"{PODS}?resourceVersion=0&labelSelector=app.kubernetes.io%2Fname%3Dgpuledger-agent"]
    rows = words(result)
    assert [row[:2] for row in rows] == [["NODE", "INDEX"], ["node-2", "0"], ["node-10", "0"], ["node-10", "1"]]
    assert rows[1][-2:] == ["0", "free"]
    assert rows[2][3:] == ["1.3", "11.7", "7.8", "15.6", "50", "37", "2", "1", "in", "use,", "1", "idle"]


def test_nodes_and_namespaces_are_sums(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    _, silent, node = words(run("nodes"))
    assert (silent[0], silent[2:6]) == ("node-2", ["?", "0.0", "0.0", "15.6"])
    assert node[2:10] == ["1.3", "27.3", "7.8", "31.2", "150", "18", "3", "1"]
    _, default, team = words(run("namespaces"))
    assert default[2:6] == ["1.2", "19.5", "0.0", "120"]
    assert team[2:] == ["0.0", "7.8", "7.8", "30", "1", "idle"]


def test_a_sum_of_which_some_is_not_known_says_so() -> None:
    def card(index: int, used_mib: int | None) -> Json:
        measured = {"memoryUsedMiB": used_mib, "utilizationPercent": None if used_mib is None else 50}
        held = {"memoryMiB": 4_096, "memoryHeldMiB": 2_048, "memoryIdleMiB": 0, "coresHeld": 10}
        return {"uuid": f"GPU-{index}", "index": index, "pods": [], **held, **measured}

    def used(*amounts: int | None) -> list[str]:
        node = {"node": "a", "problem": None, "cards": [card(*each) for each in enumerate(amounts)]}
        _, row = usage_table("nodes", usage_rows("nodes", [node]), Terminal(blocks=False))
        return row.split()[2:4]

    assert used(1_024, 2_048) == ["3.0", "4.0"]
    assert used(1_024, None) == ["1.0+", "4.0"]
    assert used(None, None) == ["?", "4.0"]


def test_the_data_have_all_of_it(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    found = json.loads(run("-o", "json", "--idle-after-s", "60").stdout)
    assert found["idleAfterS"] == 60
    node_10, node_2 = found["nodes"]
    assert (node_2["problem"], node_2["at"]) == ("its agent does not run yet, or not any more", None)
    assert node_10["at"] == "2026-08-01T12:00:00Z"
    card = node_10["cards"][0]
    assert (card["memoryHeldMiB"], card["memoryUsedMiB"], card["memoryIdleMiB"]) == (12_000, 1_300, 8_000)
    web = {pod["pod"]: pod for pod in card["pods"]}["web"]
    assert web["containers"][0] == {
        "container": "main",
        "memoryHeldMiB": 4_000,
        "coresHeld": 20,
        "memoryUsedMiB": 1_200,
        "memoryLimitMiB": 4_000,
        "utilizationPercent": 12,
        "lastKernelSecondsAgo": 4,
        "source": "region",
        "state": "in use",
    }


def test_only_the_agent_of_a_node_is_asked_where_only_that_is_meant(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    assert {row[0] for row in words(run("cards", "--node", "node-10"))[1:]} == {"node-10"}
    assert any("fieldSelector=spec.nodeName%3Dnode-10" in path for _, path, _ in kubectl.requests)


PROXY_IN_BETWEEN = "<html>gateway\x1b[2J timeout</html>"


@pytest.mark.parametrize(
    ("answers", "refusals", "problem"),
    [
        ({}, {usage_of("node-10"): (404, "404: Not Found")}, "is of an older release"),
        (
            {},
            {usage_of("node-10"): (404, {"reason": "NotFound", "message": 'pods "agent-of-node-10" not found'})},
            "does not run yet",
        ),
        (
            {},
            {usage_of("node-10"): (403, {"reason": "Forbidden", "message": "no"})},
            "your account may not `get` pods/proxy in namespace gpuledger-system",
        ),
        (
            {},
            {usage_of("node-10"): (503, {"message": "error trying to reach service: dial tcp: i/o timeout"})},
            "the API server does not reach its agent: error trying to reach service: dial tcp: i/o timeout",
        ),
        ({}, {usage_of("node-10"): (502, PROXY_IN_BETWEEN)}, "<html>gateway [2J timeout</html>"),
        ({}, {usage_of("node-10"): (302, "")}, "the API server does not reach its agent"),
        ({usage_of("node-10"): {"node": "node-10"}}, {}, "answer can't be read: "),
        ({usage_of("node-10"): "x" * 1_100_000}, {}, "answers with more than 1,048,576 bytes"),
        ({usage_of("node-10"): node_10("node-2")}, {}, "answers for node 'node-2', not for 'node-10'"),
        ({PODS: a_list()}, {}, "no agent of gpuledger runs there"),
    ],
)
def test_an_agent_that_does_not_answer_is_said_and_the_table_is_there(
    kubectl: FakeKubectl, answers: Json, refusals: Json, problem: str
) -> None:
    tell(kubectl, answers, refusals)
    result = run("cards")
    assert len(words(result)) == 4
    assert problem in result.stderr
    assert "\x1b" not in result.stderr


def test_who_may_not_list_the_agents_pods_is_told_what_is_missing(kubectl: FakeKubectl) -> None:
    tell(kubectl, {}, {PODS: (403, {"reason": "Forbidden", "message": "cannot list pods"})})
    result = run()
    assert result.exit_code == 2
    assert "needs `list` on pods and `get` on pods/proxy in namespace gpuledger-system" in result.output


def test_the_operator_answers_in_the_agents_place(kubectl: FakeKubectl) -> None:
    tell(kubectl)
    nodes = json.loads(run("-o", "json").stdout)["nodes"]
    server = ViewServer()
    try:
        server.answers["/v1/usage"] = (200, {"idleAfterS": 60, "nodes": nodes})
        by_operator = run("--idle-after-s", "60", "--operator-url", server.url)
        assert server.asked == [("/v1/usage", {"idleAfterS": "60"}, None)]
        assert by_operator.stdout == run().stdout
        assert {row[0] for row in words(run("cards", "--node", "node-2", GPULEDGER_URL=server.url))[1:]} == {"node-2"}
    finally:
        server.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--watch",), "leave out --watch, --by and --gang"),
        (("--gang", "a/b"), "leave out --watch, --by and --gang"),
        (("models",), "no view of models"),
        (("--sort", "slots"), "can't sort by slots"),
        (("--idle-after-s", "0"), "not in the range"),
    ],
)
def test_what_does_not_go_together_is_refused(kubectl: FakeKubectl, arguments: tuple[str, ...], text: str) -> None:
    tell(kubectl)
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.output


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("view", VIEWS)
def test_the_most_that_is_held_or_idle_comes_first(kubectl: FakeKubectl, view: str, sort: str) -> None:
    tell(kubectl)
    rows = usage_rows(view, json.loads(run("-o", "json").stdout)["nodes"], sort)
    amounts = [row.held_mib if sort == "memory" else row.idle_mib for row in rows]
    assert amounts == sorted(amounts, reverse=True)
    assert amounts[0] > 0
    assert len(usage_table(view, rows, Terminal(), wide=True)) == len(rows) + 1
