"""Objects whose controllers say by a PodGroup how many pods start together: MPIJobs and RayClusters.

The controllers are their own programs, on a real control plane, and the manifests those of examples/recipes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.gangs import explained, gang_cluster, held
from cluster.preempting import Kubelet
from cluster.recipes import bound, cards, fail, recipe, uids
from control_plane import ControlPlane
from controllers import RELEASES, Controller, install_coscheduling_groups

Json = dict[str, Any]
Say = Callable[[str], None]

SETTINGS = {"gang_replacement_s": 20.0, "release_delay_s": 1, "extra_scheduler_names": ["scheduler-plugins-scheduler"]}


@dataclass(frozen=True)
class Kind:
    """Objects of one kind, as in their recipe."""

    recipe: str
    path: str
    name: str
    without_cards: str
    """How the name of the pod begins that asks for none."""
    a_worker: str
    """How the names of the others begin."""


MPI = Kind(
    "mpijob",
    "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs",
    "allreduce",
    "allreduce-launcher",
    "allreduce-worker",
)
RAY = Kind("raycluster", "/apis/ray.io/v1/namespaces/default/rayclusters", "ray", "ray-head", "ray-gpus-worker")


@pytest.fixture(scope="module")
def scene() -> Iterator[Cluster]:
    with ControlPlane.run() as plane, Kubelet(plane):
        install_coscheduling_groups(plane)
        for name, value in (("low", 10), ("high", 1000)):
            plane.kubectl("create", "priorityclass", name, f"--value={value}")
        for name in ("mpi-operator", "kuberay"):
            Controller(plane, RELEASES[name]).start()
        with gang_cluster(nullcontext(plane), SETTINGS) as cluster:
            yield cluster


@pytest.fixture
def cluster(scene: Cluster) -> Iterator[Cluster]:
    yield scene
    for kind in (MPI, RAY):
        scene.request("DELETE", kind.path)
    scene.wait(lambda: not scene.pods(), "all pods are gone")
    scene.clear()


@pytest.fixture(params=[MPI, RAY], ids=lambda kind: kind.recipe)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_all_pods_start_together_by_the_number_that_the_controller_writes_and_leave_nothing(
    cluster: Cluster, kind: Kind, say: Say
) -> None:
    cluster.add_nodes(1)
    began_s = time.monotonic()
    cluster.request("POST", kind.path, recipe(kind.recipe))
    cluster.wait(lambda: len(bound(cluster, kind.name)) == 5, "all five are bound")
    say(f"{kind.recipe}: five pods were bound {time.monotonic() - began_s:.1f} s after it was created")
    assert explained(cluster, kind.name)["members"]["minimum"] == 5
    assert len(cards(cluster, kind.a_worker)) == 8
    cluster.request("POST", kind.path, recipe(kind.recipe, "second"))
    cluster.wait(lambda: sum(name.startswith("second-") for name in cluster.pods()) == 5, "the second has its pods")
    cluster.settle(1.0)
    assert ([name for name in bound(cluster, "second-") if "worker" in name], held(cluster)) == ([], 8)
    cluster.request("DELETE", f"{kind.path}/{kind.name}")
    cluster.wait(lambda: len(bound(cluster, "second-")) == 5, "the second has the cards of the first")
    cluster.request("DELETE", f"{kind.path}/second")
    cluster.wait(lambda: held(cluster) == 0, "nothing is left in the ledger")
    cluster.check_consistent()


def test_a_worker_that_its_controller_makes_anew_gets_its_cards_although_another_waits(
    cluster: Cluster, say: Say
) -> None:
    cluster.add_nodes(1)
    cluster.request("POST", RAY.path, recipe(RAY.recipe))
    cluster.wait(lambda: len(bound(cluster, RAY.name)) == 5, "all five are bound")
    before, had = uids(bound(cluster, RAY.name)), cards(cluster, RAY.name)
    cluster.request("POST", RAY.path, recipe(RAY.recipe, "second"))
    cluster.wait(lambda: sum(name.startswith("second-") for name in cluster.pods()) == 5, "the second waits")
    cluster.settle(1.0)
    began_s = time.monotonic()
    fail(cluster, min(bound(cluster, RAY.a_worker)))
    cluster.wait(lambda: len(uids(bound(cluster, RAY.name)) - before) == 1, "the worker is made anew, and bound")
    cluster.wait(lambda: len(bound(cluster, RAY.name)) == 5, "the cluster is whole again")
    say(f"a worker of a RayCluster was bound again {time.monotonic() - began_s:.1f} s after it had failed")
    assert cards(cluster, RAY.name) == had
    assert [name for name in bound(cluster, "second-") if "worker" in name] == []
    cluster.check_consistent()


def with_priority(found: Json, name: str) -> Json:
    """Return an object whose templates of pods name a priority class."""
    spec = found["spec"]
    of_ray = [spec["headGroupSpec"], *spec["workerGroupSpecs"]] if found["kind"] == "RayCluster" else []
    for each in (*spec.get("mpiReplicaSpecs", {}).values(), *of_ray):
        each["template"]["spec"]["priorityClassName"] = name
    return found


@pytest.mark.parametrize(("low", "high"), [(RAY, MPI), (MPI, RAY)], ids=["mpijob", "raycluster"])
def test_one_of_higher_priority_gets_all_cards_of_one_of_lower_which_waits_whole(
    cluster: Cluster, low: Kind, high: Kind
) -> None:
    cluster.add_nodes(1)
    cluster.request("POST", low.path, with_priority(recipe(low.recipe), "low"))
    cluster.wait(lambda: len(bound(cluster, low.name)) == 5, "all five of the lower priority are bound")
    cluster.request("POST", high.path, with_priority(recipe(high.recipe), "high"))
    cluster.wait(lambda: len(bound(cluster, high.name)) == 5, "all five of the higher priority are bound")
    assert (len(cards(cluster, high.a_worker)), held(cluster)) == (8, 8)
    cluster.settle(1.0)
    assert bound(cluster, low.a_worker) == {}
    cluster.check_consistent()


def test_a_launcher_that_is_made_anew_finds_its_workers_where_they_were(cluster: Cluster) -> None:
    cluster.add_nodes(1)
    cluster.request("POST", MPI.path, recipe(MPI.recipe))
    cluster.wait(lambda: len(bound(cluster, MPI.name)) == 5, "all five are bound")
    workers, had = uids(bound(cluster, MPI.a_worker)), cards(cluster, MPI.name)
    launcher = bound(cluster, MPI.without_cards)
    fail(cluster, min(launcher))
    cluster.wait(lambda: bool(uids(bound(cluster, MPI.without_cards)) - uids(launcher)), "another launcher is bound")
    assert (uids(bound(cluster, MPI.a_worker)), cards(cluster, MPI.name)) == (workers, had)
    cluster.check_consistent()
