"""The operator as Kopf runs it: built by `on.startup`, stopped by `on.cleanup`, and shown Nodes and Pods in between.

Kopf watches Nodes, and Pods where the cluster has few nodes; workflows/kinds.py has the table.
Their handlers are `on.event` ones, which return None: all others make Kopf write annotations or finalizers to the
objects that they watch. What a watch may miss, a comparison with full lists finds.

`kopf run -m gpuledger.controller.kopf_frame -A` starts the same operator as `gpuledger run`, with that command's
options from the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import kopf

from gpuledger.controller.kopf_session import InHand, session
from gpuledger.controller.startup import Operator, RunOptions, build_operator, options_from, run_parts, serve
from gpuledger.controller.webhook import serve_webhook
from gpuledger.kube_api import lean_import
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import ApiError
from gpuledger.model.json_object import Json
from gpuledger.workflows.kinds import Watcher
from gpuledger.workflows.list_and_watch import settings_in_cluster
from gpuledger.workflows.system_clock import SystemClock

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause before a request of Kopf's is repeated that had no answer."""

LISTED = 1
"""Objects that Kopf asks for when it lists: of the list it gets the version alone."""

IDLE_S = 0.01
"""How long Kopf's task for an object, which it has after an event, waits for the next one."""

LONGEST_EXIT_S = 10.0
"""From a signal to the end of the process, after which Kopf kills it."""


NO_FINALIZER = "none: no object has this one"
"""Kopf removes its finalizer from any object that it watches, and by default every Kopf operator has the same. This is
no valid name."""


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing: Kopf's comparison of old and new objects is half the cost of an event, and not needed here."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> Any:
        """Return nothing to compare."""
        return {}

    def fetch(self, *, body: kopf.Body) -> Any:
        """Return nothing to compare with."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """Write nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Have Kopf read what it must, and write nothing."""
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.watching.chunk_size = LISTED
    settings.queueing.idle_timeout = IDLE_S
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = itertools.repeat(RETRY_S)  # its own grow to 21 s, and end the process then
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.finalizer = NO_FINALIZER
    settings.process.ultimate_exiting_timeout = LONGEST_EXIT_S


class KopfFrame:
    """One operator in Kopf's hands. Whatever goes wrong at the start, or ends a part, ends Kopf in good order."""

    def __init__(self, registry: kopf.OperatorRegistry, read_options: Callable[[], RunOptions]) -> None:
        self.failure: BaseException | None = None
        """Why the operator ends, unless a signal ended it."""
        self._registry = registry
        self._read_options = read_options
        self._operator: Operator | None = None
        self._started = contextlib.AsyncExitStack()
        os.environ.setdefault("POD_ID", socket.gethostname())  # else Kopf asks for a user's name, and images have none
        kopf.on.startup(registry=registry)(self.start)
        kopf.on.cleanup(registry=registry)(self.stop)
        kopf.on.login(registry=registry)(self.log_in)
        kopf.on.probe(registry=registry, id="ledger")(self.probe)

    async def start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Build the parts and let them run. If that fails, Kopf begins, and ends at once."""
        try:
            configure(settings)
            await self._start(self._read_options(), settings)
        except Exception as error:  # noqa: BLE001 - Kopf's caller gets it
            self._end(error)

    async def _start(self, options: RunOptions, settings: kopf.OperatorSettings) -> None:
        async with contextlib.AsyncExitStack() as started:
            client = await KubeClient.connect(options.kubeconfig, options.context)
            started.push_async_callback(client.close)
            settings_now = await settings_in_cluster(client, options.settings, options.settings_file)
            options = replace(options, settings=settings_now)
            pods_by = await _watcher_of_pods(client, options.settings.kopf_pods_most_nodes)
            who = options.host_name, options.replica_token, pods_by
            operator = build_operator(client, options.settings, SystemClock(), *who)
            self._watch(operator, settings)
            serve_webhook(self._registry, settings, options.settings)
            await serve(operator, options, started)
            parts = asyncio.create_task(run_parts(operator, options), name="parts of gpuledger")
            started.push_async_callback(_stopped, parts)
            parts.add_done_callback(self._parts_ended)
            self._operator = operator
            self._started = started.pop_all()

    async def stop(self, **_: Any) -> None:
        """Stop the parts, in the reverse order; once is enough."""
        started, self._started = self._started, contextlib.AsyncExitStack()
        await started.aclose()

    async def log_in(self, **_: Any) -> kopf.AiohttpSession:
        """Return a connection to the API server."""
        operator = await self._built()
        return session(operator.client, operator.lists)

    async def probe(self, **_: Any) -> str:
        """Return the state of the ledger for Kopf's own liveness endpoint, where that is served."""
        return "read" if (await self._built()).workflows.observer.synced else "not read yet"

    def _watch(self, operator: Operator, settings: kopf.OperatorSettings) -> None:
        """Have Kopf watch its kinds."""
        for each in operator.subscriptions:
            if each.kind.watcher is Watcher.KOPF:
                what = ("", "v1", each.kind.plural)
                settings.watching.field_selectors[what] = each.kind.fields
                shown = partial(show, each.observe, operator.lists.in_hand[each.kind.plural])
                kopf.on.event(*what, registry=self._registry, id=each.kind.plural)(shown)

    async def _built(self) -> Operator:
        """Return the operator. Where there is none, because its start has failed, wait for the end."""
        while self._operator is None:
            await asyncio.Event().wait()
        return self._operator

    def _parts_ended(self, parts: asyncio.Task[None]) -> None:
        if not parts.cancelled():
            self._end(parts.exception())

    def _end(self, why: BaseException | None) -> None:
        """Have Kopf end as if by a signal: its own way out, whichever command has started it."""
        self.failure = why
        # Not at once: Kopf may not listen for signals yet.
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)


async def _watcher_of_pods(client: KubeClient, most_nodes: int) -> Watcher:
    """Return what is to watch pods, by the number of nodes; without an answer, what can do it in any cluster."""
    try:
        is_small = most_nodes > 0 and await KubeReads(client).number_of_nodes() <= most_nodes
    except ApiError as error:
        logger.warning("nodes can't be counted: %s", error)
        is_small = False
    watcher = Watcher.KOPF if is_small else Watcher.PLAIN
    logger.info("pods are watched by %s", watcher.value)
    return watcher


async def show(observe: Callable[[Json, bool], None], in_hand: InHand, event: kopf.RawEvent, **_: Any) -> None:
    """Have an event of Kopf's observed, which is handled then."""
    try:
        observe(dict(event["object"]), event["type"] == "DELETED")
    finally:
        in_hand.handled()
        forget_long(event)


def forget_long(event: kopf.RawEvent) -> None:
    """Empty an object that was observed of what can be long.

    Kopf's own objects refer to each other in circles, and would keep it until garbage is collected. That is seldom: it
    goes by how many objects there are, and one pod can have a text of 5 MB, as Python keeps it.
    """
    event["object"].pop("spec", None)
    event["object"].pop("status", None)


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def run(options: RunOptions) -> None:
    """Run until a signal.

    Raises the start's errors, and StateRolledBack when nothing in memory can be trusted any more: the process has to be
    started again.
    """
    registry = kopf.OperatorRegistry()
    frame = KopfFrame(registry, lambda: options)
    try:
        await kopf.operator(registry=registry, clusterwide=True)
    finally:
        await frame.stop()
    if frame.failure is not None:
        raise frame.failure


lean_import.install()


frame = KopfFrame(kopf.get_default_registry(), partial(options_from, os.environ))


@kopf.on.cleanup()
async def raise_failure(**_: Any) -> None:
    """Have the command fail if the operator has: Kopf takes its end for one that was wished."""
    if frame.failure is not None:
        raise kopf.PermanentError(str(frame.failure)) from frame.failure
