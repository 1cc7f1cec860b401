"""A workload that is ready without cards is found, and one that waits beside them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from chaos.checker import Checker
from chaos.examples import NODE, a_card, a_holder, a_node, a_pod, changed
from chaos.quotas import Left
from chaos.steps import PlannedWorkload
from chaos.workload_rule import LATE_S, unsettled_workloads
from chaos.workloads import WORKLOAD_ANNOTATION, workload_body

Json = dict[str, Any]
RULE = "a workload is ready, and there were no cards"
LATER_S = 2 * LATE_S


def a_workload(state: str, count: int = 2, **conditions: bool) -> Json:
    """Return a workload of pods with 4,000 MiB each."""
    found = workload_body(PlannedWorkload("default", "work", "small", count))
    said = [{"type": kind, "status": str(holds)} for kind, holds in conditions.items()]
    return {**found, "status": {"admissionChecks": [{"name": "cards", "state": state}], "conditions": said}}


@pytest.fixture
def checker() -> Checker:
    return Checker(6.0, 60.0)


def becomes_ready(checker: Checker, count: int = 2) -> bool:
    """Return whether that is found to be wrong."""
    pending = a_workload("Pending", count)
    checker.take(changed("workload", None, pending, LATER_S))
    checker.take(changed("workload", pending, a_workload("Ready", count), LATER_S))
    return RULE in {finding.rule for finding in checker.findings}


def test_a_workload_that_becomes_ready_with_room_for_all_is_in_order(checker: Checker) -> None:
    checker.take(changed("card", None, a_card()))
    assert not becomes_ready(checker, 2)
    assert checker.workloads.checks == 1


@pytest.mark.parametrize("card", [a_card(a_holder()), a_card(phase="Unhealthy"), a_card(number=1), None])
def test_a_workload_that_becomes_ready_without_room_for_all_is_found(checker: Checker, card: Json | None) -> None:
    if card is not None:
        checker.take(changed("card", None, card))
    assert becomes_ready(checker)


@pytest.mark.parametrize(("gone_s", "is_found"), [(LATER_S - LATE_S - 1, True), (LATER_S - 1, False)])
def test_an_operator_may_go_by_what_a_card_was_a_moment_before(checker: Checker, gone_s: float, is_found: bool) -> None:
    checker.take(changed("card", None, a_card()))
    checker.take(changed("card", a_card(), a_card(phase="Unavailable"), gone_s))
    assert becomes_ready(checker) == is_found


def at_rest(workload: Json, card: Json, *pods: Json, quota_mib: int | None = None) -> list[str]:
    cards, by_uid = {"GPU-1": card}, {each["metadata"]["uid"]: each for each in pods}
    quotas = {} if quota_mib is None else {"default/a": {"spec": {"hard": {"limits.nvidia.com/gpumem": quota_mib}}}}
    found = unsettled_workloads({"default/work": workload}, cards, by_uid, {NODE: a_node()}, Left(quotas, cards))
    return [rule for rule, _ in found]


def test_a_workload_that_waits_beside_room_for_all_of_it_is_found() -> None:
    waiting = a_workload("Pending", QuotaReserved=True)
    assert at_rest(waiting, a_card()) == ["a workload waits that has room"]
    assert at_rest(waiting, a_card(a_holder())) == []
    assert at_rest(a_workload("Pending"), a_card()) == [], "it has no quota"


def test_pods_of_a_workload_that_wait_though_it_is_ready_are_found() -> None:
    pod = copy.deepcopy(a_pod(node=None))
    pod["metadata"]["annotations"][WORKLOAD_ANNOTATION] = "work"
    ready = a_workload("Ready", QuotaReserved=True, Admitted=True)
    assert at_rest(ready, a_card(), pod) == ["a workload is ready, and its pods wait"]
    assert at_rest(ready, a_card(), a_pod(node=None)) == []
    assert at_rest(ready, a_card(), pod, quota_mib=4_000) == ["a workload is ready, and its pods wait"]
    assert at_rest(ready, a_card(), pod, quota_mib=3_999) == [], "the quota was lowered since"
