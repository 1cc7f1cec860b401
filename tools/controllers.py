"""Controllers that teams use, on a local control plane: the manifests of their releases, their programs as processes.

What a cluster has and this one lacks is stood in for: their webhooks listen on this machine, with the API server's own
certificate. Their accounts and permissions are their own.
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass
from typing import Any, Final

import yaml

from build_control_plane import JOBSET, KUBERAY, LWS, MPI, Program, coscheduling_groups, ensure_controller
from control_plane import ControlPlane, ManagedProcess, free_port

Json = dict[str, Any]

LEFT_OUT: Final = ("Deployment", "APIService", "Certificate", "Issuer", "ServiceMonitor")
"""The program is a process here, and its certificate another one."""


@dataclass(frozen=True)
class Release:
    """A controller as its project releases it."""

    name: str
    program: Program
    config: str = ""
    """Kind of its configuration, with its API's version; empty: it has flags alone."""
    manifests: str = "config/default"
    """A kustomization among its module's sources, or a file."""
    namespace: str = ""
    """Where its manifests put it."""
    account: str = ""
    """Its service account."""
    flags: tuple[str, ...] = ("--config={config}", "--kubeconfig={kubeconfig}")
    changes_too: str = ""
    """A resource that its account may change, as its Helm chart has it, and its manifests do not."""
    health: str = "http://127.0.0.1:{health}/readyz"
    """Where it says that it is ready."""


RELEASES: Final = {
    each.name: each
    for each in (
        Release(
            "jobset",
            JOBSET,
            "config.jobset.x-k8s.io/v1alpha1",
            "config/default",
            "jobset-system",
            "jobset-controller-manager",
        ),
        Release(
            "lws",
            LWS,
            "config.lws.x-k8s.io/v1alpha1",
            "config/default",
            "lws-system",
            "lws-controller-manager",
        ),
        Release(
            "kuberay",
            KUBERAY,
            namespace="default",
            account="kuberay-operator",
            changes_too="podgroups.scheduling.x-k8s.io",
            flags=(
                "--kubeconfig={kubeconfig}",
                "--batch-scheduler=scheduler-plugins",
                "--enable-leader-election=false",
                "--metrics-addr=0",
                "--health-probe-bind-address=127.0.0.1:{health}",
            ),
        ),
        Release(
            "mpi-operator",
            MPI,
            manifests="deploy/v2beta1/mpi-operator.yaml",
            namespace="mpi-operator",
            account="mpi-operator",
            flags=("--kubeConfig={kubeconfig}", "--gang-scheduling=gpuledger", "--lock-namespace=mpi-operator"),
            health="http://127.0.0.1:8080/healthz",  # it has no flag for that
        ),
    )
}


def install_coscheduling_groups(plane: ControlPlane) -> None:
    """Install the kind of PodGroups in which controllers say how many of their pods start together."""
    plane.kubectl("apply", "--server-side", "-f", str(coscheduling_groups()))
    plane.wait_established("podgroups.scheduling.x-k8s.io")


class Controller:
    """One of them: installed, started, killed."""

    def __init__(self, plane: ControlPlane, release: Release) -> None:
        self.plane, self.release = plane, release
        self._port, self._health_port = free_port(), free_port()
        self._directory = plane.directory / release.name
        self.manager: ManagedProcess | None = None

    def start(self) -> None:
        """Install it, and start it. Raises BuildError or ControlPlaneError."""
        self.install()
        self.start_manager()

    def install(self) -> None:
        """Apply its manifests, with its webhooks on this machine."""
        _, sources = ensure_controller(self.release.program)
        self._directory.mkdir(exist_ok=True)
        manifests = sources / self.release.manifests
        text = self.plane.kubectl("kustomize", str(manifests)) if manifests.is_dir() else manifests.read_text()
        found = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each and each["kind"] not in LEFT_OUT]
        objects = [self._here(each) for each in found]
        first = [each for each in objects if each["kind"] in ("Namespace", "CustomResourceDefinition")]
        for some in (first, [each for each in objects if each not in first]):
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": some})
            self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
        for each in first:
            if each["kind"] == "CustomResourceDefinition":
                self.plane.wait_established(each["metadata"]["name"])
        if self.release.changes_too:
            name, account = f"{self.release.name}-too", f"{self.release.namespace}:{self.release.account}"
            self.plane.kubectl("create", "clusterrole", name, "--verb=*", f"--resource={self.release.changes_too}")
            to = (f"--clusterrole={name}", f"--serviceaccount={account}")
            self.plane.kubectl("create", "clusterrolebinding", name, *to)

    def start_manager(self) -> None:
        """Start it, and wait until it is ready."""
        program, _ = ensure_controller(self.release.program)
        for file, name in zip(self.plane.serving_files, ("tls.crt", "tls.key"), strict=True):
            shutil.copyfile(file, self._directory / name)
        config = self._directory / "config.yaml"
        if self.release.config:
            config.write_text(yaml.safe_dump(self._configuration()))
        kubeconfig = self.plane.kubeconfig_of_service_account(self.release.namespace, self.release.account)
        values = {"config": config, "kubeconfig": kubeconfig, "health": self._health_port}
        argv = [str(program), *(flag.format(**values) for flag in self.release.flags)]
        self.manager = self.plane.start_program(self.release.name, argv, ready=self._is_ready)

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self.manager:
            self.manager.kill()

    def _is_ready(self) -> bool:
        return self.plane.status_of(self.release.health.format(health=self._health_port)) == 200

    def _configuration(self) -> Json:
        return {
            "apiVersion": self.release.config,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(self._directory)},
        }

    def _here(self, found: Json) -> Json:
        """Return an object with its way to the webhooks leading here."""
        for each in found.get("webhooks", ()):
            each["clientConfig"] = self._client_config(each["clientConfig"])
        conversion = found["spec"].get("conversion", {}).get("webhook") if "spec" in found else None
        if conversion:
            conversion["clientConfig"] = self._client_config(conversion["clientConfig"])
        return found

    def _client_config(self, released: Json) -> Json:
        certificate, _ = self.plane.serving_files
        path = released.get("service", {}).get("path", "/")
        return {
            "url": f"https://127.0.0.1:{self._port}{path}",
            "caBundle": base64.b64encode(certificate.read_bytes()).decode(),
        }
