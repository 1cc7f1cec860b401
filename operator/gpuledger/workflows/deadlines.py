"""How long room is still kept for a pod: until a deadline that stands in the ledger, set by whatever clock.

The wall clock of another machine is another one, and one's own can be set while a pod waits. So a deadline is looked at
once, when this process sees it first; from then on, the time that was left is counted by the loop's clock.
"""

from __future__ import annotations

from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S
from gpuledger.model.clock import BoundedMap, Clock
from gpuledger.model.share import Holder
from gpuledger.workflows.preemption.pod_lifecycles import unix_s

DEADLINES_KEPT = 16_384
"""Of which is remembered when they are over. One that is forgotten is looked at once more."""


class Deadlines:
    """The deadlines of shares that are claimed or reserved.

    At first sight at least `least_s` are left, however far another machine's clock is behind, and at most as much as a
    preemption may take.
    """

    def __init__(self, *, clock: Clock, least_s: float = 0.0) -> None:
        self._clock = clock
        self._least_s = least_s
        # pod UID and deadline -> when it is over, loop's clock
        self._until_s: BoundedMap[tuple[str, str], float] = BoundedMap(DEADLINES_KEPT)

    def seconds_left(self, holder: Holder) -> float:
        """Return for how long the room of a claimed or reserved share is still kept, 0 or less if it is over."""
        if not holder.deadline:
            return 0.0
        key, now_s = (holder.pod.uid, holder.deadline), self._clock.now_s()
        until_s = self._until_s.get(key)
        if until_s is None:
            left_s = unix_s(holder.deadline) - self._clock.wall().timestamp()
            until_s = now_s + min(max(left_s, self._least_s), LONGEST_GRACE_S + self._least_s)
            self._until_s.note(key, until_s)
        return until_s - now_s
