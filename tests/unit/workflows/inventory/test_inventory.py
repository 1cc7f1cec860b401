"""What nodes report becomes the cards of the ledger; what is equal costs nothing, what is unreadable loses nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson
import pytest

from builders import a_card, a_holder, a_share, cards_of
from fakes.api_server import ApiServer, Fault, Json, Operation, hold_answer, hold_request, lose_answer
from fakes.api_server import refuse as refuse_with
from fakes.counters import by_label, count
from fakes.objects import a_node_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.custom_resource.stored_card import CORDON_ANNOTATION, NODE_LABEL, new_allocation
from gpuledger.formats.kubernetes.node import register_of
from gpuledger.kube_api.writes import NO_MANAGERS
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import NotFound, ShareRefused, Unreachable
from gpuledger.model.share import Holder
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.new_cards import LONGEST_WAIT_S

CARDS = cards_of("node-a", 2)
CARD, SECOND = CARDS


async def a_cluster(api: ApiServer, *cards: Card) -> OperatorParts:
    """Return an operator that has taken in node-a with these cards."""
    api.put_node(a_node_object("node-a", cards or CARDS))
    parts = an_operator(api)
    await parts.idle()
    return parts


async def report(parts: OperatorParts, *cards: Card, slots: int = 80, register: str | None = None) -> None:
    """Let node-a report something else."""
    parts.api.put_node(a_node_object("node-a", cards, slots=slots, register=register))
    await parts.idle()


def phase_of(api: ApiServer, card: Card) -> tuple[str, str]:
    stored = api.card(card)
    return stored.phase, stored.reason


async def test_the_cards_of_a_node_are_created_and_opened(api: ApiServer) -> None:
    parts = await a_cluster(api)
    for card in CARDS:
        stored = api.card(card)
        assert (stored.card, stored.holders, stored.phase) == (card, (), "Ready")
        assert api.cards[card.object_name]["metadata"]["labels"] == {NODE_LABEL: "node-a"}
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == CARDS
    await settle()
    # The last one takes the list of managers away.
    assert sorted(api.writes()) == sorted([Operation.CREATE_CARD, Operation.REPLACE_CARD, Operation.WRITE_STATUS] * 2)


async def test_the_lists_of_new_cards_managers_go_when_the_cards_are_open_one_after_the_other(api: ApiServer) -> None:
    answer = asyncio.Event()
    api.queue(Operation.REPLACE_CARD, hold_answer(answer), refuse_with(NotFound("gone", 404)))
    await a_cluster(api)
    await settle()
    assert sorted(api.writes()[:-1]) == sorted([Operation.CREATE_CARD, Operation.WRITE_STATUS] * 2)
    answer.set()
    await asyncio.sleep(1)
    assert [call.body for call in api.called(Operation.REPLACE_CARD)] == [[NO_MANAGERS]] * 2


async def test_an_operator_that_is_not_active_any_more_leaves_the_lists_of_managers(api: ApiServer) -> None:
    api.put_node(a_node_object("node-a", CARDS))
    parts = OperatorParts(api, leadership=Leadership("host"))
    parts.leadership.observe({"spec": {"holderIdentity": "host_0e6f4c"}}, gone=False)
    answer = asyncio.Event()
    api.queue(Operation.REPLACE_CARD, hold_answer(answer))
    await parts.idle()
    await settle()
    parts.leadership.observe({"spec": {"holderIdentity": "other_0e6f4c"}}, gone=False)
    answer.set()
    await asyncio.sleep(10 * LONGEST_WAIT_S)
    assert len(api.called(Operation.REPLACE_CARD)) == 1


async def test_equal_facts_cost_nothing(api: ApiServer) -> None:
    parts = await a_cluster(api)
    calls, room, changes = len(api.calls), parts.ledger.node_room("node-a"), parts.ledger.changes
    for _ in range(3):
        parts.observer.node(api.put_node(a_node_object("node-a", CARDS)), gone=False)
    await parts.inventory.worker.idle()
    assert len(api.calls) == calls
    assert parts.ledger.node_room("node-a") is room
    assert parts.ledger.changes == changes
    assert (count(parts.counts.node_events), count(parts.counts.nodes_examined)) == (4, 1)


async def test_a_node_without_cards_costs_nothing(api: ApiServer) -> None:
    parts = an_operator(api)
    node = a_node_object("plain")
    del node["metadata"]["annotations"]
    parts.observer.node(node, gone=False)
    await parts.inventory.worker.idle()
    assert api.calls == []


async def test_an_unreadable_register_keeps_what_was_known_and_tells_the_node_once(api: ApiServer) -> None:
    parts = await a_cluster(api)
    for slots in (80, 79, 80):
        await report(parts, register="{", slots=slots)
    assert [parts.ledger.node_room("node-a").cards, sorted(api.cards)] == [
        tuple(CARDS),
        sorted(card.object_name for card in CARDS),
    ]
    ((node_name, sentence),) = parts.told
    assert node_name == "node-a"
    assert "is not JSON" in sentence
    assert "its cards stay as they are in the ledger" in sentence
    assert by_label(parts.counts.bad_input) == {"node": 1}


async def test_a_node_that_is_unreadable_from_the_start_keeps_the_cards_of_the_ledger(api: ApiServer) -> None:
    api.put_card(CARD)
    api.put_node(a_node_object("node-a", register="[1"))
    parts = an_operator(api)
    await parts.idle()
    assert list(api.cards) == [CARD.object_name]
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [CARD]


async def test_a_problem_that_comes_back_is_told_again(api: ApiServer) -> None:
    parts = await a_cluster(api)
    for register in ("{", register_of(CARDS), "{"):
        await report(parts, register=register)
    assert len(parts.told) == 2


async def test_one_bad_card_does_not_hide_the_others(api: ApiServer) -> None:
    items = orjson.loads(register_of(CARDS))
    items[0]["memoryMiB"] = -1
    parts = await a_cluster(api)
    api.put_card(CARD)
    await report(parts, register=orjson.dumps(items).decode())
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]
    ((_, sentence),) = parts.told
    assert f"card {CARD.uuid}" in sentence
    assert "memoryMiB" in sentence


async def test_a_node_with_hundreds_of_bad_cards_gets_a_few_events(api: ApiServer) -> None:
    parts = await a_cluster(api)
    items = [{"uuid": f"GPU-{number}", "memoryMiB": -1} for number in range(1_000)]
    await report(parts, register=orjson.dumps(items).decode())
    sentences = [sentence for _, sentence in parts.told]
    assert len(sentences) == 9
    assert sentences[-1] == "node node-a: 992 more; `kubectl gpuledger inspect node/node-a` lists all of them"
    assert by_label(parts.counts.bad_input) == {"node": 1_000}


async def test_a_problem_that_stays_while_the_rest_of_the_register_changes_is_told_once(api: ApiServer) -> None:
    parts = await a_cluster(api)
    for healthy in (True, False, True):
        items = orjson.loads(register_of([CARD, replace(SECOND, healthy=healthy)]))
        items[0]["memoryMiB"] = -1
        await report(parts, register=orjson.dumps(items).decode())
    assert len(parts.told) == 1
    assert by_label(parts.counts.bad_input) == {"node": 1}


async def test_a_card_that_the_api_server_refuses_keeps_no_other_out(api: ApiServer) -> None:
    api.rules.append(lambda allocation: allocation["spec"]["uuid"] != CARD.uuid)
    api.put_node(a_node_object("node-a", CARDS))
    parts = an_operator(api)
    parts.watch()
    await asyncio.sleep(10.0)
    assert phase_of(api, SECOND)[0] == "Ready"
    api.rules.clear()
    await parts.idle()
    assert phase_of(api, CARD)[0] == "Ready"


async def test_an_index_too_large_for_the_ledger_is_a_bad_card_and_no_endless_work(api: ApiServer) -> None:
    items = orjson.loads(register_of(CARDS))
    items[0]["index"] = 1024
    parts = an_operator(api)
    api.put_node(a_node_object("node-a", register=orjson.dumps(items).decode()))
    parts.watch()
    await parts.inventory.worker.idle()
    assert list(api.cards) == [SECOND.object_name]
    assert len(parts.told) == 1


@pytest.mark.parametrize("held", [True, False])
async def test_a_uuid_that_another_node_has_is_left_out_with_a_message(api: ApiServer, held: bool) -> None:
    """It counts as another node's as long as somebody holds it there, or that node reports it."""
    copied = replace(CARD, node_name="node-b", index=1)
    if held:
        api.put_card(CARD, a_holder("a", a_share(CARD)))
        parts = an_operator(api)
    else:
        parts = await a_cluster(api)
    own = a_card(0, "node-b")
    api.put_node(a_node_object("node-b", [own, copied]))
    await parts.idle()
    assert api.card(CARD).card.node_name == "node-a"
    assert api.card(own).card == own
    ((node_name, sentence),) = parts.told
    assert node_name == "node-b"
    assert f"card {CARD.uuid} belongs to node node-a" in sentence


async def test_a_card_that_was_put_into_another_node_moves_there(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await report(parts, SECOND)
    moved = replace(CARD, node_name="node-b")
    api.put_node(a_node_object("node-b", [moved]))
    await parts.idle()
    assert api.card(CARD).card == moved
    assert api.cards[CARD.object_name]["metadata"]["labels"] == {NODE_LABEL: "node-b"}
    assert parts.told == []


COPY = replace(CARD, node_name="node-b", index=1)
"""The first card of node-a, as node-b reports it."""


async def reported_twice(api: ApiServer, *holders: Holder) -> OperatorParts:
    """Return an operator that has seen node-a with a card, then node-b with the same one, and left that out."""
    parts = await a_cluster(api)
    await parts.observer.resync()
    for holder in holders:
        await parts.add(holder.pod.uid, holder.share)
    api.put_node(a_node_object("node-b", [a_card(0, "node-b"), COPY]))
    await parts.idle()
    assert api.card(CARD).card == CARD
    return parts


async def node_goes(parts: OperatorParts) -> None:
    parts.api.delete_node("node-a")


async def card_goes(parts: OperatorParts) -> None:
    await report(parts, SECOND)


async def last_holder_leaves(parts: OperatorParts) -> None:
    await report(parts, SECOND)
    await parts.idle()
    assert parts.api.card(CARD).card == CARD
    await parts.journal.remove(CARD.uuid, "a")


@pytest.mark.parametrize(
    ("what_happens", "holders"),
    [(node_goes, []), (card_goes, []), (last_holder_leaves, [a_holder("a", a_share(CARD))])],
)
async def test_a_card_that_two_nodes_report_goes_to_the_second_when_the_first_gives_it_up(
    api: ApiServer, what_happens: Callable[[OperatorParts], Awaitable[None]], holders: list[Holder]
) -> None:
    parts = await reported_twice(api, *holders)
    await what_happens(parts)
    await parts.idle()
    assert api.card(CARD).card == COPY
    assert phase_of(api, CARD) == ("Ready", "")


async def test_a_card_that_the_second_node_reports_no_more_stays_away_when_the_first_gives_it_up(
    api: ApiServer,
) -> None:
    parts = await reported_twice(api)
    api.put_node(a_node_object("node-b", [a_card(0, "node-b")]))
    await parts.idle()
    await node_goes(parts)
    await parts.idle()
    assert CARD.object_name not in api.cards


@pytest.mark.parametrize("first_is_there", [True, False])
async def test_a_card_whose_node_was_not_shown_yet_is_left_to_it_until_all_were_shown(
    api: ApiServer, first_is_there: bool
) -> None:
    """The operator has started, and of the two nodes that report the card the watch shows the wrong one first."""
    api.put_card(CARD)
    parts = OperatorParts(api)
    parts.read_cards()
    api.put_node(a_node_object("node-b", [COPY]))
    parts.watch()
    await parts.inventory.worker.idle()
    assert api.card(CARD).card == CARD
    if first_is_there:
        api.put_node(a_node_object("node-a", [CARD]))
    await parts.observer.resync()
    await parts.idle()
    assert api.card(CARD).card == (CARD if first_is_there else COPY)


async def test_a_card_that_another_operator_makes_anew_takes_no_pods_if_its_node_was_seen_without_it(
    api: ApiServer,
) -> None:
    """Or sick: the other one has an older view of the node."""
    parts = await a_cluster(api, replace(CARD, healthy=False))
    await parts.observer.resync()
    for card in CARDS:
        api.put_card(card)
    for allocation in api.cards.values():
        parts.observer.allocation(allocation, gone=False)
    assert not parts.ledger.node_room("node-a").can_give([CARD.uuid])
    assert not parts.ledger.node_room("node-a").can_give([SECOND.uuid])


async def test_a_card_that_another_operator_deletes_again_and_again_is_made_anew_later_and_later(
    api: ApiServer,
) -> None:
    """The other one sees the node differently, for minutes after a restore of etcd."""
    parts = await a_cluster(api)
    await parts.observer.resync()
    made = len(api.called(Operation.CREATE_CARD))
    for _ in range(600):
        if CARD.object_name in api.cards:
            parts.observer.allocation(api.cards.pop(CARD.object_name), gone=True)
        await asyncio.sleep(0.1)
    assert 5 <= len(api.called(Operation.CREATE_CARD)) - made <= 8


async def test_a_card_is_not_deleted_before_its_node_was_shown(api: ApiServer) -> None:
    """The operator has started, and sees another card of the node go before it has read the nodes."""
    for card in CARDS:
        api.put_card(card)
    api.put_node(a_node_object("node-a", [SECOND]))
    parts = OperatorParts(api)
    parts.read_cards()
    parts.inventory.gone(CARD)
    await parts.inventory.worker.idle()
    assert Operation.DELETE_CARD not in api.writes()
    assert parts.ledger.node_room("node-a").rooms
    await parts.observer.resync()
    await parts.idle()
    assert list(api.cards) == [SECOND.object_name]


@pytest.mark.parametrize("held", [False, True])
async def test_of_two_nodes_that_report_a_new_card_at_once_one_has_it_whatever_they_report_later(
    api: ApiServer, held: bool
) -> None:
    reports = {"node-a": CARD, "node-b": COPY}
    for name, card in reports.items():
        api.put_node(a_node_object(name, [card]))
    parts = an_operator(api)
    await parts.idle()
    assert len(parts.told) == 1
    if held:
        await parts.add("a", a_share(CARD))
    await settle()
    owner, writes = api.card(CARD).card, len(api.writes())
    for slots in (79, 78):
        for name, card in reports.items():
            api.put_node(a_node_object(name, [card], slots=slots))
            parts.watch()
            await asyncio.sleep(60.0)
    assert api.card(CARD).card == owner
    assert len(api.writes()) == writes


def show(parts: OperatorParts, *nodes: Json) -> None:
    """Let the watch show nodes, and nothing else happen in between."""
    for node in nodes:
        parts.api.put_node(node)
        parts.observer.node(node, gone=False)


@pytest.mark.parametrize("node_is_gone", [False, True])
async def test_a_card_that_comes_back_while_another_node_is_about_to_have_it_is_not_lost(
    api: ApiServer, node_is_gone: bool
) -> None:
    """It was moved and moved back. Its object was deleted, and the other node gives it up before it is made anew."""
    parts = await a_cluster(api)
    await report(parts, SECOND)
    assert CARD.object_name not in api.cards
    show(parts, a_node_object("node-b", [COPY]), a_node_object("node-a", CARDS))
    if node_is_gone:
        api.delete_node("node-b")
        parts.observer.node(a_node_object("node-b"), gone=True)
    else:
        show(parts, a_node_object("node-b"))
    await parts.idle()
    assert api.card(CARD).card == CARD
    assert phase_of(api, CARD) == ("Ready", "")


async def test_a_card_that_a_late_write_takes_to_the_node_in_which_it_was_comes_back(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.observer.resync()
    show(parts, a_node_object("node-b", []))
    await parts.idle()
    await api.store.replace_allocation_spec(CARD.object_name, new_allocation(COPY))
    await parts.idle()
    assert api.card(CARD).card == CARD


async def test_a_card_that_somebody_gets_in_its_former_node_just_before_it_moves_is_not_asked_for_again_and_again(
    api: ApiServer,
) -> None:
    parts = await a_cluster(api)
    await parts.observer.resync()
    arrive = asyncio.Event()
    for operation in (Operation.REPLACE_CARD, Operation.DELETE_CARD):
        api.queue(operation, hold_request(arrive))
    show(parts, a_node_object("node-a", [SECOND]), a_node_object("node-b", [COPY]))
    await settle()
    await parts.add("a", a_share(CARD))
    arrive.set()
    parts.watch()
    await asyncio.sleep(300.0)
    assert len(api.called(Operation.REPLACE_CARD)) <= len(CARDS) + 2
    await parts.journal.remove(CARD.uuid, "a")
    await parts.idle()
    assert api.card(CARD).card == COPY


async def test_a_card_that_another_operator_has_made_takes_no_pods_as_long_as_its_node_does_not_report_it(
    api: ApiServer,
) -> None:
    """The other one has not seen yet that the node has lost the card."""
    parts = await a_cluster(api)
    await parts.observer.resync()
    await report(parts, SECOND)
    api.put_card(CARD)
    parts.watch()
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]
    await parts.idle()
    assert CARD.object_name not in api.cards


async def test_a_free_card_stays_when_another_one_goes_before_their_node_was_shown(api: ApiServer) -> None:
    """The operator has started and reads lists; meanwhile a watch shows that somebody has deleted a card."""
    for card in CARDS:
        api.put_card(card)
    parts = OperatorParts(api)
    parts.read_cards()
    api.delete_card(CARD)
    parts.observer.allocation(api.changes[-1].object, gone=True)
    await parts.inventory.worker.idle()
    assert list(api.cards) == [SECOND.object_name]
    await parts.observer.resync()
    await parts.idle()
    assert api.cards == {}, "no node has them"


async def test_a_card_whose_object_is_deleted_while_it_is_in_its_former_node_comes_back(api: ApiServer) -> None:
    """Another operator has deleted it, which has not seen yet where the card is now."""
    parts = await a_cluster(api)
    await parts.observer.resync()
    await api.store.replace_allocation_spec(CARD.object_name, new_allocation(COPY))
    api.delete_card(CARD)
    parts.observer.allocation(api.changes[-1].object, gone=True)
    await parts.inventory.worker.idle()
    assert api.card(CARD).card == CARD


async def test_who_takes_over_after_a_card_has_moved_finds_it_in_order(api: ApiServer) -> None:
    """It looked on when the card was still the first node's."""
    active = await reported_twice(api)
    passive = OperatorParts(api, leadership=Leadership("host"))
    await passive.observer.resync()
    await passive.idle()
    await card_goes(active)
    await active.add("a", a_share(COPY))
    await passive.idle()
    passive.leadership.observe({"spec": {"holderIdentity": "host_0e6f4c"}}, gone=False)
    await passive.observer.take_over()
    await passive.idle()
    assert api.card(CARD).card == COPY
    assert phase_of(api, CARD) == ("Ready", "")


async def test_a_node_that_is_gone_loses_its_free_cards_and_keeps_the_held_ones(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    api.delete_node("node-a")
    await parts.idle()
    assert list(api.cards) == [CARD.object_name]
    assert phase_of(api, CARD) == ("Unavailable", "its node is gone")
    assert api.holders_of(CARD) == ["a"]
    assert parts.ledger.node_room("node-a").rooms == ()


async def test_a_held_card_of_a_node_that_is_gone_is_deleted_once_the_last_pod_leaves(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.observer.resync()
    for uid in ("a", "b"):
        await parts.add(uid, a_share(CARD))
    api.delete_node("node-a")
    await parts.idle()
    await parts.journal.remove(CARD.uuid, "a")
    await parts.idle()
    assert list(api.cards) == [CARD.object_name]
    await parts.journal.remove(CARD.uuid, "b")
    await parts.idle()
    assert api.cards == {}
    assert list(parts.ledger.entries()) == []


async def test_a_holder_that_comes_in_while_a_card_is_deleted_keeps_it(api: ApiServer) -> None:
    parts = await a_cluster(api)
    other = an_operator(api)
    api.delete_node("node-a")
    await other.add("a", a_share(CARD))
    parts.watch()
    await parts.idle()
    assert api.holders_of(CARD) == ["a"]
    assert phase_of(api, CARD)[0] == "Unavailable"


async def test_a_card_that_is_not_reported_any_more_is_deleted(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await report(parts, CARD)
    assert list(api.cards) == [CARD.object_name]


async def test_a_held_card_that_is_not_reported_any_more_is_closed_and_opens_when_it_is_back(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    await report(parts, SECOND)
    assert phase_of(api, CARD) == ("Unavailable", "its node no longer reports it")
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]
    await report(parts, *CARDS)
    assert phase_of(api, CARD) == ("Ready", "")
    assert api.holders_of(CARD) == ["a"]
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == CARDS


async def test_what_is_not_reported_is_closed_in_memory_before_it_is_written(api: ApiServer) -> None:
    parts = await a_cluster(api)
    parts.observer.node(api.put_node(a_node_object("node-a", [SECOND])), gone=False)
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]


async def test_what_is_reported_as_sick_is_closed_in_memory_before_it_is_written(api: ApiServer) -> None:
    parts = await a_cluster(api)
    parts.observer.node(api.put_node(a_node_object("node-a", [replace(CARD, healthy=False), SECOND])), gone=False)
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]
    parts.observer.node(api.put_node(a_node_object("node-a", CARDS)), gone=False)
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == CARDS


async def test_the_phases_follow_the_agent(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await report(parts, *CARDS, slots=0)
    assert {phase_of(api, card) for card in CARDS} == {("Unavailable", "the node's GPU agent is not ready")}
    assert parts.ledger.node_room("node-a").offer is None
    await report(parts, *CARDS)
    assert {phase_of(api, card) for card in CARDS} == {("Ready", "")}


async def test_a_card_with_a_fault_is_shown_as_unhealthy(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await report(parts, replace(CARD, healthy=False), SECOND)
    assert phase_of(api, CARD) == ("Unhealthy", "its node reports a fault")
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]


async def test_the_spec_is_replaced_only_where_it_differs(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    await settle()
    changed, before = replace(CARD, capacity=Amounts(8_000, 100, 5)), len(api.called(Operation.REPLACE_CARD))
    await report(parts, changed, SECOND)
    replaced = api.called(Operation.REPLACE_CARD)[before:]
    assert [call.path.rsplit("/", 1)[1] for call in replaced] == [CARD.object_name]
    assert api.card(CARD).card == changed
    assert api.holders_of(CARD) == ["a"]
    assert count(parts.counts.cards_written) == 5, "both new ones, their lists of managers, and the change"


async def test_a_card_that_exists_already_is_taken_over(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    parts = OperatorParts(api)
    parts.observer.node(a_node_object("node-a", CARDS), gone=False)
    await parts.inventory.worker.idle()
    assert api.holders_of(CARD) == ["a"]
    assert list(parts.entry(CARD).holders) == ["a"]


async def test_a_creation_whose_answer_is_lost_is_found_out(api: ApiServer) -> None:
    api.queue(Operation.CREATE_CARD, lose_answer())
    await a_cluster(api)
    assert {phase_of(api, card)[0] for card in CARDS} == {"Ready"}


async def test_writing_cards_goes_on_after_errors(api: ApiServer) -> None:
    busy = refuse_with(Unreachable("busy", 503))
    api.queue(Operation.CREATE_CARD, *[busy] * 5)
    api.queue(Operation.WRITE_STATUS, *[busy] * 5)
    await a_cluster(api)
    assert {phase_of(api, card)[0] for card in CARDS} == {"Ready"}


async def test_a_card_that_somebody_deletes_comes_back_with_its_holders(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    for card in CARDS:
        api.delete_card(card)
    await parts.idle()
    assert api.holders_of(CARD) == ["a"]
    assert {phase_of(api, card)[0] for card in CARDS} == {"Ready"}


async def test_a_free_card_whose_end_a_write_finds_first_comes_back(api: ApiServer) -> None:
    """The 404 makes memory forget the card before the watch shows that it was deleted."""
    parts = await a_cluster(api)
    api.delete_card(CARD)
    await parts.journal.describe(CARD.uuid, "Ready", "again")
    assert parts.ledger.entry(CARD.uuid) is None
    await parts.idle()
    assert phase_of(api, CARD)[0] == "Ready"


async def test_a_card_that_comes_back_before_a_write_hears_that_it_was_gone_is_not_lost(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    late = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, Fault(before=late, refusal=NotFound("gone", 404)))
    change = asyncio.create_task(parts.journal.describe(CARD.uuid, "Ready", "again"))
    await settle()
    api.delete_card(CARD)
    for _ in range(2):
        parts.watch()
        await settle()
    late.set()
    await change
    await parts.idle()
    assert api.holders_of(CARD) == ["a"]
    assert phase_of(api, CARD)[0] == "Ready"


async def test_a_card_of_which_a_proxy_says_that_it_is_gone_is_not_lost(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await parts.add("a", a_share(CARD))
    api.queue(Operation.WRITE_STATUS, refuse_with(NotFound("the server could not find the requested resource", 404)))
    with pytest.raises(ShareRefused):
        await parts.add("b", a_share(CARD))
    await parts.idle()
    await parts.add("c", a_share(CARD))
    assert api.holders_of(CARD) == ["a", "c"]


@pytest.mark.parametrize("what", ["memory", "phase"])
async def test_what_somebody_edits_of_a_card_is_put_right(api: ApiServer, what: str) -> None:
    parts = await a_cluster(api)
    await parts.observer.resync()
    await parts.idle()
    if what == "memory":
        api.put_card(replace(CARD, capacity=replace(CARD.capacity, memory_mib=1)))
    else:
        api.put_card(CARD, phase="Unhealthy")
    await parts.idle()
    assert (api.card(CARD).card, api.card(CARD).phase) == (CARD, "Ready")


async def test_two_operators_that_see_a_node_differently_do_not_write_as_fast_as_they_can(api: ApiServer) -> None:
    """The watch of one of them has stalled: it knows nothing of the agent that went away."""
    parts = await a_cluster(api)
    other = an_operator(api)
    await other.observer.resync()
    await parts.observer.resync()
    parts.observer.node(api.put_node(a_node_object("node-a", CARDS, slots=0)), gone=False)
    before = len(api.writes())
    for _ in range(600):
        parts.watch()
        other.watch()
        await asyncio.sleep(0.1)
    assert 0 < len(api.writes()) - before < 60


# Pods on a card that has a fault.

BROKEN = replace(CARD, healthy=False, fault="Xid 79")
WHERE = "GPU GPU-node-a-0 (index 0 of node node-a)"
UNHEALTHY = (True, "GPUUnhealthy", f"{WHERE}: its node reports a fault: Xid 79")
HEALTHY = (False, "GPUHealthy", f"{WHERE} works again, as its node reports")


async def with_holders(api: ApiServer, *cards: Card) -> OperatorParts:
    """Return an operator that has taken in node-a; pods `a` and `b` hold its first card, `c` the second one."""
    api.put_card(CARD, a_holder("a", a_share(CARD)), a_holder("b", a_share(CARD)))
    api.put_card(SECOND, a_holder("c", a_share(SECOND)))
    return await a_cluster(api, *cards)


async def test_a_cards_fault_is_in_its_status_in_its_nodes_words(api: ApiServer) -> None:
    parts = await a_cluster(api)
    await report(parts, BROKEN, SECOND)
    assert phase_of(api, CARD) == ("Unhealthy", "its node reports a fault: Xid 79")
    await report(parts, replace(BROKEN, fault=""), SECOND)
    assert phase_of(api, CARD) == ("Unhealthy", "its node reports a fault")
    await report(parts, replace(BROKEN, fault="x" * 256), SECOND)
    assert len(phase_of(api, CARD)[1]) == 256
    await report(parts, replace(CARD, fault="of no account"), SECOND)
    assert phase_of(api, CARD) == ("Ready", "")


async def test_each_holder_of_a_card_is_told_once_when_it_fails_and_once_when_it_comes_back(api: ApiServer) -> None:
    parts = await with_holders(api)
    for slots in (80, 79, 78):
        await report(parts, BROKEN, SECOND, slots=slots)
    await report(parts, replace(BROKEN, fault="Xid 48"), SECOND)
    assert parts.told_pods == [("a", *UNHEALTHY), ("b", *UNHEALTHY)]
    await report(parts, *CARDS)
    assert parts.told_pods[2:] == [("a", *HEALTHY), ("b", *HEALTHY)]


async def test_an_agent_that_goes_and_comes_does_not_have_pods_told_again(api: ApiServer) -> None:
    parts = await with_holders(api)
    for slots in (80, 0, 80):
        await report(parts, BROKEN, SECOND, slots=slots)
    assert len(parts.told_pods) == 2


async def test_what_was_known_before_the_operator_came_is_not_told_again(api: ApiServer) -> None:
    await report(await with_holders(api), BROKEN, SECOND)
    successor = an_operator(api)
    await successor.idle()
    assert phase_of(api, CARD)[0] == "Unhealthy"
    assert successor.told_pods == []
    await report(successor, *CARDS)
    assert [uid for uid, *_ in successor.told_pods] == ["a", "b"]


@pytest.mark.parametrize("faults", [[refuse_with(Unreachable("no", 503))], [lose_answer()]], ids=["refused", "lost"])
async def test_a_write_that_has_to_be_repeated_tells_everybody_once(api: ApiServer, faults: list[Fault]) -> None:
    parts = await with_holders(api)
    api.queue(Operation.REPLACE_CARD, *faults)
    api.queue(Operation.WRITE_STATUS, *faults)
    await report(parts, BROKEN, SECOND)
    assert [uid for uid, *_ in parts.told_pods] == ["a", "b"]
    assert phase_of(api, CARD)[0] == "Unhealthy"


async def test_a_card_that_is_new_to_the_ledger_tells_nobody(api: ApiServer) -> None:
    parts = await a_cluster(api, BROKEN, SECOND)
    assert parts.told_pods == []


def cordon(api: ApiServer, card: Card, why: str | None) -> None:
    """Let a person cordon a card, or with None uncordon it."""
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {} if why is None else {CORDON_ANNOTATION: why}}]
    api._patch_card(api.cards[card.object_name], patch, of_status=False)


async def test_a_cordoned_card_says_why_takes_nobody_and_keeps_its_holders(api: ApiServer) -> None:
    parts = await a_cluster(api)
    parts.observer.synced = True
    await parts.add("stays", a_share(CARD))
    cordon(api, CARD, "fans are to be changed")
    await parts.idle()
    assert phase_of(api, CARD) == ("Cordoned", "fans are to be changed")
    assert [room.card for room in parts.ledger.node_room("node-a").rooms] == [SECOND]
    assert [holder.pod.uid for holder in api.card(CARD).holders or ()] == ["stays"]
    await report(parts, replace(CARD, index=7), SECOND)  # what its node changes of it does not undo that
    assert phase_of(api, CARD)[0] == "Cordoned"
    cordon(api, CARD, None)
    await parts.idle()
    assert len(parts.ledger.node_room("node-a").rooms) == 2
    await asyncio.sleep(60)  # what is changed again and again is written down later and later
    await parts.idle()
    assert phase_of(api, CARD) == ("Ready", "")


async def test_cordoning_without_a_reason_counts(api: ApiServer) -> None:
    parts = await a_cluster(api)
    parts.observer.synced = True
    cordon(api, CARD, "")
    await parts.idle()
    assert phase_of(api, CARD)[0] == "Cordoned"


async def test_a_cordoned_card_that_comes_and_goes_stays_cordoned_until_its_node_goes(api: ApiServer) -> None:
    parts = await a_cluster(api)
    parts.observer.synced = True
    cordon(api, CARD, "falls off the bus")
    await report(parts, SECOND)
    assert phase_of(api, CARD)[0] == "Unavailable"
    await report(parts, *CARDS)
    assert phase_of(api, CARD)[0] == "Cordoned"
    await report(parts, SECOND)
    cordon(api, CARD, None)
    parts.watch()
    await asyncio.sleep(5.0)  # it has changed several times in a moment
    assert list(api.cards) == [SECOND.object_name]
    await report(parts, *CARDS)
    cordon(api, CARD, "again")
    api.delete_node("node-a")
    await parts.idle()
    assert api.cards == {}
