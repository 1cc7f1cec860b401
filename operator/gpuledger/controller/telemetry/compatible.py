"""The ledger's values under HAMi's and Volcano's names, so that dashboards and alerts made for these go on working.

Sources:
HAMi v2.10, cmd/scheduler/metrics.go, metrics_test.go and dashboards/README.md in github.com/Project-HAMi/HAMi: names
that begin with hami_, and those from before v2.9, which its chart still switches on (`--legacy-metrics`). All have
zone="vGPU".
Volcano v1.15, pkg/scheduler/api/devices/nvidia/vgpu/metrics.go in github.com/volcano-sh/volcano.

Their units are kept, whatever the names say: HAMi's memory is in bytes and its cores are in percent; Volcano's memory
is in MiB and its cores are in percent. What their monitors measure on the nodes (hami_host_..., hami_container_...,
vGPU_device_...) is not in the ledger, and neither are MIG instances. Quotas are in MiB, and the amount that a quota
allows is a label, too. HAMi knows one limit for a namespace and a resource: of several, the lowest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuledger.controller.telemetry.card_metrics import MIB, Row, Sheet
from gpuledger.formats.kubernetes.other import PREFIX
from gpuledger.ledger.quotas import Quotas, stated
from gpuledger.model.card import NOTHING, Amounts
from gpuledger.model.gang import QuotaLimit
from gpuledger.reports.cards import CardReport

ZONE = "vGPU"


def _hami_cards(report: CardReport) -> Iterable[Row]:
    capacity, used = report.card.capacity, report.used
    memory = used.memory_mib / max(capacity.memory_mib, 1)
    yield _hami(report), (capacity.memory_mib * MIB, capacity.cores, used.number, used.cores, memory)


def _legacy_cards(report: CardReport) -> Iterable[Row]:
    for labels, numbers in _hami_cards(report):
        yield labels, numbers[:-1]


def _hami_memory(report: CardReport) -> Iterable[Row]:
    zone, node_name, uuid, index, model = _hami(report)
    cores = str(report.card.capacity.cores)
    yield (zone, node_name, uuid, index, cores, model), (report.used.memory_mib * MIB,)


def _hami_overview(report: CardReport) -> Iterable[Row]:
    zone, node_name, uuid, index, model = _hami(report)
    capacity = report.card.capacity
    labels = (zone, node_name, uuid, index, str(capacity.cores), str(capacity.memory_mib), model)
    yield labels, (report.used.memory_mib * MIB,)


def _hami_percentage(report: CardReport) -> Iterable[Row]:
    memory = report.used.memory_mib / max(report.card.capacity.memory_mib, 1)
    yield _hami(report)[:-1], (memory,)


def _hami_pods(report: CardReport) -> Iterable[Row]:
    uuid, node_name = report.card.uuid, report.card.node_name
    for (namespace, pod), amounts in _by_name(report).items():
        yield (ZONE, namespace, node_name, pod, "0", uuid), (amounts.memory_mib * MIB, amounts.cores)


def _hami(report: CardReport) -> tuple[str, str, str, str, str]:
    card = report.card
    return ZONE, card.node_name, card.uuid, str(card.index), card.model


def _by_name(report: CardReport) -> dict[tuple[str, str], Amounts]:
    """Return namespace and name of the pods -> what they hold: a pod and its successor can be there under one name."""
    held: dict[tuple[str, str], Amounts] = defaultdict(lambda: NOTHING)
    for holder in report.holders:
        held[holder.pod.namespace, holder.pod.name] += holder.share.amounts
    return held


def _volcano_cards(report: CardReport) -> Iterable[Row]:
    card, used = report.card, report.used
    yield (card.uuid, card.node_name), (len(report.holders), used.memory_mib, used.cores, card.capacity.memory_mib)


def _volcano_pods(report: CardReport) -> Iterable[Row]:
    """Pods of several namespaces that have one name are one in Volcano's metrics."""
    held: dict[str, Amounts] = defaultdict(lambda: NOTHING)
    for (_, pod), amounts in _by_name(report).items():
        held[pod] += amounts
    for pod, amounts in held.items():
        yield (report.card.uuid, report.card.node_name, pod), (amounts.memory_mib, amounts.cores)


HAMI = (
    Sheet(
        ("zone", "node", "device_uuid", "device_index", "device_type"),
        (
            ("hami_gpu_memory_limit_bytes", "Device memory limit for a certain GPU"),
            ("hami_gpu_core_limit_ratio", "Device core limit for a certain GPU"),
            ("hami_gpu_shared_count", "Number of containers sharing this GPU"),
            ("hami_gpu_core_allocated_ratio", "Device core allocated for a certain GPU"),
            ("hami_node_gpu_memory_allocated_ratio", "GPU memory allocated on a certain GPU"),
        ),
        _hami_cards,
    ),
    Sheet(
        ("zone", "node", "device_uuid", "device_index", "device_cores", "device_type"),
        (("hami_gpu_memory_allocated_bytes", "Device memory allocated for a certain GPU"),),
        _hami_memory,
    ),
    Sheet(
        ("zone", "node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type"),
        (("hami_node_gpu_overview", "GPU overview on a certain node"),),
        _hami_overview,
    ),
    Sheet(
        ("zone", "namespace", "node", "pod", "container_index", "device_uuid"),
        (
            ("hami_vgpu_memory_allocated_bytes", "vGPU memory allocated from a container"),
            ("hami_vgpu_core_allocated_ratio", "vGPU core allocated from a container"),
        ),
        _hami_pods,
    ),
)

HAMI_LEGACY = (
    Sheet(
        ("zone", "nodeid", "deviceuuid", "deviceidx", "devicetype"),
        (
            ("GPUDeviceMemoryLimit", "Device memory limit for a certain GPU"),
            ("GPUDeviceCoreLimit", "Device memory core limit for a certain GPU"),
            ("GPUDeviceSharedNum", "Number of containers sharing this GPU"),
            ("GPUDeviceCoreAllocated", "Device core allocated for a certain GPU"),
        ),
        _legacy_cards,
    ),
    Sheet(
        ("zone", "nodeid", "deviceuuid", "deviceidx", "devicecores", "devicetype"),
        (("GPUDeviceMemoryAllocated", "Device memory allocated for a certain GPU"),),
        _hami_memory,
    ),
    Sheet(
        ("zone", "nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype"),
        (("nodeGPUOverview", "GPU overview on a certain node"),),
        _hami_overview,
    ),
    Sheet(
        ("zone", "nodeid", "deviceuuid", "deviceidx"),
        (("nodeGPUMemoryPercentage", "GPU memory allocated percentage on a certain GPU"),),
        _hami_percentage,
    ),
    Sheet(
        ("zone", "podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
        (
            ("vGPUMemoryAllocated", "vGPU memory allocated from a container"),
            ("vGPUCoreAllocated", "vGPU core allocated from a container"),
        ),
        _hami_pods,
    ),
)

VOLCANO = (
    Sheet(
        ("devID", "NodeName"),
        (
            ("volcano_vgpu_device_shared_number", "The number of vgpu tasks sharing this card"),
            ("volcano_vgpu_device_allocated_memory", "The number of vgpu memory allocated in this card"),
            ("volcano_vgpu_device_allocated_cores", "The percentage of gpu compute cores allocated in this card"),
            ("volcano_vgpu_device_memory_limit", "The number of total device memory in this card"),
        ),
        _volcano_cards,
    ),
    Sheet(
        ("devID", "NodeName", "podName"),
        (
            (
                "volcano_vgpu_device_memory_allocation_for_a_certain_pod",
                "The vgpu device memory allocated for a certain pod",
            ),
            (
                "volcano_vgpu_device_core_allocation_for_a_certain_pod",
                "The vgpu device core allocated for a certain pod",
            ),
        ),
        _volcano_pods,
    ),
)

COMPATIBLE = {"hami": HAMI, "hami-legacy": HAMI_LEGACY, "volcano": VOLCANO}
"""Values of the setting `metrics_compatibility` -> what they add."""


USED = "resourcequota usage for a certain device"
LIMIT = "resourcequota limit for a certain device"


class CompatibleQuotas(Collector):
    """Quotas for those of the systems that have such metrics: `hami` and `hami-legacy`."""

    def __init__(self, quotas: Quotas, compatibility: Collection[str]) -> None:
        self._quotas = quotas
        self._compatibility = compatibility

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the systems that are wanted."""
        labels = ["zone", "namespace", "quota_name", "limit"]
        used = GaugeMetricFamily("hami_resource_quota_used", USED, labels=labels)
        most = GaugeMetricFamily("hami_resource_quota_limit", LIMIT, labels=labels[:-1])
        legacy = GaugeMetricFamily("QuotaUsed", USED, labels=["zone", "quotanamespace", "quotaName", "limit"])
        for namespace in sorted(self._quotas.limited()):
            for limit in self._lowest(namespace):
                values = [ZONE, namespace, limit.key.removeprefix(PREFIX)]
                amount = self._quotas.used(namespace, limit)
                for family in (used, legacy):
                    family.add_metric([*values, str(limit.most)], amount)
                most.add_metric(values, limit.most)
        if "hami" in self._compatibility:
            yield used
            yield most
        if "hami-legacy" in self._compatibility:
            yield legacy

    def _lowest(self, namespace: str) -> list[QuotaLimit]:
        found: dict[str, QuotaLimit] = {}  # key -> the limit that is reached first
        for limit in stated(self._quotas.limits(namespace)):
            known = found.get(limit.key)
            if known is None or limit.most < known.most:
                found[limit.key] = limit
        return list(found.values())
