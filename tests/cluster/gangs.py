"""Gangs as tests create them, and who watches that none of them is bound by halves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from chaos.gang_rule import GANG, MINIMUM, GangRule
from chaos.history import Change, History
from cluster.cluster import COUNT, NODES, Cluster, pod
from cluster.shared import cluster_on
from control_plane import ControlPlane
from installation import NOTHING_RUNS

Json = dict[str, Any]

GATHER_S = 3.0
"""How long members wait for each other in Bind, if a test says nothing else."""

SHORT_BACK_OFF = {"podMaxBackoffSeconds": 1}
"""kube-scheduler tries all members of a gang within so short a time: after its own 10 s, they could miss each other."""


def member(name: str, gang: str, minimum: int, *, cpu: str = "", priority: str = "", **limits: object) -> Json:
    """Return a pod of a gang, which asks for one whole card if nothing else is said."""
    found = pod(name, {COUNT: 1, **limits})
    found["metadata"]["labels"] = {GANG: gang, MINIMUM: str(minimum)}
    if priority:
        found["spec"]["priorityClassName"] = priority
    if cpu:
        found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return found


def gang(name: str, count: int, minimum: int | None = None, **more: Any) -> list[Json]:
    """Return the pods of a gang, all of which are needed if nothing else is said."""
    return [member(f"{name}-{number}", name, minimum or count, **more) for number in range(count)]


def names(pods: list[Json]) -> list[str]:
    """Return the names of pods."""
    return [each["metadata"]["name"] for each in pods]


def bound(cluster: Cluster) -> set[str]:
    """Return the names of the pods that have a node."""
    return {name for name, found in cluster.pods().items() if found["spec"].get("nodeName")}


def held(cluster: Cluster) -> int:
    """Return how many shares are in the ledger."""
    return sum(map(len, cluster.holders().values()))


def explained(cluster: Cluster, name: str, namespace: str = "default") -> Json:
    """Return what the operator says of a gang."""
    where = f"{cluster.installation.view_url}/v1/explain?gang={namespace}/{name}"
    with urllib.request.urlopen(where, timeout=20) as answer:  # noqa: S310
        found: Json = json.load(answer)
    return found


def set_cpu(cluster: Cluster, name: str, cpu: str) -> None:
    """Set how much CPU a node has."""
    cluster.patch(f"{NODES}/{name}/status", {"status": {"allocatable": {"cpu": cpu}, "capacity": {"cpu": cpu}}})


def gang_cluster(
    plane: AbstractContextManager[ControlPlane],
    settings: Mapping[str, object] | None = None,
    scheduler_flags: Sequence[str] = (),
) -> AbstractContextManager[Cluster]:
    """Run operator and kube-scheduler on a control plane, on which no pod ever starts."""
    stated = {**NOTHING_RUNS, "gang_gather_s": GATHER_S, **(settings or {})}
    return cluster_on(plane, stated, scheduler_flags, SHORT_BACK_OFF)


class Halves:
    """Every Binding of a member that came before the shares of as many as its gang needs, in etcd's order."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.rule = GangRule()

    def take(self, change: Change) -> None:
        """Check a change, in the history's thread."""
        wrong = self.rule.take(change)
        if wrong:
            self.found.append(f"revision {change.revision}: {wrong}")

    def check(self) -> None:
        """Fail with what was found since the last call."""
        found, self.found = self.found, []
        assert not found, "members were bound without the others: " + "; ".join(found)


@contextmanager
def looking_for_halves(etcd_url: str) -> Iterator[Halves]:
    """Follow everything that the etcd of a control plane with `json_storage` stores."""
    halves, history = Halves(), History(etcd_url)
    history.listeners = (halves.take,)
    with history:
        yield halves
    assert history.failure is None
    halves.check()
    assert halves.rule.checks, "no member of a gang was bound"
