"""From the settings to the API server's policies."""

from __future__ import annotations

from gpuledger.controller.vocabularies import words_of
from gpuledger.formats.admission_policies import as_yaml, mutating_policies, validating_policies
from gpuledger.formats.devices import DEVICES_ANNOTATION
from gpuledger.settings import Settings
from gpuledger.workflows.release_pod import RELEASED_ANNOTATION
from gpuledger.workflows.wake_up import WOKEN_ANNOTATION

OWN_ANNOTATIONS = (WOKEN_ANNOTATION, RELEASED_ANNOTATION, DEVICES_ANNOTATION)
"""All that our own account patches on pods: to wake one, to fence one off, and to mend what it is told."""


def policies(settings: Settings, kinds: frozenset[str]) -> str:
    """Return the policies of these kinds, "mutating" or "validating", as YAML."""
    words, names = words_of(settings), settings.scheduler_names
    found = []
    if "validating" in kinds:
        found += validating_policies(words, names, OWN_ANNOTATIONS)
    if "mutating" in kinds:
        found += mutating_policies(words, names, settings.node_taint)
    return as_yaml(found)
