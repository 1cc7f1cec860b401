"""Kopf reads and never writes: its settings, its handlers, and what they hand on."""

import ssl
from collections.abc import Callable
from typing import Any, cast

import kopf
import pytest
from kopf._cogs.structs.bodies import RawBody
from kubernetes_asyncio.client import Configuration

from fakes.objects import a_node_object, a_pod_object
from gpuledger.controller.kopf_handlers import NoDiffBase, NoMemories, build_registry, build_settings, connection
from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.pages import PAGE_SIZE
from gpuledger.workflows.observe_cluster import ClusterObserver

Json = dict[str, Any]


class StubObserver:
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Json, bool]] = []

    def node(self, node: Json, gone: bool) -> None:
        self.seen.append(("node", node, gone))

    def pod(self, pod: Json, gone: bool) -> None:
        self.seen.append(("pod", pod, gone))


def registry(observer: object) -> kopf.OperatorRegistry:
    return build_registry(cast(KubeClient, None), cast(ClusterObserver, observer), KopfLists())


def handlers(of: kopf.OperatorRegistry) -> dict[str, Callable[..., Any]]:
    return {cast(Any, handler.fn).__name__: handler.fn for handler in of._watching.get_all_handlers()}


def test_the_watch_of_pods_selects_on_fields_that_nobody_can_edit() -> None:
    selectors = build_settings(["mine"]).watching.field_selectors
    assert selectors["v1", "pods"] == "spec.schedulerName!=default-scheduler,spec.nodeName!="
    clusters_own = build_settings(["mine", "default-scheduler"]).watching.field_selectors
    assert clusters_own["v1", "pods"] == "spec.nodeName!="


def test_kopf_posts_no_events_and_looks_for_no_peers_and_no_definitions() -> None:
    settings = build_settings(["mine"])
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert settings.watching.chunk_size == PAGE_SIZE


def test_nothing_is_stored_for_comparison() -> None:
    storage = build_settings(["mine"]).persistence.diffbase_storage
    body, patch = kopf.Body(cast(Any, a_node_object("node-a"))), kopf.Patch()
    assert isinstance(storage, NoDiffBase)
    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None
    storage.store(body=body, patch=patch, essence={"a": 1})
    assert not patch


async def test_kopf_keeps_nothing_of_an_object_between_its_events() -> None:
    memories, pod = NoMemories(), RawBody(metadata={"uid": "uid"})
    first = await memories.recall(pod, noticed_by_listing=True)
    assert await memories.recall(pod) is not first
    assert list(memories.iter_all_memories()) == []
    await memories.forget(pod)


def test_only_handlers_of_raw_events_are_registered() -> None:
    """All others make Kopf write annotations or finalizers to what they watch."""
    found = registry(StubObserver())
    assert sorted(handlers(found)) == ["node", "pod"]
    for others in (found._changing, found._spawning, found._indexing, found._webhooks):
        assert list(others.get_all_handlers()) == []


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED", "DELETED"])
async def test_events_are_handed_on_and_nothing_is_returned(kind: str | None) -> None:
    observer = StubObserver()
    found = handlers(registry(observer))
    node, pod = a_node_object("node-a"), a_pod_object()
    assert await found["node"](event={"type": kind, "object": node}, other=1) is None
    assert await found["pod"](event={"type": kind, "object": pod}) is None
    gone = kind == "DELETED"
    assert observer.seen == [("node", node, gone), ("pod", pod, gone)]


class StubClient:
    """Credentials without a connection."""

    def __init__(self, authorization: str | None) -> None:
        self.configuration = Configuration()
        self.configuration.host = "https://api"
        self.configuration.verify_ssl = True
        self.configuration.ssl_ca_cert = ssl.get_default_verify_paths().cafile
        self._authorization = authorization

    async def authorization(self) -> str | None:
        return self._authorization


@pytest.mark.parametrize(
    ("authorization", "scheme", "token"), [("Bearer abc", "Bearer", "abc"), (None, None, None), ("", None, None)]
)
async def test_kopf_uses_the_same_account(authorization: str | None, scheme: str | None, token: str | None) -> None:
    found = await connection(cast(KubeClient, StubClient(authorization)))
    assert (found.server, found.scheme, found.token) == ("https://api", scheme, token)
    assert found.insecure is False
