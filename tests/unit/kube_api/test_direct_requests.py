"""Requests without kubectl end with their command, whatever they wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest

from gpuledger.kube_api.client import DirectRequests

Json = dict[str, Any]


class Client:
    """Answers each path with itself, but never "/silent"."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.closed = 0

    async def request(self, method: str, path: str, *, timeout_s: float) -> Json:
        if path == "/silent":
            self.asked.set()
            await asyncio.Event().wait()
        return {"asked": f"{method} {path}", "timeout_s": timeout_s}

    async def close(self) -> None:
        self.closed += 1


def test_requests_share_one_connection_and_what_waits_is_given_up_at_the_end() -> None:
    client, connected = Client(), []

    async def connect() -> Any:
        connected.append(client)
        return client

    before = threading.active_count()
    requests = DirectRequests(connect, 7)
    assert requests.send("GET", "/a") == {"asked": "GET /a", "timeout_s": 7}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(requests.send, "GET", "/silent")
        assert client.asked.wait(10)
        requests.end()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(10)
    assert (connected, client.closed, threading.active_count()) == ([client], 1, before)


def test_each_request_has_the_error_of_a_connection_that_could_not_be_made() -> None:
    async def connect() -> Any:
        raise ConnectionError("nobody is there")

    requests = DirectRequests(connect, 7)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            requests.send("GET", "/a")
    requests.end()
