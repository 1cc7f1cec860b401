"""kube-scheduler's own preemption, from Kubernetes 1.38 on: it asks the operator for victims, and evicts them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuledger.formats.scheduler import PreemptArguments
from gpuledger.model.errors import GpuledgerError
from simulation.api_server import Json
from simulation.item import LATE_S, SOON, SOON_S, Item
from simulation.scheduling import Attempt, Step

if TYPE_CHECKING:
    from simulation.kube_scheduler import KubeScheduler
    from simulation.world import World

LOST = "is lost"


class _MayBeLost(Item):
    """Something that waits for others, comes late, or never."""

    __slots__ = ()

    def ways(self) -> int:
        return 4

    def way(self, number: int) -> str:
        return ("", SOON, f"comes {LATE_S:.0f} s later", LOST)[number]

    def happen(self, way: int) -> None:
        if way == 0:
            self.do()
        elif way < 3:
            self.world.put_off(self, SOON_S if way == 1 else LATE_S)

    @property
    def group(self) -> str:
        return "preempt"


class PreemptQuestion(_MayBeLost, Step):
    """The scheduler asks whom it has to evict on nodes on which only the operator has refused the pod."""

    __slots__ = ("node_names", "pod")

    def __init__(self, scheduler: "KubeScheduler", attempt: Attempt, pod: Json, node_names: tuple[str, ...]) -> None:
        super().__init__(scheduler, attempt)
        self.pod = pod
        self.node_names = node_names

    def what(self) -> str:
        return f"{self.scheduler.name}: preempt {self.attempt.uid} on {', '.join(self.node_names)}"

    def do(self) -> None:
        process, none = self.scheduler.slot.process, dict.fromkeys(self.node_names, ())
        arguments = PreemptArguments(self.pod, none, dict.fromkeys(self.node_names, 0))

        def answered(victims: Mapping[str, Sequence[str]]) -> None:
            if process.alive and any(victims.values()):
                self.world.check_claimed(process, self.attempt.uid, victims)
                self.world.pend(PreemptAnswer(self.scheduler, self.attempt, victims))

        try:
            process.preempt(arguments, answered)
        except GpuledgerError as error:
            self.world.note(f"    no answer: {error}")


class PreemptAnswer(_MayBeLost, Step):
    """The answer, on its way to the scheduler."""

    __slots__ = ("victims",)

    def __init__(self, scheduler: "KubeScheduler", attempt: Attempt, victims: Mapping[str, Sequence[str]]) -> None:
        super().__init__(scheduler, attempt)
        self.victims = victims

    def what(self) -> str:
        named = "; ".join(f"{name}: {', '.join(uids)}" for name, uids in self.victims.items())
        return f"{self.scheduler.name}: hears of preempt {self.attempt.uid}: {named}"

    def do(self) -> None:
        for uid in (uid for uids in self.victims.values() for uid in uids):
            self.world.pend(VictimLeaves(self.world, self.scheduler.name, uid))


class VictimLeaves(_MayBeLost):
    """The scheduler deletes a victim, whatever its budgets say. If that fails, it does not try again by itself."""

    __slots__ = ("name", "uid")

    def __init__(self, world: "World", name: str, uid: str) -> None:
        super().__init__(world)
        self.name = name
        self.uid = uid

    def is_void(self) -> bool:
        return self.world.pod_of(self.uid) is None

    def what(self) -> str:
        return f"{self.name}: deletes victim {self.uid}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None and not pod["spec"].get("nodeName"):
            self.world.drop_pod(pod)
        elif pod is not None and not pod["metadata"].get("deletionTimestamp"):
            metadata = {**pod["metadata"], "deletionTimestamp": self.world.api.leaves_at()}
            self.world.api.put_pod({**pod, "metadata": metadata})
