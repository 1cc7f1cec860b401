"""People and programs that look at the operator while it works: a page that is open, Prometheus, and who asks why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

SCRAPE_S, EXPLAIN_S = 5.0, 2.0
"""Prometheus asks every 15 to 60 seconds, as a rule; people less often."""

WAITING_POD = "default/onlooked"
LINE_BYTES = 256 * 1024 * 1024
"""A message of the page names every node that has changed."""


@contextlib.asynccontextmanager
async def onlookers(view_url: str, health_url: str) -> AsyncIterator[dict[str, int]]:
    """Look all the time, to the end of the `with`; yield how many answers there were of each kind."""
    answers = {"changes": 0, "scrapes": 0, "explanations": 0}
    async with aiohttp.ClientSession(read_bufsize=LINE_BYTES) as session, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_follow(session, f"{view_url}/v1/changes", answers)),
            group.create_task(_repeat(session, f"{health_url}/metrics", SCRAPE_S, answers, "scrapes")),
            group.create_task(
                _repeat(session, f"{view_url}/v1/explain?pod={WAITING_POD}", EXPLAIN_S, answers, "explanations")
            ),
        ]
        try:
            yield answers
        finally:
            for task in tasks:
                task.cancel()


async def _follow(session: aiohttp.ClientSession, url: str, answers: dict[str, int]) -> None:
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as response:
        async for chunk in response.content.iter_any():
            answers["changes"] += chunk.count(b"event: change")


async def _repeat(session: aiohttp.ClientSession, url: str, pause_s: float, answers: dict[str, int], kind: str) -> None:
    while True:
        async with session.get(url) as response:
            await response.read()
            response.raise_for_status()
        answers[kind] += 1
        await asyncio.sleep(pause_s)
