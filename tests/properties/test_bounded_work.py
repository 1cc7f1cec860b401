"""However a pod is written, no question about it costs more than so much: in calls of functions, not in seconds.

The searches count their own steps, too. Here they are not asked: what they have forgotten to count is found.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import a_card, a_holder, a_ledger, a_request, a_share, cards_of, stored
from effort import times
from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_pod_object
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.selection import (
    AVOID_MODEL,
    AVOID_UUID,
    CARD_POLICY,
    MODE,
    NODE_POLICY,
    NUMA_BIND,
    OTHER_POLICIES,
    POLICIES,
    USE_MODEL,
    USE_UUID,
)
from gpuledger.formats.dialects.vocabulary import MOST_CONTAINERS
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import ATTRIBUTES, CardRule
from gpuledger.model.errors import BadInput, Reason, WorkLimitExceeded
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape
from gpuledger.placement.choose import Chooser
from gpuledger.placement.explain import explain_node
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, FALLBACK, Policy, Preference
from gpuledger.placement.preemption.victims import Tenant, cheapest_eviction

CARDS = [replace(card, pcie_root=f"pci{card.index // 2}", numa_node=card.index // 4) for card in cards_of(count=8)]
NODE = CARDS[0].node_name
MEMORY_MIB = CARDS[0].capacity.memory_mib

MOST_CALLS = 1_000_000
"""Some 0.1 s; 640,000 were the most in thousands of pods. Without limits, eight containers made millions."""


def empty() -> Ledger:
    return a_ledger(*CARDS)


def in_shares(each_mib: Callable[[int, int], int], count: int = 9) -> Ledger:
    """Return cards with so many pods on each, of which no two have as much."""
    ledger = a_ledger(*CARDS)
    for card in CARDS:
        holders = [
            a_holder(f"t{card.index}-{n}", a_share(card, each_mib(card.index, n), cores=n)) for n in range(count)
        ]
        ledger.load(stored(card, *holders, version=2))
    return ledger


LEDGERS = {
    "empty": empty(),
    "half full": in_shares(lambda card, n: 700 + 37 * n + 11 * card),
    "full": in_shares(lambda card, n: 1_560 + 37 * n + 11 * card),
}
TENANTS = {f"t{card.index}-{n}": Tenant(f"t{card.index}-{n}", n % 4, 1 + n) for card in CARDS for n in range(9)}

AMOUNTS = st.integers(1, MEMORY_MIB) | st.sampled_from([MEMORY_MIB // 3, MEMORY_MIB // 2 - 1, MEMORY_MIB])
DEMANDS = st.builds(
    Demand,
    cards=st.integers(1, 8),
    memory_mib=st.none() | AMOUNTS,
    memory_percent=st.integers(1, 100),
    cores=st.integers(0, 100),
    exclusive=st.booleans(),
    lifetime=st.sampled_from(Lifetime),
    one_numa_node=st.booleans(),
)
RULES = st.lists(
    st.builds(CardRule, st.sampled_from(sorted(ATTRIBUTES)), st.integers(0, 2), distinct=st.booleans()),
    min_size=1,
    max_size=8,
)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw a pod: of any containers, or of many that differ a little, for which a search has the most to try."""
    count = draw(st.integers(1, MOST_CONTAINERS))
    if draw(st.booleans()):
        rules = draw(st.just([]) | RULES)
        return tuple(
            replace(draw(DEMANDS), rules=tuple(draw(st.lists(st.sampled_from(rules)))) if rules else ())
            for _ in range(count)
        )
    base, step = draw(AMOUNTS), draw(st.integers(0, 200))
    cards, cores = draw(st.integers(1, 3)), draw(st.integers(0, 30))
    shape = tuple(Demand(cards=cards, memory_mib=max(1, base - step * n), cores=cores) for n in range(count))
    if draw(st.booleans()):
        shared = tuple(draw(RULES))
        shape = tuple(replace(demand, rules=shared) for demand in shape)
    return shape


def calls_of(question: Callable[[], object]) -> int:
    """Return how many functions are called, those of C among them, to answer a question."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        question()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
@given(shapes(), st.sampled_from(sorted(CARD_RANKS)))
@settings(max_examples=times(6, 2_000, check=3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_pod_makes_a_question_about_one_node_last(ledger: Ledger, shape: Shape, rank: Preference) -> None:
    room, entries = ledger.node_room(NODE), ledger.entries_of_node(NODE)
    assert calls_of(lambda: choose_cards(shape, room, rank)) < MOST_CALLS
    assert calls_of(lambda: explain_node(shape, room, entries)) < MOST_CALLS
    assert calls_of(lambda: cheapest_eviction(shape, room, entries, TENANTS, {}, rank)) < MOST_CALLS


LISTS = st.lists(st.sampled_from([card.uuid for card in CARDS] + ["A100", "h", "GPU-none"]), max_size=20).map(",".join)
WISHES = st.dictionaries(
    st.sampled_from([*USE_MODEL, *AVOID_MODEL, *USE_UUID, *AVOID_UUID, *MODE]), LISTS, max_size=4
) | st.dictionaries(
    st.sampled_from([*NUMA_BIND, *NODE_POLICY, *CARD_POLICY]),
    st.sampled_from(["true", "false", *POLICIES, *OTHER_POLICIES]),
    max_size=4,
)
QUANTITIES = st.integers(0, 20).map(str) | AMOUNTS.map(str) | st.sampled_from(["1k", "16Ki", "2e3", "50"])
LIMITS = st.dictionaries(st.sampled_from([GPU, MEMORY, PERCENTAGE, CORES, "cpu"]), QUANTITIES, max_size=4)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pod as a user writes it, which the policies accept or not."""
    alike = draw(st.booleans())
    base = draw(st.integers(1, MEMORY_MIB))

    def listed(kind: str) -> list[dict[str, Any]]:
        found = [a_container(f"{kind}-{n}", draw(LIMITS)) for n in range(draw(st.integers(0, MOST_CONTAINERS)))]
        for number, container in enumerate(found):
            if alike:
                container["resources"]["limits"] = {GPU: draw(st.sampled_from("123")), MEMORY: str(base + 7 * number)}
            if kind == "init" and draw(st.booleans()):
                container["restartPolicy"] = "Always"
        return found

    pod = a_pod_object(containers=listed("main") or [a_container("main", {GPU: "1"})])
    pod["spec"]["initContainers"] = listed("init")
    pod["metadata"]["annotations"] = draw(WISHES)
    return pod


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
@given(manifests())
@settings(max_examples=times(12, 2_000, check=5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_user_writes_the_answers_cost_no_more_than_they_may(ledger: Ledger, pod: dict[str, Any]) -> None:
    requests: list[PodRequest | None] = []

    def read() -> None:
        with suppress(BadInput):
            requests.append(pod_request(pod, DIALECTS))

    assert calls_of(read) < 20_000
    if not requests or requests[0] is None:
        return
    request, entries = requests[0], ledger.entries_of_node(NODE)
    chooser, rank = Chooser(ledger, Policy()), Policy().wished(request).cards

    def ask() -> None:
        with suppress(WorkLimitExceeded):
            chooser.choose(request, [NODE], 1)

    assert calls_of(ask) < MOST_CALLS
    shape, room, rank = request.shape, ledger.node_room(NODE), rank if rank in CARD_RANKS else FALLBACK
    assert calls_of(lambda: explain_node(shape, room, entries)) < MOST_CALLS
    assert calls_of(lambda: cheapest_eviction(shape, room, entries, TENANTS, {}, rank)) < MOST_CALLS


NEVER_TOGETHER = tuple(Demand(cards=2, memory_mib=3_100 + n) for n in range(MOST_CONTAINERS))
"""Each of them fits beside what others have, and all of them never do: a search tries many ways."""


def crowded_nodes(count: int) -> Ledger:
    """Return nodes of eight cards, on each of which some 6,000 MiB are free, and nowhere as much as elsewhere."""
    cards = [card for number in range(count) for card in cards_of(f"node-{number:03}", 8)]
    ledger = a_ledger(*cards)
    for card in cards:
        ledger.load(
            stored(card, a_holder(f"of {card.uuid}", a_share(card, MEMORY_MIB - 6_000 - 13 * card.index)), version=2)
        )
    return ledger


def test_a_question_about_many_nodes_is_broken_off_and_goes_on_where_it_was_when_it_is_asked_again() -> None:
    ledger = crowded_nodes(60)
    chooser, names, request = Chooser(ledger, Policy()), list(ledger.node_names()), a_request(*NEVER_TOGETHER)
    looked_at = [0]
    for _ in names:
        with suppress(WorkLimitExceeded):
            chooser.choose(request, names, 1)
        looked_at.append(chooser.evaluations)
        if chooser.evaluations == len(names):
            break
    assert 10 < len(looked_at) <= len(names) + 1, looked_at
    assert looked_at == sorted(set(looked_at)), "each question leads on"
    refusals = chooser.choose(request, names, 1).refusals.values()
    assert [refusal.reason for refusal in refusals] == [Reason.CONTAINERS_TOGETHER] * len(names)


def test_a_question_about_many_nodes_costs_no_more_than_it_may() -> None:
    ledger = crowded_nodes(60)
    chooser, names, request = Chooser(ledger, Policy()), list(ledger.node_names()), a_request(*NEVER_TOGETHER)

    def ask() -> None:
        with suppress(WorkLimitExceeded):
            chooser.choose(request, names, 1)

    assert max(calls_of(ask) for _ in range(4)) < 2 * MOST_CALLS
    assert calls_of(chooser.look_further) < 2 * MOST_CALLS


def test_the_count_sees_work_that_no_search_has_counted() -> None:
    assert calls_of(lambda: [abs(n) for n in range(1_000)]) >= 1_000
    assert a_card(0).node_name == NODE
