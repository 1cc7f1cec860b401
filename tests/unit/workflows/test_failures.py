"""Who leaves a card that has failed, when, how often, and where nobody is evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from builders import a_share, cards_of
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import EPOCH
from gpuledger.formats.annotations import ON_FAILURE_ANNOTATION
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.card import Card
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import ApiError, Unreachable
from gpuledger.model.failure import Failure, FaultClass
from gpuledger.model.json_object import Json
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, Pod
from gpuledger.workflows.leadership import Leadership

NODES = [f"node-{number}" for number in range(12)]
CARDS = {name: cards_of(name, 8) for name in NODES}
FIRST = CARDS["node-0"][0]
BEGAN_S = 1_000.0
"""When tests begin, by the clock of the loop."""


def since(after_s: float = 0.0) -> str:
    return rfc3339(EPOCH + timedelta(seconds=BEGAN_S + after_s))


def failed(card: Card, fault_class: FaultClass = FaultClass.LOST, after_s: float = 0.0) -> Card:
    return replace(card, healthy=False, fault="Xid 79", failure=Failure(fault_class, since(after_s)))


@pytest.fixture
def api() -> ApiServer:
    """Return an API server with twelve nodes of eight cards; each pod `a` to `c` has a share of the very first."""
    api = ApiServer()
    for name in NODES:
        for card in CARDS[name]:
            api.put_card(card)
        api.put_node(a_node_object(name, CARDS[name]))
    for name in ("a", "b", "c"):
        api.put_pod(a_running_pod(name))
    api.put_card(FIRST, *(holder(api, name) for name in ("a", "b", "c")))
    return api


def a_running_pod(name: str, node_name: str = "node-0", **annotations: str) -> Json:
    """Return a pod of a ReplicaSet; the annotations are about failures."""
    pod = a_pod_object(name, node_name=node_name, phase="Running", started=True)
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
    pod["metadata"]["annotations"] = annotations
    return pod


def holder(api: ApiServer, name: str, card: Card = FIRST) -> Holder:
    return Holder(pod_identity(api.pods["default", name]), a_share(card), attempt="first")


def an_operator(api: ApiServer, leadership: Leadership | None = None, **more: object) -> OperatorParts:
    """Return an operator that has just become active and read everything."""
    parts = OperatorParts(api, leadership=leadership or Leadership(None), more=more)
    parts.read_cards()
    for node in api.nodes.values():
        parts.observer.node(node, gone=False)
    parts.watch()
    parts.observer.synced = True
    parts.workflows.failures.became_active()
    return parts


async def report(api: ApiServer, parts: OperatorParts, *cards: Card) -> None:
    """Let nodes report these cards in place of what they were."""
    for card in cards:
        own = CARDS[card.node_name]
        new = {each.uuid: each for each in cards}
        api.put_node(a_node_object(card.node_name, [new.get(each.uuid, each) for each in own]))
    await pass_time(parts, 0.1)


async def pass_time(parts: OperatorParts, seconds: float) -> None:
    """Let time pass, and the watches show all the while what happens."""
    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        await parts.idle()
        await asyncio.sleep(min(1.0, max(0.01, until_s - asyncio.get_running_loop().time())))
    await parts.idle()


def evicted(api: ApiServer) -> list[str]:
    """Return the names of the pods that were evicted, in order; those of dry runs left out."""
    bodies = [request.body for request in api.called(Operation.EVICT)]
    return [body["metadata"]["name"] for body in bodies if not body["deleteOptions"].get("dryRun")]


def reasons(parts: OperatorParts, uid: str) -> list[str]:
    return [f"{reason}: {text}" for told, _, reason, text in parts.told_pods if told == uid and "Evict" in reason]


async def test_the_pods_of_a_lost_card_leave_soon_each_once(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 9.0)
    assert evicted(api) == []
    await pass_time(parts, 300.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]
    (said,) = reasons(parts, "uid-a")
    assert said == f"GPUFailureEviction: evicted: card {FIRST.uuid} (index 0 of node node-0) has failed"
    assert parts.counts.failure_evictions._value.get() == 3


async def test_the_pods_of_a_card_that_needs_a_reset_leave_after_the_grace(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST, FaultClass.RESET))
    await pass_time(parts, 58.0)
    assert evicted(api) == []
    await pass_time(parts, 3.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


@pytest.mark.parametrize("fault_class", [FaultClass.CONTAINED, FaultClass.OTHER])
async def test_pods_stay_where_others_run_on(api: ApiServer, fault_class: FaultClass) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST, fault_class))
    await pass_time(parts, 4_000.0)
    assert evicted(api) == []


async def test_pods_stay_on_a_card_whose_node_says_no_class(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, replace(failed(FIRST), failure=None))
    await pass_time(parts, 4_000.0)
    assert evicted(api) == []


async def test_an_administrator_says_for_which_classes_pods_leave(api: ApiServer) -> None:
    parts = an_operator(api, leave_failed_cards=["contained"])
    await report(api, parts, failed(FIRST, FaultClass.CONTAINED), failed(CARDS["node-1"][0]))
    await pass_time(parts, 61.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


async def test_a_card_that_works_again_within_the_grace_keeps_its_pods(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST, FaultClass.RESET))
    await pass_time(parts, 50.0)
    await report(api, parts, FIRST)
    await pass_time(parts, 100.0)
    assert evicted(api) == []


async def test_another_operator_counts_from_when_the_card_failed_and_asks_nobody_twice(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST, FaultClass.RESET))
    await pass_time(parts, 50.0)
    await parts.workflows.stop()
    successor = an_operator(api)
    await pass_time(successor, 12.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]
    third = an_operator(api)
    await pass_time(third, 100.0)
    assert len(evicted(api)) == 3


@pytest.mark.parametrize("word", ["stay", "30m", "leave"])
async def test_a_pod_says_how_long_it_stays_up_to_the_administrators_limit(api: ApiServer, word: str) -> None:
    api.put_pod(a_running_pod("a", **{ON_FAILURE_ANNOTATION: word}))
    parts = an_operator(api, failure_longest_s=600)
    await report(api, parts, failed(FIRST, FaultClass.RESET))
    await pass_time(parts, 5.0)
    assert evicted(api) == (["a"] if word == "leave" else [])
    await pass_time(parts, 590.0)
    assert ("a" in evicted(api)) is (word == "leave")
    await pass_time(parts, 10.0)
    assert "a" in evicted(api)


async def test_a_pods_word_that_can_not_be_read_counts_as_none(api: ApiServer) -> None:
    api.put_pod(a_running_pod("a", **{ON_FAILURE_ANNOTATION: "never ever"}))
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 15.0)
    assert "a" in evicted(api)


async def test_a_pod_that_nobody_would_make_anew_stays_unless_it_asks_to_leave(api: ApiServer) -> None:
    for name, words in (("a", {}), ("b", {ON_FAILURE_ANNOTATION: "leave"})):
        pod = a_running_pod(name, **words)
        del pod["metadata"]["ownerReferences"]
        api.put_pod(pod)
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 100.0)
    assert sorted(evicted(api)) == ["b", "c"]
    (said,) = reasons(parts, "uid-a")
    assert "no controller would make it anew" in said


def protect(api: ApiServer, name: str, allowed: int) -> None:
    pod = api.pods["default", name]
    pod["metadata"]["labels"] = {"app": name}
    api.put_pod(pod)
    metadata, spec = {"namespace": "default", "name": f"of-{name}"}, {"selector": {"matchLabels": {"app": name}}}
    api.budgets.append({"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}})


async def test_a_budget_is_kept_and_the_pod_leaves_when_it_allows_that(api: ApiServer) -> None:
    protect(api, "a", allowed=0)
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 60.0)
    assert {"b", "c"} <= set(evicted(api))
    assert not api.pods["default", "a"]["metadata"].get("deletionTimestamp")
    (said,) = reasons(parts, "uid-a")
    assert "a PodDisruptionBudget forbids that now" in said
    api.budgets[0]["status"]["disruptionsAllowed"] = 1
    await pass_time(parts, 20.0)
    assert api.pods["default", "a"]["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize(("fault_class", "leaves"), [(FaultClass.LOST, True), (FaultClass.RESET, False)])
async def test_by_setting_the_dead_programs_of_a_lost_card_leave_despite_budgets(
    api: ApiServer, fault_class: FaultClass, leaves: bool
) -> None:
    protect(api, "a", allowed=0)
    parts = an_operator(api, failure_despite_budgets=True)
    await report(api, parts, failed(FIRST, fault_class))
    await pass_time(parts, 100.0)
    assert bool(api.pods["default", "a"]["metadata"].get("deletionTimestamp")) is leaves


async def hold(api: ApiServer, parts: OperatorParts, cards: Sequence[Card]) -> None:
    """Let each card have a pod of its own, named after it."""
    for card in cards:
        name = card.uuid.lower()
        api.put_pod(a_running_pod(name, node_name=card.node_name))
        api.put_card(card, holder(api, name, card))
    await pass_time(parts, 0.1)


async def test_where_cards_of_two_nodes_fail_together_nobody_leaves_until_a_person_has_ended_that(
    api: ApiServer,
) -> None:
    parts = an_operator(api)
    other = CARDS["node-1"][0]
    await hold(api, parts, [other])
    await report(api, parts, failed(FIRST), failed(other, after_s=299.0))
    await pass_time(parts, 1_000.0)
    assert evicted(api) == []
    assert parts.workflows.failures.held.keys() == {FIRST.uuid, other.uuid}
    assert "cards of more than one node have failed within 5 minutes" in reasons(parts, "uid-a")[0]
    await report(api, parts, other)
    await pass_time(parts, 60.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]
    assert parts.workflows.failures.held == {}


async def test_cards_that_fail_on_two_nodes_at_other_times_are_no_storm(api: ApiServer) -> None:
    parts = an_operator(api)
    other = CARDS["node-1"][0]
    await hold(api, parts, [other])
    await report(api, parts, failed(FIRST), failed(other, after_s=301.0))
    await pass_time(parts, 400.0)
    assert sorted(evicted(api)) == ["a", "b", "c", other.uuid.lower()]


@pytest.mark.parametrize(("failing", "stay"), [(8, False), (10, True)])
async def test_more_than_a_part_of_all_cards_at_once_is_a_storm(api: ApiServer, failing: int, stay: bool) -> None:
    """Of 96 cards; by setting, nodes are not counted."""
    parts = an_operator(api, failure_most_nodes=100)
    cards = [*CARDS["node-0"], *CARDS["node-1"]][:failing]
    await report(api, parts, *map(failed, cards))
    await pass_time(parts, 100.0)
    assert (evicted(api) == []) is stay


async def test_one_card_is_never_a_storm_however_few_there_are(api: ApiServer) -> None:
    for name in NODES[1:]:
        del api.nodes[name]
        for card in CARDS[name]:
            del api.cards[card.object_name]
    for card in CARDS["node-0"][1:]:
        del api.cards[card.object_name]
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 20.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


async def test_no_pod_leaves_by_the_word_of_an_agent_that_is_not_there(api: ApiServer) -> None:
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    api.put_node(a_node_object("node-0", [failed(FIRST), *CARDS["node-0"][1:]], slots=0))
    await pass_time(parts, 200.0)
    assert evicted(api) == []
    api.put_node(a_node_object("node-0", [failed(FIRST), *CARDS["node-0"][1:]]))
    await pass_time(parts, 20.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


async def test_the_node_is_read_again_before_a_pod_is_evicted(api: ApiServer) -> None:
    """What the watch has shown last may be old."""
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    api.nodes["node-0"] = a_node_object("node-0", CARDS["node-0"])  # and no watch shows it
    await pass_time(parts, 60.0)
    assert evicted(api) == []


async def test_a_lost_card_that_the_node_no_longer_lists_is_as_it_was(api: ApiServer) -> None:
    """An agent that is restarted can't list a card that its driver does not list."""
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    api.put_node(a_node_object("node-0", CARDS["node-0"][1:]))
    await pass_time(parts, 20.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


async def test_a_pod_whose_eviction_fails_again_and_again_keeps_no_other_one_on_the_card(api: ApiServer) -> None:
    """As one with two budgets, of which the API server makes an error."""
    parts = an_operator(api)
    real = parts.workflows.context.store.evict_pod

    async def evict_pod(pod: Pod, dry_run: bool = False) -> None:
        if pod.name == "a":
            raise ApiError("This pod has more than one PodDisruptionBudget", 500)
        await real(pod, dry_run)

    parts.workflows.context.store.evict_pod = evict_pod  # type: ignore[method-assign]
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 60.0)
    assert sorted(evicted(api)) == ["b", "c"]
    (said,) = reasons(parts, "uid-a")
    assert "that failed, and is tried again: This pod has more than one PodDisruptionBudget" in said


async def test_a_request_that_fails_is_made_again(api: ApiServer) -> None:
    parts = an_operator(api)
    api.queue(Operation.EVICT, refuse(Unreachable("no", 503)))
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 30.0)
    assert sorted(set(evicted(api))) == ["a", "b", "c"]
    assert all(api.pods["default", name]["metadata"].get("deletionTimestamp") for name in ("a", "b", "c"))


async def test_an_operator_that_is_not_the_active_one_evicts_nobody(api: ApiServer) -> None:
    parts = an_operator(api, Leadership("host"))
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 100.0)
    assert evicted(api) == []


async def a_gang(api: ApiServer, minimum: int) -> OperatorParts:
    """Return an operator over a gang of three: `a` on the card that fails, `b` and `c` elsewhere."""
    for name, card in (("a", FIRST), ("b", CARDS["node-1"][0]), ("c", CARDS["node-2"][0])):
        pod = a_running_pod(name, node_name=card.node_name)
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": str(minimum)}
        api.put_pod(pod)
        api.put_card(card, holder(api, name, card))
    parts = an_operator(api)
    await parts.observer.take_over()
    return parts


async def test_a_gang_leaves_as_a_whole(api: ApiServer) -> None:
    parts = await a_gang(api, minimum=3)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 60.0)
    assert evicted(api)[0] == "a"
    assert sorted(evicted(api)) == ["a", "b", "c"]
    assert "which others of its gang hold" in reasons(parts, "uid-b")[0]


async def test_of_a_gang_with_members_to_spare_only_the_one_on_the_card_leaves(api: ApiServer) -> None:
    parts = await a_gang(api, minimum=2)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 60.0)
    assert evicted(api) == ["a"]


async def test_no_member_of_a_gang_leaves_while_a_budget_forbids_it_to_another_one(api: ApiServer) -> None:
    parts = await a_gang(api, minimum=3)
    api.budgets.append(
        {
            "metadata": {"namespace": "default", "name": "budget"},
            "spec": {"selector": {"matchLabels": {"gpuledger.dev/gang": "train"}}},
            "status": {"disruptionsAllowed": 0},
        }
    )
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 60.0)
    assert evicted(api) == []
    assert "a PodDisruptionBudget of its gang forbids that now" in reasons(parts, "uid-a")[0]
    api.budgets[0]["status"]["disruptionsAllowed"] = 3
    await pass_time(parts, 20.0)
    assert sorted(evicted(api)) == ["a", "b", "c"]


async def test_the_rest_of_a_gang_follows_where_the_budget_did_not_last_for_all(api: ApiServer) -> None:
    """A dry run asks for each member by itself."""
    parts = await a_gang(api, minimum=3)
    api.budgets.append(
        {
            "metadata": {"namespace": "default", "name": "budget"},
            "spec": {"selector": {"matchLabels": {"gpuledger.dev/gang": "train"}}},
            "status": {"disruptionsAllowed": 1},
        }
    )
    await report(api, parts, failed(FIRST))
    await pass_time(parts, 12.0)
    assert api.pods["default", "a"]["metadata"]["deletionTimestamp"]
    assert not api.pods["default", "b"]["metadata"].get("deletionTimestamp")
    api.delete_pod("a")
    api.put_card(failed(FIRST))
    api.budgets[0]["status"]["disruptionsAllowed"] = 2
    await pass_time(parts, 40.0)
    assert all(api.pods["default", name]["metadata"].get("deletionTimestamp") for name in ("b", "c"))


KEY = "gpuledger.dev/unhealthy"


@pytest.mark.parametrize(
    ("toleration", "stays_s"),
    [
        ({"key": KEY, "operator": "Exists"}, 3_600),
        (
            {"key": "gpuledger.dev/unhealthy", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            300,
        ),
        ({"key": KEY, "operator": "Equal", "value": "lost", "tolerationSeconds": 300}, 300),
        ({"key": KEY, "operator": "Equal", "value": "reset", "tolerationSeconds": 300}, 10),
        ({"key": KEY, "operator": "Exists", "effect": "NoSchedule"}, 10),
        ({"key": "gpuledger.dev/only", "operator": "Exists"}, 10),
    ],
)
async def test_a_pod_of_claims_stays_as_long_as_they_tolerate(api: ApiServer, toleration: Json, stays_s: float) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.gpuledger.dev", "tolerations": [toleration]}}
    metadata = {"name": "a-gpu", "namespace": "default", "uid": "claim-a"}
    api.claims["default", "a-gpu"] = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": {}}
    part = ContainerShare("gpu/gpu", 1_000, 0, ClaimRef("a-gpu", "claim-a"))
    share = replace(a_share(FIRST), containers=(part,))
    api.put_card(FIRST, Holder(pod_identity(api.pods["default", "a"]), share, attempt="first"))
    parts = an_operator(api)
    await report(api, parts, failed(FIRST))
    await pass_time(parts, stays_s - 3.0)
    assert evicted(api) == []
    await pass_time(parts, 6.0)
    assert evicted(api) == ["a"]
