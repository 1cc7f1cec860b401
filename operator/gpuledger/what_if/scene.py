"""A scene: nodes, pods and ResourceClaims, as files have them, and what becomes of each pod."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

from gpuledger.formats.custom_resource.reservation import KIND as RESERVATION
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.inspection import shape_problems, words_of_group
from gpuledger.formats.kubernetes.gang import GroupWords, name_of, pod_group
from gpuledger.formats.kubernetes.node import NVIDIA, NodeFacts, node_facts
from gpuledger.formats.kubernetes.pod import bound_node
from gpuledger.formats.kubernetes.templates import MOST_PODS, PodTemplate, pod_templates, read_documents
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, SERVES_CLAIMS_ANNOTATION, ListedClaims
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, PodGroup
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.node import Dialect
from gpuledger.model.share import Share, StoredCard
from gpuledger.reports.tables import listed

OURS: Json = {"metadata": {"name": DEVICE_CLASS}}
"""The class that comes with an installation."""

ADDED_AS = {"ResourceClaim": "claims", "ResourceClaimTemplate": "templates", "DeviceClass": "classes"}
"""Kind of the objects of resource.k8s.io -> the argument by which ListedClaims takes them."""


def our_claims() -> ListedClaims:
    """Return no claims, and our DeviceClass, unless one of its name is added."""
    return ListedClaims(classes=[OURS])


def take_claim(document: Mapping[str, Any], found: ListedClaims) -> bool:
    """Add a claim, a template or a class; return whether it is one. Raises BadInput for one that can't be read."""
    kind = str(document.get("kind"))
    if kind not in ADDED_AS:
        return False
    metadata = {**({} if kind == "DeviceClass" else {"namespace": DEFAULT}), **document["metadata"]}
    space = f"{metadata['namespace']}/" if kind != "DeviceClass" else ""
    metadata = {"uid": f"{kind} {space}{metadata['name']}", "resourceVersion": "1", **metadata}
    try:
        found.add(**{ADDED_AS[kind]: [{**document, "metadata": metadata}]})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"it is no {kind} of resource.k8s.io/v1: {error!r}") from None
    return True


def claims_in(documents: Iterable[object]) -> ListedClaims:
    """Return what documents, or Lists of them, say of claims, and our DeviceClass. What is none of that counts not."""
    found = our_claims()
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for each in items if isinstance(items, list) else [document]:
            if isinstance(each, dict) and isinstance(each.get("metadata"), dict) and each["metadata"].get("name"):
                with suppress(BadInput):
                    take_claim(each, found)
    return found


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
class Scene:
    """What a question is about, in the order in which it is taken into account, and what of it can't be read."""

    nodes: list[Given] = field(default_factory=list)
    cards: dict[str, list[StoredCard]] = field(default_factory=dict)
    """Node of a cluster -> its cards in the ledger. Nodes from files have the cards that their registers list."""
    running: list[Given] = field(default_factory=list)
    """Bound pods whose cards the ledger has, if they have any: they count with CPU and memory."""
    entered: list[Given] = field(default_factory=list)
    """Pods that are not bound yet, and whose cards the ledger has, or that ask for none."""
    pods: list[Given] = field(default_factory=list)
    groups: dict[GangName, PodGroup] = field(default_factory=dict)
    """What says of gangs how many members they need, where these don't."""
    quotas: list[Given] = field(default_factory=list)
    """ResourceQuotas, whatever they limit."""
    claims: ListedClaims = field(default_factory=our_claims)
    """ResourceClaims, templates and DeviceClasses."""
    zone_labels: Sequence[str] = ()
    """Labels of nodes that are close to each other, the narrowest first."""
    notes: list[Remark] = field(default_factory=list)
    """What was passed over."""
    problems: list[Remark] = field(default_factory=list)


def in_few_lines(remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield remarks as sentences; what is to be said of many objects of a file, once, with the first of them."""
    objects: dict[tuple[str, str], list[str]] = {}  # (file, text) -> the objects of which it holds
    for each in remarks:
        objects.setdefault((each.file, each.text), []).append(each.object)
    yield from (str(Remark(file, listed(named), text)) for (file, text), named in objects.items())


def read_files(paths: Iterable[str], found: Scene) -> None:
    """Add what files and folders hold, `-` for standard input; of the pods, those that are bound already come first.

    What can't be read is a problem, and the rest goes on.
    """
    first = len(found.pods)
    for path in paths:
        for file, text in _texts(path, found):
            try:
                documents = read_documents(text, "it")
            except BadInput as error:
                found.problems.append(Remark(file, "", str(error)))
                continue
            for document in documents:
                take_document(document, file, found)
    found.pods[first:] = sorted(found.pods[first:], key=lambda pod: not bound_node(pod.content))


def _texts(path: str, found: Scene) -> Iterator[tuple[str, str]]:
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


def take_document(document: object, file: str, found: Scene) -> None:
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
    if not templates or kind == RESERVATION:  # whose template is of pods that others make
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


def _takes_beside(document: Json, kind: str, file: str, found: Scene) -> bool:
    """Take in what says something of pods and makes none; return whether it was that."""
    if kind == "ResourceQuota":
        take_quota(document, file, found)
        return True
    try:
        if take_claim(document, found.claims):
            return True
    except BadInput as error:
        found.problems.append(Remark(file, f"{kind} {_name_of(document)}", str(error)))
        return True
    words = words_of_group(document)
    if words is not None:
        take_group(document, words, file, found)
    return words is not None and not words.makes_pods


def take_quota(quota: Json, file: str, found: Scene) -> None:
    """Take in what a ResourceQuota says."""
    metadata, spec = quota["metadata"], quota.get("spec") or {}
    space = metadata.get("namespace") or DEFAULT
    if not isinstance(space, str) or not isinstance(spec, dict) or not isinstance(spec.get("hard") or {}, dict):
        found.problems.append(Remark(file, f"ResourceQuota {metadata['name']}", "spec.hard: it is no map of limits"))
        return
    found.quotas.append(Given(file, {**quota, "kind": "ResourceQuota", "metadata": {**metadata, "namespace": space}}))


def take_group(group: Json, words: GroupWords, file: str, found: Scene) -> None:
    """Take in what a PodGroup says."""
    group = {**group, "metadata": {**group["metadata"], "namespace": group["metadata"].get("namespace") or DEFAULT}}
    name = name_of(group, words)
    try:
        found.groups[name] = pod_group(group, words)
    except BadInput as error:
        found.groups[name] = PodGroup(0, problem=str(error))
        found.problems.append(Remark(file, f"{words.kind} {name}", str(error)))


def _take_pods(
    template: PodTemplate, name: str, space: str | None, numbers: Iterator[int], file: str, found: Scene
) -> None:
    for _ in range(template.copies):
        own = {"name": f"{name}-{next(numbers)}", **({"namespace": space} if space else {})}
        _take_one({**template.pod, "kind": "Pod", "metadata": {**template.pod["metadata"], **own}}, file, found)


def _take_one(document: Json, file: str, found: Scene) -> None:
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


def _generated_name(document: Mapping[str, Any], found: Scene) -> str:
    """Return a name as the API server makes it of generateName, an empty text if there is none."""
    metadata = document.get("metadata")
    begin = metadata.get("generateName") if isinstance(metadata, dict) else None
    return f"{begin}{len(found.pods):05}" if isinstance(begin, str) and begin else ""


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


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
    indexes: Mapping[str, int] = field(default_factory=dict)
    """UUID of a card of the node -> its place there."""
    is_on_added_node: bool = False
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
