"""Fields of a pod that gpuledger does not act on: words of other systems, typos, and virtual machines.

The words are data, unsupported_fields.yaml. Nothing here refuses a pod: its owner gets a warning, and the pod gets its
cards by the rest of its request.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import resources
from itertools import islice
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from gpuledger.formats.annotations import ASKED_LABEL, ON_FAILURE_ANNOTATION, wait_on_failure_s
from gpuledger.formats.dialects import selection
from gpuledger.formats.dialects.request import containers, pod_request
from gpuledger.formats.dialects.vendors import vendor_rows
from gpuledger.formats.dialects.vocabulary import (
    HAMI,
    HIDING,
    KOORDINATOR,
    SUMS,
    VOLCANO,
    VOLCANO_CLASSIC,
    Dialects,
    Vocabulary,
)
from gpuledger.model.errors import BadInput, nearest
from gpuledger.model.json_object import JsonMapping

MOST_NAMES = 512
"""Annotations, labels, and resources of one pod that are looked at, of each: honest pods have fewer."""

MOST_WARNINGS = 8
"""Of one pod; how many more there are is said."""

NEAR = 0.8
"""Similarity, of 1, from which on a name is taken for a misspelling of another."""

LONGEST_NAME = 96
"""Longer names are no misspellings, and comparing them takes long."""

SANDBOX = "GPU shares do not reach into virtual machines: see docs/limits.md, Virtual machines"

KUBEVIRT_LABEL = ("kubevirt.io", "virt-launcher")

KATA = "kata"
"""How the names of Kata Containers' runtime classes begin."""

OWN_DOMAIN = "gpuledger.dev"

OWN_ANNOTATIONS = ("devices", "released", "woken", "isolation", "memory-limit", "move", "on-card-failure")
"""Under our domain, beside the choice of cards. docs/reference/names.md says what they are."""


class WarningKind(StrEnum):
    """The subject of a warning: the label of its metric."""

    REQUEST = "request"
    """Words of ours that contradict each other, or of which one has no effect."""
    FOREIGN = "foreign"
    """A word that another system acts on."""
    UNKNOWN = "unknown"
    """An unknown name under a domain of ours."""
    SANDBOX = "sandbox"
    """A virtual machine, which no share reaches."""


@dataclass(frozen=True, slots=True)
class PodWarning:
    """One sentence about a pod that is taken all the same."""

    kind: WarningKind
    text: str
    name: str = field(default="", compare=False)
    """The word that it is about, uncut; empty if it is about no single one."""


Place = Literal["annotations", "labels", "resources"]
SINGULAR: Mapping[Place, str] = {"annotations": "annotation", "labels": "label", "resources": "resource"}


class UnsupportedField(BaseModel):
    """A row of the table. The keys are explained at the head of unsupported_fields.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    domain: str = ""
    places: frozenset[Place]
    system: str
    means: str = ""
    here: str = ""
    asks: bool = False
    queue: bool = False
    silent: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> UnsupportedField:
        if bool(self.name) == bool(self.domain) or not (self.silent or (self.means and self.here)):
            raise ValueError("a word has a name or a domain; and means and here, unless it is silent")
        return self

    def is_meant_by(self, name: str) -> bool:
        """Return whether a name is this word, or one of its names."""
        if self.domain:
            domain = name.partition("/")[0] if "/" in name else ""
            return domain == self.domain or domain.endswith(f".{self.domain}")
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    @property
    def answer(self) -> str:
        """Return the warning about the field, without its name."""
        return f"has no effect. For {self.system}, it {self.means}; here: {self.here}"


def pod_warnings(pod: JsonMapping, dialects: Dialects) -> tuple[PodWarning, ...]:
    """Return the warnings for the owner of a pod, whether its request can be read or not. Bounded work."""
    try:
        request = pod_request(pod, dialects)
    except BadInput:  # that is said elsewhere, and refuses the pod
        request = None
    own = (PodWarning(WarningKind.REQUEST, text) for text in (request.warnings if request else ()))
    return (*own, *_unreadable(pod), *passed_over(pod, dialects))


def _unreadable(pod: JsonMapping) -> Iterator[PodWarning]:
    try:
        wait_on_failure_s(pod)
    except BadInput as error:
        yield PodWarning(WarningKind.REQUEST, str(error), ON_FAILURE_ANNOTATION)


def passed_over(pod: JsonMapping, dialects: Dialects) -> tuple[PodWarning, ...]:
    """Return warnings about a pod's fields without effect. None for a pod that asks for no GPU in any words."""
    names = _names(pod)
    if not _asks(names, dialects):
        return ()
    found = list(islice(_found(pod, names, dialects), MOST_WARNINGS + 1))
    if len(found) > MOST_WARNINGS:
        found[MOST_WARNINGS:] = [PodWarning(WarningKind.UNKNOWN, f"more than {MOST_WARNINGS} names have no effect")]
    return tuple(found)


@functools.cache
def unsupported_fields() -> tuple[UnsupportedField, ...]:
    """Return the table."""
    file = resources.files("gpuledger.formats.dialects") / "unsupported_fields.yaml"
    rows = yaml.safe_load(file.read_text())["words"]
    return tuple(UnsupportedField.model_validate({"places": row.pop("in"), **row}) for row in rows)


@functools.cache
def served_domains() -> tuple[str, ...]:
    """Return the domains of the names of resources that are known without any settings."""
    known = (HAMI, VOLCANO, VOLCANO_CLASSIC, KOORDINATOR, *(row.vocabulary() for row in vendor_rows()))
    return tuple(dict.fromkeys(name.partition("/")[0] for each in known for name in each.resources))


def _names(pod: JsonMapping) -> dict[Place, tuple[str, ...]]:
    metadata = pod.get("metadata") or {}
    asked: dict[str, None] = {}
    for container, _ in containers(pod):
        given = container.get("resources") or {}
        asked |= dict.fromkeys((*(given.get("limits") or ()), *(given.get("requests") or ())))
        if len(asked) > MOST_NAMES:
            break
    return {
        "resources": tuple(islice(asked, MOST_NAMES)),
        "annotations": tuple(islice(metadata.get("annotations") or (), MOST_NAMES)),
        "labels": tuple(islice(metadata.get("labels") or (), MOST_NAMES)),
    }


def _asks(names: Mapping[Place, tuple[str, ...]], dialects: Dialects) -> bool:
    domains = _vocabulary(dialects.vocabularies).domains
    if any(name.partition("/")[0] in domains for name in names["resources"]):
        return True
    known = (_word(name, "annotations") for name in names["annotations"])
    if any(word is not None and word.asks for word in known):
        return True
    words = (_word(name, "resources") for name in names["resources"] if "/" in name)
    return any(word is not None for word in words)


def _found(pod: JsonMapping, names: Mapping[Place, tuple[str, ...]], dialects: Dialects) -> Iterator[PodWarning]:
    yield from _sandbox(pod)
    own = _vocabulary(dialects.vocabularies)
    # Admission writes sums only for containers that ask for cards; by themselves they are a user's mistake.
    sums = SUMS if any(name in own.resources for name in names["resources"]) else ()
    for place, each in names.items():
        for name in sorted(each):
            if name in own.resources or name in own.annotations or name in sums or name == HIDING:
                continue
            word = _word(name, place)
            if word is not None:
                if not word.silent and not (word.queue and _goes_there(pod, place, name)):
                    text = f"{SINGULAR[place]} {name[:LONGEST_NAME]} {word.answer}"
                    yield PodWarning(WarningKind.FOREIGN, text, name)
            elif place != "labels" and name.partition("/")[0] in own.domains:
                yield from _unknown(name, place, own)


def _goes_there(pod: JsonMapping, place: str, name: str) -> bool:
    """Return whether a pod is in the LocalQueue that a word names as its queue: then the word means what happens."""
    metadata = pod["metadata"]
    return bool(metadata[place][name] == (metadata.get("labels") or {}).get(ASKED_LABEL))


def _unknown(name: str, place: Place, own: _Own) -> Iterator[PodWarning]:
    """Warn of an unknown name; of annotations only where one of ours is near, for others have theirs, too."""
    domain, _, rest = name.partition("/")
    if domain == "nvidia.com" and rest != rest.lower():  # KubeVirt's, with the name of the card's model
        return
    near = _nearest(name, own.resources if place == "resources" else own.annotations)
    if near or place == "resources" or domain == OWN_DOMAIN:
        meant = f": did you mean {near}?" if near else f": nothing under {domain} is called so here"
        yield PodWarning(WarningKind.UNKNOWN, f"{SINGULAR[place]} {name[:LONGEST_NAME]} is not known{meant}", name)


def _sandbox(pod: JsonMapping) -> Iterator[PodWarning]:
    runtime = (pod.get("spec") or {}).get("runtimeClassName")
    labels = (pod.get("metadata") or {}).get("labels") or {}
    if isinstance(runtime, str) and runtime.startswith(KATA):
        yield PodWarning(WarningKind.SANDBOX, f"runtimeClassName {runtime[:LONGEST_NAME]}: {SANDBOX}")
    if labels.get(KUBEVIRT_LABEL[0]) == KUBEVIRT_LABEL[1]:
        yield PodWarning(WarningKind.SANDBOX, f"label {'='.join(KUBEVIRT_LABEL)}: {SANDBOX}")


@dataclass(frozen=True, slots=True)
class _Own:
    """The names that are ours."""

    resources: tuple[str, ...]
    annotations: tuple[str, ...]
    domains: frozenset[str]


@functools.lru_cache(maxsize=8)
def _vocabulary(vocabularies: tuple[Vocabulary, ...]) -> _Own:
    asked = tuple(dict.fromkeys(name for each in vocabularies for name in each.resources))
    chosen = [
        *selection.USE_MODEL,
        *selection.AVOID_MODEL,
        *selection.USE_UUID,
        *selection.AVOID_UUID,
        *selection.NUMA_BIND,
        *selection.MODE,
        *selection.NODE_POLICY,
        *selection.CARD_POLICY,
        *(f"{OWN_DOMAIN}/{name}" for name in OWN_ANNOTATIONS),
    ]
    # The vendors' own selectors: use_uuid, avoid_uuid, and what else there is of these.
    selectors = [each.name for each in fields(Vocabulary) if each.name.startswith(("use_", "avoid_"))]
    chosen += [getattr(each, name) for each in vocabularies for name in selectors if getattr(each, name)]
    domains = {name.partition("/")[0] for name in (*asked, *chosen)}
    return _Own(asked, tuple(dict.fromkeys(chosen)), frozenset(domains))


@functools.lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str:
    """Return the known name under the same domain that a name is a misspelling of; empty if there is none."""
    domain, _, rest = name.partition("/")
    found = nearest(rest, (each.partition("/")[2] for each in known if each.startswith(f"{domain}/")), NEAR)
    return f"{domain}/{found}" if found else ""


@functools.lru_cache(maxsize=4096)
def _word(name: str, place: Place) -> UnsupportedField | None:
    """Return the first row that means a name."""
    return next((each for each in unsupported_fields() if place in each.places and each.is_meant_by(name)), None)
