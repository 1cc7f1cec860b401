"""All MPS daemons of a node: one for each card, and one for containers that have several.

One for each card, because what goes wrong in a daemon's server concerns all of its programs: while a server has a
fault, it serves no new program on any of its cards, and one that has to be started again takes its programs with it. A
program connects to one daemon only, so a container with several cards needs one that has them all. Two servers may use
a card in its compute mode DEFAULT, which is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuledger.agent.devices.source import Device, DeviceSource
from gpuledger.agent.mps.daemon_process import DaemonProcess, NotAnswered, is_mps
from gpuledger.agent.mps.daemon_state import DaemonState, Fault
from gpuledger.formats.runtime.mps import LEFT_OVER, SOCKET_PATH_LENGTH, most_cores, most_memory
from gpuledger.formats.runtime.mps_status import (
    FAULTS_KEPT,
    FILE_NAME,
    SENTENCE_LENGTH,
    SEVERAL,
    SHARED_MEMORY,
    DaemonStatus,
    FaultKind,
    MpsFault,
    MpsPlaces,
    MpsStatus,
    Phase,
)
from gpuledger.model.errors import BadInput, GpuledgerError

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often logs are looked at, and daemons asked whose state may change soon."""

ASK_S = 10.0
"""How often a daemon is asked how its servers are. Each question starts a program."""

CARDS_AGAIN_S = 10.0
"""After this, cards are listed again where the driver shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan:
    """What the program has to know."""

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
        self._daemons: list[tuple[DaemonState, DaemonProcess, list[tuple[str, str]]]] = []
        for name, group in groups.items():
            uuids = tuple(card.uuid for card in group)
            places = MpsPlaces(plan.directory, name)
            _check_length(places)
            state = DaemonState(name, uuids, earlier[name].faults if name in earlier else {})
            process = DaemonProcess(places, uuids, plan.multiuser, proc)
            self._daemons.append((state, process, self._limits(group)))
            self._lost_before(state, earlier.get(name), proc)
        self._written = ""

    async def run(self, until: Awaitable[object]) -> None:
        """Start the daemons and look after them; when `until` is over, end them all."""
        shared = self._plan.directory / SHARED_MEMORY
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o1777)  # as /dev/shm: programs of any user make files there
        self._write()
        tasks = [asyncio.create_task(self._look_after(*each)) for each in self._daemons]
        waiting = asyncio.ensure_future(until)
        try:
            done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, *tasks):
                task.cancel()
            await asyncio.gather(waiting, *tasks, return_exceptions=True)
            await asyncio.gather(*(process.quit() for _, process, _ in self._daemons))
            for state, _, _ in self._daemons:
                self._note(state, state.ended("it was asked to end", _now_s())[1])
            self._write()
        for task in done:
            task.result()  # a task that has failed ends the program

    def _limits(self, cards: Iterable[Device]) -> list[tuple[str, str]]:
        memory, cores = self._plan.most_memory_percent, self._plan.most_cores_percent
        commands = [most_memory(card.uuid, card.memory_mib * memory // 100) for card in cards if memory < 100]
        return [*commands, *([most_cores(cores)] if cores < 100 else [])]

    async def _look_after(self, state: DaemonState, process: DaemonProcess, limits: list[tuple[str, str]]) -> None:
        while True:
            try:
                state.started(await process.start(), _now_s())
                self._write()
                why = await self._watch(state, process, limits)
            except NotAnswered as error:
                why = str(error)
            pause_s, faults = state.ended(why, _now_s())
            logger.error("MPS, %s: %s", state.name, state.why)
            self._note(state, faults)
            self._write()
            await asyncio.sleep(pause_s)

    async def _watch(self, state: DaemonState, process: DaemonProcess, limits: list[tuple[str, str]]) -> str:
        """Return when the daemon has ended, with how it has."""
        ending, ask_s = asyncio.create_task(process.ended()), 0.0
        try:
            while not ending.done():
                self._note(state, state.logged(process.logged(), _now_s()))
                if state.phase is not Phase.RUNNING or _now_s() >= ask_s:
                    self._note(state, await self._ask(state, process, limits))
                    ask_s = _now_s() + ASK_S
                self._write()
                if state.never_answered(_now_s()):
                    process.kill()
                await asyncio.wait([ending], timeout=LOOK_S)
            self._note(state, state.logged(process.logged(), _now_s()))
            return ending.result()
        finally:
            ending.cancel()

    async def _ask(self, state: DaemonState, process: DaemonProcess, limits: list[tuple[str, str]]) -> list[Fault]:
        try:
            if state.phase is Phase.STARTING:  # before anybody is let in
                await process.limit(limits)
                process.show()
            servers = await process.servers()
            self._note(state, state.logged(process.logged(), _now_s()))  # which says more of what the answer shows
            return state.answered(servers, _now_s())
        except NotAnswered as error:
            state.unanswered(str(error), _now_s())
            return []

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
        states = tuple(state.status for state, _, _ in self._daemons)
        text = MpsStatus(pod_uid=self._plan.pod_uid, daemons=states, faults=tuple(self._faults)).text()
        if text == self._written:
            return
        unfinished = self._plan.file.with_suffix(".new")
        try:
            unfinished.write_text(text)
            unfinished.replace(self._plan.file)
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
