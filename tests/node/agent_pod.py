"""The agent as a cluster runs it: a pod of the DaemonSet in manifests/, on the real kubelet, out of the image."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from container_image import build_image
from fakes.nvml import fake_nvml
from node.gpu_node import GpuNode

NAMESPACE, NAME, CONTAINER = "gpuledger-system", "gpuledger-agent", "agent"
LABEL = "gpuledger.dev/agent"
SETTINGS = "gpuledger-settings-here"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
DRIVER = "/driver"
STATE_DIRECTORY = "/var/lib/fake-nvml"
HAMI_CORE = "/var/lib/hami-core"
"""A directory of the node alone, as /usr is not: the setting hami_core_directory."""

LATE_S = 8
"""After how long a pod that the kubelet does not take up closes the node."""

Json = dict[str, Any]


@contextmanager
def operator_with(gpu: GpuNode, **settings: object) -> Iterator[None]:
    """Run the operator with other settings."""
    before = gpu.installation.settings_file.read_text()
    try:
        gpu.change_settings(**settings)
        gpu.installation.kill_operator()
        gpu.installation.start_operator()
        yield
    finally:
        gpu.installation.settings_file.write_text(before)
        gpu.installation.kill_operator()
        gpu.installation.start_operator()


class AgentPod:
    """The agent's pod on a node."""

    def __init__(self, gpu: GpuNode) -> None:
        self.gpu, self.node, self.plane = gpu, gpu.node, gpu.plane

    # The DaemonSet.

    def install(self) -> None:
        """Bring the image to the node, and change of the DaemonSet what the place needs; no pod starts yet.

        Another module's tests may have done that already: then the settings are those of now.
        """
        self.bring_image()
        file = f"--from-file=settings.yaml={self.gpu.installation.settings_file}"
        is_there = bool(self._kubectl("get", "configmap", SETTINGS, "--ignore-not-found", "--output=name"))
        self._kubectl("delete", "configmap", SETTINGS, "--ignore-not-found")
        self._kubectl("create", "configmap", SETTINGS, file)
        if is_there:
            return
        found = json.loads(self._kubectl("get", "daemonset", NAME, "--output=json"))
        changes = json.dumps(_changes(found["spec"]["template"]["spec"], self.gpu.port))
        self._kubectl("patch", "daemonset", NAME, "--type=json", f"--patch={changes}")

    def bring_image(self, hami_core: Path | None = None) -> None:
        """Bring the image to the node, with a library of HAMi's if one is given, in place of what was there."""
        tar = self.plane.directory / "image.tar"
        build_image(tar, hami_core=hami_core)
        self.node.import_image(tar)
        tar.unlink()

    def start(self) -> None:
        """Label the node, and wait until the agent serves it."""
        self.plane.kubectl("label", "node", self.node.name, f"{LABEL}=true")
        self.wait_ready()

    def stop(self) -> None:
        """Take the label away, and wait until the pod is gone."""
        self.plane.kubectl("label", "node", self.node.name, f"{LABEL}-")
        self.gpu.cluster.wait(lambda: not self._pods(), "the agent's pod is gone", timeout_s=120)

    # Its pod.

    def pod(self) -> Json:
        """Return the pod."""
        (found,) = self._pods()
        return found

    def ready(self) -> bool:
        """Return whether the kubelet takes it for ready."""
        conditions = [each for pod in self._pods() for each in pod["status"].get("conditions", ())]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def wait_ready(self) -> None:
        """Wait until the pod is Ready, the kubelet offers its slots, and the cards take pods."""
        self.gpu.cluster.wait(self.ready, f"the agent's pod is Ready\n{self.story()}", timeout_s=150)
        self.gpu.wait_ready()

    def wait_not_ready(self) -> None:
        """Wait until the kubelet has noticed."""
        self.gpu.cluster.wait(lambda: not self.ready(), "the agent's pod is not Ready", timeout_s=120)

    def restarts(self) -> int:
        """Return how often its container was started again."""
        return int(self.pod()["status"]["containerStatuses"][0]["restartCount"])

    def execute(self, *argv: str) -> str:
        """Run a command in its container. Raises ControlPlaneError."""
        return self.node.container_execute(NAMESPACE, self.pod()["metadata"]["name"], CONTAINER, *argv)

    def story(self) -> str:
        """Return what became of it so far."""
        return f"{self._kubectl('describe', 'pods')}\n{self.log()}"

    def log(self) -> str:
        """Return what the container that runs has printed."""
        return self._kubectl("logs", f"daemonset/{NAME}", "--tail=40", check=False)

    # Its processes.

    def container(self) -> str:
        """Return the id of its container."""
        return self.node.container_id(NAMESPACE, self.pod()["metadata"]["name"], CONTAINER)

    def parent(self) -> int:
        """Return the id of its first process, as this machine sees it."""
        pids = self.node.container_pids(self.container())
        return next(pid for pid in pids if _status(pid)["PPid"] not in map(str, pids))

    def child(self) -> int:
        """Return the id of the process that serves."""
        parent = str(self.parent())
        return next(pid for pid in self.node.container_pids(self.container()) if _status(pid)["PPid"] == parent)

    def rights(self) -> list[dict[str, str]]:
        """Return of each of its processes what the kernel says of its rights."""
        names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
        return [{name: _status(pid)[name] for name in names} for pid in (self.parent(), self.child())]

    def memory_mib(self) -> float:
        """Return what its container's processes use, without files in the page cache."""
        lines = self.execute("cat", "/sys/fs/cgroup/memory/memory.stat").splitlines()
        return int(dict(line.split() for line in lines)["total_rss"]) / 2**20

    def cpu_s(self) -> float:
        """Return the processor time that its container has used."""
        return int(self.execute("cat", "/sys/fs/cgroup/cpuacct/cpuacct.usage")) / 1e9

    def _pods(self) -> list[Json]:
        found = json.loads(self._kubectl("get", "pods", f"--selector=app.kubernetes.io/name={NAME}", "--output=json"))
        return list(found["items"])

    def _kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.plane.kubectl(*arguments, "--namespace", NAMESPACE, check=check)


def _changes(spec: Json, port: int) -> list[Json]:
    """Return a JSON patch: the ports and settings of this place, and the stand-in for what NVIDIA's runtime brings."""
    pod, agent = "/spec/template/spec", "/spec/template/spec/containers/0"
    settings, library = (
        next(n for n, volume in enumerate(spec["volumes"]) if volume["name"] == name)
        for name in ("settings", "hami-core")
    )
    mounts = spec["containers"][0]["volumeMounts"]
    mount = next(n for n, each in enumerate(mounts) if each["name"] == "hami-core")
    change = {
        f"{pod}/hostNetwork": True,  # there is no other; and what is sent stays on the loopback interface
        f"{agent}/ports": [{"name": "health", "containerPort": port}],
        f"{agent}/livenessProbe/httpGet/host": "127.0.0.1",
        f"{agent}/readinessProbe/httpGet/host": "127.0.0.1",
        f"{pod}/volumes/{settings}/configMap/name": SETTINGS,
        f"{pod}/volumes/{library}/hostPath/path": HAMI_CORE,
        f"{agent}/volumeMounts/{mount}/mountPath": HAMI_CORE,
    }
    more: list[tuple[str, Json]] = [
        (f"{agent}/env/-", {"name": "LD_LIBRARY_PATH", "value": DRIVER}),
        (f"{agent}/env/-", {"name": fake_nvml.STATE_VARIABLE, "value": f"{STATE_DIRECTORY}/state"}),
    ]
    for name, path, place in (
        ("driver", str(fake_nvml.library_directory()), DRIVER),
        ("driver-state", STATE_DIRECTORY, STATE_DIRECTORY),
    ):
        more.append((f"{pod}/volumes/-", {"name": name, "hostPath": {"path": path}}))
        more.append((f"{agent}/volumeMounts/-", {"name": name, "mountPath": place, "readOnly": True}))
    return [{"op": "add", "path": path, "value": value} for path, value in [*change.items(), *more]]


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def kubelet_of(gpu: GpuNode) -> int:
    """Return the process id of the node's kubelet."""
    return next(pid for pid in gpu.node.pids() if _command(pid) == "kubelet")


def _command(pid: int) -> str:
    """Return the name of a process's program, empty if it has ended: the runtime's come and go."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes, in this order, and let those go on that are left in the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)


def ended(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return _status(pid)["State"][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self._begin_s:.1f} s"
