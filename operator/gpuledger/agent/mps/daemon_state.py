"""How one MPS daemon is, by what is seen of it. Pure: time is an argument, in seconds.

A daemon that runs is never ended here, whatever it does: its servers may serve programs that run well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuledger.formats.runtime.mps import FatalFault, LogEntry, ServerEnded, ServerStatus
from gpuledger.formats.runtime.mps_status import SENTENCE_LENGTH, DaemonStatus, FaultKind, Phase
from gpuledger.model.backoff import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A daemon that ran for so long is started again soon, whatever was before."""

SILENCE_S = 30.0
"""A daemon that has answered no command for so long gets no new programs."""

SAME_FAULT_S = 15.0
"""A fault shows in a server's log and in its status, not at the same moment: within this time it is counted once."""

START_S = 60.0
"""One that has never answered in this time serves nobody, and may be ended."""

Fault = tuple[FaultKind, str]
"""What happened, and a sentence about it."""

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
        """Return what others are told."""
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
        """Note that its process runs."""
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
        """Note that a command was not answered."""
        if self.phase is Phase.STARTING:
            self.why = f"{STARTS}; {why}"
        elif self.pid and now_s >= self._heard_s + SILENCE_S:
            self.phase, self.why = Phase.SILENT, f"it has not answered for {now_s - self._heard_s:.0f} s: {why}"

    def never_answered(self, now_s: float) -> bool:
        """Tell whether it has run for long enough, and never served anybody, so that it may be ended."""
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
        """Note that its process has ended, or could not be started. Return when to start it, in seconds from now."""
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
