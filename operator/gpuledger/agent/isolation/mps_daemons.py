"""All MPS daemons of a node: their processes, their state, and the memory for their clients.

There is one for each card, and one for containers that have several. One for each card, because a fault of a daemon's
server concerns all of its programs: while a server has a fault, it serves no new program on any of its cards, and one
that has to be started again takes its programs with it. A program connects to one daemon only, so a container with
several cards needs one that has them all. Two servers may use a card in its compute mode DEFAULT, which is left as it
is.

A daemon's state is judged from the outside, and a daemon that runs is never ended: its servers may serve programs that
run well. Programs under MPS have a file system of their own at /dev/shm, so that no container can fill the node's /run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import signal
import socket
import stat
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpuledger.agent.devices.source import Device, DeviceSource
from gpuledger.agent.grants.files import write_whole
from gpuledger.formats.runtime.mps import (
    CONTROL,
    FAULTS_KEPT,
    FILE_NAME,
    LEFT_OVER,
    NOT_STARTED,
    PID_FILE,
    SENTENCE_LENGTH,
    SERVER_LIST,
    SEVERAL,
    SHARED_MEMORY,
    SOCKET,
    SOCKET_PATH_LENGTH,
    DaemonStatus,
    FatalFault,
    FaultKind,
    LogEntry,
    MpsFault,
    MpsPlaces,
    MpsStatus,
    Phase,
    ServerEnded,
    ServerStatus,
    daemon_command,
    daemon_environment,
    is_amount,
    is_routine,
    log_entries,
    most_cores,
    most_memory,
    quit_command,
    server_status,
    servers_of,
    status_of,
)
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import BadInput, GpuledgerError

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long a command may take."""

QUIT_S = 20.0
"""How long a daemon may take to end its servers when it is asked to: less than terminationGracePeriodSeconds."""

ANSWER_LENGTH = 65_536
LINES_KEPT = 1000
"""How many lines of the log are kept until they are read; the oldest are lost beyond that."""

LINE_LENGTH = 300

NO_MULTIUSER = (
    "this driver's MPS has no server for several users, as that of 555 and newer has: set mps_multiuser to false"
)


class NotAnswered(GpuledgerError):  # noqa: N818 - reads as what it is
    """A daemon does not answer, or it or its program can't be started; the message says why."""


@dataclass(slots=True)
class DaemonProcess:
    """One daemon. Paths are as this process sees them."""

    state: DaemonState
    places: MpsPlaces
    limits: Sequence[tuple[str, str]] = ()
    """For each: the command that sets it, and the one that reads it."""
    multiuser: bool = True
    proc: Path = Path("/proc")
    _process: asyncio.subprocess.Process | None = None
    _output: asyncio.Task[str] | None = None  # -> the last line that it has printed
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))

    @property
    def pid(self) -> int:
        """Return its process id; 0: it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def start(self) -> int:
        """Start it, and return its process id. Raises NotAnswered."""
        try:
            self._prepare()
            self._process = await asyncio.create_subprocess_exec(
                *daemon_command(self.multiuser),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NotAnswered(
                f"{error.filename} is missing: it comes with the driver, where {_NEEDS} asks for it"
            ) from None
        except OSError as error:
            raise NotAnswered(f"{CONTROL} can't be started: {error.strerror or error}") from error
        self._output = asyncio.create_task(self._read_output(self._process.stdout))
        return self._process.pid

    def _prepare(self) -> None:
        """Have its directories as it needs them. Raises NotAnswered, OSError."""
        pipes = Path(self.places.pipes)
        for directory in (pipes, Path(self.places.clients), Path(self.places.logs)):
            directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        if running_daemon(pipes, self.proc):
            raise NotAnswered(f"another MPS daemon runs in {pipes}: end it, so that this one can be started")
        for name in LEFT_OVER:  # never the directory itself: it is mounted into containers
            (pipes / name).unlink(missing_ok=True)
        self._lines.clear()

    async def ended(self) -> str:
        """Wait until it has ended, and return how. Raises NotAnswered if it was not started."""
        if self._process is None or self._output is None:
            raise NotAnswered("it was not started")
        status = await self._process.wait()
        # A server that is left keeps the pipe open: what the daemon had to say is there at once.
        await asyncio.wait([self._output], timeout=0.5)
        last = self._output.result() if self._output.done() else ""
        self._output.cancel()
        if status < 0:
            return f"it has ended with signal {-status}"
        if self.multiuser and NOT_STARTED in last:
            return NO_MULTIUSER
        return f"it has ended with status {status}{last and f': {last}'}"

    async def servers(self) -> Mapping[int, ServerStatus]:
        """Return its servers, and how each is. Raises NotAnswered."""
        listed = servers_of(await self.ask(SERVER_LIST))
        return {each: server_status(await self.ask(status_of(each))) for each in listed}

    async def limit(self) -> None:
        """Set the limits. Raises NotAnswered where one is not set."""
        for set_it, read_it in self.limits:
            said = await self.ask(set_it)
            answer = await self.ask(read_it)
            if not is_amount(answer):
                raise NotAnswered(f"`{set_it}` was not taken: {(said or answer)[:LINE_LENGTH]!r}")

    def show(self) -> None:
        """Have containers find the socket of the daemon that runs, under the same name as one before it.

        A second name of the socket, in a directory of its own: in the daemon's directory, a container's user root could
        give the daemon commands such as `quit`, and any user write into its log. Raises NotAnswered.
        """
        socket_file, shown = Path(self.places.pipes) / SOCKET, Path(self.places.clients) / SOCKET
        unfinished = shown.with_suffix(".new")
        try:
            if shown.exists() and shown.samefile(socket_file):
                return
            unfinished.unlink(missing_ok=True)
            unfinished.hardlink_to(socket_file)
            unfinished.replace(shown)
        except OSError as error:
            raise NotAnswered(f"{shown} can't be made: {error.strerror or error}") from error

    async def ask(self, command: str, timeout_s: float | None = None) -> str:
        """Return the daemon's answer to a command. Raises NotAnswered."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        try:
            asking = await asyncio.create_subprocess_exec(
                CONTROL,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise NotAnswered(f"{CONTROL} can't be started: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                answer, _ = await asking.communicate(f"{command}\n".encode())
        except TimeoutError as error:
            raise NotAnswered(f"`{command}` was not answered in {timeout_s:g} s") from error
        finally:
            if asking.returncode is None:
                asking.kill()
                await asking.wait()
        text = answer[:ANSWER_LENGTH].decode(errors="replace").strip()
        if asking.returncode:
            raise NotAnswered(f"`{command}` failed with status {asking.returncode}: {text[:LINE_LENGTH]}")
        return text

    def logged(self) -> list[LogEntry]:
        """Return the entries logged since the last call."""
        lines = list(self._lines)
        self._lines.clear()
        return log_entries(lines)

    def kill(self) -> None:
        """End it at once. Only for a daemon that serves no program."""
        if self.pid and self._process is not None:
            self._process.kill()

    async def quit(self) -> None:
        """Have it end with its servers."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(NotAnswered, TimeoutError):
            async with asyncio.timeout(QUIT_S):
                await self.ask(quit_command(QUIT_S / 2), QUIT_S)
                await process.wait()
        self.kill()
        await process.wait()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return inherited | daemon_environment(str(self.places.pipes), str(self.places.logs), self.state.cards)

    async def _read_output(self, output: asyncio.StreamReader | None) -> str:
        """Keep what is logged, show what is not routine, and return the last of that."""
        last, begun = "", ""
        while output is not None and (text := await output.read(4096)):
            *lines, begun = (begun + text.decode(errors="replace")).split("\n")
            begun = begun[:LINE_LENGTH]
            for line in filter(None, map(str.strip, lines)):
                self._lines.append(line[:LINE_LENGTH])
                if not is_routine(line):
                    last = line[:LINE_LENGTH]
                    logger.info("MPS, %s: %s", self.state.name, last)
        return last


def running_daemon(pipes: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether an MPS daemon listens in a directory of pipes: by its process id, or by its socket."""
    with contextlib.suppress(OSError, ValueError):
        if is_mps(int(_small_file(pipes / PID_FILE)), proc):
            return True
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(pipes / SOCKET))
        except BlockingIOError:  # others wait to be heard
            return True
        except OSError:
            return False
    return True


def _small_file(path: Path) -> bytes:
    """Return the content of a file in a directory that containers can write to: they can replace it by anything.

    Raises OSError for anything but an ordinary file: reading a named pipe would never end.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no ordinary file", str(path))
        return os.read(opened, 32)
    finally:
        os.close(opened)


def is_mps(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a process of MPS has this process id, which needs the node's PID namespace."""
    with contextlib.suppress(OSError):
        return pid > 0 and "mps" in (proc / str(pid) / "comm").read_text()
    return False


_NEEDS = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A daemon that ran for so long is started again soon, whatever was before."""

SILENCE_S = 30.0
"""A daemon that has answered no command for so long gets no new programs."""

SAME_FAULT_S = 15.0
"""A fault shows in a server's log and in its status, not at the same moment: within this time it is counted once."""

START_S = 60.0
"""A daemon that has never answered in this time serves no program, and may be ended."""

Fault = tuple[FaultKind, str]
"""The kind of a fault, and a sentence about it."""

STARTS = "it is being started"
_FAULT = "a fatal fault has ended its programs, and some of them have not exited yet"


class DaemonState:
    """The state of one daemon, and what it has counted."""

    def __init__(self, name: str, cards: tuple[str, ...], faults: Mapping[FaultKind, int] | None = None) -> None:
        """Make one of a daemon that does not run; `faults` are those that were counted before."""
        self.name, self.cards = name, cards
        self.phase, self.why, self.pid = Phase.WAITING, STARTS, 0
        self.servers: dict[int, ServerStatus] = {}
        self.faults: Counter[FaultKind] = Counter(faults or {})
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._started_s = self._heard_s = 0.0
        self._told: set[int] = set()  # servers of whose end the log has told
        self._missing: frozenset[int] = frozenset()  # servers that are gone, of which it may tell in a moment
        self._fatal_s = -SAME_FAULT_S  # when a fatal fault was counted

    @property
    def status(self) -> DaemonStatus:
        """Return the status for the agent."""
        return DaemonStatus(
            name=self.name,
            cards=self.cards,
            pid=self.pid,
            phase=self.phase,
            why=self.why[:SENTENCE_LENGTH],
            servers=tuple(sorted(self.servers)),
            faults=dict(self.faults),
        )

    def started(self, pid: int, now_s: float) -> None:
        """Record that its process runs."""
        self.phase, self.why, self.pid = Phase.STARTING, STARTS, pid
        self._started_s = self._heard_s = now_s
        self.servers, self._told, self._missing = {}, set(), frozenset()

    def answered(self, servers: Mapping[int, ServerStatus], now_s: float) -> list[Fault]:
        """Note what it has answered: its servers, and how each is. Return the faults that this shows."""
        self._heard_s = now_s
        untold = sorted(self._missing - self._told)
        found = [(FaultKind.SERVER_ENDED, f"its server {each} has ended") for each in untold]
        self._missing = frozenset(self.servers.keys() - servers.keys() - self._told)
        self._told &= servers.keys()
        self.servers = dict(servers)
        hit = sorted(each for each, status in servers.items() if status is ServerStatus.FAULT)
        if hit and self.phase is not Phase.FAULT and now_s >= self._fatal_s + SAME_FAULT_S:
            self._fatal_s = now_s
            found.append((FaultKind.FATAL, f"its server {hit[0]} has met a fatal fault"))
        if hit:
            self.phase, self.why = Phase.FAULT, _FAULT
        else:
            self.phase, self.why = Phase.RUNNING, ""
        return self._counted(found)

    def unanswered(self, why: str, now_s: float) -> None:
        """Record that a command was not answered."""
        if self.phase is Phase.STARTING:
            self.why = f"{STARTS}; {why}"
        elif self.pid and now_s >= self._heard_s + SILENCE_S:
            self.phase, self.why = Phase.SILENT, f"it has not answered for {now_s - self._heard_s:.0f} s: {why}"

    def never_answered(self, now_s: float) -> bool:
        """Return whether it has run for long enough without ever answering, so that it may be ended."""
        return self.phase is Phase.STARTING and now_s >= self._started_s + START_S

    def logged(self, entries: Iterable[LogEntry], now_s: float) -> list[Fault]:
        """Note what was logged. Return the faults that this shows."""
        found: list[Fault] = []
        for entry in entries:
            match entry:
                case FatalFault(server, clients) if self.phase is not Phase.FAULT:
                    self.phase, self.why = Phase.FAULT, _FAULT
                    if now_s >= self._fatal_s + SAME_FAULT_S:
                        self._fatal_s = now_s
                        hit = f", which has ended the programs {', '.join(map(str, clients))}" if clients else ""
                        found.append((FaultKind.FATAL, f"its server {server} has met a fatal fault{hit}"))
                case ServerEnded(server, status):
                    if status != 0 and server not in self._told:
                        found.append((FaultKind.SERVER_ENDED, f"its server {server} has ended with status {status}"))
                    self._told.add(server)
                    self._missing -= {server}
        return self._counted(found)

    def ended(self, why: str, now_s: float) -> tuple[float, list[Fault]]:
        """Record that its process has ended, or could not be started. Return when to start it, in seconds from now."""
        served = bool(self.servers)
        if self.pid and now_s >= self._started_s + STEADY_S:
            self._backoff.reset()
        pause_s = self._backoff.next_s()
        self.phase, self.pid, self.servers = Phase.WAITING, 0, {}
        self.why = f"{why}; it is started again in {pause_s:g} s"
        return pause_s, self._counted([(FaultKind.DAEMON_ENDED, why)] if served else [])

    def _counted(self, found: list[Fault]) -> list[Fault]:
        self.faults.update(kind for kind, _ in found)
        return found


LOOK_S = 1.0
"""How often logs are looked at, and daemons asked whose state may change soon."""

ASK_S = 10.0
"""How often a daemon is asked how its servers are. Each question starts a program."""

CARDS_AGAIN_S = 10.0
"""After this, cards are listed again where the driver shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan:
    """The settings of the program."""

    directory: Path
    multiuser: bool = True
    most_memory_percent: int = 100
    """Of a card's memory, what a client process may allocate whatever its container says."""
    most_cores_percent: int = 100
    pod_uid: str = ""

    @property
    def file(self) -> Path:
        """Where the node agent reads how the daemons are."""
        return self.directory / FILE_NAME


class Daemons:
    """The daemons of a node, until they are asked to end."""

    def __init__(self, plan: MpsPlan, cards: Sequence[Device], proc: Path = Path("/proc")) -> None:
        """Make those of these cards. Raises BadInput if mps_directory is too long for a socket's path."""
        self._plan = plan
        before = _read(plan.file)
        self._faults = list(before.faults)
        earlier = {each.name: each for each in before.daemons}
        groups: dict[str, tuple[Device, ...]] = {card.uuid: (card,) for card in cards}
        if len(cards) > 1:
            groups[SEVERAL] = tuple(cards)
        self._daemons: list[DaemonProcess] = []
        for name, group in groups.items():
            places = MpsPlaces(plan.directory, name)
            _check_length(places)
            faults = earlier[name].faults if name in earlier else {}
            state = DaemonState(name, tuple(card.uuid for card in group), faults)
            self._daemons.append(DaemonProcess(state, places, self._limits(group), plan.multiuser, proc))
            self._lost_before(state, earlier.get(name), proc)
        self._written = ""

    async def run(self, until: Awaitable[object]) -> None:
        """Start the daemons and look after them; when `until` is over, end them all."""
        shared = self._plan.directory / SHARED_MEMORY
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o1777)  # as /dev/shm: programs of any user make files there
        self._write()
        tasks = [asyncio.create_task(self._look_after(each)) for each in self._daemons]
        waiting = asyncio.ensure_future(until)
        try:
            done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, *tasks):
                task.cancel()
            await asyncio.gather(waiting, *tasks, return_exceptions=True)
            await asyncio.gather(*(daemon.quit() for daemon in self._daemons))
            for daemon in self._daemons:
                self._note(daemon.state, daemon.state.ended("it was asked to end", _now_s())[1])
            self._write()
        for task in done:
            task.result()  # a task that has failed ends the program

    def _limits(self, cards: Iterable[Device]) -> list[tuple[str, str]]:
        memory, cores = self._plan.most_memory_percent, self._plan.most_cores_percent
        commands = [most_memory(card.uuid, card.memory_mib * memory // 100) for card in cards if memory < 100]
        return [*commands, *([most_cores(cores)] if cores < 100 else [])]

    async def _look_after(self, daemon: DaemonProcess) -> None:
        state = daemon.state
        while True:
            try:
                state.started(await daemon.start(), _now_s())
                self._write()
                why = await self._watch(daemon)
            except NotAnswered as error:
                why = str(error)
            pause_s, faults = state.ended(why, _now_s())
            logger.error("MPS, %s: %s", state.name, state.why)
            self._note(state, faults)
            self._write()
            await asyncio.sleep(pause_s)

    async def _watch(self, daemon: DaemonProcess) -> str:
        """Return when the daemon has ended, with how it has."""
        state, ending, ask_s = daemon.state, asyncio.create_task(daemon.ended()), 0.0
        try:
            while not ending.done():
                self._read_log(daemon)
                if state.phase is not Phase.RUNNING or _now_s() >= ask_s:
                    await self._ask(daemon)
                    ask_s = _now_s() + ASK_S
                self._write()
                if state.never_answered(_now_s()):
                    daemon.kill()
                await asyncio.wait([ending], timeout=LOOK_S)
            self._read_log(daemon)
            return ending.result()
        finally:
            ending.cancel()

    async def _ask(self, daemon: DaemonProcess) -> None:
        try:
            if daemon.state.phase is Phase.STARTING:  # before anybody is let in
                await daemon.limit()
                daemon.show()
            servers = await daemon.servers()
            self._read_log(daemon)  # which says more of what the answer shows
            self._note(daemon.state, daemon.state.answered(servers, _now_s()))
        except NotAnswered as error:
            daemon.state.unanswered(str(error), _now_s())

    def _read_log(self, daemon: DaemonProcess) -> None:
        self._note(daemon.state, daemon.state.logged(daemon.logged(), _now_s()))

    def _lost_before(self, state: DaemonState, earlier: DaemonStatus | None, proc: Path) -> None:
        """Note programs that were lost while this program did not run."""
        if earlier is not None and earlier.servers and not is_mps(earlier.pid, proc):
            why = "it has ended together with the pod that runs the daemons"
            state.faults[FaultKind.DAEMON_ENDED] += 1
            self._note(state, [(FaultKind.DAEMON_ENDED, why)])

    def _note(self, state: DaemonState, faults: Iterable[Fault]) -> None:
        for kind, sentence in faults:
            logger.error("MPS, %s: %s", state.name, sentence)
            number = self._faults[-1].number + 1 if self._faults else 1
            at_s = datetime.now(UTC).timestamp()
            text = sentence[:SENTENCE_LENGTH]
            self._faults.append(MpsFault(number=number, at_s=at_s, daemon=state.name, kind=kind, sentence=text))
        del self._faults[:-FAULTS_KEPT]

    def _write(self) -> None:
        """Write the file, if it has to change, in one step."""
        states = tuple(daemon.state.status for daemon in self._daemons)
        text = MpsStatus(pod_uid=self._plan.pod_uid, daemons=states, faults=tuple(self._faults)).text()
        if text == self._written:
            return
        try:
            write_whole(self._plan.file, text.encode())
            self._written = text
        except OSError as error:
            logger.error("%s can't be written, trying again: %s", self._plan.file, error.strerror)


def cards_for_mps(source: DeviceSource) -> tuple[Device, ...]:
    """Return the cards of a node that MPS can serve: NVIDIA's, without those that are cut by MIG. Raises DriverGone."""
    try:
        source.open()
        found = source.snapshot().devices
    finally:
        source.close()
    cut = {device.parent_uuid for device in found if device.mode}
    return tuple(each for each in found if each.vendor == "nvidia" and not each.mode and each.uuid not in cut)


async def run_mps(plan: MpsPlan, source: Callable[[], DeviceSource]) -> None:
    """Run the daemons of this node until SIGTERM or SIGINT. Raises BadInput."""
    asked_to_end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end.set)
    while not asked_to_end.is_set():
        try:
            cards = await asyncio.to_thread(lambda: cards_for_mps(source()))
        except BadInput:
            raise
        except GpuledgerError as error:
            cards = ()
            logger.error("the driver can't be asked for its cards, trying again: %s", error)
        if cards:
            logger.info("MPS daemons for %d cards in %s", len(cards), plan.directory)
            await Daemons(plan, cards).run(asked_to_end.wait())
            return
        logger.info("no card here can be served by MPS yet")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CARDS_AGAIN_S):
                await asked_to_end.wait()


def _read(file: Path) -> MpsStatus:
    try:
        return MpsStatus.read(file.read_text())
    except (OSError, UnicodeDecodeError, BadInput) as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("what was counted before is lost: %s", error)
        return MpsStatus()


def _check_length(places: MpsPlaces) -> None:
    longest = max(len(os.fsencode(places.pipes / name)) for name in LEFT_OVER)
    if longest > SOCKET_PATH_LENGTH:
        raise BadInput(
            f"mps_directory: {places.pipes} is too long for a socket by {longest - SOCKET_PATH_LENGTH} bytes"
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
"""sys/mount.h."""


def mount_shared_memory(directory: Path, size: str, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Mount a tmpfs in mps_directory, and return whether it had to: one that is there has users, and stays.

    `size` is as tmpfs has it, such as 50% or 8g. Raises BadInput if it can't be mounted.
    """
    place = directory / SHARED_MEMORY
    place.mkdir(parents=True, exist_ok=True)
    if any(line.split()[1:3] == [str(place), "tmpfs"] for line in mounts.read_text().splitlines()):
        logger.info("%s is there", place)
        return False
    options = f"size={size},mode=1777".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"gpuledger-mps", os.fsencode(place), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options):
        raise BadInput(f"{place} can't be mounted with size={size}: {os.strerror(ctypes.get_errno())}")
    logger.info("%s is mounted, with size=%s", place, size)
    return True
