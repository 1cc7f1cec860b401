"""HAMi-core: a library in the container that takes the place of CUDA's calls. Pure.

Source: what HAMi-core reads of its environment (src/multiprocess/multiprocess_memory_limit.c, src/libvgpu.c,
src/log_utils.c, as of HAMi 2.4 to 2.9 and June 2026), and the environment and mounts that HAMi 2.10's device plugin
sets.

CDI's variables replace a container's own ones, from its image and its pod alike. So each variable that could weaken a
limit is set here, needed or not, and what a user may wish is read from the pod and judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.agent.isolation.kinds import GrantedCard, HamiCore
from gpuledger.formats.runtime.cdi import bind_mount, memory_mount

Json = dict[str, Any]

HAMI_HOME, HAMI_LOCK = "/usr/local/vgpu", "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for them
LOCK_SIZE, LOCK_FILES = "64k", 16
"""Of the directory with the lock that HAMi-core takes up to HAMi 2.8.0: memory of the container's own. A directory that
containers share would let each of them keep all others from CUDA's start, and fill the node's disk."""

REGION = "usage.cache"
"""In a container's own directory: its counters and limits, which its processes share."""

POLICY_VARIABLE, OPT_OUT_VARIABLE = "GPU_CORE_UTILIZATION_POLICY", "CUDA_DISABLE_CONTROL"
"""HAMi's variables of a container, by which its user wishes: whether its cores are limited, and that nothing is."""

HIGH_PRIORITY, LOW_PRIORITY = "0", "1"
NO_LIMIT_OF_CORES, MOST_OF_A_TASK_THAT_PAUSES = 100, 99
"""Percent. Without a limit, a program does not look whether it has to pause."""

_STRICTNESS = ("disable", "default", "force")
_TRUE = ("1", "t", "T", "TRUE", "true", "True")  # as Go's strconv.ParseBool has it, by which HAMi reads it


def hami_core_edits(
    cards: Sequence[GrantedCard],
    directory: str,
    own_directory: str,
    priority: str,
    node: HamiCore = HamiCore(),  # noqa: B008 - it is frozen
    core_policy: str = "",
) -> Json:
    """Return the edits for a container with these cards, in the order of their index.

    `directory` is HAMi-core's on the node, `own_directory` one that only this container has, `priority` HAMi's 0 (high)
    or 1 (low), which anything else is; `core_policy` is what `core_policy_of` has said, empty: the node's.
    """
    env = [
        *_limits(cards, priority),
        f"CUDA_DEVICE_MEMORY_SHARED_CACHE={HAMI_HOME}/{REGION}",
        f"CUDA_REDIRECT={HAMI_HOME}/libvgpu.so",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"CUDA_TASK_PRIORITY={priority if priority == HIGH_PRIORITY else LOW_PRIORITY}",
        f"{POLICY_VARIABLE}={core_policy or node.core_policy}",
    ]
    if node.oversubscribed:
        env.append("CUDA_OVERSUBSCRIBE=true")
    if node.log_level:
        env.append(f"LIBCUDA_LOG_LEVEL={node.log_level}")
    library = node.library_directory or directory
    mounts = [
        # The file and not its directory, so that nobody in the container can put another one in its place.
        bind_mount(f"{own_directory}/{REGION}", f"{HAMI_HOME}/{REGION}", "rw"),
        memory_mount(HAMI_LOCK, LOCK_SIZE, LOCK_FILES),
        bind_mount(f"{library}/libvgpu.so", f"{HAMI_HOME}/libvgpu.so", "ro"),
        bind_mount(f"{library}/ld.so.preload", "/etc/ld.so.preload", "ro"),
    ]
    return {"env": env, "mounts": mounts}


def core_policy_of(cards: Sequence[GrantedCard], of_node: str, wish: str) -> str:
    """Return which policy of cores a container gets, by what its user wishes.

    A stricter one than the node's harms nobody; a looser one takes time from others of its cards, if there are any.
    """
    wish = wish.lower()
    if wish not in _STRICTNESS:
        return of_node
    stricter = _STRICTNESS.index(wish) > _STRICTNESS.index(of_node)
    return wish if stricter or all(card.exclusive for card in cards) else of_node


def opts_out(environment: Mapping[str, str]) -> bool:
    """Tell whether a container's own environment wishes no limits, as HAMi's users say it."""
    return environment.get(OPT_OUT_VARIABLE, "") in _TRUE


def _limits(cards: Sequence[GrantedCard], priority: str) -> list[str]:
    """Return the limits of memory and cores, by the position of each card in the container.

    The library takes a card's own limit of cores before the one for all, and 0 for none of its own: it would then take
    the one for all. Up to HAMi 2.8.1 it limits all cards by the first one's.
    """
    most = MOST_OF_A_TASK_THAT_PAUSES if priority == LOW_PRIORITY else NO_LIMIT_OF_CORES
    cores = [min(card.cores or most, most) for card in cards]
    return [
        *(f"CUDA_DEVICE_MEMORY_LIMIT_{position}={card.most_mib}m" for position, card in enumerate(cards)),
        f"CUDA_DEVICE_SM_LIMIT={cores[0]}",
        *(f"CUDA_DEVICE_SM_LIMIT_{position}={each}" for position, each in enumerate(cores)),
    ]
