"""The agent sees MPS' daemons by their file, believes no process id alone, and tells of a fault once."""

import asyncio
from pathlib import Path

import pytest

from fakes.grants import a_grant
from gpuledger.agent.isolation import mps_view
from gpuledger.agent.isolation.mps_view import REPORT_S, MpsView, report_faults
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.formats.runtime.mps import (
    FAULTS_KEPT,
    SEVERAL,
    DaemonStatus,
    FaultKind,
    MpsFault,
    MpsPlaces,
    MpsStatus,
    Phase,
)

NOW_S = 10_000.0


class Node:
    """A node's file, processes and grants, and the agent's view of them."""

    def __init__(self, root: Path) -> None:
        self.directory, self.proc = root / "mps", root / "proc"
        self.directory.mkdir()
        self.grants: list[Grant] = []
        self.view = self.agent_starts()

    def agent_starts(self) -> MpsView:
        self.view = MpsView(self.directory, lambda: self.grants, self.proc, lambda: NOW_S)
        return self.view

    def runs(self, pid: int, name: str = "nvidia-cuda-mps\n") -> None:
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "comm").write_text(name)

    def says(self, *daemons: DaemonStatus, faults: list[MpsFault] | None = None) -> None:
        status = MpsStatus(pod_uid="uid-mps", daemons=daemons, faults=tuple(faults or ()))
        unfinished = self.directory / "new"
        unfinished.write_text(status.text())
        unfinished.replace(self.directory / "status.json")

    def pipes(self, name: str) -> str:
        return str(MpsPlaces(self.directory, name).pipes)

    def grant(self, name: str, pod: str, daemon: str) -> None:
        self.grants.append(a_grant(name, pod, edits={"mounts": [{"hostPath": self.pipes(daemon)}]}))


def a_daemon(name: str = "GPU-0", pid: int = 7, phase: Phase = Phase.RUNNING, why: str = "") -> DaemonStatus:
    return DaemonStatus(name=name, pid=pid, phase=phase, why=why, faults={FaultKind.FATAL: 2})


def a_fault(number: int, at_s: float = NOW_S, daemon: str = "GPU-0") -> MpsFault:
    return MpsFault(number=number, at_s=at_s, daemon=daemon, kind=FaultKind.FATAL, sentence=f"fault {number}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_without_a_file_no_card_has_a_daemon_and_the_reason_says_whose_pod_is_missing(node: Node) -> None:
    assert node.view.pipes().serving == {}
    assert "which the pod of gpuledger-mps writes: is it running?" in node.view.pipes().otherwise
    assert node.view.pods() == frozenset()
    assert node.view.new_faults() == []


def test_who_runs_and_answers_serves(node: Node) -> None:
    node.runs(7)
    node.says(
        a_daemon(),
        a_daemon(SEVERAL, 7),
        a_daemon("GPU-1", 7, Phase.FAULT, "a fault"),
        a_daemon("GPU-2", 0, Phase.WAITING, "no program"),
    )
    pipes = node.view.pipes()
    assert pipes.serving == {name: node.pipes(name) for name in ("GPU-0", SEVERAL)}
    assert pipes.why_not == {"GPU-1": "a fault", "GPU-2": "no program"}
    assert node.view.pods() == {"uid-mps"}


def test_containers_get_the_directory_with_the_socket_alone_once_there_is_one(node: Node) -> None:
    """An agent may be newer than the pod of gpuledger-mps, which nobody restarts for it."""
    node.runs(7)
    node.says(a_daemon())
    node.grant("slot-1-0a", "early", "GPU-0")
    clients = Path(MpsPlaces(node.directory, "GPU-0").clients)
    clients.mkdir(parents=True)
    assert node.view.pipes().serving == {"GPU-0": str(clients)}
    node.grants.append(a_grant("slot-2-0a", "late", edits={"mounts": [{"hostPath": str(clients)}]}))
    node.says(a_daemon(), faults=[a_fault(1)])
    ((_, sentence),) = node.view.new_faults()
    assert sentence.endswith("programs of these pods have lost it: default/early, default/late")


@pytest.mark.parametrize("comm", [None, "bash\n"])
def test_a_file_of_daemons_that_are_gone_serves_nobody(node: Node, comm: str | None) -> None:
    if comm:
        node.runs(7, comm)
    node.says(a_daemon())
    assert node.view.pipes().serving == {}
    assert "so has the program that watches it" in node.view.pipes().why_not["GPU-0"]


def test_what_changes_is_seen_and_a_broken_file_serves_nobody(node: Node) -> None:
    node.runs(7)
    node.says(a_daemon())
    assert node.view.pipes().serving
    good = (node.directory / "status.json").rename(node.directory / "good")
    (node.directory / "status.json").write_text("{")
    assert node.view.pipes().serving == {}
    good.replace(node.directory / "status.json")
    assert node.view.pipes().serving, "the same file as before"
    node.says(a_daemon())
    assert node.view.pipes().serving


def test_a_fault_is_told_once_with_the_pods_that_had_the_daemon(node: Node) -> None:
    node.grant("slot-1-0a", "b", "GPU-0")
    node.grant("slot-2-0a", "a", "GPU-0")
    node.grant("slot-3-0a", "c", "GPU-1")
    node.says(a_daemon(), faults=[a_fault(1)])
    ((_, sentence),) = node.view.new_faults()
    assert sentence == (
        "the MPS daemon of GPU GPU-0: fault 1; programs of these pods have lost it: default/a, default/b"
    )
    assert node.view.new_faults() == []
    node.says(a_daemon(), faults=[a_fault(1), a_fault(2, daemon=SEVERAL)])
    ((_, sentence),) = node.view.new_faults()
    assert sentence == "the MPS daemon of containers with several GPUs: fault 2"


def test_an_agent_that_starts_again_tells_of_what_is_new_under_the_same_name(node: Node) -> None:
    node.says(a_daemon(), faults=[a_fault(1, NOW_S - REPORT_S - 1), a_fault(2, NOW_S - 10)])
    told = node.view.new_faults()
    assert [sentence for _, sentence in told] == ["the MPS daemon of GPU GPU-0: fault 2"]
    assert node.agent_starts().new_faults() == told


def test_after_a_boot_numbers_begin_anew(node: Node) -> None:
    node.says(a_daemon(), faults=[a_fault(8)])
    assert len(node.view.new_faults()) == 1
    node.says(a_daemon(), faults=[a_fault(1, NOW_S + 5)])
    assert len(node.view.new_faults()) == 1


def test_many_pods_are_counted(node: Node) -> None:
    for number in range(30):
        node.grant(f"slot-{number}-0a", f"pod-{number:02}", "GPU-0")
    node.says(a_daemon(), faults=[a_fault(number) for number in range(1, FAULTS_KEPT)])
    told = node.view.new_faults()
    assert len(told) == FAULTS_KEPT - 1
    assert told[0][1].endswith("default/pod-09 and 20 more")


def test_metrics_have_each_daemon_and_what_it_has_lost(node: Node) -> None:
    node.runs(7)
    node.says(a_daemon(), a_daemon(SEVERAL, 0, Phase.WAITING, "no"))
    samples = [sample for metric in node.view.metrics() for sample in metric.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert found["gpuledger_agent_mps_daemon_up", "GPU-0"] == 1
    assert found["gpuledger_agent_mps_daemon_up", "several"] == 0
    assert found["gpuledger_agent_mps_faults_total", "GPU-0", "fatal"] == 2
    assert found["gpuledger_agent_mps_faults_total", "GPU-0", "daemon-ended"] == 0


async def test_faults_are_posted_as_they_come(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_view, "LOOK_S", 0.01)
    posted: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    task = asyncio.create_task(report_faults(node.view, lambda *each: posted.put_nowait(each)))
    for number in (1, 2):
        node.says(a_daemon(), faults=[a_fault(number)])
        sentence, key = await posted.get()
        assert sentence.endswith(f"fault {number}")
        assert key.startswith(f"{number}-")
    task.cancel()
