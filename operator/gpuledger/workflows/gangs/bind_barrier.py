"""The barrier: the binds of a gang's members wait for each other, twice.

First until as many stand in Bind as the gang needs: a kube-scheduler has then found CPU, memory and volumes for each,
and counts them. Then until the shares of all of these are in the ledger. Only after that the first Binding is sent.
What goes wrong for one before fails all of them, so that nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuledger.model.clock import Listeners
from gpuledger.model.errors import GangIncomplete, GpuledgerError
from gpuledger.model.gang import GatherEnd


class BindBarrier:
    """Members of one gang that stand in Bind at the same time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._standing: dict[str, Callable[[], bool]] = {}  # UID -> whether kube-scheduler waits for its Binding
        self._entered: dict[str, Callable[[], None]] = {}  # UID -> what raises if its shares can't be used any more
        loop = asyncio.get_running_loop()
        self._complete: asyncio.Future[None] = loop.create_future()
        self._all_entered: asyncio.Future[None] = loop.create_future()
        self.on_entered = Listeners[[]]()
        """Called once the shares of all are in the ledger."""
        self.on_failed = Listeners[[GatherEnd, str]]()
        """Called once, if that does not come about, with why."""

    def __len__(self) -> int:
        """Return how many stand in Bind."""
        return len(self._standing)

    @property
    def is_over(self) -> bool:
        """Return whether it has failed, or all of them have gone on."""
        return self._all_entered.done()

    def stands(self, pod_uid: str) -> bool:
        """Return whether a pod is one of them."""
        return pod_uid in self._standing

    async def stand(
        self, pod_uid: str, is_asked: Callable[[], bool], missing: Callable[[], int], timeout_s: float
    ) -> None:
        """Wait until as many stand in Bind as are missing. Raises GangIncomplete if it takes too long, or one fails.

        Of those for which kube-scheduler does not wait any more, `is_asked`, it has forgotten the CPU: another one may
        count it for others already. They count when it asks for them again: see `look`.
        """
        self._standing[pod_uid] = is_asked
        self.look(missing())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._complete)
        except TimeoutError:
            here, needed = len(self._standing), missing()
            why = f"{here} of {needed} members of gang {self._name} could be bound within {timeout_s:g} s"
            self.fail(why, GatherEnd.LATE)
            await self._complete

    def look(self, missing: int) -> None:
        """Note how many are missing, or that one is asked for: others of the gang may be bound by now."""
        if not self._standing or len(self._standing) < missing or self._complete.done():
            return
        if sum(is_asked() for is_asked in self._standing.values()) >= missing:
            self._complete.set_result(None)

    async def entered(self, pod_uid: str, check: Callable[[], None]) -> None:
        """Wait until the ledger has the shares of all that were there. Raises GangIncomplete if one is missing.

        When it has, `check` of each is called: it raises a GpuledgerError if the pod can't use its shares any more.
        """
        self._entered[pod_uid] = check
        if self._entered.keys() >= self._standing.keys() and not self._all_entered.done():
            self._go_on()
        await asyncio.shield(self._all_entered)

    def _go_on(self) -> None:
        try:
            for check in self._entered.values():
                check()
        except GpuledgerError as error:
            self.fail(f"another member of the gang could not be bound: {error}", GatherEnd.REFUSED)
        else:
            self._all_entered.set_result(None)
            self.on_entered()

    def fail(self, why: str, end: GatherEnd) -> None:
        """Have all that have not gone on fail. Idempotent."""
        is_first = not self.is_over
        for future in (self._complete, self._all_entered):
            if not future.done():
                future.set_exception(GangIncomplete(why))
                future.exception()  # whether or not anybody waits for it
        if is_first:
            self.on_failed(end, why)

    def leave(self, pod_uid: str) -> None:
        """Record that a pod does not stand in Bind any more."""
        self._standing.pop(pod_uid, None)
        self._entered.pop(pod_uid, None)
