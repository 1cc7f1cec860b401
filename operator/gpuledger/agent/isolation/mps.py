"""MPS: CUDA's own server keeps each client to its part of a card. Pure.

Source: CUDA's MPS documentation (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). In the directory
of pipes, CUDA connects to the socket `control`, and opens nothing else: seen of the drivers 535 and 550, without a
card. Sockets work on a read-only mount, where nobody can replace them, or put anything beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger.agent.isolation.kinds import GrantedCard, MpsPipes
from gpuledger.formats.runtime.cdi import bind_mount
from gpuledger.formats.runtime.mps_status import SHARED_MEMORY

Json = dict[str, Any]

MPS_PIPES, MPS_MEMORY = "/tmp/nvidia-mps", "/dev/shm"  # noqa: S108 - where CUDA looks for them in a container


def mps_edits(cards: Sequence[GrantedCard], directory: str, pipes: MpsPipes | None = None) -> Json:
    """Return the edits for a container with these cards.

    `directory` is MPS' on the node, `pipes` says where the daemons are that we run ourselves.
    """
    memory = ",".join(f"{position}={card.memory_mib}M" for position, card in enumerate(cards))
    env = [f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPES}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    if not all(card.exclusive for card in cards):
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={memory}")
    promised = [card.cores for card in cards if card.cores]
    if promised and min(promised) < 100:  # one number for all of a client's cards
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={min(promised)}")
    own = pipes.of(cards) if pipes is not None else f"{directory}/pipe"
    mounts = [bind_mount(own, MPS_PIPES, "ro"), bind_mount(f"{directory}/{SHARED_MEMORY}", MPS_MEMORY, "rw")]
    return {"env": env, "mounts": mounts}
