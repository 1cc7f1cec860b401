"""What comes of the checks: nothing on a healthy cluster, and nothing that is passed over in silence."""

from dataclasses import fields, replace

import pytest

from fakes.doctor_facts import a_lease, healthy
from gpuledger.doctor.examination import BEFORE_THE_OPERATOR, CHECKS, examine
from gpuledger.doctor.facts import Facts, Unread
from gpuledger.doctor.kinds import FindingKind, Severity

UNREAD = Unread("it", "your account may not read it", "`get` on it")


def test_nothing_is_found_on_a_healthy_cluster_and_every_check_is_made() -> None:
    examination = examine(healthy())
    assert examination.findings == ()
    assert examination.checked == tuple(CHECKS)
    assert examination.exit_code == 0


READ = [field.name for field in fields(Facts) if field.name != "local_time"]


@pytest.mark.parametrize("name", READ)
def test_what_could_not_be_read_is_a_finding_and_stops_only_the_checks_that_need_it(name: str) -> None:
    examination = examine(replace(healthy(), **{name: UNREAD}))  # type: ignore[arg-type]
    (finding,) = (each for each in examination.findings if each.kind is FindingKind.NOT_CHECKED)
    assert (finding.where, finding.remedy) == ("it", "needs `get` on it")
    left_out = set(CHECKS) - set(examination.checked)
    assert all(check in finding.text for check in left_out)
    assert examination.checked
    assert examination.exit_code == 2


def test_all_that_was_not_read_is_told_even_where_a_check_has_stopped_before() -> None:
    one, other = Unread("one", "no", "a"), Unread("other", "no", "b")
    found = examine(healthy(release=one, nodes=other), ["names-of-nodes"]).findings
    assert [each.where for each in found] == ["one", "other"]


def test_an_error_counts_more_than_what_was_not_checked() -> None:
    examination = examine(healthy(lease=None, nodes=UNREAD))
    assert examination.exit_code == 1
    assert [each.kind.severity for each in examination.findings] == [Severity.ERROR, Severity.WARNING]


def test_warnings_alone_are_no_failure() -> None:
    examination = examine(healthy(lease=a_lease(holder="elsewhere_1")))
    assert [each.kind for each in examination.findings] == [FindingKind.LEADER_UNKNOWN]
    assert examination.exit_code == 0


def test_before_the_operator_nothing_is_asked_of_what_is_not_there_yet() -> None:
    needed = ("version", "crd", "operator_access", "release")
    others = {name: UNREAD for name in READ if name not in needed}
    facts = replace(healthy(), **others)  # type: ignore[arg-type]
    assert examine(facts, BEFORE_THE_OPERATOR).checked == BEFORE_THE_OPERATOR


def test_names_take_the_places_of_the_words_in_what_mends_it() -> None:
    (finding,) = examine(healthy(lease=a_lease(renewed="2030-01-01T11:00:00Z"))).findings
    assert finding.remedy == "kubectl logs -n gpuledger-system gpuledger-0 -c kube-scheduler"
