"""Wrong values are refused, with a message that says which and why."""

import json
from dataclasses import fields
from typing import Any

import pytest

from chart import other_value
from gpuledger.configuration.settings import Settings
from manifests.helm import BEFORE_POLICIES, CHART, Helm, Json

NOT_ALLOWED = "additional properties '{}' not allowed"
WRONG: list[tuple[Json, str, str]] = [  # values, where the fault is, what is said of it
    ({"image": {"repository": ""}}, "/image/repository", "minLength: got 0, want 1"),
    ({"image": {"tag": "a b"}}, "/image/tag", "'a b' does not match pattern"),
    ({"image": {"tag": "0.1.0@sha256:abc"}}, "/image/tag", "'0.1.0@sha256:abc' does not match pattern"),
    (
        {"scheduler": {"image": {"tag": "@sha256:" + 64 * "0"}}},
        "/scheduler/image/tag",
        "does not match pattern",
    ),
    (
        {"scheduler": {"versions": {"1.36": "v1.36.3@sha256:0"}}},
        "/scheduler/versions/1.36",
        "'v1.36.3@sha256:0' does not match pattern",
    ),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
    ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0", "got string, want object"),
    ({"settings": {"resource_memory": "gpumem"}}, "/settings/resource_memory", "'gpumem' does not match pattern"),
    ({"settings": {"node_policy": "fullest"}}, "/settings/node_policy", "'binpack', 'spread', 'topology'"),
    ({"settings": {"default_cores": 101}}, "/settings/default_cores", "maximum: got 101, want 100"),
    ({"settings": {"default_gpus": -1}}, "/settings/default_gpus", "minimum: got -1, want 0"),
    ({"settings": {"nodes_offered": 11}}, "/settings/nodes_offered", "maximum: got 11, want 10"),
    ({"settings": {"trail_kept": 1.5}}, "/settings/trail_kept", "got number, want integer"),
    ({"settings": {"hold_ttl_s": "30s"}}, "/settings/hold_ttl_s", "got string, want number"),
    ({"settings": {"adopt_pods": "yes"}}, "/settings/adopt_pods", "got string, want boolean"),
    ({"settings": {"extra_scheduler_names": "volcano"}}, "/settings/extra_scheduler_names", "got string, want array"),
    ({"settings": {"metrics_compatibility": ["other"]}}, "/settings/metrics_compatibility/0", "'hami-legacy'"),
    ({"settings": {"node_taint": "gpu"}}, "/settings/node_taint", "'gpu' does not match pattern"),
    ({"files": {"a/b": ""}}, "/files", NOT_ALLOWED.format("a/b")),
    ({"files": {"a": 1}}, "/files/a", "got number, want string"),
    ({"operator": {"replicas": "two"}}, "/operator/replicas", "got string, want integer"),
    ({"operator": {"historyClaim": "My_Claim"}}, "/operator/historyClaim", "'My_Claim' does not match pattern"),
    ({"operator": {"replicas": -1}}, "/operator/replicas", "minimum: got -1, want 0"),
    (
        {"agent": {"resources": {"limits": {"memory": "half"}}}},
        "/agent/resources/limits/memory",
        "'half' does not match",
    ),
    ({"operator": {"nodeSelector": {"gpu": True}}}, "/operator/nodeSelector/gpu", "got boolean, want string"),
    ({"operator": {"tolerations": [{"effect": "Never"}]}}, "/operator/tolerations/0/effect", "'NoSchedule'"),
    ({"scheduler": {"versions": {"1.36": "1.36.3"}}}, "/scheduler/versions/1.36", "'1.36.3' does not match pattern"),
    ({"scheduler": {"versions": {"v1.36": "v1.36.3"}}}, "/scheduler/versions", NOT_ALLOWED.format("v1.36")),
    ({"agent": {"maxUnavailable": "some"}}, "/agent/maxUnavailable", "'some' does not match pattern"),
    ({"agent": {"kubeletDirectory": "kubelet"}}, "/agent/kubeletDirectory", "'kubelet' does not match pattern"),
    (
        {"monitoring": {"alerts": {"GPULedgerNearlyFull": {"severity": "page"}}}},
        "/monitoring/alerts/GPULedgerNearlyFull/severity",
        "'critical', 'warning', 'info'",
    ),
    (
        {"monitoring": {"alerts": {"GPULedgerNearlyFull": {"for": "long"}}}},
        "/monitoring/alerts/GPULedgerNearlyFull/for",
        "'long' does not match pattern",
    ),
    ({"monitoring": {"runbooks": "docs/alerts.md"}}, "/monitoring/runbooks", "'docs/alerts.md' does not match pattern"),
    ({"audit": {"enabled": "daily"}}, "/audit/enabled", "got string, want boolean"),
    ({"audit": {"schedule": ""}}, "/audit/schedule", "minLength: got 0, want 1"),
    ({"agent": {"limitsByDriver": "yes"}}, "/agent/limitsByDriver", "got string, want boolean"),
    ({"agent": {"simulatedCards": {"number": 65}}}, "/agent/simulatedCards/number", "maximum: got 65, want 64"),
    ({"hamiCore": {"image": "projecthami/hami"}}, "/hamiCore/image", "'projecthami/hami' does not match pattern"),
    ({"hamiCore": {"image": "a:1 b"}}, "/hamiCore/image", "'a:1 b' does not match pattern"),
    ({"hamiCore": {"directory": "/a; rm -rf /"}}, "/hamiCore/directory", "does not match pattern"),
    ({"hamiCore": {"pullPolicy": "Sometimes"}}, "/hamiCore/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
    ({"agent": {"mps": {"sharedMemory": "half"}}}, "/agent/mps/sharedMemory", "'half' does not match pattern"),
    ({"settings": {"mps_client_memory_percent": 0}}, "/settings/mps_client_memory_percent", "minimum: got 0, want 1"),
    ({"overHami": "yes"}, "/overHami", "got string, want boolean"),
    ({"admission": {"mode": "policy"}}, "/admission/mode", "'auto', 'policies', 'validating', 'webhook', 'none'"),
    ({"admission": {"webhook": {"certificate": "mine"}}}, "/admission/webhook/certificate", "'certManager'"),
    ({"admission": {"webhook": {"caBundle": "x"}}}, "/admission/webhook/caBundle", "'x' does not match pattern"),
    ({"crd": {"install": "false"}}, "/crd/install", "got string, want boolean"),
    ({"networkPolicy": {"enabled": "yes"}}, "/networkPolicy/enabled", "got string, want boolean"),
    ({"networkPolicy": {"scrapers": [{}]}}, "/networkPolicy/scrapers/0", "minProperties: got 0, want 1"),
    (
        {"networkPolicy": {"scrapers": [{"namespace": "prometheus"}]}},
        "/networkPolicy/scrapers/0",
        NOT_ALLOWED.format("namespace"),
    ),
    (
        {"networkPolicy": {"scrapers": [{"ipBlock": {"cidr": "10.0.0.1"}}]}},
        "/networkPolicy/scrapers/0/ipBlock/cidr",
        "'10.0.0.1' does not match pattern",
    ),
    ({"monitoring": {"monitors": "both"}}, "/monitoring/monitors", "'none', 'PodMonitor', 'ServiceMonitor'"),
    ({"monitoring": {"interval": 30}}, "/monitoring/interval", "got number, want string"),
]


@pytest.mark.parametrize(("values", "where", "what"), WRONG, ids=[f"{where} {what[:24]}" for _, where, what in WRONG])
def test_a_wrong_value_is_refused_and_named(helm: Helm, values: dict[str, Any], where: str, what: str) -> None:
    text = helm.refusal(**values)
    assert f"at '{where.strip(chr(39))}'" in text
    assert what in text


SETTINGS = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
WORDS = {name: schema["enum"] for name, schema in SETTINGS.items() if "enum" in schema}
assert {"node_policy", "preemption", "isolation", "delivery"} <= WORDS.keys()


@pytest.mark.parametrize("name", WORDS)
def test_the_words_that_a_setting_may_have_are_those_of_the_program(name: str) -> None:
    beside = {"node_templates": other_value("node_templates")} if name == "growth" else {}
    for word in WORDS[name]:
        assert getattr(Settings().changed({**beside, name: word}), name) == word
    with pytest.raises(ValueError, match=name):
        Settings().changed({name: "another"})


def test_the_schema_takes_the_default_of_every_setting(helm: Helm) -> None:
    defaults = [(each.name, each.default) for each in fields(Settings)]
    helm.objects(settings={name: list(each) if isinstance(each, tuple) else each for name, each in defaults})


CONTRADICTIONS: list[tuple[Json, str]] = [
    ({"bind_timeout_s": 60}, "bind_timeout_s (60) must be less than extender_timeout_s (60)"),
    ({"bind_timeout_s": 3, "extender_timeout_s": 2}, "bind_timeout_s (3) must be less than extender_timeout_s (2)"),
    ({"scheduler_name": "default-scheduler"}, "none can be default-scheduler"),
    ({"extra_scheduler_names": ["gpuledger"]}, "scheduler names must differ"),
    ({"resource_count": ""}, "resource_count is the name that our own node agent serves"),
    ({"resource_memory": "nvidia.com/gpu"}, "names of resources must differ"),
    ({"resource_priority": "nvidia.com/gpumem"}, "names of resources must differ"),
]


@pytest.mark.parametrize(("settings", "message"), CONTRADICTIONS, ids=[next(iter(each)) for each, _ in CONTRADICTIONS])
def test_what_the_program_would_refuse_at_its_start_is_refused_before(helm: Helm, settings: Json, message: str) -> None:
    with pytest.raises(ValueError, match="settings: "):
        Settings().changed(settings)
    assert message in helm.refusal(settings=settings, admission={"mode": "none"})


def test_another_namespace_is_refused(helm: Helm) -> None:
    text = helm.refusal("--namespace=default")
    assert "gpuledger lives in the namespace gpuledger-system, not in default" in text
    assert "--namespace gpuledger-system --create-namespace" in text


def test_a_second_file_of_settings_is_refused(helm: Helm) -> None:
    assert "files: settings.yaml is the file that the chart writes" in helm.refusal(files={"settings.yaml": "a: 1"})


def test_policies_that_the_server_does_not_know_are_refused(helm: Helm) -> None:
    text = helm.refusal(admission={"mode": "policies"}, kubernetes=BEFORE_POLICIES)
    assert f"MutatingAdmissionPolicy is stable from Kubernetes 1.36 on, and this is {BEFORE_POLICIES}" in text


def test_a_certificate_that_nobody_is_told_to_trust_is_refused(helm: Helm) -> None:
    text = helm.refusal(admission={"mode": "webhook", "webhook": {"certificate": "secret"}})
    assert "--set-file admission.webhook.caBundle=tls.crt" in text


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        ({}, {}, "--set agent.limitsByDriver=true"),
        ({"limitsByDriver": True}, {"delivery": "directory"}, "delivery has to be cdi"),
    ],
)
def test_limits_by_the_driver_without_what_they_need_are_refused(
    helm: Helm, agent: Json, settings: Json, message: str
) -> None:
    assert message in helm.refusal(settings={"isolation": "driver", **settings}, agent=agent)
