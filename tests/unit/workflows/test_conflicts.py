"""Who leaves a card that lists a share that does not fit, where the youngest are to leave; and that others stay."""

from __future__ import annotations

import asyncio
import copy

import pytest

from builders import a_card, a_share
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.card import Amounts
from gpuledger.model.errors import ApiError, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, HolderState, Misfit, Pod
from gpuledger.workflows.leadership import Leadership

CARD = a_card(memory_mib=20_000)
MINUTES = {"a": 1, "b": 2, "c": 3}
"""When these were bound: the others' time is given where they are made."""


def a_running_pod(name: str, minute: int, **labels: str) -> Json:
    """Return a pod of a ReplicaSet that was bound in a minute."""
    pod = a_pod_object(name, node_name=CARD.node_name, phase="Running", started=True)
    bound_at = f"2030-01-01T00:{minute:02}:00Z"
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound_at}]
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
    pod["metadata"]["labels"] = labels
    return pod


@pytest.fixture
def api() -> ApiServer:
    """Return an API server with a card for two shares; `a` and `b` have them, and `c` uses it, too."""
    api = ApiServer()
    api.put_node(a_node_object(CARD.node_name, [CARD]))
    for name, minute in MINUTES.items():
        api.put_pod(a_running_pod(name, minute))
    api.put_card(CARD, *(holder(api, name) for name in ("a", "b")))
    return api


def holder(api: ApiServer, name: str, state: HolderState = HolderState.ALLOCATED, deadline: str = "") -> Holder:
    return Holder(pod_identity(api.pods["default", name]), a_share(CARD, 10_000), state, deadline, attempt="first")


def an_operator(api: ApiServer, leadership: Leadership | None = None, policy: str = "youngest-leaves") -> OperatorParts:
    """Return an operator that has just become active and read everything."""
    more = {"conflict_policy": policy}
    parts = OperatorParts(api, leadership=leadership or Leadership(None), more=more)
    parts.read_cards()
    for node in api.nodes.values():
        parts.observer.node(node, gone=False)
    parts.watch()
    parts.observer.synced = True
    for follower in parts.observer.followers:
        follower.became_active()
    return parts


async def found(api: ApiServer, parts: OperatorParts, name: str = "c", memory_mib: int = 10_000) -> None:
    """Let the operator find that a pod uses the card, which has no room for it."""
    pod = pod_identity(api.pods["default", name])
    await parts.journal.show_conflict(CARD.uuid, Misfit(pod, Amounts(memory_mib, 0, 1), "the card has too little"))
    await pass_time(parts, 0.1)


async def pass_time(parts: OperatorParts, seconds: float) -> None:
    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        await parts.idle()
        await asyncio.sleep(min(1.0, max(0.01, until_s - asyncio.get_running_loop().time())))
    await parts.idle()


def evicted(api: ApiServer) -> list[str]:
    return sorted(name for (_, name), pod in api.pods.items() if pod["metadata"].get("deletionTimestamp"))


async def test_the_pod_that_was_bound_last_leaves_after_a_while(api: ApiServer) -> None:
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 9.0)
    assert evicted(api) == []
    await pass_time(parts, 60.0)
    assert evicted(api) == ["c"]
    ((_, is_warning, reason, said),) = [told for told in parts.told_pods if told[0] == "uid-c"]
    assert (is_warning, reason) == (True, "GPUConflictEviction")
    assert said == (
        f"evicted: card {CARD.uuid} (index 0 of node node-a) has no room for all pods that use it,"
        " and others were bound before"
    )
    assert len(api.called(Operation.EVICT)) == 1
    assert parts.counts.conflict_evictions._value.get() == 1


async def test_a_holder_leaves_for_a_pod_that_was_bound_before_it(api: ApiServer) -> None:
    api.put_pod(a_running_pod("c", 0))
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 60.0)
    assert evicted(api) == ["b"]


async def test_a_small_pod_that_came_last_stays_if_there_is_room_beside_the_older_ones(api: ApiServer) -> None:
    api.put_pod(a_running_pod("small", 4))
    small = Holder(pod_identity(api.pods["default", "small"]), a_share(CARD, 1_000), attempt="first")
    api.put_card(CARD, holder(api, "a"), small)
    parts = an_operator(api)
    await found(api, parts, memory_mib=15_000)
    await pass_time(parts, 60.0)
    assert evicted(api) == ["c"]


async def test_nobody_leaves_unless_the_administrator_wants_that(api: ApiServer) -> None:
    parts = an_operator(api, policy="report")
    await found(api, parts)
    await pass_time(parts, 300.0)
    assert evicted(api) == []
    assert parts.entry(CARD).misfits


async def test_nobody_leaves_while_a_pod_that_makes_room_is_on_its_way_out(api: ApiServer) -> None:
    leaving = copy.deepcopy(api.pods["default", "a"])
    leaving["metadata"] |= {"deletionTimestamp": "2030-01-01T01:00:00Z", "deletionGracePeriodSeconds": 3_600}
    api.put_pod(leaving)
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 100.0)
    assert evicted(api) == ["a"]
    assert api.called(Operation.EVICT) == []


async def test_what_is_kept_for_others_makes_no_running_pod_leave(api: ApiServer) -> None:
    """The share that is listed fits beside the pods that run, and would be entered but for a seat."""
    api.put_pod(a_pod_object("waits"))
    seat = holder(api, "waits", HolderState.RESERVED, deadline="2031-01-01T00:00:00Z")
    api.put_card(CARD, holder(api, "a"), seat)
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 12.0)
    assert evicted(api) == []


async def test_what_a_pod_still_uses_that_is_gone_has_its_room(api: ApiServer) -> None:
    gone = holder(api, "a", HolderState.RELEASING, deadline="2031-01-01T00:00:00Z")
    api.put_card(CARD, gone, holder(api, "b"))
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 12.0)
    assert evicted(api) == ["c"]


async def test_a_pod_that_nobody_would_make_anew_stays_and_is_told(api: ApiServer) -> None:
    pod = a_running_pod("c", 3)
    del pod["metadata"]["ownerReferences"]
    api.put_pod(pod)
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 100.0)
    assert evicted(api) == []
    ((_, _, reason, said),) = [told for told in parts.told_pods if told[0] == "uid-c"]
    assert reason == "GPUConflictEvictionHeld"
    assert said.endswith("the pod is not evicted: no controller would make it anew; delete it")


async def test_a_budget_is_kept_and_the_pod_leaves_when_it_allows_that(api: ApiServer) -> None:
    api.put_pod(a_running_pod("c", 3, app="c"))
    budget = {"spec": {"selector": {"matchLabels": {"app": "c"}}}, "status": {"disruptionsAllowed": 0}}
    api.budgets.append({"metadata": {"namespace": "default", "name": "of-c"}, **budget})
    parts = an_operator(api)
    await found(api, parts)
    await pass_time(parts, 60.0)
    assert evicted(api) == []
    api.budgets[0]["status"]["disruptionsAllowed"] = 1
    await pass_time(parts, 20.0)
    assert evicted(api) == ["c"]


async def test_a_request_that_fails_is_made_again(api: ApiServer) -> None:
    parts = an_operator(api)
    api.queue(Operation.EVICT, refuse(Unreachable("no", 503)))
    await found(api, parts)
    await pass_time(parts, 60.0)
    assert evicted(api) == ["c"]


async def test_another_operator_goes_on_with_what_the_card_lists(api: ApiServer) -> None:
    parts = an_operator(api)
    await found(api, parts)
    await parts.workflows.stop()
    successor = an_operator(api)
    await pass_time(successor, 12.0)
    assert evicted(api) == ["c"]


async def test_an_operator_evicts_nobody_before_it_is_the_active_one(api: ApiServer) -> None:
    await found(api, an_operator(api, policy="report"))
    leadership = Leadership("host")
    parts = an_operator(api, leadership)
    await pass_time(parts, 100.0)
    assert evicted(api) == []
    leadership.observe({"spec": {"holderIdentity": "host_0e6f4c"}}, gone=False)
    for follower in parts.observer.followers:
        follower.became_active()
    await pass_time(parts, 12.0)
    assert evicted(api) == ["c"]


async def test_a_pod_whose_eviction_fails_again_and_again_keeps_no_other_one_on_the_card(api: ApiServer) -> None:
    """As one with two budgets, of which the API server makes an error."""
    api.put_pod(a_running_pod("d", 4))
    parts = an_operator(api)
    real = parts.workflows.context.store.evict_pod

    async def evict_pod(pod: Pod, dry_run: bool = False) -> None:
        if pod.name == "c":
            raise ApiError("This pod has more than one PodDisruptionBudget", 500)
        await real(pod, dry_run)

    parts.workflows.context.store.evict_pod = evict_pod  # type: ignore[method-assign]
    for name in ("c", "d"):
        await found(api, parts, name)
    await pass_time(parts, 60.0)
    assert evicted(api) == ["d"]
    said = [told[3] for told in parts.told_pods if told[0] == "uid-c"]
    assert "that failed, and is tried again: This pod has more than one PodDisruptionBudget" in said[0]


async def test_a_gang_leaves_as_a_whole(api: ApiServer) -> None:
    other = a_card(1)
    gang = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    api.put_node(a_node_object(CARD.node_name, [CARD, other]))
    for name, minute in (("c", 3), ("d", 4)):
        api.put_pod(a_running_pod(name, minute, **gang))
    at = Holder(pod_identity(api.pods["default", "d"]), a_share(other, 10_000), attempt="first")
    elsewhere = Holder(pod_identity(api.pods["default", "c"]), a_share(other, 1_000), attempt="first")
    api.put_card(other, at, elsewhere)
    parts = an_operator(api)
    await parts.observer.take_over()
    await found(api, parts)
    await pass_time(parts, 60.0)
    assert evicted(api) == ["c", "d"]
