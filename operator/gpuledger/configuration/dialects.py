"""From the settings to the words that pods and nodes may use, and to the API server's policies."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.configuration.settings import Settings, content_of
from gpuledger.formats.admission.policies import (
    LABELLED,
    NOT_IGNORED,
    agent_policies,
    as_yaml,
    mutating_policies,
    validating_policies,
)
from gpuledger.formats.admission.webhook import (
    HEADER,
    AdmissionRules,
    WebhookAddress,
    mutating_webhooks,
    validating_webhooks,
)
from gpuledger.formats.annotations import DEVICES_ANNOTATION, RELEASED_ANNOTATION, WOKEN_ANNOTATION
from gpuledger.formats.confirmation import CONFIRM_ANNOTATION
from gpuledger.formats.dialects.sums import CardModels
from gpuledger.formats.dialects.vendors import VendorRow, check_names, rows_in_use, vendor_rows
from gpuledger.formats.dialects.vocabulary import (
    HAMI,
    KOORDINATOR,
    VOLCANO,
    VOLCANO_CLASSIC,
    Dialects,
    NodeRegister,
    Vocabulary,
)
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect
from gpuledger.model.request import NVIDIAS_COUNT


def dialects_of(settings: Settings) -> Dialects:
    """Return the words that the settings name. Raises BadInput for a table of vendors that can't be used."""
    rows = rows_in_use(vendor_rows(_own_rows(settings.vendors_file), settings.vendors_file), settings.vendors)
    nvidia = (
        _named_by(settings, "resource", HAMI),
        _named_by(settings, "volcano", VOLCANO),
        replace(
            VOLCANO_CLASSIC,
            count=settings.volcano_classic_count,
            memory=settings.volcano_classic_memory,
            memory_unit_mib=settings.volcano_memory_unit_mib,
        ),
        *((KOORDINATOR,) if settings.koordinator_names else ()),
    )
    others = tuple(row.vocabulary() for row in rows)
    ours = {name for each in nvidia for name in each.resources}
    check_names("settings", [("NVIDIA", ours), *((each.name, each.resources) for each in others)])
    assignments = {
        (row.vendor, row.model): annotations
        for row in rows
        if (annotations := row.assignment_annotations()) is not None
    }
    key, _, value = settings.node_label.partition("=")
    label = (key, value) if key else None
    registers = tuple(_registers(settings, rows))
    counted = any(each.count == NVIDIAS_COUNT for each in nvidia)
    elsewhere = NVIDIAS_COUNT if label and settings.whole_gpus_elsewhere and counted else ""
    return Dialects(
        (*nvidia, *others),
        registers,
        assignments,
        label,
        elsewhere,
        settings.replicas_elsewhere == "as-gpus",
        settings.most_containers,
    )


def _named_by(settings: Settings, system: str, vocabulary: Vocabulary) -> Vocabulary:
    """Return a vocabulary with the names and the unit that the settings give it, and the defaults of all containers."""
    parts = ("count", "memory", "memory_percentage", "cores", "priority", "memory_unit_mib")
    named = {part: f"{system}_{part}" for part in parts} | {name: name for name in DEFAULTS}
    return replace(vocabulary, **{part: getattr(settings, of) for part, of in named.items() if hasattr(settings, of)})


DEFAULTS = ("default_gpus", "default_memory_mib", "default_cores")
"""What a container gets that does not say: options and fields of a vocabulary alike."""


def _registers(settings: Settings, rows: tuple[VendorRow, ...]) -> list[NodeRegister]:
    nvidia = [
        NodeRegister(REGISTER_ANNOTATION, "native", Dialect.NATIVE, settings.resource_count),
        NodeRegister("hami.io/node-nvidia-register", "hami", Dialect.HAMI, settings.resource_count),
        NodeRegister(
            "volcano.sh/node-vgpu-register",
            "volcano",
            Dialect.VOLCANO,
            settings.volcano_count,
            memory_unit_mib=settings.volcano_memory_unit_mib,
        ),
    ]
    others = {each.place: each for row in rows if (each := row.node_register()) is not None}
    return [*nvidia, *others.values()]


def _own_rows(file: str) -> str:
    return content_of(file, "vendors_file") if file else ""


OWN_ANNOTATIONS = (WOKEN_ANNOTATION, RELEASED_ANNOTATION, DEVICES_ANNOTATION, CONFIRM_ANNOTATION)
"""All that our own account patches on pods: to wake one, to fence one off, to correct its annotations, and to ask an
agent."""


EVERY_KIND = frozenset({"validating", "mutating", "agents"})


def policy_objects(settings: Settings, kinds: frozenset[str] = EVERY_KIND) -> list[Json]:
    """Return the policies of these kinds, "mutating", "validating" or "agents", with their bindings."""
    dialects, names, scope = dialects_of(settings), settings.scheduler_names, _scope(settings)
    found = []
    if "validating" in kinds:
        all_drivers = bool(settings.all_drivers_scheduler_name)
        found += validating_policies(
            dialects,
            names,
            OWN_ANNOTATIONS,
            kueue=settings.kueue,
            all_drivers=all_drivers,
            scope=scope,
            card_access_is=settings.card_access,
        )
    if "mutating" in kinds:
        models = card_models(settings)
        found += mutating_policies(
            dialects,
            names,
            settings.node_taint,
            models,
            settings.queue_words,
            settings.hide_from_autoscalers,
            scope,
            overwriting=settings.overwrite_env,
        )
    if "agents" in kinds:
        shown = (settings.volcano_memory, settings.volcano_cores) if settings.volcano_capacity else ()
        found += agent_policies([name for name in shown if name])
    return found


def policies(settings: Settings, kinds: frozenset[str]) -> str:
    """Return the same as YAML."""
    return as_yaml(policy_objects(settings, kinds))


def webhook_objects(settings: Settings, kinds: frozenset[str], address: WebhookAddress) -> list[Json]:
    """Return which pods are sent to the webhook, of these kinds."""
    dialects, scope = dialects_of(settings), _scope(settings)
    found = []
    if "validating" in kinds:
        found.append(validating_webhooks(dialects, address, scope))
    if "mutating" in kinds:
        queues, hiding = queue_words_for(settings), settings.scheduler_names if settings.hide_from_autoscalers else ()
        with_sums, overwriting = bool(settings.sum_models), settings.overwrite_env
        found.append(mutating_webhooks(dialects, address, with_sums, queues, hiding, scope, overwriting=overwriting))
    return found


def webhook_configuration(settings: Settings, kinds: frozenset[str], address: WebhookAddress) -> str:
    """Return the same as YAML."""
    return as_yaml(webhook_objects(settings, kinds, address), HEADER)


def _scope(settings: Settings) -> Json:
    """Return in which namespaces pods are filled in and judged."""
    return LABELLED if settings.admission_namespaces == "labelled" else NOT_IGNORED


def admission_rules(settings: Settings) -> AdmissionRules:
    """Return what the webhook holds new pods to."""
    label, _, effect = settings.node_taint.partition(":")
    key, _, value = label.partition("=")
    taint = (key, value, effect) if key else None
    return AdmissionRules(
        dialects_of(settings),
        settings.scheduler_names,
        taint,
        card_models(settings),
        settings.queue_words,
        settings.hide_from_autoscalers,
        settings.overwrite_env,
    )


def queue_words_for(settings: Settings) -> tuple[str, ...]:
    """Return the schedulers of whose pods the queues in other words count, none if they do not."""
    return settings.scheduler_names if settings.queue_words else ()


def card_models(settings: Settings) -> CardModels | None:
    """Return by which models' memory sums are written on containers, None if they are not."""
    named = [each.rpartition("=") for each in settings.sum_models]
    models = tuple((name, int(memory_mib)) for name, _, memory_mib in named)
    return CardModels(models, settings.sum_by == "largest") if models else None
