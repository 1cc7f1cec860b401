"""What somebody is shown who may read one namespace, and not the ledger: by each command, with what is missing."""

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
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE

Json = dict[str, Any]

HERE = "/api/v1/namespaces/team-a"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE_NAME}"
FORBIDDEN = (403, {"reason": "Forbidden", "message": "you may not"})
PROMISES = {"limits.nvidia.com/gpumem": "20000", "limits.nvidia.com/gpucores": "200", "pods": "9"}


def a_pod(name: str, node: str = "", told: Json | str | None = None, **limits: str) -> Json:
    pod = a_pod_object(name, {f"nvidia.com/{word}": amount for word, amount in limits.items()})
    pod["metadata"] |= {"namespace": "team-a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if told is not None:
        text = told if isinstance(told, str) else json.dumps(told)
        pod["metadata"]["annotations"] = {"gpuledger.dev/devices": text}
    pod["spec"] |= {"nodeName": node} if node else {}
    return pod


def an_event(pod: str, reason: str, at: str, message: str = "said") -> Json:
    about = {"kind": "Pod", "namespace": "team-a", "name": pod, "uid": f"uid-{pod}"}
    return {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": at, "metadata": {}}


MINE = a_pod(
    "mine",
    "node-a",
    {
        "main": [{"uuid": "GPU-1", "memoryMiB": 6000, "cores": 20}],
        "side": [{"uuid": "GPU-1", "memoryMiB": 500, "cores": 0}],
    },
    gpu="1",
)
LATE = a_pod("late", gpu="1", gpumem="9000")
PLAIN = a_pod("plain", "node-a")
ODD = a_pod("odd", "node-a", "no json", gpu="1")


@pytest.fixture
def developer(kubectl: FakeKubectl) -> FakeKubectl:
    used = {"limits.nvidia.com/gpumem": "6500", "pods": "4"}
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": PROMISES}, "status": {"used": used}}
    events = [
        an_event("late", "GPUWaiting", "2026-01-01T00:00:09Z", "no card\nhas room"),
        an_event("mine", "Scheduled", "2026-01-01T00:00:05Z"),
        an_event("plain", "Scheduled", "2026-01-01T00:00:06Z"),
        an_event("mine", "Pulled", "2026-01-01T00:00:07Z"),
        an_event("gone", "Preempted", "2026-01-01T00:00:03Z"),
    ]
    answers = {
        f"{HERE}/pods": a_list(MINE, LATE, PLAIN, ODD),
        f"{HERE}/resourcequotas": a_list(quota),
        f"{HERE}/events": a_list(*events),
        **{f"{HERE}/pods/{pod['metadata']['name']}": pod for pod in (MINE, LATE, PLAIN, ODD)},
    }
    everywhere = ("/api/v1/pods", "/api/v1/resourcequotas", "/api/v1/nodes", ALLOCATIONS, LEASE)
    kubectl.tell(answers, dict.fromkeys(everywhere, FORBIDDEN), namespace="team-a")
    return kubectl


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def data(*arguments: str) -> Json:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_pods_show_the_cards_that_their_annotations_name_and_that_this_is_a_hint(developer: FakeKubectl) -> None:
    result = run("get", "pods")
    assert result.exit_code == 0, result.output
    heads, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heads[:4] == ["POD", "NODE", "CARDS", "MIB"]
    assert rows == [
        ["mine", "node-a", "1", "6500", "20", "by", "its", "annotation"],
        ["late", "0", "0", "0", "waiting"],
    ]
    assert "a hint that the ledger may contradict" in result.stderr
    assert "ClusterRole gpuledger-viewer" in result.stderr


def test_a_pod_shows_what_its_annotation_names_and_never_that_the_ledger_has_nothing(developer: FakeKubectl) -> None:
    found = data("get", "pod/mine")
    [share] = found["shares"]
    assert (share["card"], share["memoryMiB"], share["cores"], share["state"]) == (
        "GPU-1",
        6500,
        20,
        "by its annotation",
    )
    assert (found["byAnnotation"], data("get", "pod/odd")["state"]) == (True, "not known")
    shown = run("describe", "pod/mine")
    assert "Your account may not read its shares in the ledger." in shown.stdout
    assert "In the pod's annotation, by container:" in shown.stdout
    assert "is not JSON" in run("describe", "pod/odd").stdout


@pytest.mark.parametrize("words", [(), ("namespaces",), ("--by", "namespace"), ("-n", "team-a")])
def test_top_is_the_row_of_the_own_namespace(developer: FakeKubectl, words: tuple[str, ...]) -> None:
    [row] = data("top", *words)["namespaces"]
    assert (row["namespace"], row["pods"], row["cards"], row["waiting"]) == ("team-a", 1, 1, 1)
    assert row["used"] == {"memoryMiB": 6500, "cores": 20, "number": 1}
    assert {each["key"]: (each["used"], each["limit"]) for each in row["quota"]} == {
        "limits.nvidia.com/gpumem": (6500, 20_000),
        "limits.nvidia.com/gpucores": (0, 200),
    }
    assert "gpuledger-viewer" in run("top", *words).stderr


def test_history_is_the_events_of_the_namespace_that_are_about_cards(developer: FakeKubectl) -> None:
    found = data("history")
    assert found["byEvents"]
    assert [(each["pod"], each["kind"], each["text"]) for each in found["records"]] == [
        ("gone", "evicted", "said"),
        ("mine", "assigned", "said"),
        ("late", "refused", "no card has room"),
    ]
    assert [each["pod"] for each in data("history", "pod/mine")["records"]] == ["mine"]
    assert [each["pod"] for each in data("history", "--kind", "refused", "--limit", "1")["records"]] == ["late"]
    result = run("history")
    assert "Events, which Kubernetes keeps for an hour" in result.stderr
    assert "late" in result.stdout


@pytest.mark.parametrize(
    "words", [("get", "cards"), ("top", "cards"), ("get", "card/GPU-1"), ("cordon", "node/node-a")]
)
def test_what_needs_the_ledger_names_the_role_that_is_missing(developer: FakeKubectl, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert (result.exit_code, "needs ClusterRole gpuledger-viewer" in result.stderr) == (2, True), result.output


def test_history_of_a_card_or_a_node_says_that_events_have_none(developer: FakeKubectl) -> None:
    result = run("history", "node/node-a")
    assert (result.exit_code, "say nothing of its nodes" in result.stderr) == (2, True), result.output


def test_one_namespace_of_the_ledger_is_one_row_which_reads_no_others(kubectl: FakeKubectl) -> None:
    answers = {ALLOCATIONS: a_list(*two_nodes()), "/api/v1/namespaces/team/pods": a_list()}
    kubectl.tell(answers | {"/api/v1/namespaces/team/resourcequotas": a_list()})
    [row] = data("top", "-n", "team")["namespaces"]
    assert (row["namespace"], row["used"]["memoryMiB"]) == ("team", 8_000)
    assert run("top", "cards", "-n", "team").exit_code == 2
