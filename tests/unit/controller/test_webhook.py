"""Kopf's side of the webhook: off unless asked for, and the handlers that the configuration names."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import kopf
import pytest
import yaml

from fakes.objects import GPU, MEMORY, a_pod_object
from gpuledger.configuration.dialects import admission_rules, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.controller import webhook
from gpuledger.controller.webhook import SteadyWebhookServer, add_handlers, serve_webhook
from gpuledger.formats.admission.webhook import WebhookAddress
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
        ("add", "/spec/containers/0/resources/limits/gpuledger.dev~1managed"): "1",
        ("add", "/spec/containers/0/resources/requests/gpuledger.dev~1managed"): "1",
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


def a_certificate(directory: Path, name: str, key_of: str = "") -> None:
    """Put a certificate, and its key or another one's, where the webhook finds them."""
    made = directory / name
    made.mkdir()
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-days", "1", "-subj", f"/CN={name}", "-out", str(made / "tls.crt"), "-keyout", str(made / "tls.key")]
    subprocess.run([*request, *subject], check=True, capture_output=True)
    for file, source in (("tls.crt", name), ("tls.key", key_of or name)):
        (directory / file).write_bytes((directory / source / file).read_bytes())


async def seen_by_clients(port: int) -> str:
    """Return the name on the certificate that a client is shown."""
    trust_all = ssl.create_default_context()
    trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust_all)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    text = await asyncio.to_thread(
        subprocess.run, ["openssl", "x509", "-inform", "der", "-noout", "-subject"], input=shown, capture_output=True
    )
    return text.stdout.decode().strip().rpartition("=")[2].strip()


@contextlib.asynccontextmanager
async def a_webhook(directory: Path, fn: Any = None) -> AsyncIterator[int]:
    """Serve one, and yield its port."""
    files = {"certfile": str(directory / "tls.crt"), "pkeyfile": str(directory / "tls.key")}
    server = SteadyWebhookServer(admission_rules(Settings()), addr="127.0.0.1", port=0, **files)
    configs = cast(AsyncGenerator[Any, None], server(fn))
    told = asyncio.create_task(anext(configs))
    found = await told
    rest = asyncio.create_task(anext(configs))
    yield int(found["url"].rpartition(":")[2])
    rest.cancel()
    await asyncio.wait([rest])
    await configs.aclose()


async def test_a_new_certificate_is_taken_up_when_it_goes_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of a Secret are not exchanged at the same moment: for a while, certificate and key do not match."""
    monkeypatch.setattr(webhook, "LOOK_INTERVAL_S", 0.02)
    a_certificate(tmp_path, "old")
    async with a_webhook(tmp_path) as port:
        assert await seen_by_clients(port) == "old"
        a_certificate(tmp_path, "new", key_of="old")
        while "can't be used" not in caplog.text:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
        assert await seen_by_clients(port) == "old"
        (tmp_path / "tls.key").write_bytes((tmp_path / "new" / "tls.key").read_bytes())
        while await seen_by_clients(port) != "new":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_webhook_that_can_not_be_served_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "PAUSE_S", 0.01)
    asyncio.get_running_loop().call_later(0.05, a_certificate, tmp_path, "late")
    async with a_webhook(tmp_path) as port:
        assert await seen_by_clients(port) == "late"


async def test_kopf_is_asked_what_the_path_names(tmp_path: Path) -> None:
    a_certificate(tmp_path, "x")
    asked: list[tuple[Any, str]] = []

    async def review(request: Any, *, webhook: str, **_: Any) -> Any:
        asked.append((request, webhook))
        return {"response": {"allowed": True}}

    async with a_webhook(tmp_path, review) as port, aiohttp.ClientSession() as client:
        url = f"https://127.0.0.1:{port}/check"
        async with client.post(url, json={"kind": "AdmissionReview"}, ssl=False) as answer:
            assert (answer.status, await answer.json()) == (200, {"response": {"allowed": True}})
    assert asked == [({"kind": "AdmissionReview"}, "check")]
