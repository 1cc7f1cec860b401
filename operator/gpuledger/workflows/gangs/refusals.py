"""Why a gang waits, as kube-scheduler is told of each of its members."""

from __future__ import annotations

from gpuledger.model.gang import QuotaLimit
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.workflows.quota.namespace_quotas import over_quota

OTHERS_TURN = Refusal(
    Reason.GANG, "another gang, which has found cards and lacked something else, is tried alone for a while"
)
HELD_BACK = Refusal(Reason.GANG, "another gang, which many have overtaken that came after it, goes first for a while")
PAUSE = Refusal(Reason.GANG, "a member of the pod's gang could not be bound a moment ago")
GONE = Refusal(Reason.GANG, "the pod is bound or gone by now")


def too_few(minimum: int) -> Refusal:
    """Return the refusal of a gang of which not all members are there."""
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang have been created")


def others_first(minimum: int) -> Refusal:
    """Return the refusal of a member that others of its gang come before."""
    return Refusal(Reason.GANG, f"the {minimum} members that the pod's gang needs go first")


def too_little(minimum: int, limit: QuotaLimit | None) -> Refusal:
    """Return the refusal of a gang that finds too few cards, or may not have more of a limit."""
    if limit is not None:
        return over_quota(limit)
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang find cards at once")
