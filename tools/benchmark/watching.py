"""When each pod was bound, or refused, as a watch shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Self

import orjson

from gpuledger.kube_api.client import KubeClient

PODS = "/api/v1/namespaces/default/pods"
SILENCE_S = 1800.0

Json = dict[str, Any]


class PodWatch:
    """Sees every change of some pods from its beginning on: `async with PodWatch(client, pods) as watch:`."""

    def __init__(self, client: KubeClient, pods: Iterable[Json]) -> None:
        self.bound: dict[str, float] = {}
        """Name of a pod -> when it was seen to have a node."""
        self.refused: dict[str, float] = {}
        """Name of a pod -> when it was seen to be unschedulable."""
        self._client = client
        self._names = {body["metadata"]["name"] for body in pods}
        self._changed, self._watching = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        first = await self._client.request("GET", PODS, parameters={"limit": "1"})
        self._task = asyncio.create_task(self._run(first["metadata"]["resourceVersion"]))
        await self._watching.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, seen: dict[str, float], timeout_s: float) -> None:
        """Wait until all pods are in `bound`, or in `refused`. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(seen) < len(self._names):
                self._changed.clear()
                if self._task.done():
                    self._task.result()
                await self._changed.wait()

    async def _run(self, version: str) -> None:
        while True:  # the server may end a watch at any time; the next one goes on from there
            query = {"watch": "1", "resourceVersion": version}
            async with self._client.stream(PODS, query, SILENCE_S) as lines:
                self._watching.set()
                async for line in lines:
                    found = orjson.loads(line)["object"]
                    version = found["metadata"]["resourceVersion"]
                    self._take(found)

    def _take(self, found: Json) -> None:
        name, now_s = found["metadata"]["name"], time.monotonic()
        if name not in self._names:
            return
        if found["spec"].get("nodeName"):
            self.bound.setdefault(name, now_s)
        elif _is_refused(found):
            self.refused.setdefault(name, now_s)
        self._changed.set()


def _is_refused(found: Json) -> bool:
    conditions = found["status"].get("conditions") or ()
    return any(
        (c["type"], c["status"], c.get("reason")) == ("PodScheduled", "False", "Unschedulable") for c in conditions
    )
