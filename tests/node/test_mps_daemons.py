"""`isolation: mps` without handwork, on a real kubelet: a container waits for the daemon of its card, and for no other.

NVIDIA's program is a stand-in (fakes/mps/control_program.py): what MPS does with a card is tested in tests/gpu.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import pytest
import yaml

from chart import MANIFESTS, NAMESPACE
from cluster.cluster import COUNT, Json
from container_image import build_image, missing_requirements
from fakes.mps import control_program
from fakes.nvml import fake_nvml
from gpuledger.agent.isolation.choice import MPS_PIPES
from gpuledger.formats.runtime.mps import SEVERAL, MpsPlaces, MpsStatus, Phase
from local_node import BoxProcess
from node.gpu_node import STATE, GpuNode, gpu_pod, one_card
from requirements import require

IMAGES_PYTHON = "/usr/bin/python3"
DIRECTORY, PROGRAMS = "/var/lib/mps", "/var/lib/mps-programs"


@dataclass
class Mps:
    """A node whose MPS daemons gpuledger runs."""

    gpu: GpuNode
    daemons: BoxProcess | None = None
    started: int = 0

    def start(self) -> None:
        """Start what the pod of gpuledger-mps runs."""
        self.started += 1
        environment = {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(fake_nvml.library_directory()),
            "FAKE_NVML_STATE": STATE,
            "PYTHONPATH": ":".join(sys.path),
        }
        argv = [sys.executable, "-m", "gpuledger", "mps-daemon", "--settings", str(self.gpu.installation.settings_file)]
        self.daemons = self.gpu.node.run(f"mps-daemon-{self.started}", argv, env=environment)

    @property
    def status(self) -> MpsStatus:
        file = self.gpu.node.path(DIRECTORY) / "status.json"
        return MpsStatus.read(file.read_text()) if file.exists() else MpsStatus()

    def phases(self) -> dict[str, Phase]:
        return {each.name: each.phase for each in self.status.daemons}

    def pids(self) -> dict[str, int]:
        return {each.name: each.pid for each in self.status.daemons}

    def wait(self, name: str, phase: Phase) -> None:
        self.gpu.cluster.wait(lambda: self.phases().get(name) is phase, f"the MPS daemon of {name} is {phase}")

    def tell(self, name: str, command: str) -> str:
        """Give a daemon a command, as an administrator or a client would."""
        script = f"echo {command} | {PROGRAMS}/{control_program.NAME}"
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipes(name)}
        return self.gpu.node.execute("sh", "-c", script, env=environment)

    def pipes_of(self, pod: str) -> str:
        """Return the directory of the node that a container has as its directory of pipes."""
        uid = self.gpu.cluster.pod(pod)["metadata"]["uid"]
        for spec in self.gpu.grant_files().values():
            (device,) = spec["devices"]
            if device["annotations"]["gpuledger.dev/pod-uid"] == uid:
                mounts = {each["containerPath"]: each["hostPath"] for each in device["containerEdits"]["mounts"]}
                return str(mounts[MPS_PIPES])
        raise AssertionError(f"no file of {pod}: {json.dumps(self.gpu.grant_files())[:2000]}")

    def wait_told(self, pod: str, what: str) -> None:
        """Wait until a pod's events say this."""
        self.gpu.cluster.wait(
            lambda: any(what in text for text in self.gpu.cluster.messages(pod)),
            f"the events of {pod} say {what!r}: {self.gpu.cluster.messages(pod)}",
        )


@pytest.fixture
def mps(gpu: GpuNode) -> Iterator[Mps]:
    control_program.install(str(gpu.node.path(PROGRAMS)))
    found = Mps(gpu)
    gpu.kill_agent()
    gpu.change_settings(isolation="mps", mps_daemon=True, mps_directory=DIRECTORY)
    gpu.start_agent()
    gpu.wait_ready()
    yield found
    gpu.remove_all()
    if found.daemons:
        found.daemons.kill()
    gpu.kill_agent()
    gpu.change_settings(isolation="none", mps_daemon=False)
    gpu.start_agent()
    gpu.wait_ready()


def pipes(daemon: str) -> str:
    """Return a daemon's directory of pipes, as the node has it."""
    return str(MpsPlaces(PurePath(DIRECTORY), daemon).pipes)


def clients(daemon: str) -> str:
    """Return the directory that containers have of a daemon, as the node has it."""
    return str(MpsPlaces(PurePath(DIRECTORY), daemon).clients)


def check_that_only_the_socket_is_there(gpu: GpuNode, pod: str, directory: str) -> None:
    """Check that user root of a container can neither replace the daemon's socket nor put anything beside it."""
    attack = f"cd {MPS_PIPES}; rm -f control; mv control mine; echo > filler; mkdir full; ls"
    found = gpu.node.container_execute("default", pod, "main", "sh", "-c", f"({attack}) 2>/dev/null")
    assert found.split() == ["control"]
    assert [path.name for path in gpu.node.path(directory).iterdir()] == ["control"]


def on(card: str) -> dict[str, str]:
    return {"nvidia.com/use-gpuuuid": card}


def test_containers_wait_for_the_daemon_of_their_card_and_a_fault_closes_that_card_alone(mps: Mps) -> None:
    gpu, (first, second, *_) = mps.gpu, [card.uuid for card in mps.gpu.state.cards]
    gpu.create(gpu_pod("early", one_card(), annotations=on(first)))
    mps.wait_told("early", "which the pod of gpuledger-mps writes: is it running?")
    mps.start()
    gpu.wait_running("early")
    assert gpu.node.container_environment("default", "early", "main")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1000M"
    assert mps.pipes_of("early") == clients(first)
    check_that_only_the_socket_is_there(gpu, "early", clients(first))

    gpu.create(gpu_pod("several", {COUNT: 2, "nvidia.com/gpumem": 500}))
    gpu.wait_running("several")
    assert mps.pipes_of("several") == clients(SEVERAL)

    before = mps.pids()
    gpu.kill_agent()
    gpu.start_agent()
    gpu.wait_ready()
    assert mps.pids() == before, "an agent that is restarted touches no daemon"

    mps.tell(first, "test_client 0")
    mps.tell(first, "test_fault")
    mps.wait(first, Phase.FAULT)
    told = f"the MPS daemon of GPU {first}: its server "
    gpu.cluster.wait(
        lambda: any(text.startswith(told) and "default/early" in text for text in node_events(gpu)),
        f"the node's events tell of the fault and its pods: {node_events(gpu)}",
    )
    gpu.create(
        gpu_pod("late", one_card(), annotations=on(first)), gpu_pod("beside", one_card(), annotations=on(second))
    )
    gpu.wait_running("beside")
    mps.wait_told("late", f"the MPS daemon of GPU {first} takes no programs: a fatal fault has ended its programs")
    assert not gpu.has_run("late")
    mps.tell(first, "test_recover")
    gpu.wait_running("late")
    metrics = gpu.agent_metrics()
    assert metrics[f'gpuledger_agent_mps_faults_total{{kind="fatal",uuid="{first}"}}'] == 1
    assert metrics[f'gpuledger_agent_mps_daemon_up{{uuid="{first}"}}'] == 1
    assert sum(text.startswith(told) for text in node_events(gpu)) == 1


def node_events(gpu: GpuNode) -> list[str]:
    return gpu.cluster.messages(gpu.node.name, "Node")


@pytest.fixture
def daemon_set(gpu: GpuNode) -> Iterator[Json]:
    """Yield the DaemonSet of manifests/mps on the node, changed only in what this place needs."""
    require("no image can be built, for want of", next(iter(missing_requirements()), ""))
    control_program.install(str(gpu.node.path(PROGRAMS)), IMAGES_PYTHON)
    tar = gpu.plane.directory / "image.tar"
    build_image(tar)
    gpu.node.import_image(tar)
    tar.unlink()
    file = gpu.plane.directory / "mps-settings.yaml"
    file.write_text("{isolation: mps, mps_daemon: true}\n")
    here = ("--namespace", NAMESPACE)
    gpu.plane.kubectl("create", "configmap", "mps-settings", f"--from-file=settings.yaml={file}", *here)
    found: Json = yaml.safe_load((MANIFESTS / "mps" / "daemonset.yaml").read_text())
    spec = found["spec"]["template"]["spec"]
    spec["hostNetwork"] = True  # there is no other
    spec["nodeSelector"] = {"kubernetes.io/hostname": gpu.node.name}  # an agent is there already, as a process
    next(each for each in spec["volumes"] if each["name"] == "settings")["configMap"]["name"] = "mps-settings"
    (container,) = spec["containers"]
    container["env"] += [
        {"name": "LD_LIBRARY_PATH", "value": "/driver"},
        {"name": fake_nvml.STATE_VARIABLE, "value": STATE},
        {"name": "PATH", "value": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin"},
    ]
    for name, path, place in (
        ("driver", str(fake_nvml.library_directory()), "/driver"),
        ("driver-state", str(PurePath(STATE).parent), str(PurePath(STATE).parent)),
        ("programs", PROGRAMS, PROGRAMS),
    ):
        spec["volumes"].append({"name": name, "hostPath": {"path": path}})
        container["volumeMounts"].append({"name": name, "mountPath": place, "readOnly": True})
    changed = gpu.plane.directory / "mps-daemonset.yaml"
    changed.write_text(yaml.safe_dump(found))
    gpu.plane.kubectl("apply", f"--filename={changed}")
    yield found
    gpu.plane.kubectl("delete", f"--filename={changed}", "--wait=false", "--ignore-not-found")
    gpu.plane.kubectl("delete", "configmap", "mps-settings", *here)


def test_the_daemonset_runs_as_it_stands_and_ends_in_good_order(gpu: GpuNode, daemon_set: Json) -> None:
    directory = gpu.node.path("/run/nvidia/mps")
    uuids = {card.uuid for card in gpu.state.cards}

    def status() -> MpsStatus:
        return MpsStatus.read((directory / "status.json").read_text())

    def all_run() -> bool:
        there = (directory / "status.json").exists()
        return there and {each.phase for each in status().daemons} == {Phase.RUNNING}

    name = f"daemonset/{daemon_set['metadata']['name']}"
    try:
        gpu.cluster.wait(all_run, "all daemons run", timeout_s=150)
    except AssertionError as error:
        asked = (["logs", name, "--all-containers"], ["describe", name], ["describe", "pods"])
        told = [gpu.plane.kubectl(*each, "--namespace", NAMESPACE, check=False) for each in asked]
        raise AssertionError("\n".join([str(error), *told])) from None
    assert {each.name for each in status().daemons} == uuids | {SEVERAL}
    mounts = gpu.node.execute("cat", "/proc/mounts").splitlines()
    assert [line.split()[0] for line in mounts if line.split()[1] == "/run/nvidia/mps/shm"] == ["gpuledger-mps"]
    assert status().pod_uid in gpu.plane.kubectl("get", "pods", "--namespace", NAMESPACE, "--output=yaml")
    gpu.plane.kubectl("delete", name, "--namespace", NAMESPACE)
    gpu.cluster.wait(lambda: {each.pid for each in status().daemons} == {0}, "the daemons have ended with their pod")
    assert status().faults == (), "nobody had used them"
    gpu.node.execute("umount", "/run/nvidia/mps/shm")
