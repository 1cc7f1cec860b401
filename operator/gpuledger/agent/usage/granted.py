"""What a grant says of a container: its parts of the cards, what holds it to them, and where HAMi-core counts. Pure.

All of it is the agent's own word, which no container can change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpuledger.formats.runtime.cdi import Grant

LOW = 1
"""The priority of a container whose grant names none, as HAMi-core itself has it."""

MIG_PREFIX = "MIG-"

_MIB = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024}
"""Endings of an amount, as HAMi-core and MPS read them, in MiB."""


@dataclass(frozen=True, slots=True)
class GrantedPart:
    """A container's part of one card."""

    uuid: str
    position: int
    """The container's own number of the card."""
    memory_mib: int
    cores: int
    """Percent; 0: none were promised."""
    memory_limit_mib: int | None
    """What something holds it to; None: nothing does."""


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """Where a container's shared region is, and whose it is."""

    name: str
    """Of the grant: no two are the same."""
    directory: str
    """On the node; the container can write to it."""
    file: str
    uuids: tuple[str, ...]
    priority: int
    """Lower is more important."""
    owner: str
    """For the log."""


def granted_parts(grant: Grant) -> list[GrantedPart]:
    """Return the parts that a grant gives, in the order in which the container sees its cards."""
    env = _environment(grant)
    memory, cores = (env.get(name, "").split(",") for name in ("GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"))
    pinned = dict(
        each.split("=", 1) for each in env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",") if "=" in each
    )
    by_driver = {limit.uuid: limit.most_mib for limit in grant.limits}
    parts = []
    for position, uuid in enumerate(grant.uuids):
        memory_mib = _number(memory, position)
        if uuid.startswith(MIG_PREFIX):
            limit: int | None = memory_mib
        elif uuid in by_driver:
            limit = by_driver[uuid]
        else:
            limit = _amount_mib(env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{position}") or pinned.get(str(position), ""))
        parts.append(GrantedPart(uuid, position, memory_mib, _number(cores, position), limit))
    return parts


def region_place(grant: Grant) -> RegionPlace | None:
    """Return where HAMi-core keeps what this container uses; None for a container that has no HAMi-core."""
    env = _environment(grant)
    path = _on_node(grant, PurePosixPath(env.get("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")))
    if path is None:
        return None
    priority = env.get("CUDA_TASK_PRIORITY", "")
    return RegionPlace(
        name=grant.name,
        directory=str(path.parent),
        file=path.name,
        uuids=grant.uuids,
        priority=int(priority) if priority.isdecimal() else LOW,
        owner=f"pod {grant.namespace}/{grant.pod}, container {grant.container}",
    )


def _on_node(grant: Grant, path: PurePosixPath) -> PurePosixPath | None:
    """Return where a file of the container is on the node, if it is mounted, or its directory; None if neither is."""
    mounts = {PurePosixPath(mount["containerPath"]): mount["hostPath"] for mount in grant.edits.get("mounts") or ()}
    for mounted in (path, path.parent) if path.name else ():
        if mounted in mounts:
            return PurePosixPath(mounts[mounted]) / path.relative_to(mounted)
    return None


def _environment(grant: Grant) -> Mapping[str, str]:
    pairs = (str(each).partition("=") for each in grant.edits.get("env") or ())
    return {name: value for name, _, value in pairs}


def _number(values: list[str], position: int) -> int:
    return int(values[position]) if position < len(values) and values[position].isdecimal() else 0


def _amount_mib(text: str) -> int | None:
    """Return 3000 for `3000m`; None for what is no amount, and for 0, which means no limit."""
    number, ending = text.rstrip("kmgKMG"), text[len(text.rstrip("kmgKMG")) :].lower()
    if not number.isdecimal() or ending not in _MIB:
        return None
    return int(int(number) * _MIB[ending]) or None
