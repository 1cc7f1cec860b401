"""Assignments of cards to pods in the annotations of HAMi and Volcano, and HAMi's lock of a node.

HAMi: containers in order, the init containers first, each closed by `;`; in it cards, each closed by `:`; a card is
`uuid,word,MiB,percent`. Volcano: the same without init containers, joined by `;`, memory in units of its factor. The
lock is an annotation of the node, `TIME,NAMESPACE,POD`, or only the time in old versions.
Sources: HAMi 2.10, `pkg/device/devices.go` and `pkg/util/nodelock/nodelock.go`; volcano-vgpu-device-plugin,
`pkg/util/util.go`; Volcano's first GPU plugin writes only the cards' numbers on the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from gpuledger.formats.annotations import checked_amount, checked_uuid
from gpuledger.formats.custom_resource.stored_card import MAX_CORES, MAX_INDEX, MAX_MEMORY_MIB
from gpuledger.formats.dialects.request import containers
from gpuledger.formats.dialects.vocabulary import HAMI_PHASE, AssignmentAnnotations, Details, Layout
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import AnnotatedCard, Counted, Dialect, OldDevices
from gpuledger.model.request import Lifetime
from gpuledger.model.share import Pod, Share

HAMI_NODE = "hami.io/vgpu-node"
HAMI_TIME = "hami.io/vgpu-time"
HAMI_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
HAMI_ALLOCATED = "hami.io/vgpu-devices-allocated"
HAMI_BIND_TIME = "hami.io/bind-time"

VOLCANO_NODE = "volcano.sh/vgpu-node"
VOLCANO_TIME = "volcano.sh/vgpu-time"
VOLCANO_ALLOCATED = "volcano.sh/vgpu-ids-new"
VOLCANO_TO_ALLOCATE = "volcano.sh/devices-to-allocate"
VOLCANO_BIND_TIME = "volcano.sh/bind-time"
VOLCANO_PHASE = "volcano.sh/bind-phase"

CLASSIC_INDEX = "volcano.sh/gpu-index"

FOREIGN_ANNOTATIONS = (
    HAMI_NODE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_PHASE,
    VOLCANO_NODE,
    VOLCANO_TIME,
    VOLCANO_ALLOCATED,
    VOLCANO_TO_ALLOCATE,
    VOLCANO_BIND_TIME,
    VOLCANO_PHASE,
    CLASSIC_INDEX,
)
"""Annotations of schedulers for HAMi's and Volcano's device plugins. Users' wishes have other names."""

ALLOCATING, FOUND = "allocating", "success"
"""Phases of a pod that its device plugin has to find, and has found."""
NOT_FOUND = "false"
"""The value that a vendor's own plugin turns to true when it has found the pod."""
WORD = "NVIDIA"

MAX_LENGTH = 256 * 1024
"""Kubernetes' limit for all annotations of an object."""


def hami_assignment(
    containers_in_order: Sequence[str],
    shares: Sequence[Share],
    annotations_of: Callable[[str], AssignmentAnnotations],
    node_name: str,
    now_s: int,
    index_of: Callable[[str], int] = lambda _: 0,
    by_cores: Collection[str] = (),
) -> dict[str, str]:
    """Return the annotations by which HAMi's device plugins, and vendors' own, find a pod and its cards.

    `annotations_of` gives the plugin of each card, by UUID, and `index_of` its place on the node; `by_cores` are the
    containers that ask for cores without a count. A plugin without an answer annotation counts as having found this pod
    at once: other pods do not wait for that.
    """
    plugins = list(dict.fromkeys(annotations_of(share.uuid) for share in shares))
    phase = ALLOCATING if any(plugin.answer == HAMI_PHASE for plugin in plugins) else FOUND
    result = {HAMI_NODE: node_name, HAMI_TIME: str(now_s), HAMI_BIND_TIME: str(now_s), HAMI_PHASE: phase}
    for plugin in plugins:
        mine = [share for share in shares if annotations_of(share.uuid) == plugin]
        text = "".join(_cards(name, mine, plugin.word, 1) + ";" for name in containers_in_order)
        result |= {plugin.to_allocate: text, plugin.allocated: text}
        if plugin.answer not in ("", HAMI_PHASE):
            result[plugin.answer] = NOT_FOUND
        parts = _all_parts(containers_in_order, mine, plugin, node_name, now_s, index_of)
        result |= {each.annotation: _details(each, containers_in_order, parts) for each in plugin.details}
        texts = plugin.texts
        if any(name in by_cores for name, _ in parts):
            texts += plugin.texts_by_cores
        result |= {name: text.format(**_of_pod(parts)) for name, text in texts}
    return result


def volcano_assignment(
    main_containers: Sequence[str], shares: Sequence[Share], node_name: str, now_s: int, memory_unit_mib: int
) -> dict[str, str]:
    """Return the annotations by which Volcano's device plugin finds a pod and its cards."""
    text = ";".join(_cards(name, shares, WORD, memory_unit_mib) for name in main_containers)
    return {
        VOLCANO_NODE: node_name,
        VOLCANO_TIME: str(now_s),
        VOLCANO_TO_ALLOCATE: text,
        VOLCANO_ALLOCATED: text,
        VOLCANO_BIND_TIME: str(now_s),
        VOLCANO_PHASE: ALLOCATING,
    }


def _cards(container: str, shares: Iterable[Share], word: str, memory_unit_mib: int) -> str:
    return "".join(
        f"{share.uuid},{word},{-(-each.memory_mib // memory_unit_mib)},{each.cores}:"
        for share in shares
        for each in share.containers
        if each.name == container
    )


Parts = dict[str, str | int]
"""The parts of a container's share of a card that a plugin can be given: the keys are vocabulary.PARTS."""


def _all_parts(
    containers_in_order: Sequence[str],
    shares: Sequence[Share],
    plugin: AssignmentAnnotations,
    node_name: str,
    now_s: int,
    index_of: Callable[[str], int],
) -> list[tuple[str, Parts]]:
    """Return container and parts for each card of each container, in the order of the containers."""
    templates = {template.memory_mib: template for template in plugin.templates}
    found: list[tuple[str, Parts]] = []
    for name in containers_in_order:
        mine = [(share, each) for share in shares for each in share.containers if each.name == name]
        for share, each in mine:
            template, index = templates.get(each.memory_mib), index_of(share.uuid)
            units = template.core_units if template else -(-each.cores * plugin.cores_of_card // ALL_CORES)
            parts: Parts = {
                "uuid": share.uuid,
                "index": index,
                "indexes": ",".join(str(index_of(other.uuid)) for other, _ in mine),
                "node": node_name,
                "time_s": now_s,
                "time_ns": now_s * 10**9,
                "cores": each.cores,
                "core_units": units,
                "core_indexes": ",".join(str(index * plugin.cores_of_card + core) for core in range(units)),
                "memory_mib": each.memory_mib,
                "memory_units": each.memory_mib // plugin.memory_unit_mib,
                "template": template.name if template else "",
                "template_id": template.id if template else "",
            }
            found.append((name, parts))
    return found


def _of_pod(parts: Sequence[tuple[str, Parts]]) -> Parts:
    """Return the parts of a pod's first card, with the indexes of all its cards and cores."""
    first = next((each for _, each in parts), {})
    every = {
        "indexes": ",".join(dict.fromkeys(str(each["index"]) for _, each in parts)),
        "core_indexes": ",".join(dict.fromkeys(str(each["core_indexes"]) for _, each in parts)),
    }
    return {**first, **every}


def _details(details: Details, containers_in_order: Sequence[str], parts: Sequence[tuple[str, Parts]]) -> str:
    told = [(name, _told(details, each)) for name, each in parts]
    if details.layout is Layout.LISTS:
        return _json([[each for of, each in told if of == name] for name in containers_in_order])
    if details.layout is Layout.BY_CONTAINER:
        return _json(dict(reversed(told)))
    return _json([each for _, each in told])


def _told(details: Details, parts: Parts) -> dict[str, str | int | bool]:
    values = ((key, what if isinstance(what, bool) else parts[what]) for key, what in details.fields)
    return {key: value for key, value in values if isinstance(value, bool) or value}


def _json(told: object) -> str:
    return orjson.dumps(told).decode()


def unmatched(
    pod: JsonMapping, dialect: Dialect | None = None, answers: Sequence[str] = ()
) -> tuple[Dialect, int] | None:
    """Return the dialect of the device plugin that has yet to find this pod, and its number of cards, or None.

    Vendors' own plugins answer in annotations of their own, `answers`; they are told of pods beside HAMi's.
    That number is how its plugin tells pods apart; HAMi's takes any pod that waits. Users can write these annotations:
    where it is known whose plugin it is, the words of others say nothing.
    """
    annotations = _annotations(pod)
    if dialect in (None, Dialect.VOLCANO) and annotations.get(VOLCANO_PHASE) == ALLOCATING:
        left = annotations.get(VOLCANO_TO_ALLOCATE, "").count(":")
        return (Dialect.VOLCANO, left) if left else None
    waits = dialect in (None, Dialect.HAMI) and (
        annotations.get(HAMI_PHASE) == ALLOCATING or any(annotations.get(name) == NOT_FOUND for name in answers)
    )
    return (Dialect.HAMI, 0) if waits else None


def plugin_assigned(
    pod: JsonMapping, counted: Sequence[Counted], volcano_memory_unit_mib: int, hami_annotations: Sequence[str]
) -> dict[Dialect, frozenset[str]]:
    """Return the cards, by UUID, that each dialect's device plugin was told to give to a pod's containers.

    A plugin looks for a pod of its node that is marked as one that it has to find, or has found; it ignores all other
    annotations. It also ignores a list for other containers, or for more or fewer cards, than the kubelet asks for.
    Users can write these annotations; docs/security.md says what they can reach by that.
    """
    annotations, node_name = _annotations(pod), (pod.get("spec") or {}).get("nodeName")
    found: dict[Dialect, frozenset[str]] = {}
    for dialect, node, phase, names in (
        (Dialect.HAMI, HAMI_NODE, HAMI_PHASE, hami_annotations),
        (Dialect.VOLCANO, VOLCANO_NODE, VOLCANO_PHASE, (VOLCANO_ALLOCATED,)),
    ):
        if annotations.get(node) != node_name or annotations.get(phase) not in (ALLOCATING, FOUND):
            continue
        own = {name: annotations[name] for name in (node, *names) if name in annotations}
        with suppress(BadInput):
            old = old_devices({**pod, "metadata": {"annotations": own}}, volcano_memory_unit_mib, hami_annotations)
            if old is not None and Counter(card.container for card in old.cards) == _cards_asked(counted):
                found[dialect] = frozenset(card.uuid for card in old.cards)
    return found


def _cards_asked(counted: Sequence[Counted]) -> Counter[str]:
    """Return the number of cards by container."""
    asked = Counter[str]()
    for each in counted:
        asked[each.container] += each.cards
    return asked


def old_devices(
    pod: JsonMapping, volcano_memory_unit_mib: int, hami_annotations: Sequence[str] = (HAMI_ALLOCATED,)
) -> OldDevices | None:
    """Return a pod's cards by other systems' annotations, None if there are none.

    HAMi has an annotation for each kind of card. Raises BadInput for text that can't be read, or names containers that
    the pod does not have.
    """
    annotations = _annotations(pod)
    names = [(str(container["name"]), lifetime) for container, lifetime in containers(pod)]
    of_hami = [name for name in hami_annotations if name in annotations]
    if of_hami:
        annotated = [_annotated(annotations, annotation, [name for name, _ in names], 1) for annotation in of_hami]
        return OldDevices(", ".join(of_hami), tuple(card for cards in annotated for card in cards))
    if VOLCANO_ALLOCATED in annotations:
        main = [name for name, lifetime in names if lifetime is Lifetime.MAIN]
        return OldDevices(VOLCANO_ALLOCATED, _annotated(annotations, VOLCANO_ALLOCATED, main, volcano_memory_unit_mib))
    if CLASSIC_INDEX in annotations:
        return OldDevices(CLASSIC_INDEX, indexes=_indexes(annotations[CLASSIC_INDEX]))
    return None


def _annotated(
    annotations: Mapping[str, str], name: str, names: Sequence[str], unit_mib: int
) -> tuple[AnnotatedCard, ...]:
    text = annotations[name]
    found: list[AnnotatedCard] = []
    parts = text.split(";")
    if any(part.strip() for part in parts[len(names) :]):
        raise BadInput(f"annotation {name} speaks of more containers than the pod has")
    for container, part in zip(names, parts, strict=False):
        found += [_annotated_card(name, container, card, unit_mib) for card in part.split(":") if card.strip()]
    if len({(card.container, card.uuid) for card in found}) < len(found):
        raise BadInput(f"annotation {name} gives a container the same card twice")
    return tuple(found)


def _annotated_card(name: str, container: str, text: str, unit_mib: int) -> AnnotatedCard:
    where = f"annotation {name}, container {container[:63]!r}"
    fields = [field.strip() for field in text.split(",")]
    if len(fields) < 4:
        raise BadInput(f"{where}: a card has {len(fields)} fields, not 4")
    uuid = checked_uuid(fields[0], where)
    memory = checked_amount(_int(fields[2]), MAX_MEMORY_MIB // unit_mib, f"{where}, card {uuid}: its memory")
    return AnnotatedCard(
        container,
        uuid,
        memory * unit_mib,
        checked_amount(_int(fields[3]), MAX_CORES, f"{where}, card {uuid}: its cores"),
    )


def _indexes(text: str) -> tuple[int, ...]:
    where = f"annotation {CLASSIC_INDEX}"
    found = tuple(
        checked_amount(_int(part.strip()), MAX_INDEX, f"{where}: a number") for part in text.split(",")[: MAX_INDEX + 1]
    )
    if len(set(found)) < len(found):
        raise BadInput(f"{where} names a card twice")
    return found


def _int(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else text


def _annotations(pod: JsonMapping) -> Mapping[str, str]:
    annotations = (pod.get("metadata") or {}).get("annotations")
    if not isinstance(annotations, dict):
        return {}
    return {name: value for name, value in annotations.items() if isinstance(value, str) and len(value) <= MAX_LENGTH}


LOCK_ANNOTATION = "hami.io/mutex.lock"


@dataclass(frozen=True, slots=True)
class NodeLock:
    """The pod that a node is locked for, and since when; None if the text does not say."""

    since: datetime | None
    namespace: str = ""
    name: str = ""

    def is_of(self, pod: Pod) -> bool:
        """Return whether the lock names this pod."""
        return (self.namespace, self.name) == (pod.namespace, pod.name)

    def age_s(self, now: datetime) -> float:
        """Return how old the lock is; one without a time counts as very old."""
        return (now - self.since).total_seconds() if self.since else float("inf")


def lock_text(pod: Pod, now: datetime) -> str:
    """Return the lock for a pod."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{pod.namespace},{pod.name}"


def read_lock(node: Mapping[str, Any]) -> NodeLock | None:
    """Return the lock of a node, None if there is none. An unreadable text is a lock without a holder or a time."""
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(LOCK_ANNOTATION)
    if text is None:
        return None
    time, *owner = str(text).split(",")
    namespace, name = owner if len(owner) == 2 else ("", "")
    try:
        since = datetime.fromisoformat(time)
    except ValueError:
        return NodeLock(None, namespace, name)
    return NodeLock(since if since.tzinfo else since.replace(tzinfo=UTC), namespace, name)
