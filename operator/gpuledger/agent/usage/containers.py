"""What each container of the node has of each card, and uses of it. Pure.

The amounts come from the container's region where there is one that can be read, else from the driver's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuledger.agent.usage.regions import GrantedPart, RegionLook, granted_parts
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.formats.runtime.shared_region import IDLE, SharedRegion

MIB = 1 << 20

MOST_BYTES = 1 << 50
"""A million GiB. No card has that much."""

REGION, NVML = "region", "nvml"
"""Where amounts come from."""

ContainerKey = tuple[str, str, str]
"""A card's UUID, a pod's, and the name of a container."""


@dataclass(frozen=True, slots=True)
class ProcessesUse:
    """What the processes of one container use of one card, by the driver. None where it does not tell."""

    memory_mib: int | None
    cores_percent: int | None


NOTHING = ProcessesUse(0, 0)


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container and one card that it holds a part of. None where nothing tells."""

    grant: Grant
    part: GrantedPart
    memory_used_bytes: int | None
    cores_percent: int | None
    source: str
    """REGION or NVML."""
    last_kernel_s_ago: int | None = None
    paused: bool = False
    context_bytes: int = 0
    module_bytes: int = 0
    data_bytes: int = 0
    """Parts of the memory used, where a region tells; the rest is of other kinds."""


def container_uses(
    grants: Iterable[Grant],
    looks: Mapping[str, RegionLook],
    processes: Mapping[ContainerKey, ProcessesUse] | None,
    now_s: float,
) -> list[ContainerUse]:
    """Return one for each container and card, whether it is used or not.

    `looks` is name of the grant -> its region; `processes` is None while the driver does not answer.
    """
    found: dict[ContainerKey, ContainerUse] = {}
    for grant in grants:
        look = looks.get(grant.name)
        for part in granted_parts(grant):
            key = part.uuid, grant.pod_uid, grant.container
            if look is None and key in found:  # a container that asks by several names has several grants
                continue
            # What several pods use that share a claim is of each of them, and of no container of this name.
            told = processes if grant.of_one_pod else None
            use = _by_driver(grant, part, None if told is None else told.get(key, NOTHING))
            found[key] = use if look is None else _by_region(use, look.region, now_s)
    return list(found.values())


def _by_driver(grant: Grant, part: GrantedPart, use: ProcessesUse | None) -> ContainerUse:
    memory_mib, cores_percent = (None, None) if use is None else (use.memory_mib, use.cores_percent)
    return ContainerUse(grant, part, None if memory_mib is None else memory_mib * MIB, cores_percent, NVML)


def _by_region(use: ContainerUse, region: SharedRegion, now_s: float) -> ContainerUse:
    kernel_s = region.last_kernel_s
    use = replace(
        use,
        paused=region.recent_kernel < IDLE,
        last_kernel_s_ago=max(int(now_s - kernel_s), 0) if kernel_s else None,
    )
    place = next((place for place, device in enumerate(region.devices) if device.uuid == use.part.uuid), None)
    if place is None:  # no program has asked NVML for the card
        return use
    counted = [process.uses[place] for process in region.processes]
    # The library puts its own number to 0 for a moment, several times in a second.
    cores = max(sum(each.cores_percent for each in counted), use.cores_percent or 0)
    return replace(
        use,
        memory_used_bytes=_sum(each.total_bytes for each in counted),
        cores_percent=min(cores, 100),
        source=REGION,
        context_bytes=_sum(each.context_bytes for each in counted),
        module_bytes=_sum(each.module_bytes for each in counted),
        data_bytes=_sum(each.data_bytes for each in counted),
    )


def _sum(claims: Iterable[int]) -> int:
    """Return what processes claim to use, or as much as nobody can have: a claim is any number."""
    return min(sum(claims), MOST_BYTES)
