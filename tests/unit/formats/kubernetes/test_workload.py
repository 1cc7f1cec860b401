"""Kueue's objects are read as Kueue 0.19.2 writes them, and of a workload only our own check is changed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest

from fakes.objects import DIALECTS, GPU, MEMORY
from fakes.queue_objects import (
    CHECK,
    LONG_AGO,
    a_check,
    a_cluster_queue,
    a_cohort,
    a_condition,
    a_flavor,
    a_pod_set,
    a_workload,
)
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.kubernetes.constraints import NodeRules, pod_rules, refused_by_rules
from gpuledger.formats.kubernetes.other import MESSAGE_LENGTH
from gpuledger.formats.kubernetes.workload import (
    CheckState,
    Flavor,
    active_patch,
    check_patch,
    cluster_queue,
    cohort,
    flavor,
    is_ours,
    pod_counts,
    pod_sets,
    usage,
    with_flavors,
    workload,
    workload_of,
    workload_text,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import WorkloadName

Json = dict[str, Any]
NOW = "2030-01-01T00:00:00+00:00"
OTHER = {"name": "other", "state": "Ready", "message": "fine", "lastTransitionTime": LONG_AGO, "retryCount": 1}
TEXTS = ["", "text", "-1", "1.5", "1500m", "4Gi", "9e99", "9" * 5_000, "\x00", "In", "Gt", "Exists", "null", "[]", "☃"]
WORDS = {"annotations": "nvidia.com/use-gpuuuid", "labels": "gpuledger.dev/gang"}


def with_checks(*checks: Json) -> Json:
    found = a_workload()
    found["status"]["admissionChecks"] = list(checks)
    return found


def our_check(state: str, **more: object) -> Json:
    return {"name": CHECK, "state": state, "message": "", "lastTransitionTime": LONG_AGO, **more}


# A workload.


def test_a_workload_with_quota_is_read_as_kueue_writes_it() -> None:
    found = workload(a_workload(queue="high", priority=7, reserved_at="2030-01-02T03:04:05Z", version=42))
    assert (found.name, str(found.name)) == (WorkloadName("default", "job-a-76ee9"), "default/job-a-76ee9")
    assert (found.uid, found.version, found.priority) == ("uid-job-a-76ee9", "42", 7)
    assert (found.queue, found.cluster_queue, found.reserved_at) == ("high", "high", "2030-01-02T03:04:05Z")
    assert found.has_quota
    assert not any((found.is_admitted, found.is_evicted, found.is_finished))


def test_a_workload_that_was_just_created_has_no_quota() -> None:
    bare = {"metadata": a_workload()["metadata"]}
    assert not workload(bare).has_quota
    assert workload(bare).checks == ()
    assert pod_sets(bare) == []


@pytest.mark.parametrize("kind", ["Evicted", "Finished"])
def test_who_leaves_or_has_finished_keeps_no_quota_even_while_it_is_still_reserved(kind: str) -> None:
    found = a_workload()
    found["status"]["conditions"].append(a_condition(kind))
    assert not workload(found).has_quota
    found["status"]["conditions"][-1]["status"] = "False"
    assert workload(found).has_quota


def test_quota_that_is_reserved_no_more_does_not_count_though_the_assignment_is_still_there() -> None:
    found = a_workload()
    found["status"]["conditions"] = [a_condition("QuotaReserved", "False")]
    assert not workload(found).has_quota
    assert workload(found).reserved_at == ""


def test_its_check_is_found_by_the_name_that_an_admission_check_of_ours_has() -> None:
    found = workload(with_checks(OTHER, our_check("Pending")))
    check = found.check({CHECK})
    assert check is not None
    assert check["state"] == "Pending"
    assert found.check({"another"}) is None
    assert found.check(()) is None


def test_the_other_checks_that_are_not_ready_are_named() -> None:
    found = workload(
        with_checks({**OTHER, "name": "a"}, {**OTHER, "name": "b", "state": "Pending"}, our_check("Retry"))
    )
    assert found.not_ready({CHECK}) == ["b"]


# Its pods.


def test_pods_are_as_many_as_were_admitted_with_the_flavors_that_they_were_assigned() -> None:
    found = a_workload("w", a_pod_set("leader", 1), a_pod_set("workers", 5))
    leader, workers = found["status"]["admission"]["podSetAssignments"]
    leader["flavors"] = {"cpu": "b", "memory": "a", "gpus": "b"}
    workers["count"] = 3  # partial admission
    sets = pod_sets(found)
    assert [(each.name, each.count, each.flavors) for each in sets] == [
        ("leader", 1, ("a", "b")),
        ("workers", 3, ("any",)),
    ]
    assert pod_counts(found) == {"leader": 1, "workers": 3}


def test_a_set_that_was_admitted_with_no_pod_has_none() -> None:
    found = a_workload("w", a_pod_set("leader", 1), a_pod_set("workers", 5))
    found["status"]["admission"]["podSetAssignments"][1]["count"] = 0
    assert [each.count for each in pod_sets(found)] == [1, 0]


def test_an_assignment_without_a_number_stands_for_all_of_them() -> None:
    found = a_workload("w", a_pod_set("workers", 5))
    del found["status"]["admission"]["podSetAssignments"][0]["count"]
    assert [each.count for each in pod_sets(found)] == [5]


def test_a_pod_of_a_template_asks_for_what_the_template_says() -> None:
    (only,) = pod_sets(a_workload("w", a_pod_set("main", 1, {GPU: "2", MEMORY: "500"})))
    request = pod_request(only.pod, DIALECTS)
    assert request is not None
    assert [(demand.cards, demand.memory_mib) for demand in request.shape] == [(2, 500)]
    assert only.pod["metadata"]["namespace"] == "default"


def test_a_template_can_not_give_itself_another_namespace() -> None:
    pods = {**a_pod_set(), "template": {"metadata": {"namespace": "other", "uid": "mine"}, "spec": {}}}
    (only,) = pod_sets(a_workload("w", pods))
    assert (only.pod["metadata"]["namespace"], only.pod["metadata"]["uid"]) == ("default", "uid-w/main")


def test_a_flavor_adds_labels_and_tolerations_and_leaves_the_template_as_it_is() -> None:
    tolerations = [{"key": "spot", "operator": "Exists"}]
    (only,) = pod_sets(a_workload("w", a_pod_set(nodeSelector={"zone": "b"}, tolerations=[{"key": "own"}])))
    read = [flavor(a_flavor("any", {"model": "a100"}, tolerations)), flavor(a_flavor("plain"))]
    pod = with_flavors(only.pod, read)
    assert pod["spec"]["nodeSelector"] == {"zone": "b", "model": "a100"}
    assert [each["key"] for each in pod["spec"]["tolerations"]] == ["own", "spot"]
    assert only.pod["spec"]["nodeSelector"] == {"zone": "b"}
    assert only.pod["spec"]["tolerations"] == [{"key": "own"}]


def test_a_flavor_without_anything_to_say_adds_nothing() -> None:
    empty = flavor({"metadata": {"name": "any", "uid": "u"}})
    assert empty == Flavor({}, ())
    pod = {"metadata": {}, "spec": {"nodeSelector": None, "tolerations": None}}
    assert with_flavors(pod, [empty])["spec"] == {"nodeSelector": {}, "tolerations": []}


@pytest.mark.parametrize("odd", TEXTS)
@pytest.mark.parametrize("where", ["annotations", "labels", "nodeSelector", "tolerations", "affinity", "limits"])
def test_whatever_users_write_into_a_template_is_read_or_refused(odd: str, where: str) -> None:
    """The API server checks the shape of a template, and not what the texts in it mean."""
    pods: Json = dict(a_pod_set(nodeSelector={}))
    metadata, spec = pods["template"]["metadata"], pods["template"]["spec"]
    match where:
        case "annotations" | "labels":
            names = (WORDS[where], "kueue.x-k8s.io/workload", "kueue.x-k8s.io/podset", odd)
            metadata[where] = dict.fromkeys(names, odd)
        case "nodeSelector":
            spec[where] = {"model": odd, odd: odd}
        case "tolerations":
            spec[where] = [{"key": odd, "operator": odd, "value": odd, "effect": odd}, {}]
        case "affinity":
            terms = [{"matchExpressions": [{"key": odd, "operator": odd, "values": [odd]}]}, {}]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            spec[where] = {"nodeAffinity": required}
        case "limits":
            spec["containers"][0]["resources"]["limits"] = {GPU: odd, MEMORY: odd}
    with suppress(BadInput):
        (only,) = pod_sets(a_workload("w", pods))
        pod = with_flavors(only.pod, [flavor(a_flavor("any", {"model": "a100"}))])
        rules = pod_rules(pod)
        assert rules.selector["model"] == "a100"
        assert refused_by_rules(rules, NodeRules("node-a", {}, ()))
        pod_request(pod, DIALECTS)


@pytest.mark.parametrize("odd", TEXTS)
def test_whatever_a_pod_says_of_its_workload_is_a_name_or_none(odd: str) -> None:
    named = {"annotations": {"kueue.x-k8s.io/workload": odd}, "labels": {"kueue.x-k8s.io/podset": odd}}
    found = workload_of({"metadata": {"namespace": "default", **named}})
    assert found == ((WorkloadName("default", odd), odd) if odd and len(odd) < 254 else None)


@pytest.mark.parametrize("empty", [None, {}])
def test_a_pod_without_labels_and_annotations_is_of_no_workload(empty: Any) -> None:
    assert workload_of({"metadata": {"namespace": "default", "labels": empty, "annotations": empty}}) is None
    assert workload_of({"metadata": empty}) is None


def test_a_pod_says_of_which_workload_of_its_namespace_it_is_and_of_which_set() -> None:
    annotations, labels = {"kueue.x-k8s.io/workload": "job-a"}, {"kueue.x-k8s.io/podset": "main"}
    pod: Json = {"metadata": {"namespace": "team", "annotations": annotations, "labels": labels}}
    assert workload_of(pod) == (WorkloadName("team", "job-a"), "main")
    assert workload_of({"metadata": {"namespace": "team", "labels": labels}}) is None


# What the check says.


def test_only_our_entry_is_changed_and_only_if_the_workload_is_as_it_was_read() -> None:
    found = workload(with_checks(OTHER, our_check("Pending")))
    patch = check_patch(found, CHECK, CheckState.READY, "cards", NOW)
    assert patch["metadata"] == {"uid": "uid-job-a-76ee9", "resourceVersion": "1"}
    other, ours = patch["status"]["admissionChecks"]
    assert other == OTHER
    assert (ours["name"], ours["state"], ours["message"]) == (CHECK, "Ready", "cards")
    assert patch["status"].keys() == {"admissionChecks"}
    assert found.checks[1]["state"] == "Pending"


def test_the_time_of_transition_changes_with_the_state_alone() -> None:
    found = workload(with_checks(our_check("Pending", message="before")))
    (same,) = check_patch(found, CHECK, CheckState.PENDING, "another reason", NOW)["status"]["admissionChecks"]
    assert (same["message"], same["lastTransitionTime"]) == ("another reason", LONG_AGO)
    (other,) = check_patch(found, CHECK, CheckState.READY, "", NOW)["status"]["admissionChecks"]
    assert other["lastTransitionTime"] == NOW


@pytest.mark.parametrize("state", list(CheckState))
def test_nothing_says_after_how_long_it_may_be_queued_again(state: CheckState) -> None:
    found = workload(with_checks(our_check("Retry", requeueAfterSeconds=99)))
    (ours,) = check_patch(found, CHECK, state, "", NOW)["status"]["admissionChecks"]
    assert ours["requeueAfterSeconds"] is None


def test_a_long_reason_is_cut() -> None:
    found = workload(with_checks(our_check("Pending")))
    (ours,) = check_patch(found, CHECK, CheckState.PENDING, "x" * 5_000, NOW)["status"]["admissionChecks"]
    assert len(ours["message"]) == MESSAGE_LENGTH
    (ours,) = check_patch(found, CHECK, CheckState.PENDING, "x" * MESSAGE_LENGTH, NOW)["status"]["admissionChecks"]
    assert ours["message"] == "x" * MESSAGE_LENGTH


# AdmissionChecks and ClusterQueues.


def test_an_admission_check_is_ours_by_the_name_of_its_controller() -> None:
    assert is_ours(a_check())
    assert not is_ours(a_check(controller="kueue.x-k8s.io/provisioning-request"))
    assert not is_ours({"metadata": {}})


def test_a_check_is_said_to_be_active_once_and_keeps_its_other_conditions() -> None:
    found = a_check()
    other = a_condition("Other")
    found["status"] = {"conditions": [other, a_condition("Active", "False")]}
    patch = active_patch(found, NOW)
    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "1"}
    kept, active = patch["status"]["conditions"]
    assert kept == other
    assert (active["type"], active["status"], active["observedGeneration"]) == ("Active", "True", 1)
    found["status"] = patch["status"]
    assert active_patch(found, NOW) is None


def test_a_cluster_queue_says_whom_it_may_take_from_and_what_it_has() -> None:
    nominal = {"gpus": {"nominalQuota": 2, "lendingLimit": "1", "borrowingLimit": "0"}, "cpu": "1500m"}
    read = cluster_queue(a_cluster_queue("low", within="LowerPriority", reclaim="Any", nominal=nominal))
    assert (read.name, read.cohort, read.within, read.reclaim) == ("low", "all", "LowerPriority", "Any")
    assert read.quotas == {("any", "gpus"): (2_000, 1_000, 0), ("any", "cpu"): (1_500, None, None)}


def test_a_cluster_queue_that_says_nothing_takes_nothing_and_has_nothing() -> None:
    read = cluster_queue({"metadata": {"name": "bare"}, "spec": {}})
    assert (read.cohort, read.within, read.reclaim, read.borrowing_takes) == ("", "Never", "Never", None)
    assert (read.quotas, read.weight, read.shares_fairly) == ({}, 1.0, False)


@pytest.mark.parametrize(
    ("borrowing", "takes"),
    [
        ({"policy": "Never"}, None),
        ({"policy": "Never", "maxPriorityThreshold": 5}, None),
        ({"policy": "LowerPriority", "maxPriorityThreshold": 0}, 0),
        ({"policy": "LowerPriority", "maxPriorityThreshold": -5}, -5),
    ],
)
def test_up_to_which_priority_a_queue_that_borrows_takes(borrowing: dict[str, Any], takes: int | None) -> None:
    assert cluster_queue(a_cluster_queue("low", borrowing=borrowing)).borrowing_takes == takes


def test_a_queue_that_borrows_takes_from_any_lower_priority_unless_it_says_up_to_which() -> None:
    takes = cluster_queue(a_cluster_queue("low", borrowing={"policy": "LowerPriority"})).borrowing_takes
    assert takes is not None
    assert takes > 2**30


def test_a_cohort_says_what_it_has_and_to_which_it_belongs() -> None:
    read = cohort(a_cohort("team", "all", {"gpus": "2"}, weight="500m"))
    assert (read.name, read.cohort, read.weight) == ("team", "all", 0.5)
    assert read.quotas == {("any", "gpus"): (2_000, None, None)}


def test_a_quantity_that_is_none_is_bad_input() -> None:
    for odd in ({"nominal": {"cpu": "many"}}, {"weight": "many"}):
        with pytest.raises(BadInput):
            cluster_queue(a_cluster_queue("low", **odd))
        with pytest.raises(BadInput):
            cohort(a_cohort("all", **odd))
    with pytest.raises(BadInput):
        usage(a_workload(usage={"cpu": "many"}))


def test_usage_sums_the_sets_of_pods_by_flavor_and_resource() -> None:
    found = a_workload("w", a_pod_set("a"), a_pod_set("b"), usage={"cpu": "500m", "gpus": "2"})
    found["status"]["admission"]["podSetAssignments"][1]["flavors"] = {"cpu": "any", "gpus": "large"}
    assert usage(found) == {("any", "cpu"): 1_000, ("any", "gpus"): 2_000, ("large", "gpus"): 2_000}
    assert usage({"metadata": {}}) == {}


def test_of_a_workload_that_waits_only_what_is_read_of_it_is_kept() -> None:
    long = {"args": ["x" * 500_000], "env": [{"name": "TEXT", "value": "\N{GRINNING FACE}" * 100_000}]}
    found = a_workload("job", *[a_pod_set("main", 2, {GPU: 1, MEMORY: 4_000}, tolerations=[{"key": "k"}])])
    found["spec"]["podSets"][0]["template"]["spec"]["containers"][0] |= long
    kept = workload_text(found)
    assert len(kept) < 2_000
    [now], [before] = pod_sets(orjson.loads(kept)), pod_sets(found)
    assert pod_request(now.pod, DIALECTS) == pod_request(before.pod, DIALECTS)
    assert pod_rules(now.pod) == pod_rules(before.pod)
    assert (now.name, now.count, now.flavors) == (before.name, before.count, before.flavors)
    assert usage(orjson.loads(kept)) == usage(found)


def test_a_workload_whose_pods_ask_for_too_much_is_refused_in_words() -> None:
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(10_000)]
    found = a_workload("job", *[a_pod_set("main", 2, {GPU: 1}, tolerations=tolerations)])
    kept = orjson.loads(workload_text(found))
    assert pod_counts(kept) == pod_counts(found)
    with pytest.raises(BadInput, match="bytes as JSON, and 131,072 are the most"):
        pod_sets(kept)
