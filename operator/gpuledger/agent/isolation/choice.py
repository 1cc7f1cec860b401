"""Which way keeps a container's shares apart: its node's, or the one that its pod wishes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.agent.isolation.kinds import GrantedCard, Installed, Isolation


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
    if wish not in (Isolation.NONE, Isolation.MPS, Isolation.HAMI_CORE, Isolation.DRIVER) or own is Isolation.MIG:
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


def fitting(installed: Installed) -> Isolation:
    """Return the best way that a node has without anybody's doing: the driver, else HAMi-core that an image brings.

    A library that somebody else has put on the node, such as HAMi, does not count: that may go at any time.
    """
    if not installed.why_no_driver_limits:
        return Isolation.DRIVER
    from_image = installed.hami_core.library_directory not in ("", installed.hami_core_directory)
    return Isolation.HAMI_CORE if from_image else Isolation.NONE


def without_hami_core(
    choice: IsolationChoice, cards: Sequence[GrantedCard], of_node: Isolation, installed: Installed
) -> IsolationChoice:
    """Return the choice for a container whose environment wishes, as HAMi's users say it, that HAMi-core does nothing.

    That is the wish for none, and counts where that would: not beside other pods.
    """
    if choice.isolation is not Isolation.HAMI_CORE:
        return choice
    return choose(cards, of_node, Isolation.NONE, installed)


def missing(isolation: Isolation, installed: Installed, cards: Sequence[GrantedCard] = ()) -> str:
    """Return what the node lacks for this way and these cards, an empty string for nothing."""
    if isolation is Isolation.MPS and installed.mps_pipes is not None and cards:
        return installed.mps_pipes.missing(cards)
    if _is_installed(isolation, installed):
        return ""
    reasons = {Isolation.DRIVER: installed.why_no_driver_limits, Isolation.HAMI_CORE: installed.why_no_hami_core}
    why = f": {reason}" if (reason := reasons.get(isolation)) else ""
    return f"the node's isolation is {isolation}, which it does not have{why}"


def _is_installed(isolation: Isolation, installed: Installed) -> bool:
    if isolation is Isolation.MPS:
        return bool(installed.mps_directory)
    if isolation is Isolation.DRIVER:
        return not installed.why_no_driver_limits
    return isolation is not Isolation.HAMI_CORE or bool(installed.hami_core_directory)
