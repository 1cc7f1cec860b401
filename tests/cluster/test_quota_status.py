"""What is used in the status of ResourceQuotas, beside Kubernetes' own quota controller."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cluster.cluster import COUNT, MEMORY, PERCENT, PODS, Cluster, Json, pod
from cluster.gangs import bound, held
from cluster.shared import cluster_on
from control_plane import ControlPlane
from effort import seeds_for, times
from gpuledger.formats.quantity import whole_number
from installation import NOTHING_RUNS, USER

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
GPUMEM, GPUS, OF_A100 = (f"limits.nvidia.com/{name}" for name in ("gpumem", "gpu", "gpumem.A100"))
HOURS = "gpuledger.dev/card-hours-per-day"
CARD_MIB = 40_960
CHANGES = times(40, 200)
LEAST_S = 2.0
"""The operator gathers changes for so long."""


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    own = ControlPlane.run(every_controller=True)  # with the controller of quotas
    with cluster_on(own, NOTHING_RUNS) as cluster:
        cluster.add_nodes(1, gpus=4)
        cluster.add_nodes(1, gpus=2, model="T4")
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    yield started
    started.request("DELETE", QUOTAS)
    started.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    started.wait(lambda: not held(started), "nothing is left in the ledger")


def set_quota(cluster: Cluster, hard: Json, name: str = "gpus") -> None:
    """Create a quota, and wait until it is in force: Kubernetes counts pods that come before that minutes later."""
    cluster.request("POST", QUOTAS, {"metadata": {"name": name}, "spec": {"hard": hard}})

    def is_in_force() -> bool:
        status = cluster.request("GET", f"{QUOTAS}/{name}").get("status") or {}
        return "hard" in status and {*hard} & {"pods"} <= {*(status.get("used") or {})}

    cluster.wait(is_in_force, "the quota is in force")


def used(cluster: Cluster, name: str = "gpus") -> Json:
    return dict((cluster.request("GET", f"{QUOTAS}/{name}").get("status") or {}).get("used") or {})


def described(cluster: Cluster, name: str = "gpus") -> dict[str, tuple[str, str]]:
    """Return for each key what `kubectl describe` says is used, and what may be."""
    lines = cluster.plane.kubectl("describe", "quota", name).splitlines()
    rows = (line.split() for line in lines[lines.index(next(each for each in lines if "----" in each)) + 1 :])
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def our_writes(cluster: Cluster, since_offset: int) -> int:
    found = cluster.plane.api_writes(since_offset)
    return sum(each.resource == "resourcequotas" and each.user == USER for each in found)


def test_kubectl_describe_shows_what_is_used_of_our_keys_and_of_others(cluster: Cluster) -> None:
    set_quota(cluster, {GPUMEM: "90000", GPUS: "10", OF_A100: "50000", "pods": "7"})
    a100 = {"nvidia.com/use-gputype": "A100"}
    cluster.create(pod("whole", {COUNT: 1}, annotations=a100), pod("part", {COUNT: 1, MEMORY: 3_000}, annotations=a100))
    cluster.create(pod("small", {COUNT: 2, MEMORY: 1_000}, annotations={"nvidia.com/use-gputype": "T4"}))
    cluster.wait_bound("whole", "part", "small")
    expected = {
        GPUMEM: (str(CARD_MIB + 5_000), "90k"),
        GPUS: ("4", "10"),
        OF_A100: (str(CARD_MIB + 3_000), "50k"),
        "pods": ("3", "7"),
    }
    cluster.wait(lambda: described(cluster) == expected, "it is shown")
    cluster.delete("whole")
    expected |= {GPUMEM: ("5k", "90k"), GPUS: ("3", "10"), OF_A100: ("3k", "50k"), "pods": ("2", "7")}
    cluster.wait(lambda: described(cluster) == expected, "it is shown")


def test_nothing_is_written_while_nothing_changes_nor_of_quotas_without_our_keys(cluster: Cluster) -> None:
    set_quota(cluster, {"pods": "7"}, "native")
    set_quota(cluster, {GPUMEM: "90000"})
    cluster.create(pod("a", {COUNT: 1, MEMORY: 3_000}))
    cluster.wait(lambda: used(cluster) == {GPUMEM: "3k"}, "it is shown")
    offset = cluster.plane.audit_offset()
    cluster.create(pod("no-cards", {}, schedulerName="nobody"))
    cluster.wait(lambda: used(cluster, "native") == {"pods": "2"}, "the quota controller has counted")
    time.sleep(3 * LEAST_S)  # nothing to wait for: nothing happens
    assert our_writes(cluster, offset) == 0


@pytest.mark.parametrize("seed", seeds_for("quota status", 1))
def test_beside_the_quota_controller_both_values_are_right_and_writes_are_few(
    cluster: Cluster, seed: int, say: Callable[[str], None]
) -> None:
    """The number of pods and what they have change together, and both are in one status."""
    dice, names = random.Random(seed), list[str]()  # noqa: S311 - no secret
    set_quota(cluster, {GPUMEM: "1000000", GPUS: "1000", "pods": "1000"})
    begin_s, offset = time.monotonic(), cluster.plane.audit_offset()
    for number in range(CHANGES):
        if names and dice.random() < 0.4:
            cluster.delete(names.pop(dice.randrange(len(names))))
        else:
            names.append(f"p{number}")
            cluster.create(pod(names[-1], {COUNT: 1, MEMORY: 500}))
        if dice.random() < 0.2:  # the controller has written its own part then
            cluster.wait(lambda: used(cluster).get("pods") == str(len(names)), "the pods are counted")
        time.sleep(dice.random() / 5)
    cluster.wait(lambda: len(bound(cluster)) == len(names), "all have their cards")

    right = {GPUMEM: 500 * len(names), GPUS: len(names), "pods": len(names)}

    def shown() -> dict[str, int]:
        return {key: whole_number(said) for key, said in used(cluster).items()}

    with suppress(AssertionError):
        cluster.wait(lambda: shown() == right, "all three are right")
    assert shown() == right
    took_s, writes = time.monotonic() - begin_s, our_writes(cluster, offset)
    say(f"{CHANGES} changes in {took_s:.1f} s: {writes} writes")
    assert writes <= took_s / LEAST_S + 2
    assert shown() == right


def test_an_operator_that_starts_shows_what_has_changed_meanwhile(cluster: Cluster) -> None:
    set_quota(cluster, {GPUMEM: "90000"})
    cluster.create(pod("a", {COUNT: 1, MEMORY: 3_000}), pod("b", {COUNT: 1, PERCENT: 50}))
    cluster.wait(lambda: used(cluster) != {} and len(bound(cluster)) == 2, "both have their cards")
    cluster.installation.kill_operator()
    cluster.patch(f"{QUOTAS}/gpus/status", {"status": {"used": {GPUMEM: "77"}}})
    cluster.installation.start_operator()
    found = sum(each["memoryMiB"] for listed in cluster.holders().values() for each in listed)
    cluster.wait(lambda: used(cluster) == {GPUMEM: str(found)} != {GPUMEM: "77"}, "it is shown")


def test_without_the_permission_pods_are_placed_and_limited_as_ever(cluster: Cluster) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpuledger"
    before = cluster.request("GET", role)["rules"]
    cluster.patch(role, {"rules": [each for each in before if each["resources"] != ["resourcequotas/status"]]})
    try:
        set_quota(cluster, {GPUMEM: "5000"})
        cluster.create(pod("a", {COUNT: 1, MEMORY: 3_000}))
        cluster.wait_bound("a")
        cluster.create(pod("b", {COUNT: 1, MEMORY: 3_000}))
        cluster.wait_refused("b", "the quota of the pod's namespace does not allow it")
        assert cluster.installation.operator is not None
        log = cluster.installation.operator.log_text
        cluster.wait(lambda: "what is used of quotas is not shown" in log(), "the operator says so")
    finally:
        cluster.patch(role, {"rules": before})


def test_kubernetes_own_quota_controller_leaves_a_budgets_hours_alone(cluster: Cluster) -> None:
    set_quota(cluster, {HOURS: "1000", "pods": "10"})
    cluster.wait(lambda: used(cluster).get(HOURS) == "0", "the hours are shown")
    cluster.create(pod("a", {COUNT: 1, PERCENT: 10}))
    cluster.wait_bound("a")
    cluster.wait(lambda: used(cluster).get("pods") == "1", "Kubernetes counts pods in the same quota")
    assert used(cluster)[HOURS] == "0"
