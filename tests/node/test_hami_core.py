"""The real HAMi-core, installed by the agent, in containers of a real kubelet; under it a driver without cards.

Skipped without the library, which is not part of this repository: see tests/unit/stand_in_driver/test_hami_core.py.
GPULEDGER_OLDER_HAMI_CORE names one of another layout, such as HAMi 2.8.1's; without it, the upgrade is not tried.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial

import pytest

from cluster.cluster import COUNT, Json
from node.gpu_node import GpuNode, gpu_container, gpu_pod
from stand_in_driver.stand_in_driver import StandInCard, StandInDriver

LIBRARY = os.environ.get("GPULEDGER_HAMI_CORE", "")
OLDER = os.environ.get("GPULEDGER_OLDER_HAMI_CORE", "")
DRIVER, STATE = "/driver/lib", "/driver/cards"

pytestmark = pytest.mark.skipif(not LIBRARY, reason="GPULEDGER_HAMI_CORE names no libvgpu.so of HAMi-core")


class HamiNode:
    """A node whose agent installs HAMi-core, and pods that run CUDA programs on it."""

    def __init__(self, gpu: GpuNode) -> None:
        self.gpu = gpu
        self.lib = gpu.node.path("/var/lib")
        self.cards = self.lib / "stand-in-cards"
        self.cards.mkdir(exist_ok=True)
        self.cards.chmod(0o777)
        self.driver = StandInDriver(self.cards, [StandInCard(card.uuid) for card in gpu.state.cards])
        shutil.copytree(self.driver.libraries, self.lib / "stand-in-driver", dirs_exist_ok=True)

    def start_agent(self, library: str, version: str) -> None:
        """Start the agent with another image."""
        self.gpu.kill_agent()
        image = self.lib / "hami-core-image"
        shutil.rmtree(image, ignore_errors=True)
        image.mkdir()
        shutil.copy(library, image / f"libvgpu.so.{version}")
        self.gpu.change_settings(
            isolation="hami-core",
            hami_core_directory="/var/lib/hami-core-installed",
            hami_core_image_directory="/var/lib/hami-core-image",
        )
        self.gpu.start_agent()
        self.gpu.wait_ready()

    def pod(self, name: str, script: str, limits: dict[str, object], **env: str) -> Json:
        """Return a pod whose container has this machine's libraries and the driver; $STEPS does CUDA's work."""
        places = {"lib": ("/lib", "/lib"), "lib64": ("/lib64", "/lib64")}
        places |= {"driver": ("/var/lib/stand-in-driver", DRIVER), "cards": ("/var/lib/stand-in-cards", STATE)}
        variables = {"STAND_IN_DRIVER": STATE, "LD_LIBRARY_PATH": DRIVER, "STEPS": f"{DRIVER}/cuda_steps", **env}
        container = gpu_container(
            "main",
            limits,
            script,
            env=[{"name": key, "value": value} for key, value in variables.items()],
            volumeMounts=[{"name": key, "mountPath": inside} for key, (_, inside) in places.items()],
            securityContext={"runAsUser": 65534, "runAsGroup": 65534},
        )
        volumes = [{"name": key, "hostPath": {"path": path}} for key, (path, _) in places.items()]
        return gpu_pod(name, container, volumes=volumes)

    def printed(self, pod: str) -> list[str]:
        """Return what a pod's CUDA programs have printed, without HAMi-core's own lines."""
        log = self.gpu.node.container_log("default", pod, "main")
        return [line for line in log.splitlines() if not line.startswith("[HAMI-core")]

    def said(self, pod: str, line: str) -> bool:
        return line in self.printed(pod)

    def wait_for(self, pod: str, line: str) -> list[str]:
        """Wait until a pod has printed a line; return all that it has printed."""
        try:
            self.gpu.cluster.wait(partial(self.said, pod, line), f"{pod} prints {line}", 120)
        except AssertionError as error:
            log = self.gpu.node.container_log("default", pod, "main")
            raise AssertionError(f"{error}\n{log}\n{self.gpu.cluster.messages(pod)}\n{self.gpu.log_tail()}") from None
        return self.printed(pod)


@pytest.fixture
def hami(gpu: GpuNode) -> Iterator[HamiNode]:
    node = HamiNode(gpu)
    yield node
    gpu.remove_all()
    gpu.kill_agent()
    gpu.change_settings(isolation="none")
    gpu.start_agent()
    gpu.wait_ready()


def test_a_container_sees_its_limit_and_gets_cudas_error_beyond_it_whatever_its_pod_says(hami: HamiNode) -> None:
    hami.start_agent(LIBRARY, "v2.9.0")
    script = 'while :; do $STEPS info "alloc 2701" "alloc 2700" "device 1" info; echo done; sleep 3600; done'
    limits: dict[str, object] = {COUNT: 2, "nvidia.com/gpumem": 3000}
    evading = {"CUDA_DEVICE_MEMORY_LIMIT_0": "80000m", "CUDA_REDIRECT": "/none.so", "CUDA_DISABLE_CONTROL": "true"}
    hami.gpu.create(hami.pod("one", script, limits), hami.pod("other", script, limits, **evading))
    for pod in ("one", "other"):
        assert hami.wait_for(pod, "done") == [
            "info CUDA_SUCCESS free_mib=2700 total_mib=3000",
            "alloc CUDA_ERROR_OUT_OF_MEMORY mib=2701",
            "alloc CUDA_SUCCESS mib=2700",
            "device CUDA_SUCCESS",
            "info CUDA_SUCCESS free_mib=2700 total_mib=3000",
            "done",
        ]


@pytest.mark.skipif(not OLDER, reason="GPULEDGER_OLDER_HAMI_CORE names no older libvgpu.so")
def test_a_container_that_starts_again_after_an_upgrade_does_not_hang_on_the_counters_before(hami: HamiNode) -> None:
    """The new library takes the old one's counters for its own, and waits for a lock in them for ever."""
    hami.start_agent(OLDER, "v2.8.1")
    script = 'timeout 20 $STEPS info "alloc 1000"; echo "ended $?"; while [ ! -e /driver/cards/go ]; do sleep 1; done'
    hami.gpu.create(hami.pod("again", script, {COUNT: 1, "nvidia.com/gpumem": 3000}))
    expected = ["info CUDA_SUCCESS free_mib=2700 total_mib=3000", "alloc CUDA_SUCCESS mib=1000", "ended 0"]
    assert hami.wait_for("again", "ended 0") == expected
    hami.start_agent(LIBRARY, "v2.9.0")
    go = hami.cards / "go"
    go.write_text("")
    hami.gpu.cluster.wait(lambda: len(hami.printed("again")) >= 2 * len(expected), "it has started again", 120)
    go.unlink()
    assert hami.printed("again")[: 2 * len(expected)] == 2 * expected
