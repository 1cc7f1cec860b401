"""Files of Kubernetes objects (YAML with several documents, or JSON), and the pods that their objects make.

A mapping with a list `containers` is a pod's spec, whatever the names around it are. So kinds that are not known here
are understood as well, from a Deployment to a RayCluster. Sources of the shapes that were looked at: Kubernetes'
workloads, JobSet, LeaderWorkerSet, Volcano's Job, Kubeflow's training operator, KubeRay, Argo Rollouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
import yaml

from gpuledger.formats.dialects.vendors import UNREADABLE
from gpuledger.formats.kubernetes.gang import GROUP_SIZE_ANNOTATION, JOB_SET_LABEL
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json, at

MAX_DEPTH, MAX_VALUES, MAX_TEMPLATES = 16, 20_000, 100
"""How far an object is searched."""

MOST_PODS = 10_000
"""Of one template."""

COPIES = ("replicas", "parallelism", "numOfHosts")
"""Words, in a mapping around a template, for how often it is used; one inside the other multiplies."""

WORKER, LEADER = "workerTemplate", "leaderTemplate"
"""LeaderWorkerSet's: `size` beside them counts the leader, too. Their pods say it in an annotation."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One template: where it is in the object, its pod without kind and name, and how many pods there are of it."""

    path: str
    pod: Json
    copies: int = 1


def pod_templates(document: Mapping[str, Any]) -> list[PodTemplate]:
    """Return the templates of an object, none if it makes no pods. Raises BadInput for a bad number of copies."""
    found = list(_search(document))
    if document.get("kind") == "JobSet":
        name = str(at(document, ("metadata", "name")) or "")
        return [replace(each, pod=_labelled(each.pod, {JOB_SET_LABEL: name})) for each in found]
    return found


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A place outside pod templates that names resources: the object's controller makes pods of it, mostly."""

    path: str
    amounts: Json
    """Resource -> the amount as it is written. Empty where a resource is named and no amount stands with it."""


def resources_elsewhere(document: Mapping[str, Any], resources: Collection[str]) -> list[Elsewhere]:
    """Return all places where an object names resources outside pod templates, by the words that pods use."""
    found: list[Elsewhere] = []
    for path, values in _mappings(document):
        if amounts := {name: amount for name, amount in values.items() if name in resources}:
            found.append(Elsewhere(path, amounts))
        found += [Elsewhere(f"{path}.{key}", {}) for key, value in values.items() if _names_one(value, resources)]
    return found


def _names_one(value: object, resources: Collection[str]) -> bool:
    named = value if isinstance(value, list) else [value]
    return any(isinstance(each, str) and each in resources for each in named[:MAX_TEMPLATES])


def _search(document: Mapping[str, Any]) -> Iterator[PodTemplate]:
    left = [MAX_VALUES, MAX_TEMPLATES]
    for key, value in document.items():
        if key not in ("metadata", "status"):
            yield from _within(value, str(key), {}, (), left)


def _within(
    value: object, path: str, parent: Json, numbers: tuple[tuple[str, object], ...], left: list[int], depth: int = 0
) -> Iterator[PodTemplate]:
    left[0] -= 1
    if depth > MAX_DEPTH or min(left) <= 0:
        return
    if isinstance(value, list):
        for position, each in enumerate(value):
            yield from _within(each, f"{path}[{position}]", parent, numbers, left, depth + 1)
    elif isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            left[1] -= 1
            yield _template(value, path, parent, numbers)
            return
        numbers += tuple((f"{path}.{word}", value[word]) for word in COPIES if value.get(word) is not None)
        for key, each in value.items():
            size = _workers(value, path) if key == WORKER else ()
            if key in (WORKER, LEADER) and type(value.get("size")) is int and isinstance(each, dict):
                each = _with_size(each, value["size"])
            yield from _within(each, f"{path}.{key}", value, numbers + size, left, depth + 1)


def _labelled(pod: Json, labels: Json) -> Json:
    """Return a template's pod with labels that its controller gives to it."""
    metadata = pod["metadata"]
    own = metadata.get("labels")
    return {**pod, "metadata": {**metadata, "labels": {**(own if isinstance(own, dict) else {}), **labels}}}


def _with_size(template: Json, size: int) -> Json:
    """Return a template of a LeaderWorkerSet, of whose groups each has so many pods, with what its pods say of that."""
    metadata = template.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    annotations = metadata.get("annotations")
    said = {**(annotations if isinstance(annotations, dict) else {}), GROUP_SIZE_ANNOTATION: str(size)}
    return {**template, "metadata": {**metadata, "annotations": said}}


def _template(spec: Json, path: str, parent: Json, numbers: tuple[tuple[str, object], ...]) -> PodTemplate:
    copies = 1
    for where, number in numbers:
        if type(number) is not int or not 0 <= number <= MOST_PODS:
            raise BadInput(f"{where}: {str(number)[:40]!r} is no number from 0 to {MOST_PODS}")
        copies *= number
    if copies > MOST_PODS:
        raise BadInput(f"{path}: {copies} pods are more than {MOST_PODS}")
    metadata = parent.get("metadata") if path.endswith(".spec") else None
    pod = {"metadata": metadata if isinstance(metadata, dict) else {}, "spec": spec}
    return PodTemplate(path.removesuffix(".spec"), pod, copies)


def _workers(group: Json, path: str) -> tuple[tuple[str, object], ...]:
    """Return how many workers a group of LeaderWorkerSet has: not a leader that has a template of its own."""
    size = group.get("size")
    if size is None:
        return ()
    return ((f"{path}.size", size - 1 if type(size) is int and LEADER in group else size),)


def _mappings(document: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yield the mappings outside pod templates and metadata, with their paths."""
    waiting = [(key, value, 0) for key, value in document.items() if key not in ("metadata", "status")]
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        path, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            continue
        if isinstance(value, list):
            waiting += [(f"{path}[{number}]", each, depth + 1) for number, each in enumerate(value[:MAX_VALUES])]
        elif isinstance(value, dict) and not isinstance(value.get("containers"), list):
            yield path, value
            waiting += [(f"{path}.{key}", each, depth + 1) for key, each in value.items()]


def read_documents(text: str, where: str) -> list[object]:
    """Return the documents of a text. Raises BadInput if it is neither YAML nor JSON, or has none."""
    if text.lstrip()[:1] == "{":  # a cluster's objects are megabytes, and YAML in Python reads some 100 kB a second
        try:
            return [orjson.loads(text)]
        except orjson.JSONDecodeError:
            pass  # YAML can begin like that, too
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except UNREADABLE as error:
        raise BadInput(f"{where} can't be read as YAML: {error}") from None
    if not documents:
        raise BadInput(f"{where} is empty: give the YAML of a Node or a Pod")
    return documents


class _Loader(yaml.SafeLoader):
    """Keeps timestamps as text, as Kubernetes has them, and joins Unicode that JSON may escape in two halves."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
