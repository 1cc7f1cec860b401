"""What a container takes of a card, and which containers of a pod run at the same time."""

import pytest

from builders import a_request, mib, percent, whole
from gpuledger.model.card import Amounts
from gpuledger.model.request import Demand, Lifetime, phases

SIDECAR, INIT, MAIN = Lifetime.SIDECAR, Lifetime.INIT, Lifetime.MAIN


def test_memory_and_cores_are_taken_as_named() -> None:
    assert mib(4_000, cores=30).amounts_on(Amounts(16_000, 100, 10)) == Amounts(4_000, 30, 1)


@pytest.mark.parametrize(
    ("memory_mib", "memory_percent", "taken_mib"), [(16_000, 50, 8_000), (16_383, 1, 163), (999, 33, 329), (199, 1, 1)]
)
def test_percentages_round_down(memory_mib: int, memory_percent: int, taken_mib: int) -> None:
    assert percent(memory_percent).amounts_on(Amounts(memory_mib, 100, 10)).memory_mib == taken_mib


def test_a_percentage_of_a_tiny_card_is_at_least_one_mib() -> None:
    assert percent(1).amounts_on(Amounts(50, 100, 10)).memory_mib == 1


def test_a_hundred_single_percents_fit_on_a_card() -> None:
    assert 100 * percent(1).amounts_on(Amounts(16_383, 100, 100)).memory_mib <= 16_383


def test_a_number_alone_takes_all_memory_and_cores_of_a_card_of_any_size() -> None:
    assert whole().amounts_on(Amounts(16_383, 200, 10)) == Amounts(16_383, 200, 1)


def test_all_cores_with_named_memory_take_only_that_memory() -> None:
    demand = mib(4_000, cores=100)
    assert not demand.whole
    assert demand.amounts_on(Amounts(16_000, 100, 10)) == Amounts(4_000, 100, 1)


def test_all_memory_without_exclusivity_is_not_a_whole_card() -> None:
    assert not Demand(cards=1, cores=50).whole


def test_a_request_counts_its_cards_as_if_nothing_was_shared() -> None:
    assert a_request(mib(1_000, cards=2), whole(3)).cards == 5


@pytest.mark.parametrize(
    ("lifetimes", "together"),
    [
        ([MAIN, MAIN], [(0, 1)]),
        ([INIT, MAIN], [(0,), (1,)]),
        ([INIT, INIT, MAIN], [(0,), (1,), (2,)]),
        ([SIDECAR, INIT, MAIN], [(0, 1), (0, 2)]),
        ([INIT, SIDECAR, MAIN], [(0,), (1, 2)]),
        ([SIDECAR, INIT, SIDECAR, MAIN], [(0, 1), (0, 2, 3)]),
        ([INIT], [(0,)]),
        ([SIDECAR], [(0,)]),
    ],
)
def test_containers_that_run_at_the_same_time(lifetimes: list[Lifetime], together: list[tuple[int, ...]]) -> None:
    assert list(phases(tuple(mib(1, lifetime=lifetime) for lifetime in lifetimes))) == together
