"""Which pods are expected follows from which came."""

import pytest

from builders import a_request, mib
from gpuledger.model.request import NO_HOST
from gpuledger.placement.decide import Footprint
from gpuledger.placement.fragmentation.mix import KINDS_KEPT, Mix
from replay.mix import KnownMix


def a_footprint(memory_mib: int) -> Footprint:
    return Footprint(a_request(mib(memory_mib)).shape, NO_HOST)


def frequencies(mix: Mix) -> dict[Footprint, float]:
    return {each.footprint: each.frequency for each in mix.expected()}


def test_nothing_is_expected_before_anything_has_come() -> None:
    assert list(Mix().expected()) == []
    assert Mix().turnover == 0


def test_frequencies_add_up_to_one() -> None:
    mix = Mix()
    for memory_mib in (1, 1, 2):
        mix.arrived(a_footprint(memory_mib))
    assert frequencies(mix) == pytest.approx({a_footprint(1): 2 / 3, a_footprint(2): 1 / 3}, rel=1e-3)


def test_an_arrival_counts_half_after_its_half_life() -> None:
    mix = Mix(half_life=10)
    mix.arrived(a_footprint(1))
    for _ in range(10):
        mix.arrived(a_footprint(2))
    found = frequencies(mix)
    newest, between = 1.0, sum(0.5 ** (age / 10) for age in range(1, 10))
    assert found[a_footprint(1)] / found[a_footprint(2)] == pytest.approx(0.5 / (newest + between))


def test_numbers_do_not_grow_without_end() -> None:
    mix = Mix(half_life=0.1)
    for _ in range(1000):
        mix.arrived(a_footprint(1))
        mix.arrived(a_footprint(2))
    assert sum(frequencies(mix).values()) == pytest.approx(1)


def test_the_rarest_kinds_are_forgotten() -> None:
    mix = Mix()
    for memory_mib in range(1, 6 * KINDS_KEPT):
        mix.arrived(a_footprint(memory_mib))
        mix.arrived(a_footprint(1))
    assert len(mix.expected()) <= KINDS_KEPT
    assert a_footprint(1) in frequencies(mix)


def test_kinds_keep_their_order_so_that_tables_of_them_can_be_kept() -> None:
    mix = Mix()
    for memory_mib in (1, 2, 3):
        mix.arrived(a_footprint(memory_mib))
    before = [each.footprint for each in mix.expected()]
    for _ in range(5):
        mix.arrived(a_footprint(3))
    assert [each.footprint for each in mix.expected()] == before


def test_a_mix_that_is_known_stays_as_it_is() -> None:
    mix = KnownMix([(a_footprint(1), 3.0), (a_footprint(2), 1.0)])
    mix.arrived(a_footprint(2))
    assert frequencies(mix) == pytest.approx({a_footprint(1): 0.75, a_footprint(2): 0.25})
    assert mix.arrivals == 1


def test_turnover_is_what_was_given_back_of_what_was_given_out() -> None:
    mix = Mix()
    mix.given_out(4.0)
    assert mix.turnover == 0
    mix.given_back(1.0)
    assert mix.turnover == 0.25
    mix.given_back(9.0)
    assert mix.turnover == 1


def test_a_ledger_with_holders_is_taken_for_a_cluster_in_a_steady_state_until_more_is_known() -> None:
    mix = Mix()
    mix.taken_over()
    assert mix.turnover == 1
    for _ in range(5000):
        mix.arrived(a_footprint(1))
        mix.given_out(1.0)
    assert mix.turnover < 0.02
