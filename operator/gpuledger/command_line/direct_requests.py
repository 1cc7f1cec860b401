"""Requests without kubectl: an event loop in a thread of its own, which ends before the program does.

A thread that is still at work while the interpreter goes down can end in a segmentation fault.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from gpuledger.model.json_object import Json

if TYPE_CHECKING:
    from gpuledger.kube_api.client import KubeClient


class DirectRequests:
    """Sends requests, from any thread, over one client."""

    def __init__(self, connect: Callable[[], Awaitable[KubeClient]], timeout_s: float) -> None:
        """Take how to connect, and how long a request may take. The first request connects."""
        self._connect = connect
        self._timeout_s = timeout_s
        self._client: asyncio.Task[KubeClient] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def send(self, method: str, path: str, **more: Any) -> Json:
        """Return the API server's answer; `more` as of `KubeClient.request`. Raises BadInput and ApiError."""
        return asyncio.run_coroutine_threadsafe(self._send(method, path, more), self._loop).result()

    async def _send(self, method: str, path: str, more: Json) -> Json:
        if self._client is None:
            self._client = asyncio.ensure_future(self._connect())
        client = await asyncio.shield(self._client)
        return await client.request(method, path, timeout_s=self._timeout_s, **more)

    def end(self) -> None:
        """Cancel what is under way, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client and not self._client.cancelled() and not self._client.exception():
            await self._client.result().close()
