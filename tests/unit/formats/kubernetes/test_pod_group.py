"""PodGroups of each API say how many of their pods start together; what can't be had is refused in words."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.gang import OF_WAY, pod_group
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, GangWay, PodGroup

KUBERNETES, MEMBERS = OF_WAY[GangWay.KUBERNETES], OF_WAY[GangWay.COSCHEDULING]


def group(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": "train"}, "spec": spec}


@pytest.mark.parametrize("way", [GangWay.COSCHEDULING, GangWay.KOORDINATOR, GangWay.VOLCANO])
def test_min_member_is_the_minimum(way: GangWay) -> None:
    assert pod_group(group(minMember=4), OF_WAY[way]) == PodGroup(4)


def test_kubernetes_own_says_it_in_its_gang_policy() -> None:
    assert pod_group(group(schedulingPolicy={"gang": {"minCount": 4}}), KUBERNETES).minimum == 4
    assert pod_group(group(schedulingPolicy={"basic": {}}), KUBERNETES).minimum == 0


@pytest.mark.parametrize("spec", [{}, {"minMember": 0}, {"minMember": 1}, {"minMember": None}])
def test_where_no_pod_waits_for_another_there_is_no_gang(spec: dict[str, Any]) -> None:
    assert pod_group(group(**spec), MEMBERS).minimum == 0


@pytest.mark.parametrize("mode", ["PodGroup", {"all": {}}])  # 1.36's way to say it, and 1.37's
def test_a_group_says_that_its_pods_leave_together(mode: Any) -> None:
    policy = {"gang": {"minCount": 2}}
    assert pod_group(group(schedulingPolicy=policy, disruptionMode=mode), KUBERNETES).leaves_whole
    assert not pod_group(group(schedulingPolicy=policy, disruptionMode="Pod"), KUBERNETES).leaves_whole
    assert not pod_group(group(schedulingPolicy=policy, disruptionMode={"single": {}}), KUBERNETES).leaves_whole


@pytest.mark.parametrize("odd", [-1, MOST_MEMBERS + 1, 10**30, 1.5, True, "many", [4], {}, "9" * 100_000])
def test_a_minimum_that_can_not_be_had_is_refused_in_words_of_bounded_length(odd: Any) -> None:
    with pytest.raises(BadInput, match=r"team-a/train: spec\.minMember") as refused:
        pod_group(group(minMember=odd), MEMBERS)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("spec", [None, [], "x", {"schedulingPolicy": "gang"}, {"schedulingPolicy": {"gang": [4]}}])
def test_a_group_of_another_shape_says_nothing(spec: Any) -> None:
    assert pod_group({"metadata": {}, "spec": spec}, KUBERNETES) == PodGroup(0)
