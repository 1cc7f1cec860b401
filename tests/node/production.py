"""A cluster as docs/production.md installs it, and what must hold of it whatever is done to it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from build_control_plane import ensure_binaries
from cluster.kubernetes import FILLS_IN
from container_image import VERSION, build_image
from control_plane import ControlPlane
from documents.journey import Journey
from documents.pages import ROOT, reasons
from documents.shell import Shell, for_cluster
from fakes.nvml.fake_nvml import NvmlState
from fakes.shared_library import a_library
from installation import NAMESPACE
from local_node import Node
from manifests.helm import own_homes, the_helm
from node.hami_plugin import VISIBLE, HamiDevicePlugin
from node.pod_cluster import NODES, PodCluster, fake_driver
from node_image import busybox_layer, static_busybox, write_image, write_program_image

Json = dict[str, Any]

VALUES = ROOT / "examples" / "production" / "values.yaml"
NEXT_VERSION = "0.1.999"
"""The tag under which the same image is there as well, to upgrade to."""

TEAM, REPLICAS = "team-a", 40
SLOTS = 10
"""Of a card. The team's pods can fill all cards of one node."""
AUDIT = f"kubectl exec -n {NAMESPACE} deploy/gpuledger -c operator -- gpuledger audit"
MONITORING = ("PodMonitor", "PrometheusRule")
SLOW_S = 180.0
KINDS = (
    "namespaces,clusterroles,clusterrolebindings,customresourcedefinitions,deviceclasses,resourceslices,"
    "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
)
"""Kinds of which an installation has objects outside of its namespace, or may have."""


def here(values: Mapping[str, Any]) -> Json:
    """Return the values as they have to be here: the driver is a stand-in, and each node is of all kinds at once."""
    found: Json = json.loads(json.dumps(values))
    found["agent"] |= fake_driver()
    found["operator"]["tolerations"].append({"operator": "Exists"})
    if not FILLS_IN:
        found["admission"]["mode"] = "validating"
    return found


class Production:
    """The cluster, a shell beside the checkout, and a Deployment of 40 pods that share cards."""

    def __init__(self, cluster: PodCluster, directory: Path) -> None:
        self.cluster = cluster
        for name in ("manifests", "examples"):
            (directory / name).symlink_to(ROOT / name)
        (directory / "helm").symlink_to(the_helm().program)
        variables = for_cluster(cluster.plane.kubeconfig, directory) | own_homes(directory)
        self.journey = Journey(Shell(directory, variables), dict.fromkeys(reasons(), "true"))
        self._starts: dict[str, int] = {}  # UID -> how often its container had to be started again, until it ran
        self.plugins = {node.name: HamiDevicePlugin(cluster, node) for node in cluster.nodes}

    def prepare(self) -> None:
        """Bring what the page's registry has, show the cards, and have the kinds of the Prometheus Operator."""
        cluster = self.cluster
        for tag in (VERSION, NEXT_VERSION):
            cluster.bring("gpuledger", partial(build_image, name=f"registry.example/gpuledger:{tag}"))
        running = json.loads(cluster.plane.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
        name, program = f"registry.example/kube-scheduler:{running}", ensure_binaries() / "kube-scheduler"
        cluster.bring("kube-scheduler", partial(write_program_image, name=name, program=program))
        cluster.bring("hami", _write_hami_image)
        cluster.bring_public_images()
        cluster.show_cards()
        for kind in MONITORING:
            cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(_any_kind(kind)))
        for node in NODES:
            self.label_as_control_plane(node)
        cluster.plane.kubectl("label", "namespace", "default", "gpuledger.dev/admission=true")  # for single pods

    def label_as_control_plane(self, node: str) -> None:
        self.cluster.plane.kubectl("label", "node", node, "node-role.kubernetes.io/control-plane=")

    def adapt_values(self) -> None:
        """Change the copy of the page's values to what is different here."""
        file = self.journey.shell.directory / "values.yaml"
        file.write_text(yaml.safe_dump(here(yaml.safe_load(file.read_text()))))

    def show(self, node: str, state: NvmlState) -> None:
        """Let a node's driver say something else."""
        state.write(self.node(node).path("/var/lib") / "fake-nvml" / "state")

    def reboot(self, node: str, state: NvmlState) -> None:
        """Let a node's driver say something else, and its agent start anew, as after a reboot of an empty node."""
        self.show(node, state)
        here = f"-l app.kubernetes.io/name=gpuledger-agent --field-selector spec.nodeName={node}"
        assert self.run(f"kubectl delete pod -n {NAMESPACE} {here}")[0] == 0

    # Looking.

    def node(self, name: str) -> Node:
        return next(node for node in self.cluster.nodes if node.name == name)

    def card(self, uuid: str) -> tuple[str, str]:
        """Return a card's phase and its reason; empty ones if it is not in the ledger."""
        status = (self.cluster.cards().get(uuid) or {}).get("status") or {}
        return str(status.get("phase", "")), str(status.get("reason", ""))

    def wait_phase(self, uuid: str, phase: str) -> None:
        self.cluster.wait(lambda: self.card(uuid)[0] == phase, f"card {uuid} is {phase or 'gone'}", SLOW_S)

    def wait_ready(self, node: str) -> None:
        """Wait until all cards of a node take pods."""

        def phases() -> list[str]:
            cards = [each for each in self.cluster.cards().values() if each["spec"]["nodeName"] == node]
            return [(each.get("status") or {}).get("phase", "") for each in cards]

        self.cluster.wait(lambda: phases() == ["Ready"] * 4, f"the cards of {node} are ready", SLOW_S)

    def pods(self) -> dict[str, Json]:
        """Return UID -> pod, of the team."""
        found = self.cluster.request("GET", f"/api/v1/namespaces/{TEAM}/pods")["items"]
        return {pod["metadata"]["uid"]: pod for pod in found}

    def scale(self, replicas: int) -> None:
        """Let the team have so many pods, and wait until it has."""
        assert self.run(f"kubectl scale deployment/trial -n {TEAM} --replicas={replicas}")[0] == 0
        self.cluster.wait(lambda: len(self.pods()) == replicas, f"{TEAM} has {replicas} pods", SLOW_S)

    def card_with_a_slot(self, node: str) -> str:
        """Return the UUID of the card of a node that most pods hold, of those that take one more."""

        def numbers() -> dict[str, int]:
            cards = [uuid for uuid, card in self.cluster.cards().items() if card["spec"]["nodeName"] == node]
            held = {uuid: len(self.cluster.holders().get(uuid, [])) for uuid in cards}
            return {uuid: number for uuid, number in held.items() if number < SLOTS}

        self.cluster.wait(lambda: bool(numbers()), f"a card of {node} has a free slot", SLOW_S)
        return max(numbers().items(), key=lambda each: each[1])[0]

    def uids_on(self, place: str) -> set[str]:
        """Return the UIDs of the team's pods on a node, or on a card."""
        holders = {holder["podUID"] for holder in self.cluster.holders().get(place, [])}
        return {uid for uid, pod in self.pods().items() if uid in holders or pod["spec"].get("nodeName") == place}

    def run(self, command: str) -> tuple[int, str]:
        """Run a command in the shell of the journey; return its status and what it prints."""
        done = self.journey.shell.run(command)
        return done.returncode, done.stdout + done.stderr

    # What must hold.

    def check(self, counted: bool = True) -> set[str]:
        """Check that all pods run, on cards that the ledger has for them and nobody else; return their UIDs.

        `counted`: whether gpuledger is there.
        """
        try:
            self.cluster.wait(self._all_run, f"{REPLICAS} pods of {TEAM} run, and no other", SLOW_S)
        except AssertionError as error:
            late = [pod for pod in self.pods().values() if pod["status"]["phase"] != "Running"]
            told = self.run(f"kubectl get events -n {TEAM} --field-selector type=Warning")[1]
            raise AssertionError(f"{error}\n{json.dumps([pod['status'] for pod in late], indent=1)}\n{told}") from None
        pods = self.pods()
        for uid, pod in pods.items():
            (status,) = pod["status"]["containerStatuses"]
            assert self._starts.setdefault(uid, status["restartCount"]) == status["restartCount"], status
        self._check_told(list(pods.values())[:: REPLICAS // 4])
        if counted:
            self.cluster.wait(lambda: self._holders() == pods.keys(), "the ledger has these pods' shares alone", SLOW_S)
            self.cluster.check_consistent(TEAM)
            self.cluster.wait(lambda: self.run(AUDIT)[0] == 0, "the audit finds nothing", SLOW_S)
        return set(pods)

    def _all_run(self) -> bool:
        pods = self.pods().values()
        states = [status["state"] for pod in pods for status in pod["status"].get("containerStatuses", [{"state": {}}])]
        ending = any("deletionTimestamp" in pod["metadata"] for pod in pods)
        return not ending and len(states) == REPLICAS and all("running" in state for state in states)

    def _holders(self) -> set[str]:
        return {holder["podUID"] for held in self.cluster.holders().values() for holder in held}

    def _check_told(self, pods: list[Json]) -> None:
        """Compare what containers were told with the annotation that the ledger has been compared with."""
        for pod in pods:
            env = self.cluster.node_of(pod).container_environment(TEAM, pod["metadata"]["name"], "main")
            ((device,),) = json.loads(pod["metadata"]["annotations"]["gpuledger.dev/devices"]).values()
            assert env.get("GPULEDGER_UUIDS", env.get(VISIBLE)) == device["uuid"]

    def leftovers(self) -> list[str]:
        """Return what of gpuledger is still in the API server, pods apart."""
        listed = json.loads(self.cluster.plane.kubectl("get", KINDS, "--output=json"))["items"]
        found = [
            f"{each['kind']} {each['metadata']['name']}" for each in listed if "gpuledger" in each["metadata"]["name"]
        ]
        for node in self.cluster.objects("nodes"):
            metadata, name = node["metadata"], node["metadata"]["name"]
            words = [*metadata.get("annotations", {}), *metadata["labels"], *map(str, node["spec"].get("taints", []))]
            found += [f"{name}: {word}" for word in words if "gpuledger" in word or "gpu=shared" in word]
        return found


def wait_established(plane: ControlPlane) -> None:
    for kind in MONITORING:
        plane.wait_established(f"{kind.lower()}s.monitoring.coreos.com")


def _write_hami_image(output: Path) -> None:
    """Write an image that has HAMi-core where HAMi's has it: a file that looks like it, and that no program loads."""
    content, library = io.BytesIO(), a_library()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("k8s-vgpu/lib/nvidia/libvgpu.so.v2.9.0")
        entry.size, entry.mode = len(library), 0o755
        tar.addfile(entry, io.BytesIO(library))
    busybox = static_busybox()
    assert busybox, "nodes need it themselves"
    write_image(output, "registry.example/hami:v2.9.0", [busybox_layer(busybox), content.getvalue()])


def _any_kind(kind: str) -> Json:
    """Return a CustomResourceDefinition of the Prometheus Operator that takes everything."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
