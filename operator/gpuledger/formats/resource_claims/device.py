"""A card as a device of a ResourceSlice: its name, what selectors can see of it, and what it has."""

from __future__ import annotations

import re
from hashlib import sha256

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def device_name(uuid: str) -> str:
    """Return the name of a card's device: its UUID in lower case, or a digest of it if that is no DNS label."""
    name = uuid.lower()
    return name if _LABEL.fullmatch(name) else f"gpu-{sha256(uuid.encode()).hexdigest()[:20]}"
