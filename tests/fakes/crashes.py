"""A program that ends at any of its lines, as by SIGKILL."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any


class Crash(BaseException):
    """Nobody handles this one."""


def crashed_at_line(work: Callable[[], object], files: Collection[str], line: int) -> bool:
    """Do work, and end it before it runs its n-th line of some files, from 0; return whether it had so many."""
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

    def run_to_crash() -> bool:
        sys.settrace(trace)
        try:
            work()
        except Crash:
            return True
        finally:
            sys.settrace(None)
        return False

    gc.freeze()  # what is older needn't be looked at below
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # files that were open when it ended
        # A thread of its own: where a trace function ends an `except`, CPython goes on handling that exception for
        # ever, which would be the context of all later ones, and keep their files open until some other test.
        with ThreadPoolExecutor(1) as thread:
            crashed = thread.submit(run_to_crash).result()
        gc.collect()  # an exception and its frames refer to each other
    return crashed
