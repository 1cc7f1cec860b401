"""What becomes of pods' ResourceClaims when their shares end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.formats.resource_claims.allocation import without_consumer
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.errors import NotFound
from gpuledger.model.share import ClaimRef, Holder, Pod
from gpuledger.workflows.resource_claims.claim_book import ClaimBook
from gpuledger.workflows.resource_claims.claim_status import ClaimStatusWriter, Json
from gpuledger.workflows.tasks.together import all_of


def claims_of(holders: Sequence[Holder]) -> list[ClaimRef]:
    """Return the claims by which a pod has its shares, each once."""
    parts = (part.claim for holder in holders for part in holder.share.containers)
    return list(dict.fromkeys(claim for claim in parts if claim is not None))


class ClaimEnds:
    """Takes back what was written into claims."""

    def __init__(self, store: KubeStore, book: ClaimBook | None = None) -> None:
        self._status = ClaimStatusWriter(store, book)

    async def withdraw(self, pod: Pod, claims: Sequence[ClaimRef]) -> None:
        """Take back what was allocated for a pod that was not bound, before its shares leave the ledger. Idempotent."""
        await all_of([self._withdraw(pod, claim) for claim in claims])

    async def _withdraw(self, pod: Pod, claim: ClaimRef) -> None:
        def change(status: Mapping[str, Any]) -> Json | None:
            if all(each.get("uid") != pod.uid for each in status.get("reservedFor") or ()):
                return None
            after = without_consumer(status, pod.uid)
            return {"reservedFor": after.get("reservedFor"), "allocation": after.get("allocation")}

        try:
            await self._status.change(pod.namespace, claim.name, claim.uid, change)
        except NotFound:
            return
