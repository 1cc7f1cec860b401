"""Reads cards as the API server has them now, into memory; what is older than memory says that etcd was put back."""

from __future__ import annotations

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.errors import StateRolledBack, Unreachable
from gpuledger.model.listeners import Listeners
from gpuledger.model.stored_card import StoredCard
from gpuledger.workflows.journal.rolled_back import check_age


class OlderThanKnown(Unreachable):
    """A card that was read just now is older than it was before. Nothing that memory says of it may be relied on."""


class CardReader:
    """A read of one object is never older than what was shown before it was asked for, unless etcd was put back."""

    def __init__(self, ledger: Ledger, store: KubeStore) -> None:
        self._ledger = ledger
        self._store = store
        self.on_older = Listeners[[]]()
        """Called when a card is older than it was."""

    async def read(self, card: CardEntry) -> StoredCard:
        """Return a card as it is now, and bring memory up to date. Raises OlderThanKnown, NotFound or Unreachable."""
        known = card.resource_version  # a watch may show a newer one before the answer comes
        stored = stored_card(await self._store.allocation(card.card.object_name))
        try:
            check_age(stored, known, card)
        except StateRolledBack as error:
            self.on_older()
            raise OlderThanKnown(str(error)) from None
        self._ledger.load(stored)
        return stored
