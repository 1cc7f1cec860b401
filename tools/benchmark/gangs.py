"""Gangs beside the same pods without a group; and whether a member was bound before its gang had its cards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import orjson

from benchmark.shapes import Shape, burst
from benchmark.site import Json
from benchmark.watching import PODS, SILENCE_S
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS

SIZES = {"gangs-of-8": 8, "gangs-of-64": 64}
"""Case -> members of each gang, all of which it needs."""

SEEN_S = 60.0
"""How long a watch may be behind."""


def in_gangs(shape: Shape, count: int, subject: str, size: int, run: int) -> list[Json]:
    """Return the pods of one measurement, so many of them in each gang."""
    bodies = burst(shape, count, subject)
    for position, body in enumerate(bodies):
        body["metadata"]["labels"] |= {GANG_LABEL: f"gang-{run}-{position // size}", MINIMUM_LABEL: str(size)}
    return bodies


class OrderWatch:
    """Watches pods and cards as they are: `async with OrderWatch(client) as watch:`.

    Versions of all objects are of one sequence, etcd's: so they tell what came first, whichever watch was faster.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._bound: dict[str, int] = {}  # pod UID -> version at which it had a node
        self._entered: dict[str, int] = {}  # pod UID -> version of the first card with a share of it
        self._gang_of: dict[str, str] = {}  # pod UID -> its gang
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        takers = {PODS: self._take_pod, ALLOCATIONS: self._take_card}
        watching = {path: asyncio.Event() for path in takers}
        self._tasks = [asyncio.create_task(self._run(path, take, watching[path])) for path, take in takers.items()]
        for event in watching.values():
            await event.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_seen(self, bound: int) -> None:
        """Wait until it has shown that so many pods were bound, and what these have of cards. Raises TimeoutError."""
        async with asyncio.timeout(SEEN_S):
            while len(self._bound.keys() & self._entered.keys()) < bound:
                self._changed.clear()
                await self._changed.wait()

    def early_bindings(self, minimum: int) -> int:
        """Return how many members were bound before the cards of so many members were in the ledger."""
        return sum(
            self._bound[uid] < self._complete(gang, minimum)
            for uid, gang in self._gang_of.items()
            if uid in self._bound
        )

    def _complete(self, gang: str, minimum: int) -> float:
        """Return the version from which on so many members of a gang were in the ledger."""
        entered = sorted(self._entered[uid] for uid, of in self._gang_of.items() if of == gang and uid in self._entered)
        return entered[minimum - 1] if len(entered) >= minimum else float("inf")

    async def _run(self, path: str, take: Callable[[Json, int], None], watching: asyncio.Event) -> None:
        first = await self._client.request("GET", path, parameters={"limit": "1"})
        version = first["metadata"]["resourceVersion"]
        while True:
            query = {"watch": "1", "resourceVersion": version}
            async with self._client.stream(path, query, SILENCE_S) as lines:
                watching.set()
                async for line in lines:
                    found = orjson.loads(line)["object"]
                    version = found["metadata"]["resourceVersion"]
                    take(found, int(version))
                    self._changed.set()

    def _take_pod(self, found: Json, version: int) -> None:
        uid, gang = found["metadata"]["uid"], (found["metadata"].get("labels") or {}).get(GANG_LABEL)
        if gang:
            self._gang_of[uid] = gang
        if found["spec"].get("nodeName"):
            self._bound.setdefault(uid, version)

    def _take_card(self, found: Json, version: int) -> None:
        holders: Sequence[Mapping[str, Any]] = (found.get("status") or {}).get("holders") or ()
        for holder in holders:
            self._entered.setdefault(holder["podUID"], version)
