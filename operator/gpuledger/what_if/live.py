"""The scene of a running cluster; apart from files, which are read without an event loop and its half a second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import chain
from typing import Protocol

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.gang import PODGROUPS, pod_groups_named
from gpuledger.formats.kubernetes.pod import created_at, is_being_deleted, pod_facts, scheduler_of
from gpuledger.formats.resource_claims.claims import ListedClaims, has_claims
from gpuledger.model.errors import Denied
from gpuledger.model.json_object import Json
from gpuledger.model.share import StoredCard
from gpuledger.what_if.scene import Given, Remark, Scene, take_group, take_quota
from gpuledger.workflows.resource_claims.claims import read_claims

WHERE = "cluster"


class ClusterReads(Protocol):
    """The reads that this module needs."""

    def nodes(self) -> AsyncIterator[list[Json]]:
        """Yield all Nodes, page by page."""

    def allocations(self) -> AsyncIterator[list[Json]]:
        """Yield all GPUAllocations, page by page."""

    def running_pods(self) -> AsyncIterator[list[Json]]:
        """Yield all pods that have a node and have not ended, page by page."""

    def pending_pods(self, scheduler_names: Sequence[str]) -> AsyncIterator[list[Json]]:
        """Yield the pods of scheduler profiles that have no node, page by page; others may be among them."""

    def resource_quotas(self) -> AsyncIterator[list[Json]]:
        """Yield all ResourceQuotas, page by page."""

    def groups(self, api_group: str, versions: Sequence[str], plural: str) -> AsyncIterator[list[Json]]:
        """Yield the PodGroups of an API, page by page, in the first of these versions that there is; maybe none."""

    def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        """Yield all objects of a kind of resource.k8s.io/v1, page by page."""


async def read_cluster(reads: ClusterReads, scheduler_names: Sequence[str], dialects: Dialects) -> Scene:
    """Read the cluster; pods that wait come by priority, then by age. Raises ApiError, BadInput for another CRD."""
    cards: dict[str, list[StoredCard]] = {}  # node name -> its cards
    held: set[str] = set()  # UIDs of pods that the ledger has
    async for page in reads.allocations():
        for stored in map(stored_card, page):
            cards.setdefault(stored.card.node_name, []).append(stored)
            held |= {holder.pod.uid for holder in stored.holders or ()}
    scene = Scene()
    async for page in reads.nodes():
        scene.nodes += [_given("Node", node) for node in page]
        scene.cards |= {name: cards.get(name, []) for node in page for name in [node["metadata"]["name"]]}
    async for page in reads.running_pods():
        scene.running += [_given("Pod", pod) for pod in page]
    pending = [pod async for page in reads.pending_pods(scheduler_names) for pod in page]
    if any(map(has_claims, (*pending, *(given.content for given in scene.running)))):
        read = await read_claims(reads, list(chain.from_iterable(cards.values())))
        scene.claims = read[0] if read else ListedClaims()
    waiting = []
    for pod in pending:
        facts = pod_facts(pod, dialects, scene.claims)
        ours = scheduler_of(pod) in scheduler_names and not is_being_deleted(pod)
        asks = facts.request is not None or facts.bad_request
        if ours and (facts.pod.uid in held or not asks):
            scene.entered.append(_given("Pod", pod))
        elif ours:
            waiting.append(((-facts.pod.priority, created_at(pod)), pod))
    scene.pods += [_given("Pod", pod) for _, pod in sorted(waiting, key=lambda each: each[0])]
    await _read_groups(reads, scene)
    await _read_quotas(reads, scene)
    return scene


async def _read_quotas(reads: ClusterReads, scene: Scene) -> None:
    """Read what namespaces may have; who may not read that is answered as if there were no limits, and told so."""
    try:
        async for page in reads.resource_quotas():
            for quota in page:
                take_quota(quota, WHERE, scene)
    except Denied as error:
        scene.notes.append(Remark(WHERE, "", f"quotas are left out, for they can't be read: {error}"))


async def _read_groups(reads: ClusterReads, scene: Scene) -> None:
    """Read what says of gangs how many members they need: those kinds of objects that pods name."""
    pods = (*scene.running, *scene.entered, *scene.pods)
    named = {group.way for pod in pods for group in pod_groups_named(pod.content)}
    for words in PODGROUPS:
        if words.way in named:
            async for page in reads.groups(words.api_group, words.versions, words.plural):
                for group in page:
                    take_group(group, words, WHERE, scene)


def _given(kind: str, content: Json) -> Given:
    return Given(WHERE, {**content, "kind": kind})
