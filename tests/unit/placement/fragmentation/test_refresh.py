"""Prices follow the cluster while it changes, and are never left behind for good."""

from dataclasses import replace

import pytest

from builders import OFFER, a_card, a_ledger, a_request, a_share, cards_of, mib, occupy, stored, whole
from gpuledger.ledger.book import Ledger
from gpuledger.model.request import NO_HOST, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.decide import Candidate, Footprint
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.prices import REFRESHED_EVERY, FragmentationPrices
from gpuledger.placement.policy import Policy, Preference

FRAGMENTATION = Policy(Preference.FRAGMENTATION, Preference.FRAGMENTATION)
SHARE, WHOLE = a_request(mib(4_000)), a_request(whole())


def footprint(request: PodRequest) -> Footprint:
    return Footprint(request.shape, NO_HOST)


def nodes(count: int, cards: int = 2) -> Ledger:
    return a_ledger(*(card for number in range(count) for card in cards_of(f"node-{number:03}", cards)))


def cost(prices: FragmentationPrices, ledger: Ledger, name: str) -> float:
    room = ledger.node_room(name)
    effect = prices.effect(footprint(WHOLE), Candidate(room, ((room.rooms[0].card.uuid,),)))
    return prices.costs(footprint(WHOLE), [effect])[0]


def arrive(prices: FragmentationPrices, mix: Mix, request: PodRequest, count: int) -> None:
    """Let pods come, each with a question, and the questions go on until there are prices."""
    for _ in range(count):
        mix.arrived(footprint(request))
        prices.tick()
    while prices.version == 0 and mix.arrivals >= mix.first_look:
        prices.tick()


def test_there_are_no_prices_before_enough_pods_have_come() -> None:
    prices = FragmentationPrices(ledger := nodes(2), mix := Mix(first_look=10))
    prices.tick()  # a question before the first pod freezes nothing
    arrive(prices, mix, SHARE, 9)
    assert prices.version == 0
    assert cost(prices, ledger, "node-000") == 0
    arrive(prices, mix, SHARE, 1)
    assert prices.version == 1
    assert cost(prices, ledger, "node-000") > 0


def test_the_first_prices_are_made_between_questions_too() -> None:
    """By then there are as many kinds as pods have come, and hundreds of rounds take a second."""
    prices = FragmentationPrices(nodes(2), mix := Mix(first_look=1))
    mix.arrived(footprint(SHARE))
    prices.tick()
    assert prices.version == 0


def test_prices_go_on_changing_whatever_kinds_of_cards_and_pods_there_are() -> None:
    """A card that no pod fitted on at first needs hundreds of rounds later: a refresh that is late is not dropped."""
    cards = [replace(card, capacity=replace(card.capacity, memory_mib=40_000)) for card in cards_of("node-a", 2)]
    cards += [replace(card, capacity=replace(card.capacity, memory_mib=80_000)) for card in cards_of("node-b", 2)]
    prices = FragmentationPrices(a_ledger(*cards), mix := Mix(first_look=1))
    arrive(prices, mix, a_request(mib(60_000)), 1)
    editions = set()
    for _ in range(20 * REFRESHED_EVERY):
        mix.arrived(footprint(SHARE))
        prices.tick()
        editions.add(prices.version)
    assert len(editions) > 5


def test_nodes_may_come_while_prices_are_made() -> None:
    ledger, mix = nodes(300), Mix(first_look=1)
    chooser = Chooser(ledger, FRAGMENTATION, mix)
    for number in range(400):
        request = a_request(mib(1_000 + 10 * (number // 40)))
        chooser.arrived(request)
        assert chooser.best(request, None) is not None
        if number % 7 == 0:
            name = f"new-{number:03}"
            ledger.load(stored(a_card(0, name)))
            ledger.set_offer(name, OFFER)


@pytest.mark.parametrize("filled", ["node-000", "node-299"])
def test_a_node_that_changes_while_prices_are_made_has_its_own_worth_afterwards(filled: str) -> None:
    """New prices cost the same as those that are made at once of the same cluster."""
    ledger, mix = nodes(600), Mix(first_look=1)
    prices = FragmentationPrices(ledger, mix)
    arrive(prices, mix, SHARE, 1)
    begun = prices.version
    for _ in range(2 * REFRESHED_EVERY):
        mix.arrived(footprint(WHOLE))
    while prices.version == begun:
        prices.tick()
        if ledger.seats.of("filler") is None:
            occupy(ledger, "filler", a_share(a_card(1, filled), 16_000, 100))
            prices.costs(footprint(WHOLE), [])  # as a question does: what has changed is taken in
    other = next(name for name in ("node-001", "node-298") if name != filled)
    assert cost(prices, ledger, filled) != pytest.approx(cost(prices, ledger, other))
    worth = prices._prices._worth.of(prices._slots.of(prices._nodes.changed_since(-1)))
    assert prices._prices._now[: len(worth)] == pytest.approx(worth)
