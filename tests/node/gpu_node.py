"""A real node with simulated GPUs: our agent at the real kubelet, with the fake of NVIDIA's driver library."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.cluster import COUNT, PODS, Cluster, Json, RequestFailed, devices
from control_plane import ControlPlane, free_port
from fakes.nvml import fake_nvml
from fakes.nvml.fake_nvml import NvmlState, some_cards
from installation import Installation
from local_node import BoxProcess, Node
from node_image import BUSYBOX_IMAGE

TESTS = Path(__file__).parents[1]
STATE = "/var/lib/fake-nvml/state"
AGENT_ACCOUNT = "gpuledger-agent"
STAY = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
MIRRORED_CDI = "/var/run/gpuledger-cdi"
"""Where the agent writes, when a test decides when the runtime sees it."""


def gpu_pod(
    name: str, *containers: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """Return a pod whose containers stay; a mapping of limits stands for a container `main`."""
    listed = [each if "name" in each else gpu_container("main", each) for each in containers]
    fixed = {"schedulerName": "gpuledger", "hostNetwork": True, "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {**fixed, "containers": listed, **spec},
    }


def gpu_container(name: str, limits: Mapping[str, object], script: str = STAY, **extra: object) -> Json:
    """Return a container."""
    resources = {"limits": {key: str(value) for key, value in limits.items()}}
    command = ["sh", "-c", script]
    return {"name": name, "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": command, **extra} | {
        "resources": resources
    }


class GpuNode:
    """A node, its cluster with gpuledger, and the agent as a process in the node's box."""

    def __init__(self, plane: ControlPlane, node: Node, cards: int = 4, **settings: object) -> None:
        self.plane, self.node = plane, node
        self.port = free_port()
        fixed = {"agent_health_host": "127.0.0.1", "agent_health_port": self.port, "release_delay_s": 4}
        self.installation = Installation(plane, {**fixed, **settings})
        self.installation.start()
        self.cluster = Cluster(plane, self.installation)
        self.state = NvmlState(cards=some_cards(cards))
        self.node.path("/var/lib").joinpath("fake-nvml").mkdir(exist_ok=True)
        self.show(self.state)
        self._kubeconfig = plane.kubeconfig_of_service_account("gpuledger-system", AGENT_ACCOUNT, node=node.name)
        self.agent: BoxProcess | None = None
        self._agents = 0

    def show(self, state: NvmlState) -> None:
        """Let the driver say something else from now on."""
        self.state = state
        state.write(self.node.path("/var/lib") / "fake-nvml" / "state")

    def change_settings(self, **settings: object) -> None:
        """Let an agent that is started later have other settings."""
        file = self.installation.settings_file
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **settings}))

    @contextlib.contextmanager
    def agent_with(self, **settings: object) -> Iterator[None]:
        """Have an agent with other settings, whatever else is changed of them, and no pods when it ends."""
        file = self.installation.settings_file
        before = file.read_text()
        self.kill_agent()
        self.change_settings(**settings)
        try:
            self.start_agent()
            self.wait_ready()
            yield
            self.remove_all()
            self.kill_agent()
        finally:
            file.write_text(before)
        self.start_agent()
        self.wait_ready()

    # The agent.

    def start_agent(self, crash_at: str = "", program: Sequence[str] = ("-m", "gpuledger")) -> BoxProcess:
        """Start the agent, or another program that runs it; with a point of crashing_agent.py, it dies there."""
        if crash_at:
            program = [str(TESTS / "node" / "crashing_agent.py"), crash_at]
        self._agents += 1
        files = ["--settings", str(self.installation.settings_file), "--kubeconfig", str(self._kubeconfig)]
        env = {
            "LD_LIBRARY_PATH": str(fake_nvml.library_directory()),
            "FAKE_NVML_STATE": STATE,
            "PYTHONPATH": ":".join(sys.path),
        }
        argv = [sys.executable, *program, "agent", *files, "--node-name", self.node.name]
        self.agent = self.node.run(f"agent-{self._agents}", argv, env=env)
        return self.agent

    def kill_agent(self) -> None:
        """Kill the agent with its parent, as a crash of its container would."""
        if self.agent:
            self.agent.kill()

    def ready(self) -> bool:
        """Return whether the agent says that it is ready."""
        return self.plane.status_of(f"http://127.0.0.1:{self.port}/readyz") == 200

    def wait_ready(self) -> None:
        """Wait until the agent is ready, its cards are, and the kubelet offers the slots."""
        wanted = {card.uuid for card in self.state.cards}
        try:
            self.cluster.wait(self.ready, "the agent is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None
        self.cluster.wait(lambda: wanted <= self.open_cards(), "the cards take pods")

    def open_cards(self) -> set[str]:
        """Return the UUIDs of cards that take pods."""
        return {
            uuid for uuid, card in self.cluster.cards().items() if (card.get("status") or {}).get("phase") == "Ready"
        }

    def log_tail(self) -> str:
        """Return the end of what the agent has logged."""
        return "\n".join(self.agent.log_text().splitlines()[-25:]) if self.agent else ""

    def agent_metrics(self) -> dict[str, float]:
        """Return the agent's metrics: sample name with its labels -> value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def agent_pids(self) -> list[int]:
        """Return the ids of the agent's two processes, the parent first, as this machine sees them."""
        assert self.agent is not None
        parent = self.agent.program_pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [parent, *map(int, children.split())]

    def agent_cpu_s(self) -> float:
        """Return the processor time that the agent has used so far."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.agent_pids()]
        return sum(int(user) + int(system) for *_, user, system in (each[:13] for each in fields)) / 100

    def agent_wakes(self) -> int:
        """Return how often threads of the agent have gone to sleep so far."""
        texts = (each.read_text() for pid in self.agent_pids() for each in Path(f"/proc/{pid}/task").glob("*/status"))
        found = (re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE) for text in texts)
        return sum(int(one) for (one,) in found)

    def agent_memory_mib(self) -> float:
        """Return the memory of the agent's processes, what they share counted once."""
        sizes = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.agent_pids())
        found = (re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE) for text in sizes)
        return sum(int(one) for (one,) in found) / 1024

    def pid_in_box(self, pod: str, container: str = "main") -> int:
        """Return the id of a container's first process, as the node sees it."""
        return self.node.pid_in_box(self.node.container_pids(self.node.container_id("default", pod, container))[0])

    # Pods.

    def create(self, *pods: Json) -> list[str]:
        """Create pods; return their names."""
        for each in pods:
            self.cluster.request("POST", PODS, each)
        return [each["metadata"]["name"] for each in pods]

    def wait_running(self, *names: str, timeout_s: float = 120.0) -> None:
        """Wait until all containers of these pods run."""
        try:
            self.cluster.wait(lambda: all(_runs(found) for found in self._pods(names)), f"{names} run", timeout_s)
        except AssertionError as error:
            late = [found for found in self._pods(names) if not _runs(found)]
            told = {found["metadata"]["name"]: self.cluster.messages(found["metadata"]["name"]) for found in late}
            raise AssertionError(f"{error}\n{[found['status'] for found in late]}\n{told}\n{self.log_tail()}") from None

    def phase(self, name: str) -> str:
        """Return a pod's phase."""
        return str(self.cluster.pod(name)["status"].get("phase"))

    def has_run(self, name: str) -> bool:
        """Return whether a program of a pod has run.

        The phase does not say that: where a runtime could not start a container, and the kubelet is about to try again,
        the pod is called Running, too.
        """
        statuses = self.cluster.pod(name)["status"].get("containerStatuses") or ()
        states = [each.get(when) or {} for each in statuses for when in ("state", "lastState")]
        ended = [each["terminated"]["reason"] for each in states if "terminated" in each]
        return any("running" in each for each in states) or any(reason != "StartError" for reason in ended)

    def remove(self, *names: str) -> None:
        """Delete pods in good order and wait until they are gone, from the ledger too."""
        for name in names:
            with contextlib.suppress(RequestFailed):  # it is gone already
                self.cluster.request("DELETE", f"{PODS}/{name}")
        self.cluster.wait(lambda: not set(names) & set(self.cluster.pods()), f"{names} are gone")
        self.cluster.wait(lambda: not set(names) & self.holding(), f"nothing is held by {names}")

    def remove_all(self) -> None:
        """Delete all pods."""
        self.remove(*self.cluster.pods())

    def holding(self) -> set[str]:
        """Return the names of pods that hold shares."""
        held = [(card.get("status") or {}).get("holders") or () for card in self.cluster.cards().values()]
        return {holder["pod"] for holders in held for holder in holders}

    def _pods(self, names: Sequence[str]) -> list[Json]:
        found = self.cluster.pods()
        return [found[name] for name in names if name in found]

    # What containers got.

    def told(self, pod: str, container: str = "main") -> list[tuple[str, int, int]]:
        """Return UUID, MiB and cores of each card, by the environment of a running container."""
        env = self.node.container_environment("default", pod, container)
        assert env["NVIDIA_VISIBLE_DEVICES"] == env["GPULEDGER_UUIDS"]
        amounts = (env[name].split(",") for name in ("GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"))
        memory, cores = (list(map(int, each)) for each in amounts)
        return list(zip(env["GPULEDGER_UUIDS"].split(","), memory, cores, strict=True))

    def entered(self, pod: Json, container: str = "main") -> list[tuple[str, int, int]]:
        """Return the same by the ledger, in the order of the cards' index."""
        found = []
        for card in sorted(self.cluster.cards().values(), key=lambda card: card["spec"]["index"]):
            for holder in card["status"]["holders"]:
                if holder["podUID"] == pod["metadata"]["uid"]:
                    share = {each["name"]: each for each in holder["containers"]}.get(container)
                    found += [(card["spec"]["uuid"], share["memoryMiB"], share["cores"])] if share else []
        return found

    def check(self, *names: str) -> None:
        """Compare every running container's environment with the ledger, and both with the pod's annotation."""
        pods = self.cluster.pods()
        for name in names:
            for container, cards in devices(pods[name]).items():
                annotated = [(card["uuid"], card["memoryMiB"], card["cores"]) for card in cards]
                assert self.entered(pods[name], container) == annotated, (name, container)
                if container in {each["name"] for each in pods[name]["spec"]["containers"]}:
                    assert self.told(name, container) == annotated, (name, container)

    def identities(self, *names: str) -> dict[str, tuple[str, int]]:
        """Return pod -> id and restarts of its first container: they stay the same for one that nobody touches."""
        pods = self.cluster.pods()
        statuses = {name: pods[name]["status"]["containerStatuses"][0] for name in names}
        return {name: (status["containerID"], status["restartCount"]) for name, status in statuses.items()}

    def restart(self, name: str) -> None:
        """Kill a pod's first container, and wait until the kubelet has started it anew."""
        identity, restarts = self.identities(name)[name]
        for pid in self.node.container_pids(identity.removeprefix("containerd://")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.wait(lambda: self.identities(name)[name][1] > restarts, f"{name} was started anew")
        self.wait_running(name)

    def started_at_s(self, pod: str, container: str = "main") -> float:
        """Return when the first process of a container started, in seconds of Unix time, to about 10 ms."""
        pid = self.node.container_pids(self.node.container_id("default", pod, container))[0]
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / 100

    def bound_at_s(self) -> dict[str, float]:
        """Return pod -> when it was bound, in seconds of Unix time, from the API server's audit log."""
        events = self.plane.audit_events()
        return {event.name: event.timestamp.timestamp() for event in events if event.subresource == "binding"}

    def grant_files(self, directory: str = "/var/run/cdi") -> dict[str, Json]:
        """Return CDI file name -> its content."""
        found = self.node.path(directory).glob("gpuledger.dev-share-*.json")
        return {file.name: json.loads(file.read_text()) for file in found}


def one_card(memory_mib: int = 1000, **more: int) -> dict[str, int]:
    """Return limits."""
    return {COUNT: 1, "nvidia.com/gpumem": memory_mib, **{f"nvidia.com/{key}": value for key, value in more.items()}}


def _runs(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or ()
    return len(statuses) == len(pod["spec"]["containers"]) and all("running" in each["state"] for each in statuses)
