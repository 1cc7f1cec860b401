"""The node's MPS daemons as the node agent sees them: by the file that the program that runs them writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import Metric

from gpuledger.agent.isolation.choice import MpsPipes
from gpuledger.agent.isolation.mps_daemons import is_mps
from gpuledger.agent.metrics import counter, gauge
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.formats.runtime.mps import (
    FILE_NAME,
    SEVERAL,
    DaemonStatus,
    FaultKind,
    MpsFault,
    MpsPlaces,
    MpsStatus,
    Phase,
)
from gpuledger.model.errors import BadInput

logger = logging.getLogger(__name__)

REPORT_S = 300.0
"""How old a fault may be that an agent reports which has just started."""

LOOK_S = 2.0
"""How often faults are looked for; this only looks at a file."""

PODS_NAMED = 10

_Version = tuple[int, int, int]  # inode, time of the last change in nanoseconds, size


class MpsView:
    """Looks at the daemons whenever it is asked; reads the file only when it has changed."""

    def __init__(
        self,
        directory: Path,
        grants: Callable[[], Iterable[Grant]] = tuple,
        proc: Path = Path("/proc"),
        now: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        """Make one of mps_directory; `now` is in seconds of Unix time."""
        self._directory, self._grants, self._proc, self._now = directory, grants, proc, now
        self._version: _Version | None = None
        self._status = MpsStatus()
        self._problem = ""
        self._reported: int | None = None  # number of the last fault that was reported

    def pipes(self) -> MpsPipes:
        """Return by which directories containers find daemons, and why they do not where none serves."""
        self._look()
        serving = {each.name: self._socket_directories(each.name)[0] for each in self._served()}
        why = {each.name: self._why(each) for each in self._status.daemons if each.name not in serving}
        return MpsPipes(serving, why, self._problem)

    def pods(self) -> frozenset[str]:
        """Return the UID of the pod in which the daemons run, if they run in one: its processes use all cards."""
        self._look()
        return frozenset(filter(None, [self._status.pod_uid]))

    def new_faults(self) -> list[tuple[str, str]]:
        """Return faults that were not reported yet: key -> message naming the card and its pods."""
        self._look()
        faults = self._status.faults
        if self._reported is None or (faults and faults[-1].number < self._reported):  # or the node has booted anew
            since_s = self._now() - REPORT_S
            self._reported = max((each.number for each in faults if each.at_s < since_s), default=0)
        new = [each for each in faults if each.number > self._reported]
        self._reported = max([self._reported, *(each.number for each in new)])
        return [(f"{each.number}-{each.at_s:.0f}", self._sentence(each)) for each in new]

    def metrics(self) -> Iterable[Metric]:
        """Yield whether each daemon takes programs, and how often programs were lost."""
        self._look()
        up = {each.name for each in self._served()}
        daemons = self._status.daemons
        yield gauge(
            "mps_daemon_up",
            "Whether an MPS daemon takes programs; several: that of containers with several cards.",
            [([each.name], float(each.name in up)) for each in daemons],
            ["uuid"],
        )
        counts = [([each.name, kind], float(each.faults.get(kind, 0))) for each in daemons for kind in FaultKind]
        yield counter("mps_faults", "Faults that have ended the programs of an MPS daemon.", counts, ["uuid", "kind"])

    def _served(self) -> list[DaemonStatus]:
        running = (each for each in self._status.daemons if each.phase is Phase.RUNNING)
        return [each for each in running if is_mps(each.pid, self._proc)]

    def _why(self, daemon: DaemonStatus) -> str:
        if daemon.pid and not is_mps(daemon.pid, self._proc):
            return "it has ended, and so has the program that watches it: is the pod of gpuledger-mps running?"
        return daemon.why

    def _sentence(self, fault: MpsFault) -> str:
        pods = self._users(fault.daemon)
        which = "containers with several GPUs" if fault.daemon == SEVERAL else f"GPU {fault.daemon}"
        more = f" and {len(pods) - PODS_NAMED} more" if len(pods) > PODS_NAMED else ""
        hit = f"; programs of these pods have lost it: {', '.join(pods[:PODS_NAMED])}{more}" if pods else ""
        return f"the MPS daemon of {which}: {fault.sentence}{hit}"

    def _users(self, name: str) -> Sequence[str]:
        """Return the pods whose containers have this daemon."""
        directories = self._socket_directories(name)
        return sorted({f"{each.namespace}/{each.pod}" for each in self._grants() if _has_mount(each, directories)})

    def _socket_directories(self, name: str) -> list[str]:
        """Return the directories by which containers find a daemon: for new ones, and of an earlier version.

        A pod of gpuledger-mps that is older than this agent has only the daemon's own directory.
        """
        places = MpsPlaces(self._directory, name)
        return [str(each) for each in (places.clients, places.pipes) if each == places.pipes or Path(each).is_dir()]

    def _look(self) -> None:
        file = self._directory / FILE_NAME
        try:
            found = file.stat()
            version = found.st_ino, found.st_mtime_ns, found.st_size
            if version != self._version:
                self._version, self._status, self._problem = version, MpsStatus.read(file.read_text()), ""
        except (OSError, UnicodeDecodeError, BadInput) as error:
            if isinstance(error, BadInput):
                logger.error("how MPS' daemons are can't be read: %s", error)
            self._version, self._status = None, MpsStatus()
            self._problem = f"{file} can't be read, which the pod of gpuledger-mps writes: is it running?"


async def report_faults(view: MpsView, post: Callable[[str, str], None]) -> None:
    """Post each new fault, a sentence and a name of its own, until cancelled."""
    while True:
        for name, sentence in view.new_faults():
            post(sentence, name)
        await asyncio.sleep(LOOK_S)


def _has_mount(grant: Grant, host_paths: Collection[str]) -> bool:
    return any(each.get("hostPath") in host_paths for each in grant.edits.get("mounts") or ())
