"""PodDisruptionBudgets are read as the API server means them."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.other import Budget, budget, label_selector
from gpuledger.model.errors import BadInput


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


def test_a_selector_that_no_request_could_name_is_refused() -> None:
    """Budgets are kept for a while by the namespace, and users write as many as they like."""
    selector = {"matchExpressions": [{"key": "k", "operator": "In", "values": [f"v{n}" for n in range(5_000)]}]}
    with pytest.raises(BadInput, match=r"the selector of keep has [0-9,]* characters: shorten it"):
        budget({"metadata": {"namespace": "team", "name": "keep"}, "spec": {"selector": selector}})
