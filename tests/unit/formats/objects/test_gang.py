"""The labels of a gang are read, or refused in words; `inspect` shows what they say."""

from typing import Any

import pytest

from fakes.objects import DIALECTS, a_pod_object
from gpuledger.formats.inspection import inspected
from gpuledger.formats.objects.gang import GANG_LABEL, MINIMUM_LABEL, gang_of
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, Gang, GangName


def labelled(labels: Any) -> dict[str, Any]:
    found = a_pod_object("a")
    found["metadata"]["labels"] = labels
    return found


def test_two_labels_make_a_gang_of_the_pods_namespace() -> None:
    found = gang_of(labelled({GANG_LABEL: "train", MINIMUM_LABEL: "8"}))
    assert found == Gang(GangName("default", "train"), 8)


@pytest.mark.parametrize("labels", [None, {}, {"other": "x"}, {GANG_LABEL: ""}])
def test_other_pods_have_none(labels: Any) -> None:
    assert gang_of(labelled(labels)) is None


@pytest.mark.parametrize("minimum", ["0", "-1", str(MOST_MEMBERS + 1), "1.5", "8Gi", "", "x" * 63])
def test_a_minimum_that_can_not_be_had_is_refused(minimum: str) -> None:
    with pytest.raises(BadInput, match=MINIMUM_LABEL):
        gang_of(labelled({GANG_LABEL: "train", MINIMUM_LABEL: minimum}))


def test_inspect_shows_the_gang() -> None:
    (found,) = inspected(labelled({GANG_LABEL: "train", MINIMUM_LABEL: "8"}), DIALECTS)
    assert found["gang"] == {"name": "train", "minimum": 8}
    assert "gang train: 8 of its pods start together, or none" in found["notes"]
    (odd,) = inspected(labelled({GANG_LABEL: "train"}), DIALECTS)
    assert any(MINIMUM_LABEL in problem for problem in odd["problems"])
