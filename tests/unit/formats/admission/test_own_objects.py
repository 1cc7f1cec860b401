"""The policies on our own account, by their expressions alone: what they allow, and in which words they refuse."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from fakes.own_account_cases import (
    ANSWER_CASES,
    CLAIM_CASES,
    LABELLED,
    NOBODY,
    NODE_CASES,
    OTHERS,
    WORKLOAD_CASES,
    Case,
    a_node,
    a_workload,
    allocated,
    checks,
    claims,
    condition,
    says,
    workload_status,
)
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings
from gpuledger.formats.kubernetes.stand_in import stand_in

Json = dict[str, Any]
WITH_KUEUE = Settings(kueue=True)
NAMES = ("object", "oldObject", "request", "params")


@cache
def environment() -> Any:
    variables = dict.fromkeys(NAMES, cel.Type.DYN)
    return cel.NewEnv(variables=variables, extensions=[ext_optional.ExtOptional()])


@cache
def rendered(settings: Settings) -> dict[str, Json]:
    """Return name -> policy."""
    found = yaml.safe_load_all(policies(settings, frozenset({"validating"})))
    return {each["metadata"]["name"]: each for each in found if each["kind"] == "ValidatingAdmissionPolicy"}


def refusals(
    name: str, old: Json | None, new: Json | None, *, operation: str = "UPDATE", settings: Settings = WITH_KUEUE
) -> Iterator[str]:
    """Yield what a policy says of a change, with each of its parameters."""
    spec = rendered(settings)[name]["spec"]
    for params in checks() if "paramKind" in spec else [{}]:
        data = {"object": new, "oldObject": old, "request": {"operation": operation}, "params": params}
        for each in spec["validations"]:
            if environment().compile(each["expression"]).eval(data=data).value() is not True:
                yield each["message"]


def merged(old: Json, patch: Json) -> Json:
    """Apply a merge patch."""
    new = copy.deepcopy(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merged(new.get(key) or {}, value)
        else:
            new[key] = value
    return new


def judge(name: str, old: Json, case: Case) -> None:
    found = list(refusals(name, old, merged(old, case.patch)))
    assert any(case.sentence in each for each in found) if case.sentence else not found, found


def claim(name: str) -> Json:
    body, status = claims()[name]
    return {**body, "status": status} if status else body


def the_workload() -> Json:
    return {**a_workload(), "status": workload_status()}


@pytest.mark.parametrize("case", CLAIM_CASES, ids=lambda case: case.what)
def test_of_claims_our_account_changes_cards_and_their_protection(case: Case) -> None:
    judge("gpuledger-own-claims", claim(case.name), case)


def test_our_account_neither_creates_nor_deletes_claims() -> None:
    assert any("neither" in each for each in refusals("gpuledger-own-claims", None, claim("free"), operation="CREATE"))
    assert any("neither" in each for each in refusals("gpuledger-own-claims", claim("free"), None, operation="DELETE"))


def test_with_a_profile_for_all_drivers_their_claims_are_kube_schedulers_and_their_labels_are_not() -> None:
    settings = Settings(all_drivers_scheduler_name="every", resource_slices=True)
    name, free, others = "gpuledger-own-claims", claim("free"), claim("others")
    given, taken = ({"status": status} for status in (allocated(OTHERS), NOBODY))
    assert not list(refusals(name, free, merged(free, given), settings=settings))
    assert not list(refusals(name, others, merged(others, taken), settings=settings))
    assert not list(refusals(name, None, free, operation="CREATE", settings=settings))
    assert not list(refusals(name, free, None, operation="DELETE", settings=settings))
    assert list(refusals(name, free, merged(free, LABELLED), settings=settings))


@pytest.mark.parametrize("case", NODE_CASES, ids=lambda case: case.what)
def test_of_nodes_our_account_changes_a_lock_and_what_keeps_them(case: Case) -> None:
    judge("gpuledger-own-nodes", a_node(), case)


def a_stand_in(**spec: Any) -> Json:
    found = stand_in("stand-in-a", "a", {"pool": "gpus"}, [], {"nvidia.com/gpu": "8"})
    return {**found, "spec": {**found["spec"], **spec}}


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (a_stand_in(), ""),
        (a_stand_in(schedulerName="default-scheduler"), "no pods but stand-ins"),
        (a_stand_in(nodeName="node-a"), "no pods but stand-ins"),
        ({**a_stand_in(), "metadata": {"name": "a"}}, "no pods but stand-ins"),
        (a_stand_in(volumes=[{"name": "a", "hostPath": {"path": "/"}}]), "nothing of a node"),
        (a_stand_in(hostPID=True), "nothing of a node"),
        (a_stand_in(containers=[{"name": "a", "securityContext": {"privileged": True}}]), "nothing of a node"),
    ],
)
def test_our_account_creates_no_pods_but_stand_ins(pod: Json, word: str) -> None:
    found = list(refusals("gpuledger-own-pods", None, pod, operation="CREATE"))
    assert any(word in each for each in found) if word else not found, found


@pytest.mark.parametrize("case", WORKLOAD_CASES, ids=lambda case: case.what)
def test_of_workloads_our_account_changes_what_checks_say(case: Case) -> None:
    judge("gpuledger-own-workloads", the_workload(), case)


@pytest.mark.parametrize("case", [*ANSWER_CASES, *(each for each in WORKLOAD_CASES if not each.sentence)])
def test_our_account_speaks_for_no_other_check(case: Case) -> None:
    judge("gpuledger-own-answers", the_workload(), case)


def test_without_the_setting_our_account_changes_nothing_of_kueue_and_no_kind_of_it_is_needed() -> None:
    new = merged(the_workload(), says("cards", state="Ready"))
    (text,) = refusals("gpuledger-own-workloads", the_workload(), new, settings=Settings())
    assert "kueue is false" in text
    found = rendered(Settings())
    assert not [name for name, policy in found.items() if "paramKind" in policy["spec"]]
    assert "gpuledger-own-answers" not in found


def test_of_checks_our_account_changes_the_status_of_ours() -> None:
    ours, others = checks()
    name, active = "gpuledger-own-checks", {"status": {"conditions": [condition("Active")]}}
    assert not list(refusals(name, ours, merged(ours, active)))
    assert list(refusals(name, others, merged(others, active)))
    assert list(refusals(name, ours, merged(ours, LABELLED)))
    assert list(refusals(name, ours, merged(ours, {"spec": {"controllerName": "example.com/budget"}})))


def test_only_the_policy_that_needs_a_kind_of_kueue_is_ignored_when_it_fails() -> None:
    """An API server without the kind would refuse everybody's changes of workloads else."""
    strict = {name: policy["spec"]["failurePolicy"] == "Fail" for name, policy in rendered(WITH_KUEUE).items()}
    assert {name for name, fails in strict.items() if not fails} == {"gpuledger-own-answers", "gpuledger-words"}
