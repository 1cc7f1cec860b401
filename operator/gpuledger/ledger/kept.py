"""What a pod has in the ledger, in whatever way."""

from __future__ import annotations

from gpuledger.ledger.book import Ledger


def has_kept(ledger: Ledger, pod_uid: str) -> bool:
    """Return whether a pod holds something, something is on hold for it, or promised to it."""
    return bool(ledger.hold_of(pod_uid) or ledger.holders_of(pod_uid) or ledger.promises.claims_of(pod_uid))
