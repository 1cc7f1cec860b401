"""A plain list-and-watch, for the kinds that change too often to be watched by Kopf, and for single objects."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import aiohttp
import orjson

from gpuledger.kube_api.answers import read_json_in_turns
from gpuledger.kube_api.client import pages_of
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import ApiError, GpuledgerError
from gpuledger.model.json_object import Json

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Pauses before another list double, whatever it is needed for: a list of a large cluster costs both sides seconds.
They begin anew after a watch that lasted longer than this."""

WATCH_S = 290
"""The server ends a watch after this; the next one goes on from there."""

SILENCE_S = 320.0
"""Longer than the longest watch: when nothing has come for so long, nothing will."""


NOT_SERVED = 404
"""The API server's answer about a kind that it does not have: its CustomResourceDefinition may be deleted."""

TOO_OLD = 410
"""Its answer about a version that it has forgotten."""

EVENTS_AT_ONCE = 32
"""Events that are processed before others have their turn: a burst arrives in one piece, and each costs some 0.1 ms."""


class Api(Protocol):
    """The methods that a watch needs of a client: KubeClient's requests, or another's."""

    def request(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None = None, longest_bytes: int | None = None
    ) -> Coroutine[Any, Any, Json]:
        """Send one request, return the object in its answer. Raises ApiError; AnswerTooLong of more bytes than that."""

    def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch: an iterator over its events, one JSON text each."""


Listed = Callable[[set[str]], None]
"""Is called when a list was read, with the UIDs that were in it."""

Listing = Callable[[], Listed]
"""Is called before a list is read, and notes what is known by then; returns what is called after that."""


def forgetting(known: Iterable[str], forget: Callable[[str], object], then: Callable[[], object] = tuple) -> Listed:
    """Return what forgets those that are known now and were not in the list, by their UIDs, and then calls `then`."""
    before = set(known)

    def listed(uids: set[str]) -> None:
        for uid in before - uids:
            forget(uid)
        then()

    return listed


def all_of(*listings: Listing) -> Listed:
    """Note what is known, for several; return what tells each of them that a list has been read."""
    each_listed = [listing() for listing in listings]

    def listed(uids: set[str]) -> None:
        for each in each_listed:
            each(uids)

    return listed


class _TooOld(GpuledgerError):  # noqa: N818 - reads as what it is
    """The server has forgotten what came after our last event: everything has to be listed again."""


async def follow(
    client: Api,
    path: str,
    parameters: Mapping[str, str],
    changed: Callable[[Json, bool], None],
    listing: Listing,
    silence_s: float = SILENCE_S,
    while_served: bool = False,
    version: str = "",
) -> None:
    """Show every object, and every change of one, until cancelled; `while_served`: or until there is no such kind.

    `changed(object, gone)` is called for each; if it raises, that object is left out. `listing()` is called before a
    list is read, and what it returns after that, with the UIDs that were in it: so that what went unseen is known
    from what came meanwhile. With the `version` of a list that was read elsewhere, what has changed since is shown
    first. After a connection broke, everything is listed again if etcd was put back to before that version: a watch
    from it would show nothing until as much has happened again.
    """
    clock = asyncio.get_running_loop().time
    pauses, broke = Backoff(PAUSE_S, LONGEST_PAUSE_S), False
    while True:
        begin_s = math.inf
        try:
            if version and broke and await _version_now(client, path, parameters) < int(version):
                logger.warning("%s: the API server's data was restored from an older state; listing again", path)
                version = ""
            broke = False
            if not version:
                version = await _list(client, path, parameters, changed, listing())
            begin_s = clock()
            watch = {**parameters, "resourceVersion": version}
            version, broke = await _watch(client, path, watch, changed, silence_s)
            pause_s = PAUSE_S if clock() < begin_s + PAUSE_S else 0.0  # a server that ends each watch at once
        except _TooOld:
            version, pause_s = "", None
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            status = error.status if isinstance(error, ApiError) else 0
            if while_served and status == NOT_SERVED:
                return
            version, pause_s, broke = ("", None, False) if status == TOO_OLD else (version, PAUSE_S, True)
            logger.info("watching %s failed, retrying: %r", path, error)
        except Exception:
            version, pause_s = "", None
            logger.exception("watching %s failed, which is a bug in gpuledger; listing again after a pause", path)
        if clock() > begin_s + LONGEST_PAUSE_S:
            pauses.reset()
        await asyncio.sleep(pauses.next_s() if pause_s is None else pause_s)


async def _version_now(client: Api, path: str, parameters: Mapping[str, str]) -> int:
    """Return the version of the API server's data, by the shortest list that there is."""
    page = await client.request("GET", path, parameters={**parameters, "limit": "1"})
    return int(page["metadata"]["resourceVersion"])


async def _list(
    client: Api,
    path: str,
    parameters: Mapping[str, str],
    changed: Callable[[Json, bool], None],
    listed: Listed,
) -> str:
    uids: set[str] = set()
    version = ""
    async for page in pages_of(client.request, path, parameters):
        for found in page.get("items") or ():
            uids.add(found["metadata"]["uid"])
            _show(changed, found, False)
        version = str(page["metadata"]["resourceVersion"])
    listed(uids)
    return version


def _show(changed: Callable[[Json, bool], None], found: Json, gone: bool) -> None:
    try:
        changed(found, gone)
    except Exception:
        name = found["metadata"].get("name")
        logger.exception("%s %s is skipped: processing it failed", found.get("kind") or "object", name)


async def _watch(
    client: Api,
    path: str,
    parameters: dict[str, str],
    changed: Callable[[Json, bool], None],
    silence_s: float,
) -> tuple[str, bool]:
    """Return the version to go on from, when the server ends the watch or the connection breaks, and whether it did."""
    version = parameters["resourceVersion"]
    query = {**parameters, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
    try:
        async with client.stream(path, query, silence_s) as lines:
            taken = 0
            async for line in lines:
                taken += 1
                if taken % EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                event = await read_json_in_turns(line)
                found = event["object"]
                if event["type"] == "ERROR":
                    raise _TooOld(str(found.get("message")))
                version = str(found["metadata"]["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    _show(changed, found, event["type"] == "DELETED")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        logger.info("the watch of %s broke, continuing it: %r", path, error)
        await asyncio.sleep(PAUSE_S)
        return version, True
    return version, False
