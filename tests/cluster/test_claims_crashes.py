"""The operator dies, or the API server fails, at every step between ledger, claim and Binding.

The steps of a pod's Bind are: its holders into the ledger, the finalizer of a claim that it names, the allocations of
its claims, and the Binding. Each pod is on a node of its own, so that many can be at different steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    allocated,
    check_claims,
    claim,
    claiming,
    claims,
    create_class,
    held_by_claim,
    results,
    share,
    template,
    wait_all_refused,
)
from cluster.cluster import COUNT, MEMORY, RequestFailed
from cluster.kubernetes import at_least
from cluster.shared import SharedPlane
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Answer, ApplyLate, Drop, Fault, Hold, HoldEvents, LoseAnswer
from faults.requests import (
    Match,
    allocating,
    binding,
    entering,
    leaving,
    protecting,
    reserving,
    watching,
)

Json = dict[str, Any]

SETTINGS = {
    "hold_ttl_s": 2,
    "bind_timeout_s": 3,
    "extender_timeout_s": 30,
    "release_delay_s": 2,
    "longest_release_s": 4,
}
NODE_COUNT, GPUS = 24, 2


@dataclass(frozen=True)
class Step:
    """A write of a Bind."""

    name: str
    match: Callable[[str], Match]
    """Given the pod's name; a claim that it names is called like it."""
    shape: str
    skip: int = 0
    """So many of these writes go through before."""


STEPS = [
    Step("ledger", entering, "made"),
    Step("second card in the ledger", entering, "both-words", skip=1),
    Step("finalizer", lambda name: protecting(name, name), "named"),
    Step("allocation", allocating, "made"),
    Step("allocation of a claim with a name", lambda name: allocating(name, name), "named"),
    Step("allocation of a second claim", allocating, "two-claims", skip=1),
    Step("Binding", binding, "made"),
    Step("Binding with a claim that has a name", binding, "named"),
    Step("Binding with two claims", binding, "two-claims"),
]


long = pytest.mark.long
"""By `make test`, one variant of each behaviour is enough."""

or_dies = pytest.mark.parametrize(
    "crashes", [pytest.param(False, id="operator lives"), pytest.param(True, id="operator dies", marks=long)]
)


@pytest.fixture(scope="module")
def module_cluster(shared: SharedPlane) -> Iterator[FaultyCluster]:
    with faulty_cluster(shared.lent(), SETTINGS) as running:
        create_class(running)
        running.add_nodes(NODE_COUNT, gpus=GPUS)
        running.request("POST", TEMPLATES, template("one", share("10Gi", 30)))
        running.request("POST", TEMPLATES, template("two", share("10Gi", count=2)))
        running.settle(QUIET_S)
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield the cluster; afterwards all pods end, and nothing may be left over."""
    yield module_cluster
    module_cluster.calm()
    for name in module_cluster.pods():
        module_cluster.finish(name)
    module_cluster.wait(lambda: not any(module_cluster.holders().values()), "no holder is left")
    module_cluster.wait(lambda: not any(map(results, claims(module_cluster).values())), "no claim is allocated")
    module_cluster.delete(*module_cluster.pods())
    module_cluster.request("DELETE", CLAIMS)
    module_cluster.wait(lambda: not claims(module_cluster), "all claims are gone")


def walker(cluster: FaultyCluster, name: str, shape: str, node: int) -> Json:
    """Return a pod for one node of its own, after creating the claim that it names."""
    pinned: Json = {"nodeSelector": {"kubernetes.io/hostname": f"node-1-{node + 1}"}}
    match shape:
        case "made":
            return claiming(name, ["one"], **pinned)
        case "named":
            cluster.request("POST", CLAIMS, claim(name, share("10Gi", 30, count=2)))
            return claiming(name, named=[name], **pinned)
        case "two-claims":
            return claiming(name, ["one", "two"], **pinned)
        case _:
            return claiming(name, ["one"], limits={COUNT: 2, MEMORY: 4000}, **pinned)


def are_bound_once_and_consistent(cluster: FaultyCluster, *names: str) -> None:
    cluster.wait_bound(*names)
    cluster.settle(QUIET_S)
    cluster.check_consistent()
    check_claims(cluster)


@pytest.mark.parametrize("when", ["before", "after"])
def test_pods_with_claims_are_bound_once_wherever_the_operator_dies(cluster: FaultyCluster, when: str) -> None:
    """A pod is at each step when it is killed: the write was held, or was carried out and its answer held."""
    walkers = {f"walker-{number}": step for number, step in enumerate(STEPS)}
    held = [
        cluster.api.arm(step.match(name), Hold("request" if when == "before" else "answer"), times=None, skip=step.skip)
        for name, step in walkers.items()
    ]
    for node, (name, step) in enumerate(walkers.items()):
        cluster.create(walker(cluster, name, step.shape, node))
    for armed in held:
        armed.wait()
    cluster.crash_operator()
    are_bound_once_and_consistent(cluster, *walkers)


FAULTS: list[Fault] = [Answer(409), LoseAnswer(), ApplyLate(1.5)]
MORE_FAULTS: list[Fault] = [Answer(500), Answer(503), Answer(429, retry_after_s=1), Drop()]


@pytest.mark.parametrize("fault", [*FAULTS, *(pytest.param(each, marks=long) for each in MORE_FAULTS)], ids=str)
def test_pods_with_claims_are_bound_once_whatever_the_api_server_answers(cluster: FaultyCluster, fault: Fault) -> None:
    """A pod for each step meets the same answer, once."""
    walkers = {f"walker-{number}": step for number, step in enumerate(STEPS)}
    met = [cluster.api.arm(step.match(name), fault, skip=step.skip) for name, step in walkers.items()]
    for node, (name, step) in enumerate(walkers.items()):
        cluster.create(walker(cluster, name, step.shape, node))
    for armed in met:
        armed.wait()
    are_bound_once_and_consistent(cluster, *walkers)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(each, id=each.name, marks=() if each.name.startswith("allocation") else long)
        for each in STEPS
        if each.shape == "named"
    ],
)
def test_nothing_is_left_of_a_pod_that_the_api_server_refuses_until_it_accepts_it(
    cluster: FaultyCluster, step: Step
) -> None:
    refusing = cluster.api.arm(step.match("walker"), Answer(403), times=None)
    cluster.create(walker(cluster, "walker", "named", 0))
    wait_all_refused_or_failed(cluster, "walker")
    refusing.wait()
    cluster.wait(lambda: not any(cluster.holders().values()), "its cards are given back")
    cluster.wait(lambda: not results(claims(cluster)["walker"]), "its claim is not allocated")
    cluster.api.disarm(refusing)
    are_bound_once_and_consistent(cluster, "walker")


def wait_all_refused_or_failed(cluster: FaultyCluster, name: str) -> None:
    cluster.wait(lambda: bool(cluster.messages(name)), f"kube-scheduler has said why {name} waits")


# Objects change in between.


@pytest.mark.parametrize(
    ("when", "crashes"),
    [
        pytest.param("before", False, id="before, operator lives"),
        pytest.param("after", True, id="after, operator dies"),
        pytest.param("before", True, id="before, operator dies", marks=long),
        pytest.param("after", False, id="after, operator lives", marks=long),
    ],
)
def test_nothing_is_left_of_pods_that_are_deleted_at_any_step(cluster: FaultyCluster, when: str, crashes: bool) -> None:
    walkers = {f"walker-{number}": step for number, step in enumerate(STEPS)}
    held = [
        cluster.api.arm(step.match(name), Hold("request" if when == "before" else "answer"), times=None, skip=step.skip)
        for name, step in walkers.items()
    ]
    for node, (name, step) in enumerate(walkers.items()):
        cluster.create(walker(cluster, name, step.shape, node))
    for armed in held:
        armed.wait()
    cluster.delete(*walkers)
    if crashes:
        cluster.crash_operator()
    else:
        cluster.api.disarm()
    cluster.wait(lambda: not any(cluster.holders().values()), "no holder is left")
    cluster.wait(lambda: not any(map(results, claims(cluster).values())), "no claim is allocated")
    assert all(each["metadata"]["name"] in walkers for each in claims(cluster).values())
    named = [name for name, step in walkers.items() if step.shape == "named"]
    users = [f"next-{name}" for name in named]
    cluster.create(*(claiming(user, named=[name]) for user, name in zip(users, named, strict=True)))
    are_bound_once_and_consistent(cluster, *users)


BEFORE_THE_ALLOCATION: list[Callable[[str], Match]] = [
    entering,
    lambda name: protecting(name, name),
    lambda name: allocating(name, name),
]


@or_dies
def test_a_claim_that_is_replaced_during_the_bind_counts_as_it_is_then(cluster: FaultyCluster, crashes: bool) -> None:
    """By one of the same name that asks for more."""
    walkers = {f"walker-{number}": match for number, match in enumerate(BEFORE_THE_ALLOCATION)}
    held = [cluster.api.arm(match(name), Hold(), times=None) for name, match in walkers.items()]
    for node, name in enumerate(walkers):
        cluster.create(walker(cluster, name, "named", node))
    for armed in held:
        armed.wait()
    for name in walkers:
        replace_claim(cluster, claim(name, share("30Gi")))
    if crashes:
        cluster.crash_operator()
    else:
        cluster.api.disarm()
    are_bound_once_and_consistent(cluster, *walkers)
    for name in walkers:
        assert list(allocated(claims(cluster)[name], cluster.cards()).values()) == [(30 * 1024, 0, 1)]


def replace_claim(cluster: FaultyCluster, body: Json) -> None:
    """Delete a claim, whatever protects it, and create another one of its name."""
    path = f"{CLAIMS}/{body['metadata']['name']}"
    cluster.request("DELETE", path)
    with suppress(RequestFailed):  # it is gone already
        cluster.patch(path, {"metadata": {"finalizers": None}})
    cluster.request("POST", CLAIMS, body)


@or_dies
def test_a_pod_whose_own_claim_is_deleted_during_the_bind_holds_nothing_for_it(
    cluster: FaultyCluster, crashes: bool
) -> None:
    """kube-controller-manager makes another one from 1.37 on; before, the pod is told that there is none."""
    walkers = {f"walker-{number}": match for number, match in enumerate((entering, allocating))}
    held = [cluster.api.arm(match(name), Hold(), times=None) for name, match in walkers.items()]
    for node, name in enumerate(walkers):
        cluster.create(walker(cluster, name, "made", node))
    for armed in held:
        armed.wait()
    for name in claims(cluster):
        cluster.request("DELETE", f"{CLAIMS}/{name}")
    if crashes:
        cluster.crash_operator()
    else:
        cluster.api.disarm()
    if at_least(1, 37):
        are_bound_once_and_consistent(cluster, *walkers)
        return
    for name in walkers:
        cluster.wait_refused(name, "which was made for the pod, is not there")
    cluster.wait(lambda: not any(cluster.holders().values()), "no holder is left")


def test_a_template_that_is_replaced_before_its_claim_is_seen_does_not_change_the_claim(cluster: FaultyCluster) -> None:
    cluster.create(claiming("walker", ["first"]))
    wait_all_refused(cluster, "walker")
    unseen = cluster.api.arm(watching("resourceclaims"), HoldEvents())
    cluster.request("POST", TEMPLATES, template("first", share("1Gi")))
    cluster.wait(lambda: bool(claims(cluster)), "the claim is made")
    cluster.request("DELETE", f"{TEMPLATES}/first")
    cluster.request("POST", TEMPLATES, template("first", share("20Gi")))
    cluster.settle(QUIET_S)
    unseen.release()
    are_bound_once_and_consistent(cluster, "walker")
    (held,) = held_by_claim(cluster).values()
    assert list(held.values()) == [(1024, 0, 1)]
    cluster.request("DELETE", f"{TEMPLATES}/first")


# Claims that pods share.


def two_users(cluster: FaultyCluster) -> list[str]:
    """Have two pods use a claim for both cards of a node; return their names, the holder's first."""
    cluster.request("POST", CLAIMS, claim("ours", share("10Gi", count=2)))
    for name in ("first", "second"):
        cluster.create(claiming(name, named=["ours"]))
        cluster.wait_bound(name)
    cluster.settle(QUIET_S)
    return ["first", "second"]


def holders_of(cluster: FaultyCluster) -> set[str]:
    return {holder["pod"] for held in cluster.holders().values() for holder in held}


@pytest.mark.parametrize("when", ["between", pytest.param("before", marks=long), pytest.param("after", marks=long)])
def test_a_share_that_is_handed_over_is_so_on_all_cards_wherever_the_operator_dies(
    cluster: FaultyCluster, when: str
) -> None:
    two_users(cluster)
    uid = cluster.pod("first")["metadata"]["uid"]
    fault = Hold("answer" if when == "after" else "request")
    held = cluster.api.arm(leaving(uid), fault, times=None, skip=int(when == "between"))
    cluster.finish("first")
    held.wait()
    cluster.crash_operator()
    cluster.wait(lambda: holders_of(cluster) == {"second"}, "the second pod has both cards")
    assert sum(map(len, cluster.holders().values())) == 2
    cluster.settle(QUIET_S)
    check_claims(cluster)


def test_a_pod_that_joins_a_claim_while_its_last_user_ends_gets_cards_of_its_own(cluster: FaultyCluster) -> None:
    cluster.request("POST", CLAIMS, claim("ours", share("10Gi")))
    cluster.create(claiming("first", named=["ours"]))
    cluster.wait_bound("first")
    joining = cluster.api.arm(reserving("ours"), Hold())
    cluster.create(claiming("second", named=["ours"]))
    joining.wait()
    cluster.finish("first")
    cluster.wait(lambda: not any(cluster.holders().values()), "the first pod has left")
    cluster.delete("first")
    cluster.api.disarm(joining)
    are_bound_once_and_consistent(cluster, "second")
    assert holders_of(cluster) == {"second"}


@or_dies
def test_no_pod_is_bound_to_cards_that_the_last_user_of_its_claim_has_left(
    cluster: FaultyCluster, crashes: bool
) -> None:
    """It had joined, and its Binding was under way."""
    cluster.request("POST", CLAIMS, claim("ours", share("10Gi")))
    cluster.create(claiming("first", named=["ours"]))
    cluster.wait_bound("first")
    sent = cluster.api.arm(binding("second"), Hold(), times=None)
    cluster.create(claiming("second", named=["ours"]))
    sent.wait()
    cluster.finish("first")
    cluster.wait(lambda: "first" not in holders_of(cluster), "the first pod has left")
    cluster.delete("first")
    if crashes:
        cluster.crash_operator()
    else:
        cluster.api.disarm(sent)
    are_bound_once_and_consistent(cluster, "second")
    assert holders_of(cluster) == {"second"}
