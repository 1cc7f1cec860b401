"""Has kube-scheduler try a pod again: one annotation on it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import uuid4

from gpuledger.formats.kubernetes.annotations import WOKEN_ANNOTATION
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.share import Pod
from gpuledger.workflows.counts import Counts


class PodRequeuer:
    """Wakes pods, each in a task of its own."""

    def __init__(self, store: KubeStore, counts: Counts) -> None:
        self._store = store
        self._counts = counts
        self._calls: set[asyncio.Task[None]] = set()

    def start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        """Start what wakes a pod."""
        task = asyncio.create_task(call, name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def wake_up(self, pod: Pod) -> None:
        """Have kube-scheduler try a pod. Raises ApiError."""
        self._counts.wake_ups.inc()
        await self._store.annotate_pod(pod, WOKEN_ANNOTATION, uuid4().hex)

    async def stop(self) -> None:
        """Wake no more pods."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
