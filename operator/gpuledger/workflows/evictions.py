"""Asks a pod to leave: by the Eviction API, and only where that is allowed against its PodDisruptionBudgets."""

from __future__ import annotations

from enum import Enum, auto

from gpuledger.formats.kubernetes.other import disruption_target
from gpuledger.kube_api.writes import KubeStore
from gpuledger.model.clock import Clock, rfc3339
from gpuledger.model.errors import Conflict, EvictionForbidden, NotFound
from gpuledger.model.share import Pod


class Asked(Enum):
    """What became of it."""

    LEAVES = auto()
    IS_GONE = auto()
    """Or another pod has its name by now."""
    BUDGET_FORBIDS = auto()


async def ask_to_leave(store: KubeStore, clock: Clock, pod: Pod, why: str, *, despite_budgets_as: str) -> Asked:
    """Have a pod leave in good order. Raises ApiError.

    `despite_budgets_as` is the reason of its condition DisruptionTarget, with `why` as message, if its budgets may be
    passed over; empty: they may not.
    """
    try:
        await store.evict_pod(pod)
    except (NotFound, Conflict):
        return Asked.IS_GONE
    except EvictionForbidden:
        if not despite_budgets_as:
            return Asked.BUDGET_FORBIDS
        try:
            now = rfc3339(clock.wall())
            await store.set_pod_condition(pod, disruption_target(f"gpuledger: {why}", now, despite_budgets_as))
            await store.delete_pod(pod)
        except (NotFound, Conflict):
            return Asked.IS_GONE
    return Asked.LEAVES
