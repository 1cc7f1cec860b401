"""The labels of a gang are read, or refused in words; `inspect` shows what they say."""

from typing import Any

import pytest

from fakes.objects import DIALECTS, a_pod_object
from gpuledger.formats.inspection import inspected
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL, described, gang_of
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, Gang, GangName, GangWay


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


COSCHEDULING = "scheduling.x-k8s.io/pod-group"
VOLCANO = "scheduling.k8s.io/group-name"


FIRST, FIRST_MINIMUM = (f"pod-group.scheduling.sigs.k8s.io/{word}" for word in ("name", "min-available"))


def test_the_first_labels_of_coscheduling_make_a_gang_as_ours_do() -> None:
    found = gang_of(labelled({FIRST: "train", FIRST_MINIMUM: "3"}))
    assert found == Gang(GangName("default", "train", GangWay.LIGHTWEIGHT), 3)
    assert FIRST in described(found.name)
    for odd in ({FIRST: "train"}, {FIRST_MINIMUM: "3"}, {FIRST: "train", FIRST_MINIMUM: "many"}):
        with pytest.raises(BadInput, match=FIRST_MINIMUM):
            gang_of(labelled(odd))
    with pytest.raises(BadInput, match=COSCHEDULING):
        gang_of(labelled({FIRST: "train", FIRST_MINIMUM: "3", COSCHEDULING: "train"}))


def annotated(annotations: Any) -> dict[str, Any]:
    found = a_pod_object("a")
    found["metadata"]["annotations"] = annotations
    return found


def in_group(name: Any) -> dict[str, Any]:
    found = a_pod_object("a")
    found["spec"]["schedulingGroup"] = {"podGroupName": name}
    return found


@pytest.mark.parametrize(
    ("pod", "way"),
    [
        (labelled({COSCHEDULING: "train"}), GangWay.COSCHEDULING),
        (labelled({"pod-group.scheduling.sigs.k8s.io": "train"}), GangWay.KOORDINATOR),
        (annotated({VOLCANO: "train"}), GangWay.VOLCANO),
        (annotated({"scheduling.volcano.sh/group-name": "train"}), GangWay.VOLCANO),
        (in_group("train"), GangWay.KUBERNETES),
    ],
)
def test_a_pod_can_name_a_pod_group_which_says_how_many_start_together(pod: dict[str, Any], way: GangWay) -> None:
    assert gang_of(pod) == Gang(GangName("default", "train", way), 0)


def test_groups_of_one_name_that_are_named_in_two_ways_are_two() -> None:
    first, second = gang_of(labelled({COSCHEDULING: "train"})), gang_of(annotated({VOLCANO: "train"}))
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert "scheduling.x-k8s.io" in described(first.name)
    assert "scheduling.volcano.sh" in described(second.name)


def test_our_labels_win_over_the_name_of_a_pod_group() -> None:
    """Volcano's controller annotates the pods of each of its Jobs, whatever their owner wants."""
    pod = annotated({VOLCANO: "train"})
    pod["metadata"]["labels"] = {GANG_LABEL: "ours", MINIMUM_LABEL: "2"}
    assert gang_of(pod) == Gang(GangName("default", "ours"), 2)


def test_two_of_volcanos_annotations_are_one_way_and_the_older_one_counts() -> None:
    found = gang_of(annotated({"scheduling.volcano.sh/group-name": "new", VOLCANO: "old"}))
    assert found is not None
    assert found.name.name == "old"


def test_pod_groups_of_two_kinds_are_refused_with_both_names() -> None:
    pod = annotated({VOLCANO: "train"})
    pod["metadata"]["labels"] = {COSCHEDULING: "train"}
    with pytest.raises(BadInput, match=COSCHEDULING) as refused:
        gang_of(pod)
    assert VOLCANO in str(refused.value)


@pytest.mark.parametrize("name", ["../../etc", "Train", "a b", "x" * 254, "-x", "x\n", "x" * 200_000])
def test_what_can_be_no_name_is_refused_and_not_repeated_at_length(name: str) -> None:
    with pytest.raises(BadInput, match=VOLCANO) as refused:
        gang_of(annotated({VOLCANO: name}))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("odd", [None, 7, [], {}, ""])
def test_what_is_no_text_names_nothing(odd: Any) -> None:
    assert gang_of(in_group(odd)) is None
    assert gang_of({**a_pod_object("a"), "spec": {"schedulingGroup": odd}}) is None


def test_inspect_shows_the_gang() -> None:
    (found,) = inspected(labelled({GANG_LABEL: "train", MINIMUM_LABEL: "8"}), DIALECTS)
    assert found["gang"] == {"name": "train", "minimum": 8}
    assert "gang train: 8 of its pods start together, or none" in found["notes"]
    (odd,) = inspected(labelled({GANG_LABEL: "train"}), DIALECTS)
    assert any(MINIMUM_LABEL in problem for problem in odd["problems"])


def test_inspect_shows_which_object_says_how_many_and_which_one_does_not_count() -> None:
    (found,) = inspected(annotated({VOLCANO: "train"}), DIALECTS)
    assert found["gang"] == {"name": "train", "podGroup": "scheduling.volcano.sh"}
    assert any("PodGroup train of scheduling.volcano.sh" in note for note in found["notes"])
    both = annotated({VOLCANO: "unheard"})
    both["metadata"]["labels"] = {GANG_LABEL: "train", MINIMUM_LABEL: "8"}
    (found,) = inspected(both, DIALECTS)
    assert any("PodGroup unheard" in note and "does not count" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("version", "spec", "minimum"),
    [
        ("scheduling.k8s.io/v1beta1", {"schedulingPolicy": {"gang": {"minCount": 4}}}, 4),
        ("scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"basic": {}}}, 0),
        ("scheduling.x-k8s.io/v1alpha1", {"minMember": 4}, 4),
        ("scheduling.volcano.sh/v1beta1", {"minMember": "many"}, None),
    ],
)
def test_inspect_shows_pod_groups(version: str, spec: dict[str, Any], minimum: int | None) -> None:
    group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "train"}, "spec": spec}
    (found,) = inspected(group, DIALECTS)
    assert found.get("minimum") == minimum
    assert bool(found["problems"]) == (minimum is None)


def test_inspect_passes_over_pod_groups_of_other_apis() -> None:
    (found,) = inspected({"apiVersion": "scheduling.k8s.io/v7", "kind": "PodGroup", "metadata": {}}, DIALECTS)
    assert found["skipped"]
