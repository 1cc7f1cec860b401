"""`explain` and `history`: how they end, how the operator is reached, and what they say where it is not."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes.kubectl import FakeKubectl
from fakes.view_answers import a_node, a_placed_pod, a_record, an_explanation
from fakes.view_server import ViewServer
from gpuledger import __version__
from gpuledger.command_line import operator_view
from gpuledger.command_line.program import main

Json = dict[str, Any]

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuledger-system/leases/gpuledger-scheduler"
LEADER = {"spec": {"holderIdentity": "gpuledger-7d9f-abcde_0d1e2f"}}


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environment)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test wait for a leader that does not come."""
    monkeypatch.setattr(operator_view, "PATIENCE_S", 0.0)


@pytest.fixture
def view() -> Iterator[ViewServer]:
    server = ViewServer()
    yield server
    server.close()


# explain and history


def test_explain_ends_with_one_while_the_pod_waits_and_with_zero_when_it_is_placed(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    view.answers["/v1/explain"] = (200, an_explanation(a_node("gpu-node-1")))
    result = run("explain", "pod/big", "-n", "lab", "--operator-url", view.url)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "default/big: waiting")
    assert view.asked == [("/v1/explain", {"pod": "lab/big"}, None)]
    view.answers["/v1/explain"] = (200, a_placed_pod())
    result = run("explain", "big", GPULEDGER_URL=view.url, GPULEDGER_TOKEN="secret")
    assert result.exit_code == 0
    assert view.asked[-1] == ("/v1/explain", {"pod": "default/big"}, "Bearer secret")


def test_explain_as_json_is_the_operators_answer(kubectl: FakeKubectl, view: ViewServer) -> None:
    answer = an_explanation(a_node("gpu-node-1"))
    view.answers["/v1/explain"] = (200, answer)
    assert json.loads(run("explain", "pod/big", "--operator-url", view.url, "-o", "json").stdout) == answer


def test_an_operator_whose_answers_have_another_form_is_said_to_be_of_another_release(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    view.answers["/v1/explain"] = (200, {"pod": "big", "state": "waiting"})
    result = run("explain", "pod/big", "--operator-url", view.url)
    assert (result.exit_code, "of another release" in result.stderr) == (2, True)


def test_history_asks_for_what_is_named(kubectl: FakeKubectl, view: ViewServer) -> None:
    view.answers["/v1/history"] = (200, {"kept": 1, "dropped": 0, "records": [a_record("assigned", "the best of 3")]})
    result = run("history", "node/gpu-node-1", "--kind", "assigned", "--limit", "5", "--operator-url", view.url)
    assert (result.exit_code, "the best of 3" in result.stdout) == (0, True)
    assert view.asked[0][1] == {"limit": "5", "kind": "assigned", "node": "gpu-node-1"}


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, {"error": "nothing is known of pod default/big"}, "nothing is known of pod default/big"),
        (401, {"error": "who are you?"}, "Set GPULEDGER_TOKEN"),
        (500, {}, "the operator answers 500"),
    ],
)
def test_what_the_operator_refuses_is_said(
    kubectl: FakeKubectl, view: ViewServer, status: int, answer: Json, said: str
) -> None:
    view.answers["/v1/explain"] = (status, answer)
    result = run("explain", "pod/big", "--operator-url", view.url)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_an_operator_that_does_not_answer_is_said_with_the_setting(kubectl: FakeKubectl, view: ViewServer) -> None:
    view.close()
    result = run("explain", "pod/big", "--operator-url", view.url)
    assert (result.exit_code, "view_port 8891" in result.stderr) == (2, True), result.stderr


# version

DEPLOYMENT = "/apis/apps/v1/namespaces/gpuledger-system/deployments/gpuledger"


def with_image(image: str) -> Json:
    containers = [{"name": "kube-scheduler", "image": "s:v1"}, {"name": "operator", "image": image}]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


def test_version_asks_the_operator(kubectl: FakeKubectl, view: ViewServer) -> None:
    view.answers["/v1/version"] = (200, {"version": "9.9.9"})
    result = run("version", GPULEDGER_URL=view.url)
    assert (result.exit_code, result.stdout.splitlines()[:2]) == (0, [f"client    {__version__}", "operator  9.9.9"])
    assert "they differ" in result.stdout
    data = json.loads(run("version", "-o", "json", GPULEDGER_URL=view.url).stdout)
    assert data == {"client": {"version": __version__}, "operator": {"version": "9.9.9", "source": "operator"}}


@pytest.mark.parametrize(
    ("image", "tag"),
    [("host:5000/team/gpuledger:1.2.3@sha256:0", "1.2.3"), ("gpuledger@sha256:0", None)],
)
def test_where_it_is_not_reached_its_image_says_the_version(kubectl: FakeKubectl, image: str, tag: str | None) -> None:
    kubectl.tell({LEASE: LEADER, DEPLOYMENT: with_image(image)}, forward=FORBIDDEN)
    result = run("version", "-o", "json")
    found = json.loads(result.stdout)["operator"]
    assert (result.exit_code, found["version"]) == (0 if tag else 2, tag)
    assert found["source"] == f"image {image}"


def test_version_of_the_program_alone_asks_nobody(kubectl: FakeKubectl) -> None:
    result = run("version", "--client")
    assert (result.exit_code, result.stdout, kubectl.calls) == (0, f"client    {__version__}\n", [])


# All that waits


def a_waiting_pod(name: str, namespace: str = "lab", gang: str | None = None, **changed: Any) -> Json:
    reason = {"reason": "no-memory", "text": "no card with 8000 MiB free", "nodes": 3}
    return {
        "namespace": namespace,
        "pod": name,
        "podUID": name,
        "gang": gang,
        "queue": None,
        "priority": 0,
        "since": "2026-08-01T12:00:00Z",
        "lastTried": None,
        "request": "1 card",
        "reasons": [reason],
    } | changed


WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/lab/workloads"


def an_owned(name: str, owner: str = "", labels: Json | None = None, **more: Any) -> Json:
    """Return an object of namespace lab; of a pod it says that it has no node."""
    kind, _, owner_name = owner.partition("/")
    references = [{"kind": kind, "name": owner_name, "uid": owner_name}] if owner else []
    metadata = {"name": name, "namespace": "lab", "uid": name, "creationTimestamp": "2026-08-01T12:00:00Z"}
    metadata |= {"resourceVersion": "7"}
    return {"metadata": {**metadata, "labels": labels or {}, "ownerReferences": references}, "spec": {}, **more}


def a_workload(name: str, owner: str, **status: Any) -> Json:
    return an_owned(name, owner) | {"spec": {"queueName": "low", "podSets": []}, "status": status}


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


def test_explain_without_a_name_has_a_row_for_each_pod_gang_and_workload_that_waits(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    waiting = [a_waiting_pod("big"), a_waiting_pod("t-0", gang="train"), a_waiting_pod("t-1", gang="train")]
    view.answers["/v1/waiting"] = (200, {"pods": waiting})
    kubectl.tell({WORKLOADS: {"items": [a_workload("job-sweep", "Job/sweep")]}})
    result = run("explain", "-n", "lab", GPULEDGER_URL=view.url)
    assert result.exit_code == 0, result.stderr
    assert view.asked == [("/v1/waiting", {"namespace": "lab"}, None)]
    found = [(row[0], row[1], row[-1]) for row in rows(result)]
    assert [row[:2] for row in found[1:]] == [("pod/big", "1"), ("gang/train", "2"), ("workload/job-sweep", "1")]
    assert "no card with 8000 MiB free (3 nodes)" in result.stdout
    data = json.loads(run("explain", "pods", "-n", "lab", "-o", "json", GPULEDGER_URL=view.url).stdout)["items"]
    assert [(row["kind"], row["name"], row["gang"]) for row in data] == [
        ("pod", "big", None),
        ("pod", "t-0", "train"),
        ("pod", "t-1", "train"),
    ]
    assert run("explain", "-n", "lab", "-o", "name", GPULEDGER_URL=view.url).stdout.split() == [
        "pod/big",
        "gang/train",
        "workload/job-sweep",
    ]


def test_without_kueue_only_pods_and_gangs_are_listed_and_that_is_no_error(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    view.answers["/v1/waiting"] = (200, {"pods": [a_waiting_pod("big"), a_waiting_pod("other", "team")]})
    result = run("explain", "-A", GPULEDGER_URL=view.url)
    assert (result.exit_code, result.stderr, view.asked[0][1]) == (0, "", {})
    assert [row[:2] for row in rows(result)[1:]] == [["lab", "pod/big"], ["team", "pod/other"]]
    csv = run("explain", "-A", "-o", "csv", GPULEDGER_URL=view.url).stdout.splitlines()
    assert csv[0].startswith("NAMESPACE,WHAT,PODS,WAITS FOR,PRIORITY")
    view.answers["/v1/waiting"] = (200, {"pods": []})
    result = run("explain", "-n", "lab", GPULEDGER_URL=view.url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing waits in namespace lab.\n")


def test_an_account_that_cannot_ask_the_operator_gets_what_the_pods_themselves_say(kubectl: FakeKubectl) -> None:
    pods = {"items": [POD, an_owned("silent")]}
    kubectl.tell({LEASE: LEADER, "/api/v1/namespaces/lab/pods": pods}, forward=FORBIDDEN)
    result = run("explain", "-n", "lab")
    assert [row[0] for row in rows(result)[1:]] == ["pod/big"], result.stderr
    assert "no card has room" in result.stdout


# What makes pods


def asked_of(kubectl: FakeKubectl, view: ViewServer, name: str, **objects: list[Json]) -> dict[str, str]:
    """Return what the operator is asked about an owner in a namespace with these objects."""
    paths = {"pods": "/api/v1", "replicasets": "/apis/apps/v1", "jobs": "/apis/batch/v1"}
    kubectl.tell(
        {
            f"{paths.get(kind, '/apis/apps/v1')}/namespaces/lab/{kind}": {"items": items}
            for kind, items in objects.items()
        }
        | ({WORKLOADS: {"items": objects["workloads"]}} if "workloads" in objects else {})
    )
    view.answers["/v1/explain"] = (200, an_explanation(a_node("n"), namespace="lab"))
    result = run("explain", name, "-n", "lab", "-o", "json", GPULEDGER_URL=view.url)
    assert result.exit_code == 1, result.stderr
    assert json.loads(result.stdout)["owner"]
    return view.asked[-1][1]


@pytest.mark.parametrize("name", ["deploy/chat", "deployment/chat", "rs/chat-7d"])
def test_a_deployment_is_its_oldest_pod_that_waits(kubectl: FakeKubectl, view: ViewServer, name: str) -> None:
    running = an_owned("chat-7d-a", "ReplicaSet/chat-7d") | {"spec": {"nodeName": "n"}}
    pods = [running, an_owned("chat-7d-b", "ReplicaSet/chat-7d"), an_owned("chat-7d-c", "ReplicaSet/chat-7d")]
    sets = [an_owned("chat-7d", "Deployment/chat")]
    assert asked_of(kubectl, view, name, pods=pods, replicasets=sets, jobs=[]) == {"pod": "lab/chat-7d-b"}
    found = run("explain", name, "-n", "lab", GPULEDGER_URL=view.url).stdout
    assert "wait as well" in found
    assert "chat-7d-c" in found


def test_a_job_is_its_workload_if_kueue_has_one_else_its_gang_else_its_pod(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    gang = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    pods, member = [an_owned("train-x", "Job/train")], [an_owned("train-x", "Job/train", gang)]
    workloads = [a_workload("job-train-1", "Job/train"), a_workload("job-other-1", "Job/other")]
    assert asked_of(kubectl, view, "job/train", pods=pods, workloads=workloads) == {"workload": "lab/job-train-1"}
    assert asked_of(kubectl, view, "job/train", pods=member) == {"gang": "lab/train"}
    assert asked_of(kubectl, view, "job/train", pods=pods) == {"pod": "lab/train-x"}


def test_what_is_not_known_here_is_found_by_what_it_owns(kubectl: FakeKubectl, view: ViewServer) -> None:
    pods, jobs = [an_owned("set-0-a", "Job/set-0")], [an_owned("set-0", "JobSet/set")]
    assert asked_of(kubectl, view, "jobset/set", pods=pods, jobs=jobs, replicasets=[]) == {"pod": "lab/set-0-a"}


def test_a_pod_of_a_group_in_a_queue_is_its_workload(kubectl: FakeKubectl, view: ViewServer) -> None:
    pods = [an_owned("web-0", "StatefulSet/web", {"kueue.x-k8s.io/pod-group-name": "group"})]
    workloads = [a_workload("group", "Pod/web-0")]
    assert asked_of(kubectl, view, "sts/web", pods=pods, workloads=workloads) == {"workload": "lab/group"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deploy/nope", "there is no deployment 'nope' in namespace 'lab'"),
        ("deploy/idle", "deployment/idle has no pods that wait or run: `kubectl describe deployment idle -n lab`"),
        ("rayjob/nope", "no pod and no workload of namespace 'lab' is of a rayjob 'nope'"),
    ],
)
def test_an_owner_without_pods_is_an_error_that_says_so(
    kubectl: FakeKubectl, view: ViewServer, name: str, said: str
) -> None:
    there: Json = {"/apis/apps/v1/namespaces/lab/deployments/idle": {}}
    empty = ("/api/v1/namespaces/lab/pods", *(f"/apis/{path}" for path in BETWEEN))
    kubectl.tell(there | {path: {"items": []} for path in empty})
    result = run("explain", name, "-n", "lab", GPULEDGER_URL=view.url)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


BETWEEN = ("apps/v1/namespaces/lab/replicasets", "batch/v1/namespaces/lab/jobs")


# The way to the operator


def test_a_forwarded_port_behind_which_nothing_listens_is_said_with_the_setting(kubectl: FakeKubectl) -> None:
    """The real kubectl accepts the connection, finds nobody in the pod, and closes it without a word."""
    with socket.create_server(("127.0.0.1", 0)) as closing:
        kubectl.tell({LEASE: LEADER}, forward=f"Forwarding from 127.0.0.1:{closing.getsockname()[1]} -> 8891")
        threading.Thread(target=lambda: closing.accept()[0].close(), daemon=True).start()
        result = run("explain", "pod/big")
    assert (result.exit_code, "view_port 8891" in result.stderr) == (2, True), result.stderr
    assert not kubectl.forwarder_runs


def test_the_leader_is_reached_by_a_port_forward_that_ends_with_the_command(
    kubectl: FakeKubectl, view: ViewServer
) -> None:
    kubectl.tell({LEASE: LEADER}, forward=f"Forwarding from 127.0.0.1:{view.port} -> 8891")
    view.answers["/v1/explain"] = (200, a_placed_pod())
    result = run("explain", "pod/big", "--context", "lab")
    assert result.exit_code == 0, result.stderr
    (forward,) = [call for call in kubectl.calls if call[0] == "port-forward"]
    assert forward[1:] == [
        *("--namespace", "gpuledger-system", "--address", "127.0.0.1", "pod/gpuledger-7d9f-abcde", ":8891"),
        *("--context", "lab"),
    ]
    assert not kubectl.forwarder_runs


def test_while_one_replica_takes_over_from_another_the_command_waits(
    kubectl: FakeKubectl, view: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = f"Forwarding from 127.0.0.1:{view.port} -> 8891"
    view.answers["/v1/explain"] = (200, a_placed_pod())
    kubectl.tell({LEASE: {"spec": {"holderIdentity": ""}}}, forward=forward)
    monkeypatch.setattr(operator_view, "PATIENCE_S", 60.0)
    monkeypatch.setattr("time.sleep", lambda _: kubectl.tell({LEASE: LEADER}, forward=forward))
    result = run("explain", "pod/big")
    assert result.exit_code == 0, result.stderr


def test_the_port_forward_ends_when_the_operator_refuses(kubectl: FakeKubectl, view: ViewServer) -> None:
    kubectl.tell({LEASE: LEADER}, forward=f"Forwarding from 127.0.0.1:{view.port} -> 8891")
    assert run("explain", "pod/big").exit_code == 2
    assert not kubectl.forwarder_runs


@pytest.mark.parametrize(
    ("lease", "forward", "said"),
    [
        (None, "", "no operator leads"),
        ({"spec": {"holderIdentity": ""}}, "", "no operator leads"),
        (LEADER, "error: unable to forward port because pod is not running", "pod is not running"),
        (LEADER, 'Error from server (NotFound): pods "x" not found', "retry in a moment"),
    ],
)
def test_why_there_is_no_way_to_the_operator_is_said_with_what_to_do(
    kubectl: FakeKubectl, lease: Json | None, forward: str, said: str
) -> None:
    kubectl.tell({LEASE: lease} if lease else {}, forward=forward)
    result = run("explain", "pod/big")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "--operator-url" in result.stderr


def test_without_kubectl_the_address_has_to_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GPULEDGER_URL", raising=False)
    result = run("history")
    assert (result.exit_code, "GPULEDGER_URL" in result.stderr) == (2, True)


# Developers: docs/kubectl-gpuledger.md says how an account without pods/portforward reaches the operator.

FORBIDDEN = 'Error from server (Forbidden): pods "x" is forbidden: create pods/portforward'
TOKEN = "/api/v1/namespaces/lab/serviceaccounts/default/token"
ASK = "/api/v1/namespaces/gpuledger-system/services/gpuledger-explain:explain/proxy/v1/explain"
POD = {
    "metadata": {"namespace": "lab", "name": "big", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {},
    "status": {"conditions": [{"type": "GPUAllocated", "status": "False", "message": "no card has room"}]},
}


def denied(what: str) -> tuple[int, Json]:
    return (403, {"reason": "Forbidden", "message": f"you may not {what}"})


@pytest.mark.parametrize("lease", [LEADER, None], ids=["no port-forward", "no Lease"])
def test_who_may_not_reach_the_operators_pods_asks_through_its_service(
    kubectl: FakeKubectl, lease: Json | None
) -> None:
    answers = {TOKEN: {"status": {"token": "t"}}, ASK: an_explanation(a_node("n"), namespace="lab")}
    refusals = {} if lease else {LEASE: denied("read Leases")}
    kubectl.tell(answers | ({LEASE: lease} if lease else {}), refusals=refusals, forward=FORBIDDEN)
    result = run("explain", "pod/big", "-n", "lab")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "lab/big: waiting"), result.stderr
    assert [path.partition("?")[0] for _, path, _ in kubectl.requests][-2:] == [TOKEN, ASK]


def test_who_may_not_ask_at_all_is_told_what_the_pod_says_and_what_is_missing(kubectl: FakeKubectl) -> None:
    refusals = {TOKEN: denied("create tokens")}
    kubectl.tell({LEASE: LEADER, "/api/v1/namespaces/lab/pods/big": POD}, refusals=refusals, forward=FORBIDDEN)
    result = run("explain", "pod/big", "-n", "lab")
    assert (result.exit_code, result.stdout.splitlines()[:2]) == (1, ["lab/big: waiting", "no card has room"])
    assert "gpuledger-developer" in result.stdout


@pytest.mark.thorough
def test_where_every_answer_comes_from_a_replica_on_standby_that_is_said(kubectl: FakeKubectl) -> None:
    refusals = {ASK: (421, {"error": "this replica is on standby"})}
    kubectl.tell({LEASE: LEADER, TOKEN: {"status": {"token": "t"}}}, refusals=refusals, forward=FORBIDDEN)
    result = run("explain", "pod/big", "-n", "lab")
    assert (result.exit_code, "no replica of the operator is active" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("since", "age_s"),
    [("8h", 28_800), ("1d12h", 129_600), ("90m", 5_400), ("2h5s", 7_205), ("2026-11-29T02:00:00Z", None)],
)
def test_history_since_is_a_duration_or_a_time(kubectl: FakeKubectl, view: ViewServer, since: str, age_s: int) -> None:
    view.answers["/v1/history"] = (200, {"kept": 0, "dropped": 0, "keptSince": None, "more": False, "records": []})
    result = run("history", "--since", since, "--operator-url", view.url)
    assert (result.exit_code, result.stdout) == (0, "No record matches, of 0 records.\n")
    asked = float(view.asked[0][1]["since"])
    assert asked == 1_795_917_600 if age_s is None else abs(time.time() - asked - age_s) < 60


@pytest.mark.parametrize("since", ["yesterday", "8", "8x", "h", "02:00", "-8h", "9999999999d", ""])
def test_what_is_neither_a_duration_nor_a_time_is_refused(kubectl: FakeKubectl, view: ViewServer, since: str) -> None:
    result = run("history", f"--since={since}", "--operator-url", view.url)
    assert (result.exit_code, "such as 8h" in result.stderr) == (2, True), result.output


@pytest.mark.parametrize(
    ("more", "since", "said"),
    [
        (False, None, "Records before 2001-02-03 04:05:06 are not kept."),
        (False, "2001-01-01T00:00:00Z", "Records before 2001-02-03 04:05:06 are not kept."),
        (False, "2002-01-01T00:00:00Z", ""),
        (True, None, "Older records match, too: these are the last 1, and --limit shows more."),
    ],
)
def test_history_says_where_it_begins(
    kubectl: FakeKubectl, view: ViewServer, more: bool, since: str | None, said: str
) -> None:
    record = {
        **a_record("active", "gpuledger-1 is the active replica"),
        "pod": "",
        "namespace": "",
        "cards": [],
        "node": "",
        "gang": None,
    }
    answer = {"kept": 9, "dropped": 2, "keptSince": "2001-02-03T04:05:06Z", "more": more, "records": [record]}
    view.answers["/v1/history"] = (200, answer)
    more_words = ["--since", since] if since else []
    result = run("history", *more_words, "--operator-url", view.url, TZ="UTC")
    assert "operator" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last == said if said else "is the active replica" in last
