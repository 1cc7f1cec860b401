"""Pods that could not be bound several times in a row are put off: whatever is wrong with them, others go first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.errors import ApiError, BindFailed, NotFound
from gpuledger.model.share import Pod

FAILURES_FREE = 3
"""Failed binds in a row before a pod is put off: kube-scheduler's own back-off, of 10 s at most, comes first."""

FIRST_PUT_OFF_S, LONGEST_PUT_OFF_S = 20.0, 300.0

OVERLOADED = (0, 429, 503, 504)
"""Answers (0 is none) that say something of the API server and nothing of the pod."""


@dataclass(slots=True)
class _Failures:
    number: int = 0
    put_off_until_s: float = 0.0


class BindFailures:
    """Counts them. Of a pod that was bound, or is gone, nothing is remembered."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}  # pod UID -> its failed binds

    def pod_uids(self) -> set[str]:
        """Return the UIDs of the pods of which something is remembered."""
        return set(self._failures)

    def forget(self, pod_uid: str) -> None:
        """Take in that a pod was bound, or is gone."""
        self._failures.pop(pod_uid, None)

    def note(self, pod_uid: str, error: BaseException) -> None:
        """Take in why a bind has failed; what says nothing of the pod does not count."""
        if not isinstance(error, ApiError) or isinstance(error, NotFound) or error.status in OVERLOADED:
            return
        failures = self._failures.setdefault(pod_uid, _Failures())
        failures.number += 1
        if failures.number > FAILURES_FREE:
            put_off_s = min(LONGEST_PUT_OFF_S, FIRST_PUT_OFF_S * 2 ** (failures.number - FAILURES_FREE - 1))
            failures.put_off_until_s = self._clock() + put_off_s

    def put_off_s(self, pod_uid: str) -> float:
        """Return for how many seconds the pod is still put off."""
        failures = self._failures.get(pod_uid)
        return max(0.0, failures.put_off_until_s - self._clock()) if failures else 0.0

    def check(self, pod: Pod) -> None:
        """Raise BindFailed if a pod is put off."""
        if self.put_off_s(pod.uid):
            raise BindFailed(f"pod {pod} could not be bound several times in a row; it is tried again after a pause")
