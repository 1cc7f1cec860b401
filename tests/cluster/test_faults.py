"""Answers of the API server that leave it open what has happened, one by one, on real requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from cluster.cluster import ALLOCATIONS, COUNT, MEMORY, Cluster, RequestFailed, pod, uuids
from cluster.shared import SharedPlane
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Answer, ApplyLate, Delay, Drop, EndWatch, Fault, Hold, LoseAnswer
from faults.proxy import Armed
from faults.requests import FOLLOWED, Match, binding, entering, leaving, ledger_write, of_kind, watching

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RETRY_AFTER_S = 3


@pytest.fixture(scope="module")
def module_cluster(shared: SharedPlane) -> Iterator[FaultyCluster]:
    with faulty_cluster(shared.lent(), {"release_delay_s": 2, "longest_release_s": 4}) as running:
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield a cluster with a node of two cards, and leave it without nodes, pods and faults."""
    module_cluster.add_nodes(1, gpus=2)
    yield module_cluster
    module_cluster.calm()
    module_cluster.clear()


def counted(cluster: FaultyCluster, match: Match) -> Armed:
    """Return what counts the requests that match, and does nothing to them."""
    return cluster.api.arm(match, Delay(0), times=None)


def is_bound_once(cluster: FaultyCluster, name: str) -> None:
    cluster.wait_bound(name)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def test_a_bind_without_faults_is_one_request_for_each_card_and_one_for_the_pod(cluster: FaultyCluster) -> None:
    cluster.settle(QUIET_S)
    before = list(cluster.api.exchanges)
    cluster.create(pod("pod", {COUNT: 2, MEMORY: 4000}))
    is_bound_once(cluster, "pod")
    sent = [exchange.request.rsplit(" ", 1)[0] for exchange in list(cluster.api.exchanges)[len(before) :]]
    asked = [request for request in sent if not request.startswith(("list", "watch"))]
    assert asked == ["ledger write", "ledger write", "binding"]


def test_a_ledger_write_whose_answer_is_lost_is_not_repeated(cluster: FaultyCluster) -> None:
    lost, writes = cluster.api.arm(entering("pod"), LoseAnswer()), counted(cluster, entering("pod"))
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    lost.wait()
    is_bound_once(cluster, "pod")
    assert (lost.statuses, writes.seen) == ([200], 1)


def test_a_removal_whose_answer_is_lost_takes_nobody_else_off_the_card(cluster: FaultyCluster) -> None:
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 4000}) for name in ("first", "second", "third")))
    uids = [found["metadata"]["uid"] for found in cluster.wait_bound("first", "second", "third")]
    lost = cluster.api.arm(leaving(uids[0]), LoseAnswer())
    cluster.delete("first")
    lost.wait()
    cluster.settle(QUIET_S)
    cluster.check_consistent()
    held = [holder["podUID"] for holders in cluster.holders().values() for holder in holders]
    assert sorted(held) == sorted(uids[1:])


@pytest.mark.promise("operator crashes")
def test_a_binding_whose_answer_is_lost_is_not_repeated(cluster: FaultyCluster) -> None:
    lost, bindings = cluster.api.arm(binding("pod"), LoseAnswer()), counted(cluster, binding("pod"))
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    lost.wait()
    is_bound_once(cluster, "pod")
    assert (lost.statuses, bindings.seen) == ([201], 1)


def test_a_binding_that_never_arrives_is_sent_again_with_the_same_cards(cluster: FaultyCluster) -> None:
    dropped, bindings = cluster.api.arm(binding("pod"), Drop()), counted(cluster, binding("pod"))
    writes = counted(cluster, entering("pod"))
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    dropped.wait()
    is_bound_once(cluster, "pod")
    assert (bindings.seen, writes.seen) == (2, 1)


def test_a_binding_that_arrives_after_the_shares_were_given_back_is_refused(cluster: FaultyCluster) -> None:
    late = cluster.api.arm(binding("pod"), ApplyLate())
    cluster.api.arm(binding("pod"), Answer(422), times=None)
    next_try = cluster.extender.arm(of_kind("filter", "pod"), Hold(), times=None, skip=1)
    cluster.create(pod("pod", {COUNT: 1}))
    late.wait()
    next_try.wait()
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is given back")
    late.release()
    late.wait_done()
    assert late.statuses == [409]
    assert not cluster.pod("pod")["spec"].get("nodeName")
    cluster.api.disarm()
    cluster.extender.disarm()
    is_bound_once(cluster, "pod")


@pytest.mark.parametrize("what", [entering("pod"), binding("pod")], ids=str)
def test_a_server_that_asks_for_time_gets_it(cluster: FaultyCluster, what: Match) -> None:
    before = len(cluster.api.exchanges)
    refused = cluster.api.arm(what, Answer(429, RETRY_AFTER_S), times=2)
    tries = counted(cluster, what)
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    refused.wait_done()
    cluster.wait_bound("pod")
    kind = what.name.split()[0]
    exchanges = list(cluster.api.exchanges)[before:]
    of_this_kind = [exchange for exchange in exchanges if exchange.request.startswith(kind)]
    first = next(place for place, exchange in enumerate(of_this_kind) if isinstance(exchange.fault, Answer))
    times_s = [exchange.at_s for exchange in of_this_kind[first : first + 3]]
    assert tries.seen == 3
    assert all(later - earlier >= RETRY_AFTER_S for earlier, later in pairwise(times_s)), times_s
    is_bound_once(cluster, "pod")


@pytest.mark.parametrize("fault", [Answer(500), Drop()], ids=str)
def test_a_ledger_that_can_not_be_written_for_a_while_delays_pods_and_gives_no_card_twice(
    cluster: FaultyCluster, fault: Fault
) -> None:
    names = [f"pod-{number}" for number in range(6)]
    broken = cluster.api.arm(ledger_write(), fault, times=None)
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 20000}) for name in names[:4]))
    cluster.wait(lambda: broken.seen >= 6, "writing is tried again")
    cluster.api.disarm()
    cluster.wait_bound(*names[:4])
    cluster.settle(QUIET_S)
    cluster.check_consistent()
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 20000}) for name in names[4:]))
    for name in names[4:]:
        cluster.wait_refused(name, "no card with 20000 MiB free")


def test_a_pod_that_ends_while_the_watch_is_broken_off_is_released(cluster: FaultyCluster) -> None:
    """The watch goes on where it was: nothing is missed."""
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("pod")
    again = cluster.api.arm(watching("pods", FOLLOWED), Hold())
    cluster.api.arm(watching("pods", FOLLOWED), EndWatch(None)).wait()
    again.wait()
    cluster.delete("pod")
    again.release()
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is free")


@pytest.fixture
def refused_name(cluster: FaultyCluster) -> Iterator[str]:
    """Yield the name of a pod that a policy keeps out of the ledger."""
    name = "unwanted"
    rule = f"!has(object.status) || !has(object.status.holders) || object.status.holders.all(h, h.pod != '{name}')"
    policy = {
        "metadata": {"name": "no-unwanted-holder"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["gpuledger.dev"],
                        "apiVersions": ["*"],
                        "operations": ["UPDATE"],
                        "resources": ["gpuallocations/status"],
                    }
                ]
            },
            "validations": [{"expression": rule, "message": "this pod may hold nothing"}],
        },
    }
    policy_binding = {
        "metadata": {"name": "no-unwanted-holder"},
        "spec": {"policyName": "no-unwanted-holder", "validationActions": ["Deny"]},
    }
    cluster.request("POST", POLICIES, policy)
    cluster.request("POST", f"{POLICIES[:-3]}ybindings", policy_binding)
    cluster.wait(lambda: is_refused(cluster, name), "the policy is in force")
    yield name
    cluster.request("DELETE", f"{POLICIES[:-3]}ybindings/no-unwanted-holder")
    cluster.request("DELETE", f"{POLICIES}/no-unwanted-holder")


def is_refused(cluster: Cluster, name: str) -> bool:
    """Try, without any effect, to enter a pod in the ledger."""
    path = f"{ALLOCATIONS}/{next(iter(cluster.cards())).lower()}/status?dryRun=All"
    used = {"memoryMiB": 1, "cores": 0, "number": 1}
    whose = {"podUID": "uid", "namespace": "default", "pod": name, "exclusive": False, "priority": 0}
    containers = [{"name": "main", "memoryMiB": 1, "cores": 0}]
    holder = {**whose, **used, "containers": containers, "state": "allocated", "attempt": "first"}
    try:
        cluster.patch(path, {"status": {"holders": [holder], "used": used}})
    except RequestFailed as error:
        return "this pod may hold nothing" in str(error)
    return False


def test_an_entry_that_is_always_refused_takes_none_of_its_neighbours_with_it(
    cluster: FaultyCluster, refused_name: str
) -> None:
    before = len(cluster.api.exchanges)
    neighbours = [f"pod-{number}" for number in range(6)]
    first = cluster.api.arm(entering("first"), Hold())  # meanwhile the others gather behind it
    tried_once = cluster.extender.arm(of_kind("filter", refused_name), Hold(), times=None, skip=1)
    cluster.create(pod("first", {COUNT: 1, MEMORY: 1000}))
    first.wait()
    entries = counted(cluster, entering(refused_name))
    binds = cluster.extender.arm(of_kind("bind"), Delay(0), times=None)
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 1000}) for name in [*neighbours[:3], refused_name, *neighbours[3:]]))
    cluster.wait(lambda: binds.seen == 7, "all of them are being bound")
    first.release()
    bound = cluster.wait_bound("first", *neighbours)
    assert len({card for found in bound for card in uuids(found)}) == 1, "they were to be neighbours on one card"
    tried_once.wait()
    assert entries.statuses == [422, 422]
    cluster.settle(QUIET_S)
    cluster.check_consistent()
    refused = [exchange for exchange in list(cluster.api.exchanges)[before:] if exchange.status == 422]
    assert len(refused) == 2, "neighbours were refused alone"


def test_the_proxy_survives_restarts_of_both_sides(cluster: FaultyCluster) -> None:
    cluster.plane.restart_api_server()
    cluster.close()
    cluster.create(pod("first", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("first")
    cluster.crash_operator()
    cluster.create(pod("second", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("first", "second")
    cluster.settle()
    cluster.check_consistent()
    assert sum(map(len, cluster.holders().values())) == 2


@pytest.mark.promise("operator crashes")
@pytest.mark.parametrize("resource", ["nodes", "gpuallocations"])
def test_the_operator_goes_on_when_a_watch_fails(cluster: FaultyCluster, resource: str) -> None:
    """The watch tells of an error, and is then refused because what it asks for is too old. Kopf ends with either."""
    watch = watching(resource)
    operator = cluster.installation.operator
    too_old = cluster.api.arm(watch, Answer(410))
    cluster.api.arm(watch, EndWatch(500)).wait()
    too_old.wait_done()
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("pod")
    cluster.delete("pod")
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is free")
    assert operator is not None
    assert operator.alive
