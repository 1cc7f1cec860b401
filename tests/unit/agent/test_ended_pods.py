"""What is left of pods that have ended without a word of the kubelet: looked for, said once, and of no other pods."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import pytest

from fakes.objects import GPU, a_node_object, a_pod_object
from gpuledger.agent.ended_pods import (
    KEPT_AT_MOST_S,
    LONGEST_INTERVAL_S,
    LOOK_INTERVAL_S,
    RUNS_AFTER_S,
    EndedPods,
    Sight,
)
from gpuledger.formats.annotations import ENDS_ANNOTATION, MAX_NAMED, ends_annotation, read_ends

Json = dict[str, Any]

HOUR_S = 3_600.0


class Node:
    """A node with pods of which something is left, and what its agent says of them."""

    def __init__(self) -> None:
        self.left: set[str] = set()
        self.looks: list[dict[str, frozenset[str]]] = []
        self.said: list[dict[str, bool]] = []
        self.sees_pods = True
        self.error: OSError | None = None
        self.text = ""
        self.prepared: set[tuple[str, str]] = set()
        """Claims that the kubelet has not given back."""
        self.ended = EndedPods([GPU], self._look, self._say, lambda: self.prepared)

    async def _look(self, containers: Mapping[str, Collection[str]]) -> Sight:
        self.looks.append({uid: frozenset(ids) for uid, ids in containers.items()})
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        known = containers.keys() if self.sees_pods else {uid for uid, ids in containers.items() if ids}
        return Sight(frozenset(self.left & known), self.sees_pods)

    def _say(self, text: str) -> None:
        self.text = text
        said = read_ends({"metadata": {"annotations": {ENDS_ANNOTATION: text}}})
        assert said is not None
        if not self.said or self.said[-1] != said:  # the same again is not written
            self.said.append(said)

    def show(self, *pods: Json) -> None:
        """Let the API server list these pods."""
        listed = self.ended.listing()
        for pod in pods:
            self.ended.observe(pod, False)
        listed({pod["metadata"]["uid"] for pod in pods})


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Return a node whose agent runs, and has been shown no pods yet."""
    found = Node()
    task = asyncio.create_task(found.ended.run())
    yield found
    assert not task.done()
    task.cancel()


def a_pod(name: str = "a", phase: str = "Running", *states: Json, **fields: Any) -> Json:
    pod = a_pod_object(name, fields.pop("limits", {GPU: "1"}), node_name="node-a", phase=phase, started=True)
    statuses = [{"state": state, "containerID": f"containerd://{name}{n}"} for n, state in enumerate(states)]
    return {**pod, "status": {**pod["status"], "containerStatuses": statuses, **fields}}


def claiming(name: str, claim: str, **fields: Any) -> Json:
    """Return a pod without cards of its own that names a claim."""
    pod = a_pod(name, limits={"cpu": "1"}, **fields)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return pod


RUNS: Json = {"running": {}}
ENDED: Json = {"terminated": {"exitCode": 0}}
GIVEN_UP = a_pod("a", "Failed", RUNS, conditions=[{"type": "DisruptionTarget", "reason": "DeletionByPodGC"}])


async def test_a_pod_that_ends_in_good_order_is_neither_looked_for_nor_spoken_of(node: Node) -> None:
    node.show(a_pod("a"))
    await asyncio.sleep(HOUR_S)
    for phase in ("Succeeded", "Failed"):
        node.ended.observe(a_pod("a", phase, ENDED), False)
        node.ended.observe(a_pod("a", phase, ENDED), True)
    await asyncio.sleep(HOUR_S)
    assert (node.looks, node.said) == ([], [{}])


async def test_pods_without_cards_are_neither_looked_for_nor_spoken_of(node: Node) -> None:
    node.show(a_pod("a", limits={"cpu": "1"}))
    node.ended.observe(a_pod("a", limits={"cpu": "1"}), True)
    await asyncio.sleep(HOUR_S)
    assert (node.looks, node.said) == ([], [{}])


@pytest.mark.parametrize("with_claims", [True, False])
async def test_pods_with_claims_are_looked_for_where_the_node_serves_claims(node: Node, with_claims: bool) -> None:
    if not with_claims:
        node.ended._prepared = None
    pod = claiming("a", "any")
    node.show(pod)
    node.ended.observe(pod, True)
    await asyncio.sleep(HOUR_S)
    assert node.said[-1] == ({"uid-a": False} if with_claims else {})


async def test_a_pod_whose_claim_the_kubelet_keeps_may_start_until_it_gives_the_claim_back(node: Node) -> None:
    """As while its container runtime stands still: there is no process of the pod yet."""
    pod = claiming("a", "any", phase="Pending")
    node.prepared = {("default", "any"), ("default", "other")}
    node.show(pod)
    node.ended.observe(pod, True)
    await asyncio.sleep(60.0)
    assert (node.said[-1], node.ended.may_run()) == ({}, frozenset({"uid-a"}))
    node.prepared = {("default", "other"), ("team", "any")}
    await asyncio.sleep(LONGEST_INTERVAL_S)
    assert (node.said[-1], node.ended.may_run()) == ({"uid-a": False}, frozenset())


async def test_a_pod_whose_claim_was_kept_may_have_started_meanwhile(node: Node) -> None:
    pod = claiming("a", "any", phase="Pending")
    node.prepared = {("default", "any")}
    node.show(pod)
    node.ended.observe(pod, True)
    await asyncio.sleep(60.0)
    node.left = {"uid-a"}
    await asyncio.sleep(LONGEST_INTERVAL_S)
    assert node.said[-1] == {"uid-a": True}


async def test_a_claim_that_another_pod_uses_says_nothing_of_one_that_has_ended(node: Node) -> None:
    """The kubelet keeps it for that one; what is left of the last one is asked when that has ended."""
    first, second = claiming("a", "any"), claiming("b", "any")
    node.prepared = {("default", "any")}
    node.show(first, second)
    node.ended.observe(first, True)
    await asyncio.sleep(LOOK_INTERVAL_S)
    assert node.said[-1] == {"uid-a": False}
    node.ended.observe(second, True)
    await asyncio.sleep(60.0)
    assert node.said[-1] == {"uid-a": False}


async def test_a_claim_that_is_never_given_back_keeps_a_pods_share_for_minutes_only(node: Node) -> None:
    node.prepared = {("default", "any")}
    node.show(claiming("a", "any"))
    node.ended.observe(claiming("a", "any"), True)
    await asyncio.sleep(KEPT_AT_MOST_S - 1.0)
    assert node.said[-1] == {}
    assert len(node.looks) < KEPT_AT_MOST_S / LONGEST_INTERVAL_S + 10
    await asyncio.sleep(LONGEST_INTERVAL_S + 1.0)
    assert node.said[-1] == {"uid-a": False}


@pytest.mark.parametrize("pod", [a_pod("a", "Running", RUNS), a_pod("a", "Pending"), GIVEN_UP])
async def test_a_pod_that_is_gone_while_it_may_run_is_looked_for_at_once_and_nothing_of_it_is_left(
    node: Node, pod: Json
) -> None:
    node.show(pod)
    node.ended.observe(pod, True)
    await asyncio.sleep(0.1)
    assert node.said[-1] == {"uid-a": False}
    await asyncio.sleep(HOUR_S)
    assert len(node.looks) == 1


async def test_a_pod_that_the_collector_calls_failed_is_looked_for_before_it_is_gone(node: Node) -> None:
    node.left = {"uid-a"}
    node.show(a_pod("a"))
    node.ended.observe(GIVEN_UP, False)
    await asyncio.sleep(HOUR_S)
    assert node.said == [{}, {"uid-a": True}]


async def test_what_is_killed_within_seconds_is_spoken_of_once(node: Node) -> None:
    node.left = {"uid-a"}
    node.show(a_pod("a"))
    node.ended.observe(a_pod("a"), True)
    await asyncio.sleep(RUNS_AFTER_S / 2)
    node.left = set()
    await asyncio.sleep(HOUR_S)
    assert node.said == [{}, {"uid-a": False}]


async def test_what_goes_on_running_is_spoken_of_when_it_does_and_when_it_has_ended(node: Node) -> None:
    node.left = {"uid-a"}
    node.show(a_pod("a"))
    node.ended.observe(a_pod("a"), True)
    await asyncio.sleep(RUNS_AFTER_S + LONGEST_INTERVAL_S)
    assert node.said == [{}, {"uid-a": True}]
    await asyncio.sleep(HOUR_S)
    assert len(node.looks) < HOUR_S / LONGEST_INTERVAL_S + 20
    node.left = set()
    await asyncio.sleep(LONGEST_INTERVAL_S + 1)
    assert node.said[2:] == [{"uid-a": False}]


async def test_a_pod_that_is_not_in_a_list_any_more_is_looked_for(node: Node) -> None:
    node.show(a_pod("a"), a_pod("b"))
    node.show(a_pod("b"))
    await asyncio.sleep(1)
    assert node.said[-1] == {"uid-a": False}


async def test_containers_are_known_by_the_ids_of_all_that_was_shown(node: Node) -> None:
    node.show(a_pod("a", "Running", RUNS, RUNS))
    node.ended.observe(a_pod("a", "Running", RUNS), True)
    await asyncio.sleep(1)
    assert node.looks == [{"uid-a": frozenset({"a0", "a1"})}]


async def test_where_pods_have_no_groups_it_is_never_said_that_nothing_is_left(node: Node) -> None:
    """A container that was started a moment before the pod's deletion is in no status: the init container alone is."""
    node.sees_pods = False
    node.show(a_pod("a", "Pending", ENDED), a_pod("b", "Running", RUNS))
    for pod in (a_pod("a", "Pending", ENDED), a_pod("b", "Running", RUNS)):
        node.ended.observe(pod, True)
    node.left = {"uid-b"}
    await asyncio.sleep(HOUR_S)
    node.left = set()
    await asyncio.sleep(HOUR_S)
    assert node.said == [{}, {"uid-b": True}, {}]


async def test_that_pods_have_groups_is_known_from_any_look_before(node: Node) -> None:
    """The last pod's processes may have ended in between, and an agent outside a pod then sees no group at all."""
    node.left = {"uid-a"}
    node.show(a_pod("a"))
    node.ended.observe(a_pod("a"), True)
    await asyncio.sleep(RUNS_AFTER_S / 2)
    node.left, node.sees_pods = set(), False
    await asyncio.sleep(HOUR_S)
    assert node.said == [{}, {"uid-a": False}]


async def test_pods_that_end_together_are_spoken_of_together(node: Node) -> None:
    pods = [a_pod(f"p{number}") for number in range(30)]
    node.show(*pods)
    for pod in pods:
        node.ended.observe(pod, True)
    await asyncio.sleep(1)
    assert node.said == [{f"uid-p{number}": False for number in range(30)}]


async def test_it_speaks_only_when_all_pods_were_shown_and_looked_for(node: Node) -> None:
    node.ended.observe(a_pod("a"), True)
    await asyncio.sleep(1)
    assert not node.ended.complete.is_set()
    node.show()
    assert not node.ended.complete.is_set()
    await asyncio.sleep(1)
    assert node.ended.complete.is_set()


async def test_a_restarted_agent_knows_what_was_said_and_looks_for_those_that_have_gone_meanwhile(node: Node) -> None:
    before = a_node_object("node-a")
    before["metadata"]["annotations"][ENDS_ANNOTATION] = ends_annotation({"uid-hangs": True, "uid-over": False})
    node.ended.remember(before, ["uid-gone", "uid-a"])
    node.left = {"uid-hangs"}
    node.show(a_pod("a"))
    await asyncio.sleep(RUNS_AFTER_S + LONGEST_INTERVAL_S)
    assert node.said[-1] == {"uid-hangs": True, "uid-over": False, "uid-gone": False}
    assert node.ended.complete.is_set()
    assert {uid for look in node.looks for uid in look} == {"uid-hangs", "uid-gone"}


async def test_a_restarted_agent_knows_containers_of_what_runs_and_says_nothing_of_pods_it_cannot_know(
    node: Node,
) -> None:
    """Where pods have no control groups of their own."""
    node.sees_pods, node.left = False, {"uid-a"}
    node.show(a_pod("a", "Running", RUNS))
    node.ended.observe(a_pod("a", "Running", RUNS), True)
    await asyncio.sleep(RUNS_AFTER_S + 2)
    restarted = Node()
    restarted.sees_pods, restarted.left = False, {"uid-a"}
    before = a_node_object("node-a")
    before["metadata"]["annotations"][ENDS_ANNOTATION] = node.text
    restarted.ended.remember(before, ["uid-a", "uid-gone"])
    task = asyncio.create_task(restarted.ended.run())
    restarted.show()
    await asyncio.sleep(HOUR_S)
    assert restarted.said == [{"uid-a": True}]
    restarted.left = set()
    await asyncio.sleep(LONGEST_INTERVAL_S + 1)
    assert restarted.said[-1] == {}
    task.cancel()


async def test_what_it_said_before_it_was_restarted_is_left_out_if_it_cannot_be_read(node: Node) -> None:
    before = a_node_object("node-a")
    before["metadata"]["annotations"][ENDS_ANNOTATION] = "{"
    node.ended.remember(before, [])
    node.show()
    await asyncio.sleep(1)
    assert node.said == [{}]


async def test_only_the_latest_ends_are_named_and_all_that_goes_on(node: Node) -> None:
    node.left = {"uid-p0"}
    pods = [a_pod(f"p{number}") for number in range(2 * MAX_NAMED)]
    node.show(*pods)
    for pod in pods:
        node.ended.observe(pod, True)
        await asyncio.sleep(1)
    assert len(node.said[-1]) == MAX_NAMED
    assert node.said[-1]["uid-p0"]
    assert f"uid-p{2 * MAX_NAMED - 1}" in node.said[-1]


async def test_a_pod_is_spoken_of_once_however_often_it_is_shown_to_be_gone(node: Node) -> None:
    node.show(a_pod("a"))
    for _ in range(5):
        node.ended.observe(a_pod("a"), True)
        await asyncio.sleep(1)
    assert len(node.looks) == 1


async def test_nothing_is_said_of_pods_while_processes_cannot_be_seen(node: Node) -> None:
    """That nothing of a pod is left would free its cards."""
    node.show(a_pod("a", "Running", RUNS))
    node.error = OSError(24, "Too many open files")
    node.left = {"uid-a"}
    node.ended.observe(a_pod("a", "Running", RUNS), True)
    await asyncio.sleep(HOUR_S)
    assert (node.said, node.ended.complete.is_set()) == ([], False)
    node.error = None
    await asyncio.sleep(HOUR_S)
    assert node.said[-1] == {"uid-a": True}
