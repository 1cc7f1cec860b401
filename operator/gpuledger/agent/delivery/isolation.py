"""Isolation of the shares of a card: each mode's needs on the node, and its settings for containers. Pure.

Sources: CUDA's MPS documentation (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); HAMi-core's
environment and mounts as HAMi 2.10's device plugin sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class Isolation(StrEnum):
    """Ways to keep shares apart."""

    NONE = "none"
    """Nothing does: limits are counted, not enforced."""
    MPS = "mps"
    HAMI_CORE = "hami-core"
    MIG = "mig"
    """The card is a part of a card that the hardware keeps apart."""


@dataclass(frozen=True, slots=True)
class GrantedCard:
    """A container's part of one card, by the ledger."""

    uuid: str
    index: int
    vendor: str
    mode: str
    memory_mib: int
    cores: int
    """Percent; 0: none were promised."""
    exclusive: bool
    """Whether its pod has the card alone."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the ways have what they need on the node; empty: not there."""

    hami_core_directory: str = ""
    mps_directory: str = ""


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """A way, and why it is not the one that the pod wishes; empty if it is."""

    isolation: Isolation
    why_not_as_wished: str = ""


MPS_PIPES, MPS_MEMORY = "/tmp/nvidia-mps", "/dev/shm"  # noqa: S108 - where CUDA looks for them in a container
HAMI_HOME, HAMI_LOCK = "/usr/local/vgpu", "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for them
HAMI_LOCK_DIRECTORY = "vgpulock"
"""Below HAMi-core's directory on the node: the lock that all containers with HAMi-core share."""


def choose(cards: Sequence[GrantedCard], of_node: Isolation, wish: str, installed: Installed) -> IsolationChoice:
    """Return how these cards are kept apart from others' shares.

    A pod's wish counts where it can harm no other pod: it is alone on its cards, or the node enforces nothing and has
    what the wish needs. Users can write wishes at any time.
    """
    own = Isolation.MIG if all(card.mode == Isolation.MIG for card in cards) else of_node
    if not wish or wish == own:
        return IsolationChoice(own)
    if wish not in (Isolation.NONE, Isolation.MPS, Isolation.HAMI_CORE) or own is Isolation.MIG:
        return IsolationChoice(own, f"{wish[:32]!r} can't be chosen for these cards")
    wished = Isolation(wish)
    if wished is Isolation.NONE:
        alone = all(card.exclusive for card in cards)
        return (
            IsolationChoice(wished)
            if alone
            else IsolationChoice(own, "none is only for pods that have their cards alone")
        )
    if not _is_installed(wished, installed):
        return IsolationChoice(own, f"{wished} is not installed on the node")
    if own is not Isolation.NONE and not all(card.exclusive for card in cards):
        return IsolationChoice(own, f"the node enforces limits by {own}")
    return IsolationChoice(wished)


def missing(isolation: Isolation, installed: Installed) -> str:
    """Return what the node lacks for this way, an empty string for nothing."""
    return "" if _is_installed(isolation, installed) else f"the node's isolation is {isolation}, which it does not have"


def _is_installed(isolation: Isolation, installed: Installed) -> bool:
    if isolation is Isolation.MPS:
        return bool(installed.mps_directory)
    return isolation is not Isolation.HAMI_CORE or bool(installed.hami_core_directory)


def limits(
    isolation: Isolation, cards: Sequence[GrantedCard], installed: Installed, own_directory: str, priority: str
) -> Json:
    """Return the edits that make CUDA programs keep to their share. Cards are in the order of their index.

    `own_directory` is a directory on the node that only this container has, `priority` HAMi's 0 (high) or 1 (low).
    """
    if isolation is Isolation.MPS:
        return _mps(cards, installed.mps_directory)
    if isolation is Isolation.HAMI_CORE:
        return _hami_core(cards, installed.hami_core_directory, own_directory, priority)
    return {}


def _mps(cards: Sequence[GrantedCard], directory: str) -> Json:
    memory = ",".join(f"{position}={card.memory_mib}M" for position, card in enumerate(cards))
    env = [f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPES}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    if not all(card.exclusive for card in cards):
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={memory}")
    promised = [card.cores for card in cards if card.cores]
    if promised and min(promised) < 100:  # one number for all of a client's cards
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={min(promised)}")
    mounts = [_mount(f"{directory}/pipe", MPS_PIPES, "rw"), _mount(f"{directory}/shm", MPS_MEMORY, "rw")]
    return {"env": env, "mounts": mounts}


def _hami_core(cards: Sequence[GrantedCard], directory: str, own_directory: str, priority: str) -> Json:
    env = [f"CUDA_DEVICE_MEMORY_LIMIT_{position}={card.memory_mib}m" for position, card in enumerate(cards)]
    env += [
        f"CUDA_DEVICE_SM_LIMIT={cards[0].cores}",
        f"CUDA_DEVICE_MEMORY_SHARED_CACHE={HAMI_HOME}/usage.cache",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ]
    if priority in ("0", "1"):
        env.append(f"CUDA_TASK_PRIORITY={priority}")
    mounts = [
        _mount(own_directory, HAMI_HOME, "rw"),
        _mount(f"{directory}/{HAMI_LOCK_DIRECTORY}", HAMI_LOCK, "rw"),
        _mount(f"{directory}/libvgpu.so", f"{HAMI_HOME}/libvgpu.so", "ro"),
        _mount(f"{directory}/ld.so.preload", "/etc/ld.so.preload", "ro"),
    ]
    return {"env": env, "mounts": mounts}


def _mount(host: str, container: str, access: str) -> Json:
    return {"hostPath": host, "containerPath": container, "options": [access, "bind", "nosuid", "nodev"]}
