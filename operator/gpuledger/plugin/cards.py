"""The cards of the ledger, as the API server stores them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gpuledger.formats.custom_resource.resource import API_VERSION, CORDON_ANNOTATION, KIND, PLURAL
from gpuledger.formats.custom_resource.stored_card import LABEL_LENGTH, NODE_LABEL, stored_card
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.stored_card import StoredCard
from gpuledger.plugin.list_items import list_items

Json = dict[str, Any]

ALLOCATIONS = f"/apis/{API_VERSION}/{PLURAL}"

FROM_MEMORY = {"resourceVersion": "0"}
"""The API server answers from its memory, in one piece, and does not ask etcd."""

ITEM_BEGIN = f'{{"apiVersion":"{API_VERSION}","kind":"{KIND}",'.encode()
"""How the API server begins each of them: it sorts the names of fields."""

NO_CRD = "there are no GPUAllocations on this cluster: is gpuledger installed? kubectl apply -k manifests/"


class Answer(Protocol):
    """What was asked of the API server."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the answer as it comes."""

    def result(self) -> bytes:
        """Wait for the answer."""


class Cluster(Protocol):
    """The way to the API server: Kubectl, or Account where there is none. All of it raises BadInput and ApiError."""

    def begin(self, path: str, parameters: Json | None = None) -> Answer:
        """Start to read what is at a path of the API."""

    def read(self, path: str, parameters: Json | None = None) -> Json:
        """Return the object at a path of the API."""

    def patch_card(self, name: str, change: Json) -> Json:
        """Merge a change into a GPUAllocation and return it."""

    def namespace(self) -> str:
        """Return the namespace that is meant where none is named."""


def begin_cards(cluster: Cluster, node: str | None = None) -> Answer:
    """Start to read all cards, or those of one node."""
    return cluster.begin(ALLOCATIONS, FROM_MEMORY | selector_of(node))


def selector_of(node: str | None) -> Json:
    """Return the parameters that select a node's cards; of a node with too long a name for a label, all cards."""
    if node is None or len(node) > LABEL_LENGTH:
        return {}
    return {"labelSelector": f"{NODE_LABEL}={node}"}


def cards_in(answer: Answer, node: str | None = None) -> list[StoredCard]:
    """Return the cards of an answer, those of one node if it is named. Raises BadInput without the CRD, ApiError."""
    return [stored_card(item) for item in objects_in(answer, node)]


def objects_in(answer: Answer, node: str | None = None) -> Iterator[Json]:
    """Yield the GPUAllocations of an answer themselves, each as soon as it is there. Raises as `cards_in`.

    The API server takes as long to send thousands of them as we take to read them.
    """
    try:
        for item in list_items(answer.pieces(), ITEM_BEGIN):
            if node is None or item["spec"]["nodeName"] == node:
                yield item
    except NotFound:
        raise BadInput(NO_CRD) from None


def cordon_of(allocation: Json) -> str | None:
    """Return why a person wants no new pods on a card, None if nobody said so."""
    found = (allocation["metadata"].get("annotations") or {}).get(CORDON_ANNOTATION)
    return None if found is None else str(found)


def card_named(objects: Iterable[Json], name: str) -> Json:
    """Return the card whose UUID this is, or begins with it, in any case. Raises BadInput if it is none, or several."""
    wanted = name.lower()
    found = [item for item in objects if item["metadata"]["name"].startswith(wanted)]
    exact = [item for item in found if item["metadata"]["name"] == wanted]
    if not found:
        raise BadInput(f"no card has a UUID that begins with {name!r}; `gpuledger top cards` shows all of them")
    if len(found) > 1 and not exact:
        some = ", ".join(sorted(item["spec"]["uuid"] for item in found)[:4])
        raise BadInput(f"{len(found)} cards have a UUID that begins with {name!r}: {some}, ...; name more of it")
    return (exact or found)[0]


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through what is read, now and later.

    There are no cycles in it, and to look for them takes as long as to read.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
