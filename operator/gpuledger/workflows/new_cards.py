"""Has the API server forget who created a card: each later write of it costs less then.

That is a third write of each new card, and no pod needs it. So it is made when all cards are open, or after a while,
one card after the other: a cluster whose ledger was lost opens a third sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from attrs import define

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.workflows.context import Component

LONGEST_WAIT_S = 30.0
"""A node whose cards can't be written keeps the others' writes dear for no longer."""


@define(eq=False, slots=False)
class NewCards(Component):
    """Knows the cards that this operator has created, until their lists of managers are gone."""

    _all_open: Callable[[], Awaitable[None]]
    """Returns when no card waits to be created or opened."""

    def __attrs_post_init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Note the name of a card's new object."""
        if not self._names:
            self._tasks.start(self._work(), "make the writes of new cards cheaper")
        self._names[name] = None

    async def _work(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._all_open()
        while self._names and self._is_active():
            card = await self._store.forget_managers(name := next(iter(self._names)))
            if card is not None:
                self._counts.cards_written.inc()
                self._ledger.load(stored_card(card))
            del self._names[name]
        self._names.clear()  # another operator is active by now: what is left costs a little more
