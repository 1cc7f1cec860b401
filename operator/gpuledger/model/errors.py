"""Everything that can go wrong, in one tree.

GpuledgerError
├── BadInput            a person's or another program's input can't be read; the text says what to do
├── DoesNotFit          the ledger refuses a share that would over-allocate a card
├── BindFailed          a pod can't be bound now; the text goes into its event
│   └── NobodyAsks      kube-scheduler does not wait for its Binding any more
├── TooMuch             an answer takes more work than one question may cost; asked again, there is less left to do
├── DriverGone          the node agent can't talk to the driver of its cards (agent/devices/source.py)
├── StartRefused        a container must not start on a node; the text goes into its pod's events
├── WentBack            the API server has less than it had: its data comes from an older copy
├── NotYet              what a container needs to start is not known yet; asked again soon, it may be
└── ApiError            the API server said no, or said nothing
    ├── NotFound        404
    ├── Conflict        409
    ├── Invalid         422: for the ledger, a share that does not fit or a stale total
    ├── Denied          401, 403
    ├── AnswerTooLong   200, and more of it than was allowed
    └── Unreachable     429, 5xx, no answer: the request may have been carried out
"""

from __future__ import annotations


class GpuledgerError(Exception):
    """Any error of this project."""


class BadInput(GpuledgerError):  # noqa: N818 - reads as what it is
    """Input that can't be understood. `str()` says what is wrong, where, and what to do."""


class DoesNotFit(GpuledgerError):  # noqa: N818
    """A share that a card has no room for."""


class BindFailed(GpuledgerError):  # noqa: N818
    """A pod that can't be bound to the node now."""


class NobodyAsks(BindFailed):
    """kube-scheduler does not wait for a pod's Binding any more; that says nothing of the pod or its node."""


class TooMuch(GpuledgerError):  # noqa: N818
    """An answer takes more work than one question may cost; what was done is kept, so asking again leads on."""


class StartRefused(GpuledgerError):  # noqa: N818
    """A container that must not start. `str()` says why, and what to do."""


class NotYet(GpuledgerError):  # noqa: N818
    """Something that has to be known before a container starts, and may be in a moment."""


class WentBack(GpuledgerError):  # noqa: N818
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


class Unreachable(ApiError):  # noqa: N818
    """No answer, or one that says "later". The request may have been carried out all the same."""
