"""What is used, as metrics: under our names, and under HAMi's and Volcano's with their labels and units."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.core import Metric

from builders import a_card
from gpuledger.agent.devices.source import CardUse
from gpuledger.agent.metrics import CARDS, CONTAINERS, compatible_metrics, usage_metrics
from gpuledger.agent.usage.regions import MIB, ContainerUse, container_uses
from gpuledger.configuration.settings import METRICS_COMPATIBILITY
from unit.agent.usage.conftest import Node

CARD = replace(a_card(), uuid="GPU-1", index=3, model="A100")
USED = {"GPU-1": CardUse("GPU-1", 1200, 37, 5)}


@pytest.fixture
def uses(node: Node) -> list[ContainerUse]:
    """Return what one container uses that pauses, and one without a region."""
    node.active("high", 0, processes=[(1, 400)])
    node.container("low", 1, processes=[(2, 800)], last_kernel_s=node.now_s - 9)
    looks = node.regions.look(node.places())
    node.container("new", 1)
    return [
        use for use in container_uses(node.grants.values(), looks, {}, node.now_s) if use.grant.pod in ("low", "new")
    ]


def samples(metrics: Iterable[Metric]) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the name of each metric -> values of its labels -> value."""
    return {
        metric.name: {tuple(sample.labels.values()): sample.value for sample in metric.samples} for metric in metrics
    }


def test_our_own_names_have_bytes_and_ratios(uses: list[ContainerUse]) -> None:
    found = samples(usage_metrics([CARD], USED, uses))
    low, new = ("default", "low", "main", "GPU-1"), ("default", "new", "main", "GPU-1")
    assert found == {
        "gpuledger_agent_card_memory_used_bytes": {("GPU-1", "3"): 1200 * MIB},
        "gpuledger_agent_card_cores_used_ratio": {("GPU-1", "3"): 0.37},
        "gpuledger_agent_container_memory_held_bytes": {low: 3000 * MIB, new: 3000 * MIB},
        "gpuledger_agent_container_memory_used_bytes": {low: 800 * MIB, new: 0},
        "gpuledger_agent_container_memory_limit_bytes": {low: 3000 * MIB, new: 3000 * MIB},
        "gpuledger_agent_container_cores_held_ratio": {low: 0.3, new: 0.3},
        "gpuledger_agent_container_cores_used_ratio": {low: 0.07, new: 0},
        "gpuledger_agent_container_last_kernel_age_seconds": {low: 9},
        "gpuledger_agent_container_paused": {low: 1, new: 0},
    }


def test_what_nothing_tells_has_no_sample() -> None:
    assert not any(samples(usage_metrics([CARD], {"GPU-1": CardUse("GPU-1", None, None)}, [])).values())
    assert not any(samples(usage_metrics([CARD], {}, [])).values())


def test_hami_has_its_own_labels_and_percents(uses: list[ContainerUse]) -> None:
    found = samples(compatible_metrics(["hami"], "node-a", [CARD], USED, uses))
    host, low = ("vGPU", "node-a", "3", "GPU-1", "A100"), ("vGPU", "default", "low", "main", "0", "GPU-1")
    assert found["hami_host_gpu_memory_used_bytes"] == {host: 1200 * MIB}
    assert found["hami_host_gpu_utilization_ratio"] == {host: 37}
    assert found["hami_host_gpu_memory_controller_utilization_ratio"] == {("vGPU", "3", "GPU-1", "A100"): 5}
    assert found["hami_vgpu_memory_used_bytes"][low] == 800 * MIB
    assert found["hami_vgpu_memory_limit_bytes"][low] == 3000 * MIB
    assert found["hami_container_device_memory_bytes"][low] == 800 * MIB
    assert found["hami_container_device_utilization_ratio"][low] == 7
    assert found["hami_container_last_kernel_elapsed_seconds"] == {low: 9}
    assert found["hami_vgpu_memory_context_bytes"] == {low: 200 * MIB}
    assert found["hami_vgpu_memory_module_bytes"] == {low: 200 * MIB}
    assert found["hami_vgpu_memory_buffer_bytes"] == {low: 400 * MIB}
    assert len(found) == 11


@pytest.mark.parametrize(
    ("system", "host"), [("hami-legacy", ("vGPU", "node-a", "3", "GPU-1", "A100")), ("volcano", ("vGPU", "3", "GPU-1"))]
)
def test_the_names_from_before_have_theirs(uses: list[ContainerUse], system: str, host: tuple[str, ...]) -> None:
    found = samples(compatible_metrics([system], "node-a", [CARD], USED, uses))
    low = ("vGPU", "default", "low", "main", "0", "GPU-1")
    assert found["HostGPUMemoryUsage"] == {host: 1200 * MIB}
    assert found["HostCoreUtilization"] == {host: 37}
    assert found["vGPU_device_memory_usage_in_bytes"][low] == 800 * MIB
    assert found["vGPU_device_memory_limit_in_bytes"][low] == 3000 * MIB
    assert found["Device_utilization_desc_of_container"][low] == 7
    assert found["Device_last_kernel_of_container"] == {low: 9}
    parts = (str(200 * MIB), str(200 * MIB), str(400 * MIB), "0")
    assert found["Device_memory_desc_of_container"] == {(*low, *parts): 800 * MIB}
    assert len(found) == 7


def test_no_name_is_there_twice_and_no_system_is_left_out(uses: list[ContainerUse]) -> None:
    names = [metric.name for metric in compatible_metrics(METRICS_COMPATIBILITY, "node-a", [CARD], USED, uses)]
    assert len(names) == len(set(names)) == 18
    assert CARDS.keys() == CONTAINERS.keys() == {*METRICS_COMPATIBILITY}
    assert not list(compatible_metrics([], "node-a", [CARD], USED, uses))


def test_mig_devices_are_not_among_others_names(uses: list[ContainerUse]) -> None:
    found = samples(compatible_metrics(["hami"], "node-a", [replace(CARD, mode="mig")], USED, uses))
    assert found["hami_host_gpu_memory_used_bytes"] == {}
