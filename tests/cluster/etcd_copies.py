"""etcd, put back to what it had before."""

from __future__ import annotations

import shutil

from cluster.cluster import ALLOCATIONS, Cluster, RequestFailed


def copy_etcd(cluster: Cluster) -> None:
    """Keep a copy of all that etcd has."""
    plane = cluster.plane
    plane.stop_etcd()
    shutil.copytree(plane.directory / "etcd", plane.directory / "etcd-copy")
    plane.start_etcd()
    cluster.close()


def restore_etcd(cluster: Cluster) -> None:
    """Put the copy in the place of etcd's data, with the API server stopped meanwhile."""
    plane = cluster.plane
    plane.stop_api_server()
    plane.stop_etcd()
    shutil.rmtree(plane.directory / "etcd")
    (plane.directory / "etcd-copy").rename(plane.directory / "etcd")
    plane.start_etcd()
    plane.start_api_server()
    cluster.close()

    def answers() -> bool:
        try:
            return bool(cluster.request("GET", ALLOCATIONS))
        except RequestFailed:  # the API server may still read its storage
            return False

    cluster.wait(answers, "the API server has read its storage")
