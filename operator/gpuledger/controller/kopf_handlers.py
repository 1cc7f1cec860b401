"""Kopf: watches on Nodes and bound Pods, and nothing else of it.

Not on GPUAllocations: a cluster has eight times as many as nodes, and Kopf needs ten times the CPU of a plain watch for
each event, and for each object as much memory again as the ledger.
Only `on.event` handlers, which return None: all other kinds make Kopf write annotations or finalizers to the objects
that they watch. What a watch may miss, a resync finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import aiohttp
import kopf
from kopf._cogs.structs.bodies import RawBody
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory  # what the parameter of kopf.operator wants

from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.controller.kopf_watches import KopfWatches
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.pages import PAGE_SIZE
from gpuledger.kube_api.reads import pods_of
from gpuledger.workflows.observe_cluster import ClusterObserver

RETRY_S = 1.0
"""Pause before a request of Kopf's is repeated."""


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing: Kopf's comparison of old and new objects is half the cost of an event, and nobody asks for it."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> Any:
        """Return nothing to compare."""
        return {}

    def fetch(self, *, body: kopf.Body) -> Any:
        """Return nothing to compare with."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """Write nothing."""


class NoMemories(ResourceMemories):
    """Keeps nothing: Kopf remembers each object for kinds of handlers that are not used here, in a kilobyte each."""

    async def recall(self, raw_body: RawBody, **other: Any) -> ResourceMemory:
        """Return an object's memory as if the object had never been seen."""
        return await super().recall(raw_body, **{**other, "ephemeral": True})


def build_settings(scheduler_names: Sequence[str]) -> kopf.OperatorSettings:
    """Return the settings under which Kopf reads what it must and writes nothing."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.watching.chunk_size = PAGE_SIZE
    # On fields that nobody can edit: a pod that left a label selector would look deleted.
    settings.watching.field_selectors["v1", "pods"] = pods_of(scheduler_names, bound=True)
    settings.queueing.idle_timeout = 0.5
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = itertools.repeat(RETRY_S)  # its own grow to 21 s, and end the process then
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.process.ultimate_exiting_timeout = 10
    return settings


def build_registry(client: KubeClient, observer: ClusterObserver, lists: KopfLists) -> kopf.OperatorRegistry:
    """Return the handlers. Each takes one object in and returns None."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return session(await connection(client), lists)

    @kopf.on.event("", "v1", "nodes", registry=registry)
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        observer.node(dict(event["object"]), gone=event["type"] == "DELETED")

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        observer.pod(dict(event["object"]), gone=event["type"] == "DELETED")

    return registry


def session(info: kopf.ConnectionInfo, lists: KopfLists) -> kopf.AiohttpSession:
    """Return a connection for Kopf, which closes it: it tells of Kopf's lists, and lets no watch end the process."""
    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
    headers = info.as_http_headers()
    opened = aiohttp.ClientSession(
        connector=connector, headers=headers, trace_configs=[lists.trace()], middlewares=[KopfWatches(lists)]
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=opened)


async def connection(client: KubeClient) -> kopf.ConnectionInfo:
    """Return the client's account for Kopf, which asks again when its token is refused."""
    configuration = client.configuration
    scheme, _, token = (await client.authorization() or "").partition(" ")
    return kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme if token else None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
