"""Every pod of ours with cards carries a resource that no node lists, and no other pod does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fakes.objects import GPU, MEMORY, a_container, a_pod_object
from fakes.sum_cases import SUM_GPUS, SUM_MODELS
from gpuledger.configuration.dialects import admission_rules, policies, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.autoscalers import HIDING_POLICY
from gpuledger.formats.admission.webhook import WebhookAddress, filled_in, sums_patch
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.vocabulary import HIDING

Json = dict[str, Any]

RULES = admission_rules(Settings())
SUMMING = admission_rules(Settings().changed({"sum_models": SUM_MODELS}))
OTHERS = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "100"}
CLAIMS: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}


def a_pod(limits: Json | None = None, **spec: object) -> Json:
    """Return a pod of the default scheduler, or of the one that it names."""
    pod = a_pod_object(limits=limits or {}, scheduler_name="")
    pod["spec"] |= spec
    return pod


def hidden(pod: Json, rules: Any = RULES) -> list[str]:
    """Return the resource's amount in limits and in requests of each container that has it."""
    found = []
    for each in filled_in(pod, rules)["spec"]["containers"]:
        amounts = [(each["resources"].get(part) or {}).get(HIDING) for part in ("limits", "requests")]
        assert len(set(amounts)) == 1
        found += [amounts[0]] if amounts[0] else []
    return found


@pytest.mark.parametrize("limits", [{GPU: "5"}, {GPU: "1", MEMORY: "1000"}, {MEMORY: "1000"}, OTHERS], ids=str)
def test_whole_cards_shares_and_other_vendors_cards_are_hidden(limits: Json) -> None:
    assert hidden(a_pod(limits)) == ["1"]


def test_a_pod_with_claims_is_hidden_if_it_names_our_scheduler() -> None:
    assert hidden(a_pod(schedulerName="gpuledger", **CLAIMS)) == ["1"]
    assert hidden(a_pod(schedulerName="any", **CLAIMS)) == []
    assert hidden(a_pod(**CLAIMS)) == []


def test_pods_without_cards_and_of_other_schedulers_are_left_as_they_are() -> None:
    for pod in (a_pod({"cpu": "1"}), a_pod({GPU: "0"}), a_pod({GPU: "1"}, schedulerName="any")):
        assert hidden(pod) == []


def test_pods_of_daemon_sets_are_not_hidden_or_karpenter_would_add_no_node_at_all() -> None:
    for owner, amounts in (
        ({"kind": "DaemonSet", "controller": True}, []),
        ({"kind": "DaemonSet"}, ["1"]),
        ({"kind": "ReplicaSet", "controller": True}, ["1"]),
    ):
        pod = a_pod({GPU: "1"})
        pod["metadata"]["ownerReferences"] = [owner]
        assert hidden(pod) == amounts


def test_one_container_gets_it_and_what_a_user_wrote_there_is_overwritten() -> None:
    containers = [a_container("side", {"cpu": "1"}), a_container("main", {GPU: "2"})]
    assert hidden(a_pod(containers=containers)) == ["1"]
    assert hidden(a_pod({GPU: "2", HIDING: "0"})) == ["1"]
    once = filled_in(a_pod({GPU: "2"}), RULES)
    assert filled_in(once, RULES) == once


def test_where_sums_are_written_they_hide_a_pod_and_only_others_get_it() -> None:
    pod = filled_in(a_pod({GPU: "2"}), SUMMING)
    assert pod["spec"]["containers"][0]["resources"]["limits"][SUM_GPUS] == "2"
    assert hidden(a_pod({GPU: "2"}), SUMMING) == []
    assert hidden(a_pod(OTHERS), SUMMING) == ["1"]
    assert hidden(a_pod(schedulerName="gpuledger", **CLAIMS), SUMMING) == ["1"]


def test_templates_do_not_get_it() -> None:
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]}}
    assert HIDING not in str(sums_patch({"spec": {"template": template}}, SUMMING))


def test_it_means_nothing_to_the_operator() -> None:
    pod = a_pod({GPU: "2", MEMORY: "1000"})
    assert pod_request(filled_in(pod, RULES), RULES.dialects) == pod_request(pod, RULES.dialects)


def test_it_can_be_turned_off() -> None:
    off = Settings(hide_from_autoscalers=False)
    assert hidden(a_pod({GPU: "1"}), admission_rules(off)) == []
    for settings, there in ((off, False), (Settings(), True)):
        kinds = frozenset({"mutating"})
        assert (HIDING_POLICY in policies(settings, kinds)) is there
        assert ("hiding.gpuledger.dev" in webhook_configuration(settings, kinds, WebhookAddress())) is there


def test_the_policy_looks_at_new_pods_alone() -> None:
    found = list(yaml.safe_load_all(policies(Settings(), frozenset({"mutating"}))))
    names = [each["metadata"]["name"] for each in found if each["kind"] == "MutatingAdmissionPolicy"]
    (policy,) = (each for each in found if each["metadata"]["name"] == HIDING_POLICY and "mutations" in each["spec"])
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert names.count(HIDING_POLICY) == 1
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
