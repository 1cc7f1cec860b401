"""Detects that the API server's data was restored from an older state, such as a backup of etcd."""

from __future__ import annotations

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.errors import StateRolledBack
from gpuledger.model.stored_card import StoredCard


def check_age(stored: StoredCard, known_version: int, entry: CardEntry | None) -> None:
    """Raise StateRolledBack for a card in a list that is older than it was before that list was asked for.

    Its versions may repeat, too: then it is not as it was known in the same one.
    """
    version = stored.resource_version
    is_another = entry is not None and version == entry.resource_version and _has_others(entry, stored)
    if version < known_version or is_another:
        others = " with other holders" if is_another else ""
        raise state_rolled_back(f"GPUAllocation {stored.card.object_name}", version, known_version, others)


def state_rolled_back(what: str, version: int, known_version: int, others: str = "") -> StateRolledBack:
    """Return the error for an object that is older than it was."""
    return StateRolledBack(
        f"{what} has version {version}, and had {known_version}{others}: the API server's data was restored from an "
        "older state. The operator's memory no longer matches it, so the operator exits; when it restarts, it reads "
        "the restored data"
    )


def _has_others(entry: CardEntry, stored: StoredCard) -> bool:
    """Tell whether a card has other holders than it was known to have; it has none before its first status."""
    known = stored.holders is None or {holder.pod.uid: holder for holder in stored.holders} == entry.holders
    return entry.stored and not known
