"""`top --by`: what namespaces and queues may have, hold, and wait for; and what an account may not read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes.allocations import a_list, two_nodes
from fakes.kubectl import FakeKubectl
from fakes.objects import a_pod_object
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.command_line.top.teams import CLUSTER_QUEUES, PODS, QUOTAS, watch_teams
from gpuledger.formats.kubernetes.workload import CLUSTER_QUEUE_LABEL
from gpuledger.model.errors import Unreachable
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]

FORBIDDEN = (403, {"reason": "Forbidden", "message": "you may not"})


def a_quota(namespace: str, **hard: str) -> Json:
    keys = {f"limits.nvidia.com/{name}": amount for name, amount in hard.items()}
    return {"metadata": {"name": "gpus", "namespace": namespace}, "spec": {"hard": keys}}


def a_waiting_pod(namespace: str, limits: Json) -> Json:
    pod = a_pod_object("late", limits)
    pod["metadata"]["namespace"] = namespace
    pod["spec"].pop("nodeName", None)
    return pod


def a_queue(name: str, quota: str, reserved: str = "0", borrowed: str = "0", **workloads: int) -> Json:
    """Return a ClusterQueue with a quota of cores, and some CPU."""
    cpu = {"name": "cpu", "nominalQuota": "16"}
    flavor = {"name": "any", "resources": [{"name": "gpuledger.dev/cores", "nominalQuota": quota}, cpu]}
    total = {"name": "gpuledger.dev/cores", "total": reserved, "borrowed": borrowed}
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": "teams", "resourceGroups": [{"flavors": [flavor]}]},
        "status": {"flavorsReservation": [{"name": "any", "resources": [total]}], **workloads},
    }


def a_queued_pod(name: str, queue: str) -> Json:
    """Return a pod of which `two_nodes` has a share: the UID is made of its name."""
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": {CLUSTER_QUEUE_LABEL: queue}}, "spec": {}}


def tell(kubectl: FakeKubectl, answers: Json, refusals: Json | None = None) -> None:
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), **answers}, refusals)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["top", *arguments])


def data(*arguments: str) -> Json:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def rows(*arguments: str) -> dict[str, list[str]]:
    """Return the rows of a table, by what stands first."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}


@pytest.fixture
def teams(kubectl: FakeKubectl) -> FakeKubectl:
    pods = [
        a_waiting_pod("team", {"nvidia.com/gpu": "1"}),
        a_waiting_pod("later", {"nvidia.com/gpumem": "3000"}),
        a_waiting_pod("team", {"cpu": "1"}),
    ]
    quotas = [a_quota("team", gpumem="40000", gpucores="200", **{"gpumem.T4": "1000"}), a_quota("idle", gpu="4")]
    tell(kubectl, {PODS: a_list(*pods), QUOTAS: a_list(*quotas)})
    return kubectl


def test_a_namespace_shows_what_it_holds_of_its_quota_and_how_many_pods_wait(teams: FakeKubectl) -> None:
    found = {row["namespace"]: row for row in data("--by", "namespace")["namespaces"]}
    assert set(found) == {"default", "team", "later", "idle"}  # who holds, waits, or has a quota
    team = found["team"]
    assert team["used"] == {"memoryMiB": 8_000, "cores": 30, "number": 1}
    assert (team["pods"], team["cards"], team["waiting"]) == (
        1,
        1,
        1,
    )  # a pod that asks for CPU does not wait for cards
    limits = {each["key"]: (each["used"], each["limit"]) for each in team["quota"]}
    assert limits["limits.nvidia.com/gpumem"] == (8_000, 40_000)
    assert limits["limits.nvidia.com/gpumem.T4"] == (0, 1_000), "it holds none of that model"
    assert (found["later"]["waiting"], found["default"]["waiting"]) == (1, 0)


def test_the_table_of_namespaces_has_held_and_allowed_side_by_side(teams: FakeKubectl) -> None:
    found = rows("--by", "namespace", "-o", "wide")
    assert found["team"][:5] == ["1", "1", "8000/40000", "30/200", "1"], "a limit of one model is not that of all"
    assert found["idle"][:5] == ["0", "0/4", "0", "0", "0"]
    assert found["default"][1:4] == ["2", "20000", "120"]


def test_rows_can_be_sorted_by_what_is_held(teams: FakeKubectl) -> None:
    assert list(rows("--by", "namespace", "--sort", "memory"))[1:3] == ["default", "team"]


def test_only_pods_without_a_node_are_read(teams: FakeKubectl) -> None:
    run("--by", "namespace")
    [path] = [path for _, path, _ in teams.requests if path.startswith(f"{PODS}?")]
    assert "spec.nodeName" in path


def test_a_namespace_is_shown_without_what_may_not_be_read(teams: FakeKubectl) -> None:
    tell(teams, {}, {PODS: FORBIDDEN, QUOTAS: FORBIDDEN})
    found = {row["namespace"]: row for row in data("--by", "namespace")["namespaces"]}
    assert (found["team"]["quota"], found["team"]["waiting"]) == (None, None), "not known is not none"
    assert found["team"]["used"]["memoryMiB"] == 8_000
    complaint = run("--by", "namespace").stderr.splitlines()
    assert len(complaint) == 2
    assert any("resourcequotas" in line for line in complaint)


def test_a_queue_shows_its_quota_what_it_holds_and_what_waits_for_what(kubectl: FakeKubectl) -> None:
    high = a_queue("high", "100", "160", "60", admittedWorkloads=2, reservingWorkloads=3, pendingWorkloads=5)
    pods = [a_queued_pod("web", "high"), a_queued_pod("train", "high")]
    tell(kubectl, {CLUSTER_QUEUES: a_list(high, a_queue("low", "300")), PODS: a_list(*pods)})
    found = {row["queue"]: row for row in data("--by", "queue")["queues"]}
    assert found["high"]["used"]["cores"] == 120
    assert found["high"]["quota"] == [
        {"resource": "gpuledger.dev/cores", "nominal": 100, "reserved": 160, "borrowed": 60}
    ]
    assert found["high"]["workloads"] == {"admitted": 2, "waitingForCards": 1, "waitingForQuota": 5}
    assert (found["low"]["pods"], found["low"]["workloads"]["admitted"]) == (0, 0)
    assert found[None]["used"]["memoryMiB"] == 8_000, "the pod that is in no queue"
    table = rows("--by", "queue", "-o", "wide")
    assert table["high"][-7:] == ["2", "2", "20000", "120", "2", "1", "5"]
    assert list(table)[-1] == "-"


@pytest.mark.parametrize(("refusals", "word"), [({}, "has no"), ({CLUSTER_QUEUES: FORBIDDEN}, "may not")])
def test_without_queues_to_read_one_line_says_so_and_the_ledger_is_shown(
    kubectl: FakeKubectl, refusals: Json, word: str
) -> None:
    tell(kubectl, {PODS: a_list(a_queued_pod("web", "high"))}, refusals)
    result = run("--by", "queue")
    assert result.exit_code == 0
    [complaint] = result.stderr.splitlines()
    assert word in complaint
    assert "clusterqueues" in complaint
    assert {"high", "-"} <= {line.split()[0] for line in result.stdout.splitlines()}


def test_without_pods_to_read_nobody_is_said_to_be_in_no_queue(kubectl: FakeKubectl) -> None:
    tell(kubectl, {CLUSTER_QUEUES: a_list(a_queue("low", "300"))}, {PODS: FORBIDDEN})
    assert {"low", "?"} == set(rows("--by", "queue")) - {"QUEUE"}


@pytest.mark.parametrize("more", [("nodes",), ("--node", "node-2"), ("-l", "a=b"), ("--gang", "a/b")])
def test_a_view_by_team_is_of_all_cards(more: tuple[str, ...]) -> None:
    assert run("--by", "queue", *more).exit_code == 2


class Reading:
    """Readings one after the other; Ctrl-C after the last of them."""

    by = "namespace"
    notes = ()

    def __init__(self, *names: str | Exception) -> None:
        self._names = list(names)
        self.name = ""

    def __call__(self) -> Any:
        if not self._names:
            raise SystemExit(130)
        name = self._names.pop(0)
        if isinstance(name, Exception):
            raise name
        self.name = name
        return self

    def table(self, terminal: Terminal, wide: bool) -> list[str]:
        return [self.name]

    def json(self) -> Json:
        return {"name": self.name}


@pytest.mark.parametrize(("output", "lines"), [("table", ["a", "b"]), ("json", ['{"name":"a"}', '{"name":"b"}'])])
def test_a_watch_prints_what_has_changed_and_outlives_an_outage(
    output: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuledger.command_line.top.teams.PAUSE_S", 0)
    with pytest.raises(SystemExit):
        watch_teams(Reading("a", "a", Unreachable("no way"), "b"), Terminal(), output)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == lines
    assert shown.err.splitlines() == ["no news: no way"]
