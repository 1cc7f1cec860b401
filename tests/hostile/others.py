"""How pods of others fare while somebody does what he can: created, bound, and what the operator did meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cluster import COUNT, MEMORY, Cluster, RequestFailed, pod
from hostile.catalogue import path_of

Json = dict[str, Any]
Say = Callable[[str], None]

TIMEOUT_S = 120.0
"""From a pod's creation to its Binding: an end to the test, and no judgement. What else the machine does decides."""

CPU_S, CPU_PER_QUESTION_S = 1.0, 0.03
"""How long the operator may compute while others wait: in all, and for each question of kube-scheduler. Three times as
long as it does, whether two cores are idle or ten programs share them: 0.3 s where nobody asks, and up to 0.01 s."""

ASKED, ASKED_AT_ALL, ASKED_AT_THOUSANDS = 2_000, 10_000, 50_000
"""How many questions there may be: beside one kind of hostile objects (470 were seen), all of them (2,650), or
thousands of pods or nodes."""

TOLD_AFTER_S = 1.0
FILTERS = "gpuledger_filters_total"

LIMIT_MIB = 400
"""Of the operator's memory, ever."""


def create(cluster: Cluster, body: Json) -> bool:
    """Create an object; tell whether the API server took it."""
    with suppress(RequestFailed):
        cluster.request("POST", path_of(body), body)
        return True
    return False


@dataclass
class Waiting:
    """What passed from the creation of ordinary pods to their Bindings, one pod after the other."""

    cluster: Cluster
    pid: int
    """Of the operator."""

    slowest_s: float = 0.0
    computed_s: float = 0.0
    """How long the operator was on a processor."""

    asked: int = 0
    """How often kube-scheduler asked it, for whatever pod."""

    def create(self, *names: str) -> None:
        """Create pods, and wait for each."""
        for name in names:
            begin_s, computed_s, asked = time.monotonic(), cpu_s(self.pid), self._questions()
            self.cluster.create(pod(name, {COUNT: 1, MEMORY: 1_000}))
            self.cluster.wait_bound(name, timeout_s=TIMEOUT_S)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin_s)
            self.computed_s += cpu_s(self.pid) - computed_s
            self.asked += self._questions() - asked

    def _questions(self) -> int:
        """Return how many there were since the operator began."""
        found: dict[str, float] = {}

        def answers() -> bool:
            found.update(self.cluster.installation.metrics())
            return bool(found)

        self.cluster.wait(answers, "the operator tells its metrics")
        return round(found[FILTERS])


def cpu_s(pid: int) -> float:
    """Return how long a process and its threads have been on a processor, which nothing else on the machine changes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> int:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def worst_lag_s(cluster: Cluster) -> float:
    """Return the bucket, in seconds, below which all lags of the operator's event loop were so far."""
    buckets = {}
    for sample, number in cluster.installation.metrics().items():
        if sample.startswith("gpuledger_event_loop_lag_seconds_bucket"):
            buckets[float(sample.partition('le="')[2].partition('"')[0])] = number
    return min(bound for bound, number in buckets.items() if number == buckets[float("inf")])


def check_others(cluster: Cluster, bodies: list[Json], what: str, say: Say, most_asked: int = ASKED) -> None:
    """Create hostile objects, then ordinary pods: these are bound, and the operator does little for it.

    It is the same all the time. How long they wait is kube-scheduler's and the machine's affair, and only told.
    """
    operator = cluster.installation.operator
    assert operator is not None
    pid = operator.pid
    taken = sum(create(cluster, body) for body in bodies)
    others = Waiting(cluster, pid)
    others.create(*(f"ordinary-{number}" for number in range(4)))
    time.sleep(TOLD_AFTER_S + 0.5)  # who waits is told why
    others.create("ordinary-4")
    assert operator.alive
    assert operator.pid == pid
    assert cluster.installation.is_ready()
    size_mib = memory_mib(pid)
    say(
        f"{what}: {taken} of {len(bodies)} taken; pods of others bound within {others.slowest_s:.1f} s, "
        f"while the operator computed for {others.computed_s:.2f} s and was asked {others.asked:,} times; "
        f"it has {size_mib} MiB, and its loop was late by less than {worst_lag_s(cluster):g} s so far"
    )
    assert size_mib < LIMIT_MIB
    assert others.asked < most_asked
    assert others.computed_s < CPU_S + CPU_PER_QUESTION_S * others.asked
