"""An attempt to schedule a pod, and the steps of one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.item import Item

if TYPE_CHECKING:
    from simulation.kube_scheduler import KubeScheduler


@dataclass(slots=True)
class Attempt:
    """Where a pod is in its way through the scheduler. A later attempt replaces it."""

    uid: str
    number: int
    """Of attempts before, failed or refused."""
    rested: bool = False
    """It has waited for the end of its back-off."""
    asleep: bool = False
    """Refused by all nodes: waits until something changes."""
    backing_off: bool = False
    told: str = field(default="")


class Step(Item):
    """A step of an attempt, void when a later attempt has begun."""

    __slots__ = ("attempt", "scheduler")

    def __init__(self, scheduler: "KubeScheduler", attempt: Attempt) -> None:
        super().__init__(scheduler.world)
        self.scheduler = scheduler
        self.attempt = attempt

    def is_void(self) -> bool:
        return self.scheduler.attempts.get(self.attempt.uid) is not self.attempt
