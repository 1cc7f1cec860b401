"""The webhook, for API servers that have no admission policies: its configuration, and its verdict on a new pod.

It reads pods with the operator's own functions, so what is accepted here can be placed, and nothing else is accepted.
By the conditions of the policies the API server sends it as few pods as possible: pods without GPUs must start whatever
is wrong with gpuledger.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, cast

from gpuledger.formats.admission.autoscalers import brings_claims, hide
from gpuledger.formats.admission.card_access import lacking_containers
from gpuledger.formats.admission.policies import NOT_IGNORED, rule
from gpuledger.formats.admission.rules import (
    CLUSTERS_OWN,
    ITS_SCHEDULER,
    NAMES_ITS_NODE,
    OPERATOR,
    TASK_PRIORITY,
    WRITE_SCHEDULER,
    asking_pods,
    forged,
    mentioning_pods,
    not_from,
    with_foreign_annotations,
    with_our_annotation,
)
from gpuledger.formats.admission.sums import queued_objects, summing_templates, template_rules
from gpuledger.formats.annotations import ASKED_LABEL
from gpuledger.formats.dialects.request import ContainerRequest, container_requests, containers, pod_request
from gpuledger.formats.dialects.sums import CardModels, container_sums, local_queue, templates
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import SUMS, Dialects
from gpuledger.formats.kubernetes.card_access import overwrite
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
from gpuledger.formats.kubernetes.pod import bound_node, is_of_daemon_set, scheduler_of
from gpuledger.formats.kubernetes.stand_in import MANAGED_LABEL
from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The rules for new pods."""

    dialects: Dialects
    scheduler_names: tuple[str, ...]
    """The first is what pods get that name none."""
    taint: tuple[str, str, str] | None = None
    """Key, value and effect of the taint that pods with cards tolerate."""
    models: CardModels | None = None
    """By which models' memory sums are written on containers; None: they are not."""
    queue_words: bool = False
    """Whether what names a queue in other words gets Kueue's label."""
    hiding: bool = True
    """Whether pods with cards get a resource by which autoscalers leave them alone."""
    overwriting: bool = False
    """Whether containers without cards get the variable by which NVIDIA's runtime gives them none."""


def filled_in(pod: Mapping[str, Any], rules: AdmissionRules) -> Json:
    """Return a new pod with what it left out."""
    requests = _readable(pod, rules.dialects)
    changed = deepcopy(dict(pod))
    if rules.overwriting and not is_of_daemon_set(pod):
        overwrite(changed, rules.dialects)
    if requests is not None and not any(requests):
        _sum_up(changed, rules)
        _hide(changed, rules, asks_for_cards=False)
        return changed
    metadata, spec = changed["metadata"], changed["spec"]
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_LABEL: "true"}
    if queue := _queue_of(pod, rules):
        metadata["labels"][ASKED_LABEL] = queue
    if spec.get("schedulerName") in (None, "", CLUSTERS_OWN):
        spec["schedulerName"] = rules.scheduler_names[0]
    if rules.taint:
        _tolerate(spec, *rules.taint)
    for (container, _), request in zip(containers(changed), requests or (), strict=False):
        if request and "gpus" in request.defaults:
            _count(container, request, rules.dialects)
    for container, _ in containers(changed):
        _prioritize(cast("Json", container), rules.dialects)
    _sum_up(changed, rules)
    _hide(changed, rules, asks_for_cards=True)
    return changed


def sums_patch(found: Mapping[str, Any], rules: AdmissionRules) -> list[Json]:
    """Return the changes to an object's templates of pods, as a JSON patch: the sums that containers ask for."""
    changes: list[Json] = []
    for keys, template in templates(found):
        changed = deepcopy(dict(template))
        _sum_up(changed, rules)
        path = "".join(f"/{key.replace('~', '~0').replace('/', '~1')}" for key in (*keys, "spec"))
        for field in ("containers", "initContainers"):
            pairs = zip(template["spec"].get(field) or (), changed["spec"].get(field) or (), strict=True)
            changes += [
                {"op": "add", "path": f"{path}/{field}/{index}/resources", "value": after["resources"]}
                for index, (before, after) in enumerate(pairs)
                if before != after
            ]
    return changes


def summing_review(review: Json, rules: AdmissionRules) -> Json:
    """Return the answer to an AdmissionReview of an object with templates of pods."""
    return _reviewed(review, sums_patch(review["request"]["object"], rules))


def queueing_review(review: Json, rules: AdmissionRules) -> Json:
    """Return the answer to an AdmissionReview of a new object that may name a queue in other words."""
    found = review["request"]["object"]
    queue = _queue_of(found, rules)
    labels = {**(found["metadata"].get("labels") or {}), ASKED_LABEL: queue}
    return _reviewed(review, [{"op": "add", "path": "/metadata/labels", "value": labels}] if queue else [])


def _reviewed(review: Json, changes: Sequence[Json]) -> Json:
    response: Json = {"uid": review["request"]["uid"], "allowed": True}
    if changes:
        patch = base64.b64encode(json.dumps(changes).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def check(pod: Mapping[str, Any], account: str, rules: AdmissionRules) -> tuple[str, ...]:
    """Return the warnings about a new pod that may be created. Raises BadInput for one that may not."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if account != OPERATOR and (sentence := forged(annotations)):
        raise BadInput(sentence)
    request = pod_request(pod, rules.dialects)
    if request is None:
        return tuple(each.text for each in pod_warnings(pod, rules.dialects))
    if scheduler_of(pod) not in rules.scheduler_names:
        raise BadInput(f"{ITS_SCHEDULER}{scheduler_of(pod)}{WRITE_SCHEDULER}{' or '.join(rules.scheduler_names)}")
    if bound_node(pod):
        raise BadInput(NAMES_ITS_NODE)
    return tuple(each.text for each in pod_warnings(pod, rules.dialects))


def _queue_of(found: Mapping[str, Any], rules: AdmissionRules) -> str:
    ours = ("", CLUSTERS_OWN, *rules.scheduler_names)
    return local_queue(found, rules.dialects, ours) if rules.queue_words else ""


def _readable(pod: Mapping[str, Any], dialects: Dialects) -> Sequence[ContainerRequest | None] | None:
    """Return the containers' requests, None for an unreadable pod, which is refused elsewhere."""
    try:
        return list(container_requests(pod, dialects))
    except (BadInput, KeyError):  # the API server itself refuses a container without a name
        return None


def _count(container: Mapping[str, Any], request: ContainerRequest, dialects: Dialects) -> None:
    """Say how many cards a container gets that did not say it. Limits and requests must be the same."""
    count = next(each.count for each in dialects.vocabularies if each.name == request.vocabulary)
    for part in ("limits", "requests"):
        amounts = container["resources"].get(part) or {}
        container["resources"][part] = {**amounts, count: str(request.demand.cards)} if count else amounts


def _sum_up(pod: Json, rules: AdmissionRules) -> None:
    """Write what the containers of a pod, or of a template, ask for in sum, in place of whatever stands there."""
    requests = _readable(pod, rules.dialects)
    is_ours = pod["spec"].get("schedulerName") in (None, "", CLUSTERS_OWN, *rules.scheduler_names)
    if rules.models is None or requests is None or not is_ours:
        return
    card_mib = rules.models.memory_of(pod) if any(requests) else 0
    for (container, _), request in zip(containers(pod), requests, strict=True):
        sums = container_sums(request, card_mib)
        resources = container.get("resources") or {}
        for part in ("limits", "requests"):
            given = resources.get(part) or {}
            if sums or any(name in given for name in SUMS):
                others = {name: amount for name, amount in given.items() if name not in SUMS}
                resources[part] = {**others, **{name: str(amount) for name, amount in sums.items()}}


def _hide(pod: Json, rules: AdmissionRules, *, asks_for_cards: bool) -> None:
    if rules.hiding:
        hide(pod, rules.scheduler_names, asks_for_cards=asks_for_cards, with_sums=rules.models is not None)


def _prioritize(container: Json, dialects: Dialects) -> None:
    """Set HAMi-core's variable to the priority that a container names, unless the container sets it itself."""
    limits = (container.get("resources") or {}).get("limits") or {}
    named = [limits[name] for name in dialects.priorities() if name in limits]
    variables = container.get("env") or []
    if not named or any(each.get("name") == TASK_PRIORITY for each in variables):
        return
    try:
        container["env"] = [*variables, {"name": TASK_PRIORITY, "value": str(whole_number(named[0]))}]
    except BadInput:  # the API server refuses a fraction of such a resource
        return


def _tolerate(spec: Json, key: str, value: str, effect: str) -> None:
    for each in spec.get("tolerations") or ():
        same_key = each.get("key") == key or (not each.get("key") and each.get("operator") == "Exists")
        same_value = each.get("operator") == "Exists" or (each.get("value") or "") == value
        if same_key and same_value and each.get("effect") in (None, "", effect):
            return
    toleration = {"key": key, "operator": "Equal", "value": value, "effect": effect}
    spec["tolerations"] = [*(spec.get("tolerations") or ()), toleration]


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
    hiding_for: Sequence[str] = (),
    scope: Json = NOT_IGNORED,
    *,
    overwriting: bool = False,
) -> Json:
    """Return the configuration of the webhooks that fill in new pods; with sums, also of the one for templates.

    With the names of our schedulers, also of the one that writes Kueue's label on objects that name a queue otherwise,
    and of the one that hides pods with ResourceClaims from autoscalers; other pods with cards are sent anyhow. With
    `overwriting`, all pods are sent that have a container without cards.
    """
    webhooks = [_webhook("pods", FILL_IN, [asking_pods(dialects)], address, scope)]
    if with_sums:
        summing = _webhook("sums", SUM_UP, summing_templates(dialects), address, scope)
        summing["rules"] = [{**each, "scope": "Namespaced"} for each in template_rules()]
        webhooks.append(summing)
    if queue_words_for:
        queueing = _webhook("queues", QUEUE_UP, queued_objects(dialects, queue_words_for), address, scope)
        queueing["rules"] = [{**each, "scope": "Namespaced"} for each in template_rules("CREATE")]
        webhooks.append(queueing)
    if hiding_for:
        webhooks.append(_webhook("hiding", FILL_IN, [brings_claims(hiding_for)], address, scope))
    if overwriting:
        webhooks.append(_webhook("env", FILL_IN, lacking_containers(dialects), address, scope))
    for webhook in webhooks:
        webhook["reinvocationPolicy"] = "IfNeeded"  # another webhook may add containers
    return _configuration("Mutating", webhooks, address)


def validating_webhooks(dialects: Dialects, address: WebhookAddress, scope: Json = NOT_IGNORED) -> Json:
    """Return the configuration of the webhooks that refuse pods. Our own annotation is protected everywhere."""
    others = not_from(OPERATOR)
    webhooks = [
        _webhook("requests", CHECK, [mentioning_pods(dialects)], address, scope),
        _webhook("devices", CHECK, [others, with_our_annotation()], address),
        _webhook("foreign-devices", CHECK, [others, with_foreign_annotations()], address, scope),
    ]
    return _configuration("Validating", webhooks, address)


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
