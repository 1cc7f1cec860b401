"""gpuledger as a cluster runs it: by its manifests and out of its image, all of it pods, on two real nodes.

NVIDIA's driver library is faked on the nodes, and nothing else. Everything lives in a network namespace of its own (see
tools/pod_network.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

import local_node
import pod_network
from build_control_plane import ensure_binaries
from cluster.cluster import Cluster, phase
from cluster.kubernetes import FILLS_IN
from container_image import NAME, PACKAGE, REPOSITORY, build_image
from container_image import missing_requirements as missing_for_image
from control_plane import ControlPlane, samples
from fakes.nvml import fake_nvml
from fakes.nvml.fake_nvml import Card, NvmlState, Process, bus_id
from installation import MANIFESTS, NAMESPACE
from local_node import Node
from node_image import PAUSE, busybox_layer, static_busybox, write_image, write_program_image
from requirements import require

Json = dict[str, Any]

NODES = ("node-1", "node-2")
CARDS_PER_NODE = 4
DRIVER, STATE_DIRECTORY = "/driver", "/var/lib/fake-nvml"
AGENT_LABEL = "gpuledger.dev/agent=true"
HEALTH_PORT = 8889
LEASE = "gpuledger-scheduler"
READY_S = 120.0


@dataclass(frozen=True)
class Release:
    """A state of the product: its image's name and tag, and where its code and manifests are."""

    image: str
    package: Path
    manifests: Path


WITHOUT_FILLING_IN = {
    "target": {"kind": "MutatingAdmissionPolicy.*"},
    "patch": "{$patch: delete, apiVersion: any/v1, kind: Any, metadata: {name: any}}",
}
"""What people on an older Kubernetes take out of the manifests."""

OURS = Release(NAME, PACKAGE, MANIFESTS)


def previous_release(directory: Path) -> tuple[Release, str]:
    """Return the product before its last change, written into a directory, and that commit's name.

    The commit before this one may have the same product. Skips the test in a checkout without that history.
    """

    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=False)
        require("nothing to upgrade from", done.stderr.decode().strip() if done.returncode else "")
        return done.stdout

    product = ("operator/gpuledger", "manifests", "crds")
    changed = git("rev-list", "--max-count=1", "HEAD", "--", *product).decode().strip()
    require("nothing to upgrade from", "" if changed else "no commit of the product")
    before = git("rev-parse", "--short", f"{changed}~1").decode().strip()
    archive = git("archive", before, "--", *product)
    subprocess.run(["tar", "--extract", "--directory", directory], input=archive, check=True)
    return Release("gpuledger:previous", directory / "operator" / "gpuledger", directory / "manifests"), before


def missing_requirements() -> list[str]:
    """Return what this machine lacks for it, in words."""
    return local_node.missing_requirements() or [*pod_network.missing_requirements(), *missing_for_image()]


def require_pods() -> None:
    """Skip the test where no pods can run; with CI=true it fails."""
    require("no pods can run here, for want of", next(iter(missing_requirements()), ""))


class PodInstallation:
    """What tests ask of an installation; the active operator's answers come by the API server's proxy."""

    operator = None
    scheduler = None

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def metrics(self) -> dict[str, float]:
        """Return the active operator's metrics: sample name with its labels -> value."""
        return samples(self.metrics_text())

    def metrics_text(self) -> str:
        """Return the same as the operator writes it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.active()}:{HEALTH_PORT}/proxy/metrics"
        return self.plane.kubectl("get", "--raw", path)

    def holder(self) -> str:
        """Return who holds the scheduler's Lease: another name for each process, even in the same pod."""
        return self.plane.kubectl(
            "get", "lease", LEASE, "--namespace", NAMESPACE, "--output=jsonpath={..holderIdentity}"
        )

    def active(self) -> str:
        """Return the name of the pod whose scheduler holds the Lease."""
        return self.holder().rpartition("_")[0]


class PodCluster(Cluster):
    """A control plane and two nodes with gpuledger in pods."""

    def __init__(self, plane: ControlPlane, nodes: list[Node]) -> None:
        pods = PodInstallation(plane)
        super().__init__(plane, pods)  # type: ignore[arg-type] # as much of one as is needed
        self.nodes, self.active, self.holder = nodes, pods.active, pods.holder
        self.overlay = plane.directory / "overlay"

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        """Start control plane and nodes; stop them in the end. This thread has another network meanwhile."""
        with (
            pod_network.own_network(len(NODES)),
            ControlPlane.run(nodes=NODES, pod_network=True) as plane,
            contextlib.ExitStack() as running,
        ):
            plane.start_default_scheduler()
            found = cls(plane, [running.enter_context(Node.running(name, plane)) for name in NODES])
            running.callback(found.close)
            yield found

    # Installing.

    def bring_images(self) -> None:
        """Let the nodes have the images that the manifests name."""
        self.bring("gpuledger", build_image)
        program = ensure_binaries() / "kube-scheduler"
        running = json.loads(self.plane.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
        for image in {_scheduler_image(), f"registry.k8s.io/kube-scheduler:{running}"}:  # by the base, and by the chart
            self.bring("kube-scheduler", partial(write_program_image, name=image, program=program))

    def bring_public_images(self) -> None:
        """Let the nodes have the images that examples/ name: here both are busybox, whose pause does nothing."""
        busybox = static_busybox()
        assert busybox, "nodes need it themselves"
        for name, command in (("registry.k8s.io/pause:3.10", PAUSE), ("docker.io/library/busybox:1.37", "")):
            argv = ["/bin/sh", *(["-c", command] if command else [])]
            self.bring("public", partial(write_image, name=name, layers=[busybox_layer(busybox)], command=argv))

    def bring_release(self, release: Release) -> None:
        """Let the nodes have another release's image."""
        name = f"docker.io/library/{release.image}"
        self.bring("release", partial(build_image, package=release.package, name=name))

    def bring(self, name: str, write: Callable[[Path], object]) -> None:
        """Let the nodes have an image that a function writes."""
        tar = self.plane.directory / f"{name}.tar"
        write(tar)
        for node in self.nodes:
            node.import_image(tar)
        tar.unlink()

    def install(self, release: Release = OURS, **settings: object) -> None:
        """Apply the manifests by an overlay, as people change settings, and let agents run on the nodes."""
        self.show_cards()
        self.change(release, **settings)
        self.plane.kubectl("label", "nodes", *NODES, AGENT_LABEL)

    def show_cards(self) -> None:
        """Let all nodes' drivers show their cards."""
        for node in self.nodes:
            node.path("/var/lib").joinpath("fake-nvml").mkdir(exist_ok=True)
            self.show(node)

    def show(self, node: Node, processes: tuple[Process, ...] = ()) -> None:
        """Let a node's driver show its cards, with these processes on them."""
        state = replace(cards_of(self.nodes.index(node)), processes=processes)
        state.write(node.path("/var/lib") / "fake-nvml" / "state")

    def change(self, release: Release = OURS, **settings: object) -> None:
        """Apply the manifests of a release with these settings; None takes one out."""
        self.write_overlay(release, **settings)
        self.plane.kubectl("apply", "-k", str(self.overlay))

    def write_overlay(self, release: Release = OURS, **settings: object) -> None:
        """Write the manifests of a release as people adapt them, here with the fake driver in the agents."""
        self.overlay.mkdir(exist_ok=True)
        base = yaml.safe_load((release.manifests / "settings.yaml").read_text())
        stated = {name: value for name, value in {**base, **settings}.items() if value is not None}
        (self.overlay / "settings.yaml").write_text(yaml.safe_dump(stated))
        generator = {
            "name": "gpuledger-settings",
            "namespace": NAMESPACE,
            "behavior": "merge",
            "files": ["settings.yaml"],
        }
        name, tag = release.image.split(":")
        kustomization = {
            "resources": [os.path.relpath(release.manifests, self.overlay)],
            "configMapGenerator": [generator],
            "patches": [{"patch": yaml.safe_dump(_with_fake_driver())}, *([] if FILLS_IN else [WITHOUT_FILLING_IN])],
            "images": [{"name": name, "newTag": tag}],
        }
        (self.overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    def wait_installed(self) -> None:
        """Wait until operator, scheduler and agents are ready, and the cards take pods."""
        for what in ("deployment/gpuledger", "daemonset/gpuledger-agent"):
            limit = f"--timeout={READY_S:g}s"
            self.plane.kubectl("rollout", "status", what, "--namespace", NAMESPACE, limit, timeout_s=READY_S + 10)
        wanted = {card.uuid for number in range(len(self.nodes)) for card in cards_of(number).cards}
        self.wait(lambda: wanted <= {u for u, a in self.cards().items() if phase(a) == "Ready"}, "the cards are ready")
        # `rollout status` does not wait for pods that are about to end.
        self.wait(lambda: not self._ending(), "the pods of before are gone", timeout_s=READY_S)

    def _ending(self) -> list[str]:
        pods = self.system_pods() | self.system_pods("gpuledger-agent")
        return [name for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"]]

    # Looking.

    def system_pods(self, name: str = "gpuledger") -> dict[str, Json]:
        """Return pod name -> pod, of the Deployment or of the DaemonSet `gpuledger-agent`."""
        selector = f"?labelSelector=app.kubernetes.io/name={name}"
        found = self.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods{selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def node_of(self, pod: Mapping[str, Any]) -> Node:
        """Return the node that a pod is on."""
        return next(node for node in self.nodes if node.name == pod["spec"]["nodeName"])

    def runs(self, *names: str) -> bool:
        """Return whether all containers of these pods run."""
        pods = self.pods()
        return all(name in pods and _runs(pods[name]) for name in names)

    def told(self, name: str) -> list[tuple[str, int, int]]:
        """Return UUID, MiB and cores of each card, by the environment of a pod's container `main`."""
        env = self.node_of(self.pod(name)).container_environment("default", name, "main")
        amounts = (env[key].split(",") for key in ("GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"))
        memory, cores = (list(map(int, each)) for each in amounts)
        return list(zip(env["GPULEDGER_UUIDS"].split(","), memory, cores, strict=True))

    def entered(self, name: str) -> list[tuple[str, int, int]]:
        """Return the same by the ledger, in the order of the cards' index."""
        cards = sorted(self.cards().values(), key=lambda card: card["spec"]["index"])
        uid = self.pod(name)["metadata"]["uid"]
        held = [(card["spec"]["uuid"], holder) for card in cards for holder in card["status"]["holders"]]
        return [(uuid, each["memoryMiB"], each["cores"]) for uuid, each in held if each["podUID"] == uid]

    def _logs(self) -> str:
        show = ("--namespace", NAMESPACE)
        pods = self.plane.kubectl("get", "pods", "--output=wide", *show, check=False)
        logs = [
            self.plane.kubectl("logs", f"pod/{name}", "--all-containers", "--prefix", "--tail=12", *show, check=False)
            for name in self.system_pods()
        ]
        return "\n".join([pods, *logs])


def cards_of(number: int) -> NvmlState:
    """Return the cards of a node; nodes are numbered from 0."""
    first = number * CARDS_PER_NODE
    cards = (Card(f"GPU-{first + n:08d}", bus_id(n), numa_node=n * 2 // CARDS_PER_NODE) for n in range(CARDS_PER_NODE))
    return NvmlState(cards=tuple(cards))


def _scheduler_image() -> str:
    documents = yaml.safe_load_all((MANIFESTS / "deployment.yaml").read_text())
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return str(next(each["image"] for each in containers if each["name"] == "kube-scheduler"))


def fake_driver() -> dict[str, list[Json]]:
    """Return what brings the fake driver into the agent, as NVIDIA's container runtime would: env, volumes, mounts."""
    env = {"LD_LIBRARY_PATH": DRIVER, fake_nvml.STATE_VARIABLE: f"{STATE_DIRECTORY}/state"}
    places = {"driver": (str(fake_nvml.library_directory()), DRIVER), "driver-state": (STATE_DIRECTORY,) * 2}
    return {
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, (path, _) in places.items()],
        "volumeMounts": [{"name": n, "mountPath": to, "readOnly": True} for n, (_, to) in places.items()],
    }


def _with_fake_driver() -> Json:
    """Return a patch of the DaemonSet with the fake driver."""
    driver = fake_driver()
    agent = {"name": "agent", "env": driver["env"], "volumeMounts": driver["volumeMounts"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpuledger-agent", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": [agent], "volumes": driver["volumes"]}}},
    }


def _runs(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or ()
    return len(statuses) == len(pod["spec"]["containers"]) and all("running" in each["state"] for each in statuses)
