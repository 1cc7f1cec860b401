"""Whatever happens between a gang's Filter and its last Binding: all of it is bound, or nothing is left of the try.

The proxies are the points at which it happens, as in test_crash_points.py: what is held never arrives, or its answer is
never seen. What is in the ledger and who is bound is all that a killed operator leaves, so there is one point for each
such state. etcd's own order shows that no Binding came too early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pytest

from cluster.cluster import COUNT, NODES, PODS, RequestFailed, phase, pod
from cluster.gangs import SHORT_BACK_OFF, bound, gang, held, looking_for_halves, member, names
from control_plane import ControlPlane
from effort import times
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Answer, Delay, Hold
from faults.proxy import Armed
from faults.requests import Match, entering, of_kind
from gpuledger.agent.simulated import FakeNode

SETTINGS = {
    "hold_ttl_s": 2,
    "bind_timeout_s": 6,
    "extender_timeout_s": 30,
    "release_delay_s": 1,
    "longest_release_s": 2,
    "gang_gather_s": 2,
}

MEMBERS = 4
POLICIES, POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "no-binding"
STUBBORN_S = 6.0


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[FaultyCluster]:
    own = ControlPlane.run(json_storage=True)  # Bindings are looked for in etcd
    with (
        faulty_cluster(own, SETTINGS, SHORT_BACK_OFF) as running,
        looking_for_halves(running.plane.etcd_url),
    ):
        yield running


@pytest.fixture(scope="module")
def nodes(module_cluster: FaultyCluster) -> list[FakeNode]:
    return module_cluster.add_nodes(2, gpus=4)


@pytest.fixture
def cluster(module_cluster: FaultyCluster, nodes: list[FakeNode]) -> Iterator[FaultyCluster]:
    """Yield two nodes with four cards each, and check afterwards that nothing is left over."""
    yield module_cluster
    module_cluster.calm()
    module_cluster.register(*nodes)
    module_cluster.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    module_cluster.wait(lambda: not held(module_cluster), "nothing is left in the ledger")


@dataclass(frozen=True)
class Point:
    """A state in which everything stops: how many members are in the ledger, and how many are bound."""

    name: str
    entered: int
    bound: int
    arm: Callable[[FaultyCluster], Armed]

    def __str__(self) -> str:
        return self.name


def entering_from(number: int) -> Match:
    """Match the entries of all members but the first ones."""
    late = [entering(f"walker-{each}") for each in range(number, MEMBERS)]
    return Match(f"entry from walker-{number} on", lambda request: any(each.holds_for(request) for each in late))


def binding_from(number: int) -> Match:
    """Match the Bindings of all members but the first ones."""
    late = {f"walker-{each}" for each in range(number, MEMBERS)}
    return Match(f"Binding from walker-{number} on", lambda r: r.kind == "binding" and r.name in late)


def hold_all(cluster: FaultyCluster, match: Match) -> Armed:
    """Hold all such requests of the operator."""
    return cluster.api.arm(match, Hold(), times=None)


POINTS = [
    Point("one is not in Bind", 0, 0, lambda c: c.extender.arm(of_kind("bind", "walker-3"), Hold(), times=None)),
    *(Point(f"{n} are entered", n, 0, partial(hold_all, match=entering_from(n))) for n in range(MEMBERS)),
    *(Point(f"{n} are bound", MEMBERS, n, partial(hold_all, match=binding_from(n))) for n in range(MEMBERS)),
    Point("nobody has heard", MEMBERS, MEMBERS, lambda c: c.api.arm(binding_from(0), Hold("answer"), times=None)),
]


def come_to(cluster: FaultyCluster, point: Point) -> list[str]:
    """Create a gang, and wait until it is at a point; return its pods' names."""
    walkers = gang("walker", MEMBERS)
    armed = point.arm(cluster)
    cluster.create(*walkers)
    armed.wait()
    cluster.wait(lambda: (held(cluster), len(bound(cluster))) == (point.entered, point.bound), f"it is so: {point}")
    return names(walkers)


@pytest.mark.parametrize("point", POINTS[times(1, 0) :: times(2, 1)], ids=str)
def test_a_gang_is_bound_completely_wherever_the_operator_dies(cluster: FaultyCluster, point: Point) -> None:
    walkers = come_to(cluster, point)
    cluster.crash_operator()
    cluster.wait_bound(*walkers)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


@pytest.mark.parametrize("point", POINTS[:: times(2, 1)], ids=str)
def test_a_gang_is_bound_completely_wherever_kube_scheduler_dies(cluster: FaultyCluster, point: Point) -> None:
    """Without kube-scheduler, the operator binds what can be bound, or takes back all; then the new one goes on."""
    walkers = come_to(cluster, point)
    scheduler = cluster.installation.scheduler
    assert scheduler is not None
    scheduler.kill()
    cluster.calm()
    cluster.wait(lambda: len(bound(cluster)) in (0, MEMBERS) and held(cluster) == len(bound(cluster)), "all or none")
    cluster.settle(QUIET_S)
    assert len(bound(cluster)) in (0, MEMBERS)
    cluster.installation.start_scheduler(cluster.extender.url)
    cluster.wait_bound(*walkers)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def is_all_free(cluster: FaultyCluster) -> None:
    """Check that no room is kept for anybody: others get all cards."""
    takers = [pod(f"taker-{number}", {COUNT: 4}) for number in range(2)]
    cluster.create(*takers)
    cluster.wait_bound(*names(takers))
    cluster.delete(*names(takers))


def test_a_member_that_is_deleted_before_its_bind_ends_the_try_and_a_new_one_completes_the_gang(
    cluster: FaultyCluster,
) -> None:
    walkers = come_to(cluster, POINTS[0])
    cluster.delete("walker-3")
    is_all_free(cluster)
    assert bound(cluster) == set()
    cluster.calm()
    cluster.create(member("walker-3", "walker", MEMBERS))
    cluster.wait_bound(*walkers)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def all_but_one_in_bind(cluster: FaultyCluster) -> tuple[list[str], Armed]:
    """Create a gang that needs all cards; return its pods' names, and what holds the Bind of one."""
    pods = gang("eight", 8)
    held_back = cluster.extender.arm(of_kind("bind", "eight-3"), Hold())
    others = cluster.extender.arm(of_kind("bind"), Delay(0), times=None)
    cluster.create(*pods)
    held_back.wait()
    cluster.wait(lambda: others.seen == 8, "the others stand in Bind")
    return names(pods), held_back


def settled_as_all_or_none(cluster: FaultyCluster, held_back: Armed) -> None:
    held_back.wait_done()
    cluster.settle(3 * QUIET_S)
    assert (held(cluster), len(bound(cluster))) in ((0, 0), (8, 8))


def test_a_card_that_fails_between_filter_and_bind_lets_none_be_bound(
    cluster: FaultyCluster, nodes: list[FakeNode]
) -> None:
    pods, held_back = all_but_one_in_bind(cluster)
    broken = replace(nodes[0], cards=(replace(nodes[0].cards[0], healthy=False), *nodes[0].cards[1:]))
    cluster.register(broken)
    uuid = broken.cards[0].uuid
    cluster.wait(lambda: phase(cluster.cards()[uuid]) == "Unhealthy", "the card has failed")
    cluster.extender.disarm(held_back)
    settled_as_all_or_none(cluster, held_back)
    assert bound(cluster) == set()
    cluster.register(nodes[0])
    cluster.wait_bound(*pods)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def test_a_node_that_is_cordoned_between_filter_and_bind_gets_all_or_none(
    cluster: FaultyCluster, nodes: list[FakeNode]
) -> None:
    pods, held_back = all_but_one_in_bind(cluster)
    path = f"{NODES}/{nodes[0].name}"
    cluster.patch(path, {"spec": {"unschedulable": True}})
    cluster.extender.disarm(held_back)
    settled_as_all_or_none(cluster, held_back)
    cluster.patch(path, {"spec": {"unschedulable": None}})
    cluster.wait_bound(*pods)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


@pytest.fixture
def refused_name(cluster: FaultyCluster, nodes: list[FakeNode]) -> Iterator[str]:
    """Yield the name of a pod whose Bindings a policy refuses, until a test deletes the policy."""
    name = "eight-5"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}]
    rule = {"expression": f"!(request.name in ['{name}', 'probe'])", "message": "nobody may bind this pod"}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": [rule]}
    in_force = {"policyName": POLICY, "validationActions": ["Deny"]}
    cluster.request("POST", POLICIES, {"metadata": {"name": POLICY}, "spec": spec})
    cluster.request("POST", f"{POLICIES[:-3]}ybindings", {"metadata": {"name": POLICY}, "spec": in_force})
    cluster.create(pod("probe", {}, schedulerName="none"))
    to_node = {"metadata": {"name": "probe"}, "target": {"kind": "Node", "name": nodes[0].name}}

    def is_refused() -> bool:
        try:
            cluster.request("POST", f"{PODS}/probe/binding?dryRun=All", to_node)
        except RequestFailed as error:
            return "nobody may bind this pod" in str(error)
        return False

    cluster.wait(is_refused, "the policy is in force")
    yield name
    allow_all(cluster)


def allow_all(cluster: FaultyCluster) -> None:
    """Delete the policy, if it is there."""
    for path in (f"{POLICIES[:-3]}ybindings", POLICIES):
        with suppress(RequestFailed):
            cluster.request("DELETE", f"{path}/{POLICY}")


def test_a_binding_that_the_api_server_refuses_is_tried_now_and_then_and_completes_the_gang_in_the_end(
    cluster: FaultyCluster, refused_name: str, say: Callable[[str], None]
) -> None:
    begin = cluster.plane.audit_offset()
    pods = gang("eight", 8)
    cluster.create(*pods)
    others = [name for name in names(pods) if name != refused_name]
    cluster.wait_bound(*others)
    time.sleep(STUBBORN_S)
    tries = [
        e.timestamp for e in cluster.plane.api_writes(begin) if (e.subresource, e.name) == ("binding", refused_name)
    ]
    asked = sum(request.request == f"filter {refused_name}" for request in cluster.extender.exchanges)
    say(f"a Binding that is refused for {STUBBORN_S:g} s: {len(tries)} tries, {asked} questions")
    assert 1 <= len(tries) <= STUBBORN_S + 1
    assert asked <= 2 * STUBBORN_S
    assert bound(cluster) == set(others)
    allow_all(cluster)
    cluster.wait_bound(refused_name)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def test_an_entry_that_is_always_refused_lets_none_be_bound_and_is_no_loop(
    cluster: FaultyCluster, say: Callable[[str], None]
) -> None:
    refused = cluster.api.arm(entering("eight-5"), Answer(422), times=None)
    asked = cluster.extender.arm(of_kind("filter"), Delay(0), times=None)
    pods = gang("eight", 8)
    cluster.create(*pods)
    refused.wait()
    begin_s, before = time.monotonic(), asked.seen
    while time.monotonic() < begin_s + STUBBORN_S:
        assert bound(cluster) == set()
        time.sleep(0.2)
    say(f"an entry that is refused for {STUBBORN_S:g} s: {refused.seen} tries, {asked.seen - before} questions")
    assert refused.seen <= 2 * (STUBBORN_S + 1), "each try may look a second time whether the entry is there"
    assert asked.seen - before <= len(pods) * 2 * STUBBORN_S
    cluster.api.disarm()
    cluster.wait_bound(*names(pods))
    cluster.settle(QUIET_S)
    cluster.check_consistent()
