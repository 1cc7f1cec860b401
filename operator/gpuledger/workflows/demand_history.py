"""The history that placement learns from: which pods came, and how many of those with cards have ended.

A help for preferences only. It is learned again after a start, from the pods that are bound then.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress

from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import PodRequest
from gpuledger.model.share import part_of_card
from gpuledger.placement.choose import Chooser

PODS_REMEMBERED = 20_000
"""UIDs of pods that have come lately: a pod that is refused asks again and again, and counts once."""


class DemandHistory:
    """Tells the chooser of every pod once that it has come, and once that it has gone."""

    def __init__(
        self, ledger: Ledger, chooser: Chooser, read_request: Callable[[JsonMapping], PodRequest | None]
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._read_request = read_request
        self._came: BoundedMap[str, None] = BoundedMap(PODS_REMEMBERED)  # UIDs of pods that have counted
        self._running: dict[str, float] = {}  # UID of a bound pod -> its cards

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker: that a pod has come stays true."""

    def known_pending(self) -> AbstractSet[str]:
        """See PendingPodTracker."""
        return frozenset()

    def observe_pending(self, pod: JsonMapping) -> None:
        """Observe a pod that wants cards, or has got some."""
        uid = pod["metadata"]["uid"]
        if uid in self._came:
            return
        self._came.note(uid, None)
        with suppress(BadInput):
            request = self._read_request(pod)
            if request is not None:
                self._chooser.arrived(request)

    def observe_bound(self, pod: JsonMapping, bound_before: bool) -> None:
        """Observe a bound pod; one that was `bound_before` was not given its cards now."""
        uid = pod["metadata"]["uid"]
        if is_finished(pod):
            self.forget_bound(uid, pod)
            return
        if uid in self._running:
            return
        holders = self._ledger.holders_of(uid)
        if not holders:  # asks for no card, or its shares are still to be found
            return
        self._running[uid] = sum(part_of_card(holder.share, card) for card, holder in holders)
        if bound_before:
            self._chooser.taken_over()
        else:
            self._chooser.given_out(self._running[uid])
        self.observe_pending(pod)  # if another operator has placed it, or this one before it was started again

    def forget_bound(self, pod_uid: str, last: JsonMapping | None) -> None:
        """Record that a pod needs its cards no more. Idempotent."""
        cards = self._running.pop(pod_uid, None)
        if cards is not None:
            self._chooser.given_back(cards)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that have cards, as far as was seen."""
        return set(self._running)
