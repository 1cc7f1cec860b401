"""Places for all members of a gang at once, found as the operator finds them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.ledger.book import PINNED, Ledger
from gpuledger.model.errors import WorkLimitExceeded
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import GangPlanner, Seat


def hold_all(ledger: Ledger, chooser: Chooser, seats: Sequence[Seat]) -> int:
    """Hold places for all, or for none; return for how many there is room.

    What the operator does between its questions is done at once: whether there is room is known then.
    """
    planner = GangPlanner(ledger, chooser)
    for request in dict.fromkeys(seat.request for seat in seats):
        chooser.best(request, None)  # so that the ask is known
    while True:
        while chooser.look_further():
            pass
        steps = planner.hold(seats, PINNED)
        try:
            while True:
                next(steps)
        except StopIteration as found:
            return int(found.value.number)
        except WorkLimitExceeded:
            continue
