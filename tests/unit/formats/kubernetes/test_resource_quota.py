"""What ResourceQuotas say of GPUs: HAMi's keys, ours for a model, and what can't be used."""

from __future__ import annotations

import pytest

from gpuledger.formats.dialects.vocabulary import HAMI, VOLCANO, Dialects
from gpuledger.formats.kubernetes.other import MOST_LIMITS, limits_of
from gpuledger.model.gang import Counted

DIALECTS = Dialects((HAMI, VOLCANO))


def quota(**spec: object) -> dict[str, object]:
    return {"metadata": {"name": "gpus", "namespace": "team-a"}, "spec": spec}


def read(hard: dict[str, object], **spec: object) -> list[tuple[Counted, int, str]]:
    found, problems = limits_of(quota(hard=hard, **spec), DIALECTS)
    assert not problems
    return [(limit.counted, limit.most, limit.model) for limit in found]


@pytest.mark.parametrize(
    ("key", "said", "counted", "most"),
    [
        ("limits.nvidia.com/gpu", "2", Counted.SLOTS, 2),
        ("limits.nvidia.com/gpumem", "40k", Counted.MEMORY, 40_000),
        ("limits.nvidia.com/gpucores", 150, Counted.CORES, 150),
        ("limits.volcano.sh/vgpu-memory", "8000", Counted.MEMORY, 8_000),
        ("limits.nvidia.com/gpumem", "0", Counted.MEMORY, 0),
    ],
)
def test_the_words_by_which_pods_ask_are_those_of_the_limits(
    key: str, said: object, counted: Counted, most: int
) -> None:
    assert read({key: said}) == [(counted, most, "")]


def test_a_limit_can_be_of_one_model() -> None:
    assert read({"limits.nvidia.com/gpumem.A100-SXM4": "80000"}) == [(Counted.MEMORY, 80_000, "a100-sxm4")]
    (limit,), _ = limits_of(quota(hard={"limits.nvidia.com/gpumem.A100-SXM4": "1"}), DIALECTS)
    assert limit.counts("nvidia", "NVIDIA A100-SXM4-80GB")
    assert not limit.counts("nvidia", "NVIDIA A100-PCIE-40GB")
    assert not limit.counts("hygon", "NVIDIA A100-SXM4-80GB")


@pytest.mark.parametrize(
    "key",
    [
        "requests.nvidia.com/gpu",
        "nvidia.com/gpumem",
        "limits.nvidia.com/gpumem-percentage",
        "limits.cpu",
        "limits.nvidia.com/gpumemory",
        "pods",
    ],
)
def test_other_keys_are_not_ours(key: str) -> None:
    assert read({key: "1"}) == []


@pytest.mark.parametrize("said", ["1.5", "-1", "40Gi", "much", True, None])
def test_an_amount_that_is_none_is_named_and_limits_nothing(said: object) -> None:
    found, problems = limits_of(quota(hard={"limits.nvidia.com/gpumem": said, "limits.nvidia.com/gpu": "3"}), DIALECTS)
    assert [limit.most for limit in found] == [3]
    assert [problem.partition(":")[0] for problem in problems] == ["limits.nvidia.com/gpumem"]


@pytest.mark.parametrize(
    "scope",
    [
        {"scopes": ["BestEffort"]},
        {"scopeSelector": {"matchExpressions": [{"operator": "Exists", "scopeName": "PriorityClass"}]}},
    ],
)
def test_a_quota_for_some_pods_only_is_not_taken_for_one_for_all(scope: dict[str, object]) -> None:
    found, problems = limits_of(quota(hard={"limits.nvidia.com/gpu": "1", "pods": "3"}, **scope), DIALECTS)
    assert found == []
    assert len(problems) == 1
    assert "scopes" in problems[0]


def test_of_keys_without_end_some_are_read() -> None:
    hard = {f"limits.nvidia.com/gpumem.model-{number}": "1" for number in range(1_000)}
    found, problems = limits_of(quota(hard=hard), DIALECTS)
    assert len(found) == MOST_LIMITS
    assert len(problems) == 1


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"hard": None}}])
def test_a_quota_without_limits_limits_nothing(broken: dict[str, object]) -> None:
    assert limits_of(broken, DIALECTS) == ([], [])
