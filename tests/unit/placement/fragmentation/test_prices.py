"""Costs by arrays are those that loops find, and say what a reader expects of them."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_card, a_ledger, a_request, a_share, mib, occupy, whole, whole_share
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.model.request import Demand, HostAmounts, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.decide import Candidate, Footprint
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.prices import FragmentationPrices
from gpuledger.placement.policy import Policy, Preference
from replay.mix import KnownMix
from unit.placement.fragmentation.plain_prices import PlainNode, PlainPod, costs

FRAGMENTATION = Policy(Preference.FRAGMENTATION, Preference.FRAGMENTATION)

pods = st.builds(
    lambda cards, milli, cpu: PlainPod(cards, milli if cards == 1 else 1000, cpu),
    cards=st.sampled_from([0, 1, 1, 1, 2, 4]),
    milli=st.sampled_from([90, 250, 460, 500, 810, 1000]),
    cpu=st.sampled_from([0, 1000, 4000]),
)
plain_nodes = st.builds(
    PlainNode,
    free=st.lists(st.sampled_from([0, 190, 250, 500, 750, 1000]), min_size=1, max_size=4),
    cpu=st.sampled_from([None, 0, 3000, 16_000]),
)


def request_of(pod: PlainPod) -> PodRequest:
    demand = whole(pod.cards) if pod.milli == 1000 else mib(pod.milli)
    return PodRequest(("main",), (demand,) if pod.cards else (), host=HostAmounts(pod.cpu))


def ledger_of(nodes: list[PlainNode]) -> Ledger:
    names = [f"node-{number}" for number in range(len(nodes))]
    both = list(zip(names, nodes, strict=True))
    ledger = a_ledger(*(a_card(i, name, memory_mib=1000) for name, node in both for i in range(len(node.free))))
    for name, node in both:
        if node.cpu is not None:
            ledger.hosts.set_capacity(name, HostAmounts(node.cpu, 1 << 20))
        for index, free in enumerate(node.free):
            card = a_card(index, name, memory_mib=1000)
            if free < 1000:
                occupy(ledger, f"{name}-{index}", whole_share(card) if not free else a_share(card, 1000 - free))
    return ledger


@pytest.mark.thorough
@settings(max_examples=times(60, 60, check=20), deadline=None)
@given(
    nodes=st.lists(plain_nodes, min_size=1, max_size=4),
    kinds=st.lists(pods, min_size=1, max_size=5, unique=True),
    turnover=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_arrays_find_what_loops_find(nodes: list[PlainNode], kinds: list[PlainPod], turnover: float) -> None:
    ledger = ledger_of(nodes)
    mix = KnownMix((Footprint(request_of(pod).shape, HostAmounts(pod.cpu)), pod.frequency) for pod in kinds)
    mix.given_out(1.0)
    mix.given_back(turnover)
    prices = FragmentationPrices(ledger, mix)
    prices.tick()
    for pod in kinds:
        candidates = [
            (number, pod, list(cards))
            for number, node in enumerate(nodes)
            for cards in combinations(
                [i for i, free in enumerate(node.free) if free >= pod.milli or not pod.cards], pod.cards
            )
        ]
        footprint = Footprint(request_of(pod).shape, HostAmounts(pod.cpu))
        effects = []
        for number, _, positions in candidates:
            room = ledger.node_room(f"node-{number}")
            uuids = tuple(room.rooms[position].card.uuid for position in positions)
            effects.append(prices.effect(footprint, Candidate(room, (uuids,) if pod.cards else ())))
        found = prices.costs(footprint, effects) if effects else []
        assert found == pytest.approx(costs(nodes, kinds, candidates, turnover), abs=0.5, rel=1e-3)


def chosen(ledger: Ledger, request: PodRequest, *expected: PodRequest) -> str:
    mix = KnownMix((Footprint(each.shape, each.host), 1.0) for each in expected)
    chooser = Chooser(ledger, FRAGMENTATION, mix)
    placement = chooser.best(request, None)
    assert placement is not None
    return " ".join(share.uuid.removeprefix("GPU-") for share in placement.shares)


def test_a_small_pod_leaves_the_whole_card_to_those_who_need_it() -> None:
    ledger = ledger_of([PlainNode([1000, 500])])
    assert chosen(ledger, a_request(mib(250)), a_request(whole()), a_request(mib(250))) == "node-0-1"


def test_a_share_goes_where_it_leaves_what_others_can_use() -> None:
    """460 of 1000 leaves 540, which another 460 fits into; of 750 it leaves 290, too little for any."""
    ledger = ledger_of([PlainNode([750, 1000])])
    assert chosen(ledger, a_request(mib(460)), a_request(mib(460)), a_request(mib(750))) == "node-0-1"


def test_one_card_is_taken_from_a_broken_node_and_not_from_a_whole_one() -> None:
    ledger = ledger_of([PlainNode([1000] * 4), PlainNode([1000, 0, 0, 0])])
    assert chosen(ledger, a_request(whole()), a_request(whole(4)), a_request(whole())) == "node-1-0"


def test_a_node_without_cpu_for_others_is_used_up_by_who_needs_little() -> None:
    ledger = ledger_of([PlainNode([1000, 1000], cpu=32_000), PlainNode([1000, 1000], cpu=2_000)])
    small = PodRequest(("main",), (whole(),), host=HostAmounts(1_000))
    large = PodRequest(("main",), (whole(),), host=HostAmounts(16_000))
    assert chosen(ledger, small, small, large) == "node-1-0"


def test_prices_change_with_what_comes() -> None:
    ledger, mix = ledger_of([PlainNode([1000] * 4)]), Mix(first_look=50)
    chooser = Chooser(ledger, FRAGMENTATION, mix)
    for _ in range(50):
        chooser.arrived(a_request(mib(250)))
        assert chooser.best(a_request(mib(250)), None) is not None
    prices = FragmentationPrices(ledger, mix)
    before = 0
    for _ in range(200):
        prices.tick()
        before = prices.version
    assert before > 0
    for _ in range(200):
        mix.arrived(Footprint(a_request(whole(2)).shape, HostAmounts()))
        prices.tick()
    assert prices.version > before


some_requests = st.lists(
    st.lists(st.sampled_from([mib(90), mib(250), mib(500), whole(), whole(2), whole(8)]), min_size=1, max_size=3),
    min_size=1,
    max_size=30,
)


@settings(max_examples=times(200, 60, check=20), deadline=None)
@given(some_requests)
def test_a_new_cluster_is_filled_as_by_binpack(requests: list[list[Demand]]) -> None:
    """What few pods say of those to come broke up one of three whole nodes for a share, and a pod of 8 cards waited."""
    nodes = [PlainNode([1000] * 8)] * 3
    by_binpack, ledger = ledger_of(nodes), ledger_of(nodes)
    plain, priced = Chooser(by_binpack, Policy()), Chooser(ledger, FRAGMENTATION)
    for number, demands in enumerate(requests):
        request = a_request(*demands)
        priced.arrived(request)
        expected, found = plain.best(request, None), priced.best(request, None)
        assert found == expected
        if found is not None and expected is not None:
            occupy(by_binpack, f"pod-{number}", *expected.shares)
            occupy(ledger, f"pod-{number}", *found.shares)


def test_containers_share_a_card_where_that_leaves_more_for_others() -> None:
    """The tightest card for each would break up both: 300 to 50, and 1000 to 750."""
    ledger = ledger_of([PlainNode([300, 1000])])
    pod = a_request(mib(250), mib(250))
    assert chosen(ledger, pod, a_request(mib(300)), a_request(mib(500))) == "node-0-1"


def test_containers_are_on_cards_of_their_own_where_that_leaves_more_for_others() -> None:
    ledger = ledger_of([PlainNode([250, 250, 1000])])
    assert chosen(ledger, a_request(mib(250), mib(250)), a_request(whole()), a_request(mib(250))) == "node-0-0 node-0-1"


def a_burst(ledger: Ledger, request: PodRequest, count: int, *expected: PodRequest) -> list[str]:
    """Place some pods, one after the other; return the UUIDs of their cards."""
    mix = KnownMix((Footprint(each.shape, each.host), 1.0) for each in expected)
    chooser = Chooser(ledger, FRAGMENTATION, mix)
    cards = []
    for number in range(count):
        [placement] = chooser.choose(request, list(ledger.node_names()), 1).placements
        occupy(ledger, f"pod-{number}", *placement.shares)
        cards += [share.uuid for share in placement.shares]
    return cards


@pytest.mark.parametrize("beside", [10, 90])
def test_a_burst_fills_a_card_before_it_takes_another_of_nearly_the_same_price(beside: int) -> None:
    """Each pod makes its node a little dearer than all the others; shares of one card are entered by one write."""
    cards = a_burst(
        ledger_of([PlainNode([1000] * 8)] * 20), a_request(mib(250)), 32, a_request(mib(beside)), a_request(mib(250))
    )
    assert len(set(cards)) <= 13  # of 32; by exact prices up to 32, without any prices 8


def test_a_burst_leaves_a_node_that_would_cost_others_more() -> None:
    """After two of four cards no pod with two would find cards there, and after the next two on the other node."""
    ledger = ledger_of([PlainNode([1000, 1000, 0, 0]), PlainNode([1000, 0, 0, 0]), PlainNode([1000, 0, 0, 0])])
    cards = a_burst(ledger, a_request(whole()), 2, a_request(whole(2)), a_request(whole()))
    assert {card.removeprefix("GPU-") for card in cards} == {"node-1-0", "node-2-0"}
