"""A replica of the installation: a kube-scheduler with its operator, which is started again whenever it dies."""

from typing import TYPE_CHECKING

from simulation.item import Item
from simulation.kube_scheduler import KubeScheduler
from simulation.operator_process import OperatorProcess

if TYPE_CHECKING:
    from simulation.world import World


class Slot:
    """One replica."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.host = f"host-{number}"
        self.starts = 0
        self.skew_s = world.scenario.skew_s(number)
        """By how much the wall clock of its machine is ahead now."""
        self.dead: list[OperatorProcess] = []
        self.scheduler = KubeScheduler(world, self)
        self.process = self._new_process()

    def _new_process(self) -> OperatorProcess:
        self.starts += 1
        name = f"operator {self.number}" + "'" * (self.starts - 1)
        host = self.host if self.world.scenario.follows_lease else None
        return OperatorProcess(self.world, name, host, self.crash, self.skew_s)

    def crash(self, why: str = "is killed") -> None:
        """Let the operator die; it is started again."""
        self.world.note(f"{self.process.name}: {why}")
        self.process.die()
        self.world.has_crashed = True
        self.dead.append(self.process)
        self.world.put_off(Restart(self), 1.0)

    def restart_scheduler(self) -> None:
        """Start the scheduler anew: it knows nothing."""
        self.scheduler.end()
        self.scheduler = KubeScheduler(self.world, self)
        if not self.world.scenario.follows_lease or self.world.lease_holder == self.number:
            self.scheduler.start()

    def start(self) -> None:
        """Start the operator again: it knows nothing."""
        self.process = self._new_process()


class Restart(Item):
    """A dead operator's new start."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.world)
        self.slot = slot

    def what(self) -> str:
        return f"operator {self.slot.number}: starts again"

    def do(self) -> None:
        self.slot.start()
