"""The cards of the ledger, as the API server stores them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuledger.formats.custom_resource.resource import API_VERSION, CORDON_ANNOTATION, PLURAL
from gpuledger.formats.custom_resource.stored_card import LABEL_LENGTH, NODE_LABEL
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.grouping import listed

if TYPE_CHECKING:
    from gpuledger.command_line.cluster_access import ClusterAccess


ALLOCATIONS = f"/apis/{API_VERSION}/{PLURAL}"

CARDS_NAMED = 4
"""Of more cards than one that a name could mean."""

FROM_MEMORY = {"resourceVersion": "0"}
"""The API server answers from its memory, in one piece, and does not ask etcd."""

NO_CRD = "there are no GPUAllocations on this cluster: is gpuledger installed? kubectl apply -k manifests/"

NO_CARDS = (
    "No cards in the ledger. Have the agent run where they are (kubectl label node NAME gpuledger.dev/agent=true); "
    "`gpuledger doctor` says what is missing."
)


def begin_cards(cluster: ClusterAccess, node: str | None = None) -> Iterable[Json]:
    """Start to read the GPUAllocations, all or those of one node.

    Yields each as soon as it is there, once: the API server takes as long to send thousands of them as we take to read
    them. Raises BadInput without the CRD, ApiError.
    """
    return _of_node(cluster.begin(ALLOCATIONS, FROM_MEMORY | selector_of(node)), node)


def all_cards(cluster: ClusterAccess) -> list[Json]:
    """Return all GPUAllocations. Raises as `begin_cards`."""
    coming = begin_cards(cluster)
    with uncollected():
        return list(coming)


def _of_node(objects: Iterable[Json], node: str | None) -> Iterator[Json]:
    try:
        for item in objects:
            if node is None or item["spec"]["nodeName"] == node:
                yield item
    except NotFound:
        raise BadInput(NO_CRD) from None


def selector_of(node: str | None) -> dict[str, str]:
    """Return the parameters that select a node's cards; of a node with too long a name for a label, all cards."""
    if node is None or len(node) > LABEL_LENGTH:
        return {}
    return {"labelSelector": f"{NODE_LABEL}={node}"}


def cordon_of(allocation: Json) -> str | None:
    """Return why a person wants no new pods on a card, None if it is not cordoned."""
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
        some = listed(sorted(item["spec"]["uuid"] for item in found), CARDS_NAMED)
        raise BadInput(f"{len(found)} cards have a UUID that begins with {name!r}: {some}; name more of it")
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
