"""The command: how it prints, how it ends, and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes import interrupts
from fakes.doctor_facts import a_gpu_node, a_lease, healthy
from fakes.kubectl import FakeKubectl
from gpuledger.command_line.commands.doctor import lines_of, log_line
from gpuledger.command_line.program import main
from gpuledger.doctor.examination import examine
from gpuledger.reports.tables import Terminal


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """Put a kubectl on the PATH whose proxy serves nothing."""
    fake = FakeKubectl(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "kubeconfig").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for name in ("GPULEDGER_SETTINGS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_what_was_found_is_a_table_and_a_sentence() -> None:
    examination = examine(healthy(lease=None, nodes=[a_gpu_node({"gpuledger.dev/agent": "true"})], cards={}))
    title, *rows, empty, isolation, sentence = lines_of(examination, Terminal())
    assert re.split(r" {3,}", title) == ["SEVERITY", "FINDING", "WHERE", "WHAT IS WRONG", "HOW TO FIX IT"]
    assert [row.split()[:2] for row in rows] == [["error", "lease-not-held"], ["error", "cards-not-entered"]]
    assert (empty, isolation) == ("", "Isolation: hami-core on 1 node.")
    assert sentence == "39 checks: 2 errors, 0 warnings."


def test_a_terminal_has_colours_and_a_pipe_has_none() -> None:
    examination = examine(healthy(lease=None))
    assert "\x1b[31merror\x1b[0m" in lines_of(examination, Terminal(width=100, colours=True))[1]
    assert "\x1b" not in "".join(lines_of(examination, Terminal(width=100)))
    assert all(len(line) <= 100 for line in lines_of(examination, Terminal(width=100)))


def test_what_is_wrong_with_many_nodes_is_one_row() -> None:
    nodes = [a_gpu_node({"nvidia.com/gpu.present": "true"}) for _ in range(5)]
    for number, node in enumerate(nodes):
        node["metadata"] |= {"name": f"gpu-{number}", "annotations": {}}
        node["status"] = {}
    examination = examine(healthy(nodes=nodes))
    rows = [line for line in lines_of(examination, Terminal()) if "node-not-shared" in line]
    assert len(rows) == 1
    assert "node gpu-0, node gpu-1, node gpu-2 and 2 more" in rows[0]


def test_a_log_has_one_line_for_each_finding() -> None:
    (finding,) = examine(healthy(lease=a_lease(holder=""))).findings
    assert log_line(finding) == (
        "lease-not-held: Lease gpuledger-system/gpuledger-scheduler: it has no holder: no kube-scheduler places our "
        "pods. kubectl logs -n gpuledger-system deployment/gpuledger -c kube-scheduler"
    )


def test_an_api_server_that_does_not_answer_ends_with_two_and_no_proxy_stays(kubectl: FakeKubectl) -> None:
    result = CliRunner().invoke(main, ["doctor", "--context", "lab"])
    assert result.exit_code == 2
    assert "GET /version" in result.stderr
    assert not kubectl.proxy_runs
    (call,) = kubectl.calls
    assert (call[0], call[-2:]) == ("proxy", ["--context", "lab"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_proxy_stays_when_it_is_told_to_end(kubectl: FakeKubectl, tmp_path: Path, number: int) -> None:
    told = kubectl.program.read_text().replace('print("Starting to serve on nothing", flush=True)', "")
    kubectl.program.write_text(told)  # so that it is waited for
    argv = [sys.executable, "-m", "gpuledger", "doctor"]
    with interrupts.heeded():
        process = subprocess.Popen(argv, env={**os.environ, "PATH": str(tmp_path)}, stderr=subprocess.PIPE)
    with process:
        while not (tmp_path / "proxy.pid").exists() or not (tmp_path / "proxy.pid").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)  # whatever the program does: it may not know yet that the proxy is there
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert not kubectl.proxy_runs


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--settings", "no_such_option: 1", "no_such_option"),
        ("--scheduler-config", "kind: Pod", "file.yaml is not a KubeSchedulerConfiguration"),
    ],
)
def test_a_file_that_cannot_be_used_is_no_finding(tmp_path: Path, option: str, text: str, told: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["doctor", option, str(file)])
    assert (result.exit_code, told in result.stderr) == (2, True)


def test_help_has_it_in_a_section() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert "Find what keeps gpuledger from working." in shown
