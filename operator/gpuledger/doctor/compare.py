"""Two objects that should say the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DEFAULTS = {"matchPolicy": "Equivalent", "scope": "*", "priority": 0}
"""Key -> what the API server fills in. Empty lists and mappings, which it adds too, never count."""


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which an object is not as wanted. What the API server fills in by itself is none."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in wanted | found:
            inner = f"{path}.{key}" if path else str(key)
            if key not in found:
                if not _is_filled_in(key, wanted[key]):
                    yield inner
            elif key not in wanted:
                if not _is_filled_in(key, found[key]):
                    yield inner
            else:
                yield from differences(wanted[key], found[key], inner)
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield path
        else:
            for position, (one, other) in enumerate(zip(wanted, found, strict=True)):
                yield from differences(one, other, f"{path}[{position}]")
    elif wanted != found:
        yield path


def _is_filled_in(key: str, value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_filled_in(*item) for item in value.items())
    return value in (None, []) or (key in DEFAULTS and DEFAULTS[key] == value)
