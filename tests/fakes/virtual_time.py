"""An event loop whose clock jumps to the next timer instead of waiting: hours take no time, and no test races."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

DEADLOCK_S = 1.0
"""Real time after which a loop without any timer counts as stuck."""

STEP_S = 0.001
"""How long work takes from one look at the clock to the next, by a `WorkingClock`."""

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


def called_at_once(
    loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any
) -> asyncio.Future[Any]:
    """Return the outcome of a call, as a loop without threads answers `run_in_executor`."""
    outcome = loop.create_future()
    try:
        outcome.set_result(function(*arguments))
    except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
        outcome.set_exception(error)
    return outcome


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only when every task waits."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self.now_s

    def run_in_executor(  # type: ignore[override]  # nobody but asyncio calls it
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function at once, in no time: the clock would not wait for a thread."""
        return called_at_once(self, func, *args)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(DEADLOCK_S if timeout is None else 0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: every task waits for another, and no timer is set")
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


class LoopClock:
    """The `Clock` of a machine in virtual time: all of it goes with the running loop, and work takes no time."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        """By how much its wall clock is ahead."""

    def now_s(self) -> float:
        """Return the loop's time, in seconds."""
        return asyncio.get_running_loop().time()

    work_s = now_s

    def wall(self) -> datetime:
        """Return the virtual time as a date, as far as it is ahead."""
        return EPOCH + timedelta(seconds=self.now_s() + self.ahead_s)


class WorkingClock(LoopClock):
    """The same where whatever is measured takes a while."""

    worked_s = 0.0

    def work_s(self) -> float:
        """Return a later time each time."""
        self.worked_s += STEP_S
        return self.worked_s


class StoppedClock:
    """A `Clock` for what runs in no loop: it is always the same time."""

    def now_s(self) -> float:
        """Return no time."""
        return 0.0

    work_s = now_s

    def wall(self) -> datetime:
        """Return the same date each time."""
        return EPOCH


LOOP_FACTORIES: Mapping[str, type[VirtualTimeLoop]] = {"virtual time": VirtualTimeLoop}
"""What a conftest returns from pytest_asyncio_loop_factories."""


async def settle() -> None:
    """Let all others run until each of them waits for an event or a timer."""
    await asyncio.sleep(0.000_1)


def now_s() -> float:
    """Return the loop's time, in seconds."""
    return asyncio.get_running_loop().time()


def wall() -> datetime:
    """Return the time of day by a clock that is right."""
    return LoopClock().wall()
