"""What this release would have in a cluster, from the settings."""

from __future__ import annotations

import yaml

from gpuledger.controller.admission import policies, webhook_configuration
from gpuledger.controller.vocabularies import words_of
from gpuledger.doctor.facts import Release
from gpuledger.formats.scheduler_config import scheduler_configuration
from gpuledger.formats.webhook_configuration import WebhookAddress
from gpuledger.settings import Settings

POLICY_KINDS = frozenset(("mutating", "validating", "agents"))
WEBHOOK_KINDS = frozenset(("mutating", "validating"))


def release_for(settings: Settings) -> Release:
    """Return what goes with these settings. Raises BadInput for a table of vendors that can't be used."""
    words = words_of(settings)
    return Release(
        words=words,
        scheduler_names=settings.scheduler_names,
        policies=list(yaml.safe_load_all(policies(settings, POLICY_KINDS))),
        webhooks=list(yaml.safe_load_all(webhook_configuration(settings, WEBHOOK_KINDS, WebhookAddress()))),
        scheduler_config=scheduler_configuration(
            settings.scheduler_names,
            words,
            settings.extender_url,
            settings.extender_timeout_s,
            leader_elect=True,
            nodes_offered=settings.nodes_offered,
        ),
        preemption=settings.preemption,
        topology="topology" in (settings.node_policy, settings.card_policy),
        with_cdi=settings.delivery == "cdi",
        webhook_port=settings.webhook_port,
    )
