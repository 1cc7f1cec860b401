"""MPS' daemons are started, watched and started again, with a program that behaves as NVIDIA's: no card is needed."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fakes.mps import control_program
from gpuledger.agent.devices.source import Device, DeviceUses, Fault, LimitRefused, MemoryLimit, Snapshot
from gpuledger.agent.isolation import mps_daemons
from gpuledger.agent.isolation.mps_daemons import Daemons, MpsPlan, cards_for_mps, is_mps, running_daemon
from gpuledger.formats.runtime.mps import SEVERAL, DaemonStatus, FaultKind, MpsPlaces, MpsStatus, Phase
from gpuledger.model.errors import BadInput

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

PATIENCE_S = 60.0
"""What only a failure waits for: each daemon, and each question to it, is a Python that starts."""

NVIDIAS = shutil.which(control_program.NAME)
"""NVIDIA's own program, which starts without a card, where it is installed."""

CARDS = (Device("GPU-0", 0, "A100", 40_000), Device("GPU-1", 1, "A100", 80_000))


class Running:
    """Daemons that run in this process' event loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plan = MpsPlan(directory=directory / "mps", pod_uid="uid-mps")
        self.refusal = directory / "refusal"
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, cards: tuple[Device, ...] = CARDS, **plan: object) -> None:
        settings = {"directory": self.plan.directory, "pod_uid": self.plan.pod_uid, **plan}
        self._end = asyncio.Event()
        self._task = asyncio.create_task(Daemons(MpsPlan(**settings), cards).run(self._end.wait()))  # type: ignore[arg-type]

    async def stop(self) -> None:
        self._end.set()
        if self._task is not None:
            await self._task
        self._task = None

    async def crash(self) -> None:
        """Have everything end at once, as when the container's first process is killed."""
        pids = [each.pid for each in self.status.daemons]
        assert self._task is not None
        before = self.plan.file.read_text()
        self._task.cancel()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait([self._task])
        self.plan.file.write_text(before)

    @property
    def status(self) -> MpsStatus:
        try:
            return MpsStatus.read(self.plan.file.read_text())
        except (FileNotFoundError, BadInput):
            return MpsStatus()

    def daemon(self, name: str) -> DaemonStatus:
        return next((each for each in self.status.daemons if each.name == name), DaemonStatus(name=name))

    def sentences(self) -> list[str]:
        return [each.sentence for each in self.status.faults]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                assert self._task is None or not self._task.done(), self._task.result()
                await asyncio.sleep(0.01)

    async def until_all(self, phase: Phase) -> None:
        await self.until(lambda: self.status.daemons and {each.phase for each in self.status.daemons} == {phase})

    async def tell(self, name: str, command: str) -> str:
        """Give a daemon a command, as an administrator or a client would."""
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(MpsPlaces(self.plan.directory, name).pipes)}
        program = str(self.directory / "bin" / control_program.NAME)

        def ask() -> str:
            told = subprocess.run(
                [program], input=f"{command}\n", env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
            )
            return told.stdout.strip()

        return await asyncio.to_thread(ask)


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    directory = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))  # a socket's path has 107 characters
    control_program.install(f"{directory}/bin")
    monkeypatch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(mps_daemons, "LOOK_S", 0.05)
    monkeypatch.setattr(mps_daemons, "ASK_S", 0.2)
    monkeypatch.setattr(mps_daemons, "FIRST_PAUSE_S", 0.05)
    found = Running(directory)
    monkeypatch.setenv(control_program.REFUSES, str(found.refusal))
    yield found
    await found.stop()
    shutil.rmtree(directory)


async def test_each_card_has_a_daemon_and_so_have_containers_with_several(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    assert {each.name: each.cards for each in running.status.daemons} == {
        "GPU-0": ("GPU-0",),
        "GPU-1": ("GPU-1",),
        SEVERAL: ("GPU-0", "GPU-1"),
    }
    assert running.status.pod_uid == "uid-mps"
    assert (running.plan.directory / "shm").stat().st_mode & 0o7777 == 0o1777
    assert running.status.faults == ()


async def test_a_node_with_one_card_needs_no_daemon_for_several(running: Running) -> None:
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)
    assert [each.name for each in running.status.daemons] == ["GPU-0"]


async def test_users_share_a_server_or_wait_as_the_setting_says(running: Running) -> None:
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)
    assert await running.tell("GPU-0", "test_client 0") == await running.tell("GPU-0", "test_client 1000") != "waits"
    await running.stop()
    running.start(CARDS[:1], multiuser=False)
    await running.until_all(Phase.RUNNING)
    await running.tell("GPU-0", "test_client 0")
    assert await running.tell("GPU-0", "test_client 1000") == "waits"


async def test_limits_are_set_before_a_daemon_counts_as_running(running: Running) -> None:
    running.start(most_memory_percent=25, most_cores_percent=30)
    await running.until_all(Phase.RUNNING)
    assert await running.tell("GPU-1", "get_default_device_pinned_mem_limit GPU-1") == "19G"
    assert await running.tell("GPU-0", "get_default_active_thread_percentage") == "30.0"
    assert await running.tell(SEVERAL, "get_default_device_pinned_mem_limit GPU-0") == "9G"
    assert await running.tell(SEVERAL, "get_default_device_pinned_mem_limit GPU-1") == "19G"


async def test_a_daemon_that_takes_no_limit_serves_nobody(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemons, "most_cores", lambda percent: (f"no_such_command {percent}", "no_such_command"))
    running.start(CARDS[:1], most_cores_percent=30)
    await running.until(lambda: "was not taken" in running.daemon("GPU-0").why)
    assert running.daemon("GPU-0").phase is Phase.STARTING


async def test_a_daemon_that_dies_is_started_again_and_the_others_do_not_notice(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    for name in ("GPU-0", "GPU-1"):
        await running.tell(name, "test_client 0")
    await running.until(lambda: running.daemon("GPU-0").servers and running.daemon("GPU-1").servers)
    before = {each.name: each.pid for each in running.status.daemons}
    os.kill(before["GPU-0"], signal.SIGKILL)
    await running.until(lambda: running.daemon("GPU-0").pid not in (0, before["GPU-0"]))
    await running.until_all(Phase.RUNNING)
    after = {each.name: each.pid for each in running.status.daemons}
    assert {name for name in before if before[name] != after[name]} == {"GPU-0"}
    (fault,) = running.status.faults
    assert (fault.number, fault.daemon, fault.kind) == (1, "GPU-0", FaultKind.DAEMON_ENDED)
    assert fault.sentence == "it has ended with signal 9"
    assert running.daemon("GPU-0").faults == {FaultKind.DAEMON_ENDED: 1}


async def test_containers_have_a_directory_that_stays_with_the_socket_of_the_daemon_that_runs_and_nothing_else(
    running: Running,
) -> None:
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)
    places = MpsPlaces(running.plan.directory, "GPU-0")
    clients, pipes = Path(places.clients), Path(places.pipes)
    before, pid = os.stat(clients).st_ino, running.daemon("GPU-0").pid

    def check() -> None:
        assert [path.name for path in clients.iterdir()] == ["control"]
        assert (clients / "control").samefile(pipes / "control")
        assert not clients.stat().st_mode & 0o022
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(clients / "control"))

    check()
    os.kill(pid, signal.SIGKILL)
    await running.until(lambda: running.daemon("GPU-0").pid not in (0, pid))
    await running.until_all(Phase.RUNNING)
    assert os.stat(clients).st_ino == before
    check()


async def test_a_daemon_without_a_socket_that_can_be_shown_serves_nobody_and_says_why(running: Running) -> None:
    clients = Path(MpsPlaces(running.plan.directory, "GPU-0").clients)
    (clients / "control").mkdir(parents=True)
    running.start(CARDS[:1])
    await running.until(lambda: "control can't be made" in running.daemon("GPU-0").why)
    assert running.daemon("GPU-0").phase is not Phase.RUNNING
    (clients / "control").rmdir()
    await running.until_all(Phase.RUNNING)


async def test_what_a_daemon_said_before_it_ended_is_the_reason(running: Running) -> None:
    running.refusal.write_text("no CUDA-capable device")
    running.start(CARDS[:1])
    await running.until(lambda: "no CUDA-capable device" in running.daemon("GPU-0").why)
    assert running.daemon("GPU-0").why.startswith("it has ended with status 1: no CUDA-capable device; it is started")
    running.refusal.unlink()
    await running.until_all(Phase.RUNNING)
    assert running.status.faults == (), "nobody had used it"


async def test_without_the_program_the_reason_says_where_it_comes_from(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    running.start(CARDS[:1])
    await running.until(lambda: "compute,utility" in running.daemon("GPU-0").why)
    assert running.daemon("GPU-0").phase is Phase.WAITING


async def test_a_fatal_fault_closes_a_daemon_until_its_programs_have_exited(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    for _ in range(2):
        await running.tell("GPU-1", "test_client 0")
    await running.until(lambda: running.daemon("GPU-1").servers)
    await running.tell("GPU-1", "test_fault")
    await running.until(lambda: running.daemon("GPU-1").phase is Phase.FAULT)
    assert "not exited yet" in running.daemon("GPU-1").why
    assert running.daemon("GPU-0").phase is Phase.RUNNING
    server = running.daemon("GPU-1").servers[0]
    assert running.sentences() == [
        f"its server {server} has met a fatal fault, which has ended the programs 10000, 10001"
    ]
    await running.tell("GPU-1", "test_recover")
    await running.until_all(Phase.RUNNING)
    assert running.daemon("GPU-1").faults == {FaultKind.FATAL: 1}


async def test_a_server_that_ends_is_told_once_and_one_that_ends_well_is_not(running: Running) -> None:
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)
    for status in ("1", "0"):
        server = await running.tell("GPU-0", "test_client 0")
        await running.until(lambda: running.daemon("GPU-0").servers == (int(server),))  # noqa: B023 - awaited at once
        await running.tell("GPU-0", f"test_end_server {status}")
        await running.until(lambda: running.daemon("GPU-0").servers == ())
    assert len(running.sentences()) == 1
    assert running.sentences()[0].endswith("has ended with status 1")
    assert running.daemon("GPU-0").phase is Phase.RUNNING


async def test_a_daemon_that_does_not_answer_gets_no_programs_and_is_left_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemons, "SILENCE_S", 0.2)
    monkeypatch.setattr("gpuledger.agent.isolation.mps_daemons.ANSWER_S", 0.3)
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)
    pid = running.daemon("GPU-0").pid
    await running.tell("GPU-0", "test_hang")
    await running.until_all(Phase.SILENT)
    assert "has not answered for" in running.daemon("GPU-0").why
    assert running.daemon("GPU-0").pid == pid
    os.kill(pid, signal.SIGKILL)


async def test_one_that_never_answers_serves_nobody_and_is_started_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(control_program.STARTS_SLOWLY_S, "60")
    monkeypatch.setattr(mps_daemons, "START_S", 0.3)
    running.start(CARDS[:1])
    await running.until(lambda: running.daemon("GPU-0").pid)
    pid = running.daemon("GPU-0").pid
    monkeypatch.setenv(control_program.STARTS_SLOWLY_S, "0")
    await running.until(lambda: running.daemon("GPU-0").pid not in (0, pid))
    monkeypatch.setattr(mps_daemons, "START_S", 60.0)
    await running.until_all(Phase.RUNNING)


async def test_when_it_is_asked_to_end_all_daemons_end_and_who_has_lost_programs_is_told(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    await running.tell("GPU-1", "test_client 0")
    await running.until(lambda: running.daemon("GPU-1").servers)
    pids = [each.pid for each in running.status.daemons]
    await running.stop()
    assert not any(map(is_mps, pids))
    assert {each.pid for each in running.status.daemons} == {0}
    (fault,) = running.status.faults
    assert (fault.daemon, fault.kind) == ("GPU-1", FaultKind.DAEMON_ENDED)


async def test_after_a_crash_of_everything_what_was_lost_is_told_and_counting_goes_on(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    await running.tell("GPU-0", "test_client 0")
    await running.until(lambda: running.daemon("GPU-0").servers)
    await running.crash()
    running.start()
    await running.until(lambda: running.status.faults)
    await running.until_all(Phase.RUNNING)
    (fault,) = running.status.faults
    assert (fault.number, fault.daemon, fault.kind) == (1, "GPU-0", FaultKind.DAEMON_ENDED)
    assert "together with the pod" in fault.sentence
    os.kill(running.daemon("GPU-0").pid, signal.SIGKILL)
    await running.until(lambda: running.daemon("GPU-0").phase is not Phase.RUNNING)
    await running.until_all(Phase.RUNNING)
    assert running.daemon("GPU-0").faults == {FaultKind.DAEMON_ENDED: 1}, "the second one had no programs"


@pytest.mark.parametrize("release", ["535", "555"])
async def test_a_daemon_of_somebody_else_is_left_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setenv("FAKE_MPS_RELEASE", release)  # 535 writes no process id
    pipes = Path(MpsPlaces(running.plan.directory, "GPU-0").pipes)
    os.makedirs(pipes)
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    program = str(running.directory / "bin" / control_program.NAME)
    other = await asyncio.create_subprocess_exec(program, "-f", env=environment, stdout=asyncio.subprocess.DEVNULL)
    await running.until(lambda: running_daemon(pipes))
    running.start(CARDS[:1], multiuser=False)
    await running.until(lambda: "another MPS daemon runs in" in running.daemon("GPU-0").why)
    assert other.returncode is None
    other.kill()
    await other.wait()
    await running.until_all(Phase.RUNNING)


@pytest.mark.parametrize("release", ["535", "550"])
async def test_a_driver_without_servers_for_several_users_says_what_to_set(
    running: Running, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setenv("FAKE_MPS_RELEASE", release)
    running.start(CARDS[:1])
    await running.until(lambda: "set mps_multiuser to false" in running.daemon("GPU-0").why)
    await running.stop()
    running.start(CARDS[:1], multiuser=False)
    await running.until_all(Phase.RUNNING)
    await running.tell("GPU-0", "test_client 0")
    await running.until(lambda: running.daemon("GPU-0").servers)
    await running.tell("GPU-0", "test_fault")
    await running.until(lambda: running.daemon("GPU-0").faults.get(FaultKind.FATAL) == 1)


async def test_what_a_container_puts_into_its_directory_keeps_its_own_daemon_away_alone(running: Running) -> None:
    running.start()
    await running.until_all(Phase.RUNNING)
    pipes, pid = Path(MpsPlaces(running.plan.directory, "GPU-0").pipes), running.daemon("GPU-0").pid
    file = pipes / f"{control_program.NAME}.pid"
    os.kill(pid, signal.SIGKILL)
    os.unlink(file)
    os.mkfifo(file)
    await running.until(lambda: running.daemon("GPU-0").pid not in (0, pid))
    await running.until_all(Phase.RUNNING)
    os.kill(running.daemon("GPU-0").pid, signal.SIGKILL)
    os.unlink(file)
    os.mkdir(file)
    await running.until(lambda: "can't be started" in running.daemon("GPU-0").why)
    assert running.daemon("GPU-1").phase is Phase.RUNNING


@pytest.mark.parametrize("text", ["", "{", "[]", '{"daemons": [{}]}', "\x00"])
async def test_a_file_that_can_not_be_read_is_written_anew(running: Running, text: str) -> None:
    running.plan.directory.mkdir()
    running.plan.file.write_text(text)
    running.start(CARDS[:1])
    await running.until_all(Phase.RUNNING)


@pytest.mark.skipif(NVIDIAS is None, reason=f"{control_program.NAME} is not installed")
@pytest.mark.parametrize("multiuser", [True, False])
async def test_nvidias_own_daemon_is_started_asked_limited_and_ended(
    running: Running, monkeypatch: pytest.MonkeyPatch, multiuser: bool
) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(NVIDIAS or '')}:/usr/bin:/bin")
    running.start(CARDS[:1], multiuser=multiuser, most_cores_percent=30)
    await running.until(lambda: running.daemon("GPU-0").phase is Phase.RUNNING or "555" in running.daemon("GPU-0").why)
    assert multiuser or running.daemon("GPU-0").phase is Phase.RUNNING
    if pid := running.daemon("GPU-0").pid:
        os.kill(pid, signal.SIGKILL)
        await running.until(lambda: running.daemon("GPU-0").pid not in (0, pid))
        await running.until_all(Phase.RUNNING)
        pid = running.daemon("GPU-0").pid
    await running.stop()
    assert not is_mps(pid)
    assert running.status.faults == ()


def test_a_directory_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="too long for a socket by"):
        Daemons(MpsPlan(directory=tmp_path / ("x" * 100)), CARDS)


class Source:
    """Cards as a driver lists them."""

    def __init__(self, *devices: Device) -> None:
        self._devices, self.closed = devices, False

    def open(self) -> None:
        pass

    def snapshot(self) -> Snapshot:
        return Snapshot(self._devices)

    def wait_for_faults(self, timeout_s: float) -> list[Fault]:
        return []

    def uses(self) -> DeviceUses:
        return DeviceUses()

    def limit_memory(self, limit: MemoryLimit) -> None:
        raise LimitRefused(limit.uuid)

    def close(self) -> None:
        self.closed = True


def test_cards_that_mig_cuts_and_cards_of_others_get_no_daemon() -> None:
    cut = Device("MIG-0", 2, "A100", 10_000, mode="mig", parent_uuid="GPU-2")
    source = Source(*CARDS, Device("GPU-2", 2, "A100", 40_000), cut, Device("ACCEL-0", 3, "X", 1, vendor="acme"))
    assert cards_for_mps(source) == CARDS
    assert source.closed
