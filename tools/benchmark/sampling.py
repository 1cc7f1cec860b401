"""A sampling profiler for this process: where its CPU time goes, as collapsed stacks.

It looks after every few milliseconds of CPU time; unlike cProfile, it does not make small functions look large.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich import box
from rich.table import Table

from installation import REPOSITORY

INTERVAL_S = 0.001
HERE = str(Path(__file__).parent)
"""What the benchmark itself does is outermost, and left out."""


class Samples:
    """Stacks, outermost function first, and how often each was seen. A stack begins with what it was taken of."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._subject = ""

    @contextmanager
    def of(self, subject: str) -> Iterator[None]:
        """Have the samples count that are taken meanwhile, as of this subject."""
        self._subject = subject
        yield
        self._subject = ""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take samples while this lasts."""
        before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def save(self, path: Path) -> None:
        """Write collapsed stacks, as flamegraph.pl and speedscope.app read them."""
        path.write_text("".join(f"{';'.join(stack)} {count}\n" for stack, count in self.stacks.most_common()))

    def subjects(self) -> list[str]:
        """Return what samples were taken of, in their order."""
        return list(dict.fromkeys(stack[0] for stack in self.stacks))

    def top(self, subject: str, count: int) -> Table:
        """Return the functions with the largest shares: by themselves, and with what they call."""
        alone: Counter[str] = Counter()
        together: Counter[str] = Counter()
        for stack, number in self.stacks.items():
            if stack[0] == subject:
                alone[stack[-1]] += number
                together.update(dict.fromkeys(stack, number))
        total = max(1, alone.total())
        table = Table(title=f"{subject}: {total} samples", title_justify="left", box=box.SIMPLE_HEAD)
        for head in ("alone", "with callees", "function"):
            table.add_column(head, justify="left" if head == "function" else "right", no_wrap=True)
        for name, number in alone.most_common(count):
            table.add_row(f"{100 * number / total:.1f} %", f"{100 * together[name] / total:.1f} %", name)
        return table

    def _take(self, _: int, frame: FrameType | None) -> None:
        if not self._subject:
            return
        stack: list[str] = []
        while frame is not None and not frame.f_code.co_filename.startswith(HERE):
            stack.append(_name(frame))
            frame = frame.f_back
        if stack:
            self.stacks[(self._subject, *reversed(stack))] += 1


def _name(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    for root in (
        f"{REPOSITORY}/operator/gpuledger/",
        "/site-packages/",
        f"/python{sys.version_info[0]}.{sys.version_info[1]}/",
    ):
        path = path.rpartition(root)[2]
    return f"{path}:{frame.f_code.co_qualname}"
