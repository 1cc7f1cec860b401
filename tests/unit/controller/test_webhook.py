"""Kopf's side of the webhook: off unless asked for, and the handlers that the configuration names."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import kopf
import pytest
import yaml

from fakes.objects import GPU, MEMORY, a_pod_object
from gpuledger.configuration.admission import admission_rules, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.controller import webhook
from gpuledger.controller.webhook import SteadyWebhookServer, add_handlers, serve_webhook
from gpuledger.formats.admission.webhook_configuration import WebhookAddress
from gpuledger.model.errors import BadInput

Json = dict[str, Any]


def handlers() -> dict[str, Any]:
    """Return id -> handler."""
    registry = kopf.OperatorRegistry()
    add_handlers(registry, admission_rules(Settings()))
    for others in (registry._watching, registry._changing, registry._spawning, registry._indexing):
        assert list(others.get_all_handlers()) == []
    return {handler.id: handler for handler in registry._webhooks.get_all_handlers()}


def test_without_a_port_there_is_no_webhook() -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    serve_webhook(registry, settings, Settings())
    assert list(registry._webhooks.get_all_handlers()) == []
    assert (settings.admission.server, settings.admission.managed) == (None, None)


def test_a_certificate_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    files = {"webhook_cert_file": str(tmp_path / "a.crt"), "webhook_key_file": str(tmp_path / "a.key")}
    with pytest.raises(BadInput, match=r"^settings: webhook_port is set, but webhook_cert_file .*a\.crt .*a\.key"):
        serve_webhook(
            kopf.OperatorRegistry(), kopf.OperatorSettings(), Settings().changed({"webhook_port": 9443, **files})
        )


def test_every_url_of_the_configuration_has_a_handler_of_that_kind() -> None:
    """Kopf allows whatever it has no handler for."""
    text = webhook_configuration(
        Settings(), frozenset(("mutating", "validating")), WebhookAddress(url="https://127.0.0.1")
    )
    named = {
        (webhook["clientConfig"]["url"].rpartition("/")[2], each["kind"].removesuffix("WebhookConfiguration").lower())
        for each in yaml.safe_load_all(text)
        for webhook in each["webhooks"]
    }
    assert named == {(id_, handler.reason.value) for id_, handler in handlers().items()}


async def test_kopf_makes_a_patch_of_what_is_filled_in() -> None:
    body = kopf.Body(cast(Any, a_pod_object(limits={MEMORY: "1"}, scheduler_name="default-scheduler")))
    patch = kopf.Patch(body=body)
    await handlers()["fill-in"].fn(patch=patch)
    operations = {(each["op"], each["path"]): each["value"] for each in patch.as_json_patch()}
    assert operations == {
        ("replace", "/spec/schedulerName"): "gpuledger",
        ("add", "/metadata/labels"): {"gpuledger.dev/managed": "true"},
        ("add", "/spec/containers/0/resources/limits/nvidia.com~1gpu"): "1",
        ("add", "/spec/containers/0/resources/requests/nvidia.com~1gpu"): "1",
    }


async def test_a_pod_without_gpus_gets_no_patch() -> None:
    patch = kopf.Patch(body=kopf.Body(cast(Any, a_pod_object(limits={}))))
    await handlers()["fill-in"].fn(patch=patch)
    assert patch.as_json_patch() == []


async def test_a_refusal_is_told_as_forbidden_and_a_warning_without_one() -> None:
    check = handlers()["check"].fn
    warnings: list[str] = []
    user = {"username": "user"}
    with pytest.raises(kopf.AdmissionError, match="has a unit of bytes") as caught:
        await check(body=kopf.Body(cast(Any, a_pod_object(limits={MEMORY: "4Gi"}))), userinfo=user, warnings=warnings)
    assert caught.value.code == 403
    body = kopf.Body(cast(Any, a_pod_object(limits={GPU: 1, MEMORY: 1, "nvidia.com/gpumem-percentage": 5})))
    await check(body=body, userinfo=user, warnings=warnings)
    assert len(warnings) == 1


async def test_a_certificate_that_cannot_be_read_does_not_end_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a Secret are not exchanged at the same moment: for a while, certificate and key do not match."""
    served: list[str] = []

    async def serve(self: object, fn: object) -> AsyncIterator[kopf.WebhookClientConfig]:
        served.append("again" if served else "first")
        if len(served) == 1:
            yield kopf.WebhookClientConfig(url="https://old")
            raise ssl.SSLError("key values mismatch")
        yield kopf.WebhookClientConfig(url="https://new")

    monkeypatch.setattr(kopf.WebhookServer, "__call__", serve)
    monkeypatch.setattr(webhook, "PAUSE_S", 0.0)
    configs = SteadyWebhookServer(admission_rules(Settings()))(cast(Any, None))
    assert [(await anext(configs))["url"] for _ in range(2)] == ["https://old", "https://new"]
    assert served == ["first", "again"]
    await cast(AsyncGenerator[Any, None], configs).aclose()
