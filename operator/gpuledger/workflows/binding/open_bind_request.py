"""When a pod's Binding may be sent: while kube-scheduler waits for what becomes of it.

kube-scheduler counts a pod's CPU on the node from its choice on, and forgets it when it hears that Bind has failed. A
Binding that arrived after that would bring the pod to a node where others may have its CPU by then. So a Binding is
sent only while a question is open, and no question is answered with "failed" before it is known that no Binding is
under way. What was entered into the ledger stays meanwhile: the next question for the pod goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gpuledger.formats.scheduler.configuration import LONGEST_BACK_OFF_S
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import BindAbandoned

ASKED_AGAIN_S = LONGEST_BACK_OFF_S + 2.0
"""For how long a pod that could be bound waits for the next question: kube-scheduler asks again after its back-off."""


@dataclass(slots=True, eq=False)
class _Question:
    """A Bind for which kube-scheduler waits."""

    is_heard: Callable[[], bool]
    is_over: bool = False


class OpenBindRequest:
    """Of one pod that is being bound: who asks for it, and whether a Binding of it is under way."""

    def __init__(self) -> None:
        self._question: _Question | None = None
        self._news = asyncio.Event()
        self._nothing_under_way = asyncio.Event()
        self._nothing_under_way.set()
        self._is_expected = True
        self.is_unanswered = False
        """A Binding was sent of which the API server has not said what has become of it."""
        self.on_question = Listeners[[]]()
        """Called when kube-scheduler has asked for the Binding."""

    @contextmanager
    def question(self, is_heard: Callable[[], bool]) -> Iterator[None]:
        """Let Bindings be sent as long as this lasts, and `is_heard` says that a caller still listens.

        The latest question counts: kube-scheduler asks again only when it waits for the one before no more.
        """
        question = self._question = _Question(is_heard)
        self._news.set()
        self.on_question()
        try:
            yield
        finally:
            question.is_over = True

    def expect_question(self, is_expected: bool) -> None:
        """Note whether kube-scheduler would still take the node; if not, each bind that waits for a question fails."""
        self._is_expected = is_expected
        self._news.set()

    async def had_to_wait(self) -> bool:
        """Wait until a Binding may be sent; return whether that was not so at once. Raises BindAbandoned."""
        if self.is_asked():
            return False
        await self._until_asked()
        return True

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Wait until a Binding may be sent; what is done inside sends it, and finds out what has become of it.

        Raises BindAbandoned if the scheduler no longer asks. If an earlier Binding's outcome is unknown, it does not
        wait: that has to be found out before kube-scheduler gets an answer.
        """
        await self._until_asked()
        self._nothing_under_way.clear()
        try:
            yield
        finally:
            if not self.is_unanswered:
                self._nothing_under_way.set()

    async def until_known(self, task: asyncio.Task[None]) -> None:
        """Wait, after the last question is over, until the bind has ended or no Binding of it is under way."""
        if task.done():
            return
        known = asyncio.ensure_future(self._nothing_under_way.wait())
        try:
            await asyncio.wait({task, known}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            known.cancel()

    async def _until_asked(self) -> None:
        if self.is_asked():
            return
        try:
            async with asyncio.timeout(ASKED_AGAIN_S):
                while not self.is_asked():
                    if not self._is_expected or self.is_unanswered:
                        raise BindAbandoned("kube-scheduler no longer waits for the pod's Binding")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise BindAbandoned("kube-scheduler has not asked again for the pod's Binding") from None

    def is_asked(self) -> bool:
        """Return whether kube-scheduler waits for the Binding at this moment."""
        question = self._question
        return question is not None and not question.is_over and question.is_heard()


@dataclass(slots=True)
class Bind:
    """A bind in progress."""

    node_name: str
    permission: OpenBindRequest
    task: asyncio.Task[None]
