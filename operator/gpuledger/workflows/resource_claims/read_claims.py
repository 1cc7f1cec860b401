"""One look at ResourceClaims, their templates and DeviceClasses: for commands, which follow nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, Protocol

from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.listed import ListedClaims
from gpuledger.formats.resource_claims.names import DRIVER
from gpuledger.model.errors import Denied, NotFound
from gpuledger.model.seen_claim import SeenClaim
from gpuledger.model.stored_card import StoredCard
from gpuledger.workflows.resource_claims.kept_objects import Kind

logger = logging.getLogger(__name__)

Json = dict[str, Any]


class ClaimReads(Protocol):
    """What is read of the cluster."""

    def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        """Yield all objects of a kind of resource.k8s.io/v1, page by page."""


async def read_claims(reads: ClaimReads, cards: Collection[StoredCard]) -> tuple[ListedClaims, list[SeenClaim]] | None:
    """Return what there is, and what of it an audit compares; None where they are not served, or may not be read.

    `cards` are the ledger's: who holds what by a claim. Raises ApiError.
    """
    found, seen, uuids = ListedClaims(holders=claim_holders(cards)), list[SeenClaim](), uuids_by_device(cards)
    try:
        async for page in reads.claim_objects(Kind.CLAIMS):
            found.add(claims=page)
            seen += [seen_claim(each, uuids) for each in page]
        async for page in reads.claim_objects(Kind.TEMPLATES):
            found.add(templates=page)
        async for page in reads.claim_objects(Kind.CLASSES):
            found.add(classes=page)
    except NotFound:
        return None
    except Denied as error:
        logger.warning("ResourceClaims are left out, for they can't be read: %s", error)
        return None
    return found, seen


def claim_holders(cards: Iterable[StoredCard]) -> dict[str, str]:
    """Return who holds the cards of claims in the ledger: UID of the claim -> UID of the pod."""
    holders = (holder for stored in cards for holder in stored.holders or ())
    return {
        part.claim.uid: holder.pod.uid
        for holder in holders
        for part in holder.share.containers
        if part.claim is not None
    }


def seen_claim(claim: Json, uuids: dict[str, str]) -> SeenClaim:
    """Return what an audit compares of a claim; `uuids` are those of the cards, by the names of their devices."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    ours = [each for each in results if each.get("driver") == DRIVER]
    consumers = status.get("reservedFor") or ()
    return SeenClaim(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        node_name=str(ours[0].get("pool")) if ours else "",
        cards=frozenset((str(each["request"]), uuids.get(each["device"], each["device"])) for each in ours),
        consumers=tuple(str(each.get("uid")) for each in consumers),
        consumer_names=tuple(str(each.get("name")) for each in consumers),
    )


def uuids_by_device(cards: Iterable[StoredCard]) -> dict[str, str]:
    """Return the cards' UUIDs by the names of their devices."""
    return {device_name(stored.card.uuid): stored.card.uuid for stored in cards}
