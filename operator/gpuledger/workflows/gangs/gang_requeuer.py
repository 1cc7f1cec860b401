"""Room that has appeared goes to those who wait in their order, gangs among single pods; a gang is woken as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import ApiError, WorkLimitExceeded
from gpuledger.model.share import Pod
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.tasks.pauses import Step, in_slices, run_cooperatively
from gpuledger.workflows.tasks.rounds import Round

logger = logging.getLogger(__name__)

PASS_S = 0.1
"""How long gangs are tried before others go on; those that have not had their turn are tried next time."""

BETWEEN_PASSES_S = 0.5
"""Before the next ones are tried, then."""


class GangRequeuer:
    """Tries gangs that were refused, and has kube-scheduler ask for their members."""

    def __init__(
        self,
        ledger: Ledger,
        waiting: WaitingPods,
        clock: Clock,
        is_active: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._clock = clock
        self._is_active = is_active
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0
        self._round = Round[GangState](id, lambda state: state.name.namespace)
        self._gave_way = False
        """Whether the last pass ended before a try, for single pods that go before it."""
        self.on_due = Listeners[[]]()
        """Called when gangs can be tried that could not before, though nothing has changed."""

    async def give_room(
        self,
        gangs: Iterable[GangState],
        may_be_tried: Callable[[GangState], bool],
        try_again: Callable[[GangState], Generator[Step, None, bool]],
    ) -> bool:
        """Give room to all who wait, in their order; return whether some have to be looked at in the next turn.

        A single pod comes before a gang if it has a higher priority, or the same and is older than the gang's oldest
        member. Others have their turn between two gangs, and while one is planned. Of more gangs than there is time
        for, those that were not tried are next, and namespaces take turns: see `Round`.
        """
        waiting: list[GangState] = []

        def find() -> Iterator[None]:
            for state in list(gangs):
                if may_be_tried(state):
                    waiting.append(state)
                yield None

        await in_slices(find(), self._clock)
        since_s = self._clock.work_s()
        for state in self._round.next_pass(sorted(waiting, key=lambda state: state.rank)):
            begin_s = self._clock.work_s()
            if begin_s > since_s + PASS_S:
                self.look_again_in(BETWEEN_PASSES_S)
                break
            if not may_be_tried(state):  # any more, after the others
                continue
            if self._waiting.give_room(state.rank) and not self._gave_way:
                self._gave_way = True
                return True
            self._gave_way = False
            with suppress(WorkLimitExceeded):
                if await run_cooperatively(try_again(state)):
                    self.wake(state)
            await asyncio.sleep(0)
            self._round.spent(state, self._clock.work_s() - begin_s)
        return self._waiting.give_room(None)

    def wake(self, state: GangState) -> None:
        """Have kube-scheduler ask again for the members that have room, and that it was told no for."""
        for member in state.pending.values():
            if member.refused and self._ledger.hold_of(member.pod.uid) is not None:
                member.refused = False
                self._start(self._wake(member.pod), f"wake pod {member.pod}")

    def look_again_in(self, wait_s: float) -> None:
        """Have gangs tried again after a while."""
        due_s = self._clock.now_s() + wait_s
        if self._timer is None or due_s < self._due_s:
            if self._timer:
                self._timer.cancel()
            self._due_s = due_s  # uvloop's handles do not say theirs
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._is_due)

    def _is_due(self) -> None:
        self._timer = None
        self.on_due()

    def _start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(call, name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _wake(self, pod: Pod) -> None:
        if not self._is_active():
            return
        try:
            await self._waiting.wake_up(pod)
        except ApiError as error:  # its gang's room is given up in time, and the gang tried again
            logger.info("pod %s can't be woken: %s", pod, error)

    async def stop(self) -> None:
        """Wake no more pods."""
        if self._timer:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
