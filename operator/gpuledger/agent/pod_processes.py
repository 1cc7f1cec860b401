"""Finds the pods that have processes on this node, by the kubelet's control groups.

A process that has ended and was not reaped yet holds nothing any more, unless one of its threads still hangs, as in a
driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.formats.runtime.cgroup import container_id, pod_uid

OVER = frozenset("ZXx")
"""States of threads of which nothing is left but their exit status: see proc_pid_stat(5)."""

ENDED = (FileNotFoundError, ProcessLookupError)
"""Errors of reading a process that has ended meanwhile. Any other error says nothing of it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of one look at all processes."""

    pods: frozenset[str]
    """UIDs of those pods that have processes."""
    sees_pods: bool
    """Whether there are control groups of pods: if not, one is known by its containers alone."""


def look_for_pods(proc: Path, containers: Mapping[str, Collection[str]]) -> Sight:
    """Return which of these pods have processes: pod UID -> ids of its containers, as far as they are known.

    Raises OSError where it can't see: that must not be taken for pods of which nothing is left.
    """
    pods = {container: uid for uid, ids in containers.items() for container in ids}
    found, sees_pods = set[str](), False
    for process, groups in _processes(proc):
        of_pod = pod_uid(groups)
        sees_pods = sees_pods or of_pod is not None
        uid = of_pod or pods.get(container_id(groups) or "", "")
        if uid in containers and uid not in found and _lives(process):
            found.add(uid)
    return Sight(frozenset(found), sees_pods)


def _processes(proc: Path) -> Iterator[tuple[Path, str]]:
    for process in proc.iterdir():
        if process.name.isdigit():
            try:
                yield process, (process / "cgroup").read_text()
            except ENDED:
                continue


def _lives(process: Path) -> bool:
    try:
        return any(_state(thread) not in OVER for thread in (process / "task").iterdir())
    except ENDED:
        return False


def _state(thread: Path) -> str:
    """Return the state of a thread, one letter; its name before that can contain anything."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1]
    except ENDED:
        return "X"
