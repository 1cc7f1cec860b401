"""What containers ask for in sum, as resources that anybody can add up. Pure.

A container asks for a number of cards, and for so much of each. Whoever only adds up amounts, as ResourceQuota and
Kueue do, can't multiply the two. So admission writes the products on each container, as resources of their own.
NVIDIA's cards alone, in all words for them. A whole card and a percentage are counted by the models that the pod may
get, since nobody knows yet which card it will be.

Queues that are named in Volcano's or KAI's words are here as well, taken for Kueue's LocalQueues of the same names: of
the same objects. Sources: Volcano 1.15 (GroupName + "/queue-name" of its scheduling API on pods and their owners,
QueueNameKey of its batch API), KAI-Scheduler 0.17 (docs/queues, docs/migrationguides).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from gpuledger.formats.annotations import ASKED_LABEL
from gpuledger.formats.dialects.request import ContainerRequest, container_requests
from gpuledger.formats.dialects.selection import selection
from gpuledger.formats.dialects.unsupported import Place, unsupported_fields
from gpuledger.formats.dialects.vocabulary import SUM_CORES, SUM_GPUS, SUM_MEMORY, Dialects
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping, at
from gpuledger.model.request import ANY_NVIDIA, Demand

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
"""On nodes, by NVIDIA's feature discovery: the model of their cards, with dashes for spaces."""

REPLICAS: Final = tuple(f"{kind}ReplicaSpecs" for kind in ("pytorch", "tf", "xgb", "mpi", "paddle", "jax"))
"""Where Kubeflow's training jobs have their templates: one for each role."""


@dataclass(frozen=True, slots=True)
class TemplatePlace:
    """Where objects of a kind have templates of pods, or a pod itself."""

    at: tuple[str, ...]
    """The keys to a template, or to what has several."""
    each: str = ""
    """"" for one template, "list" or "map" for several."""
    then: tuple[str, ...] = ()
    """The keys from each of these to its template."""


_CLUSTERS_OF_RAY = (("spec",), ("spec", "rayClusterSpec"), ("spec", "rayClusterConfig"))

PLACES: Final = (
    TemplatePlace(()),
    TemplatePlace(("spec", "template")),
    TemplatePlace(("spec", "replicatedJobs"), "list", ("template", "spec", "template")),
    *(TemplatePlace(("spec", name), "map", ("template",)) for name in REPLICAS),
    *(TemplatePlace((*at, "headGroupSpec", "template")) for at in _CLUSTERS_OF_RAY),
    *(TemplatePlace((*at, "workerGroupSpecs"), "list", ("template",)) for at in _CLUSTERS_OF_RAY),
    *(TemplatePlace(("spec", "leaderWorkerTemplate", name)) for name in ("leaderTemplate", "workerTemplate")),
)
"""A Pod; Job; JobSet; Kubeflow's jobs; RayCluster, RayJob and RayService; LeaderWorkerSet."""

KINDS: Final = (
    ("batch", "v1", ("jobs",)),
    ("jobset.x-k8s.io", "*", ("jobsets",)),
    ("kubeflow.org", "*", ("pytorchjobs", "tfjobs", "xgboostjobs", "mpijobs", "paddlejobs", "jaxjobs")),
    ("ray.io", "*", ("rayclusters", "rayjobs", "rayservices")),
    ("leaderworkerset.x-k8s.io", "*", ("leaderworkersets",)),
)
"""Group, version and resources of the kinds whose templates a queue counts. Of all others, it counts the pods."""


@dataclass(frozen=True, slots=True)
class CardModels:
    """The models of a cluster's cards."""

    memory_mib: tuple[tuple[str, int], ...]
    """Name of each model, and its memory."""
    largest: bool = True
    """Which of the models that a pod may get counts: the one with the most memory, or the one with the least."""

    def memory_of(self, pod: JsonMapping) -> int:
        """Return the MiB of a card for a pod, or a template of one; of any where it chooses none. Raises BadInput."""
        wanted = selection(pod).cards
        product = ((pod.get("spec") or {}).get("nodeSelector") or {}).get(PRODUCT_LABEL) or ""
        fitting = [
            memory_mib
            for name, memory_mib in self.memory_mib
            if wanted.admits_model(name) and product in ("", name.replace(" ", "-"))
        ]
        found = fitting or [memory_mib for _, memory_mib in self.memory_mib]
        return max(found) if self.largest else min(found)


def container_sums(request: ContainerRequest | None, card_mib: int) -> dict[str, int]:
    """Return name of a resource -> what a container asks for in sum: nothing where it asks for no NVIDIA card."""
    if request is None or request.demand.wanted.vendor != ANY_NVIDIA.vendor:
        return {}
    demand = request.demand
    each = {SUM_MEMORY: _memory_mib(demand, card_mib), SUM_CORES: ALL_CORES if demand.whole else demand.cores}
    return {**{name: demand.cards * amount for name, amount in each.items() if amount}, SUM_GPUS: demand.cards}


def templates(found: JsonMapping) -> Iterator[tuple[tuple[str, ...], JsonMapping]]:
    """Yield keys and content of each template of pods in an object; of a Pod, itself."""
    for place in PLACES:
        outer = at(found, place.at)
        keys: list[str] = [""]
        if place.each:
            is_list = isinstance(outer, list)
            keys = [str(index) for index in range(len(outer))] if is_list else list(outer or ())
        for key in keys:
            inner = outer if not key else at(outer[int(key) if isinstance(outer, list) else key], place.then)
            if (at(inner, ("spec",)) or {}).get("containers"):
                yield (*place.at, *((key, *place.then) if key else ())), inner


def _memory_mib(demand: Demand, card_mib: int) -> int:
    """Return the MiB of one card; a percentage is rounded as on a card."""
    return demand.memory_mib if demand.memory_mib is not None else max(1, card_mib * demand.memory_percent // 100)


LABEL_PLACES: Final[tuple[Place, ...]] = ("annotations", "labels")

QUEUE_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
"""The form of a LocalQueue's name that a label can hold."""


def queue_label_names(place: Place) -> tuple[str, ...]:
    """Return the annotations or labels that name a queue; the first of them counts."""
    return tuple(word.name for word in unsupported_fields() if word.queue and place in word.places)


def local_queue(found: JsonMapping, dialects: Dialects, schedulers: Collection[str]) -> str:
    """Return the LocalQueue that a pod, or an object with templates of pods, names in other words.

    Empty for one whose pods ask for no cards or are of other schedulers, and for one with Kueue's own label.
    """
    asking = [pod for _, pod in templates(found) if _asks(pod, dialects, schedulers)]
    holders = [found, *asking]
    if not asking or any(ASKED_LABEL in _words(holder, "labels") for holder in holders):
        return ""
    return next((name for holder in holders for name in _names(holder) if re.fullmatch(QUEUE_NAME, name)), "")


def _asks(pod: JsonMapping, dialects: Dialects, schedulers: Collection[str]) -> bool:
    try:
        asks = any(container_requests(pod, dialects))
    except (BadInput, KeyError):  # its pods will be refused
        return False
    return asks and (pod["spec"].get("schedulerName") or "") in schedulers


def _names(holder: JsonMapping) -> Iterator[str]:
    for place in LABEL_PLACES:
        given = _words(holder, place)
        yield from (str(given[word]) for word in queue_label_names(place) if word in given)


def _words(holder: JsonMapping, place: Place) -> JsonMapping:
    return (holder.get("metadata") or {}).get(place) or {}
