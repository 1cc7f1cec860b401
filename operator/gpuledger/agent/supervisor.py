"""A small parent process that ends the agent when it hangs, and starts it again.

The kubelet asks a device plugin with no deadline, in the loop that handles all its pods: a plugin that hangs with
its socket open would stop the node, the probes of its own container included. When the plugin's process ends, its
socket closes, and the kubelet goes on. So the serving child writes a byte to a pipe now and then, and the parent,
which does nothing else, kills a child that has fallen silent.

The standard library's watchdog, `faulthandler.dump_traceback_later(..., exit=True)`, is a thread of the process that it
watches, and does less: it stops with a process that is stopped or frozen, it ends one that only waits for a CPU,
and the next start is the kubelet's, which makes a container wait that has just ended before.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpuledger.model.clock import Backoff

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.5
SILENCE_S = 2.0
"""A child that has written nothing for so long hangs, unless it has waited for a CPU for most of that."""

LONGEST_STARVED_S = 20.0
"""How long a child may be silent that waits for a CPU. When it is killed, the kubelet rejects the pods that come."""

START_S = 60.0
"""How long it may take to the first byte."""

STEADY_PAUSE_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0
"""A child that lived for so long is started again sooner."""

STOP_GRACE_S = 8.0
"""How long a child may take to stop when it is asked to: less than the pod's terminationGracePeriodSeconds."""

REAP_INTERVAL_S = 0.02
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs `serve(pipe)` in a child, again and again, until a signal."""

    def __init__(self, serve: Callable[[int], int], silence_s: float = SILENCE_S) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._stop_asked = False
        self._child = 0
        self._status: int | None = None  # of the child, when it has ended
        # A signal handler may do little: it writes a byte that the waiting loop sees.
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Return the exit status for this process. Must be called before there are threads."""
        for number in SIGNALS:
            signal.signal(number, self._stop)
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not self._stop_asked:
            begin_s = time.monotonic()
            status = self._one_child()
            if self._stop_asked:
                break
            if time.monotonic() > begin_s + STEADY_S:
                backoff.reset()
                pause_s = STEADY_PAUSE_S
            else:
                pause_s = backoff.next_s()
            logger.error("the agent's serving process exited with status %d; restarting it in %g s", status, pause_s)
            self._pause(pause_s)
        return 0

    def _one_child(self) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write, False)  # a parent that stands still must not stop its child
        self._fork(write, read)
        os.close(write)
        try:
            self._listen(read)
        finally:
            os.close(read)
        return self._end_child()

    def _fork(self, write: int, read: int) -> None:
        parent = os.getpid()
        self._status = None
        # A signal between the fork and the next line would reach a parent that knows of no child.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._child = os.fork()
        if self._child == 0:
            os.close(read)
            status = 1
            try:
                _become_child(parent)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                status = self._serve(write)
            except BaseException:
                logger.exception("the agent's serving process fails")
            finally:
                logging.shutdown()
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _listen(self, pipe: int) -> None:
        """Return when the child closes its pipe, falls silent, or takes too long to stop."""
        deadline_s = time.monotonic() + START_S
        stopping, heard_s, starved_s = False, time.monotonic(), waited_for_cpu_s(self._child)
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready, _, _ = select.select([pipe, self._woken], [], [], left_s)
            # After a pause of its own, the supervisor first reads what was written meanwhile.
            if not left_s and (stopping or pipe not in ready):
                since_s, starved_s = starved_s, waited_for_cpu_s(self._child)
                if stopping or not self._is_starved(starved_s - since_s, heard_s):
                    break
                deadline_s = time.monotonic() + self._silence_s
            self._reap()
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._stop_asked and not stopping:
                stopping, deadline_s = True, time.monotonic() + STOP_GRACE_S
            if pipe in ready:
                if not os.read(pipe, 4096):
                    return
                if not stopping:
                    heard_s, starved_s = time.monotonic(), waited_for_cpu_s(self._child)
                    deadline_s = heard_s + self._silence_s
        logger.error(
            "the serving process %s; killing it", "does not stop" if stopping else "has stopped sending heartbeats"
        )
        self._signal(signal.SIGKILL)

    def _is_starved(self, waited_s: float, heard_s: float) -> bool:
        """Return whether a silent child only lacks a CPU, and is not silent for too long for that."""
        return waited_s > self._silence_s / 2 and time.monotonic() < heard_s + LONGEST_STARVED_S

    def _end_child(self) -> int:
        """Return the child's exit status; one that has closed its pipe has a moment left to end."""
        deadline_s = time.monotonic() + self._silence_s
        while self._status is None and time.monotonic() < deadline_s:
            self._reap()
            if self._status is None:
                time.sleep(REAP_INTERVAL_S)
        self._signal(signal.SIGKILL)
        pause_s = REAP_INTERVAL_S
        while self._status is None:
            self._reap()
            if self._status is None:  # at the latest when the driver lets go of it
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, self._silence_s)
        return self._status

    def _reap(self) -> None:
        """Reap what has ended: the child, and other processes left to process 1 of a container."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    self._child, self._status = 0, os.waitstatus_to_exitcode(status)

    def _pause(self, pause_s: float) -> None:
        if not self._stop_asked:
            select.select([self._woken], [], [], pause_s)
        self._reap()

    def _stop(self, *_: object) -> None:
        self._stop_asked = True
        self._signal(signal.SIGTERM)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

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


def waited_for_cpu_s(pid: int) -> float:
    """Return for how long the main thread of a process was ready to run and had no CPU, in all; 0 if unknown.

    Source: the second number of /proc/PID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst of Linux).
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
