"""What may happen beside faults of the network. An act happens once; a scenario that wants it twice names it twice."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulation.item import Item
from simulation.scenario import Wish

if TYPE_CHECKING:
    from simulation.slot import Slot
    from simulation.world import World


@dataclass(frozen=True)
class Crash:
    """An operator dies."""

    slot: int = 1

    def can(self, world: "World") -> bool:
        return world.slots[self.slot - 1].process.alive

    def do(self, world: "World") -> None:
        world.slots[self.slot - 1].crash()


@dataclass(frozen=True)
class LeaseMoves:
    """Another replica becomes the active one. The old scheduler may go on for a while."""

    slot: int

    def can(self, world: "World") -> bool:
        return world.lease_holder != self.slot

    def do(self, world: "World") -> None:
        lease_moves(world, self.slot)
        world.give_lease(self.slot)


def lease_moves(world: "World", to_slot: int) -> None:
    """Let another scheduler begin, and the one that has had the Lease notice that later."""
    world.pend(SchedulerStops(world.slots[world.lease_holder - 1]))
    world.lease_holder = to_slot
    world.slots[to_slot - 1].scheduler.start()


class SchedulerStops(Item):
    """A scheduler that has lost the Lease notices it."""

    __slots__ = ("slot",)

    def __init__(self, slot: "Slot") -> None:
        super().__init__(slot.world)
        self.slot = slot

    def what(self) -> str:
        return f"scheduler {self.slot.number}: stops"

    def is_void(self) -> bool:
        return self.world.lease_holder == self.slot.number

    def do(self) -> None:
        self.slot.scheduler.stop()


@dataclass(frozen=True)
class Create:
    """A pod is created; a second one of the same name once the first has gone."""

    wish: Wish

    def can(self, world: "World") -> bool:
        return f"default/{self.wish.name}" not in world.api.pods

    def do(self, world: "World") -> None:
        world.create(self.wish)


@dataclass(frozen=True)
class CreateSeveral:
    """Several pods are created at once, so that they queue."""

    wishes: tuple[Wish, ...]

    def can(self, world: "World") -> bool:
        return all(f"default/{wish.name}" not in world.api.pods for wish in self.wishes)

    def do(self, world: "World") -> None:
        for wish in self.wishes:
            world.create(wish)


@dataclass(frozen=True)
class Delete:
    """A pod is deleted in good order."""

    name: str

    def can(self, world: "World") -> bool:
        pod = world.api.pods.get(f"default/{self.name}")
        return pod is not None and not pod["metadata"].get("deletionTimestamp")

    def do(self, world: "World") -> None:
        pod = world.api.pods[f"default/{self.name}"]
        if not pod["spec"].get("nodeName"):
            world.drop_pod(pod)
            return
        world.api.put_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": world.api.leaves_at()}})


@dataclass(frozen=True)
class ForceDelete:
    """A pod's object is removed, whatever its processes do."""

    name: str

    def can(self, world: "World") -> bool:
        return f"default/{self.name}" in world.api.pods

    def do(self, world: "World") -> None:
        world.drop_pod(world.api.pods[f"default/{self.name}"])


@dataclass(frozen=True)
class Finish:
    """A pod that runs comes to its end; its object stays."""

    name: str

    def can(self, world: "World") -> bool:
        pod = world.api.pods.get(f"default/{self.name}")
        return pod is not None and pod["status"].get("phase") == "Running"

    def do(self, world: "World") -> None:
        pod = world.api.pods[f"default/{self.name}"]
        world.api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})


@dataclass(frozen=True)
class Touch:
    """Somebody changes a pod that waits: its version is another one then."""

    name: str

    def can(self, world: "World") -> bool:
        pod = world.api.pods.get(f"default/{self.name}")
        return pod is not None and not pod["spec"].get("nodeName")

    def do(self, world: "World") -> None:
        pod = world.api.pods[f"default/{self.name}"]
        labels = {**(pod["metadata"].get("labels") or {}), "touched": str(world.api.version)}
        world.api.put_pod({**pod, "metadata": {**pod["metadata"], "labels": labels}})


@dataclass(frozen=True)
class AgentAway:
    """The GPU agent of a node stops to answer, or answers again."""

    node_name: str

    def can(self, world: "World") -> bool:
        return True

    def do(self, world: "World") -> None:
        world.nodes.toggle_agent(self.node_name)


@dataclass(frozen=True)
class ClockJumps:
    """Somebody sets the wall clock of a replica's machine, forwards or back."""

    slot: int
    by_s: float

    def can(self, world: "World") -> bool:
        return True

    def do(self, world: "World") -> None:
        slot = world.slots[self.slot - 1]
        world.clocks_agree = False
        slot.skew_s += self.by_s
        slot.process.clock.ahead_s = slot.skew_s


@dataclass(frozen=True)
class BudgetAllows:
    """A PodDisruptionBudget that covers all pods allows so many evictions from now on."""

    evictions: int

    def can(self, world: "World") -> bool:
        return True

    def do(self, world: "World") -> None:
        world.api.allow_evictions(self.evictions)
