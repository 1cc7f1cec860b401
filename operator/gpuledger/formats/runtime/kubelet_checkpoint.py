"""The kubelet's own record of which container has which slots, and what its device plugin answered for it.

Source: k8s.io/kubernetes `pkg/kubelet/cm/devicemanager/checkpoint`, in this form since 1.20. It is the kubelet's own
file and no API: its readers must be able to do without.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpuledger.model.errors import BadInput

CHECKPOINT_FILE = "kubelet_internal_checkpoint"
"""Its name in the kubelet's directory of device plugins."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The slots of one resource that one container has."""

    pod_uid: str
    container: str
    resource: str
    slots: frozenset[str]
    answer: bytes
    """The plugin's answer, a ContainerAllocateResponse, which the kubelet passes to the runtime."""


def read_checkpoint(text: bytes) -> tuple[CheckpointEntry, ...]:
    """Return the entries. Raises BadInput for a file of another form."""
    try:
        entries = orjson.loads(text)["Data"]["PodDeviceEntries"] or ()
        return tuple(_entry(entry) for entry in entries)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"the kubelet's {CHECKPOINT_FILE} has another form than expected: {error!r}") from error


def _entry(entry: Mapping[str, Any]) -> CheckpointEntry:
    slots = entry["DeviceIDs"]  # NUMA node -> slots; a plain list before 1.20
    listed = slots.values() if isinstance(slots, dict) else [slots]
    return CheckpointEntry(
        pod_uid=str(entry["PodUID"]),
        container=str(entry["ContainerName"]),
        resource=str(entry["ResourceName"]),
        slots=frozenset(str(slot) for several in listed for slot in several or ()),
        answer=base64.b64decode(entry["AllocResp"] or "", validate=True),
    )
