"""Full lists against memory: what the watches missed is mended, and where nothing was, nothing is written."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share, cards_of
from fakes.api_server import ApiServer, Operation, hold_answer, lose_request
from fakes.counters import count
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import KEPT_S, OperatorParts
from fakes.virtual_time import settle
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.errors import StateRolledBack
from gpuledger.model.share import Pod
from gpuledger.workflows.release import SUSPECT_DELAY_S

CARDS = cards_of("node-a", 5)
CARD = CARDS[0]


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator that has read everything: two nodes, and pod `a`, which runs on a card of the first."""
    api.put_node(a_node_object("node-a", CARDS))
    api.put_node(a_node_object("node-b", [a_card(0, "node-b")]))
    for card in CARDS:
        api.put_card(card)
    api.put_card(CARD, replace(a_holder("a", a_share(CARD)), pod=Pod("uid-a", "default", "a")))
    api.put_pod(a_pod_object("a", node_name="node-a", phase="Running", started=True))
    parts = OperatorParts(api)
    await resync(parts)
    return parts


async def resync(parts: OperatorParts) -> None:
    await parts.observer.resync()
    await parts.inventory.worker.idle()
    await parts.releaser.worker.idle()


async def test_a_pod_that_gets_a_node_waits_no_more_and_counts_as_bound_from_the_same_event(
    api: ApiServer, parts: OperatorParts
) -> None:
    observer, uid = parts.observer, "uid-new"

    def known() -> tuple[bool, bool]:
        pending = any(uid in tracker.known_pending() for tracker in observer._of_pending)
        return pending, any(uid in tracker.known_bound() for tracker in observer._of_bound)

    observer.any_pod(a_pod_object("new", limits={GPU: 1}), gone=False)
    assert known() == (True, False)
    observer.any_pod(a_pod_object("new", limits={GPU: 1}, node_name="node-a"), gone=False)
    assert known() == (False, True)
    observer.any_pod(a_pod_object("new", limits={GPU: 1}, node_name="node-a"), gone=True)
    assert known() == (False, False)
    observer.any_pod(a_pod_object("new", limits={GPU: 1}), gone=False)
    observer.any_pod(a_pod_object("new", limits={GPU: 1}), gone=True)
    assert known() == (False, False)


async def test_the_first_resync_reads_everything_and_says_so(api: ApiServer, parts: OperatorParts) -> None:
    assert parts.observer.synced
    assert sorted(parts.ledger.node_names()) == ["node-a", "node-b"]
    assert parts.ledger.holders.uids() == ["uid-a"]
    assert api.card(a_card(0, "node-b")).phase == "Ready"


async def test_nothing_is_synced_before_everything_was_read(api: ApiServer) -> None:
    api.queue(Operation.LIST_PODS, lose_request())
    parts = OperatorParts(api)
    with pytest.raises(Exception, match="connection reset"):
        await parts.observer.resync()
    assert not parts.observer.synced
    await parts.observer.resync()
    assert parts.observer.synced


async def test_a_second_resync_writes_nothing_and_recomputes_nothing(api: ApiServer, parts: OperatorParts) -> None:
    writes, changes, rooms = api.writes(), parts.ledger.changes, parts.ledger.node_room("node-a")
    await resync(parts)
    assert api.writes() == writes
    assert parts.ledger.changes == changes
    assert parts.ledger.node_room("node-a") is rooms
    assert count(parts.counts.nodes_examined) == 2


async def test_holders_without_a_pod_are_released(api: ApiServer, parts: OperatorParts) -> None:
    """While no watch was open, one pod ended in good order, and one that may have run was deleted."""
    api.put_card(CARDS[1], replace(a_holder("b", a_share(CARDS[1])), pod=Pod("uid-b", "default", "b")))
    api.put_pod(a_pod_object("a", node_name="node-a", phase="Succeeded", started=True))
    await resync(parts)
    assert [api.holders_of(card) for card in CARDS] == [[], ["uid-b"], [], [], []]
    await asyncio.sleep(KEPT_S + 2)
    await parts.idle()
    assert [api.holders_of(card) for card in CARDS] == [[]] * 5
    assert count(parts.counts.releases) == 2


async def test_pods_of_other_schedulers_are_not_looked_at(api: ApiServer, parts: OperatorParts) -> None:
    examined = count(parts.counts.pods_examined)
    api.put_pod(a_pod_object("theirs", node_name="node-a", phase="Running", scheduler_name="default-scheduler"))
    await resync(parts)
    assert count(parts.counts.pods_examined) == examined + 1  # ours


async def test_cards_missing_at_the_api_server_are_created_again_with_their_holders(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.delete_card(CARD)
    api.delete_card(CARDS[1])
    await resync(parts)
    assert {api.card(card).phase for card in CARDS} == {"Ready"}
    assert api.holders_of(CARD) == ["uid-a"]


async def test_cards_that_somebody_else_created_are_taken_in(api: ApiServer, parts: OperatorParts) -> None:
    api.put_card(CARDS[2], replace(a_holder("b", a_share(CARDS[2])), pod=Pod("uid-b", "default", "b")))
    api.put_pod(a_pod_object("b", node_name="node-a"))
    await resync(parts)
    assert sorted(parts.ledger.holders.uids()) == ["uid-a", "uid-b"]


async def test_nodes_that_have_gone_unseen_lose_their_free_cards(api: ApiServer, parts: OperatorParts) -> None:
    api.delete_node("node-b")
    await resync(parts)
    assert sorted(api.cards) == sorted(card.object_name for card in CARDS)
    assert parts.inventory.known_nodes() == {"node-a"}


async def test_cards_of_a_node_that_went_while_nobody_looked_are_deleted_at_start(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = OperatorParts(api)
    await resync(parts)
    assert api.cards == {}


async def test_a_node_that_changed_unseen_is_taken_in(api: ApiServer, parts: OperatorParts) -> None:
    api.put_node(a_node_object("node-b", [a_card(0, "node-b"), a_card(1, "node-b")]))
    await resync(parts)
    assert api.card(a_card(1, "node-b")).phase == "Ready"


async def test_an_event_older_than_what_is_known_changes_nothing(api: ApiServer, parts: OperatorParts) -> None:
    old = api.cards[CARD.object_name]
    await parts.journal.remove(CARD.uuid, "uid-a")
    parts.observer.allocation(old, gone=False)
    assert parts.entry(CARD).holders == {}


async def test_a_node_whose_cards_are_as_they_should_be_has_nothing_for_the_journal(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []

    async def describe(uuid: str, *_: str) -> None:
        described.append(uuid)

    monkeypatch.setattr(parts.journal, "describe", describe)
    parts.inventory.became_active()
    await parts.inventory.worker.idle()
    assert described == []


async def test_an_event_that_a_card_is_gone_which_came_back_meanwhile_changes_nothing(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.delete_card(CARD)
    deleted = api.changes[-1].object
    api.put_card(CARD, replace(a_holder("b", a_share(CARD)), pod=Pod("uid-b", "default", "b")))
    parts.observer.allocation(api.cards[CARD.object_name], gone=False)
    parts.observer.allocation(deleted, gone=True)
    assert list(parts.entry(CARD).holders) == ["uid-b"]
    assert parts.entry(CARD).stored


async def test_a_resync_that_fails_is_repeated_soon(api: ApiServer, parts: OperatorParts) -> None:
    api.delete_node("node-b")
    api.queue(Operation.LIST_NODES, lose_request(), lose_request())
    task = asyncio.create_task(parts.observer.resync_every(300.0, asyncio.Event()))
    await asyncio.sleep(299.0)
    assert parts.inventory.known_nodes() == {"node-a", "node-b"}
    await asyncio.sleep(10.0)
    assert parts.inventory.known_nodes() == {"node-a"}
    task.cancel()


async def test_a_resync_comes_soon_after_a_watch_had_a_gap(api: ApiServer, parts: OperatorParts) -> None:
    needed = asyncio.Event()
    task = asyncio.create_task(parts.observer.resync_every(300.0, needed))
    await asyncio.sleep(1.0)
    lists = len(api.called(Operation.LIST_NODES))
    needed.set()
    await asyncio.sleep(5.0)
    assert len(api.called(Operation.LIST_NODES)) == lists + 1
    task.cancel()


async def test_who_finds_a_card_older_than_it_was_ends(api: ApiServer, parts: OperatorParts) -> None:
    """Etcd was restored: what memory has never happened there."""
    copy = api.cards[CARD.object_name]
    await parts.journal.remove(CARD.uuid, "uid-a")
    api.cards[CARD.object_name] = copy
    needed = asyncio.Event()
    needed.set()
    with pytest.raises(StateRolledBack, match=f"GPUAllocation {CARD.object_name} has version"):
        await parts.observer.resync_every(300.0, needed)


async def test_who_finds_a_card_with_other_holders_in_the_version_that_it_knows_ends(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Etcd was restored, and its versions have come so far again."""
    copy = api.cards[CARD.object_name]
    await parts.journal.remove(CARD.uuid, "uid-a")
    version = str(parts.entry(CARD).resource_version)
    api.cards[CARD.object_name] = {**copy, "metadata": {**copy["metadata"], "resourceVersion": version}}
    with pytest.raises(StateRolledBack, match=f"has version {version}, and had {version} with other holders"):
        await parts.observer.resync()


async def test_a_watch_that_starts_again_with_an_older_node_changes_nothing(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Without a version, an API server shows first what its cache has, and that can be behind."""
    old = api.nodes["node-a"]
    parts.observer.node(api.put_node(a_node_object("node-a")), gone=False)
    assert parts.ledger.node_room("node-a").rooms == ()
    parts.observer.node(old, gone=False)
    assert parts.ledger.node_room("node-a").rooms == ()


async def test_a_node_that_a_watch_shows_as_it_was_before_while_nodes_are_listed_is_as_the_list_says(
    api: ApiServer, parts: OperatorParts
) -> None:
    old, listed = api.nodes["node-a"], asyncio.Event()
    api.put_node(a_node_object("node-a"))
    api.queue(Operation.LIST_NODES, hold_answer(listed))
    comparing = asyncio.create_task(parts.observer.resync())
    await settle()
    parts.observer.node(old, gone=False)
    listed.set()
    await comparing
    assert parts.ledger.node_room("node-a").rooms == ()


async def test_who_finds_a_node_older_than_it_was_ends(api: ApiServer, parts: OperatorParts) -> None:
    copy = api.nodes["node-a"]
    parts.observer.node(api.put_node(a_node_object("node-a")), gone=False)
    api.nodes["node-a"] = copy
    with pytest.raises(StateRolledBack, match="Node node-a has version"):
        await parts.observer.resync()


async def test_a_card_that_changes_while_it_is_listed_is_not_older_than_it_was(
    api: ApiServer, parts: OperatorParts
) -> None:
    answer = asyncio.Event()
    api.queue(Operation.LIST_CARDS, hold_answer(answer))
    task = asyncio.create_task(parts.observer.resync())
    await settle()
    await parts.journal.remove(CARD.uuid, "uid-a")
    answer.set()
    await task
    assert parts.entry(CARD).holders == {}


@pytest.mark.parametrize("gone", [False, True], ids=["changes", "goes"])
async def test_a_node_that_the_watch_shows_while_nodes_are_listed_stays_as_shown(
    api: ApiServer, parts: OperatorParts, gone: bool
) -> None:
    """The list is of the moment before, and what it says would stay until the node changes again."""
    api.put_node(a_node_object("node-a", [CARD], slots=0))
    parts.watch()
    assert parts.ledger.offer("node-a") is None
    answer = asyncio.Event()
    api.queue(Operation.LIST_NODES, hold_answer(answer))
    task = asyncio.create_task(parts.observer.resync())
    await settle()
    if gone:
        api.delete_node("node-a")
    else:
        api.put_node(a_node_object("node-a", [CARD], slots=10))
    parts.watch()
    answer.set()
    await task
    assert ("node-a" in parts.inventory.known_nodes()) is not gone
    assert (parts.ledger.offer("node-a") is None) is gone


async def test_a_pod_that_ends_while_pods_are_listed_is_not_counted_again(api: ApiServer, parts: OperatorParts) -> None:
    """Its share of the node's CPU and memory would be taken until the next comparison, minutes later."""
    api.put_pod(a_pod_object("new", {GPU: "1", MEMORY: "4k"}, node_name="node-a"))
    parts.watch()
    assert "uid-new" in parts.ledger.hosts.pod_uids()
    answer = asyncio.Event()
    api.queue(Operation.LIST_PODS, hold_answer(answer))
    task = asyncio.create_task(parts.observer.resync())
    await settle()
    api.put_pod(a_pod_object("new", {GPU: "1", MEMORY: "4k"}, node_name="node-a", phase="Succeeded"))
    parts.watch()
    answer.set()
    await task
    assert "uid-new" not in parts.ledger.hosts.pod_uids()


async def test_holders_are_not_suspected_before_everything_was_read(api: ApiServer, parts: OperatorParts) -> None:
    """The watches show cards and pods in any order, and the first comparison judges all holders."""
    reads = len(api.called(Operation.READ_POD))
    starting = OperatorParts(api)
    starting.read_cards()
    await asyncio.sleep(2 * SUSPECT_DELAY_S)
    assert len(api.called(Operation.READ_POD)) == reads


# Pods without a node.


def refused(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as kube-scheduler leaves one that it found no node for."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {**pod, "status": {**pod["status"], "conditions": [condition]}}


async def test_a_holder_that_is_shown_while_pods_are_listed_at_the_start_is_looked_at_soon(api: ApiServer) -> None:
    """A write that was given up has arrived: its pod is gone, and nobody waits for it."""
    api.put_card(CARD)
    listed = asyncio.Event()
    api.queue(Operation.LIST_PODS, hold_answer(listed))
    parts = OperatorParts(api)
    starting = asyncio.create_task(parts.observer.resync())
    await settle()
    api.put_card(CARD, replace(a_holder("b", a_share(CARD)), pod=Pod("uid-b", "default", "b")))
    parts.observer.allocation(api.cards[CARD.object_name], gone=False)
    listed.set()
    await starting
    await asyncio.sleep(SUSPECT_DELAY_S + KEPT_S + 2)
    assert api.holders_of(CARD) == []


async def test_who_takes_over_remembers_the_pods_that_others_have_refused_and_no_more(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_pod(a_pod_object("not-tried-yet"))
    api.put_pod(refused(a_pod_object("waits")))
    api.put_pod(refused(a_pod_object("without-gpu", {"cpu": "1"})))
    api.put_pod(refused(a_pod_object("makes-no-sense", {GPU: "1", MEMORY: "4Gi"})))
    api.put_pod(refused(a_pod_object("theirs", scheduler_name="default-scheduler")))
    await parts.observer.take_over()
    assert parts.waiting.waiting() == {"uid-waits"}


async def test_who_takes_over_remembers_a_pod_whose_refusal_another_scheduler_has_written_over(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Ours sleeps on it; the other one, which was to stop, has still tried to bind it, and says that it failed."""
    pod = a_pod_object("waits")
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
    api.put_pod({**pod, "status": {**pod["status"], "conditions": [condition]}})
    await parts.observer.take_over()
    assert parts.waiting.waiting() == {"uid-waits"}


async def test_who_takes_over_keeps_what_is_known_of_a_pod(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(refused(a_pod_object("waits")))
    assert parts.filter("waits", "full").node_names == []
    await parts.observer.take_over()
    parts.waiting.give_room()
    assert parts.ledger.seats.of("uid-waits") is None, "it can't go to the nodes that have room"


async def test_who_takes_over_lets_no_pod_wait_that_has_room_on_hold(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(refused(a_pod_object("has-room")))
    assert parts.filter("has-room", "node-a").node_names == ["node-a"]
    await parts.observer.take_over()
    assert parts.waiting.waiting() == set()


async def test_who_takes_over_remembers_a_pod_whose_refusal_is_written_down_only_afterwards(
    api: ApiServer, parts: OperatorParts
) -> None:
    """It was refused before anybody looked. Those that came since have asked this operator."""
    api.put_pod(a_pod_object("waits"))
    await parts.observer.take_over()
    for name in ("waits", "came-since"):
        parts.observer.pending_pod(a_pod_object(name), gone=False)
    assert parts.waiting.waiting() == set()
    for name in ("waits", "came-since"):
        parts.observer.pending_pod(refused(a_pod_object(name)), gone=False)
    assert parts.waiting.waiting() == {"uid-waits"}


@pytest.mark.parametrize("seen", [True, False])
async def test_who_takes_over_remembers_no_pod_that_is_gone_and_calls_none_twice(
    api: ApiServer, parts: OperatorParts, seen: bool
) -> None:
    for name in ("gone", "called"):
        api.put_pod(a_pod_object(name))
    await parts.observer.take_over()
    if seen:
        parts.observer.pending_pod(a_pod_object("gone"), gone=True)
    else:
        parts.observer.pending_listing()({"uid-called"})
    parts.observer.pending_pod(refused(a_pod_object("called")), gone=False)
    parts.waiting.forget("uid-called")  # as after it was called and did not come
    parts.observer.pending_pod(refused(a_pod_object("called")), gone=False)
    assert parts.waiting.waiting() == set()
    known = [kept for kept in vars(parts.observer).values() if isinstance(kept, set)]
    assert not any("uid-gone" in kept for kept in known)


async def test_who_takes_over_lets_no_pod_wait_that_was_bound_while_those_who_wait_were_listed(
    api: ApiServer, parts: OperatorParts
) -> None:
    pod = refused(a_pod_object("bound-meanwhile"))
    api.put_pod(pod)
    answer = asyncio.Event()
    api.queue(Operation.LIST_PODS, None, hold_answer(answer))
    taking_over = asyncio.create_task(parts.observer.take_over())
    await settle()
    parts.observer.pending_pod(pod, gone=True)
    answer.set()
    await taking_over
    assert parts.waiting.waiting() == set()


async def test_a_pod_for_which_is_asked_after_it_was_seen_to_be_gone_does_not_wait(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.observer.pending_pod(a_pod_object("ghost", {GPU: "9"}), gone=True)
    assert parts.placer.filter(FilterArguments(a_pod_object("ghost", {GPU: "9"}), ["node-a"])).node_names == []
    assert parts.waiting.waiting() == set()


async def test_pods_that_went_unseen_are_forgotten_and_those_that_came_meanwhile_are_not(
    api: ApiServer, parts: OperatorParts
) -> None:
    for name, node_name in (("waits", "full"), ("waited", "full"), ("was-held", "node-a")):
        api.put_pod(a_pod_object(name))
        parts.filter(name, node_name)
    listed = parts.observer.pending_listing()
    api.put_pod(a_pod_object("new"))
    parts.filter("new", "full")
    listed({"uid-waits"})
    assert parts.waiting.waiting() == {"uid-waits", "uid-new"}
    assert parts.shares_left("uid-was-held") == []


async def test_nodes_say_nothing_before_the_cards_are_read(api: ApiServer) -> None:
    """Every card would look new: it would be created again, and be refused."""
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    starting = OperatorParts(api)
    starting.observer.cards_read = False
    starting.observer.node(api.nodes["node-a"], gone=False)
    await starting.inventory.worker.idle()
    assert api.writes() == []
    await resync(starting)
    assert api.called(Operation.CREATE_CARD) == []
    assert starting.inventory.known_nodes() == {"node-a"}
