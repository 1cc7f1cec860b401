"""Everything that can go wrong, in one tree.

GpuledgerError
├── BadInput            a person's or another program's input can't be read; the text says what to do
├── NotReady            the operator has not read the ledger yet; kube-scheduler asks again
├── ShareRefused        the ledger does not enter a share: its card has no room for it, is gone, or takes no pods
│   └── QuotaExceeded   with it, the pods of a namespace would have more than a ResourceQuota of it allows
├── BindFailed          a pod can't be bound now; the text goes into its event
│   ├── BindAbandoned   kube-scheduler does not wait for its Binding any more
│   └── GangIncomplete  other members of its gang can't be bound
├── BindInProgress      an earlier attempt to bind the pod is not over, so the pod can't be placed anew
├── WorkLimitExceeded   an answer takes more work than one question may cost; asked again, there is less left to do
├── DriverGone          the node agent can't talk to the driver of its cards (agent/devices/source.py)
├── StartRefused        a container must not start on a node; the text goes into its pod's events
├── StateRolledBack     the API server has less than it had: its data comes from an older copy
├── NotKnownYet         what a container needs to start is not known yet; asked again soon, it may be
└── ApiError            the API server said no, or said nothing
    ├── NotFound        404
    ├── Conflict        409
    ├── Invalid         422: for the ledger, a share that does not fit or a stale total
    ├── Denied          401, 403
    ├── AnswerTooLong   200, and more of it than was allowed
    ├── EvictionForbidden  429 to an eviction: a PodDisruptionBudget forbids it now
    └── Unreachable     429, 5xx, no answer: the request may have been carried out
"""

from __future__ import annotations

from gpuledger.model.gang import QuotaLimit


class GpuledgerError(Exception):
    """Any error of this project."""


class BadInput(GpuledgerError):  # noqa: N818 - reads as what it is
    """Input that can't be understood. `str()` says what is wrong, where, and what to do."""


class NotReady(GpuledgerError):  # noqa: N818
    """The operator has not read the ledger yet."""


class ShareRefused(GpuledgerError):  # noqa: N818
    """A share that the ledger does not enter: its card has no room for it, is gone, or takes no pods."""


class QuotaExceeded(ShareRefused):
    """A share with which the pods of a namespace would have more than its quota allows."""

    def __init__(self, limit: QuotaLimit) -> None:
        self.limit = limit
        super().__init__(f"the namespace's quota does not allow it: {limit.key} of ResourceQuota {limit.quota}")


class BindFailed(GpuledgerError):  # noqa: N818
    """A pod that can't be bound to the node now."""


class BindAbandoned(BindFailed):
    """kube-scheduler does not wait for a pod's Binding any more; that says nothing of the pod or its node."""


class GangIncomplete(BindFailed):
    """Other members of a pod's gang can't be bound with it now; that says nothing of the pod or its node."""


class BindInProgress(GpuledgerError):  # noqa: N818
    """An earlier attempt to bind the pod is not over: a Binding is on its way, or its shares are being given back."""


class WorkLimitExceeded(GpuledgerError):  # noqa: N818
    """An answer takes more work than one question may cost; what was done is kept, so asking again leads on."""


class StartRefused(GpuledgerError):  # noqa: N818
    """A container that must not start. `str()` says why, and what to do."""


class NotKnownYet(GpuledgerError):  # noqa: N818
    """Something that has to be known before a container starts, and may be in a moment."""


class StateRolledBack(GpuledgerError):  # noqa: N818
    """An object that is older than it was. An operator that went on from memory would write what never happened."""


class ApiError(GpuledgerError):
    """The API server refused a request. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class AnswerTooLong(ApiError):  # noqa: N818
    """The API server's answer is longer than was allowed; less can be asked for."""


class NotFound(ApiError):  # noqa: N818
    """There is no such object."""


class Conflict(ApiError):  # noqa: N818
    """The object is not in the state that the request presumes."""


class Invalid(ApiError):  # noqa: N818
    """The object would break a rule of its schema."""


class Denied(ApiError):  # noqa: N818
    """The account may not do this."""


class EvictionForbidden(ApiError):  # noqa: N818
    """A PodDisruptionBudget forbids an eviction now."""


class Unreachable(ApiError):  # noqa: N818
    """No answer, or one that says "later". The request may have been carried out all the same."""
