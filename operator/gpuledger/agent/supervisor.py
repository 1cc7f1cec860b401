"""A small parent process that ends the agent when it hangs, and starts it again.

The kubelet asks a device plugin with no deadline, in the loop that looks after all its pods: a plugin that hangs with
its socket open would stop the node, the probes of its own container included. When the plugin's process ends, its
socket closes, and the kubelet goes on. So the serving child writes a byte to a pipe now and then, and the parent,
which does nothing else, kills a child that has fallen silent.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.5
SILENCE_S = 2.0
"""A child that has written nothing for so long hangs."""

START_S = 60.0
"""How long it may take to the first byte."""

PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that lived for so long is started again at once."""

STOP_GRACE_S = 10.0
PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs `serve(pipe)` in a child, again and again, until a signal."""

    def __init__(self, serve: Callable[[int], int], silence_s: float = SILENCE_S) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._stop_asked = threading.Event()
        self._child = 0

    def run(self) -> int:
        """Return the exit status for this process. Must be called before there are threads."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        pause_s = PAUSE_S
        while not self._stop_asked.is_set():
            begin_s = time.monotonic()
            status = self._one_child()
            if self._stop_asked.is_set():
                return 0
            pause_s = PAUSE_S if time.monotonic() > begin_s + STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            logger.error("the agent's serving process has ended with status %d; the next one in %g s", status, pause_s)
            self._stop_asked.wait(pause_s)
        return 0

    def _one_child(self) -> int:
        read, write = os.pipe()
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            os.close(read)
            _become_child(parent)
            status = 1
            try:
                status = self._serve(write)
            except BaseException:
                logger.exception("the agent's serving process fails")
            finally:
                logging.shutdown()
                os._exit(status)
        os.close(write)
        try:
            self._listen(read)
        finally:
            os.close(read)
        return self._reap()

    def _listen(self, pipe: int) -> None:
        """Return when the child has ended, or was killed for its silence."""
        patience_s = START_S
        while True:
            ready, _, _ = select.select([pipe], [], [], patience_s)
            if not ready:
                if not self._stop_asked.is_set():
                    logger.error("the serving process has been silent for %g s: it is killed", patience_s)
                self._signal(signal.SIGKILL)
                return
            if not os.read(pipe, 4096):
                return
            patience_s = STOP_GRACE_S if self._stop_asked.is_set() else self._silence_s

    def _reap(self) -> int:
        """Wait for the child, and for whatever else was left to process 1 of a container."""
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return -1
            if pid == self._child:
                self._child = 0
                return os.waitstatus_to_exitcode(status)

    def _stop(self, *_: object) -> None:
        self._stop_asked.set()
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)


def _become_child(parent: int) -> None:
    """Die with the parent, whatever ends it, and take signals as a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the parent, which asks us to stop
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
