"""Which shares of this node are idle: nothing has computed with them for some minutes, and something tells so.

It is looked at every half minute, and written only as a share becomes idle or is used again. One that was idle is told
to be so from the moment on at which it was seen in use last. An agent that begins continues with what it finds on its
Node. Times are the API server's: nobody who sets this node's clock makes a share idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gpuledger.agent.usage.regions import ContainerUse
from gpuledger.formats.idle import Idleness, ShareKey

BEGINS_AFTER_S: Final = 600.0
"""A share that was in use in none of the looks for so long is idle, or sooner if it has to be known sooner. Less would
be many writes for a busy notebook."""

LOOK_S: Final = 60
"""A kernel that began in that time is seen by a look; more than the time between two."""

LONGEST_GAP_S: Final = 300.0
"""Between two looks. After a longer one, nothing is known of the time between."""


class IdleShares:
    """Observes what the looks say."""

    def __init__(self, idle_after_s: float = 0.0) -> None:
        """`idle_after_s` is when the administrator wants to know; 0: never."""
        self._begins_after_s = min(BEGINS_AFTER_S, idle_after_s or BEGINS_AFTER_S)
        self._idle: dict[ShareKey, Idleness] = {}
        self._unused_since: dict[ShareKey, datetime] = {}
        self._looked: datetime | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether it has taken in anything."""
        return self._looked is not None

    def resume(self, shown: Mapping[ShareKey, Idleness], now: datetime) -> None:
        """Continue with what an agent before this one has said."""
        self._idle = dict(shown)
        self._unused_since = {key: each.since for key, each in shown.items() if each.since is not None}
        self._looked = now

    def observe(
        self, uses: Iterable[ContainerUse], now: datetime, unclear: Collection[str] = ()
    ) -> Mapping[ShareKey, Idleness]:
        """Take in a look; return what is known now. `unclear` are cards with programs that are nobody's known."""
        if self._looked is None or now - self._looked > timedelta(seconds=LONGEST_GAP_S):
            self._unused_since.clear()
        self._looked = now
        by_share: defaultdict[ShareKey, list[bool | None]] = defaultdict(list)
        for use in uses:
            by_share[use.grant.pod_uid, use.part.uuid].append(_is_used(use, unclear))
        self._idle = {key: each for key, each in self._idle.items() if key in by_share}
        self._unused_since = {key: since for key, since in self._unused_since.items() if key in by_share}
        for key, are_used in by_share.items():
            self._take(key, now, is_unused=all(used is False for used in are_used))
        return self._idle

    def _take(self, key: ShareKey, now: datetime, is_unused: bool) -> None:
        known = self._idle.get(key)
        since = self._unused_since.setdefault(key, now) if is_unused else self._unused_since.pop(key, None)
        if is_unused and since is not None and (now - since).total_seconds() >= self._begins_after_s:
            if known is None or known.since is None:
                self._idle[key] = Idleness(since.replace(microsecond=0), known.before_s if known else 0)
        elif not is_unused and known is not None and known.since is not None:
            self._idle[key] = replace(known, since=None, before_s=known.total_s(now))


def _is_used(use: ContainerUse, unclear: Collection[str]) -> bool | None:
    """Return whether a container computes with a card; None where nothing tells."""
    if use.last_kernel_s_ago is not None and use.last_kernel_s_ago < LOOK_S:
        return True
    if use.cores_percent:
        return True
    tells = use.last_kernel_s_ago is not None or (use.cores_percent is not None and use.part.uuid not in unclear)
    return False if tells and not use.paused else None
