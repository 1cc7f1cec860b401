"""Limits above a container's share: what a pod may take of its cards while nobody else needs it. Pure.

The ledger counts the share, and nothing else. So a limit above it is only for nodes whose administrator allows that,
and, unless he says otherwise, whose isolation keeps the shares of the others: the driver does, HAMi-core does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from gpuledger.agent.isolation.kinds import GrantedCard, Isolation
from gpuledger.formats.objects.memory_limit import limit_of, memory_limits


class Bursts(StrEnum):
    """Where a pod's limit may be above its share."""

    NEVER = "never"
    GUARANTEED = "guaranteed"
    """Where others keep their shares all the same."""
    ANY = "any"
    """Where there are limits at all."""


_HELD_BY = {
    Bursts.NEVER: frozenset[Isolation](),
    Bursts.GUARANTEED: frozenset({Isolation.DRIVER}),
    Bursts.ANY: frozenset({Isolation.DRIVER, Isolation.HAMI_CORE}),
}


def with_bursts(
    cards: Sequence[GrantedCard], pod: Mapping[str, Any], container: str, isolation: Isolation, allowed: Bursts
) -> tuple[GrantedCard, ...]:
    """Return a container's cards with the limits that its pod wishes, where that is allowed and has an effect.

    Raises BadInput if the wish can't be read.
    """
    if isolation not in _HELD_BY[allowed]:
        return tuple(cards)
    limits = memory_limits(pod)
    return tuple(
        replace(card, burst_mib=limit_of(container, limits, card.memory_mib, card.capacity_mib)) for card in cards
    )


def why_no_burst(pod: Mapping[str, Any], isolation: Isolation, allowed: Bursts) -> str:
    """Return why the limits that a pod wishes count for nothing; empty if they count, or it wishes none.

    Raises BadInput if the wish can't be read.
    """
    if not memory_limits(pod) or isolation in _HELD_BY[allowed]:
        return ""
    if allowed is Bursts.NEVER:
        return "this node allows no limits above shares (setting memory_bursts)"
    return f"{isolation}, by which this node isolates, does not hold such limits"
