"""Enters shares of pods that run already; what does not fit is listed on the card, and not counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from gpuledger.ledger.adoption import Adopt
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.errors import ShareRefused
from gpuledger.model.share import Holder, Misfit, Pod, Share
from gpuledger.workflows.journal.journal import Journal

ENTER_TIMEOUT_S = 15.0
"""How long the API server may take to enter a share."""

WHY_LENGTH = 256
"""The CRD's limit."""


async def enter_shares(journal: Journal, adoption: Adopt) -> bool:
    """Enter a bound pod's shares, list as conflicts those that do not fit; return whether all are entered."""
    entered = [_enter(journal, adoption.pod, share) for share in adoption.shares]
    return all(await asyncio.gather(*entered))


async def _enter(journal: Journal, pod: Pod, share: Share) -> bool:
    try:
        await journal.add(Holder(pod, share), ENTER_TIMEOUT_S)
    except ShareRefused as error:
        why = str(error).replace(f"card {share.uuid}", "the card")
        misfit = Misfit(replace(pod, priority=0), share.amounts, why[:WHY_LENGTH])
        with suppress(ShareRefused):  # a card lists only so many
            await journal.show_conflict(share.uuid, misfit)
        return False
    await journal.clear_conflict(share.uuid, pod.uid)
    return True


class OpenCards:
    """The ledger's cards to which holders can be added."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def card(self, uuid: str) -> Card | None:
        """See FindCards."""
        entry = self._ledger.entry(uuid)
        return entry.card if entry is not None and entry.open else None

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """See FindCards."""
        return [entry.card for entry in self._ledger.entries_of_node(node_name) if entry.open and entry.reported]
