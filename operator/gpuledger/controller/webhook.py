"""Kopf's admission webhook: it answers for new pods, on every replica, and writes nothing.

Kopf does not manage the configuration in the API server: it would need rights to, and knows no conditions by which
other pods are left alone. `gpuledger webhook-config` prints it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import kopf
from aiohttp import web

from gpuledger.configuration.dialects import admission_rules
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import (
    CHECK,
    FILL_IN,
    QUEUE_UP,
    SUM_UP,
    AdmissionRules,
    check,
    filled_in,
    queueing_review,
    summing_review,
)
from gpuledger.model.errors import BadInput
from gpuledger.serving import Limits, Port, application_served

logger = logging.getLogger(__name__)

PAUSE_S = 5.0
"""Before the webhook is served again when it could not be."""

LOOK_INTERVAL_S = 30.0
"""How often new certificates are looked for. Certificates are renewed weeks before they end."""

FORBIDDEN = 403
"""The HTTP status of a refusal, as with the policies."""


LIMITS = Limits(connections_per_s=50, requests_per_s=500)
"""The API server keeps its connections. Other clients that reach the port cost a tenth of a core or so."""


class SteadyWebhookServer(kopf.WebhookServer):
    """Kopf's server at a port with limits. A certificate that can't be used does not end the operator.

    Kopf answers for kinds that were there when it began. So what it is asked of templates is answered without it: the
    kinds that have some may come later.
    """

    def __init__(self, rules: AdmissionRules, **where: Any) -> None:
        super().__init__(**where)
        self._rules = rules

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serve, and tell where, until cancelled."""

        async def answer(request: Any, *, webhook: Any = None, **more: Any) -> Any:
            if webhook == SUM_UP:
                return summing_review(request, self._rules)
            if webhook == QUEUE_UP:
                return queueing_review(request, self._rules)
            return await fn(request, webhook=webhook, **more)

        async def serve(request: web.Request) -> web.Response:
            return await self._serve(cast("kopf.WebhookFn", answer), request)

        host, port = self.addr or "", self.port or 0
        while True:
            try:
                application = web.Application()
                application.router.add_post("/{id:.*}", serve)
                _, context = self._build_ssl()
                async with application_served(application, host, port, LIMITS, context) as served:
                    yield kopf.WebhookClientConfig(url=f"https://{host}:{served.address[1]}")
                    await self._take_up_certificates(served)
            except OSError as error:  # of TLS, too
                logger.error("the webhook can't be served, retrying: %s", error)
                await asyncio.sleep(PAUSE_S)

    async def _take_up_certificates(self, served: Port) -> None:
        """Use new certificates for clients that come from then on, until cancelled."""
        used = self._files()
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                if (found := self._files()) != used:
                    _, served.context = self._build_ssl()
                    used = found
            except OSError as error:  # the files of a Secret are not exchanged at the same moment
                logger.error("the webhook's new certificate can't be used, retrying: %s", error)

    def _files(self) -> list[bytes]:
        return [Path(file).read_bytes() for file in (self.certfile, self.pkeyfile) if file]


def serve_webhook(registry: kopf.OperatorRegistry, kopf_settings: kopf.OperatorSettings, settings: Settings) -> None:
    """Let Kopf serve the webhook, if the settings give it a port. Raises BadInput for certificates it can't use."""
    if not settings.webhook_port:
        return
    _check_certificate(settings.webhook_cert_file, settings.webhook_key_file)
    rules = admission_rules(settings)
    kopf_settings.admission.server = SteadyWebhookServer(
        rules,
        addr=settings.webhook_host,
        port=settings.webhook_port,
        certfile=settings.webhook_cert_file,
        pkeyfile=settings.webhook_key_file,
    )
    add_handlers(registry, rules)


def add_handlers(registry: kopf.OperatorRegistry, rules: AdmissionRules) -> None:
    """Add the handlers of new pods."""

    @kopf.on.mutate("", "v1", "pods", id=FILL_IN, operations=["CREATE"], registry=registry)
    async def fill_in(patch: kopf.Patch, **_: Any) -> None:
        patch.fns.append(lambda pod: pod.update(filled_in(pod, rules)))  # type: ignore[typeddict-item]

    @kopf.on.validate("", "v1", "pods", id=CHECK, operations=["CREATE"], registry=registry)
    async def check_pod(body: kopf.Body, userinfo: kopf.UserInfo, warnings: list[str], **_: Any) -> None:
        try:
            warnings.extend(check(dict(body), userinfo["username"], rules))
        except BadInput as error:
            raise kopf.AdmissionError(str(error), code=FORBIDDEN) from None


def _check_certificate(certificate: str, key: str) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        raise BadInput(
            f"settings: webhook_port is set, but webhook_cert_file {certificate} and webhook_key_file {key} "
            f"are not a certificate and its key: {error}"
        ) from error
