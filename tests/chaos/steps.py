"""What a plan consists of: the steps that are done to a cluster, each at its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Program = Literal["operator", "scheduler"]


@dataclass(frozen=True)
class PlannedPod:
    """A pod that will be created. Its annotations tell the kubelet's player what becomes of it."""

    namespace: str
    name: str
    shape: str
    priority: str
    start_after_s: float
    """From its Binding to the moment at which a kubelet shows it as running."""
    end_after_s: float
    """From a deletion in good order to its end."""
    run_s: float | None = None
    """After which it ends by itself."""
    group: int = 0
    """Pods of one group have the same label, by which a budget selects them."""
    cpus: int = 0
    gang: str = ""
    minimum: int = 0
    """How many pods of the gang have to be bound at once."""
    leaves_failed_card: bool = False
    """Whether it asks to be evicted from a card that has failed, though it has no controller."""
    templates: tuple[str, ...] = ()
    """Shapes of claims that are made for it; with these or with `claims`, its containers ask for nothing else."""
    claims: tuple[str, ...] = ()
    """Names of claims that others can use, too."""


@dataclass(frozen=True)
class PlannedWorkload:
    """A workload of Kueue: pods of one shape, that are created when it is admitted."""

    namespace: str
    name: str
    shape: str
    count: int


@dataclass(frozen=True)
class Step:
    """Something that is done. `at_s` counts from the beginning of the chaos."""

    at_s: float

    @property
    def subject(self) -> str:
        """Which pod it is about, with its namespace; empty: not about one."""
        return ""

    def __str__(self) -> str:
        values = (f"{name}={value!r}" for name, value in vars(self).items() if name != "at_s")
        return f"{type(self).__name__}({', '.join(values)})"


# Pods.


@dataclass(frozen=True)
class Create(Step):
    """Create a pod, after one of the same name is gone."""

    pod: PlannedPod

    @property
    def subject(self) -> str:
        """The pod."""
        return f"{self.pod.namespace}/{self.pod.name}"

    def __str__(self) -> str:
        return f"Create({self.pod.namespace}/{self.pod.name}, {self.pod.shape}, {self.pod.priority})"


@dataclass(frozen=True)
class Delete(Step):
    """Delete a pod: in good order, which its kubelet brings to an end, or by force."""

    namespace: str
    name: str
    by_force: bool

    @property
    def subject(self) -> str:
        """The pod."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class DeleteNamespace(Step):
    """Delete a namespace and all pods in it, in good order."""

    namespace: str


@dataclass(frozen=True)
class SetBudget(Step):
    """Let a PodDisruptionBudget protect a group of a namespace's pods; None takes it away."""

    namespace: str
    group: int
    min_available: int | None


@dataclass(frozen=True)
class SetQuota(Step):
    """Let a ResourceQuota say what the pods of a namespace may have; nothing takes it away."""

    namespace: str
    hard: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class CreateClaim(Step):
    """Create a ResourceClaim that pods can share; its shape is the end of its name."""

    namespace: str
    name: str


@dataclass(frozen=True)
class DeleteClaim(Step):
    """Delete it, which takes as long as pods use it."""

    namespace: str
    name: str


@dataclass(frozen=True)
class CreateWorkload(Step):
    """Create a workload of Kueue, after one of the same name is gone."""

    workload: PlannedWorkload


@dataclass(frozen=True)
class DeleteWorkload(Step):
    """Delete a workload, and with it its pods."""

    namespace: str
    name: str


@dataclass(frozen=True)
class CreateReservation(Step):
    """Reserve for pods of a group, as many as a shape asks for."""

    namespace: str
    name: str
    shape: str
    group: int
    count: int
    once: bool
    lasts_s: float


@dataclass(frozen=True)
class DeleteReservation(Step):
    """Delete a reservation; without a name, all of the namespace."""

    namespace: str
    name: str = ""


@dataclass(frozen=True)
class CreateReplicas(Step):
    """Create a ReplicaSet: of its pods, others come when they go."""

    namespace: str
    name: str
    shape: str
    count: int
    group: int


@dataclass(frozen=True)
class MoveAway(Step):
    """Empty a node by `kubectl gpuledger move`, as for maintenance, for so long at most, and open it again."""

    node: str
    for_s: float


# Hostile objects.


@dataclass(frozen=True)
class CreateHostile(Step):
    """Let the hostile user create what hostile/catalogue.py has of a kind; `node` is for pods that name one."""

    kind: str
    node: str


@dataclass(frozen=True)
class DeleteHostile(Step):
    """Let the hostile user delete what he has of a kind, in good order or by force."""

    kind: str
    by_force: bool


# Nodes and their cards.


@dataclass(frozen=True)
class DeleteNode(Step):
    """Delete a node. Its pods stay, bound to nothing; with `collect_after_s` they are deleted by force later."""

    node: str
    collect_after_s: float | None = None


@dataclass(frozen=True)
class AddNode(Step):
    """Register a node again."""

    node: str


@dataclass(frozen=True)
class SetAgent(Step):
    """Let a node's GPU agent go or come back: the kubelet then shows no slots, or all."""

    node: str
    is_there: bool


@dataclass(frozen=True)
class ChangeCard(Step):
    """Change what a node says of one of its cards: healthy, memoryMiB, number, or present, which it may not be.

    Or faultClass, the class of a fault that it has from now on; None: of none.
    """

    node: str
    card: int
    field: str
    value: object


@dataclass(frozen=True)
class ClaimCard(Step):
    """Let a node report a card of another node as its own, or stop that."""

    node: str
    owner: str
    card: int
    is_claimed: bool


# Programs.


@dataclass(frozen=True)
class Kill(Step):
    """Kill a program and start it again; `pair` says whose."""

    program: Program
    down_s: float
    pair: int = 0


@dataclass(frozen=True)
class Freeze(Step):
    """Stop a program where it is, and let it go on later, as if nothing had been."""

    program: Program
    for_s: float
    pair: int = 0


@dataclass(frozen=True)
class StartRival(Step):
    """Let a second operator and kube-scheduler work at the same time, both sure to be the only ones."""

    for_s: float


@dataclass(frozen=True)
class RestartApiServer(Step):
    """Kill the API server and start it again."""

    down_s: float


@dataclass(frozen=True)
class RestartEtcd(Step):
    """Kill etcd and start it again."""

    down_s: float


# What stands between.


@dataclass(frozen=True)
class HoldWatch(Step):
    """Let a running watch of the operator show nothing for a while."""

    resource: str
    for_s: float


@dataclass(frozen=True)
class EndWatch(Step):
    """End a running watch of the operator, with an ERROR event of this code or without a word."""

    resource: str
    code: int | None


@dataclass(frozen=True)
class StaleEdit(Step):
    """Let an administrator write what he read of a card some time ago.

    `version`: the whole object, as `kubectl replace` does. `totals`: what is used, without the list of holders.
    `spec`: what the card is.
    """

    what: Literal["version", "totals", "spec"]
    card: str
    """UUID."""
    age_s: float
