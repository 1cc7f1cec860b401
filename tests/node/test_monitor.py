"""The monitor on a real node: regions of containers that the kubelet has started, and an agent that is killed.

The test writes what HAMi-core would. With the library itself, the same is tested over a stand-in for the driver.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from cluster.cluster import COUNT
from fakes.shared_regions import controls, write_region
from gpuledger.formats.idle import Idleness, ShareKey, read_idle
from gpuledger.formats.runtime.shared_region import IDLE, LIMITER_ON, PAUSED
from node.gpu_node import GpuNode, gpu_container, gpu_pod

HOME = "/var/lib/hami-core-monitored"


@pytest.fixture
def monitored(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with something that lies where HAMi-core does, and an agent that looks often."""
    home = gpu.node.path("/var/lib") / Path(HOME).name
    home.mkdir(exist_ok=True)
    (home / "libvgpu.so").write_text("the library\n")
    (home / "ld.so.preload").write_text("\n")
    with gpu.agent_with(isolation="hami-core", hami_core_directory=HOME, monitor_interval_s=1.0):
        yield gpu


def test_a_low_priority_waits_for_a_high_one_and_no_end_of_an_agent_leaves_it_waiting(monitored: GpuNode) -> None:
    gpu = monitored
    card = gpu.state.cards[0].uuid
    for name, priority in {"high": 0, "low": 1}.items():
        limits = {COUNT: 1, "nvidia.com/gpumem": 1000, "nvidia.com/priority": priority}
        gpu.create(gpu_pod(name, gpu_container("main", limits), annotations={"nvidia.com/use-gpuuuid": card}))
    gpu.wait_running("high", "low")
    own = {
        name: gpu.node.path(HOME) / "containers" / f"{gpu.cluster.pod(name)['metadata']['uid']}_main" / "usage.cache"
        for name in ("high", "low")
    }
    write_region(own["low"], (card,), processes=[(1, 700)])

    def launches_and_the_other_pauses() -> bool:
        write_region(own["high"], (card,), last_kernel_s=int(time.time()))
        return controls(own["low"]) == (PAUSED, LIMITER_ON)

    gpu.cluster.wait(launches_and_the_other_pauses, "low pauses")
    gpu.cluster.wait(lambda: launches_and_the_other_pauses() and _usage(gpu)["low"]["paused"] is True, "and it shows")
    said = _usage(gpu)["low"]
    assert (said["source"], said["memoryUsedMiB"], said["memoryHeldMiB"], said["uuid"]) == ("region", 700, 1000, card)
    assert sum(value for name, value in gpu.agent_metrics().items() if "container_paused" in name) == 1
    gpu.cluster.wait(lambda: controls(own["low"])[0] == IDLE, "low goes on when high launches nothing more")

    gpu.kill_agent()
    write_region(own["low"], (card,), recent_kernel=PAUSED)  # as it would leave it
    gpu.start_agent()
    gpu.cluster.wait(lambda: controls(own["low"])[0] == IDLE, "the next agent resumes it")
    gpu.wait_ready()

    gpu.cluster.wait(launches_and_the_other_pauses, "low pauses under the next agent, too")
    assert gpu.agent is not None
    os.kill(gpu.agent.program_pid, signal.SIGTERM)

    def has_ended() -> bool:
        launches_and_the_other_pauses()
        return gpu.plane.status_of(f"http://127.0.0.1:{gpu.port}/healthz") != HTTPStatus.OK

    gpu.cluster.wait(has_ended, "the agent ends in good order")
    gpu.cluster.wait(lambda: controls(own["low"]) == (IDLE, LIMITER_ON), "and resumes who pauses")


def test_a_share_is_told_to_be_idle_until_a_kernel_begins(gpu: GpuNode) -> None:
    home = gpu.node.path("/var/lib") / Path(HOME).name
    home.mkdir(exist_ok=True)
    (home / "libvgpu.so").write_text("the library\n")
    (home / "ld.so.preload").write_text("\n")
    with gpu.agent_with(isolation="hami-core", hami_core_directory=HOME, monitor_interval_s=1.0, idle_after_s=5.0):
        gpu.create(gpu_pod("quiet", gpu_container("main", {COUNT: 1, "nvidia.com/gpumem": 1000})))
        gpu.wait_running("quiet")
        (uid, shares) = gpu.cluster.pod("quiet")["metadata"]["uid"], partial(_idle, gpu)
        gpu.cluster.wait(lambda: any(each.since for each in shares().values()), "it is idle", IDLE_WITHIN_S)
        ((pod_uid, card),) = shares()
        assert pod_uid == uid
        region = gpu.node.path(HOME) / "containers" / f"{uid}_main" / "usage.cache"

        def launches_and_is_in_use() -> bool:
            write_region(region, (card,), last_kernel_s=int(time.time()))
            return shares()[pod_uid, card].since is None

        gpu.cluster.wait(launches_and_is_in_use, "it is in use", IDLE_WITHIN_S)
        assert shares()[pod_uid, card].before_s >= 1


IDLE_WITHIN_S = 150.0
"""The agent looks every half minute, and a share is idle that was unused in two looks."""


def _idle(gpu: GpuNode) -> Mapping[ShareKey, Idleness]:
    (node,) = gpu.cluster.request("GET", "/api/v1/nodes")["items"]
    return read_idle(node).shares


def _usage(gpu: GpuNode) -> dict[str, dict[str, object]]:
    """Return what the agent answers of each pod."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gpu.port}/usage", timeout=10) as answer:
        return {each["pod"]: each for each in json.loads(answer.read())["containers"]}
