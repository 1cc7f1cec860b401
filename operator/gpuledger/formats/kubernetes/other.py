"""ResourceQuotas and PodDisruptionBudgets, as far as GPUs depend on them.

Kubernetes counts `requests.` of extended resources, and can't multiply the cards of a container by the memory that it
requests of each. Keys that begin with `limits.` it stores and leaves alone: these are HAMi's (`pkg/device/quota.go` of
2.10), and counted by gpuledger only. A dot and a part of a model's name behind such a key restrict it to cards of that
model.

A PodDisruptionBudget (policy/v1) says how many of its pods may be evicted now. Where several cover one pod, each has to
allow its eviction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuledger.formats.dialects.vocabulary import Dialects, Vocabulary
from gpuledger.formats.kubernetes.quantity import whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import Counted, QuotaLimit, dashed
from gpuledger.model.json_object import JsonMapping

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


PREFIX = "limits."

MOST_LIMITS = 64
"""Of one ResourceQuota: each is looked at for each pod of its namespace."""

SCOPED = "it has scopes, and shares are counted for all pods of a namespace alike: take them off, or the keys"


class _Key(NamedTuple):
    counted: Counted
    unit: int
    """How many MiB, percent or slots one is."""
    vendor: str
    model: str


def limits_of(quota: JsonMapping, dialects: Dialects) -> tuple[list[QuotaLimit], list[str]]:
    """Return the limits of a ResourceQuota, and sentences on those that can't be used. Other keys are not ours."""
    spec = quota.get("spec") or {}
    name = str((quota.get("metadata") or {}).get("name") or "")
    found: list[QuotaLimit] = []
    problems: list[str] = []
    keys = _keys(dialects)
    for key, said in sorted((spec.get("hard") or {}).items()):
        known = _read(key, keys)
        if known is None:
            continue
        if len(found) + len(problems) >= MOST_LIMITS:
            problems.append(f"{key}: it is one key more than {MOST_LIMITS} that are read")
            break
        if spec.get("scopes") or spec.get("scopeSelector"):
            problems.append(f"{key}: {SCOPED}")
            continue
        try:
            most = whole_number(said) * known.unit
        except BadInput as error:
            problems.append(f"{key}: {error}")
            continue
        found.append(QuotaLimit(name, key, known.counted, most, known.vendor, known.model, known.unit))
    return found, problems


def used_of(quota: JsonMapping, limits: Iterable[QuotaLimit]) -> dict[str, int]:
    """Return what the status of a ResourceQuota says is used of these limits, by their keys, as far as it does."""
    said = (quota.get("status") or {}).get("used") or {}
    found: dict[str, int] = {}
    for limit in limits:
        with suppress(BadInput):
            found[limit.key] = whole_number(said.get(limit.key))
    return found


def _read(key: str, keys: Mapping[str, _Key]) -> _Key | None:
    """Return what a key limits, None if it is not ours; behind a resource's name, a model can follow."""
    name = key.removeprefix(PREFIX)
    if name == key:
        return None
    if name in keys:
        return keys[name]
    beginnings = (known for known in keys if name.startswith(f"{known}."))
    known = max(beginnings, key=len, default=None)
    if known is None:
        return None
    return keys[known]._replace(model=dashed(name.removeprefix(f"{known}.")))


def _keys(dialects: Dialects) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for vocabulary in dialects.vocabularies:
        for name, counted, unit in _counted(vocabulary):
            if name:
                found.setdefault(name, _Key(counted, unit, vocabulary.vendor, dashed(vocabulary.model)))
    return found


def _counted(words: Vocabulary) -> Iterator[tuple[str, Counted, int]]:
    """Yield the names of resources whose amounts can be added up, and how much one is."""
    if words.totals:  # memory in bytes, and cores that stand for cards
        return
    if not words.count_is_cores:
        yield words.count, Counted.SLOTS, 1
    if not words.memory_in_bytes:
        yield words.memory, Counted.MEMORY, words.memory_unit_mib
    if words.cores_in_percent or words.cores_of_card == ALL_CORES:
        yield words.cores, Counted.CORES, 1
