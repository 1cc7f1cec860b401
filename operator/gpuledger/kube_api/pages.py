"""Lists, page by page, none of which is longer than is good for the process that reads it.

The API server counts objects and not bytes, and some of them are a thousand times as long as others. So a page that
turns out too long is broken off and asked for again with fewer objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import aiohttp

from gpuledger.kube_api.lines import LONGEST_LINE_BYTES
from gpuledger.model.errors import AnswerTooLong

PAGE_SIZE = 200
"""Objects of a page at most: one page is in memory at a time, and a large node has some 20 kB."""

PAGE_BYTES = 6 * 1024 * 1024
"""Of a page with several objects; as Python objects it can take ten times as much."""

LONG_BYTES = 256 * 1024
"""Answers of more bytes are long ones: few are in memory at a time."""

Json = dict[str, Any]
Request = Callable[..., Coroutine[Any, Any, Json]]


class Page(list[Json]):
    """The objects of one page. All pages of a list are of one moment of the cluster, its `version`.

    It is empty when the next one is asked for: one is in memory at a time.
    """

    def __init__(self, answer: Json) -> None:
        super().__init__(answer.get("items") or ())
        self.version = str((answer.get("metadata") or {}).get("resourceVersion") or "")


def fewer(size: int) -> int:
    """Return with how many objects a page is asked for again that was too long with so many."""
    return max(1, size // 4)


def longest_page_bytes(size: int) -> int:
    """Return how long a page of so many objects may be."""
    return PAGE_BYTES if size > 1 else LONGEST_LINE_BYTES


async def nothing() -> None:
    """Wait for nothing."""


async def read_at_most(
    response: aiohttp.ClientResponse,
    longest_bytes: int | None,
    before_long: Callable[[], Coroutine[Any, Any, None]] = nothing,
) -> bytes:
    """Return the body of an answer. Raises AnswerTooLong when it has more bytes; None: it may have any number.

    `before_long` is awaited, once, when it turns out to be long.
    """
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        if size <= LONG_BYTES < size + len(chunk):
            await before_long()
        size += len(chunk)
        if longest_bytes is not None and size > longest_bytes:
            response.close()  # else the rest is read when the connection is given back
            raise AnswerTooLong(f"{response.method} {response.url.path}: longer than {longest_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def pages_of(request: Request, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[Json]:
    """Yield the pages of a list as the API server answers them, all from one moment of the cluster. Raises ApiError.

    Each is emptied when the next one is asked for: take what you need of it.
    """
    query, size = dict(parameters or {}), PAGE_SIZE
    while True:
        asked, longest_bytes = {"limit": str(size), **query}, longest_page_bytes(size)
        try:
            page = await request("GET", path, parameters=asked, longest_bytes=longest_bytes)
        except AnswerTooLong:
            if size == 1:
                raise
            size = fewer(size)
            continue
        token = (page.get("metadata") or {}).get("continue")
        yield page
        page.clear()  # before the next one is read: one is in memory at a time
        if not token:
            return
        query["continue"] = token
        size = min(PAGE_SIZE, 2 * size)
