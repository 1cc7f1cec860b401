"""The list of a card's conflicts: written with what else waits, one entry for each pod, and never counted."""

import asyncio

import pytest

from builders import a_card, a_holder, a_pod, a_share
from fakes.api_server import ApiServer, Operation, hold_request, lose_answer
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.custom_resource.stored_card import MAX_CONFLICTS
from gpuledger.model.card import Amounts
from gpuledger.model.errors import ShareRefused
from gpuledger.model.share import Misfit

CARD = a_card()


def misfit(uid: str = "a", why: str = "it has no room") -> Misfit:
    return Misfit(a_pod(uid), Amounts(1_000, 10, 1), why)


def listed(api: ApiServer) -> list[str]:
    return [misfit.pod.uid for misfit in api.card(CARD).misfits]


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    api.put_card(CARD, a_holder("holder", a_share(CARD)))
    return an_operator(api)


async def test_a_conflict_is_shown_and_not_counted(api: ApiServer, parts: OperatorParts) -> None:
    before = api.card(CARD)
    await parts.journal.show_conflict(CARD.uuid, misfit())
    after = api.card(CARD)
    assert after.misfits == (misfit(),)
    assert after.holders == before.holders
    assert api.cards[CARD.object_name]["status"]["used"]["memoryMiB"] == 1_000
    assert parts.entry(CARD).misfits == (misfit(),)


async def test_what_is_shown_already_is_not_written_again(api: ApiServer, parts: OperatorParts) -> None:
    await parts.journal.show_conflict(CARD.uuid, misfit())
    await parts.journal.show_conflict(CARD.uuid, misfit())
    await parts.journal.clear_conflict(CARD.uuid, "another")
    assert len(api.writes()) == 1


async def test_a_pod_has_one_conflict_on_a_card(api: ApiServer, parts: OperatorParts) -> None:
    await parts.journal.show_conflict(CARD.uuid, misfit("a", "old"))
    await parts.journal.show_conflict(CARD.uuid, misfit("b"))
    await parts.journal.show_conflict(CARD.uuid, misfit("a", "new"))
    assert api.card(CARD).misfits == (misfit("b"), misfit("a", "new"))


async def test_a_cleared_conflict_is_gone_and_others_stay(api: ApiServer, parts: OperatorParts) -> None:
    for uid in ("a", "b"):
        await parts.journal.show_conflict(CARD.uuid, misfit(uid))
    await parts.journal.clear_conflict(CARD.uuid, "a")
    assert listed(api) == ["b"]


async def test_a_conflict_and_holders_go_in_one_write(api: ApiServer, parts: OperatorParts) -> None:
    gate = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, hold_request(gate))
    first = asyncio.create_task(parts.add("x", a_share(CARD)))
    await settle()
    others = [
        asyncio.create_task(parts.add("y", a_share(CARD))),
        asyncio.create_task(parts.journal.show_conflict(CARD.uuid, misfit())),
        asyncio.create_task(parts.journal.remove(CARD.uuid, "holder")),
    ]
    await settle()
    gate.set()
    await asyncio.gather(first, *others)
    assert len(api.writes()) == 2
    assert (api.holders_of(CARD), listed(api)) == (["x", "y"], ["a"])


async def test_a_list_that_somebody_else_has_changed_is_read_again(api: ApiServer, parts: OperatorParts) -> None:
    await parts.journal.show_conflict(CARD.uuid, misfit("a"))
    other = an_operator(api)
    await other.journal.show_conflict(CARD.uuid, misfit("b"))
    await parts.journal.show_conflict(CARD.uuid, misfit("c"))
    assert listed(api) == ["a", "b", "c"]


async def test_a_lost_answer_lists_nothing_twice(api: ApiServer, parts: OperatorParts) -> None:
    api.queue(Operation.WRITE_STATUS, lose_answer())
    await parts.journal.show_conflict(CARD.uuid, misfit())
    assert listed(api) == ["a"]
    assert len(api.writes()) == 1


async def test_a_full_list_takes_no_more_and_can_still_be_cleared(api: ApiServer, parts: OperatorParts) -> None:
    for number in range(MAX_CONFLICTS):
        await parts.journal.show_conflict(CARD.uuid, misfit(f"pod-{number}"))
    with pytest.raises(ShareRefused, match="lists 64 conflicts already"):
        await parts.journal.show_conflict(CARD.uuid, misfit())
    await parts.journal.show_conflict(CARD.uuid, misfit("pod-7", "another reason"))
    await parts.journal.clear_conflict(CARD.uuid, "pod-0")
    await parts.journal.show_conflict(CARD.uuid, misfit())
    assert len(listed(api)) == MAX_CONFLICTS


@pytest.mark.parametrize("opened", [False, None], ids=["not open", "gone"])
async def test_a_card_that_is_not_open_or_gone_lists_nothing(api: ApiServer, opened: bool | None) -> None:
    if opened is not None:
        api.put_card(CARD, opened=opened)
    parts = an_operator(api)
    with pytest.raises(ShareRefused, match=r"takes no pods yet|is gone"):
        await parts.journal.show_conflict(CARD.uuid, misfit())
    await parts.journal.clear_conflict(CARD.uuid, "a")
    assert api.writes() == []


async def test_a_card_that_is_written_again_keeps_its_conflicts(api: ApiServer, parts: OperatorParts) -> None:
    await parts.journal.show_conflict(CARD.uuid, misfit())
    parts.watch()
    api.delete_card(CARD)
    parts.watch()
    api.put_card(CARD, opened=False)
    parts.watch()
    await parts.journal.describe(CARD.uuid, "Ready", "")
    assert (api.holders_of(CARD), listed(api)) == (["holder"], ["a"])
