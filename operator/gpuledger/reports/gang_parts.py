"""Whether the pods of a gang go together: Kubernetes says nothing where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import pod_identity, scheduler_of
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, GangWay
from gpuledger.model.json_object import JsonMapping

NAMED = 4
"""Schedulers or priorities that a sentence names."""


def gangs_of(pods: Iterable[JsonMapping]) -> dict[GangName, list[JsonMapping]]:
    """Return the pods of each gang. A pod whose words can't be read is left out: its owner is told."""
    gangs: dict[GangName, list[JsonMapping]] = {}
    for pod in pods:
        try:
            gang = gang_of(pod)
        except BadInput:
            continue
        if gang is not None:
            gangs.setdefault(gang.name, []).append(pod)
    return gangs


def placed_by(pod: JsonMapping) -> tuple[str, int]:
    """Return what `divided` needs of a pod: its scheduler, and its priority."""
    return scheduler_of(pod) or "no scheduler", pod_identity(pod).priority


def divided(name: GangName, pods: Collection[tuple[str, int]], ours: Collection[str]) -> Iterator[str]:
    """Yield a sentence if some of a gang's pods are another scheduler's, and if priorities differ that must not.

    `pods` are as `placed_by` returns them, `ours` the names of our scheduler's profiles. Of a gang without any pods of
    ours: nothing.
    """
    schedulers = Counter(scheduler for scheduler, _ in pods)
    if schedulers.keys().isdisjoint(ours):
        return
    if others := [f"{count} by {name}" for name, count in sorted(schedulers.items()) if name not in ours]:
        yield f"of its {len(pods)} pods, some are placed by others: {_some_of(others)}"
    priorities = sorted({priority for _, priority in pods})
    if name.way is GangWay.KUBERNETES and len(priorities) > 1:
        yield f"its pods have different priorities: {_some_of(list(map(str, priorities)))}"


def _some_of(words: list[str]) -> str:
    return ", ".join(words[:NAMED]) + (", ..." if len(words) > NAMED else "")
