"""Gangs: who tries them in kube-scheduler, and whether their pods go together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from gpuledger.doctor.checks.scheduler import DEPLOYMENT
from gpuledger.doctor.facts import Facts, known
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.kubernetes.gang import described
from gpuledger.model.json_object import JsonMapping
from gpuledger.reports.gang_parts import divided, gangs_of, placed_by

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
    texts = (
        (gang, text)
        for gang, pods in sorted(gangs_of(known(facts.pods)).items())
        for text in divided(gang, list(map(placed_by, pods)), names)
    )
    for gang, text in islice(texts, GROUPS_SHOWN):
        yield Finding.of(FindingKind.GROUP_DIVIDED, f"{gang.namespace}, {described(gang)}", text)


def _gates(container: JsonMapping) -> dict[str, str]:
    """Return the feature gates of a container's command; the last word on each counts."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    flags = [word.partition("=")[2] for word in words if word.startswith("--feature-gates=")]
    pairs = (gate.partition("=") for flag in flags for gate in flag.split(","))
    return {name.strip(): value.strip().lower() for name, _, value in pairs}


def _version(container: JsonMapping) -> tuple[int, int] | None:
    tag = re.search(r":v?(\d+)\.(\d+)[^/]*$", container.get("image") or "")
    return (int(tag[1]), int(tag[2])) if tag else None
