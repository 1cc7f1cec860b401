"""The commands as people and scripts call them: what they print, how they end, and what they say went wrong."""

import csv
import itertools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from fakes import interrupts
from fakes.allocations import a_holder_of, a_list, an_allocation, two_nodes
from fakes.kubectl import FakeKubectl
from gpuledger.command_line.commands import cordon, drain
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import COMMANDS, SECTIONS, main
from gpuledger.formats.annotations import STAND_IN_LABEL
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.reports.cards import by_node, report_of_stored

Json = dict[str, Any]

AT_THE_LEDGER = next(iter(SECTIONS.values()))
"""The commands of kubectl's plugin."""

WEB: dict[str, Any] = {
    "metadata": {
        "name": "web",
        "uid": "uid-web",
        "annotations": {
            "gpuledger.dev/devices": '{"main": [{"uuid": "GPU-node-10-0", "memoryMiB": 4000, "cores": 20}]}'
        },
    },
    "spec": {"nodeName": "node-10"},
    "status": {"phase": "Running"},
}


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environment)


# top


def test_top_reads_all_cards_at_once_from_the_servers_memory_and_its_proxy_ends(
    kubectl: FakeKubectl,
) -> None:
    result = run("top", "--context", "lab", "--kubeconfig", "some/file")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NODE", "node-2", "node-10"]
    ((proxy, socket, *flags),) = kubectl.calls
    assert (proxy, flags) == ("proxy", ["--kubeconfig", "some/file", "--context", "lab"])
    lists = {("GET", f"{path}?resourceVersion=0", None) for path in (ALLOCATIONS, "/api/v1/nodes")}
    stand_ins = "/api/v1/namespaces/gpuledger-system/pods?resourceVersion=0&labelSelector=gpuledger.dev%2Fstand-in"
    assert set(kubectl.requests) == {*lists, ("GET", stand_ins, None)}
    assert not kubectl.proxy_runs
    assert not Path(socket.partition("=")[2]).parent.exists()


def test_top_says_which_nodes_are_asked_for_to_people_who_may_know(kubectl: FakeKubectl) -> None:
    pods = [{"metadata": {"labels": {STAND_IN_LABEL: name}}} for name in ("a", "b", "a")]
    known = {ALLOCATIONS: a_list(*two_nodes()), "/api/v1/nodes": {"items": []}}
    kubectl.tell({**known, "/api/v1/namespaces/gpuledger-system/pods": {"items": pods}})
    said = ["2 nodes of template a asked for, for pods that wait", "1 node of template b asked for, for pods that wait"]
    assert run("top").stderr.splitlines() == said
    assert run("top", "-o", "json").stderr == ""


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_top_gives_the_operators_data(kubectl: FakeKubectl, output: str, read: Any) -> None:
    nodes = by_node(report_of_stored(stored_card(item)) for item in two_nodes())
    assert read(run("top", "-o", output).stdout) == {"nodes": [node.json() for node in nodes]}


def test_top_of_one_node_asks_for_its_cards_only(kubectl: FakeKubectl) -> None:
    result = run("top", "cards", "--node", "node-10")
    (asked,) = [path for _, path, _ in kubectl.requests if path.startswith(ALLOCATIONS)]
    assert "gpuledger.dev%2Fnode%3Dnode-10" in asked
    assert result.stdout.count("GPU-node-10-") == 2
    assert "node-2" not in result.stdout


def test_top_of_labelled_nodes_asks_the_server_which_these_are(kubectl: FakeKubectl) -> None:
    nodes = {"items": [{"metadata": {"name": "node-2"}}]}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), "/api/v1/nodes": nodes})
    result = run("top", "-l", "pool=lab")
    assert ("GET", "/api/v1/nodes?labelSelector=pool%3Dlab", None) in kubectl.requests
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NODE", "node-2"]


def test_labels_cannot_be_watched_and_nothing_is_read_to_say_so(kubectl: FakeKubectl) -> None:
    result = run("top", "--watch", "-l", "pool=lab")
    assert (result.exit_code, "use --node" in result.stderr, kubectl.calls) == (2, True, [])


def test_an_empty_ledger_is_no_error_and_prints_nothing_to_a_pipe(kubectl: FakeKubectl) -> None:
    kubectl.tell({ALLOCATIONS: a_list()})
    result = run("top")
    assert (result.exit_code, result.stdout) == (0, "")
    assert all(words in result.stderr for words in ("No cards in the ledger", "kubectl label node", "doctor"))


FORBIDDEN = (403, {"reason": "Forbidden", "message": 'User "ada" cannot list resource'})


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((404, "404 page not found"), "is gpuledger installed"),
        (FORBIDDEN, 'Error: Error from server (Forbidden): User "ada" cannot list'),
        ((500, "dial tcp 127.0.0.1:1: connect: connection refused"), "refused. Is the right cluster named"),
        ((503, {"reason": "ServiceUnavailable", "message": "later"}), "(ServiceUnavailable): later"),
    ],
)
def test_what_the_api_server_refuses_is_said_and_ends_with_two(
    kubectl: FakeKubectl, refusal: tuple[int, Any], said: str
) -> None:
    kubectl.tell({}, {ALLOCATIONS: refusal})
    result = run("top")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not kubectl.proxy_runs


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("The connection to the server 127.0.0.1:1 was refused", "Is the right cluster named"),
        ('error: context "nope" does not exist', 'Error: context "nope" does not exist'),
    ],
)
def test_what_kubectl_complains_of_is_said_and_ends_with_two(kubectl: FakeKubectl, complaint: str, said: str) -> None:
    kubectl.tell({}, complaint=complaint)
    result = run("top")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_proxy_that_dies_in_the_middle_is_said(kubectl: FakeKubectl) -> None:
    told = kubectl.program.read_text()
    kubectl.program.write_text(told.replace("def do(self):", "def do(self):\n            import os; os._exit(1)"))
    result = run("top")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"GET {ALLOCATIONS}: " in result.stderr


def test_get_pods_shows_each_of_the_namespace_that_has_cards_and_get_cards_all_of_them(kubectl: FakeKubectl) -> None:
    idle = {**WEB, "metadata": {"name": "idle", "uid": "uid-idle"}}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), "/api/v1/namespaces/team/pods": {"items": [WEB, idle]}})
    found = json.loads(run("get", "pods", "-n", "team", "-o", "json").stdout)
    assert [each["pod"] for each in found["items"]] == ["web"]
    assert run("describe", "pods", "-n", "team").stdout.count("In the ledger:") == 1
    cards = json.loads(run("get", "cards", "-o", "json").stdout)["items"]
    assert [each["uuid"] for each in cards] == ["GPU-node-2-0", "GPU-node-10-0", "GPU-node-10-1"]


def on_a_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """Run the program on a terminal that wide and return what it prints there."""
    leader, follower = pty.openpty()
    variables = {"COLUMNS": str(columns), "LINES": "20", "TERM": "xterm", "LANG": "C.UTF-8", **environment}
    with interrupts.heeded():
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuledger", *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, **variables},
        )
    os.close(follower)
    read, interrupted = b"", False
    while True:
        try:
            piece = os.read(leader, 65_536)
        except OSError:  # Linux ends a terminal whose other side is closed so
            break
        read += piece
        if "--watch" in arguments and b"node-10" in read and not interrupted:
            interrupted = True  # once: a second Ctrl-C ends whatever the first one lets run
            process.send_signal(signal.SIGINT)
    os.close(leader)
    process.wait()
    return read.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_the_sum(kubectl: FakeKubectl) -> None:
    shown = on_a_terminal(150, "top")
    assert "\x1b[32mReady\x1b[0m" in shown
    assert shown.splitlines()[-1].startswith("all ")


def test_no_color_means_no_escape_codes_at_all(kubectl: FakeKubectl) -> None:
    for shown in (on_a_terminal(150, "top", NO_COLOR="1"), on_a_terminal(150, "top", "--no-color")):
        assert "\x1b" not in shown
        assert "Ready" in shown


def test_a_narrow_terminal_breaks_no_line(kubectl: FakeKubectl) -> None:
    lines = on_a_terminal(40, "top", "--no-color").splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["NODE", "GIB", "CORES", "%", "STATE"]


@pytest.mark.thorough
def test_watching_on_a_terminal_leaves_it_as_it_was(kubectl: FakeKubectl) -> None:
    shown = on_a_terminal(150, "top", "--watch")
    assert shown.index("\x1b[?1049h") < shown.index("node-10") < shown.rindex("\x1b[?1049l")


@pytest.mark.thorough
def test_watching_into_a_pipe_appends_what_has_changed(kubectl: FakeKubectl) -> None:
    before = two_nodes()
    mended = an_allocation(stored_card(before[2]).card)
    mended["metadata"]["resourceVersion"] = "10"
    kubectl.tell({ALLOCATIONS: a_list(*before)}, events=[{"type": "MODIFIED", "object": mended}])
    argv = [sys.executable, "-m", "gpuledger", "top", "-w"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        lines = [process.stdout.readline().split() for _ in range(4)]
    finally:
        process.terminate()
        _, complaint = process.communicate()
    assert complaint == ""
    assert [line[0] for line in lines] == ["NODE", "node-2", "node-10", "node-2"]
    assert (lines[1][-1], lines[3][-1]) == ("Unhealthy", "Ready")
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.thorough
def test_nobody_waits_for_what_kubectl_itself_has_started(kubectl: FakeKubectl) -> None:
    """A program that logs kubectl in has kubectl's output, and may live longer."""
    child = "__import__('subprocess').Popen(['/bin/sleep', '600']).pid"
    told = kubectl.program.read_text()
    kubectl.program.write_text(told.replace("    serve(", f"    note('children', {child})\n    serve("))
    argv = [sys.executable, "-m", "gpuledger", "top"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0
    os.kill(int((kubectl.directory / "children").read_text()), signal.SIGKILL)  # fails if it had ended before


@pytest.mark.thorough
def test_no_proxy_stays_after_a_kill_that_nobody_can_answer(kubectl: FakeKubectl) -> None:
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if setpriv is None:
        pytest.skip("there is no setpriv, which Debian has in util-linux")
    (kubectl.directory / "setpriv").symlink_to(setpriv)
    argv = [sys.executable, "-m", "gpuledger", "top", "-w"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().split()[0] == "NODE"
        assert kubectl.proxy_runs
        process.kill()
    deadline_s = time.monotonic() + 30
    while kubectl.proxy_runs:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_reader_that_goes_away_is_no_error_to_speak_of(kubectl: FakeKubectl) -> None:
    command = f"{sys.executable} -m gpuledger top -o json | /usr/bin/head -c 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{", "")


# get


def test_describe_pod_shows_the_ledger_beside_what_the_pod_was_told(kubectl: FakeKubectl) -> None:
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), "/api/v1/namespaces/team/pods/web": WEB}, namespace="team")
    shown = run("describe", "pod/web").stdout
    assert "team/web: Running, on node node-10" in shown
    assert re.search(r"GPU-node-10-0 +0 +allocated +4000 MiB, 20 % cores", shown)
    assert re.search(r"main +GPU-node-10-0 +4000 +20", shown)
    found = json.loads(run("get", "pod/web", "-n", "team", "-o", "json").stdout)
    assert [share["card"] for share in found["shares"]] == ["GPU-node-10-0"]
    assert found["told"] == [{"container": "main", "uuid": "GPU-node-10-0", "memoryMiB": 4000, "cores": 20}]


def test_an_annotation_that_a_user_has_broken_is_said_and_hides_nothing(kubectl: FakeKubectl) -> None:
    broken = {**WEB, "metadata": {**WEB["metadata"], "annotations": {"gpuledger.dev/devices": "{"}}}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), "/api/v1/namespaces/default/pods/web": broken})
    result = run("describe", "pod/web")
    assert result.exit_code == 0
    assert "allocated" in result.stdout
    assert "is not JSON" in result.stdout


def test_a_card_is_named_by_the_beginning_of_a_uuid(kubectl: FakeKubectl) -> None:
    shown = run("describe", "card/gpu-node-2").stdout
    assert "GPU-node-2-0: card 0 of node node-2, T4" in shown
    assert "Unhealthy: XID 79" in shown
    assert "No pod holds it." in shown
    found = json.loads(run("get", "card/GPU-node-10-0", "-o", "json").stdout)
    assert [holder["pod"] for holder in found["holders"]] == ["web", "chat"]
    assert found["cordoned"] is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("node/nowhere", "there is no node 'nowhere'"),
        ("card/gpu-node-1", "2 cards have a UUID that begins with 'gpu-node-1'"),
        ("card/GPU-9", "no card has a UUID that begins with 'GPU-9'"),
        ("pod/nobody", "there is no pod 'nobody' in namespace 'default'"),
        ("web", "neither pod/NAME, card/UUID nor node/NAME"),
    ],
)
def test_get_says_what_is_wrong_with_a_name(kubectl: FakeKubectl, name: str, said: str) -> None:
    result = run("get", name)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


PENDING = {
    "metadata": {"name": "late", "uid": "uid-late", "namespace": "lab", "creationTimestamp": "2026-11-29T11:00:00Z"},
    "spec": {},
    "status": {
        "phase": "Pending",
        "conditions": [
            {"type": "GPUAllocated", "status": "False", "message": "0 of 2 GPU nodes take it"},
        ],
    },
}


@pytest.fixture
def two_pods(kubectl: FakeKubectl) -> FakeKubectl:
    """Tell of a pod that holds a part of a card, one that waits, and one without GPUs, in two namespaces."""
    web = {**WEB, "metadata": {**WEB["metadata"], "namespace": "team"}}
    idle = {**WEB, "metadata": {"name": "idle", "uid": "uid-idle", "namespace": "team"}}
    answers = {"/api/v1/pods": {"items": [web, idle, PENDING]}, "/api/v1/namespaces/lab/pods": {"items": [PENDING]}}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), **answers, "/api/v1/nodes": {"items": []}})
    return kubectl


@pytest.mark.usefixtures("two_pods")
def test_get_is_a_row_for_each_pod_that_holds_cards_or_waits_for_some() -> None:
    assert [line.split() for line in run("get", "pods", "-A").stdout.splitlines()] == [
        ["NAMESPACE", "POD", "NODE", "CARDS", "MIB", "CORES", "%", "STATE"],
        ["team", "web", "node-10", "1", "4000", "20", "allocated"],
        ["lab", "late", "0", "0", "0", "waiting"],
    ]
    assert run("get", "pods", "-n", "lab").stdout.splitlines()[0].split()[0] == "POD"
    wide = run("get", "pods", "-n", "lab", "-o", "wide").stdout
    assert "0 of 2 GPU nodes take it" in wide
    assert run("get", "pods", "-A", "-o", "name").stdout.split() == ["pod/web", "pod/late"]


@pytest.mark.usefixtures("two_pods")
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("cards", [["GPU-node-2-0", "node-2"], ["GPU-node-10-0", "node-10"], ["GPU-node-10-1", "node-10"]]),
        ("nodes", [["node-2", "1"], ["node-10", "2"]]),
        ("node/node-10", [["node-10", "2"]]),
        ("card/gpu-node-2", [["GPU-node-2-0", "node-2"]]),
    ],
)
def test_cards_and_nodes_are_listed_alike(words: str, rows: list[list[str]]) -> None:
    table = [line.split()[:2] for line in run("get", words).stdout.splitlines()]
    assert table[1:] == rows
    csv = [line.split(",")[:2] for line in run("get", words, "-o", "csv").stdout.splitlines()]
    assert csv[1:] == rows


@pytest.mark.usefixtures("two_pods")
def test_describe_node_shows_its_cards_and_who_holds_them() -> None:
    shown = run("describe", "node/node-10").stdout
    assert "node-10: node with 2 cards" in shown
    assert re.search(r"GPU-node-10-0 +A100 +12000/\d+ +50/100 +Ready +default/web, team/chat", shown)


@pytest.mark.usefixtures("two_pods")
def test_a_named_pod_is_of_one_namespace() -> None:
    result = run("get", "pod/web", "-A")
    assert (result.exit_code, "name that with -n" in result.stderr) == (2, True)


@pytest.mark.usefixtures("two_pods")
@pytest.mark.parametrize(
    "arguments",
    [["top", "--node", "nope"], ["top", "cards", "--node", "nope", "-o", "json"], ["top", "--node", "nope", "--usage"]],
)
def test_a_node_that_is_not_there_is_an_error_whatever_is_asked_of_it(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, "there is no node 'nope'" in result.stderr, result.stdout) == (2, True, "")


def test_a_node_without_cards_is_none(two_pods: FakeKubectl) -> None:
    plain = {"metadata": {"name": "plain"}, "spec": {}}
    two_pods.tell({ALLOCATIONS: a_list(), "/api/v1/nodes": {"items": [plain]}, "/api/v1/nodes/plain": plain})
    result = run("top", "--node", "plain")
    assert (result.exit_code, "No cards in the ledger of these nodes" in result.stderr) == (0, True)


@pytest.mark.usefixtures("two_pods")
def test_csv_has_the_numbers_of_a_table_and_none_of_its_bars() -> None:
    rows = list(csv.DictReader(run("top", "-o", "csv").stdout.splitlines()))
    assert [row["NODE"] for row in rows] == ["node-2", "node-10"]
    assert set(rows[0]) >= {"MIB", "CORES %", "SLOTS", "MODELS"}
    assert set(rows[0]).isdisjoint({"MEMORY", "COMPUTE", "SHARES"})


@pytest.mark.parametrize("name", sorted(set(SECTIONS["Check, migrate and plan"]) | set(AT_THE_LEDGER)))
def test_each_command_for_people_prints_alike(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command
    [output] = [each for each in command.params if each.name == "output"]
    assert isinstance(output.type, click.Choice)
    assert list(output.type.choices)[:4] == ["table", "wide", "json", "yaml"]


@pytest.mark.usefixtures("two_pods")
def test_what_was_cordoned_is_there_for_programs() -> None:
    done = json.loads(run("uncordon", "node/node-10", "-o", "json").stdout)["items"]
    assert [(each["uuid"], each["did"]) for each in done] == [
        ("GPU-node-10-0", "nothing"),
        ("GPU-node-10-1", "nothing"),
    ]
    assert run("uncordon", "node/node-10", "-o", "name").stdout.split() == ["card/GPU-node-10-0", "card/GPU-node-10-1"]


# cordon


def patches(kubectl: FakeKubectl) -> dict[str, Json]:
    return {path.rpartition("/")[2]: body for method, path, body in kubectl.requests if method == "PATCH"}


WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cordon, "utc_now", lambda: datetime(2026, 11, 29, 12, 0, tzinfo=UTC))


@pytest.mark.usefixtures("at_noon")
def test_cordon_annotates_the_cards_of_a_node_and_says_so_of_each(kubectl: FakeKubectl) -> None:
    user = {"status": {"userInfo": {"username": "alice"}}}
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), WHOAMI: user})
    result = run("cordon", "node/node-10", "--reason", "loud fan")
    assert result.exit_code == 0
    why = "loud fan (alice, 2026-11-29 12:00 UTC)"
    change = {"metadata": {"annotations": {"gpuledger.dev/cordoned-node": why}}}
    assert patches(kubectl) == {"gpu-node-10-0": change, "gpu-node-10-1": change}
    assert result.stdout.splitlines() == [
        "card GPU-node-10-0 (node node-10, index 0) takes no new pods: loud fan",
        "card GPU-node-10-1 (node node-10, index 1) takes no new pods: loud fan",
    ]


@pytest.mark.usefixtures("at_noon")
def test_an_api_server_that_can_not_say_who_asks_is_no_obstacle(kubectl: FakeKubectl) -> None:
    run("cordon", "card/GPU-node-10-1", "--reason", "loud fan")
    change = {"metadata": {"annotations": {"gpuledger.dev/cordoned": "loud fan (2026-11-29 12:00 UTC)"}}}
    assert patches(kubectl) == {"gpu-node-10-1": change}


def test_a_node_that_is_uncordoned_opens_no_card_that_was_cordoned_by_itself(kubectl: FakeKubectl) -> None:
    card = stored_card(two_nodes()[2]).card
    both = an_allocation(card, cordoned="ticket 812", cordoned_node="kernel update (bob, 2026-11-28 09:00 UTC)")
    kubectl.tell({ALLOCATIONS: a_list(both)})
    assert stored_card(both).cordoned == "ticket 812; kernel update (bob, 2026-11-28 09:00 UTC)"
    said = run("uncordon", "node/node-2").stdout
    assert said == (
        "card GPU-node-2-0 (node node-2, index 0) stays cordoned by itself: ticket 812; "
        "`uncordon card/GPU-node-2-0` takes that back\n"
    )
    assert patches(kubectl) == {"gpu-node-2-0": {"metadata": {"annotations": {"gpuledger.dev/cordoned-node": None}}}}
    assert "is cordoned already: kernel update (bob" in run("cordon", "node/node-2", "--reason", "kernel update").stdout
    assert "with its node: kernel update (bob" in run("uncordon", "card/GPU-node-2-0").stdout


def test_what_is_so_already_is_not_written_again(kubectl: FakeKubectl) -> None:
    kubectl.tell({ALLOCATIONS: a_list(an_allocation(stored_card(two_nodes()[2]).card, cordoned="loud fan"))})
    assert "is cordoned already: loud fan" in run("cordon", "card/GPU-node-2-0", "--reason", "loud fan").stdout
    assert patches(kubectl) == {}
    assert "takes new pods again" in run("uncordon", "card/GPU-node-2-0").stdout
    assert patches(kubectl) == {"gpu-node-2-0": {"metadata": {"annotations": {"gpuledger.dev/cordoned": None}}}}


def test_all_cards_are_written_though_nobody_reads_on(kubectl: FakeKubectl) -> None:
    command = f"{sys.executable} -m gpuledger cordon node/node-10 | /bin/true"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (set(patches(kubectl)), done.stderr) == ({"gpu-node-10-0", "gpu-node-10-1"}, "")


def test_nothing_is_written_when_one_of_the_names_is_wrong(kubectl: FakeKubectl) -> None:
    result = run("cordon", "card/GPU-node-10-0", "node/nowhere")
    assert (result.exit_code, "node 'nowhere' has no cards" in result.stderr) == (2, True)
    assert patches(kubectl) == {}


def test_a_write_that_is_refused_is_told_and_the_others_go_on(kubectl: FakeKubectl) -> None:
    kubectl.tell(
        {ALLOCATIONS: a_list(*two_nodes())}, {"PATCH": (403, {"reason": "Forbidden", "message": "you may not"})}
    )
    result = run("uncordon", "node/node-10")
    assert (result.exit_code, result.stdout.count("is not cordoned")) == (0, 2)
    result = run("cordon", "node/node-10")
    assert (result.exit_code, result.stderr.count("you may not")) == (2, 2)


# Names and help


def completed(*words: str) -> list[str]:
    environment = {**os.environ, "_GPULEDGER_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("gpuledger", *words))}
    program = "import sys; from gpuledger.command_line.program import main; main(prog_name='gpuledger')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "COMP_CWORD": str(len(words))},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.thorough
def test_a_shell_completes_names(kubectl: FakeKubectl) -> None:
    assert completed("get", "car") == ["card/", "cards"]
    assert completed("explain", "de") == ["deployment/"]
    assert completed("cordon", "card/gpu-node-1") == ["card/GPU-node-10-0", "card/GPU-node-10-1"]
    assert completed("top", "--node", "node-2") == ["node-2"]
    assert completed("cordon", "node", "node-1") == ["node-10"]
    assert completed("get", "card", "gpu-node-10-1") == ["GPU-node-10-1"]


def test_kubectl_completes_what_it_does_not_know_itself(kubectl: FakeKubectl) -> None:
    program = "from gpuledger.command_line.program import kubectl_complete; kubectl_complete()"
    argv = [sys.executable, "-c", program, "uncordon", "node/node-1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "node/node-10\n:4\n"


@pytest.mark.parametrize("call", ["main(prog_name='gpuledger')", "kubectl_complete()"])
def test_a_shell_that_has_stopped_to_listen_gets_no_traceback(kubectl: FakeKubectl, call: str) -> None:
    program = f"from gpuledger.command_line.program import *; {call}"
    read, write = os.pipe()
    os.close(read)
    asked = {"_GPULEDGER_COMPLETE": "bash_complete", "COMP_WORDS": "gpuledger ", "COMP_CWORD": "1"}
    with os.fdopen(write) as closed:
        argv = [sys.executable, "-c", program, *(["top", "--"] if "kubectl" in call else [])]
        environment = os.environ | (asked if "main" in call else {})
        done = subprocess.run(argv, stdout=closed, stderr=subprocess.PIPE, env=environment, text=True, check=False)
    assert done.stderr == ""


def test_a_shell_that_reaches_no_cluster_completes_nothing(kubectl: FakeKubectl) -> None:
    kubectl.tell({})
    assert completed("cordon", "card/g") == []


def test_as_kubectls_plugin_it_says_how_kubectl_is_called() -> None:
    program = "from gpuledger.command_line.program import kubectl_main; kubectl_main()"
    done = subprocess.run([sys.executable, "-c", program, "top", "-h"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Usage: kubectl gpuledger top [OPTIONS] [nodes|cards|models|namespaces]")


def test_a_misspelt_command_is_answered_with_the_one_that_is_meant() -> None:
    result = run("expalin", "pod/web")
    assert (result.exit_code, "no command 'expalin': did you mean explain?" in result.stderr) == (2, True)


def test_help_has_every_command_in_one_section() -> None:
    shown = re.findall(r"^  ([a-z][a-z-]*)  ", run("--help").stdout, re.MULTILINE)
    assert sorted(shown) == main.list_commands(click.Context(main))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command
    assert (command.name, command.get_short_help_str(1000)) == (name, COMMANDS[name])


SLOW = {"asyncio", "aiohttp", "kubernetes_asyncio", "pydantic", "rich", "yaml", "kopf", "grpc", "uvloop"}
"""Each of these takes 20 to 400 ms to import."""


def slow_libraries_of(*arguments: str) -> list[str]:
    """Return what a command has imported of them when it ends."""
    program = (
        "import sys; from gpuledger.command_line.program import main\n"
        "try: main()\n"
        f"finally: print(*sorted({SLOW!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1].split()  # what the command itself says comes before


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_starts_without_slow_libraries(command: str) -> None:
    assert slow_libraries_of(*command.split(), "--help") == []


@pytest.mark.parametrize(
    "arguments", ["top", "top --by namespace", "top --by queue", "get card/gpu-node-2", "uncordon node/node-2"]
)
def test_commands_that_ask_one_thing_start_without_slow_libraries(kubectl: FakeKubectl, arguments: str) -> None:
    assert slow_libraries_of(*arguments.split()) == []


# drain

EVICT_WEB = "/api/v1/namespaces/default/pods/web/eviction"
BUDGET = {
    "code": 429,
    "reason": "TooManyRequests",
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "details": {"causes": [{"message": "The disruption budget keep needs 1 healthy pods and has 1 currently"}]},
}


def holders_of(*names: str) -> Json:
    """Return what the API server has of a cordoned card that pods with these names hold, and all its cards."""
    card = stored_card(two_nodes()[2]).card
    found = an_allocation(card, *(a_holder_of(card, name) for name in names), phase="Cordoned", cordoned="ticket 812")
    return {ALLOCATIONS: a_list(found), f"{ALLOCATIONS}/gpu-node-2-0": found}


@pytest.fixture
def steps(kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """Return what the cluster is like after each pause of a drain, for a test to fill; no pause takes time."""
    told: list[Json] = []
    clock = itertools.count(0.0, drain.RETRY_S)

    def pause(_: float) -> None:
        kubectl.tell(told.pop(0))

    monkeypatch.setattr(drain, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=pause))
    return told


def evictions(kubectl: FakeKubectl) -> list[Json]:
    return [body for method, path, body in kubectl.requests if method == "POST" and path == EVICT_WEB]


def test_drain_evicts_the_holders_and_waits_until_the_ledger_has_none(kubectl: FakeKubectl, steps: list[Json]) -> None:
    kubectl.tell(holders_of("web") | {EVICT_WEB: {}})
    steps += [holders_of("web"), holders_of()]
    result = run("drain", "card/GPU-node-2")
    assert (result.exit_code, steps) == (0, []), result.stderr
    assert result.stdout.splitlines() == [
        "card GPU-node-2-0 (node node-2, index 0) is cordoned already: ticket 812",
        "pod default/web is evicted",
        "pod default/web has left",
        "1 card drained: no pod holds a part of one. `gpuledger uncordon` opens them again",
    ]
    [asked] = evictions(kubectl)
    assert asked["deleteOptions"] == {"preconditions": {"uid": "uid-web"}}
    assert patches(kubectl) == {}


def test_a_refused_eviction_is_said_with_its_budget_and_tried_again(kubectl: FakeKubectl, steps: list[Json]) -> None:
    kubectl.tell(holders_of("web"), {EVICT_WEB: (429, BUDGET)})
    steps += [holders_of("web") | {EVICT_WEB: {}}, holders_of()]
    result = run("drain", "card/GPU-node-2", "--reason", "ticket 813")
    assert (result.exit_code, len(evictions(kubectl))) == (0, 2), result.stderr
    assert "pod default/web stays for now: " in result.stdout
    assert "The disruption budget keep needs 1 healthy pods and has 1 currently" in result.stdout
    assert set(patches(kubectl)) == {"gpu-node-2-0"}


@pytest.mark.usefixtures("steps")
def test_a_drain_that_takes_too_long_says_who_is_left(kubectl: FakeKubectl) -> None:
    kubectl.tell(holders_of("web"), {EVICT_WEB: (429, BUDGET)})
    result = run("drain", "card/GPU-node-2", "--timeout", "1", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["drained"]) == (1, False)
    assert [(each["pod"], each["state"]) for each in found["pods"]] == [("web", "refused")]


def test_a_drain_that_nobody_may_do_ends(kubectl: FakeKubectl, steps: list[Json]) -> None:
    kubectl.tell(holders_of("web"), {EVICT_WEB: (403, {"reason": "Forbidden", "message": "you may not evict"})})
    result = run("drain", "card/GPU-node-2")
    assert (result.exit_code, "pod default/web stays: " in result.stdout, steps) == (1, True, [])
    assert "not drained: default/web still there" in result.stdout


@pytest.mark.usefixtures("steps")
def test_a_dry_run_asks_and_changes_nothing(kubectl: FakeKubectl) -> None:
    kubectl.tell(holders_of("web") | {EVICT_WEB: {}})
    result = run("drain", "card/GPU-node-2", "--dry-run", "--reason", "ticket 813")
    assert (result.exit_code, patches(kubectl)) == (0, {})
    assert "pod default/web may be evicted" in result.stdout
    [asked] = evictions(kubectl)
    assert asked["deleteOptions"]["dryRun"] == ["All"]
