"""The checker finds what must never be, and nothing else."""

from typing import Any

import pytest

from chaos.checker import Checker
from chaos.examples import CARD, POD, a_card, a_holder, a_pod, changed
from cluster.cluster import COUNT, MEMORY

Json = dict[str, Any]

DELAY_S, LONGEST_S = 6.0, 60.0
OTHER = "uid-2"


@pytest.fixture
def checker() -> Checker:
    return Checker(DELAY_S, LONGEST_S)


def rules(checker: Checker) -> set[str]:
    return {finding.rule for finding in checker.findings}


def bound(checker: Checker, pod: Json, *cards: Json) -> None:
    """Show cards, and then the pod bound."""
    for card in cards:
        checker.take(changed("card", None, card))
    checker.take(changed("pod", None, pod))


def running(pod: Json) -> Json:
    return {**pod, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}


def test_a_pod_that_is_bound_with_its_shares_is_in_order(checker: Checker) -> None:
    bound(checker, a_pod(GPU_1=4000), a_card(a_holder()))
    assert not checker.findings
    assert checker.checks > 5


def test_a_holder_before_its_pod_is_bound_is_in_order(checker: Checker) -> None:
    bound(checker, a_pod(node=None), a_card(a_holder()))
    checker.take(changed("card", a_card(a_holder()), a_card()))
    assert not checker.findings


def test_a_card_whose_holders_take_more_than_it_has_is_found(checker: Checker) -> None:
    before = a_card(a_holder(memory_mib=8000))
    checker.take(changed("card", None, before))
    checker.take(changed("card", before, a_card(a_holder(memory_mib=8000), a_holder(OTHER, memory_mib=4000))))
    assert rules(checker) == {"a card is over-allocated"}


@pytest.mark.parametrize(("holders", "is_found"), [((8000, 1000), False), ((8000,), False), ((8000, 1000, 1), True)])
def test_a_card_that_has_shrunk_may_lose_holders_and_not_get_more(
    checker: Checker, holders: tuple[int, ...], is_found: bool
) -> None:
    both = [a_holder(f"uid-{memory}", memory_mib=memory) for memory in (8000, 1000)]
    checker.take(changed("card", None, a_card(*both)))
    checker.take(changed("card", a_card(*both), a_card(*both, memoryMiB=500)))
    now = [a_holder(f"uid-{memory}", memory_mib=memory) for memory in holders]
    checker.take(changed("card", a_card(*both, memoryMiB=500), a_card(*now, memoryMiB=500)))
    assert ("a card is over-allocated" in rules(checker)) == is_found


def test_a_total_that_is_not_the_sum_is_found(checker: Checker) -> None:
    card = a_card(a_holder())
    card["status"]["used"]["memoryMiB"] = 3999
    checker.take(changed("card", None, card))
    assert rules(checker) == {"a total is not the sum"}


def test_a_second_holder_beside_an_exclusive_one_is_found(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_holder(exclusive=True), a_holder(OTHER))))
    assert rules(checker) == {"a pod that has a card for itself is not alone"}


def test_a_pod_twice_on_a_card_is_found(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_holder(), a_holder())))
    assert rules(checker) == {"a pod is on a card twice"}


def test_a_held_card_that_is_deleted_or_moves_is_found(checker: Checker) -> None:
    checker.take(changed("card", a_card(a_holder()), a_card(a_holder(), node="node-2")))
    checker.take(changed("card", a_card(a_holder(OTHER)), None))
    assert rules(checker) == {"a card moves while pods hold it", "a card is deleted while pods hold it"}


def test_a_status_that_is_removed_is_found(checker: Checker) -> None:
    without = a_card()
    del without["status"]
    checker.take(changed("card", a_card(), without))
    assert rules(checker) == {"a card's status is removed"}


@pytest.mark.parametrize(
    "card",
    [
        a_card(),
        a_card(a_holder(OTHER)),
        a_card(a_holder(memory_mib=3000)),
        a_card(a_holder(), node="node-2"),
        a_card(a_holder(exclusive=True)),
        a_card(a_holder(number=2)),
    ],
    ids=["empty", "another pod", "too little", "another node", "exclusive", "two slots"],
)
def test_a_bound_pod_whose_shares_are_not_in_the_ledger_is_found(checker: Checker, card: Json) -> None:
    bound(checker, a_pod(GPU_1=4000), card)
    assert rules(checker) == {"a bound pod lacks its shares"}


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(POD, {COUNT: 2, MEMORY: 4000}, GPU_1=4000),
        a_pod(POD, {COUNT: 1, MEMORY: 5000}, GPU_1=4000),
        a_pod(POD, {COUNT: 1, MEMORY: 4000}, {COUNT: 1, MEMORY: 1000}, GPU_1=4000),
        a_pod(),
    ],
    ids=["a card too few", "too little memory", "a container without a card", "no annotation"],
)
def test_a_bound_pod_that_has_not_what_it_asks_for_is_found(checker: Checker, pod: Json) -> None:
    bound(checker, pod, a_card(a_holder()))
    assert len(rules(checker)) == 1


def test_a_share_that_a_live_pod_loses_is_found(checker: Checker) -> None:
    bound(checker, a_pod(GPU_1=4000), a_card(a_holder()))
    checker.take(changed("card", a_card(a_holder()), a_card()))
    assert rules(checker) == {"a bound pod lacks its shares"}
    assert checker.findings[0].pods == (POD,)
    assert checker.findings[0].cards == (CARD,)


def test_a_share_that_another_writer_makes_smaller_is_found(checker: Checker) -> None:
    bound(checker, a_pod(GPU_1=4000), a_card(a_holder()))
    checker.take(changed("card", a_card(a_holder()), a_card(a_holder(memory_mib=1000, state="releasing"))))
    assert rules(checker) == {"a bound pod lacks its shares"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_may_leave(checker: Checker, phase: str) -> None:
    pod = a_pod(GPU_1=4000)
    bound(checker, pod, a_card(a_holder()))
    checker.take(changed("pod", pod, {**running(pod), "status": {"phase": phase}}))
    checker.take(changed("card", a_card(a_holder()), a_card()))
    assert not checker.findings


@pytest.mark.parametrize(
    ("started", "kept_s", "is_found"),
    [(True, 1.0, True), (True, 36.0, False), (False, 30.0, True), (False, 36.0, False)],
)
def test_a_pod_deleted_while_it_may_run_keeps_its_share_for_its_time_to_end_and_the_delay(
    checker: Checker, started: bool, kept_s: float, is_found: bool
) -> None:
    pod = a_pod(GPU_1=4000)
    bound(checker, pod, a_card(a_holder()))
    if started:
        checker.take(changed("pod", pod, running(pod)))
    checker.take(changed("pod", running(pod) if started else pod, None, at_s=10.0))
    checker.take(changed("card", a_card(a_holder()), a_card(), at_s=10.0 + kept_s))
    assert rules(checker) == ({"a share is given up while its pod may still run"} if is_found else set())


def test_a_pod_deleted_while_it_ran_may_leave_cards_at_once_that_it_was_not_told(checker: Checker) -> None:
    """Two operators have entered it, and one of them has bound it."""
    pod, other = a_pod(GPU_1=4000), "GPU-3"
    bound(checker, pod, a_card(a_holder()))
    checker.take(changed("card", None, a_card(a_holder(), uuid=other)))
    checker.take(changed("pod", running(pod), None, at_s=10.0))
    checker.take(changed("card", a_card(a_holder(), uuid=other), a_card(uuid=other), at_s=10.1))
    assert not checker.findings
    checker.take(changed("card", a_card(a_holder()), a_card(), at_s=10.2))
    assert rules(checker) == {"a share is given up while its pod may still run"}


EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


@pytest.mark.parametrize(
    ("priority", "at_s", "holds"), [(1, 5.0, True), (0, 5.0, False), (1, 19.0, True), (1, 21.0, False)]
)
def test_a_pod_may_be_evicted_only_for_a_more_important_one_that_waits_or_did_a_while_ago(
    checker: Checker, priority: int, at_s: float, holds: bool
) -> None:
    victim, waiting = a_pod(GPU_1=4000), a_pod(OTHER, node=None)
    waiting["spec"]["priority"] = priority
    bound(checker, victim, a_card(a_holder()))
    checker.take(changed("pod", None, waiting))
    checker.take(changed("pod", waiting, None, at_s=0.0))
    evicted = {**victim, "status": {"phase": "Running", "conditions": [EVICTED]}}
    checker.take(changed("pod", victim, evicted, at_s=at_s))
    assert rules(checker) == (set() if holds else {"a pod is evicted, and none that is more important waits"})


def test_a_pod_may_be_evicted_for_one_that_still_waits(checker: Checker) -> None:
    victim, waiting = a_pod(GPU_1=4000), a_pod(OTHER, node=None)
    waiting["spec"]["priority"] = 1
    bound(checker, victim, a_card(a_holder()))
    checker.take(changed("pod", None, waiting))
    checker.take(changed("pod", victim, {**victim, "status": {"conditions": [EVICTED]}}, at_s=100.0))
    assert not checker.findings


def test_a_bound_pod_that_moves_is_found(checker: Checker) -> None:
    pod = a_pod(GPU_1=4000)
    bound(checker, pod, a_card(a_holder()))
    checker.take(changed("pod", pod, a_pod(GPU_1=4000, node="node-2")))
    assert "a pod changes its node" in rules(checker)


def test_the_same_thing_is_told_once(checker: Checker) -> None:
    bound(checker, a_pod(GPU_1=4000), a_card())
    for _ in range(3):
        checker.take(changed("card", a_card(), a_card(a_holder(OTHER))))
        checker.take(changed("pod", a_pod(GPU_1=4000), a_pod(GPU_1=4000)))
    assert len(checker.findings) == 1
