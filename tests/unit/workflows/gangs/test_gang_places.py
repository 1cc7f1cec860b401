"""Where members go: to nodes that each can go to, to the place of one that is gone, in the order of all who wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from builders import a_card, a_pod, a_request, cards_of, whole
from fakes.api_server import ApiServer, hold_request, refuse
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.kubernetes.gang import JOB_SET_LABEL
from gpuledger.ledger.book import Zones
from gpuledger.model.errors import BindFailed, Denied, Invalid
from gpuledger.workflows.gangs.plans import COME_S, TRY_PAUSE_S
from gpuledger.workflows.gangs.turns import QUIET_S
from unit.workflows.gangs.test_gangs import (
    BIND,
    CARDS,
    UNBORN,
    WRITE,
    bind_all,
    come,
    come_and_ask,
    held,
    member,
    on_hold,
    woken,
)

Json = dict[str, Any]

REPLACEMENT_S = 30.0


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over two nodes with four cards and two."""
    for card in (*CARDS, *cards_of("node-b", 2)):
        api.put_card(card)
    return an_operator(api)


def node_of(parts: OperatorParts, name: str) -> str:
    hold = parts.ledger.seats.of(f"uid-{name}")
    return hold.placement.node_name if hold else ""


async def test_members_that_can_go_to_different_nodes_are_planned_where_each_can_go(
    api: ApiServer, parts: OperatorParts
) -> None:
    """A gang of four with a selector each: three for node-a, one for node-b."""
    come(api, parts, *(member(name, minimum=4) for name in "abcd"))
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    assert parts.filter("d", "node-b").node_names == ["node-b"]
    assert [parts.filter(name, "node-a").node_names for name in "bc"] == [["node-a"]] * 2
    assert on_hold(parts) == 4


async def test_the_others_are_planned_anew_where_one_can_only_go_to_what_they_have(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(name, minimum=6) for name in "abcdef"))
    assert parts.filter("a", "node-a", "node-b").node_names != []
    on_b = [name for name in "bcdef" if node_of(parts, name) == "node-b"]
    late = next(name for name in "bcdef" if name not in on_b)
    assert parts.filter(late, "node-b").node_names == ["node-b"], "one of the others has to go to node-a"
    assert on_hold(parts) == 6


async def test_a_member_that_comes_back_without_a_bind_gets_another_node_if_one_fits(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(name, minimum=2) for name in "ab"))
    (first,) = parts.filter("a", "node-a", "node-b").node_names
    (second,) = parts.filter("a", "node-a", "node-b").node_names
    assert {first, second} == {"node-a", "node-b"}


async def test_a_card_that_fails_while_the_others_are_entered_lets_none_be_bound(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    gate = asyncio.Event()
    api.queue(WRITE, None, None, hold_request(gate))
    binding = asyncio.create_task(bind_all(parts, "abc"))
    await settle()
    hold = parts.ledger.seats.of("uid-a")
    assert hold is not None
    parts.ledger.set_reported(hold.placement.shares[0].uuid, reported=True, sick=True)
    gate.set()
    found = await binding
    assert all(isinstance(error, BindFailed) for error in found)
    assert api.called(BIND) == []
    await parts.idle()
    assert held(api) == {}


async def test_what_refuses_a_share_again_and_again_costs_one_try_and_then_longer_and_longer_pauses(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"))
    tries = []
    for step in range(300):
        asked = [parts.filter(name, "node-a").node_names for name in "abc"]
        if all(asked):
            api.queue(WRITE, *[refuse(Denied("a policy refuses", 403))] * 3)
            tries.append(step / 10)
            await bind_all(parts, "abc")
            await parts.idle()
        await asyncio.sleep(0.1)
    gaps = [round(later - earlier) for earlier, later in pairwise(tries)]
    assert gaps[:4] == [1, 2, 4, 8]


async def bound_gang(api: ApiServer, parts: OperatorParts, minimum: int = 3) -> None:
    """Have a gang of three run, and other pods on all other cards of its node."""
    come_and_ask(api, parts)
    assert await bind_all(parts, "abc") == [None] * 3
    parts.watch()
    come(api, parts, a_pod_object("other", {GPU: "1"}))
    parts.filter("other", "node-a")
    await parts.bind("other", "node-a")
    parts.watch()


async def fails(api: ApiServer, parts: OperatorParts, name: str) -> None:
    """Have a member fail, as its kubelet reports it."""
    pod = api.pods["default", name]
    api.put_pod({**pod, "status": {**(pod.get("status") or {}), "phase": "Failed"}})
    await parts.idle()


async def test_the_place_of_a_member_that_has_failed_is_kept_for_the_one_that_replaces_it(
    api: ApiServer, parts: OperatorParts
) -> None:
    await bound_gang(api, parts)
    card = next(card for card in CARDS if "uid-b" in api.holders_of(card))
    come(api, parts, a_pod_object("waits", {GPU: "1"}))
    assert parts.filter("waits", "node-a").node_names == []
    await fails(api, parts, "b")
    assert "uid-b" not in api.holders_of(card)
    parts.waiting.give_room()
    assert parts.filter("waits", "node-a").node_names == [], "its place is the gang's"
    come(api, parts, member("d"))
    assert parts.filter("d", "node-a", "node-b").node_names == ["node-a"]
    await parts.bind("d", "node-a")
    assert "uid-d" in api.holders_of(card)


async def test_a_place_that_nobody_comes_to_is_given_to_others_after_a_while(
    api: ApiServer, parts: OperatorParts
) -> None:
    await bound_gang(api, parts)
    await fails(api, parts, "b")
    assert on_hold(parts) == 1
    await asyncio.sleep(REPLACEMENT_S)
    parts.placer.expire_holds()
    assert on_hold(parts) == 0


async def test_nothing_is_kept_of_a_gang_that_ends_or_is_deleted_as_a_whole(
    api: ApiServer, parts: OperatorParts
) -> None:
    await bound_gang(api, parts)
    for name in "abc":
        pod = api.pods["default", name]
        leaves = (parts.clock.wall() + timedelta(seconds=30)).isoformat()
        api.put_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": leaves}})
    parts.watch()
    await fails(api, parts, "a")
    assert on_hold(parts) == 0
    for name in "bc":
        await fails(api, parts, name)
    assert on_hold(parts) == 0


def leave(api: ApiServer, parts: OperatorParts, *names: str) -> None:
    """Have pods be deleted, which takes them a while."""
    for name in names:
        pod = api.pods["default", name]
        leaves = (parts.clock.wall() + timedelta(seconds=30)).isoformat()
        api.put_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": leaves}})
    parts.watch()


async def a_gang_of(api: ApiServer, parts: OperatorParts, **labels: str) -> None:
    """Have a gang of a JobSet's, or a Job's, three pods run on all cards that are free, and a pod wait for one."""
    come(api, parts, *(of_job(labelled(member(name), **labels), "run") for name in "abc"))
    for name in "abc":
        parts.filter(name, "node-a")
    assert await bind_all(parts, "abc") == [None] * 3
    come(api, parts, a_pod_object("other", {GPU: "1"}))
    parts.filter("other", "node-a")
    await parts.bind("other", "node-a")
    come(api, parts, a_pod_object("waits", {GPU: "1"}))
    assert parts.filter("waits", "node-a").node_names == []


async def gone(api: ApiServer, parts: OperatorParts, *names: str) -> None:
    for name in names:
        api.delete_pod(name)
    await parts.idle()


async def test_a_gang_that_is_made_anew_after_a_failure_gets_the_places_that_it_had(
    api: ApiServer, parts: OperatorParts
) -> None:
    """A JobSet whose failure policy is to restart deletes all pods of its Jobs, and makes as many."""
    await a_gang_of(api, parts, **{JOB_SET_LABEL: "run"})
    await fails(api, parts, "a")
    await asyncio.sleep(REPLACEMENT_S - 1)
    leave(api, parts, "b", "c")
    await fails(api, parts, "b")
    await gone(api, parts, "a", "b")
    await asyncio.sleep(REPLACEMENT_S - 1)
    await fails(api, parts, "c")
    await gone(api, parts, "c")
    assert held(api) == {"uid-other": 1}
    parts.waiting.give_room()
    assert parts.filter("waits", "node-a").node_names == [], "what has become free is the gang's"
    come(api, parts, *(member(name, minimum=2) for name in "de"))
    for name in "de":
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    assert await bind_all(parts, "de") == [None] * 2


async def test_of_places_that_no_gang_comes_to_others_have_the_cards(api: ApiServer, parts: OperatorParts) -> None:
    await a_gang_of(api, parts, **{JOB_SET_LABEL: "run"})
    await fails(api, parts, "a")
    leave(api, parts, "b", "c")
    await gone(api, parts, "a", "b", "c")
    assert on_hold(parts) == 3
    await asyncio.sleep(REPLACEMENT_S)
    parts.placer.expire_holds()
    assert parts.filter("waits", "node-a").node_names == ["node-a"]


async def test_of_a_job_by_itself_that_has_failed_nothing_is_kept(api: ApiServer, parts: OperatorParts) -> None:
    await a_gang_of(api, parts)
    await fails(api, parts, "a")
    assert on_hold(parts) == 1, "the Job may make one in its place"
    leave(api, parts, "b", "c")
    assert on_hold(parts) == 0
    await gone(api, parts, "a", "b", "c")
    assert parts.filter("waits", "node-a").node_names == ["node-a"]


async def test_a_failure_of_long_ago_keeps_nothing_of_a_gang_that_is_deleted(
    api: ApiServer, parts: OperatorParts
) -> None:
    await a_gang_of(api, parts, **{JOB_SET_LABEL: "run"})
    await fails(api, parts, "a")
    await asyncio.sleep(REPLACEMENT_S + 1)
    leave(api, parts, "b", "c")
    await gone(api, parts, "a", "b", "c")
    assert on_hold(parts) == 0


async def test_nothing_is_kept_of_a_member_that_has_done_its_work(api: ApiServer, parts: OperatorParts) -> None:
    await bound_gang(api, parts)
    pod = api.pods["default", "b"]
    api.put_pod({**pod, "status": {"phase": "Succeeded"}})
    await parts.idle()
    assert on_hold(parts) == 0


async def test_room_goes_to_an_older_gang_before_a_younger_pod_and_to_an_older_pod_before_a_gang(
    api: ApiServer, parts: OperatorParts
) -> None:
    def created(pod: dict[str, object], second: int) -> dict[str, object]:
        pod["metadata"]["creationTimestamp"] = f"2030-01-01T00:00:{second:02}Z"  # type: ignore[index]
        return pod

    come(api, parts, a_pod_object("full", {GPU: "4"}))
    parts.filter("full", "node-a")
    await parts.bind("full", "node-a")
    come(api, parts, created(a_pod_object("old", {GPU: "2"}), 1))
    come(api, parts, *(created(member(name, minimum=2), 2) for name in "ab"))
    come(api, parts, created(a_pod_object("young", {GPU: "1"}), 3))
    for name in ("young", "a", "b", "old"):
        assert parts.filter(name, "node-a").node_names == []
    await asyncio.sleep(TRY_PAUSE_S)
    api.delete_pod("full")
    parts.watch()
    await asyncio.sleep(100)
    await parts.idle()
    await parts.workflows.queue.give_room()
    await settle()
    assert [name for name in ("old", "a", "b", "young") if node_of(parts, name)] == ["old", "a", "b"]
    assert woken(api, "ab") == ["a", "b"]


async def test_zones_of_nodes_are_read_from_their_labels(api: ApiServer, parts: OperatorParts) -> None:
    parts.ledger.zones = Zones(["rack"])
    for number in range(3):
        api.put_card(a_card(0, f"near-{number}"))
        api.put_node({"metadata": {"name": f"near-{number}", "labels": {"rack": "1"}}})
    parts.read_cards()
    parts.watch()
    assert parts.ledger.zones.nodes_by_zone(0) == {"1": {"near-0", "near-1", "near-2"}}
    api.delete_node("near-1")
    parts.watch()
    assert parts.ledger.zones.nodes_by_zone(0) == {"1": {"near-0", "near-2"}}


def labelled(pod: Json, **labels: str) -> Json:
    pod["metadata"]["labels"] |= labels
    return pod


def of_job(pod: Json, job: str) -> Json:
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}]
    return pod


async def test_a_member_without_gpus_counts_once_it_is_created(api: ApiServer, parts: OperatorParts) -> None:
    """The launcher of a training: kube-scheduler asks nobody about it."""
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    assert parts.filter("a", "node-a").node_names == []
    launcher = member("launcher")
    launcher["spec"]["containers"][0]["resources"] = {}
    come(api, parts, launcher)
    assert parts.filter("a", "node-a").node_names == ["node-a"]
    assert parts.filter("b", "node-a").node_names == ["node-a"]
    assert await bind_all(parts, "ab") == [None] * 2
    api.delete_pod("launcher")
    parts.watch()
    come(api, parts, member("c"))
    assert parts.filter("c", "node-a").node_names == ["node-a"]


async def test_members_that_have_done_their_work_count_for_one_that_replaces_another_of_the_same_job(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(of_job(member(name), "run") for name in "abc"))
    for name in "abc":
        parts.filter(name, "node-a")
    assert await bind_all(parts, "abc") == [None] * 3
    parts.watch()
    pod = api.pods["default", "a"]
    api.put_pod({**pod, "status": {"phase": "Succeeded"}})
    await fails(api, parts, "b")
    come(api, parts, of_job(member("d"), "run"))
    assert parts.filter("d", "node-a").node_names == ["node-a"], "one has ended, one runs, one is replaced"


async def test_members_of_an_earlier_run_that_have_done_their_work_do_not_count(
    api: ApiServer, parts: OperatorParts
) -> None:
    for name in "abc":
        ended = of_job(member(name), "run-1")
        ended["spec"]["nodeName"] = "node-a"
        ended["status"] = {"phase": "Succeeded"}
        come(api, parts, ended)
    come(api, parts, *(of_job(member(name), "run-2") for name in "de"))
    await asyncio.sleep(QUIET_S)
    assert parts.filter("d", "node-a").refused == {"node-a": UNBORN}


async def test_the_place_of_a_member_whose_binding_is_refused_is_kept_for_its_next_try(
    api: ApiServer, parts: OperatorParts
) -> None:
    await _leave_one_behind(api, parts)
    come(api, parts, a_pod_object("thief", {GPU: "2"}))
    assert parts.filter("thief", "node-a").node_names == []
    late = next(name for name in "abc" if f"uid-{name}" not in held(api))
    assert parts.filter(late, "node-a").node_names == ["node-a"]
    await parts.bind(late, "node-a")
    assert held(api) == {f"uid-{name}": 1 for name in "abc"}
    parts.watch()
    assert parts.filter("thief", "node-a").node_names == []
    come(api, parts, a_pod_object("other", {GPU: "1"}))
    assert parts.filter("other", "node-a").node_names == ["node-a"], "nothing is kept beyond that"


async def test_an_operator_that_is_killed_between_the_bindings_leaves_the_others_their_places(
    api: ApiServer, parts: OperatorParts
) -> None:
    come_and_ask(api, parts)
    gate = asyncio.Event()
    api.queue(BIND, None, *[hold_request(gate)] * 2)
    dying = asyncio.create_task(bind_all(parts, "abc"))
    await settle()
    dying.cancel()
    come(api, parts, a_pod_object("waits", {GPU: "2"}))
    after = an_operator(api)
    after.watch()
    for name in "abc":
        after.releaser.recheck(f"uid-{name}")
    after.waiting.refused(a_pod("uid-waits"), a_request(whole(cards=2)), "2030-01-01T00:00:00Z", None)
    await after.idle()
    after.waiting.give_room()
    assert len(held(api)) == 1, "what was entered for the others is taken back"
    assert after.filter("waits", "node-a").node_names == []
    left = [name for name in "abc" if f"uid-{name}" not in held(api)]
    for name in left:
        assert after.filter(name, "node-a").node_names == ["node-a"]
    assert await bind_all(after, left) == [None] * 2
    gate.set()
    await settle()


async def test_that_place_is_free_after_a_while_if_the_member_does_not_come_back(
    api: ApiServer, parts: OperatorParts
) -> None:
    await _leave_one_behind(api, parts)
    await asyncio.sleep(parts.settings.extender_timeout_s + COME_S)
    parts.placer.expire_holds()
    come(api, parts, a_pod_object("other", {GPU: "2"}))
    assert parts.filter("other", "node-a").node_names == ["node-a"]


async def _leave_one_behind(api: ApiServer, parts: OperatorParts) -> None:
    come_and_ask(api, parts)
    api.queue(BIND, None, None, refuse(Invalid("a policy refuses", 422)))
    found = await bind_all(parts, "abc")
    assert sum(error is not None for error in found) == 1
    await parts.idle()


async def test_a_pod_that_no_watch_has_shown_is_not_bound_without_its_gang(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(member("a"))
    with pytest.raises(BindFailed):
        await parts.bind("a", "node-a")
    assert api.called(BIND) == []
