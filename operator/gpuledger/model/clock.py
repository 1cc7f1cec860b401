"""Where the workflows get the time: the code that connects them passes the clocks."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The clocks of a process."""

    def now_s(self) -> float:
        """Return the event loop's time, in seconds since some moment. It can't be set, so that it measures waits."""

    def wall(self) -> datetime:
        """Return the time of day, in UTC. Anybody can set it, and that of other machines is another one."""

    def work_s(self) -> float:
        """Return seconds since some moment, to measure work by: the event loop's time may stand still during a turn."""
