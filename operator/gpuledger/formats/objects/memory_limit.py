"""A pod's wish for a limit above its share: what it may use of a card while nobody else needs it.

The share is what the ledger counts, and what the pod is guaranteed; the limit is counted nowhere. Ours is one
annotation: MiB of each card, of all containers (`16000`) or of some (`main=16000,tools=4000`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuledger.model.errors import BadInput

MEMORY_LIMIT_ANNOTATION = "gpuledger.dev/memory-limit"

ALL = ""
"""In place of a container's name: those that are not named."""

LONGEST_TEXT = 4096

_PART = re.compile(r"(?:([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=)?([1-9][0-9]{0,8})")


def memory_limits(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits that a pod wishes, in MiB of each card: name of a container, or `ALL` -> limit.

    Empty if it wishes none. Raises BadInput.
    """
    text = str((pod["metadata"].get("annotations") or {}).get(MEMORY_LIMIT_ANNOTATION, ""))
    if not text.strip():
        return {}
    parts = text.replace(" ", "").split(",") if len(text) <= LONGEST_TEXT else [""]
    found = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or (match[1] or ALL) in found:
            raise BadInput(
                f"{MEMORY_LIMIT_ANNOTATION}: {text[:64]!r} is neither MiB, such as 16000, nor such as "
                "main=16000,tools=4000 with each container once"
            )
        found[match[1] or ALL] = int(match[2])
    return found


def limit_of(container: str, limits: Mapping[str, int], share_mib: int, card_mib: int) -> int:
    """Return a container's limit on a card: at least its share, and at most what the card has."""
    return max(share_mib, min(limits.get(container, limits.get(ALL, share_mib)), card_mib))
