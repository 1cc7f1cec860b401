"""How pods of others fare while somebody does what he can: created, bound, and what the operator did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from cluster.claims import TEMPLATES, claiming, create_class, share, template
from cluster.cluster import COUNT, MEMORY, NODES, Cluster, Connection, RequestFailed, pod
from cluster.gangs import gang, names
from hostile.catalogue import path_of
from hostile.claim_kinds import text_of
from hostile.machine import Machine, cpu_s, memory_mib

Json = dict[str, Any]
Say = Callable[[str], None]

BOUND_WITHIN_S = 5.0
"""From the creation of an ordinary pod, gang or pod with a claim to its Binding, on a machine that does nothing else:
with half of it, twice as long."""

TIMEOUT_S = 120.0
"""The end of a wait, however busy the machine is."""

CPU_S, CPU_PER_QUESTION_S, CPU_OF_NODE_S = 1.0, 0.03, 0.0005
"""How long the operator may compute while others wait: in all, for each question of kube-scheduler, and for a node that
is looked at in it, with what people are told of that. Three times as long as it does, whether two cores are idle or ten
programs share them: 0.3 s where nobody asks, and up to 0.01 s; on 200 nodes 0.09 s for a pod of eight containers."""

ASKED, ASKED_AT_ALL, ASKED_AT_THOUSANDS = 2_000, 30_000, 50_000
"""How many questions there may be: beside one kind of hostile objects (890 were seen), all of them (15,400: while some
are created, others are tried again and again), or thousands of pods or nodes."""

TOLD_AFTER_S = 1.0
FILTERS = "gpuledger_filters_total"

LIMIT_MIB = 410
"""Of the operator's memory, ever: a fifth below the limit in its manifest, 512 MiB."""

LATE_BY_S = 0.5
"""By how much its event loop may be late."""

LITTLE: dict[str, Any] = {MEMORY: 100}
TEMPLATE = "ordinary"


def create(where: Cluster | Connection, body: Json) -> bool:
    """Create an object; return whether the API server took it."""
    with suppress(RequestFailed):
        where.request("POST", path_of(body), text_of(body))
        return True
    return False


def prepare(cluster: Cluster) -> None:
    """Create what the others' pods with claims need."""
    create_class(cluster)
    cluster.request("POST", TEMPLATES, template(TEMPLATE, share("100Mi")))


def metrics(cluster: Cluster) -> dict[str, float]:
    """Return the operator's metrics."""
    found: dict[str, float] = {}

    def answers() -> bool:
        found.update(cluster.installation.metrics())
        return bool(found)

    cluster.wait(answers, "the operator tells its metrics")
    return found


def lags(cluster: Cluster) -> dict[float, float]:
    """Return bound in seconds -> how many lags of the operator's event loop were below it so far."""
    bucket = "gpuledger_event_loop_lag_seconds_bucket"
    samples = {sample: number for sample, number in metrics(cluster).items() if sample.startswith(bucket)}
    return {float(sample.partition('le="')[2].partition('"')[0]): number for sample, number in samples.items()}


def worst_lag_s(cluster: Cluster, before: Mapping[float, float] | None = None) -> float:
    """Return the bound, in seconds, below which all lags were, those left out that were there before."""
    late = {bound: number - (before or {}).get(bound, 0) for bound, number in lags(cluster).items()}
    return min(bound for bound, number in late.items() if number == late[float("inf")])


class Others:
    """A pod, a gang and a pod with a claim of another namespace, time and again; and what passed meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        operator = cluster.installation.operator
        assert operator is not None
        self.cluster, self.pid = cluster, operator.pid
        self.slowest_s: dict[str, float] = {}
        """What -> the longest from its creation to the last of its Bindings."""
        self.share = 1.0
        """The least part of the machine that was left to us meanwhile."""
        self._computed_s, self._asked, self._late = cpu_s(self.pid), self._questions(), lags(self.cluster)

    def come(self, name: str) -> None:
        """Create one of each, and wait for all."""
        kinds = {
            "a pod": [pod(name, {COUNT: 1, **LITTLE})],
            "a gang": gang(f"{name}-gang", 4, **LITTLE),
            "a claim": [claiming(f"{name}-claim", [TEMPLATE])],
        }
        machine, begin_s = Machine(), {}
        for kind, pods in kinds.items():
            begin_s[kind] = time.monotonic()
            self.cluster.create(*pods)
        self.cluster.wait(lambda: not self._left(kinds, begin_s), f"all of {name} are bound", TIMEOUT_S)
        self.share = min(self.share, machine.share())

    def _left(self, kinds: dict[str, list[Json]], begin_s: dict[str, float]) -> set[str]:
        """Return which of these are not bound, and take note of when the others were."""
        found = {name for name, each in self.cluster.pods().items() if each["spec"].get("nodeName")}
        for kind in [kind for kind in begin_s if found >= set(names(kinds[kind]))]:
            self.slowest_s[kind] = max(self.slowest_s.get(kind, 0), time.monotonic() - begin_s.pop(kind))
        return set(begin_s)

    @property
    def computed_s(self) -> float:
        """How long the operator was on a processor."""
        return cpu_s(self.pid) - self._computed_s

    def asked(self) -> int:
        """Return how often kube-scheduler asked it, for whatever pod."""
        return self._questions() - self._asked

    def late_s(self) -> float:
        """Return the bound, in seconds, below which all lags of the operator's event loop were."""
        return worst_lag_s(self.cluster, self._late)

    def _questions(self) -> int:
        """Return how many there were since the operator began."""
        return round(metrics(self.cluster)[FILTERS])


@contextmanager
def judged(
    cluster: Cluster, what: str, say: Say, most_asked: int = ASKED, within_s: float = BOUND_WITHIN_S
) -> Iterator[Others]:
    """Have others come while the `with` runs; afterwards, say how they fared, and fail if it was not well."""
    others = Others(cluster)
    yield others
    operator = cluster.installation.operator
    assert operator is not None
    assert operator.alive
    assert operator.pid == others.pid
    assert cluster.installation.is_ready()
    size_mib, late_s, asked, computed_s = memory_mib(others.pid), others.late_s(), others.asked(), others.computed_s
    slowest = ", ".join(f"{kind} {slowest_s:.1f} s" for kind, slowest_s in others.slowest_s.items())
    say(
        f"{what}: {slowest} with {others.share:.0%} of the machine; the operator computed for {computed_s:.2f} s, "
        f"was asked {asked:,} times and late by less than {late_s:g} s, and has {size_mib} MiB"
    )
    assert max(others.slowest_s.values()) < within_s / others.share
    assert late_s <= LATE_BY_S
    assert size_mib < LIMIT_MIB
    assert asked < most_asked


def check_others(
    cluster: Cluster,
    bodies: list[Json],
    what: str,
    say: Say,
    most_asked: int = ASKED,
    within_s: float = BOUND_WITHIN_S,
) -> None:
    """Create hostile objects, and ordinary ones meanwhile and behind them: these are bound in time.

    The operator does little for it, however busy the machine is.
    """
    with judged(cluster, what, say, most_asked, within_s) as others:
        with creating(cluster, bodies):
            others.come("meanwhile")
        computed_s, asked = others.computed_s, others.asked()
        others.come("behind")
        time.sleep(TOLD_AFTER_S + 0.5)  # who waits is told why
        others.come("last")
        computed_s, asked = others.computed_s - computed_s, others.asked() - asked
    nodes = len(cluster.request("GET", NODES)["items"])
    assert computed_s < CPU_S + (CPU_PER_QUESTION_S + CPU_OF_NODE_S * nodes) * asked


@contextmanager
def creating(cluster: Cluster, bodies: list[Json]) -> Iterator[None]:
    """Create hostile objects, one after the other, while the `with` runs; its end waits until all are there."""

    def run() -> None:
        connection = Connection(cluster.plane)
        for body in bodies:
            create(connection, body)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        yield
        running.result()
