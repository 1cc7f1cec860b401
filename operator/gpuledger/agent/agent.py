"""One process of the agent, on the node whose cards it serves: its parts, its Events, and its end.

It ends upon a signal, a failure, or other settings.

In its last seconds the kubelet still accepts pods that were bound in time. A pod for which the kubelet gets no slots
from its plugin has failed for good. From the moment that the agent's own pod is being deleted, as in an upgrade, the
operator sends no pod here; those that it has sent before, the kubelet takes up within moments. So the plugin goes on
serving until it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from gpuledger.agent.config import AgentConfig, agent_config, device_source
from gpuledger.agent.confirmation import Confirmation
from gpuledger.agent.devices.source import DeviceSource, Snapshot, node_cards, why_no_limits
from gpuledger.agent.devices.watcher import DeviceWatcher
from gpuledger.agent.ended_pods import EndedPods, Sight, look_for_pods, sees_processes
from gpuledger.agent.fault_memory import FaultFile
from gpuledger.agent.grants.claims import ClaimService
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.grants.grants import Grants, NodeCapabilitiesReader, OrphanedGrants
from gpuledger.agent.grants.ledger_view import LedgerView
from gpuledger.agent.grants.starts import ContainerStarts
from gpuledger.agent.isolation.choice import Installed, Isolation
from gpuledger.agent.isolation.driver_limits import ControlGroups, DriverLimits
from gpuledger.agent.isolation.hami_core import HamiCoreLibrary
from gpuledger.agent.isolation.mps_view import MpsView, report_faults
from gpuledger.agent.kubelet.device_plugin import DevicePlugin, VendorSlots
from gpuledger.agent.kubelet.slot_owners import PodResources, SlotOwners
from gpuledger.agent.metrics import HealthServer, counter, gauge
from gpuledger.agent.node_entry import NodeAnnotation, NodeCapacity, Reconciler, ResourceSlices
from gpuledger.agent.supervisor import BEAT_INTERVAL_S
from gpuledger.agent.usage.idle import IdleShares
from gpuledger.agent.usage.monitor import Monitor, resume_all
from gpuledger.agent.usage.report import Comparison, ContainerOfPod, UsageReport
from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import ENDS_ANNOTATION
from gpuledger.formats.confirmation import GRANTED_ANNOTATION
from gpuledger.formats.idle import IDLE_ANNOTATION, idle_annotation, read_idle
from gpuledger.formats.kubernetes.node import NVIDIA, REGISTER_ANNOTATION, register_of, repaired_at
from gpuledger.formats.kubernetes.other import node_event, node_event_once
from gpuledger.formats.kubernetes.pod import container_names, is_finished, leaves_at, started_at
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import NODES, PODS, KubeReads
from gpuledger.kube_api.watch import follow
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, BadInput, Conflict, EventReason
from gpuledger.serving import application_served
from gpuledger.workflows.list_and_watch import settings_in_cluster, until_settings_differ
from gpuledger.workflows.tasks import wait_first

logger = logging.getLogger(__name__)

LAST_BINDINGS_S = 1.0
"""How long the operator may take to notice, and what it has begun to arrive."""

LONGEST_S = 6.0
"""Less than the supervisor's patience, and than the pod's time to end."""

POLL_INTERVAL_S = 0.3

_NO_LIBRARY = "no image has brought it"


async def wait_for_bound_pods(node_name: str, store: KubeReads) -> None:
    """Return when the kubelet has taken up every pod that is bound to this node, or after LONGEST_S."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await asyncio.sleep(LAST_BINDINGS_S)
            while waiting := await _waiting(node_name, store):
                logger.info("the agent exits after the kubelet has accepted %d bound pods", waiting)
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        logger.warning("the kubelet has not accepted its bound pods in time; those that request GPUs may fail")
    except ApiError as error:
        logger.warning("the pods that wait for the kubelet can't be listed: %s", error)


async def _waiting(node_name: str, store: KubeReads) -> int:
    return sum(await store.pods_of_node(node_name, _waits))


def _waits(pod: dict[str, Any]) -> bool:
    return not started_at(pod) and not is_finished(pod) and not leaves_at(pod)


class NodeEvents:
    """Posts Events, and waits for none: one that can't be created is in the log."""

    def __init__(self, node_name: str, store: KubeWrites) -> None:
        self._node_name, self._store = node_name, store
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, reason: EventReason, sentence: str, key: str = "") -> None:
        """Post a warning; one with a key only once, also by an agent that has started again."""
        logger.warning("%s", sentence)
        about = self._node_name, reason, sentence, datetime.now(UTC)
        task = asyncio.create_task(self._create(node_event_once(*about, key) if key else node_event(*about)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, event: Mapping[str, Any]) -> None:
        try:
            await self._store.create_event(dict(event))
        except Conflict:
            logger.info("node %s: the Event exists already", self._node_name)
        except ApiError as error:
            logger.warning("node %s: the Event could not be created: %s", self._node_name, error)


LOOK_INTERVAL_S = 30.0
"""How often processes are compared, and pods looked for that are gone. This only reads, on the node."""

THREAD_SILENCE_S = 60.0
"""A thread that has not come round for so long hangs in the driver, which needs seconds for a card that it wakes."""

KUBELET_SILENCE_S = 60.0
"""How long a kubelet may be gone before that counts as our fault."""


WORDS = (GRANTED_ANNOTATION, IDLE_ANNOTATION, SERVES_CLAIMS_ANNOTATION)
"""Annotations of the Node that say what containers have and do, and whether claims are served."""


class AgentStore(KubeReads, KubeWrites):
    """The agent's requests to the API server."""


class Agent:
    """The parts that run on one node."""

    def __init__(self, plan: AgentConfig, source: DeviceSource, client: KubeClient) -> None:
        self._plan, self._client = plan, client
        node_name, store = plan.node_name, AgentStore(client)
        self._store = store
        self.cards: tuple[Card, ...] = ()
        self._snapshot: Snapshot | None = None
        self._isolation: Isolation | None = None  # as the cards were listed last
        self._versions = ("", "")  # of the driver, and of CUDA, as last reported
        self._known, self._cards_have_changed = asyncio.Event(), asyncio.Event()
        self._slots = {vendor: VendorSlots() for vendor in plan.resources}
        self._device_plugins: dict[str, list[DevicePlugin]] = {}  # vendor -> its resources, once it has cards here
        self._pod_resources = lister = PodResources(plan.kubelet_directory / "pod-resources" / "kubelet.sock")
        self._monitor = Monitor(lambda: self._grants.all(), plan.monitor_interval_s)
        shares = plan.state_directory / "shares"
        self._grants = GrantFiles(plan.cdi_directory, shares, plan.with_cdi, self._monitor.wake)
        self._plugins = plan.kubelet_directory / "device-plugins"
        self._mps = MpsView(Path(plan.mps_directory), self._grants.all) if plan.mps_daemon else None
        owners = SlotOwners(node_name, self._plugins, store, lister)
        self._ledger = LedgerView(node_name, store, self._indexes)
        self._hami_core = HamiCoreLibrary(
            Path(plan.hami_core_directory), plan.hami_core_image_directory, plan.hami_core_sha256
        )
        self._capabilities = NodeCapabilitiesReader(
            plan, self._hami_core, lambda: self._why_no_limits, self._mps.pipes if self._mps else None
        )
        memory, prompt = FaultFile(plan.state_directory), plan.isolation in (Isolation.DRIVER, None)
        self._watcher = DeviceWatcher(source, plan.health, self._take_in, plan.poll_interval_s, memory, prompt=prompt)
        self._why_no_limits = Installed().why_no_driver_limits
        self._by_driver = DriverLimits(
            plan.state_directory / "limits", self._grants.all, ControlGroups(), self._watcher.limit_memory
        )
        self._ends = NodeAnnotation(node_name, store, ENDS_ANNOTATION)
        counts = {resource for resources in plan.resources.values() for resource in resources}
        self._ended = EndedPods(counts, _look_for_pods, self._ends.want, self._prepared if plan.serves_claims else None)
        self._granting = Grants(self._grants, self._capabilities, self._by_driver, self._ended.may_run)
        self._starts = ContainerStarts(owners, self._ledger, self._granting)
        granted, self._idle, serves_claims = (NodeAnnotation(node_name, store, word) for word in WORDS)
        directory = plan.kubelet_directory if plan.serves_claims else None
        self._claims = ClaimService(
            node_name, directory, serves_claims, store, lister, self._ledger, self._granting, self._ended.over
        )
        self._orphaned_grants = OrphanedGrants(node_name, self._grants.all, lister, store, self._ended.over)
        self._confirmation = Confirmation(granted, self._grants.all, self._ended)
        self._register = NodeAnnotation(node_name, store, REGISTER_ANNOTATION, after=granted)
        self._capacity = plan.capacity and NodeCapacity(node_name, store, plan.capacity.amounts(()))
        self._resource_slices = plan.resource_slices and ResourceSlices(node_name, store, client)
        entries = (granted, self._idle, self._register, self._ends, serves_claims)
        self._on_node: list[Reconciler[Any]] = [e for e in (*entries, self._capacity, self._resource_slices) if e]
        self._events = NodeEvents(node_name, store)
        comparison = Comparison(
            self._grants.all,
            self._may_use,
            partial(self._events.post, EventReason.USED_WITHOUT_SHARE),
            containers=self._containers,
            node_pods=self._mps.pods if self._mps else tuple,
        )
        idle = IdleShares(plan.idle_after_s)
        self._usage = UsageReport(node_name, self._grants.all, self._watcher.uses, comparison, self._monitor, idle)
        self._has_cards = asyncio.Event()
        self._node_seen: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._connected_s = asyncio.get_running_loop().time()

    async def run(self, beat: int | None = None) -> None:
        """Run until cancelled, or until a part fails; `beat` is a pipe to write a byte to while all is well."""
        self._grants.load()
        with contextlib.suppress(OSError):  # that is tried again, and said
            await asyncio.to_thread(self._hami_core.refresh)
        self._starts.remove_left_overs()
        self._by_driver.resume()
        async with contextlib.AsyncExitStack() as sites:
            sites.callback(self._by_driver.close)
            await self._serve_health(sites)
            async with asyncio.TaskGroup() as group:
                if beat is not None:
                    group.create_task(_beat(beat))
                group.create_task(self._watcher.run())
                for entry in self._on_node:
                    group.create_task(entry.run())
                selector = {"fieldSelector": f"metadata.name={self._plan.node_name}"}
                group.create_task(follow(self._client, NODES, selector, self._observe_node, lambda: lambda _: None))
                group.create_task(self._look_after_ended_pods())
                group.create_task(self._confirmation.run())
                group.create_task(self._tell_if_nothing_is_enforced())
                group.create_task(self._serve_kubelet())
                group.create_task(self._look_around())
                group.create_task(self._hami_core.run(self._mounted))
                if self._mps:
                    group.create_task(report_faults(self._mps, partial(self._events.post, EventReason.MPS_FAULT)))
                group.create_task(self._monitor.run())
                group.create_task(self._monitor.keep_small())
                group.create_task(self._serve_claims())

    async def wait_for_bound_pods(self) -> None:
        """Return when the agent may end without harm to a pod that was bound to its node before."""
        await wait_for_bound_pods(self._plan.node_name, self._store)

    def _observe_node(self, node: dict[str, Any], gone: bool) -> None:
        for entry in self._on_node:
            entry.observe(node, gone)
        at = repaired_at(node)
        if at is not None:
            self._watcher.repaired(at)
        if not self._node_seen.done():
            self._node_seen.set_result(node)

    async def _look_after_ended_pods(self) -> None:
        """Follow this node's pods, once it has cards; where their processes can't be seen, say nothing of them."""
        may_look = await sees_processes(self._plan.own_pod_uid, self._plan.node_name, self._store)
        if may_look and self._plan.own_pod_uid:  # before it has cards: a node that lists some says first who answers
            self._confirmation.begin(await self._node_seen)
        else:
            self._confirmation.decline()
        await self._has_cards.wait()
        if not may_look:
            logger.warning("without hostPID, the agent can't see processes of pods that were deleted by force")
            self._ended.complete.set()
            return
        self._ended.remember(await self._node_seen, {grant.pod_uid for grant in self._grants.all() if grant.of_one_pod})
        selector = {"fieldSelector": f"spec.nodeName={self._plan.node_name}"}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ended.run())
            group.create_task(follow(self._client, PODS, selector, self._observe_pod, self._ended.listing))

    def _observe_pod(self, pod: dict[str, Any], gone: bool) -> None:
        self._ended.observe(pod, gone)
        if pod["metadata"]["uid"] == self._plan.own_pod_uid:
            self._confirmation.observe(pod, gone)

    async def _tell_if_nothing_is_enforced(self) -> None:
        """Tell of a node that keeps nobody to a share, though nobody has chosen that: as soon as it has cards."""
        await self._has_cards.wait()
        if self._plan.isolation is None and any(card.mode == Isolation.NONE for card in self.cards):
            why = self._capabilities().installed
            self._events.post(
                EventReason.SHARES_NOT_ENFORCED,
                f"node {self._plan.node_name}: nothing keeps containers to their shares of GPUs: HAMi-core: "
                f"{why.why_no_hami_core or _NO_LIBRARY}; the driver's limits: {why.why_no_driver_limits}. "
                "See docs/isolation.md; if it is meant, set isolation: none",
                key="since the agent has cards",
            )

    def _take_in(self, snapshot: Snapshot | None) -> None:
        """Observe what the driver shows now."""
        self._snapshot = snapshot
        if snapshot is None:
            logger.error("the NVIDIA driver is not available: no container can start")
            self.cards = tuple(
                replace(card, healthy=False, fault="the NVIDIA driver is not available", failure=None)
                for card in self.cards
            )
            for slots in self._slots.values():
                slots.withdraw()
        else:
            versions = snapshot.driver_version, snapshot.cuda_version
            if versions != self._versions:
                logger.info("driver %s, CUDA %s, %d cards", *versions, len(snapshot.devices))
            self._versions = versions
            self._why_no_limits = why_no_limits(snapshot)
            self._isolation = isolation = self._capabilities().isolation
            self.cards = node_cards(
                snapshot,
                self._plan.node_name,
                self._plan.config_for(isolation),
                self._plan.keeps_reserved_memory(isolation),
            )
            for vendor, slots in self._slots.items():
                slots.offer(sum(card.capacity.number for card in self.cards if card.vendor == vendor))
        if self.cards:
            self._has_cards.set()
        if self.cards or snapshot is not None:
            self._register.want(register_of(self.cards))
            if self._capacity and self._plan.capacity:
                self._capacity.want(self._plan.capacity.amounts(self.cards))
            if self._resource_slices:
                self._resource_slices.want(self.cards)
        self._claims.show(self.cards)
        self._known.set()
        self._cards_have_changed.set()

    async def _serve_kubelet(self) -> None:
        """Serve the resources of each vendor that has cards here; NVIDIA's on a node whose cards are not known yet."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._cards_have_changed.wait()
                self._cards_have_changed.clear()
                vendors = {card.vendor for card in self.cards} or {NVIDIA}
                for vendor in sorted(vendors - self._device_plugins.keys()):
                    resources = self._plan.resources.get(vendor, ())
                    self._device_plugins[vendor] = [self._device_plugin(each, vendor) for each in resources]
                    for plugin in self._device_plugins[vendor]:
                        group.create_task(plugin.run())
                    group.create_task(self._starts.rebuild(resources))  # beside it: the API server may be away

    async def _serve_claims(self) -> None:
        await self._has_cards.wait()
        await self._claims.run()

    def _device_plugin(self, resource: str, vendor: str) -> DevicePlugin:
        return DevicePlugin(resource, self._plugins, self._slots[vendor], self._starts.allocate, self._starts.start)

    def _connected(self) -> bool:
        return all(plugin.connected for plugins in self._device_plugins.values() for plugin in plugins)

    async def _look_around(self) -> None:
        """Compare processes with shares, and remove what belongs to pods that are gone."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self._tidy()
            self._list_cards_again()
            await self._usage.look()
            await self._tell_what_is_idle()

    async def _tell_what_is_idle(self) -> None:
        """Show on the Node which shares are idle."""
        now, first = self._store.server_now(), await self._node_seen
        if now is None:
            return
        idle = self._usage.idle
        if not idle.has_begun:
            with contextlib.suppress(BadInput):  # then it begins with nothing
                idle.resume(read_idle(first).shares, now)
        self._idle.want(idle_annotation(self._usage.idle_shares(now), now, self._plan.own_pod_uid))

    def _list_cards_again(self) -> None:
        """List the cards as before, if another way to isolate fits the node now."""
        if self._snapshot is not None and self._capabilities().isolation is not self._isolation:
            self._take_in(self._snapshot)

    async def _tidy(self) -> None:
        """Forget pods that are gone."""
        self._by_driver.tidy()
        try:
            self._claims.give_up(await self._orphaned_grants.find())
        except ApiError as error:
            logger.info("pods that are gone can't be looked up yet, retrying: %s", error)

    async def _containers(self) -> dict[str, ContainerOfPod]:
        """Return the id of each container of this node -> its pod and its name."""
        found: dict[str, ContainerOfPod] = {}
        for each in await self._store.pods_of_node(self._plan.node_name, _containers_of):
            found |= each
        return found

    def _prepared(self) -> frozenset[tuple[str, str]]:
        return self._claims.prepared()

    def _indexes(self) -> dict[str, int]:
        return {card.uuid: card.index for card in self.cards}

    async def _may_use(self, pod_uid: str, uuid: str) -> bool:
        return await self._ledger.holds(pod_uid, uuid) or await self._claims.shares(pod_uid, uuid)

    def _mounted(self) -> set[str]:
        """Return the paths of the node that containers have mounted."""
        return {mount["hostPath"] for grant in self._grants.all() for mount in grant.edits.get("mounts", ())}

    # Health.

    async def _serve_health(self, sites: contextlib.AsyncExitStack) -> None:
        server = HealthServer(self._dead, self._not_ready, self._metrics, lambda: self._usage.answer(self.cards))
        at_port = application_served(server.application(), self._plan.health_host, self._plan.health_port)
        await sites.enter_async_context(at_port)

    def _dead(self) -> list[str]:
        now_s = asyncio.get_running_loop().time()
        problems = []
        if now_s - self._watcher.last_alive_s() > THREAD_SILENCE_S:
            problems.append("the thread that talks to the driver hangs")
        if not self._known.is_set() or self._connected():
            self._connected_s = now_s
        elif now_s - self._connected_s > KUBELET_SILENCE_S:
            problems.append(f"the kubelet has not been connected for {KUBELET_SILENCE_S:g} s")
        return problems

    def _not_ready(self) -> list[str]:
        problems = []
        if not self._known.is_set():
            problems.append("the cards are not known yet")
        if not self._connected():
            problems.append("the kubelet is not connected")
        if not self._register.written:
            problems.append("the node's annotation does not list its cards yet")
        if self._has_cards.is_set() and not self._ended.complete.is_set():
            problems.append("which pods have ended is not known yet")
        return problems

    def _metrics(self) -> Iterable[Metric]:
        slots = [([vendor], float(each.count * each.usable)) for vendor, each in self._slots.items()]
        yield gauge("slots", "Slots that the kubelet can allocate.", slots, ["vendor"])
        yield gauge("driver_up", "Whether the driver answers.", [([], self._snapshot is not None)])
        yield gauge("driver_info", "Versions of driver and CUDA.", [([*self._versions], 1.0)], ["driver", "cuda"])
        library = self._hami_core.found()
        versions = [([library.version, library.sha256], 1.0)] if library else []
        yield gauge("hami_core_info", "The HAMi-core of new containers.", versions, ["version", "sha256"])
        cards = [([card.uuid, str(card.index)], float(card.healthy)) for card in self.cards]
        yield gauge("card_healthy", "Whether a card takes pods.", cards, ["uuid", "index"])
        starts = [([outcome], float(number)) for outcome, number in self._starts.outcomes.items()]
        yield counter("container_starts", "Container starts, by outcome.", starts, ["outcome"])
        yield from self._claims.metrics()
        if self._mps:
            yield from self._mps.metrics()
        writes = float(sum(entry.writes for entry in self._on_node))
        yield counter("node_writes", "Writes of this node's annotations, capacity and ResourceSlices.", [([], writes)])
        yield counter("pod_resources_reads", "Reads of the kubelet's list.", [([], float(self._pod_resources.reads))])
        yield from self._usage.metrics(self.cards, self._plan.metrics_compatibility)


def _containers_of(pod: dict[str, Any]) -> dict[str, ContainerOfPod]:
    uid = pod["metadata"]["uid"]
    return {identity: ContainerOfPod(uid, name) for identity, name in container_names(pod).items()}


async def _look_for_pods(containers: Mapping[str, Collection[str]]) -> Sight:
    return await asyncio.to_thread(look_for_pods, Path("/proc"), containers)


async def _beat(pipe: int) -> None:
    while True:
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, b".")
        await asyncio.sleep(BEAT_INTERVAL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of `gpuledger agent`."""

    settings: Settings
    """Before the cluster was asked: of ConfigMaps that they name, only the names."""
    settings_file: Path | None
    node_name: str
    kubelet_directory: Path
    pod_uid: str = ""
    kubeconfig: str | None = None
    context: str | None = None

    def plan(self, settings: Settings) -> AgentConfig:
        """Return the plan by these settings. Raises BadInput."""
        return agent_config(settings, self.node_name, self.kubelet_directory, self.pod_uid)


async def run_agent(options: AgentOptions, beat: int | None = None) -> None:
    """Run an agent until SIGTERM, until a part fails, or until a ConfigMap changes what it does.

    In the last two cases its process is to be started again. Raises BadInput if the settings can't be used.
    """
    asked_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    await resume_all(Path(options.settings.cdi_directory))
    client = await KubeClient.connect(options.kubeconfig, options.context)
    try:
        settings = await settings_in_cluster(client, options.settings, options.settings_file)
        plan = options.plan(settings)
        agent = Agent(plan, device_source(settings), client)
        changed = until_settings_differ(
            client, settings, options.settings_file, lambda found: options.plan(found) != plan
        )
        await wait_first(agent.run(beat), _leave(asked_to_end.wait(), agent), _leave(changed, agent))
    finally:
        await client.close()


async def _leave(asked_to_end: Awaitable[object], agent: Agent) -> None:
    await asked_to_end
    await agent.wait_for_bound_pods()
