"""Lines come whole however a stream is cut, and one that is too long costs itself and nothing else."""

import logging
import tracemalloc
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kube_api.client import SHOWN_BYTES, whole_lines

LONGEST = 8


async def in_pieces(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def lines_of(*pieces: bytes, longest_bytes: int = LONGEST) -> list[bytes]:
    return [line async for line in whole_lines(in_pieces(pieces), "WATCH /pods", longest_bytes)]


@given(st.lists(st.text("ab\n", max_size=12).map(str.encode)))
async def test_however_a_stream_is_cut_its_lines_are_the_same(pieces: list[bytes]) -> None:
    *whole, _ = b"".join(pieces).split(b"\n")
    assert await lines_of(*pieces) == [line for line in whole if len(line) <= LONGEST]


async def test_a_line_that_is_too_long_is_skipped_and_its_beginning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert await lines_of(b"one\n" + 6 * b"x", 6 * b"y", b"z\ntwo\n", b"three") == [b"one", b"two"]
    [record] = caplog.records
    assert record.getMessage() == "WATCH /pods: an event of 13 bytes is skipped, which begins with xxxxxxyyyyyyz"


async def test_of_a_line_that_is_too_long_no_more_is_kept_than_is_shown() -> None:
    piece = b"x" * 65_536
    tracemalloc.start()
    try:
        assert await lines_of(*[piece] * 400, b"\n", longest_bytes=1_000_000) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000 + SHOWN_BYTES
