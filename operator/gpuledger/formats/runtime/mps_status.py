"""The file in which the program that runs a node's MPS daemons tells the node agent how they are.

The two are different pods, of which only one may talk to the API server: so a file of the node is between them. Only
root of the node can write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuledger.formats.custom_resource.gpu_allocation import wire_name
from gpuledger.model.errors import BadInput

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
    """What has taken the programs of a daemon."""

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
        """Return what a file says. Raises BadInput."""
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
