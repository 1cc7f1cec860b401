"""The journal: what gathers travels together, what is refused fails alone, and no lost answer enters a share twice."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share, first_attempts, whole_share
from fakes.api_server import ApiServer, Operation, deliver_late, hold_answer, hold_request, lose_answer, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.counters import count
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import now_s, settle
from gpuledger.model.card import Amounts
from gpuledger.model.errors import Denied, Invalid, ShareRefused, Unreachable
from gpuledger.model.share import ContainerShare, Holder, HolderState
from gpuledger.workflows.journal.journal import WRITES_AT_ONCE, OlderThanKnown

CARD = a_card()
READ, WRITE = Operation.READ_CARD, Operation.WRITE_STATUS


def start(step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(step)


async def add_while_a_patch_is_in_flight(api: ApiServer, parts: OperatorParts, *uids: str) -> list[asyncio.Task[None]]:
    """Enter the first pod with its PATCH held, the others behind it; return the tasks with the answer on its way."""
    answer = asyncio.Event()
    api.queue(WRITE, hold_answer(answer))
    tasks = [start(parts.add(uids[0], a_share(CARD)))]
    await settle()
    tasks += [start(parts.add(uid, a_share(CARD))) for uid in uids[1:]]
    await settle()
    answer.set()
    return tasks


def releasing(holder: Holder) -> Holder:
    return replace(holder, state=HolderState.RELEASING, deadline="2030-01-01T00:00:00Z")


def delete_card(api: ApiServer, parts: OperatorParts) -> None:
    """Let somebody delete the card, and the operator see it."""
    api.delete_card(CARD)
    parts.watch()


def create_card_again(api: ApiServer, parts: OperatorParts) -> None:
    """Let the card come back without a status, and the operator see it."""
    api.put_card(CARD, opened=False)
    parts.watch()


def refuse_pod(api: ApiServer, pod_uid: str) -> None:
    """Have the API server refuse a card with a holder of this pod, or of one whose UID begins so."""
    api.rules.append(lambda card: not any(uid.startswith(pod_uid) for uid in holders_in(card)))


def holders_in(card: dict[str, Any]) -> list[str]:
    """Return the pods' UIDs: only these, for names of attempts are random and can contain any text."""
    return [holder["podUID"] for holder in (card.get("status") or {}).get("holders", ())]


def times_in_a_patch(api: ApiServer, pod_uid: str) -> int:
    added = [[op["value"]["podUID"] for op in patch if op["path"] == "/status/holders/-"] for patch in api.patches()]
    return sum(pod_uid in uids for uids in added)


async def test_an_entry_is_stored_with_its_totals(api: ApiServer) -> None:
    api.put_card(CARD)
    await an_operator(api).add("a", a_share(CARD, 4_000, 30))
    status = api.cards[CARD.object_name]["status"]
    assert status["used"] == {"memoryMiB": 4_000, "cores": 30, "number": 1}
    assert status["pods"] == "default/a"
    assert api.holders_of(CARD) == ["a"]


async def test_entries_that_arrive_while_a_patch_is_in_flight_travel_in_one_patch(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    await asyncio.gather(*await add_while_a_patch_is_in_flight(api, parts, "a", "b", "c", "d"))
    assert api.holders_of(CARD) == ["a", "b", "c", "d"]
    assert len(api.patches()) == 2
    counts = parts.journal.counts
    assert (count(counts.patches), count(counts.entries)) == (2, 4)
    seen = ("seconds_count", "entries_count", "entries_sum")
    assert [counts.registry.get_sample_value(f"gpuledger_ledger_write_{name}") for name in seen] == [2, 2, 4]


async def test_removals_and_entries_travel_together_and_make_room_for_each_other(api: ApiServer) -> None:
    holders = [a_holder(uid, a_share(CARD, 4_000)) for uid in ("a", "b", "c", "d")]
    api.put_card(CARD, *holders)
    parts = an_operator(api)
    await asyncio.gather(
        parts.add("e", a_share(CARD, 8_000)),
        parts.journal.remove(CARD.uuid, "a"),
        parts.journal.remove(CARD.uuid, "c"),
    )
    assert api.holders_of(CARD) == ["b", "d", "e"]
    assert len(api.patches()) == 1


async def test_a_removal_before_an_entry_of_the_same_pod_leaves_the_entry(api: ApiServer) -> None:
    """A sweep that is on its way when the pod's Bind comes must not take away what the Bind was told it has."""
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    await asyncio.gather(parts.journal.remove(CARD.uuid, "a"), parts.journal.add(holder, 10.0))
    assert api.holders_of(CARD) == ["a"]


async def test_what_is_so_already_costs_no_write(api: ApiServer) -> None:
    holder = releasing(a_holder("a", a_share(CARD)))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    await parts.journal.change(holder)
    await parts.journal.remove(CARD.uuid, "nobody")
    await parts.journal.describe(CARD.uuid, "Ready", "")
    assert api.patches() == []


async def test_a_card_that_is_older_than_it_was_is_not_relied_on(api: ApiServer) -> None:
    """Etcd was put back: what memory has of the card never happened."""
    api.put_card(CARD)
    parts = an_operator(api)
    old = api.cards[CARD.object_name]
    entered = await parts.journal.add(a_holder("a", a_share(CARD)), 10.0)
    holder = replace(a_holder("a", a_share(CARD)), attempt=entered.attempt)
    assert await parts.journal.still_has(holder)

    told: list[str] = []
    parts.journal.reader.on_older.append(lambda: told.append("older"))
    api.cards[CARD.object_name] = old
    with pytest.raises(OlderThanKnown, match="was restored from an older state"):
        await parts.journal.still_has(holder)
    assert told == ["older"]


async def test_another_share_of_the_same_pod_is_refused(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("a", a_share(CARD, 1_000)))
    with pytest.raises(ShareRefused, match="another share"):
        await an_operator(api).add("a", a_share(CARD, 2_000))


async def test_an_entry_that_is_always_refused_fails_alone(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    refuse_pod(api, "bad")
    results = await asyncio.gather(
        *await add_while_a_patch_is_in_flight(api, parts, "a", "b", "bad", "c"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), type(None), Invalid, type(None)]
    assert sorted(api.holders_of(CARD)) == ["a", "b", "c"]


async def test_an_entry_is_in_at_most_two_patches_that_are_refused(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    refuse_pod(api, "bad")
    uids = ("a", "bad-1", "b", "bad-2", "c")
    await asyncio.gather(*await add_while_a_patch_is_in_flight(api, parts, *uids), return_exceptions=True)
    assert [times_in_a_patch(api, uid) for uid in uids] == [1, 2, 2, 2, 2]
    assert count(parts.journal.counts.refusals) == 3  # the group, and each bad one alone


async def test_a_lost_answer_is_found_out_and_the_entry_is_there_once(api: ApiServer) -> None:
    api.put_card(CARD)
    api.queue(WRITE, lose_answer())
    await an_operator(api).add("a", a_share(CARD))
    assert api.holders_of(CARD) == ["a"]
    assert len(api.patches()) == 1


async def test_a_lost_request_is_sent_again(api: ApiServer) -> None:
    api.put_card(CARD)
    api.queue(WRITE, lose_request())
    await an_operator(api).add("a", a_share(CARD))
    assert api.holders_of(CARD) == ["a"]
    assert len(api.patches()) == 2


async def test_an_answer_that_does_not_come_is_given_up_and_looked_up(api: ApiServer) -> None:
    api.put_card(CARD)
    api.queue(WRITE, hold_answer(asyncio.Event()))
    await an_operator(api).add("a", a_share(CARD))
    assert api.holders_of(CARD) == ["a"]
    assert len(api.patches()) == 1


async def test_a_request_that_arrives_after_its_repetition_changes_nothing(api: ApiServer) -> None:
    api.put_card(CARD)
    late = asyncio.Event()
    api.queue(WRITE, deliver_late(late))
    await an_operator(api).add("a", a_share(CARD))
    before = api.card(CARD)
    late.set()
    await settle()
    assert api.card(CARD) == before


async def test_the_look_up_after_a_lost_answer_may_fail_too(api: ApiServer) -> None:
    api.put_card(CARD)
    api.queue(WRITE, lose_answer(), lose_answer())
    api.queue(READ, lose_request())
    await an_operator(api).add("a", a_share(CARD))
    assert api.holders_of(CARD) == ["a"]


async def test_an_entry_that_still_fits_after_another_writer_gets_in(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.put_card(CARD, a_holder("other", a_share(CARD, 15_000)))
    await parts.add("a", a_share(CARD, 1_000))
    assert api.holders_of(CARD) == ["other", "a"]
    assert count(parts.journal.counts.refusals) == 1


async def test_an_entry_that_no_longer_fits_after_another_writer_fails_without_a_second_patch(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.put_card(CARD, a_holder("other", a_share(CARD, 15_001)))
    with pytest.raises(ShareRefused):
        await parts.add("a", a_share(CARD, 1_000))
    assert api.holders_of(CARD) == ["other"]
    assert len(api.patches()) == 1


async def test_a_whole_card_is_not_entered_beside_another_writers_holder(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.put_card(CARD, a_holder("other", a_share(CARD, 1)))
    with pytest.raises(ShareRefused):
        await parts.add("a", whole_share(CARD))
    assert api.holders_of(CARD) == ["other"]


async def test_a_stale_index_never_removes_another_pod(api: ApiServer) -> None:
    """Equal shares: the sums would be right for whichever of the two goes."""
    mine, other = (a_holder(uid, a_share(CARD)) for uid in ("mine", "other"))
    api.put_card(CARD, mine, other)
    parts = an_operator(api)
    api.put_card(CARD, other, mine)
    await parts.journal.remove(CARD.uuid, "mine")
    assert api.holders_of(CARD) == ["other"]
    assert count(parts.journal.counts.refusals) == 1


async def test_a_stale_index_never_changes_another_pod(api: ApiServer) -> None:
    mine, other = (a_holder(uid, a_share(CARD)) for uid in ("mine", "other"))
    api.put_card(CARD, mine, other)
    parts = an_operator(api)
    api.put_card(CARD, other, mine)
    await parts.journal.change(releasing(mine))
    states = {holder.pod.uid: holder.state for holder in api.card(CARD).holders or ()}
    assert states == {"other": HolderState.ALLOCATED, "mine": HolderState.RELEASING}


async def test_a_change_of_a_pod_that_has_left_unseen_does_not_overwrite_who_came_in_its_place(api: ApiServer) -> None:
    mine, other = (a_holder(uid, a_share(CARD)) for uid in ("mine", "other"))
    api.put_card(CARD, mine)
    parts = an_operator(api)
    api.put_card(CARD, other)
    await parts.journal.change(releasing(mine))
    assert api.card(CARD).holders == (other,)


async def test_a_change_leaves_a_share_alone_that_another_operator_has_entered_for_the_pod(api: ApiServer) -> None:
    """Both bind the pod, and have given its containers other parts of this card."""
    mine, theirs = (a_holder("a", a_share(CARD, memory_mib=memory_mib)) for memory_mib in (1_000, 2_000))
    api.put_card(CARD, theirs)
    parts = an_operator(api)
    await parts.journal.change(releasing(mine))
    assert api.card(CARD).holders == (theirs,)


async def test_a_change_never_writes_what_memory_takes_for_the_share(api: ApiServer) -> None:
    shares = [replace(a_share(CARD), containers=(ContainerShare(name, 1_000, 0),)) for name in ("first", "second")]
    mine, theirs = (a_holder("a", share) for share in shares)
    api.put_card(CARD, mine)
    parts = an_operator(api)
    api.put_card(CARD, theirs)
    await parts.journal.change(releasing(mine))
    assert [holder.share for holder in api.card(CARD).holders or ()] == [theirs.share]


async def test_a_holder_that_is_only_remembered_is_entered_again(api: ApiServer) -> None:
    """Another operator has taken it back, and we have not seen that."""
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    parts = an_operator(api)
    api.put_card(CARD)
    api.queue(READ, lose_request(), lose_request())
    entered = await parts.journal.add(a_holder("a", a_share(CARD)), 10.0)
    assert entered.took_over == {"first"}  # who knows what became of it
    assert api.holders_of(CARD) == ["a"]
    assert count(parts.journal.counts.refusals) == 1


async def test_who_enters_what_is_there_already_makes_it_an_attempt_of_its_own_in_one_write(api: ApiServer) -> None:
    old = a_holder("old", a_share(CARD))
    api.put_card(CARD, old)
    parts = an_operator(api)
    entered = await asyncio.gather(
        parts.journal.add(old, 10.0), parts.journal.add(a_holder("new", a_share(CARD)), 10.0)
    )
    assert [step.took_over for step in entered] == [{"first"}, set()]
    holders = api.card(CARD).holders or ()
    assert [step.attempt for step in entered] == [holder.attempt for holder in holders]
    assert first_attempts(holders) == (old, a_holder("new", a_share(CARD)))
    assert len({holder.attempt for holder in holders} - {"first"}) == 2
    assert (len(api.patches()), len(api.called(READ))) == (1, 0)


async def test_what_an_attempt_has_entered_is_its_own_even_if_the_answer_was_lost(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.queue(WRITE, lose_answer())
    entered = await parts.journal.add(a_holder("a", a_share(CARD)), 10.0)
    assert entered.took_over == set()
    assert len(api.patches()) == 1


async def test_who_was_entered_by_another_attempt_meanwhile_is_taken_over_from_it(api: ApiServer) -> None:
    """Two operators enter one pod; memory of this one does not know that yet."""
    api.put_card(CARD)
    parts = an_operator(api)
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    entered = await parts.journal.add(a_holder("a", a_share(CARD)), 10.0)
    assert entered.took_over == {"first"}
    assert [holder.attempt for holder in api.card(CARD).holders or ()] == [entered.attempt]


async def test_a_holder_that_somebody_has_written_by_hand_is_like_any_other(api: ApiServer) -> None:
    """It names no attempt."""
    by_hand = replace(a_holder("a", a_share(CARD)), attempt="")
    api.put_card(CARD, by_hand, replace(by_hand, pod=replace(by_hand.pod, uid="b")))
    parts = an_operator(api)
    entered = await parts.journal.add(by_hand, 10.0)
    await parts.journal.change(releasing(replace(by_hand, pod=replace(by_hand.pod, uid="b"))))
    states = [(holder.attempt, holder.state) for holder in api.card(CARD).holders or ()]
    assert states == [(entered.attempt, HolderState.ALLOCATED), ("", HolderState.RELEASING)]
    await parts.journal.remove(CARD.uuid, "b", (api.card(CARD).holders or ())[1])
    assert api.holders_of(CARD) == ["a"]
    assert count(parts.journal.counts.refusals) == 0


async def test_a_change_that_arrives_late_leaves_a_newer_attempt_alone(api: ApiServer) -> None:
    """The mark of an older one: it was tried again, the share removed, and entered anew."""
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    parts = an_operator(api)
    late = asyncio.Event()
    api.queue(WRITE, deliver_late(late))
    await parts.journal.change(releasing(a_holder("a", a_share(CARD))))
    await parts.journal.remove(CARD.uuid, "a")
    await parts.add("a", a_share(CARD))
    late.set()
    await settle()
    assert [holder.state for holder in api.card(CARD).holders or ()] == [HolderState.ALLOCATED]


async def test_nothing_is_entered_for_a_pod_whose_share_is_being_given_back(api: ApiServer) -> None:
    """It is known so at the API server alone."""
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    api.put_card(CARD, releasing(holder))
    with pytest.raises(ShareRefused, match="is still being released"):
        await parts.add("a", a_share(CARD))
    assert api.card(CARD).holders == (releasing(holder),)


async def test_a_change_is_tried_until_it_is_done(api: ApiServer) -> None:
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    api.rules.append(lambda _: False)
    api.queue(WRITE, lose_request(), lose_request(), refuse_with(Denied("forbidden", 403)))
    change = start(parts.journal.change(releasing(holder)))
    await asyncio.sleep(20.0)
    assert not change.done()
    api.rules.clear()
    await change
    assert api.card(CARD).holders == (releasing(holder),)


async def test_a_removal_of_what_is_releasing_leaves_what_a_newer_attempt_has_entered(api: ApiServer) -> None:
    """Memory knows the older one, at the same place on the card."""
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, releasing(holder))
    parts = an_operator(api)
    api.put_card(CARD, holder)
    await parts.journal.remove(CARD.uuid, "a", releasing(holder))
    assert api.card(CARD).holders == (holder,)
    assert len(api.patches()) == 1


async def test_a_removal_of_what_is_releasing_that_arrives_late_leaves_a_newer_attempt_alone(api: ApiServer) -> None:
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, releasing(holder))
    parts = an_operator(api)
    late = asyncio.Event()
    api.queue(WRITE, deliver_late(late))
    with pytest.raises(Unreachable):
        await parts.journal.remove(CARD.uuid, "a", releasing(holder))
    await parts.journal.remove(CARD.uuid, "a", releasing(holder))
    await parts.journal.add(holder, 10.0)
    late.set()
    await settle()
    assert api.holders_of(CARD) == ["a"]


async def test_a_removal_without_an_answer_is_not_sent_again_before_somebody_has_looked_at_the_pod(
    api: ApiServer,
) -> None:
    """Nor is one that waits behind a write without an answer: etcd may be put back to when the pods still ran."""
    a, b = (a_holder(uid, a_share(CARD, 8_000)) for uid in "ab")
    api.put_card(CARD, a, b)
    parts = an_operator(api)
    api.queue(WRITE, lose_request())
    first = asyncio.create_task(parts.journal.remove(CARD.uuid, "a"))
    await asyncio.sleep(0)
    results = await asyncio.gather(first, parts.journal.remove(CARD.uuid, "b"), return_exceptions=True)
    assert [type(result) for result in results] == [Unreachable, Unreachable]
    assert api.holders_of(CARD) == ["a", "b"]


async def test_nobody_relies_on_a_share_that_is_not_on_the_card_as_it_is_read_though_a_watch_has_shown_it(
    api: ApiServer,
) -> None:
    """Its write had no answer, and etcd was put back."""
    api.put_card(CARD)
    parts, copy = an_operator(api), api.cards[CARD.object_name]
    api.queue(WRITE, lose_answer())
    adding = asyncio.create_task(parts.journal.add(a_holder("a", a_share(CARD)), 3.0))
    await settle()
    assert parts.ledger.load(api.card(CARD))
    api.cards[CARD.object_name] = copy
    with pytest.raises(Unreachable):
        await adding


async def test_a_removal_of_an_older_attempt_leaves_a_newer_one_alone_in_whatever_state(api: ApiServer) -> None:
    """It may be that the newer one was marked as well, and then bound: only who has marked it can know."""
    older, newer = (replace(releasing(a_holder("a", a_share(CARD))), attempt=name) for name in ("older", "newer"))
    api.put_card(CARD, older)
    parts = an_operator(api)
    api.put_card(CARD, newer)
    await parts.journal.remove(CARD.uuid, "a", older)
    assert api.card(CARD).holders == (newer,)


async def test_a_removal_of_what_is_releasing_makes_room_and_one_of_what_is_not_makes_none(api: ApiServer) -> None:
    leaves, stays = (a_holder(uid, a_share(CARD, 8_000)) for uid in ("leaves", "stays"))
    api.put_card(CARD, releasing(leaves), stays)
    parts = an_operator(api)
    results = await asyncio.gather(
        *(parts.journal.remove(CARD.uuid, each.pod.uid, releasing(each)) for each in (leaves, stays)),
        *(parts.add(uid, a_share(CARD, 8_000)) for uid in ("one", "two")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), type(None), type(None), ShareRefused]
    assert api.holders_of(CARD) == ["stays", "one"]
    assert len(api.patches()) == 1


@pytest.mark.parametrize("while_it_is_away", [True, False])
async def test_a_card_that_came_back_is_opened_without_what_was_releasing(
    api: ApiServer, while_it_is_away: bool
) -> None:
    leaves, stays = (a_holder(uid, a_share(CARD)) for uid in ("leaves", "stays"))
    api.put_card(CARD, releasing(leaves), stays)
    parts = an_operator(api)
    removals = [parts.journal.remove(CARD.uuid, each.pod.uid, releasing(each)) for each in (leaves, stays)]
    delete_card(api, parts)
    if while_it_is_away:
        await asyncio.gather(*removals)
    create_card_again(api, parts)
    opening = [] if while_it_is_away else removals
    await asyncio.gather(*opening, parts.journal.describe(CARD.uuid, "Ready", ""))
    assert api.card(CARD).holders == (stays,)


async def test_a_change_of_a_pod_that_has_left_is_nothing_to_do(api: ApiServer) -> None:
    api.put_card(CARD)
    await an_operator(api).journal.change(a_holder("gone", a_share(CARD)))
    assert api.patches() == []


async def test_a_removal_is_tried_until_it_is_done_even_if_another_writer_is_faster_each_time(api: ApiServer) -> None:
    mine = a_holder("mine", a_share(CARD))
    others = [a_holder(f"other-{number}", a_share(CARD)) for number in range(4)]
    api.put_card(CARD, mine)
    parts = an_operator(api)
    gates = [asyncio.Event() for _ in others]
    api.queue(WRITE, *map(hold_request, gates))
    removal = start(parts.journal.remove(CARD.uuid, "mine"))
    for number, gate in enumerate(gates):
        await asyncio.sleep(0.1)
        api.put_card(CARD, *others[: number + 1], mine)
        gate.set()
    await removal
    assert api.holders_of(CARD) == [other.pod.uid for other in others]


async def test_a_removal_that_is_refused_again_and_again_keeps_nobody_else_waiting(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("stuck", a_share(CARD)))
    parts = an_operator(api)
    api.rules.append(lambda card: "stuck" in holders_in(card))
    removal = start(parts.journal.remove(CARD.uuid, "stuck"))
    await asyncio.gather(*(parts.add(uid, a_share(CARD)) for uid in ("a", "b")))
    assert not removal.done()
    api.rules.clear()
    await removal
    assert sorted(api.holders_of(CARD)) == ["a", "b"]


async def test_an_entry_that_timed_out_while_it_waited_is_never_sent(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    answer = asyncio.Event()
    api.queue(WRITE, hold_answer(answer))
    first = start(parts.add("first", a_share(CARD)))
    await settle()
    with pytest.raises(Unreachable):
        await parts.add("late", a_share(CARD), timeout_s=0.5)
    answer.set()
    await first
    await settle()
    assert times_in_a_patch(api, "late") == 0
    assert api.holders_of(CARD) == ["first"]


async def test_an_entry_that_timed_out_in_flight_and_is_then_removed_leaves_nothing(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    answer = asyncio.Event()
    api.queue(WRITE, hold_answer(answer))
    with pytest.raises(Unreachable):
        await parts.add("a", a_share(CARD), timeout_s=0.5)
    removal = start(parts.journal.remove(CARD.uuid, "a"))
    await settle()
    assert not removal.done()  # it waits for the fate of the entry
    answer.set()
    await removal
    assert api.holders_of(CARD) == []
    assert parts.entry(CARD).holders == {}


async def test_a_card_that_is_gone_takes_no_entry_and_every_removal_succeeds(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    parts = an_operator(api)
    api.delete_card(CARD)
    with pytest.raises(ShareRefused, match="is gone"):
        await parts.add("b", a_share(CARD))
    await parts.journal.remove(CARD.uuid, "a")
    assert parts.ledger.holders.uids() == []


async def test_a_holder_that_is_remembered_on_a_card_that_is_gone_is_not_taken_for_entered(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    parts = an_operator(api)
    api.delete_card(CARD)
    with pytest.raises(ShareRefused, match="is gone"):
        await parts.add("a", a_share(CARD))


async def test_a_card_that_is_unknown_takes_no_entry_and_every_removal_succeeds(api: ApiServer) -> None:
    parts = an_operator(api)
    with pytest.raises(ShareRefused):
        await parts.add("a", a_share(CARD))
    await parts.journal.remove(CARD.uuid, "a")
    assert api.calls == []


async def test_a_card_without_a_first_status_takes_no_entry(api: ApiServer) -> None:
    api.put_card(CARD, opened=False)
    with pytest.raises(ShareRefused, match="takes no pods yet"):
        await an_operator(api).add("a", a_share(CARD))


async def test_the_first_status_of_a_card_that_came_back_restores_its_holders(api: ApiServer) -> None:
    api.put_card(CARD, *(a_holder(uid, a_share(CARD)) for uid in ("stays", "leaves", "leaves with it")))
    parts = an_operator(api)
    delete_card(api, parts)
    await parts.journal.remove(CARD.uuid, "leaves")
    create_card_again(api, parts)
    await asyncio.gather(
        parts.journal.remove(CARD.uuid, "leaves with it"), parts.journal.describe(CARD.uuid, "Ready", "")
    )
    assert api.holders_of(CARD) == ["stays"]
    assert api.card(CARD).phase == "Ready"


async def test_a_change_that_travels_with_the_first_status_of_a_card_that_came_back_is_in_it(api: ApiServer) -> None:
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    delete_card(api, parts)
    create_card_again(api, parts)
    await asyncio.gather(parts.journal.change(releasing(holder)), parts.journal.describe(CARD.uuid, "Ready", ""))
    assert api.card(CARD).holders == (releasing(holder),)


async def test_who_takes_over_a_share_of_a_card_that_came_back_has_its_name_in_the_first_status(api: ApiServer) -> None:
    holder = a_holder("a", a_share(CARD))
    api.put_card(CARD, holder)
    parts = an_operator(api)
    delete_card(api, parts)
    create_card_again(api, parts)
    entered = await parts.journal.add(holder, 10.0)
    assert [each.attempt for each in api.card(CARD).holders or ()] == [entered.attempt]


async def test_opening_a_card_that_somebody_else_opened_meanwhile_keeps_their_holders(api: ApiServer) -> None:
    api.put_card(CARD, opened=False)
    parts = an_operator(api)
    api.put_card(CARD, a_holder("theirs", a_share(CARD)), phase="Pending")
    await parts.journal.describe(CARD.uuid, "Ready", "")
    assert api.holders_of(CARD) == ["theirs"]
    assert api.card(CARD).phase == "Ready"
    assert list(parts.entry(CARD).holders) == ["theirs"]


async def test_a_description_changes_no_holder_and_no_total(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("a", a_share(CARD)))
    await an_operator(api).journal.describe(CARD.uuid, "Unhealthy", "its node reports a fault")
    card = api.card(CARD)
    assert (card.phase, card.reason) == ("Unhealthy", "its node reports a fault")
    assert [operation["path"] for operation in api.patches()[0]] == ["/status/phase", "/status/reason"]


async def test_too_many_requests_are_answered_by_waiting_as_long_as_asked(api: ApiServer) -> None:
    api.put_card(CARD)
    api.queue(WRITE, refuse_with(Unreachable("too many requests", 429, retry_after_s=7.0)))
    began = now_s()
    await an_operator(api).add("a", a_share(CARD))
    assert 7.0 <= now_s() - began < 7.1
    assert api.holders_of(CARD) == ["a"]


async def test_pauses_after_errors_grow_to_a_limit_and_start_again_small_after_a_success(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    api.queue(WRITE, *[lose_request()] * 9)
    began = now_s()
    await parts.add("a", a_share(CARD), timeout_s=100.0)
    assert now_s() - began == pytest.approx(0.05 * (2**7 - 1) + 2 * 5.0, abs=0.1)
    api.queue(WRITE, lose_request())
    began = now_s()
    await parts.add("b", a_share(CARD))
    assert now_s() - began == pytest.approx(0.05, abs=0.01)


async def test_a_card_that_pauses_holds_no_other_card_up(api: ApiServer) -> None:
    cards = [a_card(index) for index in range(WRITES_AT_ONCE + 1)]
    for card in cards:
        api.put_card(card)
    parts = an_operator(api)
    api.queue(WRITE, *[refuse_with(Unreachable("later", 429, retry_after_s=60.0))] * WRITES_AT_ONCE)
    waiting = [start(parts.add("a", a_share(card), timeout_s=100.0)) for card in cards[:-1]]
    await settle()
    began = now_s()
    await parts.add("a", a_share(cards[-1]))
    assert now_s() - began < 1.0
    await asyncio.gather(*waiting)


async def test_who_may_not_write_is_told_so_and_a_removal_goes_on_trying(api: ApiServer) -> None:
    api.put_card(CARD, a_holder("old", a_share(CARD)))
    parts = an_operator(api)
    api.queue(WRITE, *[refuse_with(Denied("forbidden", 403))] * 3)
    removal = start(parts.journal.remove(CARD.uuid, "old"))
    with pytest.raises(Denied):
        await parts.add("new", a_share(CARD))
    await removal
    assert api.holders_of(CARD) == []


async def test_there_are_never_more_patches_in_flight_than_allowed(api: ApiServer) -> None:
    cards = [a_card(index) for index in range(2 * WRITES_AT_ONCE)]
    for card in cards:
        api.put_card(card)
    parts = an_operator(api)
    gate = asyncio.Event()
    api.queue(WRITE, *[hold_request(gate)] * len(cards))
    tasks = [start(parts.add("a", a_share(card))) for card in cards]
    await settle()
    assert api.in_flight[WRITE] == WRITES_AT_ONCE
    gate.set()
    await asyncio.gather(*tasks)
    assert api.most_in_flight[WRITE] == WRITES_AT_ONCE
    assert len(api.patches()) == len(cards)


async def test_what_waits_for_its_turn_gathers_more_entries(api: ApiServer) -> None:
    cards = [a_card(index) for index in range(WRITES_AT_ONCE + 1)]
    for card in cards:
        api.put_card(card)
    parts = an_operator(api)
    gate = asyncio.Event()
    api.queue(WRITE, *[hold_request(gate)] * WRITES_AT_ONCE)
    tasks = [start(parts.add("a", a_share(card))) for card in cards]
    await settle()
    tasks += [start(parts.add(uid, a_share(cards[-1]))) for uid in ("b", "c")]
    await settle()
    gate.set()
    await asyncio.gather(*tasks)
    assert len(api.patches()) == len(cards)
    assert api.holders_of(cards[-1]) == ["a", "b", "c"]


async def test_a_group_is_bounded(api: ApiServer) -> None:
    card = a_card(memory_mib=1_000, number=200)
    api.put_card(card)
    parts = an_operator(api)
    await asyncio.gather(*(parts.add(f"p{number}", a_share(card, 1)) for number in range(130)))
    added = [sum(op["path"] == "/status/holders/-" for op in patch) for patch in api.patches()]
    assert added == [64, 64, 2]


async def test_two_operators_fill_a_card_without_overcommitting_it(api: ApiServer) -> None:
    card = a_card(memory_mib=10_000, number=20)
    api.put_card(card)
    operators = [an_operator(api), an_operator(api)]
    tries = [operators[number % 2].add(f"p{number}", a_share(card, 1_000)) for number in range(14)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert len(api.holders_of(card)) <= 10
    assert len(api.holders_of(card)) == sum(result is None for result in results)
    assert {type(result) for result in results} <= {type(None), ShareRefused, Invalid}


async def test_a_defect_leaves_nobody_waiting(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put_card(CARD)
    parts = an_operator(api)

    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(api.store, "patch_allocation_status", broken)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await parts.add("a", a_share(CARD))


async def test_what_the_journal_wrote_is_known_without_a_watch(api: ApiServer) -> None:
    api.put_card(CARD)
    parts = an_operator(api)
    await parts.add("a", a_share(CARD, 4_000))
    assert [holder.share.amounts for holder in parts.entry(CARD).holders.values()] == [Amounts(4_000, 0, 1)]
    stale = api.changes[0].object
    parts.observer.allocation(stale, gone=False)
    assert list(parts.entry(CARD).holders) == ["a"]


def gathering(api: ApiServer) -> OperatorParts:
    api.put_card(CARD)
    parts = an_operator(api)
    parts.journal._gather_s = 0.03  # as at the start of an operator
    return parts


async def test_pods_in_a_burst_gather_before_the_first_patch_of_their_card(api: ApiServer) -> None:
    parts, other = gathering(api), a_card(1)
    api.put_card(other)
    parts.watch()
    await parts.add("first", a_share(other))
    tasks = []
    for uid in "abcd":
        tasks.append(start(parts.add(uid, a_share(CARD))))
        await asyncio.sleep(0.008)
    await asyncio.gather(*tasks)
    assert api.holders_of(CARD) == ["a", "b", "c", "d"]
    assert len(api.patches()) == 2, "one for each card"


async def test_a_pod_that_comes_by_itself_does_not_wait_for_others(api: ApiServer) -> None:
    parts = gathering(api)
    for uid in "ab":
        before = now_s()
        await parts.add(uid, a_share(CARD))
        assert now_s() == before
        await asyncio.sleep(1)


async def test_one_pod_on_several_cards_is_no_burst_and_whole_cards_have_nothing_to_wait_for(api: ApiServer) -> None:
    parts, other = gathering(api), a_card(1)
    api.put_card(other)
    parts.watch()
    before = now_s()
    await asyncio.gather(parts.add("a", a_share(CARD)), parts.add("a", a_share(other)))
    assert now_s() == before
    third = a_card(2)
    api.put_card(third)
    parts.watch()
    await parts.add("b", whole_share(third))
    assert now_s() == before
