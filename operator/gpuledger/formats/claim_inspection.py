"""Shows how gpuledger reads ResourceClaims, their templates, and the pods that bring them: for `gpuledger inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gpuledger.formats.resource_claims.claims import MOST_CLAIMS, ClaimObjects, ClaimSpec, claim_names, read_spec
from gpuledger.formats.resource_claims.demands import Entry, check_selectors, claim_alternatives
from gpuledger.model.card import ALL_CORES, CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.request import Demand, Lifetime

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"

WORDS = "claim"
"""The vocabulary of claims, beside those of containers' resources."""


def claim_shown(document: Mapping[str, Any], name: str, claims: ClaimObjects) -> Json:
    """Return what a claim or a template asks for, as entries like those of containers."""
    spec = document.get("spec") or {}
    try:
        found = read_spec((spec.get("spec") or {}) if document.get("kind") == TEMPLATE else spec)
        entries, notes = _entries(name, found, claims)
    except BadInput as error:
        return {"containers": [], "problems": [str(error)]}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return {"containers": [], "problems": [f"it is no claim of resource.k8s.io/v1: {error!r}"]}
    return {"containers": entries, "notes": notes, "problems": []}


def claims_of_pod_shown(pod: Mapping[str, Any], claims: ClaimObjects) -> tuple[list[Json], list[str], list[str]]:
    """Return what the claims of a pod ask for, as entries; with notes, and problems."""
    entries: list[Json] = []
    notes: list[str] = []
    problems: list[str] = []
    namespace = str((pod.get("metadata") or {}).get("namespace") or "default")
    for name, object_name, template in islice(_names(pod), MOST_CLAIMS):
        stored = claims.claim(namespace, object_name) if object_name else None
        spec = stored.spec if stored else claims.template(namespace, template) if template else None
        if spec is None:
            source = f"{TEMPLATE} {template}" if template else f"{CLAIM} {object_name}"
            notes.append(f"claim {name}: what it asks for says {source}, which was not given")
            continue
        try:
            own, more = _entries(name, spec, claims)
        except BadInput as error:
            problems.append(str(error))
            continue
        entries += own
        notes += more
    return entries, notes, problems


def _names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    try:
        yield from claim_names(pod)
    except (TypeError, AttributeError):  # no list of claims at all
        return


def _entries(name: str, spec: ClaimSpec, claims: ClaimObjects) -> tuple[list[Json], list[str]]:
    """Return what a claim prefers, and what else it takes. Raises BadInput."""
    check_selectors([spec])
    first, *others = claim_alternatives(name, 0, spec, claims, CardFilter(), Lifetime.MAIN)
    notes = [f"claim {name}: or {' and '.join(map(_in_words, way))}" for way in others]
    return [_entry(entry) for entry in first], notes


def _in_words(entry: Entry) -> str:
    demand = entry.demand
    memory = f"{demand.memory_percent} %" if demand.memory_mib is None else f"{demand.memory_mib} MiB"
    cards = "every card" if demand.every_card else f"{demand.cards} card{'s' * (demand.cards != 1)}"
    return f"{entry.name.partition('/')[2]}: {cards} with {memory}"


def _entry(entry: Entry) -> Json:
    claim, _, request = entry.name.partition("/")
    head = {"name": entry.name, "claim": claim, "request": _asked(entry.demand), "requestOfClaim": request}
    return {**head, "lifetime": entry.demand.lifetime.value, "readable": True}


def _asked(demand: Demand) -> Json:
    memory: Json = {"percentage": demand.memory_percent} if demand.memory_mib is None else {}
    tests: Sequence[str] = [test.text for test in demand.wanted.tests]
    return {
        "gpus": demand.cards,
        **({"everyCard": True} if demand.every_card else {}),
        **(memory or {"memoryMiB": demand.memory_mib}),
        "cores": ALL_CORES if demand.whole else demand.cores,
        "exclusive": demand.exclusive,
        "resource": demand.resource,
        "words": WORDS,
        "vendor": demand.wanted.vendor,
        **({"selectors": tests} if tests else {}),
        "defaults": [],
    }
