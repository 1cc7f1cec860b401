"""Kueue's own manager on a local control plane: the manifests of its release, its program as a process.

What a cluster has and this one lacks is stood in for: the Service of its webhooks leads to this machine, and its
certificates are copied to where a kubelet would mount them. Its account and permissions are its own.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any

import yaml

from build_control_plane import ensure_kueue, ensure_kueue_types
from control_plane import ControlPlane, ControlPlaneError, ManagedProcess, free_port

Json = dict[str, Any]

NAMESPACE, ACCOUNT, SECRET = "kueue-system", "kueue-controller-manager", "kueue-webhook-server-cert"
API = "kueue.x-k8s.io/v1beta2"

LEFT_OUT = ("Deployment", "APIService")
"""The program is a process here, and nobody asks for lists of pending workloads."""

CONFIGURATION: Json = {
    "leaderElection": {"leaderElect": False},
    "metrics": {"bindAddress": "0"},
    "integrations": {"frameworks": ["batch/job", "pod", "deployment"]},
    "resources": {"excludeResourcePrefixes": ["nvidia.com/", "gpuledger.dev/managed"]},
}
"""What differs from its release: docs/queues.md says why for what teams have to set, too."""


TYPES = ("workloads", "clusterqueues", "localqueues", "admissionchecks", "resourceflavors", "cohorts")
"""The kinds that tests look at."""


def install_types(plane: ControlPlane) -> None:
    """Install Kueue's kinds alone: whoever plays its manager writes them. Raises BuildError or ControlPlaneError.

    They are not converted from one version to another, as that takes the manager's webhook.
    """
    found = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(ensure_kueue_types().glob("*.yaml"))]
    wanted = [each for each in found if each["spec"]["names"]["plural"] in TYPES]
    for each in wanted:
        each["spec"].pop("conversion", None)
    _apply(plane, wanted)


def _apply(plane: ControlPlane, objects: list[Json]) -> None:
    """Apply objects; CustomResourceDefinitions are to be served when this returns. One is too large for else."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    for each in objects:
        if each["kind"] == "CustomResourceDefinition" and each["spec"]["names"]["plural"] in TYPES:
            plane.wait_established(each["metadata"]["name"])


class Kueue:
    """Its manager: installed, started, killed."""

    def __init__(self, plane: ControlPlane, configuration: Mapping[str, object] | None = None) -> None:
        self.plane = plane
        self._configuration = {**CONFIGURATION, **(configuration or {})}
        self._port, self._health_port = free_port(), free_port()
        self._certificates = plane.directory / "kueue-certificates"
        self._config_file = plane.directory / "kueue.yaml"
        self._released: Json = {}
        self.manager: ManagedProcess | None = None

    def start(self) -> None:
        """Install it, and start it. Raises BuildError or ControlPlaneError."""
        self.install()
        self.start_manager()

    def install(self) -> None:
        """Apply its manifests, with its webhooks on this machine."""
        _, manifests = ensure_kueue()
        text = self.plane.kubectl("kustomize", str(manifests / "default"))
        found = list(yaml.load_all(text, yaml.CSafeLoader))
        config = next(each for each in found if each["kind"] == "ConfigMap")["data"]["controller_manager_config.yaml"]
        self._released = yaml.safe_load(config)
        self._config_file.write_text(yaml.safe_dump(self._adapted(self._released)))
        objects = [self._here(each) for each in found if each["kind"] not in LEFT_OUT]
        first = [each for each in objects if each["kind"] in ("Namespace", "CustomResourceDefinition")]
        for some in (first, [each for each in objects if each not in first]):
            _apply(self.plane, some)

    def start_manager(self) -> None:
        """Start it, and wait until its webhooks answer."""
        program, _ = ensure_kueue()
        self._certificates.mkdir(exist_ok=True)
        kubeconfig = self.plane.kubeconfig_of_service_account(NAMESPACE, ACCOUNT)
        argv = [str(program), f"--config={self._config_file}", f"--kubeconfig={kubeconfig}"]
        argv.append("--feature-gates=VisibilityOnDemand=false")
        self.manager = self.plane.start_program("kueue", argv, {"GOGC": os.environ.get("GOGC", "400")}, self._is_ready)

    def configure(self, configuration: Mapping[str, object]) -> None:
        """Start it again with another configuration, unless it has that already."""
        wanted = {**CONFIGURATION, **configuration}
        if wanted != self._configuration:
            self._configuration = wanted
            self._config_file.write_text(yaml.safe_dump(self._adapted(self._released)))
            self.kill()
            self.start_manager()

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self.manager:
            self.manager.kill()

    def _is_ready(self) -> bool:
        self._mount_certificates()
        return self.plane.status_of(f"http://127.0.0.1:{self._health_port}/readyz") == 200

    def _mount_certificates(self) -> None:
        try:
            text = self.plane.kubectl("get", "secret", SECRET, "-n", NAMESPACE, "-o", "json")
        except ControlPlaneError:
            return
        for name, content in (json.loads(text).get("data") or {}).items():
            data, file = base64.b64decode(content), self._certificates / name
            if not file.exists() or file.read_bytes() != data:
                file.write_bytes(data)

    def _adapted(self, config: Json) -> Json:
        """Return the release's configuration for a process on this machine."""
        return {
            **config,
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(self._certificates)},
            **self._configuration,
        }

    def _here(self, found: Json) -> Json:
        """Return an object with its way to the webhooks leading here."""
        if found["kind"] == "Service" and found["metadata"]["name"] == "kueue-webhook-service":
            ports = [{"port": self._port}]
            return {**found, "spec": {"type": "ExternalName", "externalName": "localhost", "ports": ports}}
        for each in found.get("webhooks", ()):
            each["clientConfig"]["service"]["port"] = self._port
        conversion = found["spec"].get("conversion", {}).get("webhook") if "spec" in found else None
        if conversion:
            conversion["clientConfig"]["service"]["port"] = self._port
        return found
