"""Queues that are named in Volcano's or KAI's words, taken for Kueue's LocalQueues of the same names. Pure.

Sources: Volcano 1.15 (GroupName + "/queue-name" of its scheduling API on pods and their owners, QueueNameKey of its
batch API), KAI-Scheduler 0.17 (docs/queues, docs/migrationguides).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from gpuledger.formats.dialects.request import container_requests
from gpuledger.formats.dialects.sums import templates
from gpuledger.formats.dialects.unsupported import Place, unsupported_fields
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.workload import ASKED_LABEL
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping

LABEL_PLACES: Final[tuple[Place, ...]] = ("annotations", "labels")

QUEUE_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
"""What a LocalQueue's name looks like that a label can hold."""


def queue_label_names(place: Place) -> tuple[str, ...]:
    """Return the annotations or labels that name a queue; the first of them counts."""
    return tuple(word.name for word in unsupported_fields() if word.queue and place in word.places)


def local_queue(found: JsonMapping, dialects: Dialects, schedulers: Collection[str]) -> str:
    """Return the LocalQueue that a pod, or an object with templates of pods, names in other words.

    Empty for one whose pods ask for no cards or are of other schedulers, and for one with Kueue's own label.
    """
    asking = [pod for _, pod in templates(found) if _asks(pod, dialects, schedulers)]
    holders = [found, *asking]
    if not asking or any(ASKED_LABEL in _at(holder, "labels") for holder in holders):
        return ""
    return next((name for holder in holders for name in _names(holder) if re.fullmatch(QUEUE_NAME, name)), "")


def _asks(pod: JsonMapping, dialects: Dialects, schedulers: Collection[str]) -> bool:
    try:
        asks = any(container_requests(pod, dialects))
    except (BadInput, KeyError):  # its pods will be refused
        return False
    return asks and (pod["spec"].get("schedulerName") or "") in schedulers


def _names(holder: JsonMapping) -> Iterator[str]:
    for place in LABEL_PLACES:
        given = _at(holder, place)
        yield from (str(given[word]) for word in queue_label_names(place) if word in given)


def _at(holder: JsonMapping, place: Place) -> JsonMapping:
    return (holder.get("metadata") or {}).get(place) or {}
