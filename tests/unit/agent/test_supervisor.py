"""A serving process that hangs is ended and started again; one that lives is left alone. With real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import gpuledger
from gpuledger.agent.supervisor import waited_for_cpu_s

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

SCRIPT = Path(__file__).parent / "supervised.py"
SILENCE_S = 0.5
PATIENCE_S = 60.0
"""What only a failure waits for, however busy the machine is."""

SOURCES = str(Path(gpuledger.__file__).parent.parent)


class Supervised:
    """A supervisor in a process of its own."""

    def __init__(self, directory: Path, kind: str, pause_s: float, silence_s: float) -> None:
        self.directory = directory
        arguments = [sys.executable, str(SCRIPT), kind, str(directory), str(pause_s), str(silence_s)]
        self.process = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": SOURCES}, stderr=subprocess.PIPE)

    def children(self) -> list[int]:
        """Return the serving processes so far, oldest first."""
        found = [path for path in self.directory.iterdir() if path.name.isdigit()]
        return [int(path.name) for path in sorted(found, key=lambda path: float(path.read_text()))]

    def start_times_s(self) -> list[float]:
        """Return when each of them began, by `time.monotonic`."""
        return [float((self.directory / str(pid)).read_text()) for pid in self.children()]

    def beats(self) -> int:
        """Return how many signs of life the serving processes have given in their loops, all together."""
        file = self.directory / "beats"
        return file.stat().st_size if file.exists() else 0

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def child(self, number: int = 0) -> int:
        """Wait for a serving process; return its process id."""
        self.wait_for(lambda: len(self.children()) > number)
        return self.children()[number]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(kind: str = "lives", pause_s: float = 0.05, silence_s: float = SILENCE_S) -> Supervised:
        started.append(Supervised(tmp_path, kind, pause_s, silence_s))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        if each.process.stderr:
            each.process.stderr.close()


def test_a_child_that_gives_signs_of_life_lives(begin: Callable[..., Supervised]) -> None:
    found = begin(silence_s=2.0)  # forty times as long as it takes between two of them: the machine may be busy
    pid = found.child()
    found.wait_for(lambda: found.beats() > 60)
    assert lives(pid)
    assert found.children() == [pid]


def test_a_child_that_hangs_is_killed_for_its_silence_and_started_again(begin: Callable[..., Supervised]) -> None:
    found = begin()
    pid = found.child()
    found.wait_for(found.beats)  # until the first, it has more time
    os.kill(pid, signal.SIGSTOP)
    found.wait_for(lambda: not lives(pid))
    assert lives(found.child(1))


def test_a_parent_that_stood_still_does_not_blame_its_child(begin: Callable[..., Supervised]) -> None:
    found = begin("beats for a parent that stands still")
    pid = found.child()
    found.wait_for(lambda: found.beats() > 20)
    assert lives(pid)
    assert found.children() == [pid]


def test_a_parent_that_stands_still_does_not_stop_its_child(begin: Callable[..., Supervised]) -> None:
    found = begin("fills its pipe")
    pid = found.child()
    found.wait_for(lambda: found.beats() > 20)
    assert lives(pid)


def test_a_child_that_was_killed_is_started_again(begin: Callable[..., Supervised]) -> None:
    found = begin()
    os.kill(found.child(), signal.SIGKILL)
    assert lives(found.child(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both(begin: Callable[..., Supervised], number: signal.Signals) -> None:
    found = begin(silence_s=PATIENCE_S)
    pid = found.child()
    found.process.send_signal(number)
    assert found.process.wait(PATIENCE_S) == 0
    assert not lives(pid)
    assert found.children() == [pid]


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.04, 0.06, 0.08])
def test_a_signal_while_a_child_begins_is_not_lost(begin: Callable[..., Supervised], delay_s: float) -> None:
    found = begin("fails", pause_s=0.01)
    found.child(1)
    time.sleep(delay_s)
    assert found.stop() == 0


def test_a_child_that_closes_down_slowly_is_left_the_time(begin: Callable[..., Supervised], tmp_path: Path) -> None:
    """It gives no signs of life while it does."""
    found = begin("slow")
    found.child()
    assert found.stop() == 0
    assert (tmp_path / "closed").exists()


def test_a_child_that_does_not_stop_is_killed(begin: Callable[..., Supervised]) -> None:
    found = begin("ignores")
    pid = found.child()
    assert found.stop() == 0
    assert not lives(pid)


def test_a_child_that_hangs_at_its_very_end_is_killed(begin: Callable[..., Supervised]) -> None:
    found = begin("hangs at its end")
    pid = found.child()
    os.kill(pid, signal.SIGTERM)
    assert lives(found.child(1))
    assert not lives(pid)


def test_a_parent_that_is_killed_takes_its_child_along(begin: Callable[..., Supervised]) -> None:
    found = begin()
    pid = found.child()
    found.process.kill()
    found.wait_for(lambda: not lives(pid))


@pytest.mark.parametrize("kind", ["fails", "raises"])
def test_a_child_that_fails_at_once_is_not_started_over_and_over(begin: Callable[..., Supervised], kind: str) -> None:
    found = begin(kind, pause_s=0.1)
    found.child(3)
    assert found.stop() == 0
    begins_s = found.start_times_s()
    pauses_s = [later_s - earlier_s for earlier_s, later_s in pairwise(begins_s)]
    assert all(took_s >= least_s for took_s, least_s in zip(pauses_s, (0.1, 0.2, 0.4), strict=False)), pauses_s


def test_a_child_that_is_silent_because_it_has_no_cpu_lives(begin: Callable[..., Supervised], tmp_path: Path) -> None:
    found = begin("starves")
    pid = found.child()
    found.wait_for((tmp_path / "back").exists)
    assert found.child() == pid
    assert lives(pid)


def test_a_child_that_is_silent_and_has_a_cpu_is_killed(begin: Callable[..., Supervised], tmp_path: Path) -> None:
    found = begin("pauses")
    pid = found.child()
    found.wait_for(lambda: not lives(pid))
    assert not (tmp_path / "back").exists()


def test_the_time_for_which_a_process_has_waited_for_a_cpu_only_grows() -> None:
    before_s = waited_for_cpu_s(os.getpid())
    assert 0 <= before_s <= waited_for_cpu_s(os.getpid())
    assert waited_for_cpu_s(2**22 + 1) == 0.0


def test_who_was_left_to_process_1_is_reaped(begin: Callable[..., Supervised], tmp_path: Path) -> None:
    found = begin("orphans")
    found.child()
    orphan = int((tmp_path / "orphan").read_text())
    found.wait_for(lambda: not Path(f"/proc/{orphan}").exists())
    assert lives(found.child())
