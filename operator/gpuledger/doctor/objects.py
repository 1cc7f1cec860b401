"""Reading Kubernetes' objects for the checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuledger.formats.objects.lease import LEASE_NAMESPACE
from gpuledger.formats.objects.pod import scheduler_says

Json = dict[str, Any]

NAME_LABEL = "app.kubernetes.io/name"
OPERATOR_APP = "gpuledger"
AGENT_APP = "gpuledger-agent"

LONGEST_WORDS = 300
"""Characters of what a program says that are shown."""


def name_of(found: Json) -> str:
    """Return an object's name."""
    return str((found.get("metadata") or {}).get("name") or "")


def labels_of(found: Json) -> Mapping[str, str]:
    """Return an object's labels."""
    return (found.get("metadata") or {}).get("labels") or {}


def pods_of_app(pods: Sequence[Json], app: str) -> list[Json]:
    """Return our pods of one kind; those that are on their way out do not count."""
    return [
        pod
        for pod in pods
        if labels_of(pod).get(NAME_LABEL) == app
        and pod["metadata"].get("namespace") == LEASE_NAMESPACE
        and not pod["metadata"].get("deletionTimestamp")
    ]


def why_not_ready(pod: Json, last_words: Mapping[str, str]) -> str:
    """Return what keeps a pod from being Ready, by its status and by its log. `last_words`: pod -> end of its log."""
    if not (pod.get("spec") or {}).get("nodeName"):
        return f"it has no node: {scheduler_says(pod) or 'no scheduler has reported why'}"
    container = failing_container(pod)
    if container is None:
        return f"its phase is {(pod.get('status') or {}).get('phase', 'unknown')}"
    problem = _problem(container)
    described = f": {problem}" if problem else " runs, but reports that it is not ready"
    log = f"; its log: {last_words[name_of(pod)]}" if name_of(pod) in last_words else ""
    return f"container {container.get('name')}{described}{log}"


def failing_container(pod: Json) -> Json | None:
    """Return the status of the container that keeps a pod from being Ready, None if its status names none."""
    status = pod.get("status") or {}
    main = status.get("containerStatuses") or ()
    failed = [each for each in (*(status.get("initContainerStatuses") or ()), *main) if _problem(each)]
    return next(iter([*failed, *(each for each in main if not each.get("ready"))]), None)


def last_complaint(log: Sequence[str]) -> str:
    """Return the last line of a log that is an error, else a warning, else its last one; without its time."""
    lines = [line.strip() for line in log if line.strip()]
    for level in (" ERROR ", " WARNING "):
        if found := [line for line in lines if level in line]:
            return found[-1].partition(level)[2].strip()[:LONGEST_WORDS]
    return lines[-1][:LONGEST_WORDS] if lines else "it is empty"


def _problem(container: Json) -> str:
    state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    if ended and ended.get("exitCode"):
        return f"ended with {ended['exitCode']}" + _message(ended)
    if waiting.get("reason") and waiting["reason"] not in ("PodInitializing", "ContainerCreating"):
        before = f", after it exited with {last['exitCode']}{_message(last)}" if last.get("exitCode") else ""
        return f"{waiting['reason']}{_message(waiting)}{before}"
    return ""


def _message(state: Json) -> str:
    text = " ".join(str(state.get("message") or "").split())
    return f": {text[:LONGEST_WORDS]}" if text else ""


def version_in(text: str) -> tuple[int, int] | None:
    """Return major and minor version in a text such as "v1.36.3" or "containerd://1.7.2", None if it has none."""
    found = re.search(r"(?:^|[:/v])(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def time_of(text: object) -> datetime | None:
    """Return a time that Kubernetes has written, None if there is none."""
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


def claims_held(statuses: Iterable[Json]) -> frozenset[str]:
    """Return the UIDs of the ResourceClaims by which pods hold cards, by the statuses of GPUAllocations."""
    holders = (holder for status in statuses for holder in status.get("holders") or ())
    parts = (part for holder in holders for part in holder.get("containers") or ())
    return frozenset(str(part["claim"]["uid"]) for part in parts if part.get("claim"))


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
