"""A cluster that ran HAMi or Volcano before, and has the manifests that serve HAMi's scheduler's account, too."""

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
