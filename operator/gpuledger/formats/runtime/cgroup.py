"""From a process' control groups to its pod, or at least to its container.

Source: the kubelet's cgroup managers: `.../pod<uid>/<container>` with cgroupfs, `...-pod<uid with _>.slice/...` with
systemd, in versions 1 and 2 of control groups. The UID of a static pod, which a file on the node describes, is a hash.
The outermost group counts: inside its own, a container may call groups whatever it likes. A kubelet that keeps no
groups for pods (cgroupsPerQOS: false) leaves the container's id, which runtimes make of 64 digits.
"""

from __future__ import annotations

import re

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER = re.compile(r"[/:-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_POD = re.compile(rf"[/-]pod({_UID})(?:\.slice)?(?:/|$)", re.MULTILINE)


def pod_uid(text: str) -> str | None:
    """Return the UID of the pod that a process is in, from its /proc/PID/cgroup; None if it is in none."""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else None


def pod_group(text: str) -> str | None:
    """Return the part of a control group's path that leads to its pod's own group; None if it is in no pod's."""
    found = _POD.search(text)
    return text[: found.end()].rstrip("/") if found else None


def container_id(text: str) -> str | None:
    """Return the id of the container that a process is in, from its /proc/PID/cgroup; None if it is in none."""
    found = _CONTAINER.search(text)
    return found[1] if found else None
