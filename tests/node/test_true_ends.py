"""A card has its next user when nothing of the last one runs, whatever the API server says in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.cluster import PODS, STRATEGIC_PATCH
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card

STUBBORN = "trap '' TERM; while true; do sleep 1; done"
WATCHED_S = 12.0
"""How long a card is seen to stay with a pod that still runs: longer than `release_delay_s` and its second of grace."""


@pytest.fixture
def stubborn(gpu: GpuNode) -> GpuNode:
    """Return the node with a pod that ignores SIGTERM on its only card with room; another pod waits for that card."""
    card = gpu.state.cards[0].uuid
    only = {"nvidia.com/use-gpuuuid": card}
    gpu.create(gpu_pod("last", gpu_container("main", one_card(gpucores=100), STUBBORN), annotations=only))
    gpu.wait_running("last")
    gpu.create(gpu_pod("next", one_card(gpucores=100), annotations=only))
    gpu.cluster.wait_refused("next", "no card entirely free")
    return gpu


@contextmanager
def without(stop: Callable[[], None], start: Callable[[], None]) -> Iterator[None]:
    """Have a program of the node stand still."""
    stop()
    try:
        yield
    finally:
        start()


def main_pid(gpu: GpuNode) -> int:
    """Return the first process of the pod `last`."""
    return gpu.node.container_pids(gpu.node.container_id("default", "last", "main"))[0]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def delete_by_force(gpu: GpuNode) -> None:
    gpu.cluster.request("DELETE", f"{PODS}/last?gracePeriodSeconds=0&propagationPolicy=Background")


def is_bound(gpu: GpuNode) -> bool:
    return bool(gpu.cluster.pod("next")["spec"].get("nodeName"))


def watch_that_it_waits(gpu: GpuNode, pid: int) -> None:
    """Check for some time that the last user runs and has the card, and that the next one waits."""
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        assert lives(pid)
        assert not is_bound(gpu)
        assert "last" in gpu.holding()
        time.sleep(0.5)


def wait_for_the_next(gpu: GpuNode, pid: int) -> None:
    """Wait until the next pod is bound; the last one must be over by then."""
    gpu.cluster.wait(lambda: is_bound(gpu), "the next pod gets the card", 60)
    assert not lives(pid)
    gpu.wait_running("next")
    gpu.check("next")


@pytest.mark.promise("agent crashes")
def test_a_pod_that_ignores_sigterm_and_is_deleted_by_force_keeps_its_card_until_it_is_killed(
    stubborn: GpuNode,
) -> None:
    pid = main_pid(stubborn)
    delete_by_force(stubborn)
    wait_for_the_next(stubborn, pid)


def test_a_pod_that_cannot_be_killed_keeps_its_card_until_it_is_gone(stubborn: GpuNode) -> None:
    """Stands for one that hangs in the driver: the kubelet tries in vain, here for want of a container runtime."""
    pid = main_pid(stubborn)
    with without(stubborn.node.kill_containerd, stubborn.node.start_containerd):
        delete_by_force(stubborn)
        watch_that_it_waits(stubborn, pid)
    wait_for_the_next(stubborn, pid)


def test_a_pod_whose_kubelet_stands_still_keeps_its_card_though_it_is_called_failed_and_deleted(
    stubborn: GpuNode,
) -> None:
    """As Kubernetes' garbage collector does with pods of a node that is out of service."""
    pid = main_pid(stubborn)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    status = {"status": {"phase": "Failed", "conditions": [condition]}}
    with without(stubborn.node.kill_kubelet, stubborn.node.start_kubelet):
        stubborn.cluster.request("PATCH", f"{PODS}/last/status", status, content_type=STRATEGIC_PATCH)
        watch_that_it_waits(stubborn, pid)
        delete_by_force(stubborn)
        watch_that_it_waits(stubborn, pid)
    wait_for_the_next(stubborn, pid)


def test_an_agent_that_is_killed_meanwhile_says_the_same_when_it_is_back(stubborn: GpuNode) -> None:
    pid = main_pid(stubborn)
    with without(stubborn.node.kill_containerd, stubborn.node.start_containerd):
        delete_by_force(stubborn)
        stubborn.cluster.wait(lambda: "runs" in said(stubborn), "the node says that it runs")
        stubborn.kill_agent()
        stubborn.start_agent()
        stubborn.cluster.wait(stubborn.ready, "the agent is ready")
        watch_that_it_waits(stubborn, pid)
    wait_for_the_next(stubborn, pid)


def said(gpu: GpuNode) -> str:
    node = gpu.cluster.request("GET", f"/api/v1/nodes/{gpu.node.name}")
    return str((node["metadata"].get("annotations") or {}).get("gpuledger.dev/pod-ends", ""))
