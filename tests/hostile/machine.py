"""What this machine had to do while something was measured, and how much of that others did."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LEAST_SHARE = 0.1
"""Of the machine, that a test has in any case: no wait is forgiven for ever."""


def cpu_s(pid: int) -> float:
    """Return how long a process and its threads have been on a processor, which nothing else on the machine changes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mib(pid: int) -> int:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


class Machine:
    """How much of the machine this process and all that it has started had, from the moment this is made."""

    def __init__(self) -> None:
        self._begin_s, self._ours_s, self._busy_s = time.monotonic(), _ours_s(), _busy_s()

    def share(self) -> float:
        """Return which part of the processors' time others have left to us: 1 where nobody else runs."""
        could_s = (time.monotonic() - self._begin_s) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._busy_s) - (_ours_s() - self._ours_s)
        return min(1.0, max(LEAST_SHARE, 1 - others_s / could_s)) if could_s else 1.0


def _busy_s() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def _ours_s() -> float:
    """Return what this process and its descendants have computed, with those that have ended and were waited for."""
    children, computed = defaultdict(list), {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children[int(fields[1])].append(int(entry.name))
        computed[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS_PER_S
    found, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        found += computed.get(pid, 0.0)
        left += children[pid]
    return found
