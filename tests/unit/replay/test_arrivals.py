"""Arrivals without departures, on clusters whose result can be worked out by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from fakes.traces import HALF, LITTLE, NO_GPU, PAIR, PLENTY, WHOLE, a_node, a_trace
from gpuledger.formats.quantity import LARGEST, MIB
from gpuledger.model.request import HostAmounts
from gpuledger.placement.policy import Policy, Preference
from replay.arrivals import ArrivalRun, FragmentationMeter, arrival_order, replay_arrivals, summary
from replay.mix import History
from replay.trace import PodKind, Trace, TraceCluster, TracePod, Why, in_gangs
from replay.yardsticks import BEST_FIT, COMPARED, FGD, compared_policy

BINPACK = Policy()


def replay(trace: Trace, load: float = 1.0, seed: int = 1, policy: Policy = BINPACK) -> ArrivalRun:
    return replay_arrivals(trace, policy, load, seed, History.NONE, lambda: None)


def a_cluster(trace: Trace, policy: Policy = BINPACK) -> TraceCluster:
    return TraceCluster(trace.nodes, Counter(pod.kind for pod in trace.pods), policy, History.NONE)


def test_pods_arrive_until_they_have_asked_for_the_load() -> None:
    run = replay(a_trace([a_node(cards=2)], WHOLE), load=2.0)
    assert (run.arrived, run.unplaced, run.unplaced_milli) == (4, {Why.NO_WHOLE_CARD: 2}, 2000)
    assert [run.allocated_at(load) for load in (0.5, 1.0, 1.5, 2.0)] == [0.5, 1.0, 1.0, 1.0]


def test_the_point_of_a_load_is_the_first_one_that_has_reached_it() -> None:
    run = replay(a_trace([a_node(cards=2), a_node("n2", cards=1)], PAIR), load=1.3)
    assert [round(point.load, 2) for point in run.points] == [0.0, 0.66, 1.3]
    assert run.allocated_at(1.0) == pytest.approx(2 / 3)


def test_a_load_that_is_no_whole_percent_has_its_own_point() -> None:
    run = replay(a_trace([a_node(cards=3)], WHOLE), load=0.505)
    assert [point.load for point in run.points][-2:] == [0.5, 0.505]
    assert run.allocated_at(0.505) == pytest.approx(2 / 3)


def test_every_pod_of_the_trace_comes_before_one_comes_again() -> None:
    trace = a_trace([a_node(cards=4)], *[replace(HALF, milli=500 + number) for number in range(4)])
    order = list(arrival_order(trace, 4.0, seed=7))
    assert {pod.name for pods in order[:4] for pod in pods} == {pod.name for pod in trace.pods}
    assert order == list(arrival_order(trace, 4.0, seed=7))
    assert order != list(arrival_order(trace, 4.0, seed=8))


def test_a_whole_card_is_nobody_elses_and_shares_fill_one_card_first() -> None:
    cluster = a_cluster(a_trace([a_node(cards=2)], HALF, WHOLE))
    assert cluster.place("a", HALF)
    assert cluster.place("b", HALF)
    assert cluster.place("c", WHOLE)
    assert cluster.free_milli == [[0, 0]]
    assert cluster.allocated_milli == 2000
    assert cluster.remove("b") == "n1"
    assert sorted(cluster.free_milli[0]) == [0, 500]


def test_the_policy_decides() -> None:
    kinds = [HALF, HALF]
    for preference, nodes in ((Preference.BINPACK, 1), (Preference.SPREAD, 2)):
        cluster = a_cluster(a_trace([a_node("n1"), a_node("n2")], *kinds), Policy(preference, preference))
        placed = [cluster.place(str(number), kind) for number, kind in enumerate(kinds)]
        assert len({placement.node_name for placement in placed if placement}) == nodes


@pytest.mark.parametrize(
    ("kind", "taken", "why"),
    [
        (PodKind(HostAmounts(5_000, 0), 1, 500), [], Why.HOST_CPU),
        (PodKind(HostAmounts(0, 5_000), 1, 500), [], Why.HOST_MEMORY),
        (PodKind(HostAmounts(5_000, 5_000), 1, 500), [], Why.HOST_CPU_AND_MEMORY),
        (PodKind(HostAmounts(5_000, 0), 0, 0), [], Why.HOST_CPU),
        (PodKind(LITTLE, 1, 500, ("T40",)), [], Why.OTHER_MODELS),
        (PodKind(LITTLE, 3, 1000), [], Why.TOO_FEW_CARDS),
        (PAIR, [HALF], Why.NO_WHOLE_CARD),
        (PodKind(LITTLE, 1, 600), [HALF, WHOLE], Why.NO_SHARE),
    ],
)
def test_why_a_pod_finds_no_place(kind: PodKind, taken: list[PodKind], why: Why) -> None:
    cluster = a_cluster(a_trace([a_node(cards=2, host=HostAmounts(4_000, 4_000))], kind, *taken))
    for number, other in enumerate(taken):
        assert cluster.place(str(number), other)
    assert cluster.place("pod", kind) is None
    assert cluster.why_not(kind) is why


@pytest.mark.parametrize(("models", "node"), [(("V100M16",), "n1"), (("V100",), "n2"), (("T4", "V100"), "n2")])
def test_models_are_whole_names(models: tuple[str, ...], node: str) -> None:
    kind = PodKind(LITTLE, 1, 1000, models)
    cluster = a_cluster(a_trace([a_node("n1", model="V100M16"), a_node("n2", model="V100")], kind))
    placement = cluster.place("pod", kind)
    assert placement is not None
    assert placement.node_name == node
    assert cluster.place("again", kind) is None


def test_pods_without_gpus_take_cpu_and_nodes_without_gpus_have_it() -> None:
    trace = a_trace([a_node("n1", host=LITTLE), a_node("n2", cards=0, host=LITTLE)], NO_GPU, NO_GPU, WHOLE)
    cluster = a_cluster(trace)
    placed = [cluster.place(str(number), NO_GPU) for number in range(3)]
    assert {placement.node_name for placement in placed if placement} == {"n1", "n2"}
    assert placed[2] is None
    assert cluster.why_not(WHOLE) is Why.HOST_CPU_AND_MEMORY


def test_fragments_are_what_the_pods_that_come_cannot_use() -> None:
    small, large = PodKind(LITTLE, 1, 300), PodKind(LITTLE, 1, 600)
    all_cpu = PodKind(HostAmounts(PLENTY.cpu_milli - LITTLE.cpu_milli, 0), 0, 0)
    trace = a_trace([a_node(cards=2)], small, large, all_cpu)
    cluster = a_cluster(trace)
    meter = FragmentationMeter(trace.nodes, Counter(pod.kind for pod in trace.pods))
    assert meter.measure(cluster) == 0.0
    cluster.place("a", large)
    assert meter.measure(cluster) == pytest.approx(0.5 * 400 / 2000)  # of use to the small one only
    cluster.place("b", all_cpu)
    assert meter.measure(cluster) == pytest.approx(1400 / 2000)  # no CPU is left for anybody


def test_a_known_mix_is_known_to_the_policy() -> None:
    trace = a_trace([a_node(cards=2), a_node("n2", cards=2)], WHOLE, HALF, PAIR)
    policy = Policy(FGD, FGD)
    known = replay_arrivals(trace, policy, 1.0, 1, History.KNOWN, lambda: None)
    assert known.arrived == replay_arrivals(trace, policy, 1.0, 1, History.NONE, lambda: None).arrived


@pytest.mark.parametrize("name", COMPARED)
def test_an_amount_that_nobody_has_is_no_trap_for_the_prices(name: str) -> None:
    fits, too_large = PodKind(LITTLE, 1, 1000), PodKind(HostAmounts(LARGEST, LARGEST), 1, 1000)
    trace = a_trace([a_node(cards=2, host=HostAmounts(LARGEST - 1, LARGEST // MIB))], fits, too_large)
    cluster = a_cluster(trace, compared_policy(name))
    assert cluster.place("a", fits)
    assert cluster.place("b", too_large) is None


def test_best_fit_is_for_nodes_and_on_them_the_fullest_card_is_taken() -> None:
    assert compared_policy("best-fit") == Policy(BEST_FIT, Preference.BINPACK)
    assert compared_policy("fgd/best-fit") == Policy(FGD, Preference.BINPACK)
    assert compared_policy("topology-aware") == Policy(Preference.TOPOLOGY, Preference.TOPOLOGY)


# Gangs.


def a_gang_trace(cards: int, gangs: int, size: int) -> Trace:
    """Return a trace with gangs of pods that ask for a whole card, on one node."""
    pods = [TracePod(f"p{number}", WHOLE, gang=f"gang {number // size}") for number in range(gangs * size)]
    return Trace((a_node(cards=cards),), tuple(pods))


def test_a_gang_arrives_as_a_whole_and_is_placed_whole_or_not_at_all() -> None:
    run = replay(a_gang_trace(cards=8, gangs=3, size=3), load=1.1)
    assert (run.arrived, run.gangs, run.whole_gangs) == (9, 3, 2)
    assert run.unplaced == {Why.NOT_ALL_AT_ONCE: 3}
    assert run.allocated_at(1.1) == pytest.approx(6 / 8)


def test_a_gang_of_which_no_member_fits_is_told_what_one_lacks() -> None:
    run = replay(a_gang_trace(cards=6, gangs=3, size=3), load=1.4)
    assert run.unplaced == {Why.NO_WHOLE_CARD: 3}


def test_members_of_a_gang_take_cpu_from_each_other() -> None:
    nodes = tuple(a_node(name, cards=4, host=LITTLE) for name in ("n1", "n2"))
    pods = tuple(TracePod(f"p{number}", WHOLE, gang="train") for number in range(3))
    assert replay(Trace(nodes, pods), load=0.3).unplaced == {Why.NOT_ALL_AT_ONCE: 3}
    assert not replay(Trace((*nodes, a_node("n3", cards=4, host=LITTLE)), pods), load=0.2).unplaced


def test_the_same_cards_hold_fewer_pods_where_these_come_in_gangs() -> None:
    trace = a_trace([a_node(cards=7)], *[WHOLE] * 8)
    assert replay(trace, load=1.1).allocated_at(1.1) == 1.0
    run = replay(in_gangs(trace, 4), load=1.1)
    assert (run.gangs, run.whole_gangs) == (2, 1)
    assert run.allocated_at(1.1) == pytest.approx(4 / 7)


def test_the_summary_counts_gangs_where_there_are_some() -> None:
    assert summary([replay(a_gang_trace(8, 3, 3), load=1.1)], [1.1], History.NONE)["whole_gangs"] == 2
    assert "gangs" not in summary([replay(a_trace([a_node(cards=2)], WHOLE))], [1.0], History.NONE)
