"""Which program a request of the comparison with claims is counted for, and that all its pods ask for the same."""

from datetime import UTC, datetime

import pytest

from benchmark.claims import AMOUNTS, SUBJECTS, WORDS, pods_of, program_of
from benchmark.shapes import OURS, STOCK_CLAIMS, WITH_CLAIMS
from control_plane import AuditEvent
from installation import USER


def an_event(user: str, agent: str) -> AuditEvent:
    return AuditEvent(user, "update", "pods", "", "default", "one", 200, datetime(2030, 1, 1, tzinfo=UTC), agent)


@pytest.mark.parametrize(
    ("user", "agent", "program"),
    [
        (USER, "gpuledger/1.0", "operator"),
        (USER, "kube-scheduler/v1.36.3 (linux/amd64)", "scheduler"),
        ("admin", "kube-scheduler/v1.36.3 (linux/amd64)", "scheduler"),
        ("system:kube-controller-manager", "kube-controller-manager/v1.36.3 (linux/amd64)", "controllers"),
        ("admin", "gpuledger/1.0", ""),
    ],
)
def test_a_request_is_counted_for_the_program_that_sent_it(user: str, agent: str, program: str) -> None:
    assert program_of(an_event(user, agent)) == program


def test_each_subject_has_pods_with_words_or_with_a_claim_and_never_both() -> None:
    made = {subject: pods_of(subject, 1)[0]["spec"] for subject in SUBJECTS}
    assert made[OURS]["containers"][0]["resources"]["limits"] == WORDS
    assert "resourceClaims" not in made[OURS]
    for subject in (WITH_CLAIMS, STOCK_CLAIMS):
        assert made[subject]["containers"][0]["resources"]["limits"] == {}
        assert [each["name"] for each in made[subject]["resourceClaims"]] == ["gpu"]
    assert made[WITH_CLAIMS]["schedulerName"] == made[OURS]["schedulerName"] != made[STOCK_CLAIMS]["schedulerName"]


def test_words_and_claims_say_the_same_amounts() -> None:
    assert f"{int(WORDS['nvidia.com/gpumem']) // 1024}Gi" == AMOUNTS["memory"]
    assert WORDS["nvidia.com/gpucores"] == AMOUNTS["cores"]
