"""Started by test_supervisor: a supervisor whose child does what the first argument says, and writes what it does."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpuledger.agent import supervisor
from gpuledger.agent.supervisor import Supervisor

BEAT_S = 0.05


class LongPauses:
    """The time of a parent that stands still, for an hour, each time before it looks at its child."""

    sleep = staticmethod(time.sleep)

    def __init__(self, beats: Path) -> None:
        self._beats = beats
        self._stood_s = 0.0

    def monotonic(self) -> float:
        """Return, once there is a child, only when it has written something that the parent has not read."""
        if self._beats.exists():
            seen = self._beats.stat().st_size
            while self._beats.stat().st_size < seen + 2:  # the first may have been read before it was counted
                time.sleep(BEAT_S)
            self._stood_s += 3_600.0
        return time.monotonic() + self._stood_s


def serve(pipe: int) -> int:
    """Write our process id into a file of its own, then do as we are told."""
    kind, directory = sys.argv[1], Path(sys.argv[2])
    unfinished = directory / f".{os.getpid()}"
    unfinished.write_text(repr(time.monotonic()))
    if kind == "fails":
        unfinished.rename(directory / str(os.getpid()))
        return 3
    if kind == "fills its pipe":
        with contextlib.suppress(BlockingIOError):
            os.kill(os.getppid(), signal.SIGSTOP)
            while True:
                os.write(pipe, b"." * 4096)
    if kind == "raises":
        unfinished.rename(directory / str(os.getpid()))
        raise RuntimeError("as told")
    stop: list[int] = []
    if kind != "dies":
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    if kind == "orphans":  # a grandchild that ends after its parent is left to the supervisor
        subprocess.Popen(["sh", "-c", 'sleep 0.3 & echo $! > "$0"', str(directory / "orphan")]).wait()
    unfinished.rename(directory / str(os.getpid()))
    beats = directory / "beats"
    if kind in ("starves", "pauses"):
        os.write(pipe, b".")
        time.sleep(4 * float(sys.argv[4]))
        (directory / "back").write_text("")
    while not stop or kind == "ignores":
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, b".")
        with beats.open("ab") as file:
            file.write(b".")
        time.sleep(BEAT_S)
    if kind == "slow":  # closes down without a sign of life
        time.sleep(1.5)
        (directory / "closed").write_text("")
    if kind == "hangs at its end":
        os.close(pipe)
        time.sleep(600)
    return 0


if __name__ == "__main__":
    logging.basicConfig()
    supervisor.START_S = 3_600.0  # so that who is killed has fallen silent
    supervisor.STOP_GRACE_S = 2.0 if sys.argv[1] == "ignores" else 60.0
    supervisor.FIRST_PAUSE_S = float(sys.argv[3])
    if sys.argv[1] == "beats for a parent that stands still":
        supervisor.time = LongPauses(Path(sys.argv[2]) / "beats")  # type: ignore[assignment, attr-defined]
    if sys.argv[1] == "starves":
        supervisor.waited_for_cpu_s = lambda pid: time.monotonic()
    if sys.argv[1] == "orphans":  # as process 1 of a container does by nature
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    sys.exit(Supervisor(serve, silence_s=float(sys.argv[4])).run())
