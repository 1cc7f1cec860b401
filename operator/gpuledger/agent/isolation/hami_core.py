"""HAMi-core: a library in the container that takes the place of CUDA's calls. Pure.

Source: HAMi-core's environment and mounts as HAMi 2.10's device plugin sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger.agent.isolation.ways import GrantedCard
from gpuledger.formats.runtime.cdi import bind_mount

Json = dict[str, Any]

HAMI_HOME, HAMI_LOCK = "/usr/local/vgpu", "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for them
HAMI_LOCK_DIRECTORY = "vgpulock"
"""Below HAMi-core's directory on the node: the lock that all containers with HAMi-core share."""


def hami_core_edits(cards: Sequence[GrantedCard], directory: str, own_directory: str, priority: str) -> Json:
    """Return the edits for a container with these cards.

    `directory` is the library's on the node, `own_directory` one that only this container has, `priority` HAMi's 0
    (high) or 1 (low).
    """
    env = [f"CUDA_DEVICE_MEMORY_LIMIT_{position}={card.memory_mib}m" for position, card in enumerate(cards)]
    env += [
        f"CUDA_DEVICE_SM_LIMIT={cards[0].cores}",
        f"CUDA_DEVICE_MEMORY_SHARED_CACHE={HAMI_HOME}/usage.cache",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ]
    if priority in ("0", "1"):
        env.append(f"CUDA_TASK_PRIORITY={priority}")
    mounts = [
        bind_mount(own_directory, HAMI_HOME, "rw"),
        bind_mount(f"{directory}/{HAMI_LOCK_DIRECTORY}", HAMI_LOCK, "rw"),
        bind_mount(f"{directory}/libvgpu.so", f"{HAMI_HOME}/libvgpu.so", "ro"),
        bind_mount(f"{directory}/ld.so.preload", "/etc/ld.so.preload", "ro"),
    ]
    return {"env": env, "mounts": mounts}
