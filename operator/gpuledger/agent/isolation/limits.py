"""What each way does to a container, so that its programs keep to their share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.agent.isolation.choice import GrantedCard, Installed, Isolation, mps_edits
from gpuledger.agent.isolation.hami_core import hami_core_edits
from gpuledger.model.json_object import Json


def limits(
    isolation: Isolation,
    cards: Sequence[GrantedCard],
    installed: Installed,
    own_directory: str,
    priority: str,
    core_policy: str = "",
) -> Json:
    """Return the edits that make CUDA programs keep to their share. Cards are in the order of their index.

    `own_directory` is a directory on the node that only this container has, `priority` HAMi's 0 (high) or 1 (low),
    `core_policy` HAMi-core's for this container; empty: the node's.
    """
    if isolation is Isolation.MPS:
        return mps_edits(cards, installed.mps_directory, installed.mps_pipes)
    if isolation is Isolation.HAMI_CORE:
        node = installed.hami_core
        return hami_core_edits(cards, installed.hami_core_directory, own_directory, priority, node, core_policy)
    return {}
