"""Gangs: who tries them in kube-scheduler, and whether their pods go together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gpuledger.doctor.checks.scheduler import DEPLOYMENT
from gpuledger.doctor.facts import Facts, known
from gpuledger.doctor.finding import Finding, FindingKind
from gpuledger.doctor.objects import some_of
from gpuledger.formats.objects.gang import described, gang_of
from gpuledger.formats.objects.pod import pod_identity, scheduler_of
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, GangWay

Json = Mapping[str, Any]

SPINS = (1, 36)
"""The kube-scheduler that tries a group that waits without a pause, unless a gate is off."""
PAUSES = "SchedulerPopFromBackoffQ"
GROUPS = "GenericWorkload"
GROUPS_SHOWN = 20


def check_group_gates(facts: Facts) -> Iterator[Finding]:
    """Yield whether the feature gates of our kube-scheduler go with the settings."""
    deployment, release = known(facts.deployment), known(facts.release)
    for container in deployment["spec"]["template"]["spec"]["containers"] if deployment is not None else ():
        if container["name"] != "kube-scheduler":
            continue
        gates, version = _gates(container), _version(container)
        if gates.get(GROUPS) != "true":
            if release.native_gangs:
                text = f"native_gangs is set, and its kube-scheduler has no feature gate {GROUPS}=true"
                yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)
            continue
        has = f"its kube-scheduler has {GROUPS}=true"
        if version == SPINS and gates.get(PAUSES) != "false":
            text = f"{has} without {PAUSES}=false, and is of 1.36: it tries a group that waits without a pause"
            yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)
        if not release.native_gangs:
            text = f"{has}, and native_gangs is not set: it tries a group long after there is room"
            yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)


def check_groups(facts: Facts) -> Iterator[Finding]:
    """Yield gangs of which some pods are another scheduler's, and Kubernetes' own with pods of several priorities."""
    names = known(facts.release).scheduler_names
    found = sorted(_gangs(facts).items())
    divided = [finding for gang, pods in found for finding in _divided(gang, pods, names)]
    yield from divided[:GROUPS_SHOWN]


def _divided(gang: GangName, pods: list[Json], ours: tuple[str, ...]) -> Iterator[Finding]:
    schedulers = Counter(scheduler_of(pod) or "no scheduler" for pod in pods)
    if schedulers.keys().isdisjoint(ours):
        return
    where = f"{gang.namespace}, {described(gang)}"
    if others := [f"{count} by {name}" for name, count in sorted(schedulers.items()) if name not in ours]:
        text = f"of its {len(pods)} pods, some are placed by others: {some_of(others)}"
        yield Finding.of(FindingKind.GROUP_DIVIDED, where, text)
    priorities = sorted({pod_identity(pod).priority for pod in pods})
    if gang.way is GangWay.KUBERNETES and len(priorities) > 1:
        text = f"its pods have different priorities: {some_of(list(map(str, priorities)))}"
        yield Finding.of(FindingKind.GROUP_DIVIDED, where, text)


def _gangs(facts: Facts) -> dict[GangName, list[Json]]:
    gangs: dict[GangName, list[Json]] = defaultdict(list)
    for pod in known(facts.pods):
        try:
            gang = gang_of(pod)
        except BadInput:  # the pod's owner is told
            continue
        if gang is not None:
            gangs[gang.name].append(pod)
    return gangs


def _gates(container: Json) -> dict[str, str]:
    """Return the feature gates of a container's command; the last word on each counts."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    flags = [word.partition("=")[2] for word in words if word.startswith("--feature-gates=")]
    pairs = (gate.partition("=") for flag in flags for gate in flag.split(","))
    return {name.strip(): value.strip().lower() for name, _, value in pairs}


def _version(container: Json) -> tuple[int, int] | None:
    tag = re.search(r":v?(\d+)\.(\d+)[^/]*$", container.get("image") or "")
    return (int(tag[1]), int(tag[2])) if tag else None
