"""Kubernetes' own groups of pods, where they are turned on: the same plan and the same barrier, and no hot loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cluster.cluster import Cluster
from cluster.gangs import bound, gang_cluster, held, names
from cluster.native_groups import OWN_CYCLE, POD_BY_POD, clear_groups, create_group, members, turned_on
from cluster.shared import SharedPlane
from gpuledger.formats.scheduler import LONGEST_BACK_OFF_OF_GROUPS_S
from installation import REPOSITORY
from native_gangs import NativeGangs

EXAMPLE = REPOSITORY / "examples" / "asking" / "gang-kubernetes.yaml"
FILTERS = "gpuledger_filters_total"


@pytest.fixture(scope="module", params=[pytest.param(POD_BY_POD, marks=pytest.mark.long), OWN_CYCLE])
def running(with_groups: SharedPlane, native: NativeGangs, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with gang_cluster(with_groups.lent(), **turned_on(native, request.param)) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster, native: NativeGangs) -> Iterator[Cluster]:
    yield running
    running.clear()
    clear_groups(running, native)


@pytest.mark.promise("gangs")
def test_a_gang_that_fits_is_bound_and_no_binding_is_sent_before_all_its_cards_are_entered(
    cluster: Cluster, native: NativeGangs
) -> None:
    cluster.add_nodes(1, gpus=8)
    create_group(cluster, native, "four", 4)
    begin = cluster.plane.audit_offset()
    pods = members("four", 4)
    cluster.create(*pods)
    cluster.wait_bound(*names(pods))
    writes = [event for event in cluster.plane.api_writes(begin) if event.code < 300]
    first = next(place for place, event in enumerate(writes) if event.subresource == "binding")
    entered = {e.name for e in writes[:first] if (e.resource, e.subresource) == ("gpuallocations", "status")}
    assert len(entered) == 4
    assert sorted(event.name for event in writes if event.subresource == "binding") == names(pods)
    cluster.check_consistent()


def test_a_gang_that_does_not_fit_keeps_nothing_does_not_spin_and_starts_when_it_fits(
    cluster: Cluster, native: NativeGangs
) -> None:
    cluster.add_nodes(1, gpus=8)
    create_group(cluster, native, "nine", 9)
    pods = members("nine", 9)
    cluster.create(*pods)
    cluster.wait_refused("nine-0", "find cards at once")
    cluster.wait(lambda: held(cluster) == 0, "nothing is kept")
    assert bound(cluster) == set()
    assert filters_a_second(cluster, 6) <= 9 / LONGEST_BACK_OFF_OF_GROUPS_S + 1
    cluster.add_nodes(1, gpus=1)
    cluster.wait_bound(*names(pods), timeout_s=10)
    cluster.check_consistent()


def filters_a_second(cluster: Cluster, during_s: float) -> float:
    """Return how often kube-scheduler asks, for a while."""
    before, begin_s = cluster.metric(FILTERS), time.monotonic()
    time.sleep(during_s)
    return (cluster.metric(FILTERS) - before) / (time.monotonic() - begin_s)


def test_a_large_gang_starts_within_ten_seconds_of_room(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(7, gpus=8)
    create_group(cluster, native, "large", 64)
    pods = members("large", 64)
    cluster.create(*pods)
    cluster.wait_refused("large-0", "find cards at once")
    time.sleep(8)  # its back-off is as long as it gets
    cluster.add_nodes(1, gpus=8)
    # Of the ten seconds, kube-scheduler's back-off takes up to eight; on a busy machine, 64 Binds take some, too.
    cluster.wait_bound(*names(pods), timeout_s=20)
    cluster.check_consistent()


STUCK = "a-member-stays"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


@pytest.fixture
def stuck_binding(cluster: Cluster) -> Iterator[str]:
    """Have the API server refuse the Bindings of one pod."""
    name = "stuck-2"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    policy = {
        "metadata": {"name": STUCK},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"object.metadata.name != '{name}'"}],
        },
    }
    cluster.request("POST", POLICIES, policy)
    binding = {"metadata": {"name": STUCK}, "spec": {"policyName": STUCK, "validationActions": ["Deny"]}}
    cluster.request("POST", f"{POLICIES.removesuffix('ies')}ybindings", binding)
    time.sleep(2)  # until the API server knows
    yield name
    cluster.request("DELETE", f"{POLICIES.removesuffix('ies')}ybindings/{STUCK}")
    cluster.request("DELETE", f"{POLICIES}/{STUCK}")


def test_a_binding_that_is_always_refused_costs_at_most_about_one_try_a_second(
    cluster: Cluster, native: NativeGangs, stuck_binding: str
) -> None:
    cluster.add_nodes(1, gpus=8)
    create_group(cluster, native, "stuck", 4)
    begin = cluster.plane.audit_offset()
    pods = members("stuck", 4)
    cluster.create(*pods)
    cluster.wait(lambda: len(bound(cluster)) == 3, "the others are bound")
    each_s = filters_a_second(cluster, 10)
    tries = [e for e in cluster.plane.api_writes(begin) if e.subresource == "binding" and e.name == stuck_binding]
    assert 1 <= len(tries) <= 13
    assert each_s <= 2


def test_the_example_starts(cluster: Cluster, native: NativeGangs) -> None:
    cluster.add_nodes(1, gpus=4)
    text = EXAMPLE.read_text().replace("scheduling.k8s.io/v1beta1", native.api_version)
    cluster.plane.kubectl("apply", "-f", "-", stdin=text)
    try:
        cluster.wait(lambda: len(bound(cluster)) == 4, "all pods of the example are bound")
    finally:
        cluster.request("DELETE", "/apis/batch/v1/namespaces/default/jobs", {"propagationPolicy": "Background"})
