"""From the settings to the API server's policies, and to the webhook that stands in for them."""

from __future__ import annotations

from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.policies import agent_policies, as_yaml, mutating_policies, validating_policies
from gpuledger.formats.admission.review import AdmissionRules
from gpuledger.formats.admission.webhook_configuration import (
    WebhookAddress,
    configurations_as_yaml,
    mutating_webhooks,
    validating_webhooks,
)
from gpuledger.formats.dialects.sums import CardModels
from gpuledger.formats.objects.devices import DEVICES_ANNOTATION
from gpuledger.formats.objects.patched import RELEASED_ANNOTATION, WOKEN_ANNOTATION

OWN_ANNOTATIONS = (WOKEN_ANNOTATION, RELEASED_ANNOTATION, DEVICES_ANNOTATION)
"""All that our own account patches on pods: to wake one, to fence one off, and to correct its annotations."""


def policies(settings: Settings, kinds: frozenset[str]) -> str:
    """Return the policies of these kinds, "mutating", "validating" or "agents", as YAML."""
    dialects, names = dialects_of(settings), settings.scheduler_names
    found = []
    if "validating" in kinds:
        all_drivers = bool(settings.all_drivers_scheduler_name)
        found += validating_policies(dialects, names, OWN_ANNOTATIONS, kueue=settings.kueue, all_drivers=all_drivers)
    if "mutating" in kinds:
        models = card_models(settings)
        found += mutating_policies(dialects, names, settings.node_taint, models, settings.queue_words)
    if "agents" in kinds:
        shown = (settings.volcano_memory, settings.volcano_cores) if settings.volcano_capacity else ()
        found += agent_policies([name for name in shown if name])
    return as_yaml(found)


def webhook_configuration(settings: Settings, kinds: frozenset[str], address: WebhookAddress) -> str:
    """Return which pods are sent to the webhook, of these kinds, as YAML."""
    dialects = dialects_of(settings)
    found = []
    if "validating" in kinds:
        found.append(validating_webhooks(dialects, address))
    if "mutating" in kinds:
        found.append(mutating_webhooks(dialects, address, bool(settings.sum_models), queue_words_for(settings)))
    return configurations_as_yaml(found)


def admission_rules(settings: Settings) -> AdmissionRules:
    """Return what the webhook holds new pods to."""
    label, _, effect = settings.node_taint.partition(":")
    key, _, value = label.partition("=")
    taint = (key, value, effect) if key else None
    return AdmissionRules(
        dialects_of(settings), settings.scheduler_names, taint, card_models(settings), settings.queue_words
    )


def queue_words_for(settings: Settings) -> tuple[str, ...]:
    """Return the schedulers of whose pods the queues in other words count, none if they do not."""
    return settings.scheduler_names if settings.queue_words else ()


def card_models(settings: Settings) -> CardModels | None:
    """Return by which models' memory sums are written on containers, None if they are not."""
    named = [each.rpartition("=") for each in settings.sum_models]
    models = tuple((name, int(memory_mib)) for name, _, memory_mib in named)
    return CardModels(models, settings.sum_by == "largest") if models else None
