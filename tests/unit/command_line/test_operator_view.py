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
