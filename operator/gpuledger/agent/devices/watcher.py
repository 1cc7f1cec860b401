"""The one thread that owns the source of cards, and asks for the verdict on their health.

A call into a driver can hang for good, and nothing can stop it. So no other thread ever waits for one: the rest of the
agent gets snapshots when they change, asks for what is used with a deadline, and sees by `last_alive_s` when the thread
is stuck. The thread is a daemon: it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Protocol

from gpuledger.agent.devices.health import CardHealth, HealthPolicy, Remembered
from gpuledger.agent.devices.source import (
    DeviceSource,
    DeviceUses,
    DriverGone,
    DriverReplaced,
    LimitRefused,
    MemoryLimit,
    Snapshot,
)

logger = logging.getLogger(__name__)

ROUND_S = 1.0
"""The thread goes round at least this often, unless the driver keeps it."""

PROMPT_ROUND_S = 0.25
"""How often a thread that does not wait for faults asks for them, as its callers must not wait for it."""

STOP_TIMEOUT_S = 2 * ROUND_S

OnChange = Callable[[Snapshot | None], None]
_Answer = asyncio.Future[DeviceUses]
_Done = asyncio.Future[None]


class FaultMemory(Protocol):
    """The faults that another agent on the node has to know, from one process to the next."""

    def load(self) -> tuple[Remembered, ...]:
        """Return what was kept last; nothing after a restart of the machine, and where nothing can be read."""

    def keep(self, remembered: tuple[Remembered, ...]) -> None:
        """Keep this in place of it. Raises nothing."""


class DeviceWatcher:
    """Looks at the cards every `poll_interval_s`, and at once after a fault.

    `on_change` is called in the event loop with the first snapshot and then with each that differs, faults filled in;
    with None when the driver is gone. It is tried again every `retry_interval_s`. With `prompt`, calls reach the driver
    at once, and faults are found a little later.
    """

    def __init__(
        self,
        source: DeviceSource,
        health: HealthPolicy,
        on_change: OnChange,
        poll_interval_s: float = 30.0,
        memory: FaultMemory | None = None,
        *,
        retry_interval_s: float = 5.0,
        uses_timeout_s: float = 10.0,
        prompt: bool = False,
    ) -> None:
        self._source, self._memory = source, memory
        self._remembered = memory.load() if memory is not None else ()
        self._health = CardHealth(health, self._remembered)
        self._repaired: datetime | None = None  # when a person has said last that cards are
        self._on_change = on_change
        self._poll_interval_s = poll_interval_s
        self._retry_interval_s = retry_interval_s
        self._uses_timeout_s = uses_timeout_s
        self._prompt, self._called = prompt, threading.Event()
        self._alive_s = time.monotonic()
        self._asked: deque[_Answer] = deque()  # who waits for what is used
        self._to_limit: deque[tuple[tuple[MemoryLimit, ...], _Done]] = deque()  # limits to set, and who waits for that
        self._stop = threading.Event()
        self._open = False
        self._reported: Snapshot | None = None
        self._reported_gone = False
        self._refused: asyncio.Future[None]  # fails when `on_change` does: asyncio would only log that

    async def run(self) -> None:
        """Watch until cancelled.

        Raises BadInput for a source of no use, DriverReplaced: a new process is needed; and whatever `on_change` does.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._refused = loop.create_future()
        self._stop.clear()
        threading.Thread(target=self._work, args=(loop, ended), name="devices", daemon=True).start()
        try:
            await asyncio.wait([ended, self._refused], return_when=asyncio.FIRST_COMPLETED)
            for each in (ended, self._refused):
                if each.done():
                    each.result()
        finally:
            self._stop.set()
            # A thread that hangs in the driver is left behind.
            await asyncio.wait([ended], timeout=STOP_TIMEOUT_S)

    async def uses(self) -> DeviceUses:
        """Return the use of the cards; it takes up to a second. Raises DriverGone, also for a driver that hangs."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._called.set()
        try:
            async with asyncio.timeout(self._uses_timeout_s):
                return await answer
        except TimeoutError:
            raise DriverGone(f"the driver has not answered for {self._uses_timeout_s:g} s") from None

    async def limit_memory(self, limits: Iterable[MemoryLimit], timeout_s: float) -> None:
        """Have control groups keep to these limits, one after the other; the first that fails leaves out the rest.

        Raises LimitRefused, and DriverGone, also for a driver that hangs; what it does of it later is not known then.
        """
        done: _Done = asyncio.get_running_loop().create_future()
        self._to_limit.append((tuple(limits), done))
        self._called.set()
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            raise DriverGone(f"the driver has not answered for {timeout_s:g} s") from None

    def repaired(self, at: datetime) -> None:
        """Record that a person has repaired what was wrong until then."""
        self._repaired = at

    def last_alive_s(self) -> float:
        """Return when the thread last went round, by `time.monotonic()`."""
        return self._alive_s

    def _work(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        """Run in the thread."""
        failure: BaseException | None = None
        try:
            self._watch(loop)
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            failure = error
        self._source.close()
        self._open = False
        _in_loop(loop, _finish, ended, failure)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        last_look_s = next_look_s = 0.0
        while not self._stop.is_set():
            self._alive_s = now_s = time.monotonic()
            try:
                if now_s >= next_look_s:
                    self._look(loop)
                    last_look_s, next_look_s = now_s, self._next_look_s()
                self._limit(loop)
                self._answer(loop)
                if self._open:
                    if self._faults():
                        # At once; but a storm of faults must not cost a core.
                        next_look_s = min(next_look_s, last_look_s + ROUND_S)
                else:
                    self._stop.wait(min(ROUND_S, max(0.0, next_look_s - time.monotonic())))
            except DriverReplaced:
                raise
            except DriverGone as error:
                self._lose_driver(loop, error)
                next_look_s = time.monotonic() + self._retry_interval_s

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._open:
            self._source.open()
            self._open = True
        found, now = self._source.snapshot(), datetime.now(UTC)
        if self._repaired is not None:
            self._health.repaired(min(self._repaired, now))
        snapshot = self._health.judge(found, time.monotonic(), now)
        self._remember()
        if snapshot != self._reported:
            self._report(loop, snapshot)

    def _remember(self) -> None:
        remembered = self._health.remembered()
        if self._memory is not None and remembered != self._remembered:
            self._memory.keep(remembered)
        self._remembered = remembered

    def _faults(self) -> bool:
        """Wait for faults, or in a prompt thread for calls; return whether a fault came that counts."""
        counts, timeout_s = False, ROUND_S
        if self._prompt:  # a wait for faults can't be cut short
            self._called.wait(PROMPT_ROUND_S)
            self._called.clear()
            timeout_s = 0.0
        for fault in self._source.wait_for_faults(timeout_s):
            critical = self._health.take(fault, time.monotonic(), datetime.now(UTC))
            counts |= critical
            level = logging.ERROR if critical else logging.INFO
            remark = "" if critical else ", which does not affect the card"
            logger.log(level, "%s: %s%s", fault.uuid or "all cards", fault.text, remark)
        return counts

    def _next_look_s(self) -> float:
        next_poll_s = time.monotonic() + self._poll_interval_s
        return min(next_poll_s, self._health.next_return_s() or next_poll_s)

    def _answer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read what is used once for all who wait for it."""
        waiting: list[_Answer] = []
        while self._asked:
            waiting.append(self._asked.popleft())
        if not waiting:
            return
        try:
            if not self._open:
                raise DriverGone("the NVIDIA driver is not available")
            uses = self._source.uses()
        except DriverGone as error:
            for answer in waiting:
                _in_loop(loop, _fail, answer, error)
            if self._open:
                raise
        else:
            for answer in waiting:
                _in_loop(loop, _give, answer, uses)

    def _limit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the requested limits; requests that were cancelled meanwhile are dropped."""
        while self._to_limit:
            limits, done = self._to_limit.popleft()
            if done.done():
                continue
            try:
                if not self._open:
                    raise DriverGone("the NVIDIA driver is not available")
                for limit in limits:
                    self._source.limit_memory(limit)
            except (LimitRefused, DriverGone) as error:
                _in_loop(loop, _finish, done, error)
                if self._open and isinstance(error, DriverGone):
                    raise
            else:
                _in_loop(loop, _finish, done, None)

    def _lose_driver(self, loop: asyncio.AbstractEventLoop, error: DriverGone) -> None:
        self._source.close()
        self._open = False
        self._health.driver_gone()
        if not self._reported_gone:
            logger.error("no card takes pods: %s", error)
            self._report(loop, None)

    def _report(self, loop: asyncio.AbstractEventLoop, snapshot: Snapshot | None) -> None:
        if self._reported_gone:
            logger.info("the NVIDIA driver is available again")
        self._reported, self._reported_gone = snapshot, snapshot is None
        _in_loop(loop, self._hand_over, snapshot)

    def _hand_over(self, snapshot: Snapshot | None) -> None:
        try:
            self._on_change(snapshot)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            _finish(self._refused, error)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        logger.debug("the event loop ended before the thread")


def _give(answer: _Answer, uses: DeviceUses) -> None:
    if not answer.done():
        answer.set_result(uses)


def _fail(answer: _Answer, error: DriverGone) -> None:
    if not answer.done():
        answer.set_exception(error)


def _finish(ended: _Done, failure: BaseException | None) -> None:
    if ended.done():
        return
    if failure is None:
        ended.set_result(None)
    else:
        ended.set_exception(failure)
