"""What a pod says about cards that have failed."""

from __future__ import annotations

import math

import pytest

from fakes.objects import DIALECTS, a_pod_object
from gpuledger.formats.annotations import ON_FAILURE_ANNOTATION, wait_on_failure_s
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json


def pod(text: str) -> Json:
    found = a_pod_object("web")
    found["metadata"]["annotations"] = {ON_FAILURE_ANNOTATION: text}
    return found


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("stay", math.inf),
        ("leave", 0),
        ("0s", 0),
        ("300s", 300),
        (" 10m ", 600),
        ("2h", 7_200),
        ("", None),
        ("  ", None),
    ],
)
def test_a_pod_stays_leaves_or_says_how_long(text: str, wait_s: float | None) -> None:
    assert wait_on_failure_s(pod(text)) == wait_s
    assert pod_warnings(pod(text), DIALECTS) == ()


@pytest.mark.parametrize("text", ["no", "300", "-5s", "1.5h", "10 m", "9999999s", "x" * 100_000])
def test_anything_else_is_refused_with_what_is_possible_and_the_pods_owner_is_warned(text: str) -> None:
    with pytest.raises(BadInput, match="neither stay nor leave, nor a time such as 300s"):
        wait_on_failure_s(pod(text))
    (warning,) = pod_warnings(pod(text), DIALECTS)
    assert "nor a time such as 300s" in warning.text
    assert len(warning.text) < 200


def test_a_pod_without_annotations_says_nothing() -> None:
    assert wait_on_failure_s({"metadata": {}}) is None
