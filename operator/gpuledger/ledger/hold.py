"""What is kept for a pod in memory until it is bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.model.share import Placement, Share


@dataclass(frozen=True, slots=True)
class Hold:
    """A placement kept in memory until `deadline_s`, a time of the caller's clock in seconds."""

    pod_uid: str
    placement: Placement
    deadline_s: float
    spares: tuple[Placement, ...] = ()
    """The same on other nodes, the preferred first, while one of them can still be chosen instead."""
    is_early: bool = False
    """Whether kube-scheduler has not asked for the pod yet: then all of it is spare."""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All that is kept, the preferred first."""
        return (self.placement, *self.spares)

    @property
    def has_spares(self) -> bool:
        """Whether others get some of it where they need it."""
        return self.is_early or bool(self.spares)

    def is_spare(self, uuid: str) -> bool:
        """Return whether another pod may take this card's share."""
        return self.is_early or all(share.uuid != uuid for share in self.placement.shares)


def shares_on_hold(uuid: str, holds: Iterable[Hold]) -> dict[str, Share]:
    """Return what is on hold on a card, by the UIDs of the pods."""
    return {
        hold.pod_uid: share
        for hold in holds
        for placement in hold.placements
        for share in placement.shares
        if share.uuid == uuid
    }
