"""Whatever containers write, and whenever: no crash, no read outside a region, and nobody pauses who should not."""

import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shared_regions import write_region
from gpuledger.agent.usage import regions as region_files
from gpuledger.agent.usage.regions import REASONS, SIZES
from gpuledger.formats.runtime.shared_region import LAYOUTS, MAGIC, PAUSED, RegionLayout, packed
from unit.agent.usage.conftest import Node

BIGGEST = max(SIZES)
OFFSETS = st.integers(0, BIGGEST) | st.sampled_from(
    [
        0,
        4,
        8,
        *(place for layout in LAYOUTS for place in (layout.head.size, layout.controls_at, layout.recent_kernel_at)),
    ]
)
NUMBERS = st.sampled_from([0, 1, 2, 16, 17, 1024, 1025, MAGIC, 2**31 - 1, -1, -(2**31)]).map(
    lambda n: struct.pack("<i", n)
)
WRITES = st.tuples(st.just("write"), OFFSETS, st.binary(max_size=64) | NUMBERS)
TRUNCATIONS = st.tuples(st.just("truncate"), OFFSETS | st.just(1 << 40), st.just(b""))
NEW_FILES = st.tuples(st.just("replace"), st.sampled_from(sorted(SIZES)), st.binary(max_size=4096))
CHANGES = st.one_of(WRITES, TRUNCATIONS, NEW_FILES)
Change = tuple[str, int, bytes]

NAMES = ("high", "low", "elsewhere")


class Calls:
    """Takes the place of `os` for region files: the container writes before each call, and all calls are noted."""

    def __init__(self, changes: list[tuple[str, Change]], change: Callable[[str, Change], None]) -> None:
        self._changes, self._change = list(changes), change
        self.reads: list[tuple[int, int]] = []  # offset, length
        self.pauses: list[int] = []  # inodes of files to which a pause was written

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._step()
        self.reads.append((offset, length))
        return os.pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._step()
        if data == packed(PAUSED):
            self.pauses.append(os.fstat(descriptor).st_ino)
        assert offset in {
            place for layout in LAYOUTS for place in (layout.recent_kernel_at, layout.utilization_switch_at)
        }
        return os.pwrite(descriptor, data, offset)

    def _step(self) -> None:
        if self._changes:
            self._change(*self._changes.pop(0))


@given(
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * len(NAMES)),
    before=st.lists(st.tuples(st.sampled_from(NAMES), CHANGES), max_size=4),
    during=st.lists(st.tuples(st.sampled_from(NAMES), CHANGES), max_size=12),
)
def test_regions_of_any_bytes_that_change_while_they_are_read(
    layouts: tuple[RegionLayout, ...], before: list[tuple[str, Change]], during: list[tuple[str, Change]]
) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patched:
        node = Node(Path(root))
        cards = {"high": "GPU-1", "low": "GPU-1", "elsewhere": "GPU-2"}
        paths = {
            name: node.active(name, int(name != "high"), (cards[name],), layout=layout, recent_kernel=2)
            for name, layout in zip(NAMES, layouts, strict=True)
        }
        inodes = {name: {path.stat().st_ino} for name, path in paths.items()}

        def change(name: str, what: Change) -> None:
            _change(paths[name], what)
            inodes[name].add(paths[name].stat().st_ino)

        for name, what in before:
            change(name, what)
        calls = Calls(during, change)
        patched.setattr(region_files, "os", calls)
        for _ in range(3):
            node.look()
        assert all(offset + length <= BIGGEST for offset, length in calls.reads)
        assert not {*calls.pauses} & (inodes["high"] | inodes["elsewhere"])
        assert {*node.regions.skipped} <= {*REASONS}


def _change(path: Path, what: Change) -> None:
    kind, number, data = what
    if kind == "replace":
        new = path.with_name("new")
        new.write_bytes(data)
        os.truncate(new, number)
        path.rename(path.with_name(f"old-{path.stat().st_ino}"))  # so that no other file gets its number
        new.rename(path)
    elif kind == "truncate":
        os.truncate(path, number)
    else:
        with path.open("r+b") as file:
            file.seek(number)
            file.write(data)


@given(st.binary(max_size=4096), st.sampled_from(sorted(SIZES)) | st.integers(0, BIGGEST), st.booleans())
def test_a_file_of_any_bytes_and_any_size_pauses_nobody_else_than_itself(data: bytes, size: int, magic: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root))
        node.active("high", 0)
        junk, other = node.container("junk", 1), node.container("other", 1, ("GPU-2",))
        junk.write_bytes(struct.pack("<iII", MAGIC, 1, 2) + data if magic else data)
        os.truncate(junk, size)
        assert node.look() <= {"junk"}
        write_region(other)
        assert "other" not in node.look()
