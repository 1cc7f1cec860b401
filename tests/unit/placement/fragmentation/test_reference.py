"""Prices against numbers that a program of its own has found, in plain Python and doubles, for a cluster made by hand.

`reference.json` has six nodes of two models, five kinds of pods, and what each would cost on each node: while the
cluster fills, and in a steady state.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat
from gpuledger.model.card import Amounts, Card, CardFilter
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import Demand, HostAmounts
from gpuledger.model.share import Placement, Share, StoredCard
from gpuledger.placement.decide import Candidate, Footprint
from gpuledger.placement.fragmentation.prices import FragmentationPrices
from replay.mix import KnownMix

REFERENCE: dict[str, Any] = orjson.loads((Path(__file__).parent / "reference.json").read_bytes())


def ledger() -> Ledger:
    found = Ledger()
    for number, node in enumerate(REFERENCE["nodes"]):
        name = f"node-{number}"
        found.set_offer(name, NodeOffer())
        found.hosts.set_capacity(name, HostAmounts(node["cpu"], node["mem"]))
        for index, free in enumerate(node["free"]):
            card = Card(f"{name}-{index}", name, index, Amounts(1000, 100, 100), model=node["model"])
            found.load(StoredCard(card, 1, (), "Ready"))
            if free < 1000:
                amounts = Amounts(1000 - free, 0 if free else 100, 1)
                share = Share(card.uuid, amounts, exclusive=not free, containers=())
                found.seats.take(Seat(card.uuid, Placement(name, (share,)), FOREVER))
    return found


def footprint(kind: dict[str, Any]) -> Footprint:
    host = HostAmounts(kind["cpu"], kind["mem"])
    if not kind["n"]:
        return Footprint((), host)
    wanted = CardFilter(use_models=tuple(kind["models"] or ()))
    if kind["milli"] == 1000:
        return Footprint((Demand(kind["n"], exclusive=True, wanted=wanted),), host)
    return Footprint((Demand(kind["n"], memory_mib=kind["milli"], wanted=wanted),), host)


@pytest.mark.parametrize("run", REFERENCE["runs"], ids=lambda run: f"turnover {run['delta']}")
def test_costs_are_those_of_the_reference(run: dict[str, Any]) -> None:
    book, kinds = ledger(), [footprint(kind) for kind in REFERENCE["classes"]]
    mix = KnownMix((each, kind["count"]) for each, kind in zip(kinds, REFERENCE["classes"], strict=True))
    mix.given_out(1.0)
    mix.given_back(run["delta"])
    prices = FragmentationPrices(book, mix)
    prices.tick()
    compared = 0
    for each, costs, cards in zip(kinds, run["cost"], run["cards"], strict=True):
        for number, (cost, positions) in enumerate(zip(costs, cards, strict=True)):
            if cost is None:
                continue
            room = book.node_room(f"node-{number}")
            uuids = tuple(f"node-{number}-{position}" for position in positions)
            effect = prices.effect(each, Candidate(room, (uuids,) if each.shape else ()))
            assert prices.costs(each, [effect]) == pytest.approx([cost], abs=0.02, rel=1e-4)
            compared += 1
    assert compared == 14
