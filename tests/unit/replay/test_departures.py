"""Arrivals and departures, on a cluster with so few cards that the result can be worked out by hand."""

from dataclasses import replace

import pytest

from fakes.traces import HALF, PAIR, WHOLE, a_node, a_trace
from gpuledger.model.errors import BadInput
from gpuledger.placement.policy import Policy
from replay.departures import (
    Arrival,
    DepartureRun,
    Plan,
    at_quantile,
    plan_departures,
    replay_departures,
    size_of,
    summary,
)
from replay.mix import History
from replay.trace import PodKind, Trace, in_gangs


def replay(cards: int, end_s: float, *arrivals: Arrival, begin_s: float = 0.0) -> DepartureRun:
    trace = a_trace([a_node(cards=cards)], *(arrival.kind for arrival in arrivals))
    plan = Plan(arrivals, 1.0, begin_s, end_s)
    return replay_departures(trace, Policy(), plan, 0, History.NONE, lambda: None)


def test_those_that_wait_come_by_age_when_others_leave() -> None:
    run = replay(1, 30, Arrival(0, WHOLE, 10), Arrival(1, WHOLE, 10), Arrival(2, HALF, 5))
    assert run.waits_s == {"1": (0, 9), "share": (18,)}
    assert run.waiting == {}
    assert run.accepted == 1.0
    assert run.allocated == pytest.approx((10 + 10 + 0.5 * 5) / 30)
    assert run.served == 1.0


def test_smaller_ones_may_pass() -> None:
    run = replay(2, 30, Arrival(0, WHOLE, 20), Arrival(1, PAIR, 5), Arrival(2, WHOLE, 10))
    assert run.waits_s == {"1": (0, 0), "2": (19,)}


def test_who_still_waits_at_the_end_counts_so_far() -> None:
    run = replay(1, 10, Arrival(0, WHOLE, 100), Arrival(4, WHOLE, 1))
    assert run.waits_s == {"1": (0, 6)}
    assert run.waiting == {"1": 1}
    assert run.accepted == 0.5
    assert run.served == pytest.approx(10 / 11)
    assert run.allocated == 1.0


def test_only_the_measured_time_counts() -> None:
    run = replay(1, 20, Arrival(0, WHOLE, 15), Arrival(12, HALF, 2), begin_s=10)
    assert run.waits_s == {"share": (3,)}
    assert run.allocated == pytest.approx((5 + 0.5 * 2) / 10)


def test_pods_of_a_kind_do_not_pass_each_other_and_a_departure_lets_several_in() -> None:
    run = replay(1, 30, Arrival(0, WHOLE, 10), Arrival(1, HALF, 5), Arrival(2, HALF, 5), Arrival(3, HALF, 5))
    assert run.waits_s == {"1": (0,), "share": (8, 9, 12)}


def a_timed_trace() -> Trace:
    trace = a_trace([a_node(cards=10)], *[WHOLE] * 100)
    pods = [replace(pod, created_s=1000 + at * 10, deleted_s=1000 + at * 10 + 50) for at, pod in enumerate(trace.pods)]
    return Trace(trace.nodes, tuple(pods))


@pytest.mark.parametrize("load", [0.5, 1.0, 1.3])
def test_arrivals_are_compressed_to_the_load(load: float) -> None:
    """One pod every 10 s for 50 s holds 5 of 10 cards: for a load of 1 they come twice as fast."""
    plan = plan_departures(a_timed_trace(), load, rounds=8, seed=0)
    assert plan.compression == pytest.approx(2 * load, rel=0.05)
    assert len(plan.arrivals) == 800
    assert plan.end_s == pytest.approx(8 * plan.begin_s)


def test_a_load_that_the_trace_cannot_reach() -> None:
    with pytest.raises(
        BadInput, match=r"ask for 5\.\d\d times the cluster's GPUs at most, and 9 are wanted: give more"
    ):
        plan_departures(a_timed_trace(), 9.0, rounds=1, seed=0)


def test_a_trace_of_one_moment_has_no_departures() -> None:
    with pytest.raises(BadInput, match="created at once"):
        plan_departures(a_trace([a_node()], WHOLE, WHOLE), 1.0, rounds=1, seed=0)


def test_other_seeds_deal_the_same_times_out_anew() -> None:
    trace = a_timed_trace()
    long = replace(trace.pods[0], deleted_s=2000)
    trace = Trace(trace.nodes, (long, *trace.pods[1:]))
    orders = [[arrival.runs_s for arrival in plan_departures(trace, 1.0, 2, seed).arrivals] for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0][0] == 1000


def test_sizes_and_quantiles() -> None:
    kinds = [PodKind(HALF.host, 0, 0), HALF, WHOLE, replace(PAIR, cards=8)]
    assert [size_of(kind) for kind in kinds] == ["no GPU", "share", "1", "8"]
    assert [at_quantile(range(1, 101), quantile) for quantile in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert [at_quantile([3.0], quantile) for quantile in (0.5, 0.99)] == [3.0, 3.0]


def test_the_summary_orders_sizes_and_joins_the_seeds() -> None:
    run = replay(2, 30, Arrival(0, WHOLE, 20), Arrival(1, PAIR, 5), Arrival(2, HALF, 10))
    found = summary({1.0: [run, run]}, History.NONE)["loads"]["1.0"]
    assert list(found["waits"]) == ["share", "1", "2"]
    assert found["waits"]["2"] == {
        "pods": 2,
        "still_waiting": 0,
        "p50_s": 19,
        "p90_s": 19,
        "p99_s": 19,
        "mean_s": 19,
    }


# Gangs.


def of_gang(at_s: float, runs_s: int, gang: str = "train") -> Arrival:
    return Arrival(at_s, WHOLE, runs_s, gang)


def test_a_gang_starts_when_all_of_it_has_come_and_fits_and_others_use_the_cards_meanwhile() -> None:
    run = replay(2, 30, Arrival(0, WHOLE, 10), of_gang(1, 5), of_gang(3, 5), Arrival(4, WHOLE, 2))
    assert run.gang_waits_s == (7,), "from its last member's arrival on, until the first pod leaves"
    assert run.waits_s == {"1": (0, 0, 7, 9)}
    assert (run.gangs_waiting, run.waiting) == (0, {})


def test_a_gang_that_never_fits_or_lacks_members_never_starts() -> None:
    run = replay(2, 20, *[of_gang(number, 5) for number in range(3)], Arrival(4, WHOLE, 2))
    assert (run.gangs_waiting, run.waiting) == (1, {"1": 3})
    assert run.gang_waits_s == (18,)
    assert run.allocated == pytest.approx(2 / 40), "the single pod alone has a card"


def test_a_gang_takes_cards_where_a_pod_has_left_and_elsewhere() -> None:
    trace = a_trace([a_node("n1", cards=1), a_node("n2", cards=1)], WHOLE)
    arrivals = (Arrival(0, WHOLE, 10), of_gang(1, 5), of_gang(1, 5))
    run = replay_departures(trace, Policy(), Plan(arrivals, 1.0, 0, 30), 0, History.NONE, lambda: None)
    assert run.gang_waits_s == (9,)


def test_each_round_of_the_trace_has_its_own_gangs_and_other_seeds_keep_them_together() -> None:
    trace = in_gangs(a_timed_trace(), 4)
    for seed in (0, 1):
        arrivals = plan_departures(trace, 1.0, 2, seed).arrivals
        of_one: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            of_one.setdefault(arrival.gang, []).append(arrival)
        assert len(of_one) == 50
        assert {len(members) for members in of_one.values()} == {4}
        assert all(len({member.at_s for member in members}) == 1 for members in of_one.values())


def test_the_summary_tells_how_long_gangs_take_to_be_placed() -> None:
    run = replay(2, 30, Arrival(0, WHOLE, 10), of_gang(1, 5), of_gang(3, 5))
    gangs = summary({1.0: [run]}, History.NONE)["loads"]["1.0"]["gangs"]
    assert (gangs["gangs"], gangs["placed_whole"], gangs["still_waiting"], gangs["p50_s"]) == (1, 1, 0, 7)
    assert "gangs" not in summary({1.0: [replay(1, 9, Arrival(0, WHOLE, 1))]}, History.NONE)["loads"]["1.0"]
