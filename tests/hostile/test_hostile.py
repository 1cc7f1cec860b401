"""Whatever a user of one namespace creates: other namespaces' pods get their cards, and the operator lives on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import COUNT, MEMORY, NODES, Cluster, RequestFailed, pod
from cluster.kubernetes import apply_policies
from control_plane import ControlPlane
from effort import seeds_for, times
from hostile.catalogue import CATALOGUE, NAMESPACE, NODE_PREFIX, PATHS, REGISTERS, path_of
from installation import NO_KUBELET, NOTHING_RUNS, Installation

Json = dict[str, Any]
Say = Callable[[str], None]

LIMIT_S, LIMIT_OF_ALL_S, LIMIT_AT_THOUSAND_S = 5.0, 40.0, 120.0
"""From a pod's creation to its Binding, on two cores that four processes share. Where hundreds of pods were created a
moment before, kube-scheduler tries these first, whoever's they are: 5 s on a quiet machine, 9 s where new nodes make
it try all of them again, 23 s beside other programs."""

TOLD_AFTER_S = 1.0

LIMIT_MIB = 400
"""Of the operator's memory, ever."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=[False, True], ids=["without policies", "with policies"])
def attacked(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ControlPlane.run() as plane:
        settings = {**NO_KUBELET, "tell_waiting_after_s": TOLD_AFTER_S, **NOTHING_RUNS}
        installation = Installation(plane, settings)
        installation.install()
        if request.param:
            apply_policies(plane)
        installation.start_operator()
        installation.start_scheduler()
        found = Cluster(plane, installation)
        found.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        found.add_nodes(3)
        yield found
        found.close()


@pytest.fixture
def cluster(attacked: Cluster) -> Iterator[Cluster]:
    """Yield the cluster; what was created in it is gone afterwards."""
    yield attacked
    for path in PATHS.values():
        for found in attacked.request("GET", path)["items"]:
            if found["metadata"].get("finalizers"):
                with suppress(RequestFailed):  # the Jobs' controller deletes its pods at the same time
                    attacked.patch(f"{path}/{found['metadata']['name']}", {"metadata": {"finalizers": None}})
        attacked.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    for found in attacked.request("GET", NODES)["items"]:
        if found["metadata"]["name"].startswith(NODE_PREFIX):
            attacked.request("DELETE", f"{NODES}/{found['metadata']['name']}")
    attacked.delete(*attacked.pods())


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


KINDS = CATALOGUE | REGISTERS
TRIED = sorted(random.Random(seeds_for("hostile", 1)[0]).sample(sorted(KINDS), times(6, len(KINDS))))  # noqa: S311
"""Kinds that are tried one by one."""


@pytest.mark.parametrize("kind", TRIED)
def test_one_kind(cluster: Cluster, kind: str, say: Say) -> None:
    check_others(cluster, KINDS[kind](), kind, say)


@pytest.mark.parametrize("kinds", [CATALOGUE, KINDS], ids=["of a namespace", "and nodes"])
def test_all_kinds_together(cluster: Cluster, kinds: dict[str, Callable[[], list[Json]]], say: Say) -> None:
    bodies = [body for make in kinds.values() for body in make()]
    check_others(cluster, bodies, f"{len(kinds)} kinds", say, LIMIT_OF_ALL_S)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attacked", [False], indirect=True, ids=["without policies"])
def test_all_kinds_together_at_a_thousand_nodes(cluster: Cluster, say: Say) -> None:
    for _ in range(10):
        cluster.add_nodes(100, gpus=8)
    bodies = [body for make in KINDS.values() for body in make()]
    check_others(cluster, bodies, "all kinds, at 1,000 nodes", say, LIMIT_AT_THOUSAND_S)
