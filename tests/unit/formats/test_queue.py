"""What pods, workloads and ClusterQueues say of Kueue's queues."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.workload import queue_of, queue_state, why_not_admitted

Json = dict[str, Any]


def a_workload(*conditions: tuple[str, str, str], checks: list[Json] | None = None) -> Json:
    found = [{"type": kind, "status": status, "message": message} for kind, status, message in conditions]
    return {"metadata": {}, "status": {"conditions": found, "admissionChecks": checks or []}}


QUOTA = ("QuotaReserved", "True", "Quota reserved in ClusterQueue low")


def test_a_workload_without_quota_says_it_in_kueues_words() -> None:
    text = why_not_admitted(a_workload(("QuotaReserved", "False", "insufficient unused quota for gpus")))
    assert "quota" in text
    assert "insufficient unused quota for gpus" in text


def test_a_workload_of_which_nothing_is_said_waits_for_quota() -> None:
    assert "waits for quota" in why_not_admitted({"metadata": {}})


def test_a_workload_with_quota_says_what_the_open_check_says() -> None:
    checks = [
        {"name": "budget", "state": "Ready", "message": "paid"},
        {"name": "cards", "state": "Pending", "message": "0 of 3 GPU nodes take it"},
    ]
    text = why_not_admitted(a_workload(QUOTA, checks=checks))
    assert "cards" in text
    assert "0 of 3 GPU nodes take it" in text
    assert "paid" not in text


@pytest.mark.parametrize("kind", ["Admitted", "Finished"])
def test_a_workload_that_is_admitted_or_over_waits_for_nothing(kind: str) -> None:
    assert why_not_admitted(a_workload(QUOTA, (kind, "True", ""))) == ""


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({}, ""),
        ({"queue-name": "team-a"}, "team-a"),
        ({"queue-name": "team-a", "local-queue-name": "team-a", "cluster-queue-name": "low"}, "low"),
    ],
)
def test_a_pod_is_in_the_queue_that_kueue_says_else_in_the_one_that_it_asks_for(labels: Json, text: str) -> None:
    found = queue_of({"metadata": {"labels": {f"kueue.x-k8s.io/{name}": value for name, value in labels.items()}}})
    assert text in found
    assert bool(text) == bool(found)


def test_amounts_of_flavors_add_up_and_what_cannot_be_read_counts_as_none() -> None:
    flavors = [{"resources": [{"name": "x.dev/gpus", "nominalQuota": some}]} for some in ("2", "1500m", "many")]
    state = queue_state({"metadata": {"name": "low"}, "spec": {"resourceGroups": [{"flavors": flavors}]}})
    assert state.amounts["x.dev/gpus"].nominal == 3_500
    assert (state.admitted, state.with_quota, state.without_quota) == (0, 0, 0)
