"""gpuledger on a local control plane: the manifests as they stand, operator and scheduler as processes.

What a cluster runs as one pod runs here as two processes, with the same service account's token and the same settings
file; only the ports differ.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from build_control_plane import kubernetes_minor
from control_plane import ControlPlane, ControlPlaneError, ManagedProcess, free_port, samples
from gpuledger.formats.scheduler import authorization, url_with

REPOSITORY = Path(__file__).resolve().parent.parent
MANIFESTS = REPOSITORY / "manifests"
NAMESPACE, ACCOUNT = "gpuledger-system", "gpuledger"
CARDS = "/apis/gpuledger.dev/v1alpha1/gpuallocations"
JSON = "application/json"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
"""Name of the account in the API server's audit log."""


_ON_PODS = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy", "DeviceClass")
FILLS_IN_MINOR = 36
"""From this minor version of Kubernetes on, policies can fill pods in."""

NO_KUBELET: Mapping[str, object] = {"start_timeout_s": 0}
"""Settings for simulated nodes that nobody plays the kubelet of: no pod ever starts there."""

NOTHING_RUNS: Mapping[str, object] = {"release_delay_s": 1, "longest_release_s": 2}
"""Settings for such nodes on which pods are deleted by force: their shares are free at once, for nothing runs there."""


class Installation:
    """The product on a control plane: installed, started, stopped, killed, asked for its metrics.

    A second one on the same control plane needs a name, which its files and programs then carry. With `replicated`,
    that is also the host name of its kube-scheduler, and one of them is active at a time, as the Deployment's replicas.
    `scheduler_flags` are given to it beside the Deployment's own; `scheduler_changes` replace parts of its config.
    """

    def __init__(
        self,
        plane: ControlPlane,
        settings: Mapping[str, object] | None = None,
        name: str = "",
        replicated: bool = False,
        scheduler_flags: Sequence[str] = (),
        scheduler_changes: Mapping[str, object] | None = None,
    ) -> None:
        self.plane = plane
        self._scheduler_flags, self._scheduler_changes = scheduler_flags, scheduler_changes or {}
        self._host = name if replicated else None
        self.operator: ManagedProcess | None = None
        self.scheduler: ManagedProcess | None = None
        self._kubelets: list[ManagedProcess] = []
        self._settings = dict(settings or {})
        self._suffix = f"-{name}" if name else ""
        self.settings_file = plane.directory / f"settings{self._suffix}.yaml"
        self.secret_file = plane.directory / f"extender-secret{self._suffix}"
        self._scheduler_config_file = plane.directory / f"scheduler-config{self._suffix}.yaml"

    def install(self, whole: bool = False) -> None:
        """Apply CRD and manifests if the plane has none, and take the account's token. Raises ControlPlaneError.

        Unless the whole is wanted, the policies on pods and the DeviceClass are left out, which many tests do without;
        those that render policies by these settings have them for all namespaces.
        """
        if self.plane.status_of(f"{self.plane.server}{CARDS}") != HTTPStatus.OK:
            self.plane.kubectl("apply", "-f", "-", stdin=_manifests(self.plane, whole))
            for plural in ("gpuallocations", "gpureservations", "gpuusages"):
                self.plane.wait_established(f"{plural}.gpuledger.dev")
            # Nothing here runs containers: the Deployment's two programs are started as processes instead.
            self.plane.kubectl("scale", "deployment/gpuledger", "-n", NAMESPACE, "--replicas=0")
        self.kubeconfig = self.plane.kubeconfig_of_service_account(NAMESPACE, ACCOUNT)
        settings = yaml.safe_load((MANIFESTS / "settings.yaml").read_text())
        if not whole:
            settings["admission_namespaces"] = "all"
        names = ("listen_port", "health_port", "view_port", "explain_port")
        ports = {name: free_port() for name in names} | {"health_host": "127.0.0.1"}
        self.settings_file.write_text(yaml.safe_dump({**settings, **ports, **self._settings}))
        self.health_url = f"http://127.0.0.1:{ports['health_port']}"
        chosen = yaml.safe_load(self.settings_file.read_text())
        self.view_url = f"http://127.0.0.1:{chosen['view_port']}" if chosen.get("view_port") else ""
        self.explain_url = f"http://127.0.0.1:{ports['explain_port']}"
        self.extender_url = f"http://127.0.0.1:{ports['listen_port']}"

    def start_operator(self, kubeconfig: Path | None = None, wait: bool = True) -> ManagedProcess:
        """Start the operator, by another way to the API server if one is given; wait until it has read the ledger."""
        self.operator = self.plane.start_program(
            f"operator{self._suffix}",
            [
                sys.executable,
                "-m",
                "gpuledger",
                "run",
                *(["--host", self._host] if self._host else ["--no-leader-elect"]),
                *("--extender-secret", str(self.secret_file)),
                *self._files(kubeconfig or self.kubeconfig),
            ],
            ready=self.is_ready if wait else None,
        )
        return self.operator

    def is_ready(self) -> bool:
        """Return whether the operator has read the ledger."""
        return self._get("/readyz") is not None

    def scheduler_config(self) -> dict[str, Any]:
        """Return kube-scheduler's configuration, as the settings give it."""
        config = self._scheduler_config_file
        render = [
            *(sys.executable, "-m", "gpuledger", "scheduler-config"),
            "--leader-elect" if self._host else "--no-leader-elect",
            *("--settings", str(self.settings_file), "--output", str(config)),
            *("--extender-secret", str(self.secret_file)),
        ]
        env = {"KUBECONFIG": str(self.plane.kubeconfig)}  # for ConfigMaps that the settings may name
        _wait_for_success(self.plane.start_program(f"scheduler-config{self._suffix}", render, env), timeout_s=20)
        return dict(yaml.safe_load(config.read_text()))

    def extender_headers(self) -> dict[str, str]:
        """Return the headers by which the extender takes a client for kube-scheduler."""
        return {"Content-Type": JSON, "Authorization": authorization(self.secret_file.read_text())}

    def start_scheduler(self, extender_url: str | None = None, kubeconfig: Path | None = None) -> ManagedProcess:
        """Start kube-scheduler with the configuration that the settings give, or other ways to extender and server."""
        content, config = {**self.scheduler_config(), **self._scheduler_changes}, self._scheduler_config_file
        if extender_url:
            content["extenders"][0]["urlPrefix"] = url_with(extender_url, self.secret_file.read_text())
        if kubeconfig:  # something in between reads along
            content["clientConnection"] |= {"contentType": JSON, "acceptContentTypes": JSON}
        config.write_text(yaml.safe_dump(content))
        self.scheduler = self.plane.start_scheduler(
            config,
            kubeconfig or self.kubeconfig,
            name=f"kube-scheduler{self._suffix}",
            flags=[*scheduler_flags(), *self._scheduler_flags],
            host=self._host,
        )
        return self.scheduler

    def start(self) -> None:
        """Install and start everything."""
        self.install()
        self.start_operator()
        self.start_scheduler()

    def kill_operator(self) -> None:
        """Kill the operator as a crash would."""
        if self.operator:
            self.operator.kill()

    def restart_operator(self) -> None:
        """Kill the operator if it still runs, and start it again."""
        self.kill_operator()
        self.start_operator()

    def fake_nodes(self, *arguments: str, name: str = "fake-nodes", stay: bool = False) -> ManagedProcess:
        """Register simulated nodes; with `stay`, leave the process running that plays their kubelet."""
        process = self.plane.start_program(
            name,
            [
                *(sys.executable, "-m", "gpuledger", "fake-nodes", *self._files(self.plane.kubeconfig)),
                *arguments,
                *(["--run-pods"] if stay else []),
            ],
            ready=None,
        )
        if stay:
            self._kubelets.append(process)
        else:
            _wait_for_success(process, timeout_s=60)
        return process

    def ensure_alive(self) -> None:
        """Raise ControlPlaneError if one of its programs has ended, the one that plays kubelets included."""
        for process in (self.operator, self.scheduler, *self._kubelets):
            if process:
                process.ensure_alive()

    def metrics(self) -> dict[str, float]:
        """Return the operator's metrics: sample name with its labels -> value."""
        return samples(self.metrics_text())

    def metrics_text(self) -> str:
        """Return the same as the operator writes it; empty if it does not answer."""
        return self._get("/metrics") or ""

    def _files(self, kubeconfig: Path) -> list[str]:
        return ["--settings", str(self.settings_file), "--kubeconfig", str(kubeconfig)]

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.health_url + path, timeout=5) as response:  # noqa: S310 - our own process
                return str(response.read().decode())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None


def _wait_for_success(process: ManagedProcess, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.alive:
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"{process.name} did not end within {timeout_s:g} s:\n{process.log_text()}")
        time.sleep(0.05)
    if process.returncode:
        raise ControlPlaneError(f"{process.name} failed:\n{process.log_text()}")


def scheduler_flags() -> list[str]:
    """Return the flags of the Deployment's kube-scheduler, without those that only say where things are."""
    documents = yaml.safe_load_all((MANIFESTS / "deployment.yaml").read_text())
    containers = {c["name"]: c for document in documents for c in document["spec"]["template"]["spec"]["containers"]}
    flags = containers["kube-scheduler"]["command"][1:]
    return [flag for flag in flags if flag.split("=")[0] not in ("--config", "--secure-port")]


def _manifests(plane: ControlPlane, whole: bool) -> str:
    """Return what `kubectl apply -k manifests/` applies, as far as the server knows its kinds."""
    minor = int(kubernetes_minor().partition(".")[2])
    kinds = [*([] if whole else _ON_PODS), *([] if minor >= FILLS_IN_MINOR else _ON_PODS[1:2])]
    objects = plane.kubectl("kustomize", str(MANIFESTS)).split("\n---\n")
    return "\n---\n".join(
        each
        for each in objects
        if not any(f"\nkind: {kind}" in f"\n{each}" for kind in kinds) or "\n  name: gpuledger-agent" in each
    )
