"""Objects that teams write, with the controllers that make pods of them: their own programs, on a real control plane.

The manifests are those of examples/recipes. What they say is what happens: pods start together, and who is made anew
gets the cards that he had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from cluster.cluster import PODS, Cluster
from cluster.gangs import explained, gang_cluster, held
from cluster.preempting import Kubelet
from cluster.recipes import bound, cards, fail, recipe, uids
from control_plane import ControlPlane
from controllers import RELEASES, Controller

Say = Callable[[str], None]

REPLACEMENT_S = 20.0
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"


@dataclass
class Scene:
    """A cluster on which controllers run, and who plays its kubelets."""

    cluster: Cluster
    kubelet: Kubelet


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    settings = {"gang_replacement_s": REPLACEMENT_S, "release_delay_s": 1}
    with ControlPlane.run() as plane, Kubelet(plane) as kubelet:
        for name in ("jobset", "lws"):
            Controller(plane, RELEASES[name]).start()
        with gang_cluster(nullcontext(plane), settings) as cluster:
            yield Scene(cluster, kubelet)


@pytest.fixture
def cluster(scene: Scene) -> Iterator[Cluster]:
    cluster = scene.cluster
    yield cluster
    for path in (JOBSETS, GROUPS):
        cluster.request("DELETE", path)
    cluster.wait(lambda: not cluster.pods(), "all pods are gone")
    cluster.clear()


def test_a_jobset_starts_whole_by_what_it_says_itself_and_leaves_nothing(cluster: Cluster, say: Say) -> None:
    cluster.add_nodes(2)
    began_s = time.monotonic()
    cluster.request("POST", JOBSETS, recipe("jobset"))
    cluster.wait(lambda: len(bound(cluster, "train-")) == 8, "all eight are bound")
    say(f"a JobSet of 8 pods was bound {time.monotonic() - began_s:.1f} s after it was created")
    assert explained(cluster, "train")["members"]["minimum"] == 8
    cluster.request("POST", JOBSETS, recipe("jobset", "second"))
    cluster.wait(lambda: sum(name.startswith("second-") for name in cluster.pods()) == 8, "the second has its pods")
    cluster.settle(1.0)
    assert (bound(cluster, "second-"), held(cluster)) == ({}, 16), "it keeps nothing while it waits"
    began_s = time.monotonic()
    cluster.request("DELETE", f"{JOBSETS}/train")
    cluster.wait(lambda: len(bound(cluster, "second-")) == 8, "the second has the cards of the first")
    say(f"the next one was bound {time.monotonic() - began_s:.1f} s after it was deleted")
    cluster.request("DELETE", f"{JOBSETS}/second")
    cluster.wait(lambda: held(cluster) == 0, "nothing is left in the ledger")
    cluster.check_consistent()


def test_a_jobset_that_its_failure_policy_makes_anew_gets_its_cards_although_another_waits(
    cluster: Cluster, say: Say
) -> None:
    cluster.add_nodes(2)
    cluster.request("POST", JOBSETS, recipe("jobset"))
    cluster.wait(lambda: len(bound(cluster, "train-")) == 8, "all eight are bound")
    before = uids(bound(cluster, "train-"))
    cluster.request("POST", JOBSETS, recipe("jobset", "second"))
    cluster.wait(lambda: sum(name.startswith("second-") for name in cluster.pods()) == 8, "the second waits")
    cluster.settle(1.0)
    began_s = time.monotonic()
    fail(cluster, min(bound(cluster, "train-")))
    cluster.wait(lambda: len(uids(bound(cluster, "train-")) - before) == 8, "all eight are made anew, and bound")
    say(f"a JobSet that was made anew was bound {time.monotonic() - began_s:.1f} s after a pod had failed")
    assert bound(cluster, "second-") == {}
    assert len(cards(cluster, "train-")) == 16
    cluster.check_consistent()


def test_each_group_of_a_leader_worker_set_is_a_gang_of_its_own(cluster: Cluster, say: Say) -> None:
    cluster.add_nodes(3)
    began_s = time.monotonic()
    cluster.request("POST", GROUPS, recipe("leaderworkerset"))
    cluster.wait(lambda: len(bound(cluster, "serve-")) == 12, "three groups of four are bound")
    say(f"three groups of four were bound {time.monotonic() - began_s:.1f} s after the LeaderWorkerSet was created")
    cluster.wait(lambda: len(cluster.pods()) == 16, "all pods of the fourth are there")
    cluster.settle(1.0)
    of_group = [len(bound(cluster, f"serve-{group}")) for group in range(4)]
    assert sorted(of_group) == [0, 4, 4, 4]
    assert held(cluster) == 24, "the fourth keeps nothing"
    waiting = of_group.index(0)
    assert explained(cluster, f"serve-{waiting}")["members"]["minimum"] == 4
    cluster.check_consistent()


def test_a_group_that_is_made_anew_gets_its_cards_although_another_waits(
    cluster: Cluster, scene: Scene, say: Say
) -> None:
    cluster.add_nodes(3)
    cluster.request("POST", GROUPS, recipe("leaderworkerset"))
    cluster.wait(lambda: len(bound(cluster, "serve-")) == 12, "three groups of four are bound")
    group = next(number for number in range(4) if len(bound(cluster, f"serve-{number}")) == 4)
    before, had = uids(bound(cluster, f"serve-{group}")), cards(cluster, f"serve-{group}")
    scene.kubelet.left_alone |= before
    began_s = time.monotonic()
    again = {"name": "server", "image": "", "imageID": "", "ready": True, "restartCount": 1, "state": {"running": {}}}
    cluster.patch(f"{PODS}/serve-{group}-1/status", {"status": {"containerStatuses": [again]}})
    cluster.wait(lambda: len(uids(bound(cluster, f"serve-{group}")) - before) == 4, "the group is made anew, and bound")
    say(f"a group that was made anew was bound {time.monotonic() - began_s:.1f} s after a container had started again")
    assert cards(cluster, f"serve-{group}") == had
    cluster.check_consistent()
