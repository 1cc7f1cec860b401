"""What keeps shares apart reaches the container: variables and mounts, as the node and the pod want them.

Neither HAMi-core nor MPS is here: stand-ins lie where they would be. What these enforce is tested on a real card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster.cluster import COUNT
from gpuledger.agent.isolation.mps import MPS_PIPES
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card

WISH = "gpuledger.dev/isolation"
SHOW = "cat /usr/local/vgpu/libvgpu.so /etc/ld.so.preload; echo seen > /usr/local/vgpu/usage.cache; exec sleep 3600"


@pytest.fixture
def with_hami_core(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with something that lies where HAMi-core does, and all pods under it."""
    home = gpu.node.path("/var/lib") / "hami-core"
    home.mkdir(exist_ok=True)
    (home / "libvgpu.so").write_text("the library\n")
    (home / "ld.so.preload").write_text("\n")
    yield from _with_settings(gpu, isolation="hami-core", hami_core_directory="/var/lib/hami-core")


def _with_settings(gpu: GpuNode, **settings: object) -> Iterator[GpuNode]:
    gpu.kill_agent()
    gpu.change_settings(**settings)
    gpu.start_agent()
    gpu.wait_ready()
    yield gpu
    gpu.remove_all()
    gpu.kill_agent()
    gpu.change_settings(isolation="none")
    gpu.start_agent()
    gpu.wait_ready()


def test_hami_core_gets_its_limits_its_library_and_a_directory_of_its_own(with_hami_core: GpuNode) -> None:
    gpu = with_hami_core
    limits = {COUNT: 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30, "nvidia.com/priority": 1}
    gpu.create(gpu_pod("held", gpu_container("main", limits, SHOW)))
    alone = gpu_pod("alone", {COUNT: 1}, annotations={WISH: "none"})
    shared = gpu_pod("shared", one_card(), annotations={WISH: "none"})
    gpu.create(alone, shared)
    gpu.wait_running("held", "alone", "shared")
    gpu.check("held", "alone", "shared")
    env = gpu.node.container_environment("default", "held", "main")
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "3000m"
    assert (env["CUDA_DEVICE_SM_LIMIT"], env["CUDA_TASK_PRIORITY"]) == ("30", "1")
    assert gpu.node.container_log("default", "held", "main").startswith("the library")
    uid = gpu.cluster.pod("held")["metadata"]["uid"]
    own = gpu.node.path("/var/lib/hami-core/containers") / f"{uid}_main" / "usage.cache"
    gpu.cluster.wait(own.exists, "its counters are on the node")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in gpu.node.container_environment("default", "alone", "main")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in gpu.node.container_environment("default", "shared", "main")


def test_a_node_that_lacks_what_its_setting_names_starts_nothing_and_says_so(gpu: GpuNode) -> None:
    changed = _with_settings(gpu, isolation="mps", mps_directory="/var/lib/no-mps")
    next(changed)
    gpu.create(gpu_pod("waits", one_card()))
    gpu.cluster.wait(
        lambda: any("the node's isolation is mps" in text for text in gpu.cluster.messages("waits")),
        f"the pod's events say what is missing: {gpu.log_tail()}",
    )
    mps = gpu.node.path("/var/lib") / "no-mps"
    for name in ("pipe", "shm"):
        (mps / name).mkdir(parents=True, exist_ok=True)
    copy = gpu.node.path("/var/lib") / "nvidia-cuda-mps-control"
    copy.write_text("#!/bin/sh\necho $$ > /var/lib/no-mps/pipe/nvidia-cuda-mps-control.pid\nsleep 3600 & wait\n")
    copy.chmod(0o755)
    daemon = gpu.node.run("mps", ["/var/lib/nvidia-cuda-mps-control"])
    gpu.wait_running("waits")
    env = gpu.node.container_environment("default", "waits", "main")
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1000M"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == MPS_PIPES
    daemon.kill()
    next(changed, None)


def test_the_devices_come_from_the_toolkits_cdi_files_where_there_are_any(gpu: GpuNode) -> None:
    card = gpu.state.cards[0].uuid
    mount = {"hostPath": "/var/lib/driver.txt", "containerPath": "/driver.txt", "options": ["ro", "bind"]}
    edits = {
        "env": ["FROM_TOOLKIT=yes"],
        "mounts": [mount],
    }
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": card, "containerEdits": edits}],
        "containerEdits": {"env": ["FOR_ALL=yes"]},
    }
    (gpu.node.path("/var/lib") / "driver.txt").write_text("a library\n")
    file = gpu.node.path("/var/run/cdi") / "nvidia.json"
    file.write_text(json.dumps(spec))
    main = gpu_container("main", one_card(), "cat /driver.txt; exec sleep 3600")
    gpu.create(gpu_pod("toolkit", main, annotations={"nvidia.com/use-gpuuuid": card}))
    gpu.wait_running("toolkit")
    env = gpu.node.container_environment("default", "toolkit", "main")
    assert (env["FROM_TOOLKIT"], env["FOR_ALL"], env["GPULEDGER_UUIDS"]) == ("yes", "yes", card)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert gpu.node.container_log("default", "toolkit", "main") == "a library\n"
    file.unlink()
