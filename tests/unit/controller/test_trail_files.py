"""The history in files: what the next process finds, whatever has happened to them, and what a bad disk costs."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import a_pod, a_share, cards_of
from fakes.virtual_time import StoppedClock
from gpuledger.controller import trail_files
from gpuledger.controller.history import line_of
from gpuledger.controller.trail_files import FILE_NAME, HistoryFile, LineFile, records_in, trail_written
from gpuledger.reports.record_reader import LONGEST_LINE_BYTES
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.trail import Trail

CARDS = cards_of("node-a", 1)


def lines_of(*names: str) -> list[bytes]:
    """Return records of pods with these names, as they are written."""
    trail = Trail(clock=StoppedClock(), kept=len(names))
    for name in names:
        trail.note(RecordKind.EVICTED, a_pod(name), "node-a", [a_share(CARDS[0])], "for another")
    return [line_of(record) for record in trail]


def lost(counts: Counts) -> float:
    return float(counts.trail_lines_lost._value.get())


@contextlib.contextmanager
def kept(directory: Path, trail: Trail, counts: Counts) -> Iterator[HistoryFile]:
    file = HistoryFile(directory, trail, counts, StoppedClock())
    with file.written():
        yield file


async def read(directory: Path, most: int = 10_000) -> tuple[list[str], float]:
    """Return the pods of which a process that starts has records, and how many lines it has skipped."""
    trail, counts = Trail(clock=StoppedClock(), kept=most), Counts()
    with kept(directory, trail, counts) as file:
        async with asyncio.timeout(20):
            await file.read.wait()
    return [record.pod.name for record in trail], counts.trail_lines_skipped._value.get()


async def test_the_next_process_has_what_the_last_one_had_and_adds_to_it(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    for names in (["a", "b"], ["c"]):
        with kept(directory, Trail(clock=StoppedClock()), Counts()) as file:
            for line in lines_of(*names):
                file.put(line)
    assert await read(directory) == (["a", "b", "c"], 0)
    assert await read(directory, most=2) == (["b", "c"], 0)


async def test_a_torn_last_line_is_skipped_and_spoils_no_later_one(tmp_path: Path) -> None:
    first, second, third = lines_of("a", "b", "c")
    (tmp_path / FILE_NAME).write_bytes(first + b"\n" + second[:40])
    with kept(tmp_path, Trail(clock=StoppedClock()), Counts()) as file:
        file.put(third)
    assert await read(tmp_path) == (["a", "c"], 1)


async def test_garbage_is_skipped_and_counted(tmp_path: Path) -> None:
    first, second = lines_of("a", "b")
    garbage = [os.urandom(3_000).replace(b"\n", b""), b"null", b"{}" * 50_000, b"\x00" * 100, b"x" * LONGEST_LINE_BYTES]
    (tmp_path / FILE_NAME).write_bytes(b"\n".join([first, *garbage, b"", second, b""]))
    assert await read(tmp_path) == (["a", "b"], len(garbage))


@pytest.mark.parametrize("what", [b"\x00", b"x\n"])
async def test_of_a_file_of_a_gibibyte_the_end_is_read_and_no_more(tmp_path: Path, what: bytes) -> None:
    (line,) = lines_of("a")
    with (tmp_path / FILE_NAME).open("wb") as file:
        file.truncate(1024**3)
        file.seek(0, os.SEEK_END)
        file.write(what * 5_000_000 + b"\n" + line + b"\n")
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    names, _ = await read(tmp_path)
    assert names == ["a"]
    assert loop.time() - begin_s < 10


async def test_files_have_a_size_at_which_they_make_room_and_only_the_last_two_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail_files, "LEAST_BYTES", 2_000)
    names = [f"p{number}" for number in range(100)]
    with kept(tmp_path, Trail(clock=StoppedClock(), kept=1), Counts()) as file:
        for line in lines_of(*names):
            file.put(line)
    assert all(os.stat(tmp_path / each).st_size < 2_500 for each in os.listdir(tmp_path))
    assert set(os.listdir(tmp_path)) <= {FILE_NAME, f"{FILE_NAME}.1"}
    paths, now_s = [str(tmp_path / f"{FILE_NAME}.1"), str(tmp_path / FILE_NAME)], StoppedClock().wall().timestamp()
    found, bad = records_in(paths, 10_000, 1_000, now_s)
    assert [record.pod.name for record in found] == names[-len(found) :]
    assert (len(found) >= 6, bad) == (True, 0)


async def test_a_full_disk_loses_records_counts_them_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    counts = Counts()
    lines = LineFile("/dev/full", counts)
    with lines.written():
        for line in lines_of("a", "b", "c"):
            lines.put(line)
    assert lost(counts) == 3
    assert len([each for each in caplog.records if "can't be written" in each.message]) == 1, "once, not for each"


@pytest.mark.parametrize("path", ["/proc/nothing", "/dev/null"])
async def test_a_directory_that_can_not_be_written_is_none(path: str) -> None:
    trail, counts = Trail(clock=StoppedClock()), Counts()
    with kept(Path(path), trail, counts) as file:
        async with asyncio.timeout(20):
            await file.read.wait()
        file.put(b"{}")
    assert (trail.kept, lost(counts)) == (0, 1)


async def test_a_disk_that_hangs_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_files, "QUEUED", 3)
    monkeypatch.setattr(trail_files, "STOP_S", 0.01)
    hangs, counts = threading.Event(), Counts()
    lines = LineFile(str(tmp_path / "file"), counts, begin=lambda: hangs.wait(20))
    with lines.written():
        for line in lines_of("a", "b", "c", "d", "e"):
            lines.put(line)
        assert lost(counts) == 2
    hangs.set()


def test_each_record_is_a_line_in_the_file_of_the_settings_until_the_end(tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    file.write_bytes(b'{"torn": ')
    with trail_written(str(file), Counts()) as put:
        for line in lines_of("a", "b", "c"):
            put(line)
    torn, *lines = file.read_text().splitlines()
    assert torn == '{"torn": '
    assert [(line["pod"], line["cards"][0]["memoryMiB"]) for line in map(json.loads, lines)] == [
        ("a", 1000),
        ("b", 1000),
        ("c", 1000),
    ]


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    lines = LineFile(str(file), Counts())
    first, second = lines_of("a", "b")
    lines._write(first)
    file.rename(tmp_path / "trail.jsonl.old")
    lines._write(second)
    lines._close()
    assert file.read_bytes() == second + b"\n"


def test_a_file_of_the_settings_that_can_not_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"), trail_written(str(tmp_path / "nowhere" / "file"), Counts()):
        pass


def test_standard_output_gets_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with trail_written("-", Counts()) as put:
        put(b"{}")
    assert capfd.readouterr().out == "{}\n"
