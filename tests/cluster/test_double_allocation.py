"""The report in which Volcano gave cards twice: pods that asked by number were not counted against the cards.

Every case runs with pods that ask by number only, by memory only, and mixed on one node.
"""

from collections.abc import Callable

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod, uuids

pytestmark = pytest.mark.promise("double allocation")

CARD_MIB = 40960

Limits = dict[str, int]


def by_number(cards: int, position: int) -> Limits:
    return {COUNT: cards}


def by_memory(cards: int, position: int) -> Limits:
    return {COUNT: cards, MEMORY: CARD_MIB}


def mixed(cards: int, position: int) -> Limits:
    return by_memory(cards, position) if position % 2 else by_number(cards, position)


def mixed_the_other_way(cards: int, position: int) -> Limits:
    return mixed(cards, position + 1)


def in_volcanos_classic_words(cards: int, position: int) -> Limits:
    """By number, by number and memory, and by memory alone where one card is asked for: in turn."""
    number, memory = {"volcano.sh/gpu-number": cards}, {"volcano.sh/gpu-memory": CARD_MIB}
    return (number, {**number, **memory}, memory if cards == 1 else number)[position % 3]


Ask = Callable[[int, int], Limits]
ways_to_ask = pytest.mark.parametrize(
    "ask",
    [
        by_number,
        pytest.param(by_memory, marks=pytest.mark.long),
        mixed,
        pytest.param(mixed_the_other_way, marks=pytest.mark.long),
        in_volcanos_classic_words,
    ],
)


@ways_to_ask
def test_two_two_and_four_cards_are_eight_different_ones_and_a_ninth_waits(cluster: Cluster, ask: Ask) -> None:
    cluster.add_nodes(1)
    given: list[str] = []
    for position, cards in enumerate((2, 2, 4)):
        name = f"pod-{position}"
        cluster.create(pod(name, ask(cards, position)))
        found = cluster.wait_bound(name)[0]
        assert len(uuids(found)) == cards
        given += uuids(found)
        cluster.settle(0.2)  # the report's pods came seconds apart: each finds the one before it bound
    assert len(set(given)) == 8
    cluster.create(pod("ninth", ask(1, 3)))
    whole = not any(name.endswith(("mem", "memory")) for name in ask(1, 3))
    expected = "no card entirely free" if whole else "no card with 40960 MiB free"
    assert f"1 {expected}" in cluster.wait_refused("ninth", expected)
    cluster.check_consistent()


@ways_to_ask
def test_four_pods_seconds_apart_get_four_different_cards(cluster: Cluster, ask: Ask) -> None:
    cluster.add_nodes(1)
    given: list[str] = []
    for position in range(4):
        cluster.create(pod(f"pod-{position}", ask(1, position)))
        given += uuids(cluster.wait_bound(f"pod-{position}")[0])
        cluster.settle(0.2)  # the report's pods came seconds apart: each finds the one before it bound
    assert len(set(given)) == 4
    cluster.check_consistent()
