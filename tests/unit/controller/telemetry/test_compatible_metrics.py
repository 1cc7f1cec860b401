"""HAMi's and Volcano's metrics: their names, their labels, their units, as their sources have them."""

from dataclasses import replace

import pytest

from builders import a_card, a_holder, a_ledger, a_share, stored
from fakes.metrics import ALL, Shown, samples
from gpuledger.model.gang import Counted, QuotaLimit

CARD = replace(a_card(memory_mib=40_000), model="NVIDIA-A100")
ON = {"node": "node-a", "device_uuid": CARD.uuid, "device_index": "0", "device_type": "NVIDIA-A100"}
BEFORE = {"nodeid": "node-a", "deviceuuid": CARD.uuid, "deviceidx": "0"}
OF_POD = {"namespace": "default", "node": "node-a", "pod": "a", "container_index": "0", "device_uuid": CARD.uuid}
OF_POD_BEFORE = {
    "podnamespace": "default",
    "nodename": "node-a",
    "podname": "a",
    "containeridx": "0",
    "deviceuuid": CARD.uuid,
}
TYPED = {**BEFORE, "devicetype": "NVIDIA-A100"}
OVERVIEW = {**TYPED, "devicecores": "100", "devicememorylimit": "40000"}
VOLCANO = {"devID": CARD.uuid, "NodeName": "node-a"}
MIB = 2**20


IN_QUOTA = {"namespace": "default", "quota_name": "nvidia.com/gpumem"}
OF_MODEL = {"namespace": "default", "quota_name": "nvidia.com/gpumem.T4"}
QUOTA_BEFORE = {"quotanamespace": "default", "quotaName": "nvidia.com/gpumem"}


def a_limit(quota: str, key: str, most: int, model: str = "") -> QuotaLimit:
    return QuotaLimit(quota, f"limits.{key}", Counted.MEMORY, most, "nvidia", model)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("hami_gpu_memory_limit_bytes", ON, 40_000 * MIB),
        ("hami_gpu_core_limit_ratio", ON, 100),
        ("hami_gpu_memory_allocated_bytes", {**ON, "device_cores": "100"}, 30_000 * MIB),
        ("hami_gpu_shared_count", ON, 3),
        ("hami_gpu_core_allocated_ratio", ON, 50),
        ("hami_node_gpu_memory_allocated_ratio", ON, 0.75),
        ("hami_node_gpu_overview", {**ON, "device_cores": "100", "device_memory_limit": "40000"}, 30_000 * MIB),
        ("hami_vgpu_memory_allocated_bytes", OF_POD, 10_000 * MIB),
        ("hami_vgpu_core_allocated_ratio", OF_POD, 20),
        ("hami_resource_quota_used", {**IN_QUOTA, "limit": "35000"}, 30_000),
        ("hami_resource_quota_limit", IN_QUOTA, 35_000),
        ("hami_resource_quota_used", {**OF_MODEL, "limit": "5"}, 0),
        ("QuotaUsed", {**QUOTA_BEFORE, "limit": "35000"}, 30_000),
        ("GPUDeviceMemoryLimit", TYPED, 40_000 * MIB),
        ("GPUDeviceCoreLimit", TYPED, 100),
        ("GPUDeviceMemoryAllocated", {**TYPED, "devicecores": "100"}, 30_000 * MIB),
        ("GPUDeviceSharedNum", TYPED, 3),
        ("GPUDeviceCoreAllocated", TYPED, 50),
        ("nodeGPUOverview", OVERVIEW, 30_000 * MIB),
        ("nodeGPUMemoryPercentage", BEFORE, 0.75),
        ("vGPUMemoryAllocated", OF_POD_BEFORE, 10_000 * MIB),
        ("vGPUCoreAllocated", OF_POD_BEFORE, 20),
        ("volcano_vgpu_device_shared_number", VOLCANO, 2),
        ("volcano_vgpu_device_allocated_memory", VOLCANO, 30_000),
        ("volcano_vgpu_device_allocated_cores", VOLCANO, 50),
        ("volcano_vgpu_device_memory_limit", VOLCANO, 40_000),
        ("volcano_vgpu_device_memory_allocation_for_a_certain_pod", {**VOLCANO, "podName": "a"}, 10_000),
        ("volcano_vgpu_device_core_allocation_for_a_certain_pod", {**VOLCANO, "podName": "b"}, 30),
    ],
)
def test_a_metric_has_the_name_the_labels_and_the_unit_of_its_system(
    name: str, labels: dict[str, str], expected: float
) -> None:
    ledger = a_ledger()
    ledger.load(
        stored(CARD, a_holder("a", a_share(CARD, 10_000, 20)), a_holder("b", a_share(CARD, 20_000, 30, number=2)))
    )
    limits = [a_limit("a", "nvidia.com/gpumem", 40_000), a_limit("b", "nvidia.com/gpumem", 35_000)]
    ledger.quotas.set_limits("default", [*limits, a_limit("b", "nvidia.com/gpumem.T4", 5, "t4")])
    zone = {} if name.startswith("volcano") else {"zone": "vGPU"}
    shown = samples(Shown(ledger).metrics(ALL).text())
    assert shown[name, tuple(sorted({**labels, **zone}.items()))] == expected


def test_quotas_have_other_names_only_where_these_are_asked_for() -> None:
    ledger = a_ledger()
    ledger.quotas.set_limits("default", [a_limit("a", "nvidia.com/gpumem", 40_000)])
    for wanted, expected in (
        ((), set()),
        (("volcano",), set()),
        (("hami",), {"hami_resource_quota_used", "hami_resource_quota_limit"}),
        (("hami-legacy",), {"QuotaUsed"}),
    ):
        names = {name for name, _ in samples(Shown(ledger).metrics(wanted).text())}
        assert {each for each in names if "uota" in each and not each.startswith("gpuledger_")} == expected
