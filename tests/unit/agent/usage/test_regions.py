"""A pass over the regions of a node: who pauses, what is skipped, and how little is read."""

import ctypes
import errno
import fcntl
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.shared_regions import NEWEST, set_field, write_region
from gpuledger.agent.usage.regions import MOST_BYTES, MOST_PROCESSES
from gpuledger.formats.runtime.shared_region import (
    IDLE,
    LAYOUTS,
    LIMITER_OFF,
    LIMITER_ON,
    MAX_PROCESSES,
    PAUSED,
    RegionLayout,
)
from unit.agent.usage.conftest import Node


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=lambda layout: str(layout.size_bytes))
def test_a_low_priority_pauses_while_a_high_one_computes_and_goes_on_afterwards(
    node: Node, layout: RegionLayout
) -> None:
    node.active("high", 0, layout=layout)
    node.active("low", 1, layout=layout)
    assert node.look() == {"low"}
    assert node.controls("low", layout) == (PAUSED, LIMITER_ON)
    assert node.controls("high", layout) == (IDLE, LIMITER_OFF)
    node.now_s += 7
    assert node.look() == set()
    assert node.controls("low", layout)[0] == IDLE


def test_a_region_without_times_counts_kernels(node: Node) -> None:
    oldest = LAYOUTS[0]
    high = node.container("high", 0, layout=oldest, recent_kernel=2)
    node.container("low", 1, layout=oldest)
    assert node.look() == {"low"}
    set_field(high, oldest.recent_kernel_at, 2)
    assert node.look() == {"low"}
    assert node.look() == set()
    assert node.controls("low", oldest)[0] == IDLE


def test_priority_and_cards_are_those_of_the_grant_whatever_the_region_says(node: Node) -> None:
    node.active("high", 0)
    low = node.active("low", 1, claimed_priority=0)
    elsewhere = node.root / "elsewhere"
    node.active("elsewhere", 0, ("GPU-9",))
    write_region(elsewhere / "usage.cache", ("GPU-1",), claimed_priority=0, last_kernel_s=node.now_s)
    assert node.look() == {"low"}
    low.unlink()
    (node.root / "high" / "usage.cache").unlink()
    node.active("other", 1)
    assert node.look() == set()


def test_a_pause_that_the_library_has_overwritten_is_written_again(node: Node) -> None:
    """A thread that had just seen no pause says that it launches a kernel."""
    high, low = node.active("high", 0), node.active("low", 1)
    node.look()
    set_field(low, NEWEST.recent_kernel_at, 2)
    write_region(high, last_kernel_s=node.now_s)
    assert node.look() == {"low"}
    assert node.controls("low")[0] == PAUSED


def test_nothing_is_written_while_nothing_changes(node: Node) -> None:
    node.active("high", 0)
    node.active("low", 1)
    node.look()
    written = node.regions.effort.written
    for _ in range(3):
        node.look()
    assert node.regions.effort.written == written


def test_a_container_whose_processes_were_killed_makes_nobody_wait(node: Node) -> None:
    node.active("high", 0, processes=[(4711, 100)])
    node.active("low", 1)
    assert node.look() == {"low"}
    node.gone.add(4711)
    for _ in range(3):
        assert node.look() == set()
        assert node.regions.look(node.places())["high"].region.processes == ()


def test_a_process_that_the_node_does_not_know_by_its_number_counts(node: Node) -> None:
    node.gone.add(4711)
    node.active("high", 0, processes=[(4711, 100)])
    node.active("low", 1)
    assert node.look() == {"low"}


def test_what_is_remembered_of_processes_does_not_grow_with_what_a_container_makes_up(node: Node) -> None:
    for number in range(5):
        node.container("liar", processes=[(1 + number * 100 + pid, 1) for pid in range(100)])
        node.look()
    assert len(node.regions._seen) == 100


def test_one_that_is_gone_leaves_nobody_paused(node: Node) -> None:
    node.active("high", 0)
    node.active("low", 1)
    node.look()
    del node.grants["high"]
    assert node.look() == set()


def test_a_release_resumes_all_enforces_all_limits_and_is_the_last_word(node: Node) -> None:
    node.active("high", 0)
    node.active("low", 1)
    node.look()
    assert node.regions.release(node.places(), 1.0) == 1
    assert node.controls("low") == (IDLE, LIMITER_ON)
    assert node.controls("high") == (IDLE, LIMITER_ON)
    assert node.look() == set()
    assert node.controls("low") == (IDLE, LIMITER_ON)


def test_a_pass_that_hangs_does_not_keep_a_release(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.active("high", 0)
    node.active("low", 1)
    reached, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> bytes:
        reached.set()
        goes_on.wait(30)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pread", hang)
        thread = threading.Thread(target=node.look)
        thread.start()
        assert reached.wait(30)
        assert node.regions.release(node.places(), 0.01) == 0
        goes_on.set()
        thread.join()
    assert node.controls("low") == (IDLE, LIMITER_ON)


def test_no_file_and_one_that_is_not_set_up_are_no_fault(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.container("a").unlink()
    node.container("b").write_bytes(bytes(NEWEST.size_bytes + 1))
    node.container("c").write_bytes(b"")
    node.look()
    assert node.regions.skipped == Counter()
    assert not caplog.records


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def short(path: Path) -> None:
    os.truncate(path, NEWEST.size_bytes - 1)


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def other_version(path: Path) -> None:
    set_field(path, 4, 9)


def no_magic(path: Path) -> None:
    set_field(path, 0, 1)


def many_cards(path: Path) -> None:
    set_field(path, NEWEST.head.size - 2 * 16 * 8 - 1536 - 8, 17)


def many_processes(path: Path) -> None:
    set_field(path, NEWEST.controls_at, MAX_PROCESSES + 1)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (link, "not-a-file"),
        (second_name, "not-a-file"),
        (pipe, "not-a-file"),
        (folder, "not-a-file"),
        (short, "size"),
        (huge, "size"),
        (other_version, "version"),
        (no_magic, "version"),
        (many_cards, "content"),
        (many_processes, "content"),
    ],
)
def test_what_is_of_no_use_is_skipped_counted_and_told_once(
    node: Node, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], reason: str
) -> None:
    node.active("high", 0)
    low = node.active("low", 1)
    spoil(low)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert node.look() == set()
    assert node.regions.skipped == {reason: 3}
    (record,) = caplog.records
    assert record.getMessage().startswith("the shared region of pod default/low, container main is skipped: ")


def test_a_device_is_not_even_opened(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open one can do something: a watchdog would restart the node."""
    path = node.active("low", 1)
    path.unlink()
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    opened: list[int] = []
    real = os.open

    def watched(name: str, flags: int, **more: int) -> int:
        opened.append(flags)
        return real(name, flags, **more)

    monkeypatch.setattr(os, "open", watched)
    node.look()
    assert node.regions.skipped == {"not-a-file": 1}
    assert all(flags & os.O_PATH for flags in opened)


def test_a_file_that_has_a_lease_is_not_waited_for(node: Node) -> None:
    """The kernel would wait 45 seconds for a container to let go of it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        _look_under_a_lease(node)
    finally:
        signal.signal(signal.SIGIO, before)
    assert node.regions.skipped == {"unreadable": 1}


def _look_under_a_lease(node: Node) -> None:
    path = node.active("low", 1)
    with path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        node.look()


def test_a_file_that_is_exchanged_between_a_look_and_its_consequence_is_left_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.active("high", 0)
    low = node.active("low", 1)
    monkeypatch.setattr("gpuledger.agent.usage.regions.decide", exchanging(low))
    node.look()
    assert node.controls("low") == (IDLE, LIMITER_ON)


def exchanging(path: Path) -> Callable[..., object]:
    from gpuledger.agent.usage.regions import decide

    def decide_and_exchange(*arguments: object) -> object:
        found = decide(*arguments)  # type: ignore[arg-type]
        new = path.with_name("new")
        write_region(new)
        new.replace(path)
        return found

    return decide_and_exchange


def test_claims_of_many_processes_are_read_in_part_and_take_nothing_from_others(node: Node) -> None:
    for number in range(20):
        node.container(f"liar-{number:02d}", process_count=MAX_PROCESSES, processes=[(1, 1)] * 200)
    for number in range(20):
        node.container(f"honest-{number:02d}", processes=[(pid, 1) for pid in range(1, 21)])
    node.look()
    before = node.regions.effort.bytes_read
    looks = node.regions.look(node.places())
    honest = [len(look.region.processes) for name, look in looks.items() if name.startswith("honest")]
    assert honest == [20] * 20
    read = node.regions.effort.bytes_read - before
    assert read < MOST_PROCESSES * NEWEST.process.size + len(node.grants) * 4096


TAKEN_MIB = 24


def sparse(file: Path) -> None:
    os.truncate(file, 200 << 30)


def written(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"x" * (TAKEN_MIB << 20))


def reserved_behind_the_end(file: Path) -> None:
    keep_size, libc = 1, ctypes.CDLL(None, use_errno=True)
    with file.open("rb+") as opened:
        if libc.fallocate(opened.fileno(), keep_size, ctypes.c_long(0), ctypes.c_long(TAKEN_MIB << 20)):
            pytest.skip("this file system reserves nothing")


@pytest.mark.parametrize("takes", [sparse, written, reserved_behind_the_end], ids=lambda each: str(each.__name__))
def test_what_a_container_takes_of_the_nodes_disk_beyond_a_region_is_taken_back(
    node: Node, takes: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file, other = node.active("greedy", 0), node.active("low", 1)
    before = {each: (each.read_bytes(), each.stat().st_mtime_ns) for each in (file, other)}
    for _ in range(2):
        takes(file)
        node.regions.cut_off_excess(node.places())
        assert file.stat().st_size <= MOST_BYTES
        assert file.stat().st_blocks * 512 <= MOST_BYTES + 4096
        assert file.read_bytes()[: len(before[file][0])] == before[file][0], "what the library counts stays"
    assert (other.read_bytes(), other.stat().st_mtime_ns) == before[other]
    assert len([record for record in caplog.records if "was cut off" in record.message]) == 1


def test_what_is_no_file_or_gone_keeps_no_other_from_being_cut_off(node: Node) -> None:
    for name in ("a-pipe", "gone"):
        node.active(name).unlink()
    os.mkfifo(node.root / "a-pipe" / "usage.cache")
    greedy = node.active("greedy")
    written(greedy)
    node.regions.cut_off_excess(node.places())
    assert greedy.stat().st_size == MOST_BYTES > 2 * max(layout.size_bytes for layout in LAYOUTS)
