"""The command of any chaos: runs seeds for a while, or shows what earlier runs have found. See docs/testing.md."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from build_steps import BuildError
from chaos import results
from chaos.outcome import AnyPlan, Outcome
from chaos.report import show_report
from chaos.results import FAILED, PASSED, VOID
from chaos.trace import write_trace
from control_plane import ControlPlaneError

Arena = TypeVar("Arena")


@dataclass(frozen=True)
class Kind(Generic[Arena, AnyPlan]):
    """A kind of chaos."""

    target: str
    """Its target of `make`, which also names the directory of its results."""
    arena: Callable[[], AbstractContextManager[Arena]]
    plan: Callable[[int, float], AnyPlan]
    """From a seed, and how long the chaos lasts."""
    run: Callable[[Arena, Outcome[AnyPlan]], None]
    """Carries out a plan, and leaves the arena empty."""
    seconds: float
    """How long the chaos of one seed lasts, if nobody says otherwise."""
    seeds_per_arena: int
    """So that an error in an arena does not last."""


class Runner(Generic[Arena, AnyPlan]):
    """Runs one seed after the other."""

    def __init__(self, kind: Kind[Arena, AnyPlan], file: Path, seconds: float, console: Console) -> None:
        self._kind, self._file, self._seconds, self._console = kind, file, seconds, console
        self._arena: Arena | None = None
        self._stack = ExitStack()
        self._uses = 0
        self.failed: list[int] = []
        self.verdicts = 0

    def close(self) -> None:
        """Stop the arena."""
        self._arena = None
        self._stack.close()

    def run(self, seed: int) -> None:
        """Run a seed, and note what it shows."""
        version = results.version()
        outcome = Outcome(self._kind.plan(seed, self._seconds))
        begin_s = time.monotonic()
        with self._console.status(f"seed {seed}"):
            arena = self._fresh_arena()
            try:
                self._kind.run(arena, outcome)
                verdict = FAILED if outcome.findings else PASSED
            except Exception:  # noqa: BLE001 - the next seed gets a new arena
                self._console.print(traceback.format_exc(), markup=False, highlight=False)
                verdict = FAILED if outcome.findings else VOID
        if results.version() != version:
            verdict = VOID
        self._note(outcome, version, verdict, time.monotonic() - begin_s)
        if verdict != PASSED:
            self.close()

    def _fresh_arena(self) -> Arena:
        if self._arena is None or self._uses == self._kind.seeds_per_arena:
            self.close()
            self._arena, self._uses = self._stack.enter_context(self._kind.arena()), 0
        self._uses += 1
        return self._arena

    def _note(self, outcome: Outcome[Any], version: str, verdict: str, took_s: float) -> None:
        seed, trace = outcome.plan.seed, None
        command = results.repeat_command(seed, self._kind.target)
        self.verdicts += verdict != VOID
        if verdict == FAILED:
            self.failed.append(seed)
            trace = self._file.parent / f"seed-{seed}-{version}" / "trace.txt"
            write_trace(outcome, command, trace)
        results.append(self._file, results.record(outcome, version, verdict, trace))
        counts = outcome.counts
        style = {PASSED: "green", FAILED: "bold red", VOID: "yellow"}[verdict]
        self._console.print(
            f"seed {seed}: [{style}]{verdict}[/] in {took_s:.0f} s; {counts['pods bound']} pods bound, "
            f"{sum(outcome.faults.values())} faults, {outcome.checks} checks, at rest after {outcome.rest_s:.0f} s",
            highlight=False,
        )
        for finding in outcome.findings:
            self._console.print(
                f"  {finding.rule}: {finding.text.splitlines()[0][:300]}", markup=False, highlight=False
            )
        if trace:
            self._console.print(f"  trace: {trace}\n  to repeat it: {command}", markup=False, highlight=False)


def main(kind: Kind[Any, Any]) -> int:
    """Run what the arguments say; return the exit status: 1 if a seed has failed, 2 if all that were run are void."""
    arguments = _arguments(kind)
    console = Console(soft_wrap=True)
    if arguments.report:
        show_report(results.read(arguments.results), console)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runner = Runner(kind, arguments.results, arguments.seconds, console)
    deadline = time.monotonic() + arguments.minutes * 60
    judged = set() if arguments.again else results.judged(arguments.results, results.version(), arguments.seconds)
    seed, runs = arguments.seed, 0
    try:
        while True:
            if seed not in judged:
                runner.run(seed)
                runs += 1
                if time.monotonic() >= deadline:
                    break
            elif not arguments.minutes:
                console.print(f"seed {seed} has a verdict for this version; AGAIN=1 runs it again")
                break
            seed += 1
    except KeyboardInterrupt:
        console.print("stopped")
    except (BuildError, ControlPlaneError) as error:
        console.print(f"error: {error}", markup=False)
        return 2
    finally:
        runner.close()
    if runner.failed:
        return 1
    return 2 if runs and not runner.verdicts else 0


def _arguments(kind: Kind[Any, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=30, help="how long to go on; 0 runs one seed")
    parser.add_argument("--seconds", type=float, default=kind.seconds, help="how long the chaos of one seed lasts")
    parser.add_argument("--again", action="store_true", help="run seeds again that have a verdict for this version")
    parser.add_argument(
        "--results", type=Path, default=results.results_of(kind.target), help="file of results, a JSON line for each"
    )
    parser.add_argument("--report", action="store_true", help="only show the results")
    return parser.parse_args()
