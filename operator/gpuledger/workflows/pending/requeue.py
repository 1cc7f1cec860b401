"""Has kube-scheduler, or Kueue, try again: gangs, pods with claims, and workloads.

Room that has appeared goes to pending pods in their order, gangs among single pods; a gang is requeued as a whole.
kube-scheduler looks at no claims of our profiles, so nothing else would have it try pods whose claims were not there,
or could not be used. An admitted workload whose pods find no cards goes back to its queue: cards may have failed, or
others may have them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from attrs import define

from gpuledger.formats.kubernetes.workload import CheckState
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import ApiError, GpuledgerError, WorkLimitExceeded
from gpuledger.model.gang import WorkloadName
from gpuledger.model.share import Pod
from gpuledger.workflows.gangs.members import GangState
from gpuledger.workflows.pending.waiting_pods import PodRequeuer, WaitingPods
from gpuledger.workflows.queues.card_check import CardCheck, CheckWriter
from gpuledger.workflows.queues.workloads import WorkloadPods
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind, Name
from gpuledger.workflows.tasks import Round, Step, in_slices, run_cooperatively

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
        """Have kube-scheduler ask again for the refused members that have room now."""
        for member in state.pending.values():
            if member.refused and self._ledger.seats.of(member.pod.uid) is not None:
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


class ClaimRequeuer:
    """Remembers pods that were refused for their claims, until something of these has changed."""

    def __init__(self, book: ClaimBook, waker: PodRequeuer, is_active: Callable[[], bool]) -> None:
        self._book, self._waker, self._is_active = book, waker, is_active
        self._refused: dict[str, Pod] = {}  # UID of a pod that waits
        book.on_claim.append(self._claim_has_changed)
        book.on_appeared.append(self._object_is_there)
        book.on_waits_no_more.append(self._forget)

    def refused(self, pod: Pod) -> None:
        """Record a pod that was refused because of the state of its claims."""
        if self._book.waiting(pod.uid) is not None:
            self._refused[pod.uid] = pod

    def _forget(self, pod_uid: str) -> None:
        self._refused.pop(pod_uid, None)

    def _claim_has_changed(self, name: Name) -> None:
        self._wake_all(self._book.naming(Kind.CLAIMS, name))

    def _object_is_there(self, kind: Kind, name: Name) -> None:
        if kind is not Kind.CLAIMS:
            self._wake_all(self._refused if kind is Kind.CLASSES else self._book.naming(kind, name))

    def _wake_all(self, pod_uids: Iterable[str]) -> None:
        for pod in list(filter(None, map(self._refused.get, pod_uids))):
            self._wake(pod)

    def _wake(self, pod: Pod) -> None:
        del self._refused[pod.uid]
        if self._is_active():
            self._waker.start(self._wake_up(pod), f"wake {pod}")

    async def _wake_up(self, pod: Pod) -> None:
        try:
            await self._waker.wake_up(pod)
        except GpuledgerError as error:
            logger.info("pod %s can't be woken: %s", pod, error)
            self.refused(pod)


@define(eq=False, slots=False)
class WorkloadRequeuer:
    """Has Kueue evict and queue again an admitted workload whose pods find no cards: they may be gone, or taken."""

    _check: CardCheck
    _pods: WorkloadPods
    _writer: CheckWriter
    _after_s: float
    _clock: Clock

    def __attrs_post_init__(self) -> None:
        self._since: dict[str, float] = {}  # UID of a pod that was refused -> since when

    def refused(self, pod_uid: str) -> None:
        """Record that a pod was refused."""
        if self._after_s and self._pods.of(pod_uid) is not None and pod_uid not in self._since:
            self._since[pod_uid] = self._clock.now_s()
            self._check.on_due()

    def next_due_s(self) -> float | None:
        """Return when the next pod has waited for too long; None if none waits."""
        return min(self._since.values()) + self._after_s if self._since else None

    def retry_overdue(self) -> None:
        """Have workloads queued again whose pods have waited for too long."""
        now_s = self._clock.now_s()
        for uid, since_s in list(self._since.items()):
            named = self._pods.of(uid)
            if named is None or not self._pods.is_pending(uid):
                del self._since[uid]
            elif since_s + self._after_s <= now_s:
                self._since[uid] = now_s
                self._retry(named[0])

    def _retry(self, name: WorkloadName) -> None:
        queued = self._check.find(name)
        if queued is None or not queued.workload.is_admitted or self._writer.is_writing(queued.workload.uid):
            return
        text = f"a pod could not be placed for {self._after_s:g} s, though there were cards for all: it is queued again"
        logger.info("workload %s: %s", queued.workload.name, text)
        self._writer.say(queued.workload, queued.check, CheckState.RETRY, text, lambda _: None)
