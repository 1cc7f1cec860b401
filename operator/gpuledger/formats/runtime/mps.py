"""The words of NVIDIA's MPS: what its control daemon is told, what it answers, and what it and its servers log.

Sources: NVIDIA's MPS documentation, releases 550 to 615 (nvidia-cuda-mps-control, environment variables, logging
format, error containment), and what the daemons of drivers 535, 550 and 555 answer and print where there is no card.

The file in which the program that runs a node's MPS daemons tells the node agent how they are.

The two are different pods, of which only one may talk to the API server: so a file of the node is between them. Only
root of the node can write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuledger.formats.custom_resource.gpu_allocation import wire_name
from gpuledger.model.errors import BadInput

CONTROL = "nvidia-cuda-mps-control"
"""The program: the daemon, and without options the one that passes commands on to it."""

PID_FILE = f"{CONTROL}.pid"
"""Written by the daemon into its directory of pipes, from driver 550 on."""

SOCKET = "control"
"""Where the daemon listens, in its directory of pipes."""

LEFT_OVER = (SOCKET, "control_lock", "control_privileged", "log", PID_FILE)
"""The files that a killed daemon leaves in its directory of pipes, and that keep the next one from starting there."""

SOCKET_PATH_LENGTH = 107
"""Of a Unix socket, without the zero at its end: unix(7)."""

SERVER_LIST = "get_server_list"
NOT_STARTED = "Cannot find MPS control daemon process"
"""The output of the program if it does not know one of its options: it then acts as a daemon's client."""

_ROUTINE = re.compile(
    r"Accepting connection|NEW UI|UI closed|Cmd:|[\d.]+$|ACTIVE$|INITIALIZING$|Unknown command .get_server_status"
)

_LINE = re.compile(r"\[[^]]*\s(?P<pid>\d+)\]\s*(?P<text>.*)")
_FATAL = "handling a fatal GPU error"
_CLIENTS = "clients have a sticky error set"
_EXIT = re.compile(r"Server (?P<pid>\d+) exited with status (?P<status>-?\d+)")
_NUMBER = re.compile(r"\d{1,10}")
_LIMIT = re.compile(r"\d+\s*[MG]?B?")


class ServerStatus(StrEnum):
    """The states of a server, as `get_server_status` names them."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    """A client's fatal fault: no new client is served before all clients of the cards concerned have ended."""
    UNKNOWN = ""
    """An answer of another form."""


@dataclass(frozen=True, slots=True)
class FatalFault:
    """A server's line that a fatal fault was found, with the programs that it has ended."""

    server: int
    clients: tuple[int, ...] = ()
    """Process ids as the server sees them."""


@dataclass(frozen=True, slots=True)
class ServerEnded:
    """The daemon's line that a server has ended."""

    server: int
    status: int


LogEntry = FatalFault | ServerEnded


def daemon_command(multiuser: bool) -> list[str]:
    """Return how the daemon is started: in the foreground, where its end is seen, and its output has all logs.

    With `multiuser` a server is for all users, which driver 555 and newer know.
    """
    return [CONTROL, "-f", *(["-multiuser-server"] if multiuser else [])]


def daemon_environment(pipes: str, logs: str, cards: Iterable[str]) -> dict[str, str]:
    """Return the daemon's variables: where it listens and logs, and the UUIDs of its cards."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_LOG_DIRECTORY": logs,
        "CUDA_VISIBLE_DEVICES": ",".join(cards),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def quit_command(timeout_s: float) -> str:
    """Return the command by which the daemon ends, and its servers after this time at the latest."""
    return f"quit -t {timeout_s:.0f}"


def status_of(server: int) -> str:
    """Return the command that asks how a server is."""
    return f"get_server_status {server}"


def most_memory(card: str, mib: int) -> tuple[str, str]:
    """Return the command that sets the most that a client process may allocate of a card, and the one that reads it."""
    return f"set_default_device_pinned_mem_limit {card} {mib}M", f"get_default_device_pinned_mem_limit {card}"


def most_cores(percent: int) -> tuple[str, str]:
    """Return the command that sets the most threads that a client process may use, in percent, and the other one."""
    return f"set_default_active_thread_percentage {percent}", "get_default_active_thread_percentage"


def is_amount(answer: str) -> bool:
    """Return whether an answer is an amount, as 3G, 2048M or 30.0: any other says that it was not set."""
    return bool(_LIMIT.match(answer.strip()))


def servers_of(answer: str) -> tuple[int, ...]:
    """Return the process ids that SERVER_LIST names: one a line, whatever stands beside them."""
    return tuple(int(line) for line in map(str.strip, answer.splitlines()) if _NUMBER.fullmatch(line))


def server_status(answer: str) -> ServerStatus:
    """Return the state that `get_server_status` names."""
    words = set(re.findall(r"[A-Z]+", answer))
    # The worst counts, should an answer ever speak of several.
    known = (ServerStatus.FAULT, ServerStatus.INITIALIZING, ServerStatus.ACTIVE)
    return next((each for each in known if each in words), ServerStatus.UNKNOWN)


def is_routine(line: str) -> bool:
    """Return whether a line of the log is about a command or its answer, as ours are all the time."""
    parts = _LINE.match(line)
    return bool(parts and _ROUTINE.match(parts["text"]))


def log_entries(lines: Sequence[str]) -> list[LogEntry]:
    """Return the entries of a log that have to be reported."""
    found: list[LogEntry] = []
    lists_clients = False
    for line in lines:
        parts = _LINE.match(line)
        text = parts["text"].strip() if parts else ""
        if lists_clients and _NUMBER.fullmatch(text) and found and isinstance(found[-1], FatalFault):
            found[-1] = FatalFault(found[-1].server, (*found[-1].clients, int(text)))
            continue
        lists_clients = _CLIENTS in text
        if parts and _FATAL in text:
            found.append(FatalFault(int(parts["pid"])))
        elif ended := _EXIT.search(text):
            found.append(ServerEnded(int(ended["pid"]), int(ended["status"])))
    return found


FILE_NAME = "status.json"
"""In mps_directory."""

SHARED_MEMORY = "shm"
"""Directory in mps_directory that containers have as /dev/shm."""

SEVERAL = "several"
"""Name of the daemon of containers that have several cards; any other is named after its card's UUID."""

FAULTS_KEPT = 32
"""Of a node, the latest."""

SENTENCE_LENGTH = 300


class Phase(StrEnum):
    """How a daemon is."""

    WAITING = "waiting"
    """It does not run, and is started again."""
    STARTING = "starting"
    """It runs, and has not answered yet."""
    RUNNING = "running"
    FAULT = "fault"
    """It runs, and its server serves no new program before those that a fault has hit have ended."""
    SILENT = "silent"
    """It runs, and has not answered for a while."""


class FaultKind(StrEnum):
    """The cause of the end of a daemon's programs."""

    FATAL = "fatal"
    """A program's fatal fault on a card, of all programs that share the card by this daemon."""
    SERVER_ENDED = "server-ended"
    DAEMON_ENDED = "daemon-ended"


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True, frozen=True, extra="ignore")


_Count = Annotated[int, Field(ge=0)]


class DaemonStatus(_Part):
    """One daemon."""

    name: str
    cards: tuple[str, ...] = ()
    pid: _Count = 0
    """0: it does not run."""
    phase: Phase = Phase.WAITING
    why: str = ""
    """Why it serves no new program, for people; empty: it does."""
    servers: tuple[int, ...] = ()
    faults: dict[FaultKind, _Count] = {}
    """How often, since the node has booted."""


class MpsFault(_Part):
    """Something that has taken programs."""

    number: _Count
    """Grows by one from fault to fault, since the node has booted."""
    at_s: float
    """Unix time."""
    daemon: str
    kind: FaultKind
    sentence: str = ""


class MpsStatus(_Part):
    """The whole file."""

    pod_uid: str = ""
    """Of the pod in which the daemons run; empty: they are processes of the node."""
    daemons: tuple[DaemonStatus, ...] = ()
    faults: tuple[MpsFault, ...] = ()
    """The latest, oldest first."""

    def text(self) -> str:
        """Return the file's content."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the status in a file. Raises BadInput."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise BadInput(f"{FILE_NAME}: {error.errors(include_url=False)[0]['msg']}") from error


@dataclass(frozen=True, slots=True)
class MpsPlaces:
    """Where everything of a daemon lies below mps_directory."""

    directory: PurePath
    name: str = field(default=SEVERAL)

    @property
    def pipes(self) -> PurePath:
        """Return the directory of the daemon's sockets and pipes."""
        return self.directory / "daemons" / self.name / "pipe"

    @property
    def clients(self) -> PurePath:
        """Return the directory by which containers' programs find the daemon: only the socket for them is there."""
        return self.directory / "daemons" / self.name / "clients"

    @property
    def logs(self) -> PurePath:
        """Return the directory of control.log and server.log."""
        return self.directory / "daemons" / self.name / "log"
