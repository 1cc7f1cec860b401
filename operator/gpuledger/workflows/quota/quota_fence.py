"""Keeps two operators to one quota: the one whose share comes second in the ledger gives it back before its Binding.

What a card may give is the API server's to judge, with each write of that card. A quota is a sum over many cards, and
each operator adds up what it knows. Two of them can both take themselves for active, or a new one can know less than
the last one has written: then each finds that a limit allows what only one of them may have.

So a share counts twice: as it is chosen, and again once it is in the ledger. The watch of cards shows all writes in the
order of etcd. When it has come to an operator's own write, the operator knows every share that was entered before, by
whomever. Of two shares that are too much together, the later one's operator finds that out, and binds nothing. That
takes no write, and as long as an event of the watch takes to arrive; pods of other namespaces do not wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import QuotaExceeded, Unreachable
from gpuledger.model.share import Placement, Pod
from gpuledger.workflows.list_and_watch import WatchedUpTo

WATCH_TIMEOUT_S: Final = 15.0
"""How long the watch may be behind. A share that nobody could judge by then is given back."""


class QuotaFence:
    """Judges what was entered for a pod, before it is bound."""

    def __init__(self, ledger: Ledger, cards_watched: WatchedUpTo) -> None:
        self._ledger = ledger
        self._cards_watched = cards_watched

    async def check(self, pod: Pod, placement: Placement) -> None:
        """Return when it is certain that the pod's namespace may have what was entered for the pod.

        Raises QuotaExceeded, and Unreachable if the watch of cards does not come that far.
        """
        quotas = self._ledger.quotas
        if not placement.shares or not quotas.limits(pod.namespace):
            return
        entries = [self._ledger.entry(share.uuid) for share in placement.shares]
        version = max((entry.resource_version for entry in entries if entry is not None), default=0)
        try:
            async with asyncio.timeout(WATCH_TIMEOUT_S):
                await self._cards_watched.reaches(version)
        except TimeoutError:
            raise Unreachable(f"the watch of cards is more than {WATCH_TIMEOUT_S:.0f} s behind the ledger") from None
        exceeded = quotas.exceeded_by_holders(pod.uid, pod.namespace)
        if exceeded is not None:
            raise QuotaExceeded(exceeded)
