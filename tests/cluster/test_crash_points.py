"""The operator dies at every step between Filter and the answer to Bind, and while it gives shares back.

The proxies are the points at which it dies. *Before* a request: it is held, the operator is killed, and the request
never arrives. *After* a request: it is carried out, and the operator is killed before it sees the answer. Only the
operator is started again, as its container would be; kube-scheduler stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cluster.cluster import COUNT, MEMORY, Json, container, pod, uuids
from faults.faulty_cluster import FaultyCluster, faulty_cluster
from faults.kinds import Answer, Hold
from faults.proxy import Armed
from faults.requests import binding, changing, entering, leaving, of_kind

SETTINGS = {"hold_ttl_s": 2, "extender_timeout_s": 30, "release_delay_s": 2}
"""A hold that ends soon, and a kube-scheduler that waits for longer than that."""

BYSTANDER = "bystander"

QUIET_S = 0.2
"""How long the operator must be at rest. It has two nodes and two pods to look after."""


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[FaultyCluster]:
    """Yield two nodes with four cards each; on one of them a pod has a share of every card."""
    with faulty_cluster(SETTINGS) as running:
        running.add_nodes(2, gpus=4)
        running.create(pod(BYSTANDER, {COUNT: 4, MEMORY: 1000}))
        running.wait_bound(BYSTANDER)
        running.settle()
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield the cluster, and check afterwards that nothing but the bystander's shares is left, and those as before."""
    before = module_cluster.holders()
    yield module_cluster
    module_cluster.calm()
    module_cluster.delete(*(name for name in module_cluster.pods() if name != BYSTANDER))
    module_cluster.wait(lambda: module_cluster.holders() == before, "only the bystander has shares, and the same ones")


SHAPES: dict[str, tuple[list[Json], int]] = {
    "one card": ([container({COUNT: 1, MEMORY: 4000})], 1),
    "four cards": ([container({COUNT: 4, MEMORY: 4000})], 4),
    "two containers": ([container({COUNT: 1, MEMORY: 30000}, name) for name in ("first", "second")], 2),
}
"""Name -> containers, and how many cards they need together."""


@dataclass(frozen=True)
class Point:
    """Where the operator dies: `arm` holds the named pod's bind there."""

    name: str
    arm: Callable[[FaultyCluster, str], Armed]
    entered: int
    """On how many cards the pod is in the ledger at this point."""
    bound: bool = False


def before_write(number: int) -> Point:
    """Return the point at which one less than this number of cards have been written."""
    return Point(
        f"before ledger write {number}",
        lambda cluster, name: cluster.api.arm(entering(name), Hold(), times=None, skip=number - 1),
        entered=number - 1,
    )


def after_write(number: int) -> Point:
    """Return the point at which this number of cards have been written, and the last answer is not seen."""

    def arm(cluster: FaultyCluster, name: str) -> Armed:
        written = cluster.api.arm(entering(name), Hold("answer"), skip=number - 1)
        cluster.api.arm(entering(name), Hold(), times=None, skip=number)
        return written

    return Point(f"after ledger write {number}", arm, entered=number)


def points(cards: int) -> list[Point]:
    """Return all points for a pod on so many cards, in the order in which they come."""
    return [
        Point("Filter has arrived", lambda c, name: c.extender.arm(of_kind("filter", name), Hold()), 0),
        Point("Filter is answered", lambda c, name: c.extender.arm(of_kind("filter", name), Hold("answer")), 0),
        Point("Bind has arrived", lambda c, name: c.extender.arm(of_kind("bind", name), Hold()), 0),
        *(point(number) for number in range(1, cards + 1) for point in (before_write, after_write)),
        Point("before the Binding", lambda c, name: c.api.arm(binding(name), Hold()), cards),
        Point("after the Binding", lambda c, name: c.api.arm(binding(name), Hold("answer")), cards, bound=True),
        Point("Bind is answered", lambda c, name: c.extender.arm(of_kind("bind", name), Hold("answer")), cards, True),
    ]


WALK = [
    pytest.param(shape, point, id=f"{shape}, {point.name}")
    for shape, (_, cards) in SHAPES.items()
    for point in points(cards)
]


def uid_of(cluster: FaultyCluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["uid"])


@pytest.mark.parametrize(("shape", "point"), WALK)
def test_a_pod_is_bound_once_and_completely_wherever_the_operator_dies(
    cluster: FaultyCluster, shape: str, point: Point
) -> None:
    held = point.arm(cluster, "walker")
    cluster.create(pod("walker", *SHAPES[shape][0]))
    held.wait()
    uid = uid_of(cluster, "walker")
    cluster.wait(lambda: len(cluster.cards_of(uid)) == point.entered, f"the operator has come to: {point.name}")
    assert bool(cluster.pod("walker")["spec"].get("nodeName")) == point.bound
    cluster.crash_operator()
    cluster.wait_bound("walker")
    cluster.settle(QUIET_S)
    cluster.check_consistent()


@dataclass(frozen=True)
class GivingBack:
    """Where the operator dies while it takes back the shares of a pod with two cards, whose Binding is refused."""

    name: str
    arm: Callable[[FaultyCluster, str], Armed]
    """Given the pod's UID."""
    states: list[str]
    """Of the pod's holders at this point."""
    status: int = 422
    """Of the answers to its Binding. After a 500 the Binding may have been carried out."""


fence = of_kind("patch pods", "walker")

GIVING_BACK = [
    GivingBack(
        "before the first mark",
        lambda c, uid: c.api.arm(changing(uid), Hold(), times=None),
        ["allocated", "allocated"],
    ),
    GivingBack(
        "before the second mark",
        lambda c, uid: c.api.arm(changing(uid), Hold(), times=None, skip=1),
        ["allocated", "releasing"],
    ),
    GivingBack("before the fence", lambda c, uid: c.api.arm(fence, Hold()), ["releasing", "releasing"]),
    GivingBack(
        "after the fence",
        lambda c, uid: c.api.arm(fence, Hold("answer")),
        ["releasing", "releasing"],
        500,
    ),
    GivingBack(
        "before the second removal",
        lambda c, uid: c.api.arm(leaving(uid), Hold(), times=None, skip=1),
        ["releasing"],
    ),
    GivingBack(
        "after the second removal",
        lambda c, uid: c.api.arm(leaving(uid), Hold("answer"), skip=1),
        [],
        500,
    ),
]


@pytest.mark.parametrize("point", GIVING_BACK, ids=lambda point: point.name)
def test_a_pod_is_bound_wherever_the_operator_dies_while_it_gives_shares_back(
    cluster: FaultyCluster, point: GivingBack
) -> None:
    entered = cluster.api.arm(binding("walker"), Hold())
    cluster.create(pod("walker", {COUNT: 2, MEMORY: 4000}))
    entered.wait()
    uid = uid_of(cluster, "walker")
    held = point.arm(cluster, uid)
    cluster.api.arm(binding("walker"), Answer(point.status), times=None)
    cluster.api.disarm(entered, cut=True)
    held.wait()
    cluster.wait(lambda: states(cluster, uid) == point.states, f"the operator has come to: {point.name}")
    cluster.crash_operator()
    cluster.wait_bound("walker")
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def states(cluster: FaultyCluster, uid: str) -> list[str]:
    return sorted(h["state"] for held in cluster.holders().values() for h in held if h["podUID"] == uid)


def test_a_filter_while_the_ledger_write_of_a_late_bind_is_in_flight_answers_the_same_node(
    cluster: FaultyCluster,
) -> None:
    in_flight = cluster.api.arm(entering("walker"), Hold(), times=None)
    cluster.create(pod("walker", {COUNT: 1, MEMORY: 4000}))
    in_flight.wait()
    cluster.wait(
        lambda: any("still being bound" in text for text in cluster.messages("walker")),
        "kube-scheduler gave up the Bind",
    )
    home = cluster.pod(BYSTANDER)["spec"]["nodeName"]
    (other,) = {node["metadata"]["name"] for node in cluster.objects("nodes")} - {home}
    question = {"Pod": cluster.pod("walker"), "Nodes": None}
    assert cluster.ask("filter", {**question, "NodeNames": [other, home]})["NodeNames"] == [home]
    answer = cluster.ask("filter", {**question, "NodeNames": [other]})
    assert not answer.get("NodeNames")
    assert "still has shares" in answer["Error"]
    cluster.api.disarm(in_flight)
    (found,) = cluster.wait_bound("walker")
    assert found["spec"]["nodeName"] == home
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def held_until_its_cards_are_gone(cluster: FaultyCluster) -> Armed:
    """Create a pod whose Bind is held until its hold is over and another pod has taken every whole card."""
    late = cluster.extender.arm(of_kind("bind", "walker"), Hold())
    cluster.create(pod("walker", {COUNT: 1}))
    late.wait()
    cluster.create(pod("taker", {COUNT: 4}))
    cluster.wait_bound("taker")
    return late


def test_a_bind_that_comes_when_another_pod_has_the_cards_is_refused_clearly(cluster: FaultyCluster) -> None:
    late = held_until_its_cards_are_gone(cluster)
    written = cluster.api.arm(entering("walker"), Hold())
    late.release()
    node = cluster.pod("taker")["spec"]["nodeName"]
    cluster.wait_refused("walker", f"node {node}: no card entirely free")
    assert written.seen == 0
    cluster.check_consistent()
    cluster.api.disarm()
    cluster.delete("taker")
    cluster.wait_bound("walker")
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def test_a_bind_that_comes_when_another_pod_has_the_cards_gets_others(cluster: FaultyCluster) -> None:
    late = held_until_its_cards_are_gone(cluster)
    cluster.delete("taker")
    cluster.create(pod("small", {COUNT: 1}))
    (small,) = cluster.wait_bound("small")
    late.release()
    (walker,) = cluster.wait_bound("walker")
    assert walker["spec"]["nodeName"] == small["spec"]["nodeName"]
    assert not set(uuids(walker)) & set(uuids(small))
    cluster.settle(QUIET_S)
    cluster.check_consistent()
