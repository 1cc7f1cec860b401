"""How pods of others fare while somebody does what he can: created, bound, and how long that took."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.cluster import COUNT, MEMORY, Cluster, RequestFailed, pod
from hostile.catalogue import path_of

Json = dict[str, Any]
Say = Callable[[str], None]

LIMIT_S, LIMIT_OF_ALL_S, LIMIT_AT_THOUSAND_S = 5.0, 40.0, 120.0
"""From a pod's creation to its Binding, on two cores that four processes share. Where hundreds of pods were created a
moment before, kube-scheduler tries these first, whoever's they are: 5 s on a quiet machine, 9 s where new nodes make
it try all of them again, 23 s beside other programs."""

TOLD_AFTER_S = 1.0

LIMIT_MIB = 400
"""Of the operator's memory, ever."""


def create(cluster: Cluster, body: Json) -> bool:
    """Create an object; tell whether the API server took it."""
    with suppress(RequestFailed):
        cluster.request("POST", path_of(body), body)
        return True
    return False


def slowest_s(cluster: Cluster, names: list[str]) -> float:
    """Create ordinary pods one after the other; return how long the slowest waited for its Binding."""
    waited = []
    for name in names:
        begin_s = time.monotonic()
        cluster.create(pod(name, {COUNT: 1, MEMORY: 1_000}))
        cluster.wait_bound(name, timeout_s=LIMIT_AT_THOUSAND_S)
        waited.append(time.monotonic() - begin_s)
    return max(waited)


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


def check_others(cluster: Cluster, bodies: list[Json], what: str, say: Say, limit_s: float = LIMIT_S) -> None:
    """Create hostile objects, then ordinary pods: these are bound soon, by an operator that stays the same."""
    operator = cluster.installation.operator
    assert operator is not None
    pid = operator.pid
    taken = sum(create(cluster, body) for body in bodies)
    waited_s = slowest_s(cluster, [f"ordinary-{number}" for number in range(4)])
    time.sleep(TOLD_AFTER_S + 0.5)  # who waits is told why
    waited_s = max(waited_s, slowest_s(cluster, ["ordinary-4"]))
    assert operator.alive
    assert operator.pid == pid
    assert cluster.installation.is_ready()
    size_mib = memory_mib(pid)
    say(
        f"{what}: {taken} of {len(bodies)} taken; pods of others bound within {waited_s:.1f} s; "
        f"operator {size_mib} MiB, its loop late by less than {worst_lag_s(cluster):g} s so far"
    )
    assert size_mib < LIMIT_MIB
    assert waited_s < limit_s
