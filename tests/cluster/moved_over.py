"""A cluster that ran HAMi or Volcano before, and has the manifests that serve HAMi's scheduler's account, too."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cluster.cluster import Cluster
from control_plane import ControlPlane
from installation import MANIFESTS, NO_KUBELET, Installation


@contextmanager
def moved_over(settings: Mapping[str, object]) -> Iterator[Cluster]:
    """Yield such a cluster, with operator and kube-scheduler running."""
    with ControlPlane.run() as plane:
        installation = Installation(plane, {**NO_KUBELET, **settings})
        installation.start()
        plane.kubectl("apply", "-k", str(MANIFESTS / "over-hami"))
        cluster = Cluster(plane, installation)
        yield cluster
        cluster.close()


def command(cluster: Cluster, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of our commands as an administrator."""
    files = ("--settings", cluster.installation.settings_file, "--kubeconfig", cluster.plane.kubeconfig)
    words = [sys.executable, "-m", "gpuledger", name, *map(str, files), "-o", "json", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
