"""Runs of a simulation, several at a time: one process per CPU, for each is plain computation."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Protocol, TypeVar

from gpuledger.placement.policy import Policy
from replay.arrivals import STEPS as STEPS_PER_LOAD
from replay.arrivals import ArrivalRun, replay_arrivals
from replay.departures import STEPS, DepartureRun, Plan, replay_departures
from replay.mix import History
from replay.trace import Trace

LOOK_S = 0.2
"""How often the progress of other processes is shown."""

Result = TypeVar("Result", covariant=True)


class Job(Protocol[Result]):
    """One run, which can be carried to another process."""

    @property
    def steps(self) -> int:
        """Return how often about `on_step` will be called."""

    def run(self, trace: Trace, on_step: Callable[[], None]) -> Result:
        """Do it."""


@dataclass(frozen=True, slots=True)
class ArrivalJob:
    """A run without departures."""

    policy: Policy
    load: float
    seed: int
    history: History

    @property
    def steps(self) -> int:
        """Return the points of the curve."""
        return round(self.load * STEPS_PER_LOAD)

    def run(self, trace: Trace, on_step: Callable[[], None]) -> ArrivalRun:
        """Replay the arrivals."""
        return replay_arrivals(trace, self.policy, self.load, self.seed, self.history, on_step)


@dataclass(frozen=True, slots=True)
class DepartureJob:
    """A run with departures."""

    policy: Policy
    plan: Plan
    seed: int
    history: History

    @property
    def steps(self) -> int:
        """Return how often the run tells that it goes on."""
        return STEPS

    def run(self, trace: Trace, on_step: Callable[[], None]) -> DepartureRun:
        """Replay the plan."""
        return replay_departures(trace, self.policy, self.plan, self.seed, self.history, on_step)


def run_all(
    jobs: Sequence[Job[Result]], trace: Trace, workers: int | None, on_steps: Callable[[int], None]
) -> list[Result]:
    """Return the results in the order of the jobs; `on_steps` gets the number of steps so far."""
    workers = min(workers or _cpus(), len(jobs))
    if workers <= 1:
        return _run_here(jobs, trace, on_steps)
    context = multiprocessing.get_context("spawn")  # no copy of whatever threads this process has
    steps, stopped = context.Value("q", 0), context.Value("b", 0)
    with ProcessPoolExecutor(workers, context, _begin, (trace, steps, stopped)) as pool:
        futures = [pool.submit(_run, job) for job in jobs]
        try:
            _wait_for(futures, lambda: on_steps(steps.value))
        except BaseException:
            stopped.value = 1
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _cpus() -> int:
    """Return how many CPUs this process may use; not every system can say that of a process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_here(jobs: Sequence[Job[Result]], trace: Trace, on_steps: Callable[[int], None]) -> list[Result]:
    done = 0

    def on_step() -> None:
        nonlocal done
        done += 1
        on_steps(done)

    return [job.run(trace, on_step) for job in jobs]


def _wait_for(futures: Sequence[Future[Result]], look: Callable[[], None]) -> None:
    left = set(futures)
    while left:
        done, left = wait(left, LOOK_S, FIRST_EXCEPTION)
        for future in done:
            future.result()
        look()


class _Stopped(Exception):  # noqa: N818 - reads as what it is
    """The parent process has given up."""


@dataclass(slots=True)
class _Shared:
    """What a worker process has from its parent."""

    trace: Trace
    steps: Synchronized[int]
    stopped: Synchronized[int]


_shared: list[_Shared] = []


def _begin(trace: Trace, steps: Synchronized[int], stopped: Synchronized[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is over
    _shared[:] = [_Shared(trace, steps, stopped)]


def _run(job: Job[Result]) -> Result:
    [shared] = _shared

    def on_step() -> None:
        with shared.steps.get_lock():
            shared.steps.value += 1
        if shared.stopped.value:
            raise _Stopped

    return job.run(shared.trace, on_step)
