"""Ways of a pod to cards that the ledger did not give it.

NVIDIA's container runtime gives a container the cards that its variable NVIDIA_VISIBLE_DEVICES names, whether the
container sets it or its image does; also those that its mounts below a certain directory name, where it is configured
so. A container with a share gets the variable or a CDI device from the node agent, and its own variable may replace
that. Devices of the node are reached by a privileged container, and by a directory or device of the node's that is
mounted. Sources: NVIDIA container toolkit 1.17, docs of `accept-nvidia-visible-devices-*`; the kubelet merges a
container's own variables over those of device plugins (pkg/kubelet/kubelet_pods.go).

What can't be seen in a pod: variables from a ConfigMap or a Secret (`envFrom`), and those of its image where NVIDIA's
runtime is the node's default. `overwrite` is for both: a variable of the container goes before them.
formats/admission/card_access.py says the same in CEL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, cast

from gpuledger.formats.dialects.request import containers
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.model.json_object import Json, JsonMapping

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_CARDS: Final = "void"
"""With this value, NVIDIA's runtime leaves a container alone."""
HARMLESS: Final = ("", "none", NO_CARDS)

VARIABLES: Final = (
    VISIBLE,
    "AMD_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
)
"""By which the vendors' runtimes give out cards."""

CLASSES: Final = "nvidia"
"""How the names of the runtime classes begin that NVIDIA's GPU Operator makes: nvidia, nvidia-cdi, nvidia-legacy."""

BY_MOUNT: Final = "/var/run/nvidia-container-devices"
"""Mounts below it name cards, where NVIDIA's runtime is told to accept that."""

WHOLE: Final = ("/", "/dev", "/dev/char", "/run", "/run/nvidia", "/var", "/var/run", "/var/run/nvidia")
"""Directories of a node with cards' devices in them, somewhere."""
DEVICES: Final = ("nvidia", "dri", "kfd", "davinci", "accel")
"""How the names of cards' devices begin, in /dev."""


class WayKind(StrEnum):
    """How a pod reaches cards."""

    VARIABLE = "variable"
    MOUNT = "mount"
    PRIVILEGED = "privileged"
    CLASS = "class"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True)
class Way:
    """One way of a pod to cards."""

    kind: WayKind
    text: str
    is_to_cards: bool = True
    """Whether it has no other purpose: programs are privileged, or see all devices of a node, for many."""


MOST_WAYS: Final = 8
"""Of a pod that are told: users write how many there are."""


def ways_past_the_ledger(pod: JsonMapping, dialects: Dialects) -> tuple[Way, ...]:
    """Return how a pod reaches cards that the ledger did not give it, the first of all ways."""
    return tuple(islice(_ways(pod, dialects), MOST_WAYS))


def _ways(pod: JsonMapping, dialects: Dialects) -> Iterator[Way]:
    spec = pod.get("spec") or {}
    names, is_of_class = set(dialects.resources()), str(spec.get("runtimeClassName") or "").startswith(CLASSES)
    every = [*(each for each, _ in containers(pod)), *(spec.get("ephemeralContainers") or ())]
    for container in every:
        yield from _ways_of(container, names, is_of_class)
    yield from _volumes(spec)


def _ways_of(container: JsonMapping, names: set[str], is_of_class: bool) -> Iterator[Way]:
    who, variables = f"container {container.get('name')}", container.get("env") or ()
    for each in variables:
        if each.get("name") in VARIABLES and ("valueFrom" in each or (each.get("value") or "") not in HARMLESS):
            yield Way(WayKind.VARIABLE, way_text(WayKind.VARIABLE, who, str(each["name"])))
    for each in container.get("volumeMounts") or ():
        path = _plain(str(each.get("mountPath") or ""))
        if path == BY_MOUNT or path.startswith(f"{BY_MOUNT}/"):
            yield Way(WayKind.MOUNT, way_text(WayKind.MOUNT, who, path))
    if (container.get("securityContext") or {}).get("privileged"):
        yield Way(WayKind.PRIVILEGED, way_text(WayKind.PRIVILEGED, who), is_to_cards=False)
    if is_of_class and not _has_cards(container, names) and all(each.get("name") != VISIBLE for each in variables):
        yield Way(WayKind.CLASS, way_text(WayKind.CLASS, who))


def _volumes(spec: Mapping[str, Any]) -> Iterator[Way]:
    for volume in spec.get("volumes") or ():
        brought = (volume or {}).get("hostPath")
        path = _plain(str(brought.get("path") or "")) if brought else ""
        is_card = path.startswith(tuple(f"/dev/{each}" for each in DEVICES))
        if brought and (is_card or path in WHOLE):
            text = way_text(WayKind.VOLUME, f"volume {volume.get('name')}", path)
            yield Way(WayKind.VOLUME, text, is_to_cards=is_card)


def _has_cards(container: JsonMapping, names: set[str]) -> bool:
    resources = container.get("resources") or {}
    return bool(resources.get("claims")) or not names.isdisjoint(resources.get("limits") or {})


def _plain(path: str) -> str:
    """Return a path without what says nothing: the API server refuses `..`."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def way_text(kind: WayKind, who: str, what: str = "") -> str:
    """Return the sentence on a way: `who` is a container or a volume, `what` its variable or path."""
    ending = "; the ledger does not know of it"
    match kind:
        case WayKind.VARIABLE:
            return f"{who} sets {what}, by which it gets cards{ending}: remove it, and ask for a share in its limits"
        case WayKind.MOUNT:
            return f"{who} names cards by its mount {what}{ending}: remove it, and ask for a share in its limits"
        case WayKind.PRIVILEGED:
            return f"{who} is privileged, and reaches all cards of its node{ending}: remove privileged"
        case WayKind.CLASS:
            gives = "and the runtime class of its pod gives it all that its image names"
            return f"{who} asks for no cards, {gives}{ending}: set {VISIBLE} to {NO_CARDS} in it"
        case WayKind.VOLUME:
            return f"{who} brings devices of the node by hostPath, {what}{ending}: mount what the pod needs of it"


def overwrite(pod: Json, dialects: Dialects) -> None:
    """Give each container without cards the variable by which NVIDIA's runtime gives it none, in place of its own."""
    names = set(dialects.resources())
    for container, _ in containers(pod):
        variables = container.get("env") or []
        if not _has_cards(container, names) and not any(
            each.get("name") == VISIBLE and each.get("value") in HARMLESS[1:] for each in variables
        ):
            kept = [each for each in variables if each.get("name") != VISIBLE]
            cast("Json", container)["env"] = [*kept, {"name": VISIBLE, "value": NO_CARDS}]
