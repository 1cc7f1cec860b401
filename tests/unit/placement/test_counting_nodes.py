"""Nodes whose own device plugin only counts its cards: pods that only count get them, as many as there are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card, a_ledger, a_share, mib, occupy, whole
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import CardFilter
from gpuledger.model.errors import Reason, ShareRefused
from gpuledger.model.request import Demand, HostAmounts, Lifetime, PodRequest, counted_cards
from gpuledger.model.share import Placement
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference

GPUS = 4
NAMES = ["counting", "node-a"]


def by_number(cards: int = 1, lifetime: Lifetime = Lifetime.MAIN) -> Demand:
    return replace(whole(cards, lifetime), resource="nvidia.com/gpu")


def a_pod(*shape: Demand) -> PodRequest:
    names = tuple(f"c{number}" for number in range(len(shape)))
    return PodRequest(names, shape, host=HostAmounts(cards=counted_cards(shape)))


def both_kinds() -> Ledger:
    """Return a node with a card in the ledger, and one that only counts its cards."""
    ledger = a_ledger(a_card(0))
    ledger.hosts.set_capacity("counting", HostAmounts(cards=GPUS))
    return ledger


@pytest.mark.parametrize("nodes", Preference)
@pytest.mark.parametrize("cards", Preference)
def test_whatever_the_policy_the_card_that_can_be_shared_is_taken_last(nodes: Preference, cards: Preference) -> None:
    ledger = both_kinds()
    chooser = Chooser(ledger, Policy(nodes=nodes, cards=cards))
    places = []
    for number in range(GPUS + 1):
        (placement,) = chooser.choose(a_pod(by_number()), NAMES, 1).placements
        ledger.seats.take(Seat(f"pod-{number}", placement, 10.0))
        places.append((placement.node_name, len(placement.shares)))
    assert places == [("counting", 0)] * GPUS + [("node-a", 1)]
    refused = chooser.choose(a_pod(by_number()), NAMES, 1).refusals
    assert refused["counting"].reason is Reason.NO_GPU_LEFT


@pytest.mark.parametrize(
    "demand",
    [
        mib(1),
        replace(by_number(), wanted=CardFilter(use_models=("H100",))),
        replace(by_number(), wanted=CardFilter(vendor="amd")),
        replace(by_number(), resource="volcano.sh/vgpu-number"),
        replace(by_number(2), one_numa_node=True),
        replace(by_number(), exclusive=False),
    ],
)
def test_a_pod_that_says_more_than_a_number_is_not_sent_there(demand: Demand) -> None:
    choice = Chooser(both_kinds(), Policy()).choose(a_pod(by_number(), demand), ["counting"], 1)
    assert choice.refusals["counting"].reason is Reason.ONLY_WHOLE_GPUS


def test_containers_count_together_by_when_they_run() -> None:
    sidecar, init = by_number(1, Lifetime.SIDECAR), by_number(3, Lifetime.INIT)
    assert counted_cards((sidecar, init, by_number(2))) == 4
    assert counted_cards((init, by_number(2), by_number(2))) == 4
    assert counted_cards(()) == 0


def test_a_spare_that_others_have_taken_meanwhile_is_not_kept() -> None:
    """A spare costs nothing there: who comes to it first gets it."""
    ledger = both_kinds()
    asked = a_pod(by_number(3))
    there = Placement("counting", (), asked.host)
    here = Placement("node-a", (a_share(a_card(0)),), asked.host)
    ledger.seats.take(Seat("first", here, 10.0, spares=(there,)))
    ledger.seats.take(Seat("second", there, 10.0))
    assert ledger.seats.settle("first", "counting") is None
    assert ledger.seats.settle("first", "node-a") == here


def test_a_node_whose_cards_come_into_the_ledger_counts_no_more() -> None:
    ledger = both_kinds()
    assert ledger.only_counts("counting")
    assert ledger.counting_nodes() == ["counting"]
    ledger.hosts.set_capacity("node-a", HostAmounts(cards=GPUS))
    assert not ledger.only_counts("node-a")


def test_a_card_that_is_shared_is_no_card_that_counts() -> None:
    ledger = both_kinds()
    occupy(ledger, "share", a_share(a_card(0)))
    ledger.hosts.set_capacity("counting", HostAmounts(cards=1))
    choice = Chooser(ledger, Policy()).choose(a_pod(by_number(2)), NAMES, 1)
    assert choice.refusals["counting"].reason is Reason.NO_GPU_LEFT
    assert choice.refusals["node-a"].reason is Reason.TOO_FEW_CARDS


STEPS = st.lists(
    st.tuples(st.sampled_from(["hold", "drop", "bind", "end", "other"]), st.integers(0, 5), st.integers(1, GPUS)),
    max_size=40,
)


@given(STEPS)
def test_our_pods_never_get_more_than_there_is_whatever_comes_and_goes(steps: list[tuple[str, int, int]]) -> None:
    """Those of other schedulers may: these are bound without asking here, and the kubelet refuses one too many."""
    ledger = both_kinds()
    ours: dict[str, int] = {}
    others: dict[str, int] = {}
    for step, number, cards in steps:
        uid, placement = f"pod-{number}", Placement("counting", (), HostAmounts(cards=cards))
        if step == "hold" and uid not in ours:
            taken = sum(ours.values()) + sum(others.values())
            try:
                ledger.seats.take(Seat(uid, placement, 10.0))
                assert cards + taken <= GPUS
                ours[uid] = cards
            except ShareRefused:
                assert cards + taken > GPUS
        elif step == "drop" and ledger.seats.give_up(uid):
            ours.pop(uid)
        elif step == "bind" and ledger.seats.of(uid):
            ledger.hosts.bound(uid, "counting", HostAmounts(cards=ours[uid]))
            ledger.seats.give_up(uid)
        elif step == "end":
            ledger.seats.give_up(uid)
            ledger.hosts.forget(uid)
            ours.pop(uid, None)
        elif step == "other":
            others[f"other-{number}"] = cards
            ledger.hosts.bound(f"other-{number}", "counting", HostAmounts(cards=cards))
        left = GPUS - sum(ours.values()) - sum(others.values())
        assert ledger.node_room("counting").counted == left


def test_seats_that_are_taken_together_count_beside_each_other() -> None:
    ledger = both_kinds()
    there = Placement("counting", (), a_pod(by_number(3)).host)
    with pytest.raises(ShareRefused):
        ledger.seats.take(Seat("first", there, 10.0), Seat("second", there, 10.0))
    assert ledger.hosts.free("counting") == HostAmounts(cards=GPUS)


def test_a_pod_takes_the_seat_of_another_on_a_full_node() -> None:
    """As a pod of a workload does, or a gang that is planned anew: the node has no room for both."""
    ledger = both_kinds()
    two = Placement("counting", (), a_pod(by_number(2)).host)
    ledger.seats.take(Seat("a", two, 10.0), Seat("b", two, 10.0))
    ledger.seats.take(Seat("pod", two, 10.0), without={"a"})
    assert {uid for uid in ("a", "b", "pod") if ledger.seats.of(uid)} == {"b", "pod"}
    ledger.seats.take(Seat("pod", two, 20.0), Seat("c", two, 20.0), without={"b"})
    assert ledger.hosts.free("counting") == HostAmounts(cards=0)
    with pytest.raises(ShareRefused):
        ledger.seats.take(Seat("d", two, 10.0))
