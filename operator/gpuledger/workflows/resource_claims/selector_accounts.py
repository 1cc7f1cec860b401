"""How much the selectors of a namespace's claims may cost: so much at once, and more with time. Users write them.

A namespace that has used it up waits, with that as its pods' reason; other namespaces do not notice. Nothing is counted
by names that users are free to choose.
"""

from __future__ import annotations

import asyncio

from gpuledger.model.clock import Clock, Listeners

MOST_STEPS = 500_000
"""Of an account that was not used for a while: half a second of work at most."""

STEPS_PER_S = 100_000
"""By which it grows again: a tenth of the event loop."""

PAUSE_STEPS = STEPS_PER_S
"""A namespace that has used up its account waits until it has so many steps again."""

TURN_STEPS = 10_000
"""In one turn of the event loop, some 10 ms, beside what is begun within them."""

TURN_PAUSE_S = 0.05
"""After which those are looked at again that had no turn."""

ACCOUNTS_KEPT = 1024
"""Beyond these, accounts are dropped of which nothing is used."""


class SelectorAccount:
    """The account of one namespace: see Payer. Steps are those of gpuledger.formats.resource_claims.cel.evaluation."""

    def __init__(self, namespace: str, clock: Clock, on_more: Listeners[[SelectorAccount]]) -> None:
        self.namespace = namespace
        self.paid = 0
        self.skipped = 0
        self._clock, self._on_more = clock, on_more
        self._left, self._counted_s = float(MOST_STEPS), clock.now_s()
        self._waits_until_s = 0.0
        self._of_turn, self._in_turn = 0, False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_spent(self) -> bool:
        """See Payer."""
        return self._clock.now_s() < self._waits_until_s

    @property
    def is_full(self) -> bool:
        """Return whether nothing is used."""
        self._refill()
        return self._left >= MOST_STEPS

    def may_go_on(self) -> bool:
        """See Payer. Where that is no, it is said to `on_more` when it is worth asking again."""
        if not self.is_spent and self._of_turn < TURN_STEPS:
            return True
        self.skipped += 1
        loop = _loop()
        if loop is not None and self._timer is None:
            pause_s = max(self._waits_until_s - self._clock.now_s(), TURN_PAUSE_S)
            self._timer = loop.call_later(pause_s, self._is_worth_asking)
        return False

    def pay(self, steps: int) -> None:
        """See Payer."""
        self._refill()
        self.paid += steps
        self._left -= steps
        if self._left <= 0:
            self._waits_until_s = self._counted_s + (PAUSE_STEPS - self._left) / STEPS_PER_S
        loop = _loop()
        if loop is not None:  # a thread keeps no event loop waiting
            self._of_turn += steps
            if not self._in_turn:
                self._in_turn = True
                loop.call_soon(self._turn_ends)

    def why_not(self) -> str:
        """See Payer."""
        return (
            f"the selectors of namespace {self.namespace} take long to evaluate, and wait for their turn: "
            "write simpler ones, or fewer different ones"
        )

    def _refill(self) -> None:
        now_s = self._clock.now_s()
        self._left = min(self._left + (now_s - self._counted_s) * STEPS_PER_S, float(MOST_STEPS))
        self._counted_s = now_s

    def _turn_ends(self) -> None:
        self._of_turn, self._in_turn = 0, False

    def _is_worth_asking(self) -> None:
        self._timer = None
        self._on_more(self)


class SelectorAccounts:
    """The accounts of all namespaces whose pods bring selectors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[str, SelectorAccount] = {}  # by namespace
        self.on_more = Listeners[[SelectorAccount]]()
        """Called with an account that has said no, when it may say yes."""

    def of(self, namespace: str) -> SelectorAccount:
        """Return the account of a namespace."""
        account = self._accounts.get(namespace)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_KEPT:
                self._accounts = {name: each for name, each in self._accounts.items() if not each.is_full}
            account = self._accounts[namespace] = SelectorAccount(namespace, self._clock, self.on_more)
        return account


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
