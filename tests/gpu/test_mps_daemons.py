"""The MPS daemons that gpuledger runs keep what docs/isolation.md says of them, on this machine's card and driver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpu.clients import CONTROL, TIMEOUT_S, a_card_that_is_not_cut, last_line, next_line, start, tell_daemon
from gpuledger.agent.isolation.choice import GrantedCard, mps_edits
from gpuledger.agent.isolation.mps_view import MpsView
from gpuledger.formats.runtime.mps import FaultKind, MpsStatus, Phase
from stand_in_driver.stand_in_driver import CudaProgram

HELD_MIB = 512
ILLEGAL_ADDRESS = 700
"""CUDA_ERROR_ILLEGAL_ADDRESS."""


class Daemons:
    """`gpuledger mps-daemon` as its pod runs it, and the environments of its clients."""

    def __init__(self, directory: Path, card: str) -> None:
        self.directory, self.card, self.multiuser = directory, card, True
        self.view = MpsView(directory / "mps")
        self._program: subprocess.Popen[bytes] | None = None

    def start(self, **settings: object) -> None:
        """Start it, with a server for each user where the driver is older than 555."""
        self._start(settings)
        self.until(lambda: self.card in self.view.pipes().serving or self._without_multiuser(), "it serves the card")
        if self._without_multiuser():
            self.stop()
            self.multiuser = False
            self._start({**settings, "mps_multiuser": False})
            self.until(lambda: self.card in self.view.pipes().serving, "it serves the card")

    def _without_multiuser(self) -> bool:
        return "mps_multiuser" in self.view.pipes().why_not.get(self.card, "")

    def _start(self, settings: dict[str, object]) -> None:
        file = self.directory / "settings.yaml"
        file.write_text(yaml.safe_dump({"mps_directory": str(self.directory / "mps"), **settings}))
        own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        argv = [sys.executable, "-m", "gpuledger", "mps-daemon", "--settings", str(file)]
        self._program = subprocess.Popen(argv, env={**own, "PYTHONPATH": os.pathsep.join(sys.path)})

    def stop(self) -> None:
        if self._program is not None:
            self._program.send_signal(signal.SIGTERM)
            self._program.wait(TIMEOUT_S)
        self._program = None

    @property
    def status(self) -> MpsStatus:
        return MpsStatus.read((self.directory / "mps" / "status.json").read_text())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline_s, f"never: {what}; {self.view.pipes()}"
            assert self._program is not None
            assert self._program.poll() is None, "gpuledger mps-daemon has ended"
            time.sleep(0.2)

    def client(self, memory_mib: int = 2048, cores: int = 0, **changes: str) -> dict[str, str]:
        """Return what a container with this share would have as its environment."""
        card = GrantedCard(self.card, 0, "nvidia", "", memory_mib, cores, exclusive=False)
        edits = dict(line.split("=", 1) for line in mps_edits([card], str(self.directory / "mps"))["env"])
        own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return own | edits | {"CUDA_MPS_PIPE_DIRECTORY": self.view.pipes().serving[self.card]} | changes

    def unlimited(self) -> dict[str, str]:
        """Return the environment of a program that has removed its limits."""
        kept = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_DEVICE_ORDER")
        return {name: value for name, value in self.client().items() if not name.startswith("CUDA_") or name in kept}


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    if shutil.which(CONTROL) is None:
        pytest.skip(f"{CONTROL} is missing: it comes with the driver's compute utilities")
    directory = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))  # a socket's path has 107 characters
    directory.chmod(0o755)  # clients of other users look into it
    found = Daemons(directory, a_card_that_is_not_cut())
    yield found
    found.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def served(daemons: Daemons) -> Daemons:
    daemons.start()
    return daemons


def test_two_containers_limits_hold_at_once_on_one_card(served: Daemons) -> None:
    clients = {limit: start(served.client(limit), "exceed") for limit in (1024, 3000)}
    for limit, client in clients.items():
        found = last_line(client)
        print(f"\nlimit {limit} MiB: {found}")  # noqa: T201
        assert client.returncode == 3, "it was refused for another reason than memory"
        assert 0 < found["taken_mib"] <= limit < found["total_mib"]


def test_a_limit_by_uuid_is_one_by_number(served: Daemons) -> None:
    client = start(served.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"{served.card}=1024M"), "exceed")
    found = last_line(client)
    assert client.returncode == 3
    assert 0 < found["taken_mib"] <= 1024


def test_a_program_that_removes_its_limit_is_bound_by_the_daemons(daemons: Daemons) -> None:
    daemons.start(mps_client_memory_percent=10)
    client = start(daemons.unlimited(), "exceed")
    found = last_line(client)
    print(f"\nwithout a limit of its own, 10 % of the card: {found}")  # noqa: T201
    assert client.returncode == 3
    assert 0 < found["taken_mib"] <= found["total_mib"] // 10 + 1024


def test_cores_are_a_part_of_the_multiprocessors(served: Daemons) -> None:
    whole = last_line(start(served.client(), "processors"))["processors"]
    part = last_line(start(served.client(cores=30), "processors"))["processors"]
    print(f"\n30 % of {whole} multiprocessors: {part}")  # noqa: T201
    assert 0 < part <= 0.3 * whole + 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs of other users")
def test_programs_of_several_users_run_at_once(served: Daemons) -> None:
    if not served.multiuser:
        pytest.skip("the driver is older than 555")
    first = start(served.client(), "hold", str(HELD_MIB))
    second = start(served.client(), "hold", str(HELD_MIB), user=65_534)
    try:
        for client in (first, second):
            next_line(client)
        for client in (first, second):
            assert last_line(client, "end\n")["ended"] > 0
    finally:
        for client in (first, second):
            client.kill()
            client.wait(TIMEOUT_S)


def test_what_a_client_uses_is_its_own(served: Daemons, say: Callable[[str], None]) -> None:
    client = start(served.client(), "hold", str(HELD_MIB))
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environment = {**own, "PYTHONPATH": os.pathsep.join(sys.path)}
    with CudaProgram([sys.executable, str(Path(__file__).with_name("watch_card.py")), "uses"], environment) as agent:
        try:
            next_line(client)
            uses = json.loads(agent.step("look"))
            last_line(client, "end\n")
        finally:
            client.kill()
            client.wait(TIMEOUT_S)
    server = [each.pid for each in served.status.daemons]
    say(f"a client {client.pid} of MPS with {HELD_MIB} MiB, daemons {server}: {uses['processes']}, {uses['cards']}")
    found = [each["memory_mib"] for each in uses["processes"] if each["pid"] == client.pid]
    assert found == [None] or found[0] >= HELD_MIB


def test_a_fatal_fault_ends_the_neighbours_is_told_and_is_over_when_they_have_exited(served: Daemons) -> None:
    neighbour = start(served.client(), "hold", str(HELD_MIB))
    try:
        next_line(neighbour)
        assert last_line(start(served.client(), "fault"))["result"] == ILLEGAL_ADDRESS
        out, _ = neighbour.communicate(timeout=TIMEOUT_S)  # it ends by itself, with an error
        print(f"\nthe neighbour's last words: {out.splitlines()[-1]}")  # noqa: T201
        assert neighbour.returncode == 1
    finally:
        neighbour.kill()
        neighbour.wait(TIMEOUT_S)
    served.until(lambda: bool(served.status.faults), "the fault is told")
    print(f"\n{served.status.faults}")  # noqa: T201
    assert served.status.faults[0].kind in (FaultKind.FATAL, FaultKind.SERVER_ENDED)
    served.until(lambda: served.card in served.view.pipes().serving, "the card takes programs again")
    assert last_line(start(served.client(), "processors"))["processors"] > 0


def test_a_daemon_that_is_killed_is_started_again(served: Daemons) -> None:
    daemon = next(each for each in served.status.daemons if each.name == served.card)
    os.kill(daemon.pid, signal.SIGKILL)
    served.until(lambda: served.view.pipes().serving.get(served.card) is None, "nobody is served")
    served.until(lambda: served.card in served.view.pipes().serving, "it is back")
    assert all(each.phase is Phase.RUNNING for each in served.status.daemons)
    assert tell_daemon(served.client(), "get_default_active_thread_percentage").strip()
    assert last_line(start(served.client(), "processors"))["processors"] > 0
