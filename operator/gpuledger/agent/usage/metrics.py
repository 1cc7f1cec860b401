"""Use of cards and of shares: compared with the grants, and shown as the agent's metrics.

There are also metrics under the names of HAMi's and Volcano's monitors. With these, dashboards and alerts made for
those go on working. Sources: HAMi v2.10, cmd/vGPUmonitor/metrics.go in github.com/Project-HAMi/HAMi: names that begin
with hami_, and those from before v2.9 (`--legacy-metrics`), which Volcano's monitor has, too, with fewer labels:
cmd/vgpu-monitor/metrics.go in github.com/Project-HAMi/volcano-vgpu-device-plugin. All have zone="vGPU".

Their units are kept, whatever the names say: memory is in bytes, utilization in percent. Of MIG devices there is
nothing among them, and of a memory's parts only what a container's HAMi-core has counted.

The driver's processes are compared with the containers' grants. A process is looked up by its control group, which its
container can't choose. One that uses a card of which its pod holds no share is a finding, once the ledger has said so,
too. What is used counts for a container if its pod has no other one with that card, or if the API server knows its id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from gpuledger.agent.devices.source import CardUse, DeviceProcess
from gpuledger.agent.health import counter, gauge
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.agent.usage.regions import MIB, REASONS, REGION, ContainerKey, ContainerUse, ProcessesUse
from gpuledger.formats.runtime.cdi import Grant, container_id, pod_uid
from gpuledger.model.card import MIG, Card
from gpuledger.model.errors import ApiError, GpuledgerError

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0
"""After this, it is asked again whose a container is that was in no pod."""

REPORT_AGAIN_S = 3600.0
"""A pod that uses a card without a share, pauses and begins again is reported again after this at the earliest."""


@dataclass(frozen=True, slots=True)
class ContainerOfPod:
    """Whose a process is; empty where that is not known."""

    pod_uid: str = ""
    """Also empty for processes of the node itself."""
    name: str = ""
    """Of the container."""


NOBODY = ContainerOfPod()


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One pod's use of one card."""

    uuid: str
    pod_uid: str
    """Empty: processes of the node itself."""
    memory_mib: int
    processes: int
    allowed: bool


class Comparison:
    """The last comparison."""

    def __init__(
        self,
        grants: Callable[[], Iterable[Grant]],
        holds: Callable[[str, str], Awaitable[bool]],
        report: Callable[[str], None],
        proc: Path = Path("/proc"),
        containers: Callable[[], Awaitable[Mapping[str, ContainerOfPod]]] | None = None,
        node_pods: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._grants = grants  # returns what containers of this node were given
        self._holds = holds  # pod UID, card UUID -> whether the ledger says so, too
        self._report_event = report  # shows a sentence as an event of this node
        self._proc = proc
        self._node_pods = node_pods  # returns UIDs of pods whose processes are the node's own, such as MPS' servers
        self._containers = containers  # returns the id of each container of this node -> its pod and name
        self._known: dict[str, ContainerOfPod] = {}  # id of a container -> its pod and name
        self._of_no_pod: dict[str, float] = {}  # id of a container -> when it was found in no pod
        self._reported: dict[tuple[str, str], float] = {}  # pod UID, card UUID -> when it was last seen
        self.uses: tuple[PodUsage, ...] = ()
        self.of_containers: dict[ContainerKey, ProcessesUse] = {}

    async def compare(self, processes: Iterable[DeviceProcess]) -> None:
        """Observe the processes on all cards."""
        memory_mib: Counter[tuple[str, str]] = Counter()  # card UUID, pod UID -> memory
        number: Counter[tuple[str, str]] = Counter()
        given: dict[tuple[str, str], set[str]] = {}  # pod UID, card UUID -> names of its containers
        for grant in self._grants():
            for uuid in grant.uuids:
                given.setdefault((grant.pod_uid, uuid), set()).add(grant.container)
        of_containers: dict[ContainerKey, list[DeviceProcess]] = {}
        of_node = self._node_pods()
        for process in processes:
            owner = await self._owner_of(process, given)
            if owner.pod_uid in of_node:
                owner = NOBODY
            key = process.uuid, owner.pod_uid
            memory_mib[key] += process.memory_mib or 0
            number[key] += 1
            if owner.name:
                of_containers.setdefault((*key, owner.name), []).append(process)
        self.of_containers = {key: _together(found) for key, found in of_containers.items()}
        uses = []
        for uuid, uid in sorted(number):
            # Processes of the node itself, such as a monitor or MPS' server, belong to the node's administrator.
            allowed = not uid or (uid, uuid) in given or await self._may(uid, uuid)
            uses.append(PodUsage(uuid, uid, memory_mib[uuid, uid], number[uuid, uid], allowed))
        self.uses = tuple(uses)
        self._report(
            {(use.pod_uid, use.uuid) for use in uses if not use.allowed}, {(uid, uuid) for uuid, uid in number}
        )

    async def _owner_of(
        self, process: DeviceProcess, given: Mapping[tuple[str, str], Collection[str]]
    ) -> ContainerOfPod:
        """Return whose process it is; `given` is as in `compare`."""
        try:
            groups = (self._proc / str(process.pid) / "cgroup").read_text()
        except OSError:
            return NOBODY  # it has ended, or the process ids are not the node's
        uid, container = pod_uid(groups), container_id(groups)
        names = given.get((uid, process.uuid), ()) if uid else ()
        if uid and len(names) < 2:
            return ContainerOfPod(uid, *names)
        known = await self._container(container) if container else NOBODY
        if uid and known.pod_uid != uid:
            return ContainerOfPod(uid)
        return replace(known, name=_name(known.name, given.get((known.pod_uid, process.uuid), ())))

    async def _container(self, container: str) -> ContainerOfPod:
        now_s = asyncio.get_running_loop().time()
        self._of_no_pod = {each: at for each, at in self._of_no_pod.items() if now_s < at + ASK_AGAIN_S}
        if container not in self._known and container not in self._of_no_pod and self._containers is not None:
            try:
                self._known = {**await self._containers()}
            except ApiError as error:
                logger.info("the pod of container %s can't be looked up: %s", container, error)
                return NOBODY
            if container not in self._known:  # or its kubelet has not reported it yet
                self._of_no_pod[container] = now_s
        return self._known.get(container, NOBODY)

    async def _may(self, uid: str, uuid: str) -> bool:
        try:
            return await self._holds(uid, uuid)
        except GpuledgerError as error:  # also a card that can't be read
            logger.info("whether pod %s may use card %s is not known: %s", uid, uuid, error)
            return True

    def _report(self, found: set[tuple[str, str]], used: set[tuple[str, str]]) -> None:
        """Tell what is new; `used` is all that goes on, allowed or not."""
        now_s = asyncio.get_running_loop().time()
        self._reported = {key: seen_s for key, seen_s in self._reported.items() if now_s < seen_s + REPORT_AGAIN_S}
        for uid, uuid in sorted(found - self._reported.keys()):
            self._report_event(
                f"processes of the pod with UID {uid} use GPU {uuid}, of which it holds no share in the ledger"
            )
        self._reported |= dict.fromkeys((self._reported.keys() & used) | found, now_s)


def _name(container: str, names: Collection[str]) -> str:
    """Return under which of its pod's names for a card a container uses it: its own, or that of the pod's one claim."""
    of_claims = [name for name in names if "/" in name]
    return container if container in names or len(of_claims) != 1 else of_claims[0]


def _together(processes: list[DeviceProcess]) -> ProcessesUse:
    """Return what they use; None for what the driver tells of none of them."""
    memory = [process.memory_mib for process in processes if process.memory_mib is not None]
    cores = [process.cores_percent for process in processes if process.cores_percent is not None]
    return ProcessesUse(sum(memory) if memory else None, min(sum(cores), 100) if cores else None)


Value = float | None
"""None: there is no sample."""

Of = Callable[[ContainerUse], Value]

_PROCESSES = ("uuid", "pod_uid", "has_share")

LABELS = ("namespace", "pod", "container", "uuid")


def mib_bytes(amount: int | None) -> Value:
    """Return MiB as bytes."""
    return None if amount is None else float(amount * MIB)


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent / 100


OWN: Sequence[tuple[str, str, Of]] = (
    ("memory_held_bytes", "Memory that a container holds of a card.", lambda use: mib_bytes(use.part.memory_mib)),
    ("memory_used_bytes", "Memory that a container uses of a card.", lambda use: use.memory_used_bytes),
    (
        "memory_limit_bytes",
        "Memory of a card that a container is held to; absent where nothing does.",
        lambda use: mib_bytes(use.part.memory_limit_mib),
    ),
    ("cores_held_ratio", "Cores that a container holds, as a ratio of the card's.", lambda use: use.part.cores / 100),
    ("cores_used_ratio", "Cores that a container has used of a card lately.", lambda use: _ratio(use.cores_percent)),
    (
        "last_kernel_age_seconds",
        "Time since a container launched a kernel, by HAMi-core.",
        lambda use: use.last_kernel_s_ago,
    ),
    ("paused", "Whether a container waits for one of higher priority.", lambda use: float(use.paused)),
)
"""Name, help and value of our own gauges of each container and card."""


def usage_metrics(
    cards: Iterable[Card], used: Mapping[str, CardUse], containers: Sequence[ContainerUse]
) -> Iterable[Metric]:
    """Yield what is used; `used` is UUID of a card -> what is used of it."""
    known = [([card.uuid, str(card.index)], used[card.uuid]) for card in cards if card.uuid in used]
    memory = [(labels, value) for labels, use in known if (value := mib_bytes(use.memory_mib)) is not None]
    yield gauge("card_memory_used_bytes", "Memory of a card that is used, by whomever.", memory, ["uuid", "index"])
    cores = [(labels, value) for labels, use in known if (value := _ratio(use.cores_percent)) is not None]
    yield gauge("card_cores_used_ratio", "Part of the time in which a card computed.", cores, ["uuid", "index"])
    for name, text, of in OWN:
        samples = [
            ([use.grant.namespace, use.grant.pod, use.grant.container, use.part.uuid], float(value))
            for use in containers
            if (value := of(use)) is not None
        ]
        yield gauge(f"container_{name}", text, samples, LABELS)


def process_metrics(uses: Iterable[PodUsage]) -> Iterable[Metric]:
    """Yield what the driver says of processes, by pod."""
    samples, labels = [([use.uuid, use.pod_uid, str(use.allowed).lower()], use) for use in uses], _PROCESSES
    memory = [(values, use.memory_mib * 2.0**20) for values, use in samples]
    yield gauge("process_memory_bytes", "Memory that a pod's processes use of a card.", memory, labels)
    number = [(values, float(use.processes)) for values, use in samples]
    yield gauge("processes", "Processes of a pod on a card; without a pod, the node's own.", number, labels)


def monitor_metrics(monitor: Monitor) -> Iterable[Metric]:
    """Yield what the monitor looks at, and what it had to skip."""
    yield gauge("regions", "Shared regions of HAMi-core that are looked at.", [([], float(len(monitor.looks)))])
    skipped = [([reason], float(monitor.regions.skipped[reason])) for reason in REASONS]
    yield counter("regions_skipped", "Looks at shared regions that were of no use, by reason.", skipped, ["reason"])
    written = float(monitor.regions.effort.written)
    yield counter("region_writes", "Writes to shared regions: who pauses, and whose limits hold.", [([], written)])


ZONE = "vGPU"

OfCard = Callable[[CardUse], Value]


def _held_to(use: ContainerUse) -> Value:
    return mib_bytes(use.part.memory_limit_mib)


def _counted(use: ContainerUse, amount: int) -> Value:
    return amount if use.source == REGION else None


MEMORY: OfCard = lambda use: mib_bytes(use.memory_mib)  # noqa: E731 - rows of tables
CORES: OfCard = lambda use: use.cores_percent  # noqa: E731
CONTROLLER: OfCard = lambda use: use.memory_controller_percent  # noqa: E731

USED: Of = lambda use: use.memory_used_bytes  # noqa: E731
UTILIZATION: Of = lambda use: use.cores_percent  # noqa: E731
KERNEL: Of = lambda use: use.last_kernel_s_ago  # noqa: E731

CARDS: Mapping[str, Sequence[tuple[str, str, tuple[str, ...], OfCard]]] = {
    "hami": (
        (
            "hami_host_gpu_memory_used_bytes",
            "GPU device memory usage in bytes",
            ("node", "device_index", "device_uuid", "device_type"),
            MEMORY,
        ),
        (
            "hami_host_gpu_utilization_ratio",
            "GPU core utilization ratio (0-100)",
            ("node", "device_index", "device_uuid", "device_type"),
            CORES,
        ),
        (
            "hami_host_gpu_memory_controller_utilization_ratio",
            "GPU memory controller utilization ratio (0-100)",
            ("device_index", "device_uuid", "device_type"),
            CONTROLLER,
        ),
    ),
    "hami-legacy": (
        ("HostGPUMemoryUsage", "GPU device memory usage", ("nodeid", "deviceidx", "deviceuuid", "devicetype"), MEMORY),
        ("HostCoreUtilization", "GPU core utilization", ("nodeid", "deviceidx", "deviceuuid", "devicetype"), CORES),
    ),
    "volcano": (
        ("HostGPUMemoryUsage", "GPU device memory usage", ("deviceidx", "deviceuuid"), MEMORY),
        ("HostCoreUtilization", "GPU core utilization", ("deviceidx", "deviceuuid"), CORES),
    ),
}
"""Value of the setting `metrics_compatibility` -> name, help, labels and value of each gauge of a card."""

HAMI_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
LEGACY_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")

LEGACY: Sequence[tuple[str, str, tuple[str, ...], Of]] = (
    ("vGPU_device_memory_usage_in_bytes", "vGPU device usage", LEGACY_CONTAINER, USED),
    ("vGPU_device_memory_limit_in_bytes", "vGPU device limit", LEGACY_CONTAINER, _held_to),
    (
        "Device_utilization_desc_of_container",
        "Container device utilization description",
        LEGACY_CONTAINER,
        UTILIZATION,
    ),
    ("Device_last_kernel_of_container", "Container device last kernel description", LEGACY_CONTAINER, KERNEL),
    (
        "Device_memory_desc_of_container",
        "Container device memory description",
        (*LEGACY_CONTAINER, "context", "module", "data", "offset"),
        lambda use: _counted(use, use.memory_used_bytes or 0),
    ),
)

CONTAINERS: Mapping[str, Sequence[tuple[str, str, tuple[str, ...], Of]]] = {
    "hami": (
        ("hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes", HAMI_CONTAINER, USED),
        ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit in bytes", HAMI_CONTAINER, _held_to),
        ("hami_container_device_memory_bytes", "Container device memory usage in bytes", HAMI_CONTAINER, USED),
        (
            "hami_container_device_utilization_ratio",
            "Container device SM utilization ratio",
            HAMI_CONTAINER,
            UTILIZATION,
        ),
        (
            "hami_container_last_kernel_elapsed_seconds",
            "Seconds since last kernel execution in container",
            HAMI_CONTAINER,
            KERNEL,
        ),
        (
            "hami_vgpu_memory_context_bytes",
            "Container device memory context size in bytes",
            HAMI_CONTAINER,
            lambda use: _counted(use, use.context_bytes),
        ),
        (
            "hami_vgpu_memory_module_bytes",
            "Container device memory module size in bytes",
            HAMI_CONTAINER,
            lambda use: _counted(use, use.module_bytes),
        ),
        (
            "hami_vgpu_memory_buffer_bytes",
            "Container device memory buffer size in bytes",
            HAMI_CONTAINER,
            lambda use: _counted(use, use.data_bytes),
        ),
    ),
    "hami-legacy": LEGACY,
    "volcano": LEGACY,
}
"""The same for each gauge of a container and card."""


def compatible_metrics(
    names: Collection[str],
    node_name: str,
    cards: Iterable[Card],
    used: Mapping[str, CardUse],
    containers: Sequence[ContainerUse],
) -> Iterable[Metric]:
    """Yield the gauges that these values of `metrics_compatibility` ask for, each once.

    `used` is UUID of a card -> what is used of it. What HAMi and Volcano call the same has HAMi's labels if both are
    asked for.
    """
    known = [(card, used[card.uuid]) for card in cards if card.uuid in used and card.mode != MIG]
    yielded: set[str] = set()
    for system in (each for each in CARDS if each in names):
        for name, text, labels, of_card in CARDS[system]:
            if name not in yielded:
                rows = ((_of_card(labels, node_name, card), of_card(use)) for card, use in known)
                yield _gauge(name, text, labels, rows)
        for name, text, labels, of in CONTAINERS[system]:
            if name not in yielded:
                yield _gauge(name, text, labels, ((_of_container(labels, use), of(use)) for use in containers))
        yielded |= {row[0] for row in (*CARDS[system], *CONTAINERS[system])}


def _gauge(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Value]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["zone", *labels])
    for values, value in rows:
        if value is not None:
            family.add_metric([ZONE, *values], float(value))
    return family


def _of_card(labels: tuple[str, ...], node_name: str, card: Card) -> tuple[str, ...]:
    node = (node_name,) if labels[0] in ("node", "nodeid") else ()
    model = (card.model,) if labels[-1] in ("device_type", "devicetype") else ()
    return *node, str(card.index), card.uuid, *model


def _of_container(labels: tuple[str, ...], use: ContainerUse) -> tuple[str, ...]:
    grant, part = use.grant, use.part
    values = grant.namespace, grant.pod, grant.container, str(part.position), part.uuid
    if labels[-1] != "offset":
        return values
    parts = use.context_bytes, use.module_bytes, use.data_bytes
    rest = (use.memory_used_bytes or 0) - sum(parts)
    return (*values, *map(str, (*parts, rest)))
