"""gpuledger as Helm installs it on two real nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import yaml

from cluster.kubernetes import FILLS_IN
from control_plane import ControlPlaneError
from installation import NAMESPACE
from manifests.helm import own_homes
from node.pod_cluster import OURS, PodCluster, Release, fake_driver

NAME = "gpus"
TIMEOUT_S = 240.0


class HelmRelease:
    """A release of the chart in a cluster, with the fake driver in its agents.

    There is neither DNS nor a proxy for services here, so that `helm test` only runs its audit, and an API server that
    would need the webhook does without.
    """

    def __init__(self, cluster: PodCluster, helm: Path) -> None:
        self._cluster, self._helm = cluster, helm

    def take_over(self) -> None:
        """Install over what kustomize has installed, and wait until all of it is ready."""
        self._change("install", OURS, "--take-ownership", "--force-conflicts")

    def install(self) -> None:
        """Install where nothing is, and wait until all of it is ready."""
        self._change("install", OURS)

    def upgrade(self, release: Release = OURS, **settings: object) -> None:
        """Upgrade to a release with these settings, and wait until all of it is ready.

        What kustomize has written, and Helm now changes, is kubectl's as well: hence the force.
        """
        self._change("upgrade", release, "--force-conflicts", **settings)

    def rollback(self) -> None:
        """Go back to what was there before the last change, and wait until all of it is ready."""
        self.run("rollback")
        self._cluster.wait_installed()

    def run(self, verb: str, *arguments: str) -> str:
        """Run Helm and return what it says. Raises ControlPlaneError with that when it fails."""
        plane = self._cluster.plane
        place = ["--kubeconfig", str(plane.kubeconfig), "--namespace", NAMESPACE]
        done = subprocess.run(
            [str(self._helm), verb, NAME, *arguments, *place],
            env={**os.environ, **own_homes(plane.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ControlPlaneError(f"`helm {verb}` failed with status {done.returncode}: {done.stdout}")
        return done.stdout

    def _change(self, verb: str, release: Release, *arguments: str, **settings: object) -> None:
        file = self._cluster.plane.directory / "values.yaml"
        file.write_text(yaml.safe_dump(values_for(release, **settings)))
        self.run(verb, str(release.manifests / "chart"), "--values", str(file), *arguments)
        self._cluster.wait_installed()


def values_for(release: Release = OURS, **settings: object) -> dict[str, object]:
    """Return the values of a release with these settings, and with the fake driver in its agents."""
    repository, tag = release.image.split(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "settings": settings,
        "agent": fake_driver(),
        "monitoring": {"service": False},
        "admission": {"mode": "auto" if FILLS_IN else "validating"},
    }
