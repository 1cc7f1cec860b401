"""A stand-in for the API server that has objects of one kind: it lists them in pages, and sends changes when asked to.

Everything is JSON before the clock starts, so that whoever watches is the slower one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import orjson
import uvloop
from aiohttp import web

EVENTS_PER_WRITE = 50
CORE = "/api/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1"

Json = dict[str, Any]


class ApiOfOneKind:
    """Objects of one kind, each changed in turn."""

    def __init__(self, path: str, kind: str, objects: Sequence[bytes]) -> None:
        self._path = path
        self._kind = kind
        self._objects = objects
        self._changes: asyncio.Queue[int] = asyncio.Queue()

    def application(self) -> web.Application:
        """Return the routes: discovery, list and watch, and one by which changes are asked for."""
        application = web.Application()
        for path, answer in self._discovery().items():
            application.router.add_get(path, _answering(answer))
        application.router.add_get(self._path, self._list_or_watch)
        application.router.add_post("/change", self._change)
        return application

    def _discovery(self) -> dict[str, Json]:
        """Return path -> answer: our kind, and those without which Kopf does not begin."""
        version_path, _, plural = self._path.rpartition("/")
        resources = {
            CORE: [("namespaces", "Namespace"), ("events", "Event")],
            DEFINITIONS: [("customresourcedefinitions", "CustomResourceDefinition")],
        }
        resources.setdefault(version_path, []).append((plural, self._kind))
        answers: dict[str, Json] = {
            "/api": {"versions": ["v1"]},
            "/apis": {"groups": [_group(path) for path in resources if path != CORE]},
        }
        for path, found in resources.items():
            answers[path] = {"resources": [_resource(name, kind) for name, kind in found]}
        return answers

    async def _change(self, request: web.Request) -> web.Response:
        self._changes.put_nowait(int(request.query["count"]))
        return web.Response()

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        begin, size = int(request.query.get("continue") or 0), int(request.query["limit"])
        end = min(begin + size, len(self._objects))
        token = str(end) if end < len(self._objects) else ""
        head = orjson.dumps({"kind": f"{self._kind}List", "metadata": {"resourceVersion": "1", "continue": token}})
        body = head[:-1] + b',"items":[' + b",".join(self._objects[begin:end]) + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            count = await self._changes.get()
            for first in range(0, count, EVENTS_PER_WRITE):
                numbers = range(first, min(first + EVENTS_PER_WRITE, count))
                found = (self._objects[number % len(self._objects)] for number in numbers)
                await response.write(b"".join(b'{"type":"MODIFIED","object":' + each + b"}\n" for each in found))


def _group(path: str) -> Json:
    _, _, name, version = path.split("/")
    return {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}


def _resource(plural: str, kind: str) -> Json:
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": False, "verbs": ["list", "watch"]}


def _answering(answer: Json) -> Any:
    async def answered(_: web.Request) -> web.Response:
        return web.json_response(answer)

    return answered


def serve_one_kind(path: str, kind: str, objects: Sequence[bytes], port: Connection) -> None:
    """Serve until the process is ended; say through the pipe on which port."""

    async def serve() -> None:
        runner = web.AppRunner(ApiOfOneKind(path, kind, objects).application(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    uvloop.run(serve())
