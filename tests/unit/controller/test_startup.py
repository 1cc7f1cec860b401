"""The watch of the cards, as start-up connects it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer
from fakes.counters import by_label
from fakes.operator_parts import OperatorParts
from gpuledger.controller import startup
from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.formats.custom_resource.stored_card import new_allocation
from gpuledger.model.errors import ApiError, Conflict, Unreachable

Json = dict[str, Any]


async def test_a_card_that_cannot_be_read_is_counted_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiServer()
    parts, card = OperatorParts(api), a_card()
    api.put_card(card, a_holder("a", a_share(card)))

    async def follow(
        _: object, path: str, parameters: Json, changed: Callable[[Json, bool], None], listing: object
    ) -> None:
        assert path.endswith("/gpuallocations")
        assert parameters == {}
        changed(new_allocation(a_card(1)), False)
        changed(api.cards[card.object_name], False)

    monkeypatch.setattr(startup, "follow", follow)
    await startup._follow_cards(replace(parts.as_operator(), kopf_lists=KopfLists()))
    assert by_label(parts.counts.bad_input) == {"allocation": 1}
    assert list(parts.entry(card).holders) == ["a"]


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
