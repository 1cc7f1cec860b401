"""PodDisruptionBudgets: how many pods of a kind may be evicted now.

Source: policy/v1 of Kubernetes. Of several budgets that cover one pod, each has to allow its eviction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.model.errors import BadInput

LONGEST_SELECTOR = 16 * 1024
"""Characters: a request with a longer one is near what servers take, and budgets are read by the dozen."""

_OPERATORS = {"In": "in", "NotIn": "notin"}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many more evictions a budget allows, and of which pods of its namespace."""

    namespace: str
    name: str
    allowed: int
    selector: str | None
    """A label selector as a list takes it; empty for all pods, None for none of them."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def budget(found: Mapping[str, Any]) -> Budget:
    """Return what a PodDisruptionBudget says. One without a status yet allows nothing, as for the API server.

    Raises BadInput for a selector that is too long for a request.
    """
    metadata, status = found["metadata"], found.get("status") or {}
    selector = (found.get("spec") or {}).get("selector")
    words = None if selector is None else label_selector(selector)
    if words is not None and len(words) > LONGEST_SELECTOR:
        raise BadInput(f"the selector of {metadata['name']} has {len(words):,} characters: shorten it")
    return Budget(
        namespace=metadata["namespace"],
        name=metadata["name"],
        allowed=int(status.get("disruptionsAllowed") or 0),
        selector=words,
    )


def label_selector(selector: Mapping[str, Any]) -> str:
    """Return a LabelSelector in the words of a list's `labelSelector`."""
    parts = [f"{name}={value}" for name, value in (selector.get("matchLabels") or {}).items()]
    for wanted in selector.get("matchExpressions") or ():
        name, operator = wanted["key"], wanted["operator"]
        if operator in _OPERATORS:
            parts.append(f"{name} {_OPERATORS[operator]} ({','.join(wanted.get('values') or ())})")
        else:
            parts.append(name if operator == "Exists" else f"!{name}")
    return ",".join(parts)
