"""An event loop whose clock jumps to the next timer instead of waiting: hours take no time, and no test races."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar, Self

DEADLOCK_S = 1.0
"""Real time after which a loop without any timer counts as stuck."""

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


class LoopDatetime(datetime):
    """Stands in for `datetime` where a wall clock is read: it goes with the loop's clock, until it is stepped."""

    stepped: ClassVar[timedelta] = timedelta()
    """How far somebody has set the wall clock forwards."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """Return the virtual time as a date."""
        loop = asyncio.get_running_loop()
        moment = EPOCH + timedelta(seconds=loop.time() + getattr(loop, "skew_s", 0.0)) + cls.stepped
        return cls.fromtimestamp(moment.timestamp(), tz)


LOOP_FACTORIES: Mapping[str, type[VirtualTimeLoop]] = {"virtual time": VirtualTimeLoop}
"""What a conftest returns from pytest_asyncio_loop_factories."""


async def settle() -> None:
    """Let all others run until each of them waits for an event or a timer."""
    await asyncio.sleep(0.000_1)


def now_s() -> float:
    """Return the loop's time, in seconds."""
    return asyncio.get_running_loop().time()
