"""What the API server's refusals mean, by their HTTP status."""

from __future__ import annotations

from gpuledger.model.errors import ApiError, Conflict, Denied, Invalid, NotFound, Unreachable

KINDS: dict[int, type[ApiError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    410: Conflict,
    422: Invalid,
}


def kind_of(status: int) -> type[ApiError]:
    """Return the error that a status of 300 and more becomes."""
    return KINDS.get(status, Unreachable if status in (408, 429) or status >= 500 else ApiError)
