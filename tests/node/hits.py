"""What can happen to one container of a pod, on a real node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local_node import Node
from node.pod_cluster import PodCluster

BALLAST_MIB = 1024
EAT = """
import os, sys
from pathlib import Path

cgroup, victim, most_mib = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
Path(f"/proc/{victim}/oom_score_adj").write_text("1000")  # it is killed, and not this process
(cgroup / "cgroup.procs").write_text(str(os.getpid()))

def is_alive():
    try:
        return Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

eaten = []
while is_alive() and len(eaten) < most_mib:
    eaten.append(b"x" * (1 << 20))
sys.exit(is_alive())
"""
"""Fills a cgroup's memory until the kernel has killed a process there."""


@dataclass(frozen=True)
class Hit:
    """What is done to a container's processes, and whether to those that are started in their place, too."""

    to: Callable[[Node, str, list[int]], None]  # node, container's id, its processes
    again: bool = False

    def do(self, cluster: PodCluster, pod: str, container: str) -> None:
        """Do it to a container of one of our pods. One that has no processes at the moment is left alone."""
        found = cluster.system_pods()[pod]
        statuses = {status["name"]: status for status in found["status"]["containerStatuses"]}
        identity = statuses[container].get("containerID", "")
        node, name = cluster.node_of(found), identity.removeprefix("containerd://")
        if pids := node.container_pids(name):
            self.to(node, name, pids)

    def repeat(self, cluster: PodCluster, pod: str, container: str) -> None:
        """Do it to what was started in the place of what was hit, if that is meant."""
        if self.again:
            self.do(cluster, pod, container)


def _by(number: signal.Signals) -> Callable[[Node, str, list[int]], None]:
    def send(_node: Node, _container: str, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it was the child of one that is gone, or has been killed meanwhile
                continue

    return send


def _memory(node: Node, container: str, pids: list[int]) -> None:
    """Let the kernel find no memory for a container: another process, which goes on, fills what its limit leaves."""
    cgroup = node.memory_cgroup(container)
    argv = [sys.executable, "-c", EAT, str(cgroup), str(pids[0]), str(BALLAST_MIB)]
    done = subprocess.run(argv, check=False, timeout=60)  # with cgroups of version 2 it is killed, too
    assert done.returncode in (0, -signal.SIGKILL)
    stat = Path(f"/proc/{pids[0]}/stat")
    with contextlib.suppress(OSError):  # it is gone
        assert stat.read_text().rpartition(")")[2].split()[0] in "ZX", "the container's process was not killed"


HITS = {
    "killed": Hit(_by(signal.SIGKILL)),
    "killed again and again": Hit(_by(signal.SIGKILL), again=True),
    "stopped": Hit(_by(signal.SIGSTOP)),
    "continued": Hit(_by(signal.SIGCONT)),
    "out of memory": Hit(_memory),
    "out of memory again and again": Hit(_memory, again=True),
}
"""What was done -> how."""
