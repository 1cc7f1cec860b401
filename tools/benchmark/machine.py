"""The machine and the programs: what they are, and what a process has used of them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from build_control_plane import ensure_binaries
from installation import REPOSITORY

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PACKAGES = ("gpuledger", "kopf", "aiohttp", "orjson")


def describe_machine() -> dict[str, object]:
    """Return what the figures depend on, and how busy the machine is before it is measured."""
    cpus = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cpu": cpus[0] if cpus else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of everything that is measured."""
    kubectl = str(ensure_binaries() / "kubectl")
    client = _output(kubectl, "version", "--client").splitlines()
    kubernetes = next((line.split()[-1] for line in client if line.startswith("Client Version")), "unknown")
    commit = _output("git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*") or "unknown"
    packages = {name: version(name) for name in PACKAGES}
    return {"kubernetes": kubernetes, "commit": commit, "python": platform.python_version(), **packages}


def cpu_s(pid: int | None) -> float:
    """Return the CPU time that a process has used so far, 0 if there is none."""
    fields = _lines(f"/proc/{pid}/stat") if pid else []
    if not fields:
        return 0.0
    user, system = fields[0].rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * TICK_S


def memory_mib(pid: int | None) -> tuple[float, float]:
    """Return the memory that a process has in use, now and at its peak."""
    values = {line.split(":")[0]: line.split()[1] for line in _lines(f"/proc/{pid}/status") if line.startswith("Vm")}
    return (int(values.get("VmRSS", 0)) / 1024, int(values.get("VmHWM", 0)) / 1024)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
