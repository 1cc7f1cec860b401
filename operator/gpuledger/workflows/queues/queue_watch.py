"""Follows Kueue's objects, where the settings say so, as long as the API server has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from gpuledger.kube_api.kueue import ADMISSION_CHECKS, CLUSTER_QUEUES, FLAVORS, WORKLOADS
from gpuledger.kube_api.store import KubeStore
from gpuledger.kube_api.watch import Api, follow
from gpuledger.model.errors import ApiError, NotFound
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.kueue_objects import KueueObjects

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks whether Kueue is installed by now."""

LISTS_WAIT_S = 10.0
"""Workloads are read after what says which of them are ours, unless that takes longer."""


async def follow_queues(
    api: Api, store: KubeStore, objects: KueueObjects, check: CardCheck, listed: asyncio.Event
) -> None:
    """Follow them until cancelled. `listed` is set when all were read once, or there are none."""
    while True:
        if not await _is_there(api):
            listed.set()
            await asyncio.sleep(LOOK_S)
            continue
        logger.info("Kueue is installed: following its workloads")
        async with asyncio.TaskGroup() as kinds, AsyncExitStack() as listening:
            known = [asyncio.Event() for _ in range(3)]
            changed = asyncio.Event()
            objects.on_change.append(changed.set)
            listening.callback(objects.on_change.remove, changed.set)
            active = kinds.create_task(_keep_active(store, objects, changed), name="say that checks are active")
            begins = (objects.listing_checks, objects.listing_flavors, objects.listing_queues)
            lists = [_listing(begin, done) for begin, done in zip(begins, known, strict=True)]
            others = [
                kinds.create_task(follow(api, ADMISSION_CHECKS, {}, objects.check, lists[0], while_served=True)),
                kinds.create_task(follow(api, FLAVORS, {}, objects.flavor, lists[1], while_served=True)),
                kinds.create_task(follow(api, CLUSTER_QUEUES, {}, objects.queue, lists[2], while_served=True)),
            ]
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTS_WAIT_S):
                    for each in known:
                        await each.wait()
            await follow(api, WORKLOADS, {}, check.observe, _listing(check.listing, listed), while_served=True)
            for task in (active, *others):
                task.cancel()
        check.listing()(set())  # Kueue is gone, and its workloads with it


async def _is_there(api: Api) -> bool:
    try:
        await api.request("GET", WORKLOADS, parameters={"limit": "1"})
    except NotFound:
        return False
    except ApiError as error:
        logger.warning("Kueue's workloads can't be listed, retrying: %s", error)
        return False
    return True


async def _keep_active(store: KubeStore, objects: KueueObjects, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await objects.report_active(store)


def _listing(
    listing: Callable[[], Callable[[set[str]], None]], done: asyncio.Event
) -> Callable[[], Callable[[set[str]], None]]:
    """Return the same, which sets an event when a list was read."""

    def begin() -> Callable[[set[str]], None]:
        listed = listing()

        def end(uids: set[str]) -> None:
            listed(uids)
            done.set()

        return end

    return begin
