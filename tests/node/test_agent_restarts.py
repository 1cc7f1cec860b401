"""Whatever dies on a node, running pods are not touched, and new ones get their own cards afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import pytest

from cluster.cluster import NODES
from gpuledger.formats.runtime.cdi import CHECKPOINT_FILE
from node.crashing_agent import POINTS
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card
from node_chaos.rest import FORGOTTEN
from node_chaos.sight import lives

REGISTER = "gpuledger.dev/gpus"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CUT_OFF = "before Allocate is answered"
"""The kubelet takes an Allocate that breaks off for a refusal: the pod fails for good, and its owner makes another."""

IN_EACH_RUN = (
    "after the node shows its cards",
    CUT_OFF,
    "with a file that is not in place",
    "before PreStartContainer is answered",
)
"""One of each kind: the kubelet knows nothing of the agent, waits for slots, for a file, or for its last answer."""


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in IN_EACH_RUN else pytest.mark.long) for point in POINTS]
)
def test_an_agent_killed_at_any_step_leaves_running_pods_and_serves_new_ones_right(gpu: GpuNode, point: str) -> None:
    gpu.create(gpu_pod("bystander", one_card(1000)))
    gpu.wait_running("bystander")
    before = gpu.identities("bystander")
    gpu.kill_agent()
    if "cards" in point:
        gpu.cluster.patch(f"{NODES}/{gpu.node.name}", {"metadata": {"annotations": {REGISTER: None}}})
    agent = gpu.start_agent(crash_at=point)
    if "node" not in point and "registered" not in point:
        gpu.wait_ready()
        gpu.create(gpu_pod("hit", one_card(2000)))
    gpu.cluster.wait(lambda: not agent.alive, f"the agent dies {point}: {gpu.log_tail()}")
    gpu.start_agent()
    gpu.wait_ready()
    if point == CUT_OFF:
        gpu.cluster.wait(lambda: gpu.cluster.pod("hit")["status"].get("phase") == "Failed", "the pod failed")
        gpu.remove("hit")
    if "hit" not in gpu.cluster.pods():
        gpu.create(gpu_pod("hit", one_card(2000)))
    names = ["hit", *gpu.create(gpu_pod("new", one_card(3000)))]
    gpu.wait_running(*names)
    gpu.check("bystander", *names)
    assert gpu.identities("bystander") == before


@pytest.mark.promise("agent crashes")
@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_a_restart_of_what_runs_the_pods_touches_none_of_them(
    gpu: GpuNode, program: str, say: Callable[[str], None]
) -> None:
    names = gpu.create(*(gpu_pod(f"before-{n}", one_card(1000 + n)) for n in range(4)))
    gpu.wait_running(*names)
    before = gpu.identities(*names)
    {"kubelet": gpu.node.restart_kubelet, "containerd": gpu.node.restart_containerd}[program]()
    gpu.wait_ready()
    later = gpu.create(*(gpu_pod(f"after-{n}", one_card(2000 + n)) for n in range(4)))
    gpu.wait_running(*later)
    gpu.check(*names, *later)
    assert gpu.identities(*names) == before


@pytest.mark.parametrize("damage", ["removed", "cut off"])
def test_a_kubelet_without_its_checkpoint_touches_no_container_and_starts_none_of_them_anew(
    gpu: GpuNode, damage: str
) -> None:
    """What it says of those that end is the kubelet's own rule for plugins that are asked before each start."""
    names = gpu.create(*(gpu_pod(f"known-{n}", one_card(1000 + n)) for n in range(2)))
    gpu.wait_running(*names)
    before = gpu.identities(*names)
    gpu.node.kill_kubelet()
    checkpoint = gpu.node.path("/var/lib/kubelet/device-plugins") / CHECKPOINT_FILE
    checkpoint.unlink() if damage == "removed" else os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    gpu.node.start_kubelet()
    gpu.wait_ready()
    later = gpu.create(*(gpu_pod(f"later-{n}", one_card(2000 + n)) for n in range(4)))
    gpu.wait_running(*later)
    gpu.check(*names, *later)
    assert gpu.identities(*names) == before
    for pid in gpu.node.container_pids(before["known-0"][0].removeprefix("containerd://")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gpu.cluster.wait(lambda: FORGOTTEN in str(gpu.cluster.pod("known-0")["status"]), "the kubelet says what it lacks")
    assert "known-0" in gpu.holding()


def test_a_pod_that_its_kubelet_gives_up_when_it_is_back_keeps_its_share_until_its_init_container_has_ended(
    gpu: GpuNode,
) -> None:
    """A kubelet that is back before its agent refuses pods that have not started all of their containers."""
    first = gpu_container("first", one_card(), "trap '' TERM; while :; do sleep 1; done")
    gpu.create(gpu_pod("late", gpu_container("main", one_card()), initContainers=[first]))
    gpu.cluster.wait(
        lambda: "running" in str(gpu.cluster.pod("late")["status"].get("initContainerStatuses")), "it runs"
    )
    (pid, *_) = gpu.node.container_pids(gpu.node.container_id("default", "late", "first"))
    gpu.kill_agent()
    gpu.node.restart_kubelet()
    gpu.cluster.wait(lambda: not gpu.holding(), "the share is free again")
    assert not lives(pid)
    assert gpu.phase("late") == "Failed"
    gpu.start_agent()


def test_an_agent_that_comes_back_finds_what_it_had_written_and_mends_what_is_missing(gpu: GpuNode) -> None:
    names = gpu.create(*(gpu_pod(f"kept-{n}", one_card(1000 + n)) for n in range(3)))
    gpu.wait_running(*names)
    files = gpu.grant_files()
    gpu.kill_agent()
    directory = gpu.node.path("/var/run/cdi")
    (directory / next(iter(files))).unlink()
    (directory / "gpuledger.dev-share-left.unfinished").write_text("half a file")
    (directory / "vendor.json").write_text("{}")
    gpu.start_agent()
    gpu.wait_ready()
    gpu.cluster.wait(lambda: gpu.grant_files() == files, "the files are as before")
    assert not list(directory.glob("*.unfinished"))
    assert (directory / "vendor.json").exists()
    (directory / "vendor.json").unlink()


def test_an_annotation_that_somebody_removes_or_edits_is_put_back(gpu: GpuNode) -> None:
    path = f"{NODES}/{gpu.node.name}"
    before = gpu.cluster.request("GET", path)["metadata"]["annotations"][REGISTER]
    for text in (None, "[]"):
        gpu.cluster.patch(path, {"metadata": {"annotations": {REGISTER: text}}})
        gpu.cluster.wait(
            lambda: gpu.cluster.request("GET", path)["metadata"]["annotations"].get(REGISTER) == before, "it is back"
        )


def test_slices_come_back_after_the_kubelet_has_deleted_them_and_an_agent_that_comes_back_leaves_them(
    gpu: GpuNode,
) -> None:
    """A kubelet that starts deletes all ResourceSlices of its node: it knows no driver yet."""

    def slices() -> dict[str, str]:
        found = gpu.cluster.request("GET", f"{SLICES}?fieldSelector=spec.nodeName={gpu.node.name}")["items"]
        return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in found}

    gpu.cluster.wait(lambda: len(slices()) == 1, "the node has a slice")
    before = slices()
    gpu.node.restart_kubelet()
    gpu.cluster.wait(lambda: bool(slices().keys() - before.keys()), "the slice is another one")
    gpu.wait_ready()
    before = slices()
    gpu.kill_agent()
    gpu.start_agent()
    gpu.wait_ready()
    assert slices() == before
    assert gpu.agent_metrics()["gpuledger_agent_node_writes_total"] == 0
