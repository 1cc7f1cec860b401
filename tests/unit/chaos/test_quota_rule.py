"""A Binding beyond a namespace's quota is found, and nothing that the documents allow is."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker import Checker
from chaos.examples import NODE, a_card, a_holder, a_node, a_pod, changed
from chaos.quotas import LATE_S, Left
from chaos.rest import Others, unsettled

Json = dict[str, Any]
BEYOND = "a pod is bound beyond its namespace's quota"
MEMORY, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
FIRST, SECOND = "uid-1", "uid-2"
LATER_S = 2 * LATE_S


def a_quota(most: int, key: str = MEMORY) -> Json:
    return {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"hard": {key: str(most)}}}


@pytest.fixture
def checker() -> Checker:
    """Return a checker that has seen a quota of 6,000 MiB, and two pods that wait."""
    checker = Checker(6.0, 60.0)
    checker.take(changed("quota", None, a_quota(6_000)))
    for uid in (FIRST, SECOND):
        checker.take(changed("pod", None, a_pod(uid, node=None)))
    return checker


def bind(checker: Checker, uid: str, at_s: float = LATER_S, *, card: str = "GPU_1") -> None:
    checker.take(changed("pod", a_pod(uid, node=None), a_pod(uid, node=NODE, **{card: 4000}), at_s))


def enter(checker: Checker, uid: str, card: str = "GPU-1") -> None:
    checker.take(changed("card", None, a_card(a_holder(uid), uuid=card), LATER_S))


def found(checker: Checker) -> list[str]:
    return [finding.text for finding in checker.findings if finding.rule == BEYOND]


def test_two_operators_that_bind_a_pod_each_beyond_the_quota_are_found(checker: Checker) -> None:
    enter(checker, FIRST)
    bind(checker, FIRST)
    enter(checker, SECOND, "GPU-2")
    assert not found(checker), "it may still be given back"
    bind(checker, SECOND, card="GPU_2")
    (text,) = found(checker)
    assert f"{MEMORY} is 8000 of 6000" in text
    assert checker.quotas.checks == 2


def test_a_share_that_is_entered_and_given_back_is_none(checker: Checker) -> None:
    enter(checker, FIRST)
    enter(checker, SECOND, "GPU-2")
    bind(checker, FIRST)
    assert not found(checker)


@pytest.mark.parametrize(("since_s", "is_found"), [(LATER_S - LATE_S - 1, True), (LATER_S - 1, False)])
def test_an_operator_may_go_by_what_a_quota_has_said_a_moment_before(
    checker: Checker, since_s: float, is_found: bool
) -> None:
    checker.take(changed("quota", a_quota(6_000), a_quota(3_000), since_s))
    enter(checker, FIRST)
    bind(checker, FIRST)
    assert bool(found(checker)) == is_found


def test_a_quota_that_was_away_a_moment_ago_limits_nothing_yet(checker: Checker) -> None:
    checker.take(changed("quota", a_quota(6_000), None, LATER_S - 2))
    checker.take(changed("quota", None, a_quota(1_000), LATER_S - 1))
    enter(checker, FIRST)
    bind(checker, FIRST)
    assert not found(checker)


def test_a_pod_that_takes_nothing_of_what_is_exceeded_may_be_bound(checker: Checker) -> None:
    checker.take(changed("quota", a_quota(6_000), a_quota(0, CORES), 1.0))
    enter(checker, FIRST)
    bind(checker, FIRST)
    assert not found(checker)


@pytest.mark.parametrize(("most", "waits_rightly"), [(7_999, True), (8_000, False)])
def test_at_rest_a_pod_may_wait_for_its_quota_and_for_nothing_else(most: int, waits_rightly: bool) -> None:
    card, pods = a_card(a_holder()), {FIRST: a_pod(FIRST, GPU_1=4000), SECOND: a_pod(SECOND, node=None)}
    others = Others(quotas={"default/gpus": a_quota(most)})
    rules = [each.rule for each in unsettled({"GPU-1": card}, pods, {NODE: a_node()}, "", others)]
    assert rules == ([] if waits_rightly else ["a pod waits that has room"])


def test_what_several_quotas_leave_is_the_least() -> None:
    left = Left({"default/a": a_quota(9_000), "default/b": a_quota(5_000)}, {"GPU-1": a_card(a_holder())})
    assert left.allows("default", {"memoryMiB": 1_000, "cores": 100})
    assert not left.allows("default", {"memoryMiB": 1_001, "cores": 0})
    assert left.allows("other", {"memoryMiB": 100_000})
