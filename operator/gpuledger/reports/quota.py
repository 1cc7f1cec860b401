"""What a namespace has of what its quota allows, in a sentence."""

from __future__ import annotations

from gpuledger.model.gang import Counted, QuotaLimit

UNITS = {Counted.MEMORY: "MiB", Counted.CORES: "percent of a card's cores", Counted.SLOTS: "cards or parts of cards"}


def quota_text(namespace: str, limit: QuotaLimit, used: int) -> str:
    """Return how far a namespace is with a limit."""
    of = f" of {limit.model} cards" if limit.model else ""
    amounts = f"{used:,} of {limit.most:,} {UNITS[limit.counted]}{of}"
    return f"namespace {namespace} has {amounts}: {limit.key} of ResourceQuota {limit.quota}"
