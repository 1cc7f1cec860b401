"""The lines of a stream of bytes, none of them longer than is good for the process that reads them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator

logger = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A watch event is one line. etcd stores objects of up to 1.5 MiB, and Go's JSON writes some characters six times as
long: `<` becomes `\\u003c`."""

SHOWN_BYTES = 300
"""Of a line that is skipped: name and namespace are among the first fields of an object."""


async def whole_lines(
    chunks: AsyncIterable[bytes], what: str, longest_bytes: int = LONGEST_LINE_BYTES
) -> AsyncIterator[bytes]:
    """Yield the lines of a stream without their ends. One that is longer is skipped and logged: its object is missed.

    What comes after the last end of a line is no line. `what` names the stream in the log.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            size += len(end)
            if size <= longest_bytes:
                yield b"".join((*parts, end))
            else:
                begin = b"".join((*parts, end))[:SHOWN_BYTES].decode(errors="replace")
                logger.error("%s: an event of %d bytes is skipped, which begins with %s", what, size, begin)
            parts, size = [], 0
        size += len(rest)
        parts.append(rest)
        if size > longest_bytes:
            parts = [b"".join(parts)[:SHOWN_BYTES]]
