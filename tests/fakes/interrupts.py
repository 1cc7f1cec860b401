"""Processes of a test that are to be interrupted."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Let processes that are started meanwhile heed SIGINT.

    What a shell starts in the background ignores it, and so does whatever that starts: these tests, say.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
