"""What a watch costs by Kopf and by the plain watch, for each kind of objects: without a cluster.

Each measurement is a process of its own, and its stand-in for the API server another. CPU time is that of the process
that watches, so other programs on the machine matter little.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import kopf
import orjson
import uvloop
from kubernetes_asyncio.client import Configuration
from rich import box
from rich.table import Table

from benchmark.api_of_one_kind import serve_one_kind
from benchmark.machine import memory_mib
from benchmark.shapes import CARDS_PER_NODE, QUARTER, pod
from benchmark.table import wide_console
from gpuledger.agent.simulated import FakeNode, fake_nodes
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.controller.kopf_frame import configure
from gpuledger.formats.custom_resource.stored_card import API_VERSION, holder_json, new_allocation, used_json
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.kube_api.client import PAGE_SIZE, KubeClient
from gpuledger.kube_api.watch import follow
from gpuledger.model.share import Holder, Pod, shares_of

HOLDERS_PER_CARD = 2
PODS_PER_NODE = 8
IMAGES = 50
"""The kubelet lists as many of a node's images."""

Json = dict[str, Any]
Seen = Callable[[Json, bool], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, as many of them as a cluster has."""

    path: str
    kind: str
    per_node: int
    made: Callable[[FakeNode], list[Json]]
    """A node's objects."""

    def objects(self, nodes: int) -> list[bytes]:
        """Return all of them as JSON, one node at a time: only that is kept."""
        found = []
        for number in range(nodes):
            (node,) = fake_nodes(f"bench-{number}", 1, CARDS_PER_NODE, "A100-40GB")
            found += [orjson.dumps(each) for each in self.made(node)]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a watch has cost."""

    objects: int
    bytes_each: int
    list_cpu_s: float
    list_us: float
    """CPU time of each object of the list."""
    event_us: float
    """CPU time of each event."""
    events_per_s: float
    """By the clock: as the machine was."""
    listed_mib: float
    """Memory, more than before the list, when that had been seen and nothing was going on any more."""
    memory_mib: float
    """The same after the events, all of which had come at once."""


def _metadata(name: str, **more: Any) -> Json:
    """Return metadata with what the API server adds: two managers of fields."""
    fields: Json = {f"f:field-{number}": {f"f:part-{part}": {} for part in range(5)} for number in range(14)}
    managers = [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
        for manager in ("gpuledger", "kubelet")
    ]
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    return {"name": name, "uid": uid, "resourceVersion": "1", "managedFields": managers, **more}


def _nodes(node: FakeNode) -> list[Json]:
    names = [f"registry.example/team/image-{number}@sha256:{number:064}" for number in range(IMAGES)]
    amounts = {"cpu": "128", "memory": "1056309180Ki", "pods": "110", "nvidia.com/gpu": "80"}
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [
        {"type": kind, "status": "False", "reason": "Kubelet", "message": "kubelet says so"} for kind in kinds
    ]
    images = [{"names": [name], "sizeBytes": 123456789} for name in names]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images}
    annotations = {REGISTER_ANNOTATION: register_of(node.cards)}
    return [{"metadata": _metadata(node.name, annotations=annotations), "spec": {}, "status": status}]


def _pods(node: FakeNode) -> list[Json]:
    found = []
    for number in range(PODS_PER_NODE):
        made = pod(f"{node.name}-pod-{number}", "gpuledger", QUARTER)
        container = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}, "image": "none"}
        conditions = [{"type": f"Condition{each}", "status": "True"} for each in range(5)]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}
        spec = made["spec"] | {"nodeName": node.name, "volumes": [{"name": f"volume-{each}"} for each in range(4)]}
        annotations = {"gpuledger.dev/devices": orjson.dumps({"main": [{"uuid": node.cards[0].uuid}]}).decode()}
        metadata = _metadata(made["metadata"]["name"], namespace="default", annotations=annotations)
        found.append({"metadata": metadata, "spec": spec, "status": status})
    return found


def _cards(node: FakeNode) -> list[Json]:
    request = pod_request(pod("pod", "gpuledger", QUARTER), dialects_of(Settings()))
    assert request is not None
    found = []
    for card in node.cards:
        shares = shares_of(request, ((card.uuid,),), [card])
        pods = (
            Pod(str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{card.uuid}-{each}")), "default", f"pod-{each}") for each in "ab"
        )
        holders = [Holder(each, shares[0], attempt="1" * 16) for each in pods]
        status = {"phase": "Ready", "reason": "", "used": used_json(holders), "pods": ""}
        made = new_allocation(card)
        metadata = _metadata(card.object_name, labels=made["metadata"]["labels"])
        found.append({**made, "metadata": metadata, "status": {**status, "holders": [holder_json(h) for h in holders]}})
    return found


KINDS = {
    "nodes": Kind("/api/v1/nodes", "Node", 1, _nodes),
    "pods": Kind("/api/v1/pods", "Pod", PODS_PER_NODE, _pods),
    "cards": Kind(f"/apis/{API_VERSION}/gpuallocations", "GPUAllocation", CARDS_PER_NODE, _cards),
}


async def _by_kopf(server: str, kind: Kind, seen: Seen) -> None:
    """Watch as the operator has Kopf watch: with its settings, and a handler that returns None."""
    registry = kopf.OperatorRegistry()
    group, version, plural = (*([""] if kind.path.startswith("/api/") else []), *kind.path.split("/")[2:])

    @kopf.on.login(registry=registry)
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=server)

    @kopf.on.event(group, version, plural, registry=registry)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        seen(dict(event["object"]), event["type"] == "DELETED")

    settings = kopf.OperatorSettings()
    configure(settings)
    settings.watching.chunk_size = PAGE_SIZE  # the operator has its session leave lists out
    await kopf.operator(registry=registry, settings=settings, clusterwide=True)


async def _by_plain_watch(server: str, kind: Kind, seen: Seen) -> None:
    configuration = Configuration()
    configuration.host = server
    client = KubeClient(configuration)
    try:
        await follow(client, kind.path, {}, seen, lambda: lambda _: None)
    finally:
        await client.close()


WAYS = {"plain watch": _by_plain_watch, "Kopf": _by_kopf}


async def _watch(way: str, name: str, server: str, objects: int, events: int) -> tuple[float, ...]:
    """Return CPU seconds of the list, CPU seconds and seconds of the events, and MiB more after each of the two."""
    count, reached, wanted = 0, asyncio.Event(), objects

    def seen(_: Json, gone: bool) -> None:
        nonlocal count
        count += 1
        if count == wanted:
            reached.set()

    async def costs() -> tuple[float, float]:
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait((waiting, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        reached.clear()
        return time.perf_counter() - begin_s, time.process_time() - cpu_s

    gc.collect()
    before_mib, _ = memory_mib(os.getpid())
    watching = asyncio.create_task(WAYS[way](server, KINDS[name], seen))
    _, list_cpu_s = await costs()
    listed_mib = await _at_rest_mib()
    wanted += events
    async with aiohttp.ClientSession() as session, session.post(f"{server}/change?count={events}"):
        events_s, events_cpu_s = await costs()
    seen_mib = await _at_rest_mib()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return list_cpu_s, events_cpu_s, events_s, listed_mib - before_mib, seen_mib - before_mib


async def _at_rest_mib() -> float:
    await asyncio.sleep(2)  # Kopf's tasks, one for each object, end when nothing has come for a while
    gc.collect()
    return memory_mib(os.getpid())[0]


def _watching(way: str, name: str, server: str, objects: int, events: int, result: Connection) -> None:
    result.send(uvloop.run(_watch(way, name, server, objects, events)))


@contextmanager
def _process(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Yield the end of a pipe whose other end is the last argument of what runs in a process of its own."""
    here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*arguments, there), daemon=True)
    process.start()
    there.close()  # a process that fails is then the end of the file
    try:
        yield here
    finally:
        process.kill()
        process.join()


def measure(way: str, name: str, objects: list[bytes], events: int) -> Cost:
    """Watch objects of a kind in one of the ways, and return what that has cost."""
    kind = KINDS[name]
    with _process(serve_one_kind, kind.path, kind.kind, objects) as port:
        server = f"http://127.0.0.1:{port.recv()}"
        with _process(partial(_watching, way, name), server, len(objects), events) as result:
            list_cpu_s, events_cpu_s, events_s, listed_mib, seen_mib = result.recv()
    return Cost(
        objects=len(objects),
        bytes_each=sum(map(len, objects)) // len(objects),
        list_cpu_s=list_cpu_s,
        list_us=list_cpu_s / len(objects) * 1e6,
        event_us=events_cpu_s / events * 1e6,
        events_per_s=events / events_s,
        listed_mib=listed_mib,
        memory_mib=seen_mib,
    )


def measure_watches(nodes: int, events: int, as_json: bool) -> None:
    """Measure each kind of objects in both ways, and print a row for each."""
    rows = [
        (name, way, measure(way, name, objects, events))
        for name, kind in KINDS.items()
        for objects in [kind.objects(nodes)]
        for way in WAYS
    ]
    if as_json:
        sys.stdout.write(orjson.dumps([{"kind": n, "way": w, **asdict(c)} for n, w, c in rows]).decode() + "\n")
        return
    table = Table(title=f"{nodes} nodes, {events} events of each kind", box=box.SIMPLE_HEAD)
    heads = (
        "objects",
        "bytes",
        "list CPU s",
        "\u00b5s/object",
        "\u00b5s/event",
        "events/s",
        "MiB, listed",
        "MiB, seen",
    )
    for place, head in enumerate(("kind", "way", *heads)):
        table.add_column(head, justify="left" if place < 2 else "right")
    for name, way, cost in rows:
        forms = zip(asdict(cost).values(), ("d", "d", ".1f", ".0f", ".0f", ".0f", ".1f", ".1f"), strict=True)
        table.add_row(name, way, *(format(value, form) for value, form in forms))
    wide_console().print(table)
