"""PodDisruptionBudgets are read as the API server means them."""

from typing import Any

import pytest

from gpuledger.formats.objects.budget import Budget, budget, label_selector


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({}, ""),
        ({"matchLabels": {"app": "a", "tier": "b"}}, "app=a,tier=b"),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, "app in (a,b)"),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, "app notin (a)"),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "app"),
        (
            {"matchLabels": {"x": "y"}, "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]},
            "x=y,!app",
        ),
    ],
)
def test_a_selector_becomes_one_of_a_list(selector: dict[str, Any], text: str) -> None:
    assert label_selector(selector) == text


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [
        ({"selector": {"matchLabels": {"app": "a"}}}, {"disruptionsAllowed": 2}, (2, "app=a")),
        ({"selector": {}}, {"disruptionsAllowed": 1}, (1, "")),
        ({}, {"disruptionsAllowed": 1}, (1, None)),
        ({"selector": {}}, None, (0, "")),
    ],
    ids=["with labels", "of all pods", "of no pods", "without a status it allows nothing"],
)
def test_a_budget_says_how_many_may_leave_and_of_whom(
    spec: dict[str, Any], status: dict[str, Any] | None, wanted: tuple[int, str | None]
) -> None:
    found = budget({"metadata": {"namespace": "team", "name": "keep"}, "spec": spec, "status": status})
    assert found == Budget("team", "keep", *wanted)
    assert str(found) == "team/keep"
