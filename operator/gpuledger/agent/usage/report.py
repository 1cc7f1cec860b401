"""What is used on this node, for /usage and the metrics: grants, regions and the driver's processes together.

The driver's processes are compared with the containers' grants. A process is looked up by its control group, which its
container can't choose. One that uses a card of which its pod holds no share is a finding, once the ledger has said so,
too. What is used counts for a container if its pod has no other one with that card, or if the API server knows its id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import Metric

from gpuledger.agent.devices.source import CardUse, DeviceProcess, DeviceUses, DriverGone
from gpuledger.agent.metrics import compatible_metrics, counter, gauge, usage_metrics
from gpuledger.agent.usage.idle import IdleShares
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.agent.usage.regions import MIB, REASONS, ContainerKey, ContainerUse, ProcessesUse, container_uses
from gpuledger.formats.idle import Idleness, ShareKey
from gpuledger.formats.runtime.cdi import Grant, container_id, pod_uid
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, GpuledgerError
from gpuledger.model.json_object import Json

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
    is_certain: bool = True
    """Whether no pod means that it is a process of the node."""


NOBODY = ContainerOfPod()
UNKNOWN = ContainerOfPod(is_certain=False)


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
        self.unclear: frozenset[str] = frozenset()
        """UUIDs of cards with a process whose pod is not known: it may be a container's."""
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
        of_node, unclear = self._node_pods(), set[str]()
        for process in processes:
            owner = await self._owner_of(process, given)
            if owner.pod_uid in of_node:
                owner = NOBODY
            elif not owner.is_certain:
                unclear.add(process.uuid)
            key = process.uuid, owner.pod_uid
            memory_mib[key] += process.memory_mib or 0
            number[key] += 1
            if owner.name:
                of_containers.setdefault((*key, owner.name), []).append(process)
        self.unclear = frozenset(unclear)
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
        """Return the owner of a process; `given` is as in `compare`."""
        try:
            groups = (self._proc / str(process.pid) / "cgroup").read_text()
        except OSError:
            return UNKNOWN  # it has ended, or the process ids are not the node's
        uid, container = pod_uid(groups), container_id(groups)
        names = given.get((uid, process.uuid), ()) if uid else ()
        if uid and len(names) < 2:
            return ContainerOfPod(uid, next(iter(names), ""))
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
                return UNKNOWN
            if container not in self._known:  # or its kubelet has not reported it yet
                self._of_no_pod[container] = now_s
        return self._known.get(container, UNKNOWN)

    async def _may(self, uid: str, uuid: str) -> bool:
        try:
            return await self._holds(uid, uuid)
        except GpuledgerError as error:  # also a card that can't be read
            logger.info("whether pod %s may use card %s is not known: %s", uid, uuid, error)
            return True

    def _report(self, found: set[tuple[str, str]], used: set[tuple[str, str]]) -> None:
        """Report new findings; `used` are all ongoing uses, allowed or not."""
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
    """Return the sum of their use; None where the driver reports none of them."""
    memory = [process.memory_mib for process in processes if process.memory_mib is not None]
    cores = [process.cores_percent for process in processes if process.cores_percent is not None]
    return ProcessesUse(sum(memory) if memory else None, min(sum(cores), 100) if cores else None)


REUSED_S = 5.0
"""A look at the driver that is not older answers another question, too."""

ANSWER_S = 3.0
"""For so long an answer waits for a new look; then it has the last one."""


class UsageReport:
    """The last look at the driver, and all that follows from it."""

    def __init__(
        self,
        node_name: str,
        grants: Callable[[], Iterable[Grant]],
        look: Callable[[], Awaitable[DeviceUses]],
        comparison: Comparison,
        monitor: Monitor,
        idle: IdleShares,
    ) -> None:
        """Make one; `look` asks the driver, and raises DriverGone. `idle` observes who looks at it."""
        self._node_name, self._grants, self._look = node_name, grants, look
        self._comparison, self._monitor = comparison, monitor
        self._used: dict[str, CardUse] = {}  # UUID -> what is used of it, as of the last look
        self._known = False
        self.idle = idle
        self._looked_s = -REUSED_S  # by the event loop's clock
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Ask the driver now, and compare. Earlier results are dropped if it does not answer."""
        try:
            uses = await self._look()
        except DriverGone:
            self._used, self._known = {}, False
            return
        finally:
            self._looked_s = asyncio.get_running_loop().time()
        self._used, self._known = {use.uuid: use for use in uses.cards}, True
        await self._comparison.compare(uses.processes)

    async def _look_again(self) -> None:
        """Have a look that is a few seconds old at most, however many ask; do not wait long for it."""
        if self._looking is None or self._looking.done():
            if asyncio.get_running_loop().time() < self._looked_s + REUSED_S:
                return
            self._looking = asyncio.create_task(self.look())
        await asyncio.wait([self._looking], timeout=ANSWER_S)

    def metrics(self, cards: Sequence[Card], compatibility: Collection[str]) -> Iterable[Metric]:
        """Yield the last look as metrics; `compatibility` are systems under whose names they are shown, too."""
        containers = self._containers()
        yield from _process_metrics(self._comparison.uses)
        yield from usage_metrics(cards, self._used, containers)
        yield from _monitor_metrics(self._monitor)
        yield from compatible_metrics(compatibility, self._node_name, cards, self._used, containers)

    def idle_shares(self, now: datetime) -> Mapping[ShareKey, Idleness]:
        """Return which shares are idle, with the last look taken in; `now` is the API server's time."""
        return self.idle.observe(self._containers(), now, self._comparison.unclear)

    def _containers(self) -> list[ContainerUse]:
        processes = self._comparison.of_containers if self._known else None
        return container_uses(self._grants(), self._monitor.looks, processes, time.time())

    async def answer(self, cards: Iterable[Card]) -> Json:
        """Return the answer of /usage."""
        await self._look_again()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "node": self._node_name,
            "at": now,
            "cards": [_card(card, self._used.get(card.uuid)) for card in cards],
            "containers": [_container(use) for use in self._containers()],
        }


def _card(card: Card, use: CardUse | None) -> Json:
    return {
        "uuid": card.uuid,
        "index": card.index,
        "memoryUsedMiB": use and use.memory_mib,
        "utilizationPercent": use and use.cores_percent,
    }


def _container(use: ContainerUse) -> Json:
    grant, part = use.grant, use.part
    return {
        "namespace": grant.namespace,
        "pod": grant.pod,
        "podUID": grant.pod_uid,
        "container": grant.container,
        "uuid": part.uuid,
        "memoryHeldMiB": part.memory_mib,
        "memoryUsedMiB": None if use.memory_used_bytes is None else -(-use.memory_used_bytes // MIB),
        "memoryLimitMiB": part.memory_limit_mib,
        "coresHeld": part.cores,
        "utilizationPercent": use.cores_percent,
        "lastKernelSecondsAgo": use.last_kernel_s_ago,
        "paused": use.paused,
        "source": use.source,
    }


def _process_metrics(uses: Iterable[PodUsage]) -> Iterable[Metric]:
    """Yield what the driver says of processes, by pod."""
    labels = ("uuid", "pod_uid", "has_share")
    samples = [([use.uuid, use.pod_uid, str(use.allowed).lower()], use) for use in uses]
    memory = [(values, use.memory_mib * 2.0**20) for values, use in samples]
    yield gauge("process_memory_bytes", "Memory that a pod's processes use of a card.", memory, labels)
    number = [(values, float(use.processes)) for values, use in samples]
    yield gauge("processes", "Processes of a pod on a card; without a pod, the node's own.", number, labels)


def _monitor_metrics(monitor: Monitor) -> Iterable[Metric]:
    """Yield what the monitor looks at, and what it had to skip."""
    yield gauge("regions", "Shared regions of HAMi-core that are looked at.", [([], float(len(monitor.looks)))])
    skipped = [([reason], float(monitor.regions.skipped[reason])) for reason in REASONS]
    yield counter("regions_skipped", "Looks at shared regions that were of no use, by reason.", skipped, ["reason"])
    written = float(monitor.regions.effort.written)
    yield counter("region_writes", "Writes to shared regions: who pauses, and whose limits hold.", [([], written)])
