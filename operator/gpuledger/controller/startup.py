"""Builds the parts of the operator and runs them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import kopf
from aiohttp import web
from kopf._core.engines.peering import Identity

from gpuledger.configuration.settings import Settings
from gpuledger.controller.kopf_handlers import NoMemories, build_registry, build_settings
from gpuledger.controller.scheduler_config import given_through, scheduler_config_text
from gpuledger.controller.trail_file import trail_written
from gpuledger.controller.web.view_access import access_for
from gpuledger.controller.web.view_server import ViewServer
from gpuledger.controller.webhook import serve_webhook
from gpuledger.controller.wiring import Operator, build_operator
from gpuledger.formats.objects.lease import LEASE_DURATION_S, LEASE_NAME, LEASE_NAMESPACE
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS, PODS, KubeReads, leases_in, pods_in, pods_of
from gpuledger.kube_api.reviews import KubeReviews
from gpuledger.kube_api.watch import follow
from gpuledger.model.errors import Conflict, Unreachable
from gpuledger.workflows.inventory.agent_pods import AGENT_SELECTOR
from gpuledger.workflows.preemption.preempt import SETTLE_S
from gpuledger.workflows.tasks.pauses import rest
from gpuledger.workflows.tasks.restart import started_again

logger = logging.getLogger(__name__)

START_PAUSE_S = 1.0

PAUSE_TO_WORK = 3.0
"""How long the search for victims pauses, by how long it took."""

AGENTS_WAIT_S = 5.0
"""How long the start waits for the list of the node agents' pods: without it, the kubelets' word alone counts."""


async def run(
    settings: Settings, kubeconfig: Path | None, host: str | None = None, scheduler_pipe: Path | None = None
) -> None:
    """Run until a signal. A part that fails is started again.

    With a host name, write only while the kube-scheduler of that host holds the schedulers' Lease. Through a pipe, if
    there is one, that kube-scheduler gets its configuration. Raises WentBack when nothing that is remembered can be
    trusted: whoever runs the process starts it again.
    """
    client = await KubeClient.connect(kubeconfig)
    try:
        operator = build_operator(client, settings, host)
        operator.garbage.start()
        operator.workflows.observer.on_compared.append(partial(_after_comparing, operator))
        async with contextlib.AsyncExitStack() as sites:
            # Started before Kopf, which ends every task that began after its own.
            await _serve(sites, operator.server.health(), settings.health_host, settings.health_port)
            await _serve(sites, operator.server.extender(), settings.listen_host, settings.listen_port)
            logger.info("extender at %s", settings.extender_url)
            if scheduler_pipe is not None:
                content = scheduler_config_text(settings, leader_elect=host is not None)
                await sites.enter_async_context(given_through(scheduler_pipe, content))
            if settings.view_port:
                access = access_for(settings.view_host, KubeReviews(client))
                view = ViewServer(operator.view_source, access)
                await _serve(sites, view.application(), settings.view_host, settings.view_port)
                logger.info("page at http://%s:%d", settings.view_host, settings.view_port)
            sites.push_async_callback(operator.workflows.waiting.stop)
            sites.push_async_callback(operator.workflows.preemption.stop)
            sites.push_async_callback(operator.workflows.waiting_teller.stop)
            sites.enter_context(trail_written(operator.workflows.trail, settings.trail_file))
            parts = [_keep_in_sync, _watch, _follow_pending_pods, _give_room, _follow_cards, _follow_agents, _preempt]
            if host is not None:
                parts.append(_follow_lease)
            await _first_to_end(*(started_again(part.__name__, partial(part, operator)) for part in parts))
    finally:
        await client.close()


async def _serve(sites: contextlib.AsyncExitStack, application: web.Application, host: str, port: int) -> None:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    sites.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port).start()


async def _keep_in_sync(operator: Operator) -> None:
    """Read everything once, at the start and whenever this operator becomes active; then compare now and then.

    What is watched is read after the lists of these watches: else what changes in between would be seen by nobody.
    """
    workflows = operator.workflows
    await operator.kopf_lists.first.wait()
    with contextlib.suppress(TimeoutError):  # nodes are not opened that would be closed at once; but nobody has to wait
        await asyncio.wait_for(workflows.agents.listed.wait(), AGENTS_WAIT_S)
    if operator.settings.preemption == "auto":
        await _until_it_works(lambda: _find_out_who_preempts(operator))
    while True:
        if not workflows.leadership.is_active():
            await _until_it_works(workflows.observer.resync)
            logger.info("the ledger is read; ready to take over")
            await workflows.leadership.wait_active()
        await _until_it_works(workflows.observer.take_over)
        workflows.room_has_changed.set()  # for those who wait since before
        logger.info("the ledger is read; ready")
        interval_s = operator.settings.resync_interval_s
        comparing = workflows.observer.resync_every(interval_s, operator.kopf_lists.again)
        await _first_to_end(workflows.leadership.wait_passive(), comparing)


async def _find_out_who_preempts(operator: Operator) -> None:
    workflows = operator.workflows
    version = await KubeReads(operator.client).server_version()
    workflows.who_preempts.know(version)
    who = "kube-scheduler, which asks" if workflows.who_preempts.scheduler else "the operator itself"
    logger.info("Kubernetes %d.%d: preemption is done by %s", *version, who)


async def _until_it_works(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
            return
        except (Unreachable, Conflict) as error:  # no answer, or a list that has expired between two of its pages
            logger.warning("the ledger can't be read yet, trying again: %s", error)
            await asyncio.sleep(START_PAUSE_S)


async def _follow_pending_pods(operator: Operator) -> None:
    observer = operator.workflows.observer
    selector = {"fieldSelector": pods_of(operator.settings.scheduler_names, bound=False)}
    await follow(operator.client, PODS, selector, observer.pending_pod, observer.pending_listing)


async def _follow_cards(operator: Operator) -> None:
    await follow(operator.client, ALLOCATIONS, {}, operator.workflows.observer.allocation, operator.kopf_lists.listing)


async def _follow_agents(operator: Operator) -> None:
    path, selector = pods_in(LEASE_NAMESPACE), {"labelSelector": AGENT_SELECTOR}
    agents = operator.workflows.agents
    await follow(operator.client, path, selector, agents.observe, agents.listing)


async def _follow_lease(operator: Operator) -> None:
    path, selector = leases_in(LEASE_NAMESPACE), {"fieldSelector": f"metadata.name={LEASE_NAME}"}
    # Whoever holds it renews it all the time: a watch that shows nothing for as long as it lasts is broken.
    silence_s = float(LEASE_DURATION_S)
    observe = operator.workflows.leadership.observe
    await follow(operator.client, path, selector, observe, lambda: lambda _: None, silence_s)


async def _give_room(operator: Operator) -> None:
    """Give room to those who wait as soon as there is some: something has changed, or a hold has come to its end.

    A new hold is a change, too: the next end is then looked up anew. In a cluster at rest nothing runs.
    """
    workflows = operator.workflows
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(workflows.placer.next_expiry_s()):
                await workflows.room_has_changed.wait()
        workflows.room_has_changed.clear()
        workflows.placer.expire_holds()
        if workflows.observer.synced and workflows.leadership.is_active():
            begin_s = time.perf_counter()
            is_more = workflows.waiting.give_room()
            workflows.preemption.room_has_changed()
            if workflows.placer.look_further() or is_more:
                workflows.room_has_changed.set()
                await rest(begin_s)  # whoever asks meanwhile goes first


async def _preempt(operator: Operator) -> None:
    """Look for victims when somebody may need some. In a cluster at rest nothing runs, and in a busy one others do."""
    workflows = operator.workflows
    took_s = 0.0
    while True:
        await workflows.preemption.wanted.wait()
        await asyncio.sleep(max(SETTLE_S, PAUSE_TO_WORK * took_s))
        begin_s = asyncio.get_running_loop().time()
        workflows.preemption.wanted.clear()
        if workflows.observer.synced and workflows.leadership.is_active():
            await workflows.preemption.decide()
        took_s = asyncio.get_running_loop().time() - begin_s


def _after_comparing(operator: Operator) -> None:
    operator.garbage.settle()
    if operator.workflows.leadership.is_active():
        operator.workflows.unlinked.tell()


async def _watch(operator: Operator) -> None:
    registry = build_registry(operator.client, operator.workflows.observer, operator.kopf_lists)
    settings = build_settings(operator.settings.scheduler_names)
    serve_webhook(registry, settings, operator.settings)
    me = Identity(socket.gethostname())  # else Kopf asks for this user's name, and the image's user has none
    await kopf.operator(identity=me, registry=registry, settings=settings, memories=NoMemories(), clusterwide=True)


async def _first_to_end(*parts: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(part) for part in parts]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for task in done:
        task.result()
