"""PodGroups, of whichever API: how many of their pods have to be bound at once, and whether they leave together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.formats.objects.gang import GroupWords, at
from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, GangName, PodGroup

Json = Mapping[str, Any]

DISRUPTION = ("spec", "disruptionMode")
NAME_LENGTH = 253
"""Characters of a PriorityClass's name, at most."""

TOGETHER = "PodGroup"
"""Kubernetes 1.36's word for what is a key, `all`, from 1.37 on."""


def name_of(group: Json, words: GroupWords) -> GangName:
    """Return which gang a PodGroup is about."""
    metadata = group.get("metadata") or {}
    return GangName(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), words.way)


def pod_group(group: Json, words: GroupWords) -> PodGroup:
    """Return what a PodGroup says. Raises BadInput for a minimum that can't be had.

    Without one, or with 1, no pod has to wait for another: they are no gang.
    """
    said = at(group, words.minimum_at)
    place = f"PodGroup {name_of(group, words)}: {'.'.join(words.minimum_at)}"
    try:
        minimum = 0 if said is None else whole_number(said)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None
    if minimum > MOST_MEMBERS:
        raise BadInput(f"{place}: {minimum} is more than {MOST_MEMBERS}")
    disruption, priority = at(group, DISRUPTION), at(group, ("spec", "priorityClassName"))
    return PodGroup(
        minimum=minimum if minimum > 1 else 0,
        leaves_whole=disruption == TOGETHER or (isinstance(disruption, Mapping) and "all" in disruption),
        priority_class=priority[:NAME_LENGTH] if isinstance(priority, str) else "",
    )
