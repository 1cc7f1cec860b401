"""The labels by which pods say that they are bound together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, Gang, GangName

Json = Mapping[str, Any]

GANG_LABEL = "gpuledger.dev/gang"
"""On pods: the name of their gang, which is one of their namespace."""

MINIMUM_LABEL = "gpuledger.dev/gang-minimum"
"""On pods of a gang: how many of its members have to be bound at once."""


def gang_name_of(pod: Json) -> GangName | None:
    """Return the name of a pod's gang, None if it has none. A minimum that can't be had does not matter."""
    metadata = pod.get("metadata") or {}
    name = (metadata.get("labels") or {}).get(GANG_LABEL)
    return GangName(str(metadata.get("namespace") or ""), str(name)) if name else None


def gang_of(pod: Json) -> Gang | None:
    """Return the gang of a pod, None if it has none. Raises BadInput for a minimum that can't be had."""
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {}
    name, said = labels.get(GANG_LABEL), labels.get(MINIMUM_LABEL)
    if not name:
        if said is not None:
            raise BadInput(f"label {MINIMUM_LABEL} says how many members a gang needs: name it by {GANG_LABEL}")
        return None
    if said is None:
        raise BadInput(f"label {GANG_LABEL} needs {MINIMUM_LABEL} beside it: how many members have to start together")
    try:
        minimum = whole_number(said)
    except BadInput as error:
        raise BadInput(f"label {MINIMUM_LABEL}: {error}") from None
    if not 1 <= minimum <= MOST_MEMBERS:
        raise BadInput(f"label {MINIMUM_LABEL}: {minimum} is not between 1 and {MOST_MEMBERS}")
    return Gang(GangName(str(metadata.get("namespace") or ""), str(name)), minimum)
