"""A rule for the cards of a pod together, as ResourceClaims state it in their constraints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardRule:
    """All cards of all demands of a pod that carry the same rule have the attribute, with the same value or all others.

    A card that two demands use counts for each of them: by a `distinct` rule they can't have the same card.
    """

    attribute: str
    """Qualified, as in `model.card_attributes`."""
    constraint: int
    """Number of the constraint, counted over all of the pod's claims: two of them can be about one attribute."""
    distinct: bool = False
    """No two cards have the same value (`distinctAttribute`); else all have the same one (`matchAttribute`)."""
