"""The agent's last seconds: the kubelet still accepts pods that were bound in time.

A pod for which the kubelet gets no slots from its plugin has failed for good. From the moment that the agent's own pod
is being deleted, as in an upgrade, the operator sends no pod here; those that it has sent before, the kubelet takes up
within moments. So the plugin goes on serving until it has.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gpuledger.agent.kubelet.slot_owners import Pods
from gpuledger.formats.kubernetes.pod import is_finished, leaves_at, started_at
from gpuledger.model.errors import ApiError

logger = logging.getLogger(__name__)

LAST_BINDINGS_S = 1.0
"""How long the operator may take to notice, and what it has begun to arrive."""

LONGEST_S = 6.0
"""Less than the supervisor's patience, and than the pod's time to end."""

LOOK_INTERVAL_S = 0.3


async def wait_for_bound_pods(node_name: str, store: Pods) -> None:
    """Return when the kubelet has taken up every pod that is bound to this node, or after LONGEST_S."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await asyncio.sleep(LAST_BINDINGS_S)
            while waiting := await _waiting(node_name, store):
                logger.info("the agent exits after the kubelet has accepted %d bound pods", waiting)
                await asyncio.sleep(LOOK_INTERVAL_S)
    except TimeoutError:
        logger.warning("the kubelet has not accepted its bound pods in time; those that request GPUs may fail")
    except ApiError as error:
        logger.warning("the pods that wait for the kubelet can't be listed: %s", error)


async def _waiting(node_name: str, store: Pods) -> int:
    return sum(await store.pods_of_node(node_name, _waits))


def _waits(pod: dict[str, Any]) -> bool:
    return not started_at(pod) and not is_finished(pod) and not leaves_at(pod)
