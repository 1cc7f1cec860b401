"""A node on which a bound pod is not started in time takes no more pods, until its kubelet goes on."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import a_holder, a_share, cards_of
from fakes.api_server import ApiServer, Operation, lose_request
from fakes.objects import a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import wall
from gpuledger.model.errors import BindFailed
from gpuledger.model.share import Pod
from gpuledger.workflows.inventory import LAST_CHOICE_S, LATER_S, SETTLE_S, SLOW_S

CARDS = cards_of("node-a", 2)
TIMEOUT_S = 60.0
OPEN = ("Ready", "")


def why(name: str) -> tuple[str, str]:
    return "Unavailable", f"its kubelet has not started pod default/{name} for 60 s"


def bound(name: str, started: bool = False, age_s: float | None = None, phase: str = "Pending") -> dict[str, Any]:
    """Return a pod of node-a; with an age, one that says when it was bound."""
    pod = a_pod_object(name, node_name="node-a", started=started, phase="Running" if started else phase)
    if age_s is not None:
        at = wall() - timedelta(seconds=age_s)
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        pod["status"]["conditions"] = [condition]
    return pod


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator that has read nothing yet of node-a and its cards."""
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    return OperatorParts(api, start_timeout_s=TIMEOUT_S)


def enter(api: ApiServer, pod: dict[str, Any]) -> None:
    """Give the pod a share of the first card, and let it be there."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    holder = replace(a_holder(name, a_share(CARDS[0])), pod=Pod(uid, "default", name))
    api.put_card(CARDS[0], *(api.card(CARDS[0]).holders or ()), holder)
    api.put_pod(pod)


async def start(parts: OperatorParts, *pods: dict[str, Any]) -> None:
    """Let the operator read everything for the first time, these pods too, which hold a card."""
    for pod in pods:
        enter(parts.api, pod)
    await parts.observer.resync()
    await settled(parts)


async def appear(parts: OperatorParts, pod: dict[str, Any]) -> None:
    """Let a pod be bound with a share."""
    enter(parts.api, pod)
    await settled(parts)


async def settled(parts: OperatorParts) -> None:
    await parts.starts.worker.idle()
    await parts.idle()


async def later(parts: OperatorParts, seconds: float) -> tuple[str, str]:
    """Let some time pass; return what the cards' status says then."""
    await asyncio.sleep(seconds)
    await settled(parts)
    (found,) = {(parts.api.card(card).phase, parts.api.card(card).reason) for card in CARDS}
    return found


async def test_a_node_that_does_not_start_a_pod_is_closed_after_the_time_and_open_when_its_kubelet_has_settled(
    parts: OperatorParts,
) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a"))
    assert await later(parts, TIMEOUT_S - 1) == OPEN
    assert await later(parts, 1.1) == why("a")
    assert parts.ledger.node_room("node-a").hangs
    parts.api.put_pod(bound("a", started=True))
    await settled(parts)
    assert await later(parts, SETTLE_S - 1) == why("a"), "what is known of its device plugin is from before"
    assert parts.ledger.node_room("node-a").hangs
    assert await later(parts, 1.1) == OPEN
    assert not parts.ledger.node_room("node-a").hangs


async def test_a_pod_that_starts_in_time_costs_neither_request_nor_timer(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a"))
    assert await later(parts, TIMEOUT_S - 1) == OPEN
    parts.api.put_pod(bound("a", started=True))
    await settled(parts)
    before = len(parts.api.calls)
    assert await later(parts, 10 * TIMEOUT_S) == OPEN
    assert len(parts.api.calls) == before
    assert parts.starts.known_bound() == set()


@pytest.mark.parametrize("end", ["deleted", "finished", "not listed"])
async def test_a_pod_that_goes_without_having_started_opens_the_node(parts: OperatorParts, end: str) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a"))
    assert await later(parts, TIMEOUT_S + 1) == why("a")
    if end == "finished":
        parts.api.put_pod(bound("a", phase="Failed"))
    else:
        parts.api.delete_pod("a")
    if end == "not listed":  # no watch has shown it
        parts._shown = len(parts.api.changes)
        await parts.observer.resync()
    assert await later(parts, 0) == OPEN


async def test_what_a_watch_has_missed_is_asked_for_before_a_node_is_closed(parts: OperatorParts) -> None:
    """When the API server is away for a while, nobody sees the pods start."""
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a"))
    parts.api.put_pod(bound("a", started=True))
    parts._shown = len(parts.api.changes)
    parts.api.queue(Operation.READ_POD, lose_request())
    assert await later(parts, TIMEOUT_S + 1) == OPEN
    assert parts.starts.known_bound() == set()


async def test_a_pod_that_is_too_long_for_its_status_closes_no_node_also_when_it_has_grown_since(
    parts: OperatorParts,
) -> None:
    """Who may change a pod can add labels to it until its kubelet has no room to say that it has started."""
    await start(parts)
    await appear(parts, bound("a"))
    grown = bound("a")
    grown["metadata"]["labels"] = {f"label-{number}": "x" * 63 for number in range(4_000)}
    parts.api.put_pod(grown)
    assert await later(parts, TIMEOUT_S + 1) == OPEN
    await appear(parts, bound("b"))
    assert await later(parts, TIMEOUT_S + 1) == why("b")


async def test_a_pod_that_is_too_long_for_its_status_closes_no_node_of_an_operator_that_starts(
    parts: OperatorParts,
) -> None:
    long = bound("a", age_s=10 * TIMEOUT_S)
    long["metadata"]["labels"] = {f"label-{number}": "x" * 63 for number in range(4_000)}
    await start(parts, long)
    assert await later(parts, 0) == OPEN


async def test_a_pod_that_is_late_by_itself_closes_no_node(parts: OperatorParts) -> None:
    """As one into which its status does not fit. The kubelet has taken up another one, of whatever scheduler."""
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a", age_s=0.0))
    await asyncio.sleep(LATER_S + 1)
    later_one = bound("of-others", started=True, age_s=0.0)
    later_one["spec"]["schedulerName"] = "default-scheduler"
    parts.api.put_pod(later_one)
    assert await later(parts, TIMEOUT_S) == OPEN
    asked = len(parts.api.called(Operation.LIST_PODS))
    parts.api.put_pod({**bound("a", age_s=0.0), "metadata": {**bound("a")["metadata"], "labels": {"changed": "1"}}})
    assert await later(parts, 10 * TIMEOUT_S) == OPEN
    assert len(parts.api.called(Operation.LIST_PODS)) == asked, "it is not looked into again"


async def test_a_node_that_was_closed_opens_when_its_kubelet_takes_up_a_pod_of_others(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a", age_s=0.0))
    assert await later(parts, TIMEOUT_S + 1) == why("a")
    later_one = bound("of-others", started=True, age_s=0.0)
    later_one["spec"]["schedulerName"] = "default-scheduler"
    parts.api.put_pod(later_one)
    assert await later(parts, TIMEOUT_S) == OPEN


async def test_who_was_bound_before_or_with_a_late_pod_proves_nothing(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True, age_s=5.0))
    await appear(parts, bound("a", age_s=0.0))
    with_it = bound("of-others", started=True, age_s=-LATER_S / 2)
    with_it["spec"]["schedulerName"] = "default-scheduler"
    parts.api.put_pod(with_it)
    assert await later(parts, TIMEOUT_S + 1) == why("a")


async def test_a_pod_without_a_share_is_no_proof(parts: OperatorParts) -> None:
    """Anybody who may create pods can write a node's name into one."""
    await start(parts, bound("a", started=True), bound("b", started=True))
    parts.api.put_pod(bound("stray"))
    await settled(parts)
    assert parts.starts.known_bound() == {"uid-stray"}
    assert await later(parts, 2 * TIMEOUT_S) == OPEN
    parts.api.delete_pod("stray")
    assert await later(parts, 0) == OPEN
    assert parts.starts.known_bound() == set()


async def test_a_pod_bound_before_the_operator_came_has_the_less_time_left(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True), bound("a", age_s=TIMEOUT_S - 20))
    assert await later(parts, 18) == OPEN
    assert await later(parts, 3) == why("a")


@pytest.mark.parametrize("age_s", [-10 * TIMEOUT_S, None], ids=["in the future", "unknown"])
async def test_whatever_a_pod_says_it_never_has_more_than_the_time(parts: OperatorParts, age_s: float | None) -> None:
    await start(parts, bound("b", started=True), bound("a", age_s=age_s))
    assert await later(parts, TIMEOUT_S - 1) == OPEN
    assert await later(parts, 2) == why("a")


async def test_an_operator_that_comes_names_the_same_pod_as_the_one_before(parts: OperatorParts) -> None:
    """Else each restart would write the reason of every card of the node anew."""
    await start(parts, bound("b", age_s=TIMEOUT_S + 2), bound("a", age_s=TIMEOUT_S))
    assert await later(parts, 0) == why("b")
    before = parts.api.writes()
    successor = OperatorParts(parts.api, start_timeout_s=TIMEOUT_S)
    for name in "ab":  # the watch shows them in any order
        successor.observer.pod(parts.api.pods["default", name], gone=False)
    await successor.observer.resync()
    await settled(successor)
    assert parts.api.writes() == before


async def test_a_node_that_hangs_is_closed_before_a_new_operator_decides_anything(parts: OperatorParts) -> None:
    for pod in (bound("b", started=True), bound("a", age_s=TIMEOUT_S)):
        enter(parts.api, pod)
    parts.observer.pod(bound("a", age_s=TIMEOUT_S), gone=False)  # the watch is earlier than the cards
    await parts.observer.resync()
    assert parts.observer.synced
    assert parts.ledger.node_room("node-a").hangs
    assert await later(parts, 10 * TIMEOUT_S) == why("a")


async def test_a_clock_that_goes_wrong_does_not_shorten_the_time_of_new_pods(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a", age_s=10 * TIMEOUT_S))
    assert await later(parts, TIMEOUT_S - 1) == OPEN


async def test_the_reason_names_the_first_pod_and_one_start_opens_the_node(parts: OperatorParts) -> None:
    """Twenty pods that start one after the other must not write twenty reasons to every card."""
    await start(parts)
    await appear(parts, bound("a"))
    assert await later(parts, 1) == OPEN
    await appear(parts, bound("b"))
    assert await later(parts, TIMEOUT_S + 1) == why("a")
    before = len(parts.api.called(Operation.WRITE_STATUS))
    parts.api.put_pod(bound("b", started=True))
    await settled(parts)
    assert await later(parts, SETTLE_S + 1) == OPEN
    assert len(parts.api.called(Operation.WRITE_STATUS)) == before + len(CARDS)
    assert await later(parts, TIMEOUT_S) == why("a")  # it had the whole time again


async def test_while_a_node_hangs_no_pod_is_bound_to_it_that_had_its_cards_already(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True))
    parts.api.put_pod(a_pod_object("new"))
    await settled(parts)
    assert parts.filter("new", "node-a").node_names == ["node-a"]
    parts.ledger.set_offer("node-a", parts.ledger.offer("node-a"), hangs=True)
    with pytest.raises(BindFailed, match="node node-a starts no pods"):
        await parts.bind("new", "node-a")


async def test_with_a_time_of_zero_nobody_is_waited_for(api: ApiServer) -> None:
    api.put_node(a_node_object("node-a", CARDS))
    api.put_card(CARDS[0])
    parts = OperatorParts(api, start_timeout_s=0)
    await start(parts, bound("a"))
    await asyncio.sleep(10_000)
    await settled(parts)
    assert (parts.api.card(CARDS[0]).phase, parts.starts.known_bound()) == ("Ready", set())


async def test_a_node_that_is_deleted_and_comes_back_is_judged_anew(parts: OperatorParts) -> None:
    await start(parts, bound("b", started=True))
    await appear(parts, bound("a"))
    assert await later(parts, TIMEOUT_S + 1) == why("a")
    parts.api.delete_node("node-a")
    await settled(parts)
    assert parts.api.card(CARDS[0]).reason == "its node is gone"
    parts.api.put_node(a_node_object("node-a", CARDS))
    assert await later(parts, 0) == why("a")


async def test_a_long_name_is_cut_to_what_a_status_takes(parts: OperatorParts) -> None:
    pod = bound("x" * 253)
    pod["metadata"]["uid"] = "uid"
    await start(parts, pod)
    phase, reason = await later(parts, TIMEOUT_S + 1)
    assert (phase, len(reason)) == ("Unavailable", 256)


async def preferred(parts: OperatorParts, name: str = "new") -> str:
    """Return the node that a new pod is offered, of node-a and node-b."""
    parts.api.put_pod(a_pod_object(name))
    await settled(parts)
    (found,) = parts.filter(name, "node-a", "node-b").node_names
    parts.api.delete_pod(name)
    await settled(parts)
    return found


async def two_nodes(api: ApiServer, *pods: dict[str, Any]) -> OperatorParts:
    """Return an operator of node-a, where these pods have shares, and node-b, which is empty."""
    for name in ("node-a", "node-b"):
        api.put_node(a_node_object(name, cards_of(name, 2)))
        for card in cards_of(name, 2):
            api.put_card(card)
    parts = OperatorParts(api, start_timeout_s=TIMEOUT_S)
    await start(parts, *pods)
    return parts


async def test_other_nodes_go_before_one_whose_kubelet_has_not_started_a_pod_for_some_seconds(api: ApiServer) -> None:
    """A dead node got 51 of 53 pods, as the fullest one, until Kubernetes said that it was dead."""
    parts = await two_nodes(api, bound("b", started=True))
    await appear(parts, bound("a"))
    await later(parts, SLOW_S - 0.1)
    assert await preferred(parts) == "node-a"
    assert await later(parts, 0.2) == OPEN
    assert await preferred(parts) == "node-b"
    api.put_pod(bound("a", started=True))
    await settled(parts)
    assert await preferred(parts) == "node-a"


async def test_a_node_that_may_be_dead_still_takes_what_fits_nowhere_else(api: ApiServer) -> None:
    parts = await two_nodes(api, bound("b", started=True), bound("a"))
    await later(parts, SLOW_S + 0.1)
    api.put_pod(a_pod_object("new"))
    await settled(parts)
    assert parts.filter("new", "node-a").node_names == ["node-a"]


async def test_pods_that_are_deleted_before_they_start_do_not_make_a_dead_node_attractive(api: ApiServer) -> None:
    parts = await two_nodes(api, bound("b", started=True))
    await appear(parts, bound("a"))
    await later(parts, SLOW_S + 0.1)
    api.delete_pod("a")
    await later(parts, LAST_CHOICE_S - 1)
    assert await preferred(parts) == "node-b"
    await later(parts, 1.1)
    assert await preferred(parts) == "node-a"


async def test_a_pod_without_a_share_does_not_keep_pods_from_a_node(api: ApiServer) -> None:
    """Anybody who may create pods can write a node's name into one."""
    parts = await two_nodes(api, bound("b", started=True))
    api.put_pod(bound("stray"))
    await later(parts, SLOW_S + 1)
    assert await preferred(parts) == "node-a"


async def test_a_pod_that_is_late_by_itself_keeps_others_from_its_node_for_as_long_as_it_takes_to_know(
    api: ApiServer,
) -> None:
    parts = await two_nodes(api, bound("b", started=True))
    await appear(parts, bound("a", age_s=0.0))
    await later(parts, LATER_S + 1)
    assert await preferred(parts) == "node-b"
    later_one = bound("c", age_s=0.0)
    await appear(parts, later_one)
    api.put_pod(bound("c", started=True, age_s=0.0))
    await settled(parts)
    assert await preferred(parts) == "node-a"
    await later(parts, 2 * TIMEOUT_S)
    assert await preferred(parts) == "node-a"
