"""Who reaches which port of our pods: NetworkPolicies say it of each port, and open no more than is needed."""

import re
from dataclasses import fields
from ipaddress import ip_address
from typing import Any

import pytest
import yaml

from chart import MANIFESTS
from gpuledger.configuration.settings import Settings
from manifests.helm import BEFORE_POLICIES, KUBERNETES, PRESETS, Helm, Json, preset

Objects = dict[tuple[str, str], Json]
OPERATOR, AGENT = ("Deployment", "gpuledger"), ("DaemonSet", "gpuledger-agent")
WORKLOADS = (OPERATOR, AGENT)
OPENED = {OPERATOR: ("explain_port", "health_port", "webhook_port"), AGENT: ("agent_health_port",)}
"""Settings with the ports on which others have to reach a workload's pods."""

LOOPBACK = {"listen_port": "listen_host", "view_port": "view_host"}
"""Settings with the ports that nobody reaches from outside the pod -> the setting that sees to it."""

ONLY_PROBED = {10259}
"""What only the kubelet asks, for which there need be no rule: kube-scheduler's port."""

SCRAPERS = [
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    {"namespaceSelector": {"matchLabels": {"gpuledger.dev/metrics": "true"}}},
]
THE_OPERATOR = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gpuledger"}}}
HELM_TEST = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gpuledger-test"}}}
WITH_WEBHOOK: Json = {"admission": {"mode": "webhook"}}


def policies_of(objects: Objects, workload: tuple[str, str]) -> list[Json]:
    """Return what is said in the policies that select a workload's pods."""
    labels = objects[workload]["spec"]["template"]["metadata"]["labels"]
    specs = [each["spec"] for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    return [spec for spec in specs if spec["podSelector"]["matchLabels"].items() <= labels.items()]


def opened(objects: Objects, workload: tuple[str, str]) -> dict[int, list[Json] | None]:
    """Return port -> who may reach it; None is everybody. No two rules are about one port."""
    rules = [rule for spec in policies_of(objects, workload) for rule in spec.get("ingress", [])]
    assert all(rule["ports"] and rule.get("from", ["anybody"]) for rule in rules)  # an empty list would be everything
    pairs = [(each["port"], rule.get("from")) for rule in rules for each in rule["ports"]]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def ports(value: Any) -> set[int]:
    """Return every port that is named anywhere in a pod: of containers, of probes, and in flags."""
    if isinstance(value, dict):
        named = {value[key] for key in ("containerPort", "port") if isinstance(value.get(key), int)}
        return named.union(*map(ports, value.values()))
    if isinstance(value, list):
        return set().union(*map(ports, value))
    flag = re.fullmatch(r"--[a-z-]*port=(\d+)", value) if isinstance(value, str) else None
    return {int(flag[1])} if flag else set()


# Every port is one or the other.


def test_each_port_of_the_program_is_opened_or_listens_on_a_loopback_address() -> None:
    """A setting with another port belongs into one of the two, and a policy has to say so."""
    known = [name for names in OPENED.values() for name in names] + list(LOOPBACK)
    assert sorted(known) == sorted(each.name for each in fields(Settings) if each.name.endswith("_port"))
    for host in LOOPBACK.values():
        assert ip_address(getattr(Settings(), host)).is_loopback


@pytest.mark.parametrize("values", [{}, WITH_WEBHOOK], ids=["policies", "webhook"])
def test_each_port_of_a_pod_is_opened_or_only_probed(helm: Helm, values: Json) -> None:
    objects = helm.objects(**values)
    for workload in WORKLOADS:
        named = ports(objects[workload]["spec"]["template"]["spec"])
        assert named
        assert named - ONLY_PROBED == opened(objects, workload).keys()


def test_the_ports_are_those_of_the_settings(helm: Helm) -> None:
    changed = {"health_port": 9001, "agent_health_port": 9002, "webhook_port": 9003, "explain_port": 9004}
    objects = helm.objects(settings=changed, **WITH_WEBHOOK)
    for workload in WORKLOADS:
        assert opened(objects, workload).keys() == {changed[name] for name in OPENED[workload]}


def test_our_pods_are_in_the_pod_network_where_policies_apply(helm: Helm) -> None:
    objects = helm.objects()
    for workload in WORKLOADS:
        assert "hostNetwork" not in objects[workload]["spec"]["template"]["spec"]


# Who.


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("version", [KUBERNETES, BEFORE_POLICIES])
def test_by_default_metrics_are_for_prometheus_and_what_asks_for_proof_is_for_everybody(
    helm: Helm, name: str, version: str
) -> None:
    objects = helm.objects(preset(name), kubernetes=version)
    webhook = {9443: None} if version == BEFORE_POLICIES else {}
    assert opened(objects, OPERATOR) == {8889: [*SCRAPERS, HELM_TEST], 8892: None, **webhook}
    if AGENT in objects:
        assert opened(objects, AGENT) == {8890: [*SCRAPERS, THE_OPERATOR]}
    found = sum(kind == "NetworkPolicy" for kind, _ in objects)
    assert found == 1 + (AGENT in objects)


def test_helm_s_test_is_let_in(helm: Helm) -> None:
    labels = helm.objects()["Pod", "gpuledger-test"]["metadata"]["labels"]
    assert HELM_TEST["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_operator_is_let_in_to_the_agents_as_long_as_it_has_a_page(helm: Helm) -> None:
    """It asks them what is used, and nothing else of ours has its label."""
    objects = helm.objects(**WITH_WEBHOOK)
    labels = objects[OPERATOR]["spec"]["template"]["metadata"]["labels"]
    selected = THE_OPERATOR["podSelector"]["matchLabels"].items()
    assert selected <= labels.items()
    others = (each for kind, each in objects.items() if kind[0] in ("Deployment", "DaemonSet") and kind != OPERATOR)
    assert not [each for each in others if selected <= each["spec"]["template"]["metadata"]["labels"].items()]
    assert opened(helm.objects(settings={"view_port": 0}), AGENT) == {8890: SCRAPERS}


def test_what_our_pods_ask_for_is_not_restricted(helm: Helm) -> None:
    objects = helm.objects(**WITH_WEBHOOK)
    for workload in WORKLOADS:
        (spec,) = policies_of(objects, workload)
        assert spec["policyTypes"] == ["Ingress"]
        assert "egress" not in spec


def test_others_may_be_let_in_to_the_metrics(helm: Helm) -> None:
    scrapers = [
        {"podSelector": {}, "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]
    objects = helm.objects(networkPolicy={"scrapers": scrapers})
    assert opened(objects, OPERATOR) == {8889: [*scrapers, HELM_TEST], 8892: None}
    assert opened(objects, AGENT) == {8890: [*scrapers, THE_OPERATOR]}


def test_no_scrapers_are_nobody_and_not_everybody(helm: Helm) -> None:
    objects = helm.objects(networkPolicy={"scrapers": []})
    assert opened(objects, OPERATOR) == {8889: [HELM_TEST], 8892: None}
    assert opened(objects, AGENT) == {8890: [THE_OPERATOR]}
    assert opened(helm.objects(networkPolicy={"scrapers": []}, settings={"view_port": 0}), AGENT) == {}
    assert len(policies_of(objects, AGENT)) == 1


def test_they_can_be_left_out(helm: Helm) -> None:
    """All of them: pods that one policy selects are closed but for what it opens."""
    kinds = {kind for kind, _ in helm.objects(networkPolicy={"enabled": False}, **WITH_WEBHOOK)}
    assert "NetworkPolicy" not in kinds


def test_developers_port_can_be_closed(helm: Helm) -> None:
    objects = helm.objects(settings={"explain_port": 0})
    assert 8892 not in opened(objects, OPERATOR)
    assert not {("Service", "gpuledger-explain"), ("Role", "gpuledger-developer")} & objects.keys()


# With kustomize.


def test_the_base_has_them_and_the_webhook_s_component_opens_what_the_chart_does(helm: Helm) -> None:
    for folder in (MANIFESTS, MANIFESTS / "agent"):
        assert "network_policy.yaml" in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    component = yaml.safe_load((MANIFESTS / "webhook" / "kustomization.yaml").read_text())
    (patch,) = (each for each in component["patches"] if "target" in each)
    (step,) = yaml.safe_load(patch["patch"])
    assert (step["op"], step["path"]) == ("add", "/spec/ingress/-")
    objects = helm.objects(**WITH_WEBHOOK)
    assert ("NetworkPolicy", patch["target"]["name"]) in objects
    assert step["value"] in objects["NetworkPolicy", "gpuledger"]["spec"]["ingress"]
