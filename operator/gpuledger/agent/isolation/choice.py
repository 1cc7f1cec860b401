"""Which way keeps a container's shares apart: its node's, or the one that its pod wishes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.agent.isolation.ways import GrantedCard, Installed, Isolation


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """A way, and why it is not the one that the pod wishes; empty if it is."""

    isolation: Isolation
    why_not_as_wished: str = ""


def choose(cards: Sequence[GrantedCard], of_node: Isolation, wish: str, installed: Installed) -> IsolationChoice:
    """Return how these cards are kept apart from others' shares.

    A pod's wish counts where it can harm no other pod: it is alone on its cards, or the node enforces nothing and has
    what the wish needs. Users can write wishes at any time.
    """
    own = Isolation.MIG if all(card.mode == Isolation.MIG for card in cards) else of_node
    if not wish or wish == own:
        return IsolationChoice(own)
    if wish not in (Isolation.NONE, Isolation.MPS, Isolation.HAMI_CORE) or own is Isolation.MIG:
        return IsolationChoice(own, f"{wish[:32]!r} can't be chosen for these cards")
    wished = Isolation(wish)
    if wished is Isolation.NONE:
        alone = all(card.exclusive for card in cards)
        return (
            IsolationChoice(wished)
            if alone
            else IsolationChoice(own, "none is only for pods that have their cards alone")
        )
    if not _is_installed(wished, installed):
        return IsolationChoice(own, f"{wished} is not installed on the node")
    if own is not Isolation.NONE and not all(card.exclusive for card in cards):
        return IsolationChoice(own, f"the node enforces limits by {own}")
    return IsolationChoice(wished)


def missing(isolation: Isolation, installed: Installed, cards: Sequence[GrantedCard] = ()) -> str:
    """Return what the node lacks for this way and these cards, an empty string for nothing."""
    if isolation is Isolation.MPS and installed.mps_pipes is not None and cards:
        return installed.mps_pipes.missing(cards)
    return "" if _is_installed(isolation, installed) else f"the node's isolation is {isolation}, which it does not have"


def _is_installed(isolation: Isolation, installed: Installed) -> bool:
    if isolation is Isolation.MPS:
        return bool(installed.mps_directory)
    return isolation is not Isolation.HAMI_CORE or bool(installed.hami_core_directory)
