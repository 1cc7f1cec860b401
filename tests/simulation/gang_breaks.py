"""Safeguards of gangs, and how each is taken away."""

from collections.abc import Callable
from typing import Any

from gpuledger.workflows.binding.bind_pod import PodBinder
from gpuledger.workflows.gangs.gangs import BindBarrier, GangBinder, Gangs
from simulation.breaks import Break, Patch

TOO_EARLY = "members of its gang have their cards"


def nobody_waits_for_the_others(patch: Patch) -> None:
    async def stand(self: BindBarrier, pod_uid: str, is_asked: Callable[[], bool], *_: Any) -> None:
        self._standing[pod_uid] = is_asked

    nobody_looks_again(patch)
    patch.setattr(BindBarrier, "stand", stand)


def nobody_waits_for_their_shares(patch: Patch) -> None:
    async def entered(self: BindBarrier, pod_uid: str, check: Callable[[], None]) -> None:
        """Go on."""

    nobody_looks_again(patch)
    patch.setattr(BindBarrier, "entered", entered)


def nobody_looks_again(patch: Patch) -> None:
    """Take away the look before each Binding, which would do in most orders: a life in test_lives.py needs it."""
    patch.setattr(GangBinder, "_check_complete", lambda self, state: None)


def what_was_entered_stays(patch: Patch) -> None:
    async def give_back(self: PodBinder, *arguments: Any) -> None:
        """Leave it, and what is on hold."""

    patch.setattr(PodBinder, "give_back", give_back)


def nobody_is_woken(patch: Patch) -> None:
    patch.setattr(Gangs, "requeue", lambda self, state: None)


GANG_BREAKS = [
    Break("the barrier before the entry", nobody_waits_for_the_others, "a gang", TOO_EARLY),
    Break("the barrier before the Bindings", nobody_waits_for_their_shares, "a gang", TOO_EARLY),
    Break("giving back what a gang has entered in part", what_was_entered_stays, "a gang", "is not a living bound pod"),
    Break(
        "waking the others",
        nobody_is_woken,
        "a gang whose first member sleeps when the last one comes",
        "there is room for it",
    ),
]
