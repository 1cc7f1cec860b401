"""What happens to gangs is remembered once, counted always, and found by the gang's name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_holder, cards_of, whole_share
from fakes.api_server import ApiServer
from fakes.metrics import value
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.controller.telemetry.metrics import Measured, Metrics
from gpuledger.model.gang import GatherEnd
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.gangs.plans import COME_S
from gpuledger.workflows.trail import RecordFilter
from unit.workflows.gangs.test_gangs import come, member

Json = dict[str, Any]
CARDS = cards_of("node-a", 4)
GATHER_S = 20.0
OF_TRAIN = RecordFilter(namespace="default", gang="train")


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with four cards."""
    for card in CARDS:
        api.put_card(card)
    return an_operator(api)


def kinds(parts: OperatorParts, record_filter: RecordFilter = OF_TRAIN) -> list[str]:
    return [record.kind.value for record in parts.trail.latest(record_filter, 100)[0]]


async def start(api: ApiServer, parts: OperatorParts) -> None:
    """Have all three members of a gang created, planned and bound."""
    come(api, parts, *map(member, "abc"))
    for name in "abc":
        parts.filter(name, "node-a")
    await asyncio.gather(*(parts.bind(name, "node-a") for name in "abc"))
    await parts.idle()


def metrics(parts: OperatorParts) -> bytes:
    workflows = parts.workflows
    measured = Measured(
        parts.ledger,
        parts.chooser,
        parts.counts,
        parts.journal.counts,
        parts.waiting,
        parts.adopter,
        workflows.unlinked,
        pending=parts.why_waiting.reports,
        members=workflows.gangs.members,
    )
    return Metrics(measured).text()


async def test_the_life_of_a_gang_is_told_with_its_members(api: ApiServer, parts: OperatorParts) -> None:
    await start(api, parts)
    assert kinds(parts) == ["gang-planned", "gang-gathered", *["assigned"] * 3, "gang-bound"]
    first, _, member_of_it, *_, last = (record.json() for record in parts.trail.latest(OF_TRAIN, 100)[0])
    assert (member_of_it["gang"], member_of_it["text"]) == ("train", "as planned for its gang")
    assert (first["namespace"], first["gang"], first["pod"]) == ("default", "train", "")
    assert "3 of 3 members" in first["text"]
    assert "3 members are bound" in last["text"]


async def test_what_a_member_held_is_found_by_its_gang_when_it_is_gone(api: ApiServer, parts: OperatorParts) -> None:
    await start(api, parts)
    api.put_pod({**api.pods["default", "a"], "status": {"phase": "Succeeded"}})
    await parts.idle()
    assert kinds(parts)[-1] == "released"
    assert kinds(parts, RecordFilter(namespace="elsewhere", gang="train")) == []


async def test_a_gang_that_is_given_up_again_and_again_is_told_once_and_counted_each_time(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"))
    for _ in range(3):
        for name in "abc":
            parts.filter(name, "node-a")
        await asyncio.gather(parts.bind("a", "node-a"), return_exceptions=True)
        await asyncio.sleep(COME_S)
        parts.placer.expire_holds()
    assert kinds(parts) == ["gang-planned", "gang-given-up"]
    text = metrics(parts)
    assert value(text, "gpuledger_gang_gathers_given_up_total", reason="late") == 3
    assert value(text, "gpuledger_gang_gathers_given_up_total", reason="gone") == 0
    assert value(text, "gpuledger_waiting_gangs") == 1


async def test_each_reason_for_giving_up_has_a_name_of_its_own(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "abc"))
    for name in "abc":
        parts.filter(name, "node-a")
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    api.delete_pod("a")
    parts.watch()
    await asyncio.gather(binding, return_exceptions=True)
    come(api, parts, member("d"))
    for name in "bcd":
        parts.filter(name, "node-a")
    hold = parts.ledger.seats.of("uid-b")
    assert hold is not None
    taken = next(card for card in CARDS if card.uuid == hold.placement.shares[0].uuid)
    api.put_card(taken, a_holder("other", whole_share(taken)))  # no watch has shown it
    await asyncio.gather(*(parts.bind(name, "node-a") for name in "bcd"), return_exceptions=True)
    given_up = RecordFilter(gang="train", kind=RecordKind.GANG_GIVEN_UP.value)
    assert len(parts.trail.latest(given_up, 10)[0]) == 2
    text = metrics(parts)
    counted = {end: value(text, "gpuledger_gang_gathers_given_up_total", reason=end.value) for end in GatherEnd}
    assert {end for end, number in counted.items() if number} == {GatherEnd.GONE, GatherEnd.REFUSED}


async def test_the_time_to_place_begins_when_the_last_member_is_seen(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(500)
    come(api, parts, member("c"))
    for name in "abc":
        parts.filter(name, "node-a")
    await asyncio.sleep(7)
    await asyncio.gather(*(parts.bind(name, "node-a") for name in "abc"))
    await parts.idle()
    text = metrics(parts)
    assert value(text, "gpuledger_gang_place_seconds_count") == 1
    assert 7 <= value(text, "gpuledger_gang_place_seconds_sum") < 8
    assert value(text, "gpuledger_waiting_gangs") == 0


async def test_members_that_wait_are_among_those_that_wait_with_their_gang(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(name, minimum=5) for name in "abcde"), a_pod_object("single", {GPU: "5"}))
    for name in (*"abcde", "single"):
        parts.filter(name, "node-a")
    found = {report.pod.name: (report.gang, report.main_reason) for report in parts.why_waiting.reports()}
    assert found.pop("single") == ("", "too-few-cards")
    assert found == dict.fromkeys("abcde", ("train", "gang"))
    text = metrics(parts)
    assert value(text, "gpuledger_waiting_pods") == 6
    assert value(text, "gpuledger_waiting_pods_by_reason", reason="gang") == 5
    assert value(text, "gpuledger_oldest_waiting_pod_created_timestamp_seconds", reason="gang") > 0
