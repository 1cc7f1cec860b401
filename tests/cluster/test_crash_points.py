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
from cluster.shared import SharedPlane
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Answer, Hold
from faults.proxy import Armed
from faults.requests import binding, changing, entering, leaving, of_kind

SETTINGS = {
    "hold_ttl_s": 2,
    "bind_timeout_s": 3,
    "extender_timeout_s": 30,
    "release_delay_s": 2,
    "longest_release_s": 4,
}
"""A hold that ends soon, and a kube-scheduler that waits for longer than that."""


@dataclass(frozen=True)
class Shape:
    """Pods that need so many cards, and the node that they go to in the walk."""

    name: str
    cards: int
    node: str
    limits: list[dict[str, int]]
    """Of one container after the other."""

    def pod(self, name: str) -> Json:
        """Return a pod."""
        containers = [container(limits, f"c{position}") for position, limits in enumerate(self.limits)]
        return pod(name, *containers, nodeSelector={"kubernetes.io/hostname": self.node})


SHAPES = [
    Shape("one card", 1, "node-1-1", [{COUNT: 1, MEMORY: 4000}]),
    Shape("four cards", 4, "node-1-2", [{COUNT: 4, MEMORY: 4000}]),
    Shape("two containers", 2, "node-1-3", [{COUNT: 1, MEMORY: 30000}, {COUNT: 1, MEMORY: 30000}]),
]
"""Each on a node of its own, so that no write of the ledger is about two of them."""


@pytest.fixture(scope="module")
def module_cluster(shared: SharedPlane) -> Iterator[FaultyCluster]:
    """Yield a node for each shape, where a bystander has a share of every card, and an empty one; all have four."""
    with faulty_cluster(shared.lent(), SETTINGS) as running:
        nodes = running.add_nodes(len(SHAPES) + 1, gpus=4)
        assert {shape.node for shape in SHAPES} < {node.name for node in nodes}
        bystanders = [f"bystander-{number}" for number in range(len(SHAPES))]
        for name, shape in zip(bystanders, SHAPES, strict=True):
            selector = {"kubernetes.io/hostname": shape.node}
            running.create(pod(name, {COUNT: 4, MEMORY: 1000}, nodeSelector=selector))
        running.wait_bound(*bystanders)
        running.settle(QUIET_S)
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield the cluster, and check afterwards that nothing but the bystanders' shares is left, and those as before."""
    before = module_cluster.holders()
    yield module_cluster
    module_cluster.calm()
    walkers = [name for name in module_cluster.pods() if "bystander" not in name]
    for name in walkers:
        module_cluster.finish(name)  # else its shares would stay for a while
    module_cluster.delete(*walkers)
    module_cluster.wait(lambda: module_cluster.holders() == before, "the bystanders' shares are all, and as before")


@dataclass(frozen=True)
class Point:
    """Where the operator dies: `arm` holds the named pod's way there."""

    name: str
    arm: Callable[[FaultyCluster, str], Armed]
    entered: int | None
    """On how many cards the pod is in the ledger at this point; None for all of them."""
    bound: bool = False
    cards: int = 1
    """Pods with fewer cards do not come here."""


def before_write(number: int) -> Point:
    """Return the point at which one less than this number of cards have been written."""
    return Point(
        f"before ledger write {number}",
        lambda cluster, name: cluster.api.arm(entering(name), Hold(), times=None, skip=number - 1),
        entered=number - 1,
        cards=number,
    )


def after_write(number: int) -> Point:
    """Return the point at which this number of cards have been written, and the last answer is not seen."""

    def arm(cluster: FaultyCluster, name: str) -> Armed:
        written = cluster.api.arm(entering(name), Hold("answer"), skip=number - 1)
        cluster.api.arm(entering(name), Hold(), times=None, skip=number)
        return written

    return Point(f"after ledger write {number}", arm, entered=number, cards=number)


AT_FILTER = [
    Point("Filter has arrived", lambda c, name: c.extender.arm(of_kind("filter", name), Hold()), 0),
    Point("Filter is answered", lambda c, name: c.extender.arm(of_kind("filter", name), Hold("answer")), 0),
]
"""kube-scheduler asks for one pod after the other: no two are here at once."""

AFTER_FILTER = [
    Point("Bind has arrived", lambda c, name: c.extender.arm(of_kind("bind", name), Hold()), 0),
    *(point(number) for number in range(1, 5) for point in (before_write, after_write)),
    Point("before the Binding", lambda c, name: c.api.arm(binding(name), Hold()), None),
    Point("after the Binding", lambda c, name: c.api.arm(binding(name), Hold("answer")), None, bound=True),
    Point("Bind is answered", lambda c, name: c.extender.arm(of_kind("bind", name), Hold("answer")), None, bound=True),
]


def is_at(cluster: FaultyCluster, point: Point, name: str, shape: Shape) -> bool:
    found = cluster.pod(name)
    entered = shape.cards if point.entered is None else point.entered
    bound = bool(found["spec"].get("nodeName"))
    return len(cluster.cards_of(found["metadata"]["uid"])) == entered and bound == point.bound


def only_long(repeats: bool) -> list[pytest.MarkDecorator]:
    """Leave what only repeats another point with another number to `make test-all`."""
    return [pytest.mark.long] if repeats else []


@pytest.mark.promise("operator crashes")
@pytest.mark.parametrize(
    ("point", "shapes"),
    [
        *(
            pytest.param(p, [shape], id=f"{p.name}, {shape.name}", marks=only_long(shape.name != "two containers"))
            for p in AT_FILTER
            for shape in SHAPES
        ),
        *(
            pytest.param(p, [s for s in SHAPES if s.cards >= p.cards], id=p.name, marks=only_long(p.cards in (2, 3)))
            for p in AFTER_FILTER
        ),
    ],
)
def test_pods_are_bound_once_and_completely_wherever_the_operator_dies(
    cluster: FaultyCluster, point: Point, shapes: list[Shape]
) -> None:
    """Pods of all shapes are at the same point when it dies."""
    walkers = {f"walker-{position}": shape for position, shape in enumerate(shapes)}
    held = [point.arm(cluster, name) for name in walkers]
    cluster.create(*(shape.pod(name) for name, shape in walkers.items()))
    for armed in held:
        armed.wait()
    cluster.wait(lambda: all(is_at(cluster, point, *walker) for walker in walkers.items()), f"all are: {point.name}")
    cluster.crash_operator()
    cluster.wait_bound(*walkers)
    cluster.settle(QUIET_S)
    cluster.check_consistent()


def uid_of(cluster: FaultyCluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["uid"])


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


def test_a_filter_is_refused_while_the_shares_that_a_crash_has_left_are_given_back(cluster: FaultyCluster) -> None:
    entered = cluster.api.arm(binding("walker"), Hold())
    cluster.create(pod("walker", {COUNT: 2, MEMORY: 4000}))
    entered.wait()
    cluster.extender.arm(of_kind("filter"), Hold(), times=None)  # kube-scheduler asks when it is over
    cluster.installation.kill_operator()
    cluster.api.disarm(cut=True)
    fenced = cluster.api.arm(fence, Hold())
    cluster.start_operator()
    fenced.wait()
    nodes = [node["metadata"]["name"] for node in cluster.objects("nodes")]
    answer = cluster.ask("filter", {"Pod": cluster.pod("walker"), "Nodes": None, "NodeNames": nodes})
    assert "are still being released" in answer["Error"]
    fenced.release()
    cluster.settle(QUIET_S)
    cluster.extender.disarm()
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
        lambda: any("not bound yet" in text for text in cluster.messages("walker")),
        "kube-scheduler gave up the Bind",
    )
    card = in_flight.requests[0].name
    (home,) = {found["spec"]["nodeName"] for uuid, found in cluster.cards().items() if uuid.lower() == card}
    others = [node["metadata"]["name"] for node in cluster.objects("nodes") if node["metadata"]["name"] != home]
    question = {"Pod": cluster.pod("walker"), "Nodes": None}
    answer = cluster.ask("filter", {**question, "NodeNames": others})
    assert not answer.get("NodeNames")
    assert "is being bound to node" in answer["Error"]
    assert cluster.ask("filter", {**question, "NodeNames": [*others, home]})["NodeNames"] == [home]
    cluster.api.disarm(in_flight)
    (found,) = cluster.wait_bound("walker")
    assert found["spec"]["nodeName"] == home
    assert {request.name for request in in_flight.requests} == {card}
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
    late.wait_done()
    assert late.statuses == [200], "kube-scheduler has given up the Bind before it arrived"
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
    late.wait_done()
    assert late.statuses == [200], "kube-scheduler has given up the Bind before it arrived"
    (walker,) = cluster.wait_bound("walker")
    assert walker["spec"]["nodeName"] == small["spec"]["nodeName"]
    assert not set(uuids(walker)) & set(uuids(small))
    cluster.settle(QUIET_S)
    cluster.check_consistent()
