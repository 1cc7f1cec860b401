"""Keeps Kopf going when a watch fails.

Kopf lists anew when a running watch says 410. A watch that is refused with 410 from the beginning, and any other error
in a running one, end the whole process: an API server in trouble would end all operators at once. Between Kopf and the
API server, the first becomes a watch that begins with the present state, and the second one that has just ended.

And Kopf reads a page of a list in one piece, however long. A page that is too long is asked for with fewer objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import orjson

from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.kube_api.lines import whole_lines
from gpuledger.kube_api.pages import fewer, longest_page_bytes, read_at_most
from gpuledger.model.errors import AnswerTooLong

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before a watch that has failed is asked for again."""

ERROR = b'{"type":"ERROR"'
"""How the API server begins an event that is an error; it writes the fields in the order of their definition."""


class KopfWatches:
    """A middleware for Kopf's HTTP session."""

    def __init__(self, lists: KopfLists) -> None:
        self._lists = lists

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request; give a watch that fails another ending."""
        response = await send(request)
        if "watch" not in request.url.query:
            return await self._in_bounds(request, response, send) if "limit" in request.url.query else response
        while response.status == HTTPStatus.GONE:
            response.release()
            logger.info("watch of %s: its version is too old; beginning with the present state", request.url.name)
            await asyncio.sleep(PAUSE_S)
            request.url = request.url.without_query_params("resourceVersion")
            response = await send(request)
            self._lists.again.set()  # what was deleted meanwhile is not in it
        response.content = cast(aiohttp.StreamReader, _UntilError(response.content, request.url.name))
        return response

    async def _in_bounds(
        self, request: aiohttp.ClientRequest, response: aiohttp.ClientResponse, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Read a page of a list; ask for fewer objects if it is too long."""
        size = int(request.url.query["limit"])
        while response.status == HTTPStatus.OK:
            try:
                response._body = await read_at_most(response, longest_page_bytes(size))
                break
            except AnswerTooLong:
                if size == 1:
                    raise
                size = fewer(size)
                request.url = request.url.update_query(limit=str(size))
                response = await send(request)
        return response


class _UntilError:
    """The content of a watch, up to an error that Kopf would not survive."""

    def __init__(self, content: aiohttp.StreamReader, kind: str) -> None:
        self._content = content
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines, as many as there are."""
        async for line in whole_lines(self._content.iter_chunked(size), f"watch of {self._kind}"):
            if _is_fatal(line):
                logger.warning("watch of %s: %s; watching again", self._kind, line[:300].decode(errors="replace"))
                await asyncio.sleep(PAUSE_S)
                return
            yield line + b"\n"


def _is_fatal(line: bytes) -> bool:
    return line.startswith(ERROR) and orjson.loads(line)["object"].get("code") != HTTPStatus.GONE
