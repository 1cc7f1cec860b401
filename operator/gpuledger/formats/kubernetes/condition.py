"""The condition GPUAllocated of a pod: whether it has its cards, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.model.json_object import Json

ALLOCATED = "GPUAllocated"

MESSAGE_LENGTH = 1024
"""As for an Event: more is for `kubectl gpuledger explain`."""


def condition_of(pod: Mapping[str, Any], kind: str) -> Json | None:
    """Return a condition of a pod, None if it has none of this type."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def shortened(message: str) -> str:
    """Return a message as it is stored."""
    return message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"


def allocated_condition(status: str, reason: str, message: str, now: str) -> Json:
    """Return the condition. `reason` is one word; `now` is RFC 3339."""
    return {
        "type": ALLOCATED,
        "status": status,
        "reason": reason,
        "message": shortened(message),
        "lastTransitionTime": now,
    }


def condition_reason(words: str) -> str:
    """Spell a reason as conditions do: `no-memory` is `NoMemory`."""
    return "".join(word.capitalize() for word in words.split("-"))
