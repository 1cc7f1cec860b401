"""What runs on a node, and which cards it really has: read from control groups and from the processes themselves.

Neither the agent, nor the kubelet, nor the container runtime is asked. Three things tell of a card in a container, and
must say the same: its environment, the file of the card that is mounted, and the card's device node. What keeps it to
its share is read where that looks for it: the driver's notes, HAMi-core's and MPS' variables, and their mounts.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from fakes.nvml.fake_nvml import MIB, NO_LIMIT, SetLimit, limit_lines
from gpuledger.formats.runtime.cdi import container_id, pod_uid
from local_node import Node
from node_chaos.pods import CONTAINER, UID
from node_chaos.steps import Delivery

CARD_FILES = "/var/lib/cards"
"""On the node: a file for each card, of its UUID's name."""

MOUNTED, DEVICE_PREFIX = "/cards", "card-"
"""In a container: where such files are mounted, and how the device nodes in /dev are called."""

DIRECTORY = "/run/gpuledger"
"""In a container without CDI: where it reads what it has."""

NUMBERS = ((1, 3), (1, 5), (1, 7), (1, 8))
"""Of the device nodes, card for card: those of null, zero, full and random, which every kernel has, and harm nobody."""

_MOUNT = re.compile(rf"^\d+ \d+ \S+ (\S+) {MOUNTED}/(\S+) ", re.MULTILINE)

PLACES = {"counters": "/usr/local/vgpu/usage.cache", "lock": "/tmp/vgpulock"}  # noqa: S108 - in a container
PIPES = "/tmp/nvidia-mps"  # noqa: S108 - in a container

OVER = "ZXx"
"""States of processes of which nothing is left: see proc_pid_stat(5)."""


@dataclass(frozen=True)
class Container:
    """A container of the workload, as it says itself."""

    identity: str
    pod_uid: str
    name: str
    cards: tuple[tuple[str, int, int], ...]
    """By its environment: UUID, MiB, cores of each card."""
    mounted: frozenset[str]
    """UUIDs of the cards whose files are mounted."""
    devices: frozenset[str]
    """UUIDs of the cards whose device nodes it has, with the right numbers."""
    directory: str = ""
    """Without CDI: where its directory is on the node's disk. It has nothing else then, but what is in it."""
    told_most: tuple[tuple[str, int], ...] = ()
    """UUID of a card -> most MiB, by the variables of HAMi-core or MPS."""
    places: frozenset[tuple[str, str]] = frozenset()
    """Where it has HAMi-core's counters and lock: name, and what is mounted there."""
    pipes: tuple[str, str] = ("", "")
    """Where it has the socket of its MPS daemon on the node, and the mount's options."""


@dataclass(frozen=True)
class Look:
    """What ran at one moment, later than `at_s` by `time.monotonic`."""

    at_s: float
    containers: tuple[Container, ...]
    limits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By the driver: a container's id or a pod's UID, and UUID of a card -> most MiB."""


class Eyes:
    """Looks at a node. By CDI, what a container has is read once: it can't change as long as the container runs."""

    def __init__(self, node: Node, cards: tuple[str, ...], delivery: Delivery = "cdi", notes: str = "") -> None:
        """Make eyes; `notes` is the file of the node in which its driver notes limits, if it does."""
        self._node, self._delivery, self._notes = node, delivery, notes
        self._numbers = dict(zip(cards, NUMBERS, strict=False))  # UUID -> major and minor number of its device node
        self._known: dict[str, Container] = {}

    def look(self) -> Look:
        """Return the containers that run, all of them at the same moment."""
        at_s = time.monotonic()
        found = {}
        for identity, pids in self._node.containers().items():
            container = self._known.get(identity)
            if container is None or container.directory:
                container = self._read(identity, pids)
                if not lives(pids[0]):  # of one that ends, /proc shows less and less
                    container = None
            if container is not None and any(map(lives, pids)):
                found[identity] = container, pids
        limits = self._limits()  # of those who still run then
        self._known = {identity: container for identity, (container, _) in found.items()}
        # Who has lived before and lives now, has lived at the moment in between.
        both = tuple(container for container, pids in found.values() if any(map(lives, pids)))
        return Look(at_s, both, limits)

    def _limits(self) -> dict[tuple[str, str], int]:
        """Return what the driver holds to what, at this moment."""
        found: dict[tuple[str, str], int] = {}
        for line in limit_lines(self._node.path(self._notes).read_text()) if self._notes else ():
            if isinstance(line, SetLimit):
                name = line.group.rpartition("/")[2]
                key = pod_uid(f"/{name}") or container_id(f"/{name}") or name
                found[key, line.uuid] = line.hard // MIB
                if line.hard == NO_LIMIT:
                    del found[key, line.uuid]
        return found

    def kill(self, pod_uid: str) -> None:
        """Kill all processes of the containers that a pod has at the moment."""
        for identity, pids in self._node.containers().items():
            container = self._known.get(identity)
            for pid in pids if container is not None and container.pod_uid == pod_uid else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _read(self, identity: str, pids: list[int]) -> Container | None:
        """Return a container, None if it is none of the workload, or its own program has not begun yet."""
        try:
            entries = Path(f"/proc/{pids[0]}/environ").read_bytes().rstrip(b"\0").split(b"\0")
            env = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
            if UID not in env:
                return None
            mounts = Path(f"/proc/{pids[0]}/mountinfo").read_text()
            if self._delivery == "directory":
                return _by_directory(identity, env, mounts, Path(f"/proc/{pids[0]}/root{DIRECTORY}"))
            devices = self._devices(Path(f"/proc/{pids[0]}/root/dev"))
        except OSError:  # it has ended meanwhile
            return None
        mounted = frozenset(
            name if source.endswith(f"/{name}") else f"{name} is {source}" for source, name in _MOUNT.findall(mounts)
        )
        places = frozenset((name, _mounted_at(mounts, path)[0]) for name, path in PLACES.items())
        most = _told_most(env)
        pipes = _mounted_at(mounts, PIPES)
        return Container(identity, env[UID], env[CONTAINER], _told(env), mounted, devices, "", most, places, pipes)

    def _devices(self, directory: Path) -> frozenset[str]:
        found = set()
        for file in directory.glob(f"{DEVICE_PREFIX}*"):
            uuid, number = file.name.removeprefix(DEVICE_PREFIX), file.stat().st_rdev
            numbers = os.major(number), os.minor(number)
            found.add(uuid if numbers == self._numbers.get(uuid) else f"{uuid} is {numbers}")
        return frozenset(found)


def _by_directory(identity: str, env: dict[str, str], mounts: str, directory: Path) -> Container:
    """Return a container that was told its cards by a directory, as that says now."""
    source = re.search(rf"^\d+ \d+ \S+ (\S+) {DIRECTORY} ", mounts, re.MULTILINE)
    try:
        listed = orjson.loads((directory / "devices.json").read_bytes()) if source else []
    except FileNotFoundError:
        listed = []
    cards = tuple((card["uuid"], card["memoryMiB"], card["cores"]) for card in listed)
    uuids = frozenset(uuid for uuid, _, _ in cards)
    return Container(identity, env[UID], env[CONTAINER], cards, uuids, uuids, source[1] if source else "")


def vendor_spec(cards: tuple[str, ...]) -> dict[str, object]:
    """Return the CDI file that NVIDIA's toolkit would have written for these cards."""
    devices = []
    for uuid, (major, minor) in zip(cards, NUMBERS, strict=False):
        mount = {"hostPath": f"{CARD_FILES}/{uuid}", "containerPath": f"{MOUNTED}/{uuid}", "options": ["ro", "bind"]}
        node = {"path": f"/dev/{DEVICE_PREFIX}{uuid}", "type": "c", "major": major, "minor": minor}
        devices.append({"name": uuid, "containerEdits": {"mounts": [mount], "deviceNodes": [node]}})
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}


def _told(env: dict[str, str]) -> tuple[tuple[str, int, int], ...]:
    uuids = [uuid for uuid in env.get("GPULEDGER_UUIDS", "").split(",") if uuid]
    memory, cores = (env.get(f"GPULEDGER_{key}", "").split(",") for key in ("MEMORY_MIB", "CORES"))
    return tuple((uuid, int(m), int(c)) for uuid, m, c in zip(uuids, memory, cores, strict=False))


def _told_most(env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return what HAMi-core or MPS read in a container's environment: amounts by the number of a card there."""
    pinned = dict(each.split("=") for each in env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",") if each)
    found = []
    for number, uuid in enumerate(env.get("GPULEDGER_UUIDS", "").split(",")):
        amount = env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{number}") or pinned.get(str(number))
        if amount:
            found.append((uuid, int(amount.lower().removesuffix("m"))))
    return tuple(found)


def _mounted_at(mounts: str, path: str) -> tuple[str, str]:
    """Return what is mounted at a path, by its device and its place there, and with which options; see proc(5)."""
    found = re.findall(rf"^\d+ \d+ (\S+) (\S+) {path} (\S+) ", mounts, re.MULTILINE)
    return (f"{found[-1][0]} {found[-1][1]}", found[-1][2]) if found else ("", "")


def lives(pid: int) -> bool:
    """Return whether a process has not ended."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in OVER
    return False
