"""A cluster that ran HAMi or Volcano before, and has the manifests that serve HAMi's scheduler's account, too."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from cluster.cluster import Cluster
from cluster.shared import cluster_on
from control_plane import ControlPlane
from installation import MANIFESTS


@contextmanager
def moved_over(plane: AbstractContextManager[ControlPlane], settings: Mapping[str, object]) -> Iterator[Cluster]:
    """Yield such a cluster, with operator and kube-scheduler running."""
    with cluster_on(plane, settings) as cluster:
        cluster.plane.kubectl("apply", "-k", str(MANIFESTS / "over-hami"))
        yield cluster


def command(cluster: Cluster, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of our commands as an administrator."""
    files = ("--settings", cluster.installation.settings_file, "--kubeconfig", cluster.plane.kubeconfig)
    words = [sys.executable, "-m", "gpuledger", name, *map(str, files), "-o", "json", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def as_hami_counts(cluster: Cluster) -> Counter[str]:
    """Return MiB by card as HAMi's scheduler adds them up, from the annotations of pods that have a node of its."""
    used: Counter[str] = Counter()
    for each in cluster.objects("pods"):
        annotations = each["metadata"].get("annotations") or {}
        if "hami.io/vgpu-node" in annotations:
            containers = annotations["hami.io/vgpu-devices-allocated"].split(";")
            for device in (device for container in containers for device in container.split(":") if device):
                uuid, _, memory_mib, _ = device.split(",")
                used[uuid] += int(memory_mib)
    return used
