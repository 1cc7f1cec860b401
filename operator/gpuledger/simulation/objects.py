"""Nodes, pods and ResourceClaims from files, in order, with what of them can't be used, and the outcome of each pod."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.inspection import shape_problems, words_of_group
from gpuledger.formats.kubernetes.constraints import NodeRules, PodRules, refused_by_host, refused_by_rules
from gpuledger.formats.kubernetes.gang import GroupWords, name_of, pod_group
from gpuledger.formats.kubernetes.node import NVIDIA, NodeFacts, node_facts
from gpuledger.formats.kubernetes.templates import MOST_PODS, PodTemplate, pod_templates, read_documents
from gpuledger.formats.resource_claims.claims import (
    DEVICE_CLASS,
    SERVES_CLAIMS_ANNOTATION,
    ListedClaims,
    read_claim,
    read_class,
    read_template,
)
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, PodGroup
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.node import Dialect
from gpuledger.model.refusal import Reason
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.model.share import Share
from gpuledger.reports.tables import listed

CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"

OURS: Json = {"metadata": {"name": DEVICE_CLASS}}
"""The class that comes with an installation."""


@dataclass(slots=True)
class ClaimFiles:
    """The objects that files hold."""

    found: dict[str, list[Json]] = field(default_factory=lambda: {CLAIM: [], TEMPLATE: [], CLASS: []})

    def takes(self, document: Mapping[str, Any], default_namespace: str) -> bool:
        """Take in an object; return whether it is one of these. Raises BadInput for one that can't be read."""
        kind = str(document.get("kind"))
        if kind not in self.found:
            return False
        metadata = dict(document["metadata"])
        if kind != CLASS:
            metadata.setdefault("namespace", default_namespace)
        space = f"{metadata['namespace']}/" if kind != CLASS else ""
        metadata = {"uid": f"{kind} {space}{metadata['name']}", "resourceVersion": "1", **metadata}
        each = {**document, "metadata": metadata}
        try:
            _READERS[kind](each)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"it is no {kind} of resource.k8s.io/v1: {error!r}") from None
        self.found[kind].append(each)
        return True

    def listed(self, with_class: bool) -> ListedClaims:
        """Return them as one; `with_class`: with our DeviceClass, unless a file has another one of its name."""
        classes = [*([OURS] if with_class else []), *self.found[CLASS]]
        return ListedClaims(self.found[CLAIM], self.found[TEMPLATE], classes)


def claims_in(documents: Iterable[object]) -> ListedClaims:
    """Return what documents, or Lists of them, say of claims, and our DeviceClass. What is none of that counts not."""
    found = ClaimFiles()
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for each in items if isinstance(items, list) else [document]:
            if isinstance(each, dict) and isinstance(each.get("metadata"), dict) and each["metadata"].get("name"):
                with suppress(BadInput):
                    found.takes(each, "default")
    return found.listed(with_class=True)


_READERS: dict[str, Callable[[Json], object]] = {CLAIM: read_claim, TEMPLATE: read_template, CLASS: read_class}


SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files that are read in a folder."""

STANDARD_INPUT = "-"

DEFAULT = "default"
"""The namespace of what names none."""

SKIPPED = "skipped: neither a Node nor a Pod, nor anything that creates or limits pods"


@dataclass(frozen=True, slots=True)
class Remark:
    """What there is to say of an object: where it is, which it is, and what was assumed or is wrong."""

    file: str
    object: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.object}: {self.text}" if self.object else f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class Given:
    """An object, and the file that it is from."""

    file: str
    content: Json

    @property
    def name(self) -> str:
        """Return kind and name, as people write them."""
        metadata = self.content["metadata"]
        space = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        return f"{self.content['kind']} {space}{metadata['name']}"


@dataclass(slots=True)
class InputObjects:
    """What files hold: nodes and pods in their order, what was passed over, and what can't be read."""

    nodes: list[Given] = field(default_factory=list)
    pods: list[Given] = field(default_factory=list)
    groups: dict[GangName, PodGroup] = field(default_factory=dict)
    quotas: list[Given] = field(default_factory=list)
    """ResourceQuotas, whatever they limit."""
    claims: ClaimFiles = field(default_factory=ClaimFiles)
    """What ResourceClaims ask for, and of which classes."""
    notes: list[Remark] = field(default_factory=list)
    problems: list[Remark] = field(default_factory=list)


def in_few_lines(remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield remarks as sentences; what is to be said of many objects of a file, once, with the first of them."""
    objects: dict[tuple[str, str], list[str]] = {}  # (file, text) -> the objects of which it holds
    for each in remarks:
        objects.setdefault((each.file, each.text), []).append(each.object)
    yield from (str(Remark(file, listed(named), text)) for (file, text), named in objects.items())


def read_objects(paths: Iterable[str]) -> InputObjects:
    """Read files and folders, `-` for standard input; what can't be read is a problem, and the rest goes on."""
    found = InputObjects()
    for path in paths:
        for file, text in _texts(path, found):
            try:
                documents = read_documents(text, "it")
            except BadInput as error:
                found.problems.append(Remark(file, "", str(error)))
                continue
            for document in documents:
                take_document(document, file, found)
    return found


def _texts(path: str, found: InputObjects) -> Iterator[tuple[str, str]]:
    if path == STANDARD_INPUT:
        yield "standard input", sys.stdin.read()
        return
    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(file for file in files[0].rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            found.problems.append(Remark(path, "", f"the folder has no file that ends with {', '.join(SUFFIXES)}"))
    for file in files:
        try:
            yield str(file), file.read_text(encoding="utf-8")
        except OSError as error:
            found.problems.append(Remark(str(file), "", f"it can't be read: {error.strerror}"))
        except UnicodeDecodeError as error:
            found.problems.append(Remark(str(file), "", f"it is no text: {error}"))


def take_document(document: object, file: str, found: InputObjects) -> None:
    """Sort one document in: a Node, a Pod, something that makes pods, or a List of these."""
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        for each in document["items"]:
            take_document(_with_kind(each, document.get("kind")), file, found)
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        found.problems.append(Remark(file, "", "there is an object without a kind: this is no Kubernetes object"))
        return
    kind, name = document["kind"], _name_of(document) or _generated_name(document, found)
    if kind in ("Node", "Pod"):
        _take_one(document, file, found)
        return
    if name and _takes_beside(document, kind, file, found):
        return
    try:
        templates = pod_templates(document)
    except BadInput as error:
        found.problems.append(Remark(file, f"{kind} {name}", str(error)))
        return
    if not templates:
        found.notes.append(Remark(file, f"{kind} {name}".strip(), SKIPPED))
        return
    if not name:
        found.problems.append(Remark(file, kind, "metadata.name: it is missing"))
        return
    if sum(template.copies for template in templates) > MOST_PODS:
        found.problems.append(Remark(file, f"{kind} {name}", f"it makes more than {MOST_PODS} pods"))
        return
    space = (document.get("metadata") or {}).get("namespace")
    numbers = count()
    for template in templates:
        _take_pods(template, name, space, numbers, file, found)


def _takes_beside(document: Json, kind: str, file: str, found: InputObjects) -> bool:
    """Take in what says something of pods and makes none; return whether it was that."""
    if kind == "ResourceQuota":
        take_quota(document, file, found)
        return True
    try:
        if found.claims.takes(document, DEFAULT):
            return True
    except BadInput as error:
        found.problems.append(Remark(file, f"{kind} {_name_of(document)}", str(error)))
        return True
    words = words_of_group(document) if kind == "PodGroup" else None
    if words is not None:
        take_group(document, words, file, found)
    return words is not None


def take_quota(quota: Json, file: str, found: InputObjects) -> None:
    """Take in what a ResourceQuota says."""
    metadata, spec = quota["metadata"], quota.get("spec") or {}
    space = metadata.get("namespace") or DEFAULT
    if not isinstance(space, str) or not isinstance(spec, dict) or not isinstance(spec.get("hard") or {}, dict):
        found.problems.append(Remark(file, f"ResourceQuota {metadata['name']}", "spec.hard: it is no map of limits"))
        return
    found.quotas.append(Given(file, {**quota, "metadata": {**metadata, "namespace": space}}))


def take_group(group: Json, words: GroupWords, file: str, found: InputObjects) -> None:
    """Take in what a PodGroup says."""
    group = {**group, "metadata": {**group["metadata"], "namespace": group["metadata"].get("namespace") or DEFAULT}}
    name = name_of(group, words)
    try:
        found.groups[name] = pod_group(group, words)
    except BadInput as error:
        found.groups[name] = PodGroup(0, problem=str(error))
        found.problems.append(Remark(file, f"PodGroup {name}", str(error)))


def _take_pods(
    template: PodTemplate, name: str, space: str | None, numbers: Iterator[int], file: str, found: InputObjects
) -> None:
    for _ in range(template.copies):
        own = {"name": f"{name}-{next(numbers)}", **({"namespace": space} if space else {})}
        _take_one({**template.pod, "kind": "Pod", "metadata": {**template.pod["metadata"], **own}}, file, found)


def _take_one(document: Json, file: str, found: InputObjects) -> None:
    problems = shape_problems(document)
    name = _name_of(document) or (_generated_name(document, found) if document["kind"] == "Pod" else "")
    if not problems and not name:
        problems = ["metadata.name: it is missing"]
    if problems:
        found.problems += [Remark(file, f"{document['kind']} {_name_of(document)}".strip(), text) for text in problems]
        return
    if document["kind"] == "Node":
        found.nodes.append(Given(file, document))
        return
    metadata = {"namespace": DEFAULT, **document["metadata"], "name": name}
    metadata.setdefault("uid", f"{metadata['namespace']}/{metadata['name']}")
    found.pods.append(Given(file, {**document, "metadata": metadata}))


def _with_kind(item: object, kind_of_list: object) -> object:
    """Return an item of a list with its kind: the API server leaves that out in a NodeList, PodList and their like."""
    if not isinstance(item, dict) or "kind" in item or not isinstance(kind_of_list, str):
        return item
    kind = kind_of_list.removesuffix("List")
    return {**item, "kind": kind} if kind else item


def _generated_name(document: Mapping[str, Any], found: InputObjects) -> str:
    """Return a name as the API server makes it of generateName, an empty text if there is none."""
    metadata = document.get("metadata")
    begin = metadata.get("generateName") if isinstance(metadata, dict) else None
    return f"{begin}{len(found.pods):05}" if isinstance(begin, str) and begin else ""


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def refused(request: PodRequest, rules: PodRules, node: NodeRules, free: HostAmounts | None) -> tuple[str, str] | None:
    """Return why a node does not take a pod, whatever its cards, as reason and sentence; None if it may."""
    if request.joined_node not in ("", node.name):
        text = f"claim {request.joined[0].name} of the pod is allocated on node {request.joined_node}"
        return Reason.CLAIM_ELSEWHERE.value, text
    return refused_by_rules(rules, node) or refused_by_host(request.host, free)


def as_if_served(node: JsonMapping, facts: NodeFacts, dialects: Dialects) -> NodeFacts:
    """Return what would matter of a node if the device plugins answered that have listed its cards."""
    served = {register.served for register, _ in facts.registers}
    if any(register.dialect is Dialect.NATIVE for register, _ in facts.registers):
        served |= {*dialects.counts(of=NVIDIA)}
    status, metadata = node.get("status") or {}, node["metadata"]
    allocatable = {**(status.get("allocatable") or {}), **dict.fromkeys(served, "1")}
    annotations = {**(metadata.get("annotations") or {}), SERVES_CLAIMS_ANNOTATION: "true"}
    answering = {"metadata": {**metadata, "annotations": annotations}, "status": {**status, "allocatable": allocatable}}
    return node_facts({**node, **answering}, dialects)


class PodStatus(StrEnum):
    """What became of a pod."""

    PLACED = "placed"
    BOUND = "bound"
    """It was there before, with the cards that its annotation names."""
    NO_ROOM = "no-room"
    NO_GPU = "no-gpu"
    """It asks for none: kube-scheduler places it, and nothing is said of it here."""


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """Where a pod is placed, or why it is not: reason and sentence -> nodes for which it holds."""

    pod: str
    status: PodStatus
    node_name: str = ""
    shares: tuple[Share, ...] = ()
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SceneCards:
    """The cards of a ledger, for who reads annotations."""

    ledger: Ledger

    def card(self, uuid: str) -> Card | None:
        """Return the card of this UUID."""
        entry = self.ledger.entry(uuid)
        return entry.card if entry else None

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """Return a node's cards."""
        return [entry.card for entry in self.ledger.entries_of_node(node_name)]


def copied(card: Card, node_name: str) -> Card:
    """Return a card like this one on another node, with a UUID of its own."""

    def new(uuid: str) -> str:
        return f"GPU-{uuid5(NAMESPACE_DNS, f'{uuid}.{node_name}')}"

    links = {new(peer): score for peer, score in card.links.items()}
    return replace(card, uuid=new(card.uuid), node_name=node_name, links=links, healthy=True, fault="")
