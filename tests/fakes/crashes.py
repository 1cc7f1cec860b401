"""A program that ends at any of its lines, as by SIGKILL."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


class Crash(BaseException):
    """Nobody handles this one."""


def crashed_at_line(work: Callable[[], object], files: Collection[str], line: int) -> bool:
    """Do work, and end it before it runs its n-th line of some files, from 0; tell whether it had so many."""
    run = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal run
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            run += 1
            if run > line:
                raise Crash
        return trace

    before, crashed = sys.gettrace(), False
    gc.freeze()  # what is older needn't be looked at below
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # files that were open when it ended
        sys.settrace(trace)
        try:
            work()
        except Crash:
            crashed = True
        finally:
            sys.settrace(before)
            gc.collect()  # an exception and its frames refer to each other: they, too, end here and not in another test
            gc.unfreeze()
    return crashed
