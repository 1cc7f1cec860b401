"""Shows how gpuledger reads Kubernetes objects, gangs and ResourceClaims included: for `gpuledger inspect`.

The result is JSON. Problems are sentences; an object with a problem would not be taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuledger.formats.dialects.request import ContainerRequest, container_requests, containers
from gpuledger.formats.dialects.selection import TOPOLOGY, Selection, selection
from gpuledger.formats.dialects.unsupported import PodWarning, passed_over
from gpuledger.formats.dialects.vendors import device_config, node_configs
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.gang import (
    OF_WAY,
    PODGROUPS,
    GroupWords,
    described,
    gang_of,
    pod_group,
    pod_groups_named,
)
from gpuledger.formats.kubernetes.node import NodeFacts, has_label, node_facts, read_registers
from gpuledger.formats.kubernetes.pod import scheduler_of
from gpuledger.formats.kubernetes.templates import Elsewhere, pod_templates, resources_elsewhere
from gpuledger.formats.resource_claims.claims import (
    MOST_CLAIMS,
    NO_CLAIM_OBJECTS,
    ClaimObjects,
    ClaimSpec,
    claim_names,
    read_spec,
)
from gpuledger.formats.resource_claims.demands import Entry, check_selectors, claim_alternatives
from gpuledger.model.card import ALL_CORES, Card, CardFilter, topology_of
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import Gang
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect, NodeConfig
from gpuledger.model.request import Demand, Lifetime

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"

WORDS = "claim"
"""The vocabulary of claims, beside those of containers' resources."""


def claim_shown(document: Mapping[str, Any], name: str, claims: ClaimObjects) -> Json:
    """Return the requests of a claim or a template, as entries like those of containers."""
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
    """Return the requests of a pod's claims, as entries; with notes, and problems."""
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
    """Return the preferred entries of a claim, and notes on its alternatives. Raises BadInput."""
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
    head = {"name": entry.name, "claim": claim, "request": _asked_of_claim(entry.demand), "requestOfClaim": request}
    return {**head, "lifetime": entry.demand.lifetime.value, "readable": True}


def _asked_of_claim(demand: Demand) -> Json:
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


def gang_shown(gang: Gang) -> Json:
    """Return a pod's gang as JSON: with the number that the pod says, or where it stands."""
    words = OF_WAY.get(gang.name.way)
    return {"name": gang.name.name, **({"podGroup": words.api_group} if words else {"minimum": gang.minimum})}


def gang_notes(pod: Mapping[str, Any], gang: Gang) -> list[str]:
    """Return a sentence on a pod's gang, and one on each PodGroup that does not count."""
    name = gang.name
    if name.way in OF_WAY:
        return [f"gang {name.name}: {described(name)} says how many of its pods start together"]
    return [
        f"gang {name.name}: {gang.minimum} of its pods start together, or none",
        *(f"{described(other)} does not count beside {described(name)}" for other in pod_groups_named(pod)),
    ]


def words_of_group(document: Mapping[str, Any]) -> GroupWords | None:
    """Return which kind of PodGroup an object is, None for one of an API that is not known."""
    api_group, _, version = str(document.get("apiVersion")).partition("/")
    known = (each for each in PODGROUPS if each.api_group == api_group and version in each.versions)
    return next((each for each in known if each.kind == document.get("kind")), None)


def pod_group_shown(document: Mapping[str, Any], words: GroupWords) -> Json:
    """Return a PodGroup's minimum, as a note."""
    try:
        group = pod_group(document, words)
    except BadInput as error:
        return {"problems": [str(error)]}
    unused = _unused_card_words(document)
    if not group.minimum:
        note = "its pods are placed one by one: it does not say that several start together"
        return {"minimum": 0, "notes": [note, *unused], "problems": []}
    note = f"{group.minimum} of its pods start together, or none"
    return {"minimum": group.minimum, "leavesWhole": group.leaves_whole, "notes": [note, *unused], "problems": []}


CARD_WORDS = {
    "volcano.sh/card.request": "what the pods ask for counts, in their limits",
    "volcano.sh/card.quota": "limits of a team, also by model, are in a ResourceQuota (docs/quota.md) or in Kueue",
}
"""Annotations of Volcano's plugin capacity-card that are not on pods -> what to know instead."""


def _unused_card_words(document: Mapping[str, Any]) -> list[str]:
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return []
    return [f"annotation {name} has no effect: {here}" for name, here in CARD_WORDS.items() if name in annotations]


NO_LINKS = "no links between its cards are known: the policy topology chooses as binpack does here"
VOLCANO_JOB = (
    "the pods of a Volcano Job come into being only when Volcano's scheduler has let its PodGroup in (phase Inqueue); "
    "without that scheduler nothing comes: use Kubernetes' own Job"
)
TOPOLOGY_NEEDS_LINKS = "on nodes of which no links between cards are known, topology chooses as binpack does"

SAYS_NOTHING = "says nothing of GPUs: give a Node, a Pod, or something that makes pods"

DEVICE_CONFIG_KEYS = ("config.json", "device-config.yaml")
"""Keys of the ConfigMaps that HAMi and Volcano read."""

Name = Annotated[str, Field(min_length=1)]
Quantity = str | int | float


class _Object(BaseModel):
    model_config = ConfigDict(strict=True)


class _Metadata(_Object):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Resources(_Object):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class _Container(_Object):
    name: Name
    resources: _Resources | None = None
    restartPolicy: str | None = None  # noqa: N815 - Kubernetes' spelling


class _PodSpec(_Object):
    containers: list[_Container]
    initContainers: list[_Container] | None = None  # noqa: N815
    schedulerName: str | None = None  # noqa: N815
    nodeName: str | None = None  # noqa: N815


class _Pod(_Object):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec
    status: dict[str, Any] | None = None


class _NodeStatus(_Object):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None


class _Node(_Object):
    metadata: _Metadata
    status: _NodeStatus | None = None


def inspected(document: object, dialects: Dialects, claims: ClaimObjects = NO_CLAIM_OBJECTS) -> Iterator[Json]:
    """Yield the reading of each Node, Pod and ConfigMap of a document: one, a List, or an object that makes pods.

    `claims` has pods' ResourceClaims. Objects that have nothing to do with GPUs are yielded with `skipped`.
    """
    items = document.get("items") if isinstance(document, dict) else None
    for each in items if isinstance(items, list) else [document]:
        yield from _objects(each, dialects, claims)


def shape_problems(document: Mapping[str, Any]) -> list[str]:
    """Return the problems that keep a Node or a Pod from being read at all, a sentence for each place."""
    return _shape_problems(_Node if document.get("kind") == "Node" else _Pod, document)


def _objects(document: object, dialects: Dialects, claims: ClaimObjects) -> Iterator[Json]:
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str | None):
        yield {"kind": None, "problems": ["this is no Kubernetes object"]}
        return
    kind = document.get("kind")
    head = {"kind": kind, "name": _name(document)}
    if kind == "Node":
        yield _node(document, dialects)
    elif kind == "Pod":
        yield _pod(document, dialects, claims)
    elif kind in (CLAIM, TEMPLATE):
        yield {**head, "namespace": _text(document, "namespace"), **claim_shown(document, head["name"] or "", claims)}
    elif kind == "ConfigMap" and _configures_devices(document):
        yield _config_map(document)
    elif kind == "PodGroup" and (group := words_of_group(document)):
        yield {**head, "namespace": _text(document, "namespace"), **pod_group_shown(document, group)}
    elif kind is None or isinstance(document.get("items"), list):
        yield {**head, "problems": [f"a {kind} {SAYS_NOTHING}"]}
    else:
        yield from _workload(document, head, dialects, claims)


def _workload(document: Json, head: Json, dialects: Dialects, claims: ClaimObjects) -> Iterator[Json]:
    """Yield the pods that an object makes; or that it makes none, or none that can be seen here."""
    try:
        templates = pod_templates(document)
    except BadInput as error:
        yield {**head, "problems": [str(error)]}
        return
    for template in templates:
        metadata = {"name": head["name"], **template.pod["metadata"]}
        pod = _pod({**template.pod, "metadata": metadata}, dialects, claims)
        if str(document.get("apiVersion")).startswith("batch.volcano.sh/") and head["kind"] == "Job":
            pod = {**pod, "notes": [*pod.get("notes", ()), VOLCANO_JOB]}
        yield {**pod, "of": f"{head['kind']}/{head['name']}", "template": template.path, "copies": template.copies}
    is_quota = str(document.get("apiVersion")).startswith("kueue.x-k8s.io/")  # queues count
    elsewhere = [] if is_quota else resources_elsewhere(document, dialects.resources())
    if elsewhere:
        warnings, problems = _read_elsewhere(elsewhere, dialects)
        yield {**head, "warnings": warnings, "problems": problems}
    elif unused := _unused_card_words(document):
        yield {**head, "notes": unused, "problems": []}
    elif not templates:
        yield {**head, "skipped": True, "problems": []}


def _read_elsewhere(places: Sequence[Elsewhere], dialects: Dialects) -> tuple[list[str], list[str]]:
    """Return what the places outside pod templates say, and what is wrong with it, by the words for containers."""
    warnings, problems = [], []
    for place in places:
        said = ", ".join(f"{name}: {_as_written(amount)}" for name, amount in place.amounts.items())
        said = said or "a resource for GPUs"
        warnings.append(f"{place.path} ({said}) is not in a pod template: inspect the pods that are made of it")
        _, wrong = _request_of({}, {"name": "c", "resources": {"limits": place.amounts}}, dialects)
        problems += [f"{place.path}: {each.removeprefix('container c, ')}" for each in wrong]
    return warnings, problems


def _as_written(amount: object) -> str:
    try:
        return str(amount)[:40]
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"


def _configures_devices(config_map: Json) -> bool:
    """Return whether a ConfigMap is one of those that HAMi or Volcano read, or is named like them."""
    data = config_map.get("data")
    known = isinstance(data, dict) and not data.keys().isdisjoint(DEVICE_CONFIG_KEYS)
    return known or any(word in _name(config_map) for word in ("hami", "volcano", "vgpu"))


def _config_map(config_map: Json) -> Json:
    name, text = _name(config_map), orjson.dumps(config_map, default=str).decode()
    data = config_map.get("data")
    head: Json = {"kind": "ConfigMap", "namespace": _text(config_map, "namespace"), "name": name}
    try:
        if isinstance(data, dict) and "config.json" in data:
            configs, ignored = node_configs(text, NodeConfig(), f"ConfigMap {name}")
            nodes = {of: _node_config(config) for of, config in configs.of_node.items()}
            return {**head, "nodes": nodes, "notSupported": list(ignored), "problems": []}
        system = "volcano" if "volcano" in name else "hami"
        found = device_config(text, system, f"ConfigMap {name}")
    except BadInput as error:
        return {**head, "problems": [str(error)]}
    everywhere = _node_config(found.nodes.everywhere) if found.nodes else {}
    return {
        **head,
        "system": system,
        "settings": dict(found.settings),
        "everywhere": everywhere,
        "notSupported": list(found.not_supported),
        "problems": [],
    }


def _node_config(config: NodeConfig) -> Json:
    return {
        "number": config.split_count,
        "memoryScaling": config.memory_scaling,
        "coreScaling": config.core_scaling,
        "mode": config.mode or None,
        "hiddenUUIDs": sorted(config.hidden_uuids),
        "hiddenIndexes": sorted(config.hidden_indexes),
        "logLevel": config.log_level,
    }


def _node(node: Json, dialects: Dialects) -> Json:
    problems = _shape_problems(_Node, node)
    if problems:
        return {"kind": "Node", "name": _name(node), "dialect": None, "gpus": [], "problems": problems}
    facts = node_facts(node, dialects)
    try:
        inventory = read_registers(facts)
    except BadInput as error:
        return {**_node_head(facts.name, None), "gpus": [], "problems": [str(error)]}
    dialect = facts.registers[0][0].dialect.value if facts.registers else None
    cards = sorted(inventory.cards, key=lambda card: card.place)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {
        **_node_head(facts.name, dialect),
        "serves": sorted(facts.offer.resources) if facts.offer else [],
        "offers": {name: allocatable[name] for name in sorted(facts.offered & {*allocatable})},
        "gpus": [_gpu(card) for card in cards],
        "notes": [
            *([NO_LINKS] if _lacks_links(cards) else []),
            *offers_without_cards(facts),
            *([] if has_label(node, dialects.node_label) else _not_ours(facts, dialects)),
        ],
        "problems": list(inventory.problems),
    }


WAYS_TO_THE_LEDGER = (
    "to share them, let gpuledger's agent run there in place of that device plugin; to let pods have them whole beside "
    "nodes of ours, set node_label"
)


def offers_without_cards(facts: NodeFacts) -> list[str]:
    """Return a sentence for each count that the node offers, where nothing tells of the cards behind it."""
    listed = {register.count for register, _ in facts.registers}
    if any(register.dialect is Dialect.NATIVE for register, _ in facts.registers):
        return []
    return [
        f"it offers {name}, and neither an annotation nor its capacity lists the cards behind it, so the ledger does "
        f"not have them: {WAYS_TO_THE_LEDGER}"
        for name in sorted(facts.offered - listed)
    ]


def _not_ours(facts: NodeFacts, dialects: Dialects) -> list[str]:
    """Return notes on the cards of a node that lacks our label."""
    if facts.replicated:
        return [
            "it is not one of ours: its own device plugin gives out each GPU several times, as time slices or by MPS, "
            "so pods of ours get none there, unless replicas_elsewhere is as-gpus"
        ]
    if facts.host and facts.host.cards:
        count = f"{facts.host.cards} of {dialects.elsewhere}"
        return [
            f"it is not one of ours: its own device plugin counts {count}, for pods that ask for no more than a number"
        ]
    return [
        f"it lacks the label {'='.join(dialects.node_label or ())}, so it is not one of ours, and its cards are ignored"
    ]


def _lacks_links(cards: Sequence[Card]) -> bool:
    topology = topology_of(cards)
    return len(cards) > 1 and (topology is None or not topology.linked)


def _node_head(name: str, dialect: str | None) -> Json:
    return {"kind": "Node", "name": name, "dialect": dialect}


def _gpu(card: Card) -> Json:
    return {
        "uuid": card.uuid,
        "index": card.index,
        "vendor": card.vendor,
        "model": card.model,
        "memoryMiB": card.capacity.memory_mib,
        "cores": card.capacity.cores,
        "number": card.capacity.number,
        "numaNode": card.numa_node,
        **({"pcieRoot": card.pcie_root} if card.pcie_root else {}),
        "mode": card.mode,
        "healthy": card.healthy,
        **({"fault": card.fault} if card.fault else {}),
        "links": dict(card.links),
    }


def _pod(pod: Json, dialects: Dialects, claims: ClaimObjects) -> Json:
    head = {"kind": "Pod", "namespace": _text(pod, "namespace"), "name": _name(pod)}
    problems = _shape_problems(_Pod, pod)
    if problems:
        return {**head, "containers": [], "problems": problems}
    problems += _asked_as_a_whole(pod, dialects)
    found: list[Json] = []
    warnings: list[str] = []
    for container, lifetime in containers(pod):
        request, problem = _request_of(pod, container, dialects)
        problems += problem
        warnings += request.warnings if request else ()
        asked = _asked(request) if request else None
        found.append({"name": container["name"], "lifetime": lifetime.value, "readable": not problem, "request": asked})
    try:
        chosen, gang = selection(pod), gang_of(pod)
    except BadInput as error:
        return {**head, "containers": found, "problems": list(dict.fromkeys([*problems, str(error)]))}
    own = _vendors_selectors(pod, found, dialects)
    by_claim, of_claims, wrong = claims_of_pod_shown(pod, claims)
    said = passed_over(pod, dialects)
    selectors = {
        "useModels": [*chosen.cards.use_models, *own["use_model"]],
        "avoidModels": [*chosen.cards.avoid_models, *own["avoid_model"]],
        "useUUIDs": [*chosen.cards.use_uuids, *own["use_uuid"]],
        "avoidUUIDs": [*chosen.cards.avoid_uuids, *own["avoid_uuid"]],
        "modes": list(chosen.cards.modes),
        "oneNUMANode": chosen.one_numa_node,
        "nodePolicy": chosen.node_policy or None,
        "cardPolicy": chosen.card_policy or None,
    }
    return {
        **head,
        "schedulerName": scheduler_of(pod) or None,
        **({"gang": gang_shown(gang)} if gang else {}),
        "containers": [*found, *by_claim],
        "selectors": {name: value for name, value in selectors.items() if value},
        "notes": [
            *(gang_notes(pod, gang) if gang else []),
            *([TOPOLOGY_NEEDS_LINKS] if TOPOLOGY in (chosen.node_policy, chosen.card_policy) else []),
            *_others_names(pod, found, dialects, said),
            *of_claims,
        ],
        "warnings": [*warnings, *chosen.warnings, *(each.text for each in said)],
        "problems": [*problems, *wrong],
    }


def _asked_as_a_whole(pod: Json, dialects: Dialects) -> list[str]:
    """Return a sentence for each resource of ours that is asked for in `resources` of the pod itself.

    The API server takes CPU, memory and huge pages there, and refuses all others.
    """
    own = (pod.get("spec") or {}).get("resources")
    parts = {key: own.get(key) for key in ("limits", "requests")} if isinstance(own, dict) else {}
    return [
        f"spec.resources.{key}.{name}: GPUs can't be asked for by the pod as a whole: ask in a container"
        for key, amounts in parts.items()
        for name in (amounts if isinstance(amounts, dict) else ())
        if name in dialects.resources()
    ]


def _others_names(pod: Json, found: Sequence[Json], dialects: Dialects, said: Sequence[PodWarning]) -> list[str]:
    """Return a sentence for each resource of a known vendor in a container that asks for no card in a name of ours."""
    domains = {name.partition("/")[0] for name in dialects.resources()}
    told = {each.name for each in said}
    return [
        f"container {container['name']}, {name}: no name of gpuledger's, so this is left to the plugin that serves it"
        for (container, _), shown in zip(containers(pod), found, strict=True)
        for name in (container.get("resources") or {}).get("limits") or {}
        if shown["readable"] and not shown["request"] and name.partition("/")[0] in domains
        if name not in dialects.by_name and name not in told
    ]


def _vendors_selectors(pod: Json, found: Sequence[Json], dialects: Dialects) -> dict[str, list[str]]:
    """Return the choices that vendors' own annotations make among the cards of the containers' vendors."""
    asked = {each["request"]["words"] for each in found if each["request"]}
    used = [each for each in dialects.vocabularies if each.name in asked]
    kinds = ("use_model", "avoid_model", "use_uuid", "avoid_uuid")
    return {kind: [e for v in used for e in Selection.entries_of(pod, getattr(v, kind))] for kind in kinds}


def _request_of(
    pod: Json, container: Mapping[str, Any], dialects: Dialects
) -> tuple[ContainerRequest | None, list[str]]:
    """Return one container's request, read as if it were alone: a bad one does not hide the others."""
    alone = {"spec": {"containers": [container]}, "metadata": {"annotations": {}}}
    try:
        (request,) = container_requests(alone, dialects)
    except BadInput as error:
        return None, [str(error)]
    return request, []


def _asked(request: ContainerRequest) -> Json:
    demand = request.demand
    memory = (
        {"memoryMiB": demand.memory_mib} if demand.memory_mib is not None else {"percentage": demand.memory_percent}
    )
    spelled = {"gpus": "gpus", "memory": next(iter(memory)), "cores": "cores"}
    return {
        "gpus": demand.cards,
        **memory,
        **({"atMostCard": True} if demand.at_most_card else {}),
        "cores": ALL_CORES if demand.whole else demand.cores,
        "exclusive": demand.exclusive,
        "resource": demand.resource or None,
        "words": request.vocabulary,
        "vendor": demand.wanted.vendor,
        **({"model": demand.wanted.model} if demand.wanted.model else {}),
        "defaults": [name for label, name in spelled.items() if label in request.defaults],
    }


def _shape_problems(shape: type[BaseModel], document: object) -> list[str]:
    try:
        shape.model_validate(document)
    except ValidationError as error:
        # A value of several possible types has one error for each: the place says enough.
        places = dict.fromkeys(
            (".".join(str(part) for part in each["loc"] if part not in ("str", "int", "float")), each["msg"])
            for each in error.errors(include_url=False)
        )
        return [f"{place}: {message}" for place, message in places]
    return []


def _name(document: Mapping[str, Any]) -> str:
    return _text(document, "name")


def _text(document: Mapping[str, Any], field: str) -> str:
    value = metadata.get(field) if isinstance(metadata := document.get("metadata"), dict) else None
    return value if isinstance(value, str) else ""
