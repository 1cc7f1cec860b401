"""What a workload of Kueue says of itself: how far it is, and why."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.reports.explanation import is_named, workload_explanation

Json = dict[str, Any]


def a_workload(*conditions: str) -> Json:
    """Return a workload of a job, for which these conditions are true."""
    return {
        "metadata": {
            "name": "job-train-1",
            "namespace": "lab",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "2026-08-01T12:00:00Z",
            "ownerReferences": [{"kind": "Job", "name": "train"}],
        },
        "spec": {"queueName": "team", "priority": 5},
        "status": {
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "admission": {"clusterQueue": "low"},
        },
    }


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ((), "waiting-for-quota"),
        (("QuotaReserved",), "has-quota"),
        (("QuotaReserved", "Admitted"), "admitted"),
        (("QuotaReserved", "Evicted"), "waiting-for-quota"),
        (("QuotaReserved", "Admitted", "Finished"), "finished"),
    ],
)
def test_a_workload_is_as_far_as_its_conditions_say(conditions: tuple[str, ...], state: str) -> None:
    assert workload_explanation(a_workload(*conditions)).state == state


def test_a_workload_is_named_by_itself_and_by_its_job() -> None:
    found = a_workload("QuotaReserved")
    assert [is_named(found, name) for name in ("job-train-1", "train", "job-train")] == [True, True, False]
    report = workload_explanation(found)
    assert (report.owner, report.queue, report.cluster_queue, report.priority) == ("Job/train", "team", "low", 5)
