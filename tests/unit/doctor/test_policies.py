"""Admission policies and the webhook: there, in force, and for the names of the settings."""

import copy
from typing import Any

import pytest

from fakes.doctor_facts import a_deployment, healthy, stored_policies
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.cluster_checks import WITH_AGENTS
from gpuledger.doctor.examination import examine
from gpuledger.doctor.reading import release_for
from unit.doctor.conftest import Found

Json = dict[str, Any]

OLD = {"version": (1, 34), "deployment": a_deployment("v1.34.0")}
REQUESTS = "ValidatingAdmissionPolicy gpuledger-requests"


def without(*names: str) -> dict[tuple[str, str], Json]:
    return {(kind, name): each for (kind, name), each in stored_policies().items() if name not in names}


def webhooks(settings: Settings | None = None) -> list[Json]:
    return list(release_for(settings or Settings()).webhooks)


def test_to_have_none_of_them_is_a_choice(found: Found) -> None:
    only_agents = {key: each for key, each in stored_policies().items() if key[1] in WITH_AGENTS}
    assert found(policies=only_agents) == [("policies-absent", "API server")]


def test_the_agents_policies_are_none(found: Found) -> None:
    for name in WITH_AGENTS:
        assert found(policies=without(name)) == [("policy-missing", f"ValidatingAdmissionPolicy {name}")]


@pytest.mark.parametrize("name", ["gpuledger-requests", "gpuledger-devices", "gpuledger-pods"])
def test_one_that_is_missing_among_others_is_an_error(name: str) -> None:
    (finding,) = examine(healthy(policies=without(name))).findings
    kind = "mutating" if name == "gpuledger-pods" else "validating"
    assert finding.kind.value == "policy-missing"
    assert finding.where.endswith(f" {name}")
    assert finding.remedy == f"gpuledger admission-policies --settings FILE --kind {kind} | kubectl apply -f -"


def test_a_binding_has_to_be_there_for_this_policy_and_deny(found: Found) -> None:
    key = ("ValidatingAdmissionPolicyBinding", "gpuledger-requests")
    for change in (None, {"policyName": "other"}, {"validationActions": ["Warn"]}):
        policies = copy.deepcopy(stored_policies())
        if change is None:
            del policies[key]
        else:
            policies[key]["spec"] |= change
        assert found(policies=policies) == [("policy-unbound", REQUESTS)]


def test_names_of_other_settings_are_told_by_name() -> None:
    other = stored_policies(Settings(resource_memory="example.com/mem"))
    findings = examine(healthy(policies=other)).findings
    assert {each.kind.value for each in findings} == {"policy-names"}
    assert all("nvidia.com/gpumem" in each.text and "example.com/mem" in each.text for each in findings)


def test_another_expression_is_a_difference_and_what_the_server_fills_in_is_none(found: Found) -> None:
    policies = copy.deepcopy(stored_policies())
    spec = policies["ValidatingAdmissionPolicy", "gpuledger-requests"]["spec"]
    spec["matchConstraints"] |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    spec["matchConstraints"]["resourceRules"][0]["scope"] = "*"
    assert found(policies=policies) == []
    spec["failurePolicy"] = "Ignore"
    assert found(policies=policies) == [("policy-differs", REQUESTS)]


def test_a_binding_that_leaves_namespaces_out_is_a_difference(found: Found) -> None:
    policies = copy.deepcopy(stored_policies())
    key = ("ValidatingAdmissionPolicyBinding", "gpuledger-devices")
    policies[key]["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    assert found(policies=policies) == [("policy-differs", "ValidatingAdmissionPolicyBinding gpuledger-devices")]


def test_an_older_server_needs_the_webhook_to_fill_pods_in(found: Found) -> None:
    old = without("gpuledger-pods")
    assert found(policies=old, **OLD) == [("no-defaults", "API server")]
    served = healthy(Settings(webhook_port=9443), policies=old, webhooks=webhooks(), **OLD)
    assert examine(served).findings == ()


def test_the_webhook_stands_in_for_the_policies(found: Found) -> None:
    only_agents = {key: each for key, each in stored_policies().items() if key[1] in WITH_AGENTS}
    served = healthy(Settings(webhook_port=9443), policies=only_agents, webhooks=webhooks())
    assert examine(served).findings == ()


def test_a_webhook_that_nobody_serves_refuses_all_pods(found: Found) -> None:
    assert {kind for kind, _ in found(webhooks=webhooks())} == {"webhook-unserved"}


def test_a_webhook_for_other_names_is_told() -> None:
    other = webhooks(Settings(resource_count="example.com/gpu"))
    findings = examine(healthy(Settings(webhook_port=9443), webhooks=other)).findings
    assert [each.kind.value for each in findings] == ["policy-names", "policy-names"]
    assert "webhook-config" in findings[0].remedy
