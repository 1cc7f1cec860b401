"""Pods without GPUs start whatever is wrong with the webhook, and those with GPUs do not pass it by."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuledger.command_line.program import main
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import SERVICE

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[4] / "manifests"
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"


def printed(*arguments: str) -> dict[str, Json]:
    """Return kind -> configuration."""
    done = CliRunner().invoke(main, ["webhook-config", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {each["kind"]: each for each in yaml.safe_load_all(done.output)}


def webhooks(*arguments: str) -> dict[str, Json]:
    return {webhook["name"]: webhook for each in printed(*arguments).values() for webhook in each["webhooks"]}


def policy_conditions(name: str) -> list[Json]:
    """Return the conditions of the policy that does the same."""
    documents = yaml.safe_load_all(policies(Settings(), frozenset(("mutating", "validating"))))
    (found,) = (d for d in documents if d["metadata"]["name"] == name and not d["kind"].endswith("Binding"))
    return list(found["spec"]["matchConditions"])


def test_only_new_pods_are_sent_and_a_failure_refuses_them_soon() -> None:
    for webhook in webhooks().values():
        (rule,) = webhook["rules"]
        assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")
        assert webhook["timeoutSeconds"] <= 5
        assert webhook["matchConditions"]


def test_pods_are_sent_by_the_conditions_of_the_policies() -> None:
    found = webhooks()
    assert found["pods.gpuledger.dev"]["matchConditions"] == policy_conditions("gpuledger-pods")
    assert found["requests.gpuledger.dev"]["matchConditions"] == policy_conditions("gpuledger-requests")
    assert found["foreign-devices.gpuledger.dev"]["matchConditions"] == policy_conditions("gpuledger-foreign-devices")
    from_others, says_its_cards = found["devices.gpuledger.dev"]["matchConditions"]
    assert from_others == policy_conditions("gpuledger-devices")[0]
    assert "object.metadata.?annotations" in says_its_cards["expression"]


def test_exempt_namespaces_are_left_out_but_for_our_own_annotation() -> None:
    for name, webhook in webhooks().items():
        assert ("namespaceSelector" in webhook) is (name != "devices.gpuledger.dev")
        if "namespaceSelector" in webhook:
            label, itself = webhook["namespaceSelector"]["matchExpressions"]
            assert (label["key"], label["operator"], label["values"]) == ("gpuledger.dev/ignore", "NotIn", ["true"])
            assert set(itself["values"]) == {"kube-system", "gpuledger-system"}


def test_namespaces_can_opt_in(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("admission_namespaces: labelled\nsum_models: [T4=15360]\nqueue_words: true\n")
    found = webhooks("--settings", str(settings))
    assert len(found) == 7
    for name, webhook in found.items():
        opted_in = {"key": "gpuledger.dev/admission", "operator": "In", "values": ["true"]}
        expressions = webhook.get("namespaceSelector", {}).get("matchExpressions", [])
        assert (opted_in in expressions) is (name != "devices.gpuledger.dev")


def test_the_service_is_the_one_of_the_manifests() -> None:
    service = yaml.safe_load((MANIFESTS / "webhook" / "service.yaml").read_text())
    named = webhooks()["pods.gpuledger.dev"]["clientConfig"]["service"]
    assert named == {**named, "namespace": service["metadata"]["namespace"], "name": service["metadata"]["name"]}
    assert named["port"] == service["spec"]["ports"][0]["port"]
    assert service["metadata"]["name"] == SERVICE


def test_a_url_and_a_certificate_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(CERTIFICATE)
    for webhook in webhooks("--url", "https://10.0.0.1:9443/", "--ca-file", str(file)).values():
        assert webhook["clientConfig"]["url"].startswith("https://10.0.0.1:9443/")
        assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == CERTIFICATE


def test_cert_manager_is_asked_to_fill_in_its_ca() -> None:
    for each in printed("--cert-manager", "gpuledger-system/webhook").values():
        assert each["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "gpuledger-system/webhook"}
        assert "caBundle" not in each["webhooks"][0]["clientConfig"]


def test_what_can_not_be_a_certificate_or_an_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ca.key"
    file.write_bytes(b"key")
    for arguments, sentence in (
        (["--ca-file", str(file)], "has no PEM certificate"),
        (["--url", "http://10.0.0.1"], "--url must begin with https://"),
    ):
        done = CliRunner().invoke(main, ["webhook-config", *arguments])
        assert done.exit_code
        assert sentence in done.output


@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_only_the_kind_that_was_asked_for_is_printed(kind: str) -> None:
    assert list(printed("--kind", kind)) == [f"{kind.title()}WebhookConfiguration"]


def test_names_of_resources_come_from_the_settings(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("resource_count: example.com/gpu\nvendors: []\n")
    for name in ("pods", "requests"):
        (condition,) = webhooks("--settings", str(settings))[f"{name}.gpuledger.dev"]["matchConditions"]
        assert '"example.com/gpu"' in condition["expression"]
        assert '"nvidia.com/gpu"' not in condition["expression"]
