"""The configurations of the admission webhook: which new pods the API server sends where.

As few as possible, by the conditions of the policies: pods without GPUs must start whatever is wrong with us.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.formats.admission.accounts import OPERATOR, not_from, with_foreign_annotations, with_our_annotation
from gpuledger.formats.admission.defaults import asking_pods, mentioning_pods
from gpuledger.formats.admission.policies import NOT_IGNORED, as_yaml, rule
from gpuledger.formats.admission.queue_words import queued_objects
from gpuledger.formats.admission.sums import summing_templates, template_rules
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.lease import LEASE_NAMESPACE

Json = dict[str, Any]

FILL_IN: Final = "fill-in"
CHECK: Final = "check"
SUM_UP: Final = "sum-up"
QUEUE_UP: Final = "queue-up"
"""The last parts of the URLs. Kopf's handlers have these ids, but for the last two."""

SERVICE: Final = "gpuledger-webhook"
"""In front of the replicas, all of which answer: manifests/webhook."""

TIMEOUT_S: Final = 5
"""An answer takes some milliseconds."""

HEADER: Final = "# Printed by `gpuledger webhook-config`: docs/admission.md\n"


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Where the API server finds the webhook, and how it knows it."""

    url: str = ""
    """Empty: our Service."""
    ca_bundle: bytes = b""
    """Certificates that the API server trusts, PEM; none: those of its machine, or what cert-manager fills in."""
    cert_manager: str = ""
    """NAMESPACE/NAME of a Certificate whose CA cert-manager fills in."""

    def client_config(self, path: str) -> Json:
        """Return how a webhook is reached."""
        where: Json = {"url": f"{self.url.rstrip('/')}/{path}"}
        if not self.url:
            where = {"service": {"namespace": LEASE_NAMESPACE, "name": SERVICE, "path": f"/{path}", "port": 443}}
        return {**where, **({"caBundle": base64.b64encode(self.ca_bundle).decode()} if self.ca_bundle else {})}


def mutating_webhooks(
    dialects: Dialects,
    address: WebhookAddress,
    with_sums: bool = False,
    queue_words_for: Sequence[str] = (),
) -> Json:
    """Return the configuration of what fills in new pods; with sums, of what writes them on templates, too.

    With the names of our schedulers, also of what writes Kueue's label on what names a queue in other words.
    """
    webhooks = [_webhook("pods", FILL_IN, [asking_pods(dialects)], address, NOT_IGNORED)]
    if with_sums:
        summing = _webhook("sums", SUM_UP, summing_templates(dialects), address, NOT_IGNORED)
        summing["rules"] = [{**each, "scope": "Namespaced"} for each in template_rules()]
        webhooks.append(summing)
    if queue_words_for:
        queueing = _webhook("queues", QUEUE_UP, queued_objects(dialects, queue_words_for), address, NOT_IGNORED)
        queueing["rules"] = [{**each, "scope": "Namespaced"} for each in template_rules("CREATE")]
        webhooks.append(queueing)
    for webhook in webhooks:
        webhook["reinvocationPolicy"] = "IfNeeded"  # another webhook may add containers
    return _configuration("Mutating", webhooks, address)


def validating_webhooks(dialects: Dialects, address: WebhookAddress) -> Json:
    """Return the configuration of what refuses new pods. The annotation that is ours is protected everywhere."""
    others = not_from(OPERATOR)
    webhooks = [
        _webhook("requests", CHECK, [mentioning_pods(dialects)], address, NOT_IGNORED),
        _webhook("devices", CHECK, [others, with_our_annotation()], address),
        _webhook("foreign-devices", CHECK, [others, with_foreign_annotations()], address, NOT_IGNORED),
    ]
    return _configuration("Validating", webhooks, address)


def configurations_as_yaml(configurations: Sequence[Json]) -> str:
    """Write them as a file that kubectl applies."""
    return as_yaml(configurations, HEADER)


def _webhook(
    name: str, path: str, conditions: Sequence[Json], address: WebhookAddress, scope: Json | None = None
) -> Json:
    return {
        "name": f"{name}.gpuledger.dev",
        "clientConfig": address.client_config(path),
        "rules": [{**rule("CREATE", "pods"), "scope": "Namespaced"}],
        **(scope or {}),
        "matchConditions": list(conditions),
        "failurePolicy": "Fail",
        "timeoutSeconds": TIMEOUT_S,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _configuration(kind: str, webhooks: Sequence[Json], address: WebhookAddress) -> Json:
    metadata: Json = {"name": "gpuledger"}
    if address.cert_manager:
        metadata["annotations"] = {"cert-manager.io/inject-ca-from": address.cert_manager}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": metadata,
        "webhooks": list(webhooks),
    }
