"""The objects that this release would install in a cluster, from the settings."""

from __future__ import annotations

from gpuledger import __version__
from gpuledger.configuration.admission import OWN_ANNOTATIONS, card_models, queue_words_for
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.facts import Release
from gpuledger.formats.admission.policies import agent_policies, mutating_policies, validating_policies
from gpuledger.formats.admission.webhook_configuration import WebhookAddress, mutating_webhooks, validating_webhooks
from gpuledger.formats.scheduler.scheduler_config import scheduler_configuration


def release_for(settings: Settings) -> Release:
    """Return what goes with these settings. Raises BadInput for a table of vendors that can't be used."""
    dialects, names = dialects_of(settings), settings.scheduler_names
    nowhere = WebhookAddress()
    return Release(
        dialects=dialects,
        scheduler_names=names,
        version=__version__,
        policies=[
            *validating_policies(dialects, names, OWN_ANNOTATIONS),
            *mutating_policies(dialects, names, settings.node_taint, card_models(settings), settings.queue_words),
            *agent_policies(),
        ],
        webhooks=[
            mutating_webhooks(dialects, nowhere, bool(settings.sum_models), queue_words_for(settings)),
            validating_webhooks(dialects, nowhere),
        ],
        scheduler_config=scheduler_configuration(
            names,
            dialects,
            settings.extender_url,
            settings.extender_timeout_s,
            leader_elect=True,
            nodes_offered=settings.nodes_offered,
            native_gangs=settings.native_gangs,
            resource_claims=settings.resource_claims,
        ),
        preemption=settings.preemption,
        topology="topology" in settings.policies,
        with_cdi=settings.delivery == "cdi",
        native_gangs=settings.native_gangs,
        resource_claims=settings.resource_claims,
        webhook_port=settings.webhook_port,
    )
