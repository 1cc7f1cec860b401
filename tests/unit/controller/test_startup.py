"""The watches of cards and pods, as start-up connects them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation
from fakes.counters import by_label
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import settle
from gpuledger.controller import startup
from gpuledger.controller.kopf_session import NODES, ListsRead
from gpuledger.controller.startup import Operator
from gpuledger.formats.custom_resource.stored_card import new_allocation
from gpuledger.model.errors import ApiError, Conflict, Unreachable

Json = dict[str, Any]
Taker = Callable[[Json, bool], None]
Listing = Callable[[], Callable[[set[str]], None]]

FIRST = "7"
"""The version of the first lists."""


async def watched(
    part: Callable[[Operator], Awaitable[None]], operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Json, Taker, Listing]:
    """Return how a part follows what it follows: path, parameters, and what is called."""
    asked: list[tuple[str, Json, Taker, Listing]] = []

    async def follow(_: object, path: str, parameters: Json, changed: Taker, listing: Listing, version: str) -> None:
        assert version == FIRST
        asked.append((path, parameters, changed, listing))

    monkeypatch.setattr(startup, "follow", follow)
    observer = operator.workflows.observer
    for first in (observer.first_cards, observer.first_pods):
        first.read(FIRST)
    await part(operator)
    (found,) = asked
    return found


async def test_a_card_that_cannot_be_read_is_counted_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiServer()
    parts, card = OperatorParts(api), a_card()
    api.put_card(card, a_holder("a", a_share(card)))
    path, parameters, changed, _ = await watched(startup._follow_cards, parts.as_operator(), monkeypatch)
    assert path.endswith("/gpuallocations")
    assert parameters == {}
    changed(new_allocation(a_card(1)), False)
    changed(api.cards[card.object_name], False)
    assert by_label(parts.counts.bad_input) == {"allocation": 1}
    assert list(parts.entry(card).holders) == ["a"]


async def test_a_watch_begins_where_the_first_list_has_ended_and_not_before_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, begun = ApiServer(), dict[str, str]()
    parts = OperatorParts(api)

    async def follow(_: object, path: str, *_rest: object, version: str) -> None:
        begun[path.rpartition("/")[2]] = version

    monkeypatch.setattr(startup, "follow", follow)
    api.put_card(a_card())
    api.put_pod(a_pod_object("bound", limits={GPU: 1}))
    read_by = {"gpuallocations": Operation.LIST_CARDS, "pods": Operation.LIST_PODS}
    watching = [
        asyncio.create_task(part(parts.as_operator())) for part in (startup._follow_cards, startup._follow_pods)
    ]
    await settle()
    assert begun == {}
    version = str(api._version)
    await parts.observer.take_over()
    await asyncio.gather(*watching)
    assert begun == dict.fromkeys(read_by, version)
    assert [len(api.called(operation)) for operation in read_by.values()] == [1, 2], "bound and pending pods are two"


@pytest.mark.parametrize("error", [Unreachable("away"), Conflict("the list has expired between two pages", 410)])
async def test_the_first_comparison_is_tried_until_all_pages_of_all_lists_were_read(
    error: ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "START_PAUSE_S", 0.0)
    outcomes: list[ApiError | None] = [error, error, None]

    async def compare() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    await startup._until_it_works(compare)
    assert outcomes == []


async def test_pods_have_one_watch_that_selects_on_a_field_that_nobody_can_edit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that left a label selector would look deleted. Other schedulers' pods may use cards without the ledger."""
    operator = OperatorParts(ApiServer()).as_operator()
    path, parameters, _, _ = await watched(startup._follow_pods, operator, monkeypatch)
    assert (path, parameters) == ("/api/v1/pods", {"fieldSelector": "spec.schedulerName!=default-scheduler"})


async def test_a_pod_that_waits_is_forgotten_when_it_is_in_no_list_any_more_and_the_list_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts, lists = OperatorParts(ApiServer()), ListsRead()
    operator = replace(parts.as_operator(), lists=lists)
    lists.read(NODES)
    _, _, changed, listing = await watched(startup._follow_pods, operator, monkeypatch)
    pods = [a_pod_object(name, limits={GPU: 1}) for name in ("stays", "leaves")]
    for pod in pods:
        changed(pod, False)
    known = {tracker: set(tracker.known_pending()) for tracker in parts.observer._of_pending}
    assert any("uid-leaves" in uids for uids in known.values())
    listing()({"uid-stays"})
    assert lists.again.is_set()  # for bound pods, a comparison finds out
    for tracker, before in known.items():
        assert set(tracker.known_pending()) == before - {"uid-leaves"}
