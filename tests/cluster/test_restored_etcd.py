"""etcd is restored from a copy that is older than what has happened since.

The copy is taken of a stopped etcd and put back as it is, so its revisions are older than those that the operator has
seen: the worst case, which `etcdutl snapshot restore --bump-revision` avoids.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, Json, pod, uuids
from cluster.etcd_copies import copy_etcd, restore_etcd
from cluster.shared import UNDISTURBED_S, cluster_on
from cluster.test_audit import run_audit
from control_plane import ControlPlane

HALF_MIB = 20_000
"""Of a card with 40,960 MiB."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of its own, with one node of two cards: the shared one must not lose what others rely on."""
    settings = {"release_delay_s": 1, "longest_release_s": 3, "resync_interval_s": UNDISTURBED_S}
    with cluster_on(ControlPlane.run(), settings) as cluster:
        cluster.add_nodes(1, gpus=2)
        yield cluster


def restart_both(cluster: Cluster) -> None:
    """Start operator and kube-scheduler anew, as a restart of the Deployment does."""
    installation = cluster.installation
    assert installation.scheduler is not None
    installation.scheduler.kill()
    installation.restart_operator()
    installation.start_scheduler()


def half_a_card(name: str) -> Json:
    return pod(name, {COUNT: 1, MEMORY: HALF_MIB})


def holders(cluster: Cluster) -> dict[str, set[str]]:
    """Return card UUID -> the names of the pods that hold shares of it."""
    return {uuid: {holder["pod"] for holder in held} for uuid, held in cluster.holders().items()}


def restored_after_a_pod_left_and_two_came(cluster: Cluster) -> dict[str, set[str]]:
    """Copy etcd, let one pod leave and two come, and restore it; return the holders as they were copied."""
    for name in ("stays", "leaves", "alone"):
        cluster.create(half_a_card(name))
        cluster.wait_bound(name)
    cluster.settle()
    copied = holders(cluster)
    copy_etcd(cluster)

    cluster.delete("leaves")
    cluster.wait(lambda: not any("leaves" in names for names in holders(cluster).values()), "its share is free")
    cluster.create(half_a_card("new-1"), half_a_card("new-2"))
    cluster.wait_bound("new-1")
    cluster.settle()
    assert holders(cluster) != copied
    restore_etcd(cluster)
    return copied


def test_the_ledger_and_the_pods_of_a_restored_etcd_agree_and_a_restarted_deployment_goes_on_from_them(
    cluster: Cluster,
) -> None:
    copied = restored_after_a_pod_left_and_two_came(cluster)
    restart_both(cluster)
    assert holders(cluster) == copied
    assert run_audit(cluster).code == 0

    cluster.create(half_a_card("late"))
    (late,) = cluster.wait_bound("late")
    assert len(uuids(late)) == 1
    cluster.create(half_a_card("too-late"))
    cluster.wait_refused("too-late", f"no card with {HALF_MIB} MiB free")
    cluster.check_consistent()
    assert run_audit(cluster).code == 0


@pytest.mark.promise("restored etcd")
def test_an_operator_that_nobody_restarts_ends_by_itself_and_has_written_nothing(cluster: Cluster) -> None:
    """What it remembers is of a time that etcd knows nothing of. kube-scheduler goes on, and somebody has to end it."""
    copied = restored_after_a_pod_left_and_two_came(cluster)
    operator = cluster.installation.operator
    assert operator is not None
    cluster.wait(lambda: not operator.alive, "the operator has ended")
    assert operator.returncode == 2
    assert "the API server's data was restored from an older state" in operator.log_text()
    assert holders(cluster) == copied

    restart_both(cluster)
    cluster.create(half_a_card("late"))
    cluster.wait_bound("late")
    cluster.check_consistent()
    assert all(copied[uuid] <= names for uuid, names in holders(cluster).items())
    assert run_audit(cluster).code == 0
