"""Builds the parts of the operator and runs them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kopf
from aiohttp import web

from gpuledger.controller.extender_server import ExtenderServer
from gpuledger.controller.kopf_handlers import build_registry, build_settings
from gpuledger.controller.metrics import Metrics
from gpuledger.formats.pod import RequestDefaults, ResourceNames
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import ApiError, Unreachable
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference
from gpuledger.settings import Settings
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.inventory import InventoryKeeper
from gpuledger.workflows.journal import Journal
from gpuledger.workflows.observe_cluster import ClusterObserver
from gpuledger.workflows.place_pod import PlacementSettings, PodPlacer
from gpuledger.workflows.release_pod import PodReleaser

logger = logging.getLogger(__name__)

START_PAUSE_S = 1.0


class KubeStore(KubeReads, KubeWrites):
    """All requests to the API server behind the protocols of the workflows."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The parts that run."""

    client: KubeClient
    observer: ClusterObserver
    counts: Counts
    server: ExtenderServer
    settings: Settings


def resource_names(settings: Settings) -> ResourceNames:
    """Return the names by which pods ask."""
    return ResourceNames(
        count=settings.resource_count,
        memory=settings.resource_memory,
        memory_percentage=settings.resource_memory_percentage,
        cores=settings.resource_cores,
        priority=settings.resource_priority,
    )


def build_operator(client: KubeClient, settings: Settings) -> Operator:
    """Connect the parts. Nothing runs yet."""
    ledger, counts, store = Ledger(), Counts(), KubeStore(client)
    policy = Policy(nodes=Preference(settings.node_policy), cards=Preference(settings.card_policy))
    chooser = Chooser(ledger, policy)
    journal = Journal(ledger, store)
    placer = PodPlacer(
        ledger,
        chooser,
        journal,
        store,
        PlacementSettings(
            names=resource_names(settings),
            defaults=RequestDefaults(settings.default_number, settings.default_memory_mib, settings.default_cores),
            hold_ttl_s=settings.hold_ttl_s,
            bind_timeout_s=settings.bind_timeout_s,
        ),
        counts,
        clock=asyncio.get_running_loop().time,
    )
    inventory = InventoryKeeper(ledger, journal, store, counts, NodeEvents(store))
    releaser = PodReleaser(ledger, journal, store, counts, placer.is_binding, settings.release_delay_s)
    observer = ClusterObserver(ledger, inventory, releaser, store, settings.resource_count, settings.scheduler_name)
    metrics = Metrics(ledger, chooser, counts, journal.counts)
    server = ExtenderServer(placer, metrics, counts, is_ready=lambda: observer.synced)
    return Operator(client, observer, counts, server, settings)


class NodeEvents:
    """Shows a sentence as an Event of a Node, where `kubectl describe node` finds it."""

    def __init__(self, store: KubeWrites) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, node_name: str, sentence: str) -> None:
        """Post the event in the background; if that fails the log still has it."""
        task = asyncio.create_task(self._post(node_name, sentence))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, node_name: str, sentence: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "gpuledger-", "namespace": "default"},
            # The kubelet's convention: a Node's name stands for its UID.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name},
            "type": "Warning",
            "reason": "BadGPUInventory",
            "message": sentence[:1024],
            "source": {"component": "gpuledger"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._store.create_event(event)
        except ApiError as error:
            logger.warning("node %s could not be told: %s", node_name, error)


async def run(settings: Settings, kubeconfig: Path | None) -> None:
    """Run until a signal, or until a part fails: then the process ends, and whoever runs it starts it again."""
    client = await KubeClient.connect(kubeconfig)
    try:
        operator = build_operator(client, settings)
        async with contextlib.AsyncExitStack() as sites:
            # Started before Kopf, which ends every task that began after its own.
            await _serve(sites, operator.server.health(), settings.health_host, settings.health_port)
            await _serve(sites, operator.server.extender(), settings.listen_host, settings.listen_port)
            logger.info("extender at %s", settings.extender_url)
            await _first_to_end(_keep_in_sync(operator), _watch(operator))
    finally:
        await client.close()


async def _serve(sites: contextlib.AsyncExitStack, application: web.Application, host: str, port: int) -> None:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    sites.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port).start()


async def _keep_in_sync(operator: Operator) -> None:
    while not operator.observer.synced:
        try:
            await operator.observer.resync()
        except Unreachable as error:
            logger.warning("the ledger can't be read yet, trying again: %s", error)
            await asyncio.sleep(START_PAUSE_S)
    logger.info("the ledger is read; ready")
    await operator.observer.resync_every(operator.settings.resync_interval_s)


async def _watch(operator: Operator) -> None:
    await kopf.operator(
        registry=build_registry(operator.client, operator.observer, operator.counts),
        settings=build_settings(operator.settings.scheduler_name),
        clusterwide=True,
    )


async def _first_to_end(*parts: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(part) for part in parts]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for task in done:
        task.result()
