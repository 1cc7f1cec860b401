"""The labels of a gang are read, or refused in words; `inspect` shows what they say."""

from typing import Any

import pytest

from fakes.objects import DIALECTS, a_pod_object
from gpuledger.formats.inspection import inspected
from gpuledger.formats.kubernetes.gang import (
    GANG_LABEL,
    GROUP_INDEX_LABEL,
    GROUP_SIZE_ANNOTATION,
    JOB_SET_LABEL,
    MINIMUM_LABEL,
    OF_WAY,
    described,
    gang_name_of,
    gang_of,
    has_failed_alone,
    pod_group,
)
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


def of_group(index: str | None = "2", size: str | None = "4", **labels: str) -> dict[str, Any]:
    """Return a pod of a LeaderWorkerSet, whose template has these labels of ours."""
    found = labelled({GANG_LABEL: "chat", **labels} | ({GROUP_INDEX_LABEL: index} if index else {}))
    found["metadata"]["annotations"] = {GROUP_SIZE_ANNOTATION: size} if size else {}
    return found


@pytest.mark.parametrize("labels", [{}, {MINIMUM_LABEL: "3"}])
def test_each_group_of_a_leader_worker_set_is_a_gang_of_its_size_unless_the_label_says_less(
    labels: dict[str, str],
) -> None:
    pod = of_group(**labels)
    assert gang_of(pod) == Gang(GangName("default", "chat-2"), int(labels.get(MINIMUM_LABEL, 4)))
    assert gang_name_of(pod) == GangName("default", "chat-2")


def test_groups_that_are_to_start_together_are_one_gang() -> None:
    pod = of_group(**{MINIMUM_LABEL: "8"})
    assert gang_of(pod) == Gang(GangName("default", "chat"), 8)
    assert gang_name_of(pod) == GangName("default", "chat")


@pytest.mark.parametrize("size", ["0", str(MOST_MEMBERS + 1)])
def test_a_group_of_a_size_that_can_not_start_together_is_refused_by_its_annotation(size: str) -> None:
    with pytest.raises(BadInput, match=GROUP_SIZE_ANNOTATION):
        gang_of(of_group(size=size))


@pytest.mark.parametrize("size", [None, "", "many", "-1", "1" * 20, "²"])
def test_without_a_size_the_label_has_to_say_how_many(size: str | None) -> None:
    with pytest.raises(BadInput, match=MINIMUM_LABEL):
        gang_of(of_group(size=size))
    assert gang_of(of_group(size=size, **{MINIMUM_LABEL: "4"})) == Gang(GangName("default", "chat"), 4)


def failed(kind: str | None, phase: str = "Failed", restarts: int = 0, label: str = "") -> dict[str, Any]:
    found = labelled({GANG_LABEL: "train", MINIMUM_LABEL: "4"} | ({label: "0"} if label else {}))
    if kind:
        found["metadata"]["ownerReferences"] = [{"kind": kind, "name": "x", "uid": "u", "controller": True}]
    found["status"] = {"phase": phase, "containerStatuses": [{"restartCount": restarts}]}
    return found


@pytest.mark.parametrize(
    ("pod", "may_come_anew"),
    [
        (failed("Job"), False),
        (failed("Job", label=JOB_SET_LABEL), True),
        (failed("PyTorchJob"), True),
        (failed(None), False),
        (failed("Job", "Running", label=JOB_SET_LABEL), False),
        (failed("StatefulSet", "Running", 1), False),
        (failed("StatefulSet", "Running", 1, label=GROUP_INDEX_LABEL), True),
        (failed("StatefulSet", "Running", 0, label=GROUP_INDEX_LABEL), False),
    ],
)
def test_a_member_that_failed_may_have_all_made_anew_unless_its_job_ends_with_it(
    pod: dict[str, Any], may_come_anew: bool
) -> None:
    assert has_failed_alone(pod) == may_come_anew
    pod["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert not has_failed_alone(pod), "it was told to end"


def test_inspect_reads_the_size_of_a_leader_worker_sets_groups() -> None:
    template = a_pod_object("")
    template["metadata"] = {"labels": {GANG_LABEL: "chat"}}
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": template}}
    document = {"kind": "LeaderWorkerSet", "metadata": {"name": "chat"}, "spec": spec}
    text = "\n".join(str(found) for found in inspected(document, DIALECTS))
    assert "4 of its pods start together" in text


def of_job_set(**labels: str) -> dict[str, Any]:
    return labelled({GANG_LABEL: "x", JOB_SET_LABEL: "train", **labels})


def a_job_set(*jobs: Any) -> dict[str, Any]:
    """Return a JobSet with jobs of (replicas, parallelism, completions, whether its pods have our label)."""
    replicated = []
    for replicas, parallelism, completions, is_labelled in jobs:
        labels = {GANG_LABEL: "x"} if is_labelled else {}
        numbers = {"parallelism": parallelism, "completions": completions}
        spec = {name: number for name, number in numbers.items() if number is not None}
        template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
        replicated.append({"replicas": replicas, "template": {"spec": {**spec, "template": template}}})
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {**head, "metadata": {"name": "train", "namespace": "default"}, "spec": {"replicatedJobs": replicated}}


def test_a_pod_of_a_job_set_leaves_it_to_that_how_many_start_together() -> None:
    name = GangName("default", "train", GangWay.JOB_SET)
    assert gang_of(of_job_set()) == Gang(name, 0)
    assert gang_name_of(of_job_set()) == name
    assert described(name) == "JobSet train"


def test_a_number_beside_our_label_counts_in_a_job_set_too() -> None:
    pod = of_job_set(**{MINIMUM_LABEL: "4"})
    assert gang_of(pod) == Gang(GangName("default", "x"), 4)
    assert gang_name_of(pod) == GangName("default", "x")


@pytest.mark.parametrize(
    ("jobs", "minimum"),
    [
        ([(2, 4, 4, True)], 8),
        ([(2, 4, 4, True), (1, None, None, True)], 9),
        ([(2, 4, 4, True), (1, None, None, False)], 8),  # a driver that the others wait for, for example
        ([(None, 4, 2, True)], 2),
        ([(1, 4, 4, False)], 0),
        ([], 0),
    ],
)
def test_a_job_set_counts_the_pods_that_have_our_label(jobs: list[Any], minimum: int) -> None:
    words = OF_WAY[GangWay.JOB_SET]
    assert pod_group(a_job_set(*jobs), words).minimum == minimum


@pytest.mark.parametrize("jobs", [[(64, 8, 8, True)], [("two", 4, 4, True)], [(1, 4.5, 4, True)], [(-1, 4, 4, True)]])
def test_a_job_set_of_odd_numbers_is_refused_by_its_name(jobs: list[Any]) -> None:
    with pytest.raises(BadInput, match=r"JobSet default/train: spec\.replicatedJobs"):
        pod_group(a_job_set(*jobs), OF_WAY[GangWay.JOB_SET])


@pytest.mark.parametrize("spec", [None, {"replicatedJobs": 7}, {"replicatedJobs": [7, None]}])
def test_what_is_no_job_set_counts_no_pods(spec: Any) -> None:
    found = {"metadata": {"name": "train"}, "spec": spec}
    assert pod_group(found, OF_WAY[GangWay.JOB_SET]).minimum == 0


def test_inspect_says_that_a_job_set_says_how_many_and_finds_its_pods() -> None:
    document = a_job_set((2, 4, 4, True))
    document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = {
        **a_pod_object("", {"nvidia.com/gpu": "1"}),
        "metadata": {"labels": {GANG_LABEL: "x"}},
    }
    (found,) = inspected(document, DIALECTS)
    assert found["copies"] == 8
    assert "gang train: JobSet train says how many of its pods start together" in found["notes"]
