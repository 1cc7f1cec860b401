"""What a plan consists of: the steps that are done to a node, each at its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chaos.steps import Step

NAMESPACE = "default"

Program = Literal["agent", "kubelet", "containerd"]
Stoppable = Literal["agent", "agent's child", "kubelet", "containerd"]
Delivery = Literal["cdi", "directory"]
Isolation = Literal["none", "driver", "hami-core", "mps"]
Disk = Literal["agent", "kubelet"]
"""Where the agent writes: the container runtime's CDI files, and its own directory; and the kubelet's directory."""


@dataclass(frozen=True)
class PlannedPod:
    """A pod that will be created."""

    name: str
    shape: str
    number: int
    """Added to the MiB that it asks for: no two pods of a run ask for the same."""
    run_s: int | None = None
    """After which it ends by itself."""
    stubborn: bool = False
    """Whether it ignores SIGTERM."""
    grace_s: int = 2
    greedy: bool = False
    """Whether its containers write more into their counters than these have, where they have some."""


@dataclass(frozen=True)
class OfPod(Step):
    """A step about one pod."""

    name: str

    @property
    def subject(self) -> str:
        """The pod."""
        return f"{NAMESPACE}/{self.name}"


@dataclass(frozen=True)
class Create(Step):
    """Create a pod, after one of the same name is gone."""

    pod: PlannedPod

    @property
    def subject(self) -> str:
        """The pod."""
        return f"{NAMESPACE}/{self.pod.name}"


@dataclass(frozen=True)
class Delete(OfPod):
    """Delete a pod: in good order, or by force."""

    by_force: bool


@dataclass(frozen=True)
class HitContainers(OfPod):
    """Kill the processes of a pod's containers; the kubelet starts them anew."""


# Programs.


@dataclass(frozen=True)
class End(Step):
    """End a program, by SIGKILL or in good order, and start it again after a while."""

    program: Program
    down_s: float
    gently: bool = False


@dataclass(frozen=True)
class Stop(Step):
    """Stop a program where it is, and let it go on later, as if nothing had been."""

    program: Stoppable
    for_s: float


# Disks and files.


@dataclass(frozen=True)
class FillDisk(Step):
    """Let there be no room on a disk for a while."""

    disk: Disk
    for_s: float


@dataclass(frozen=True)
class HangDisk(Step):
    """Let whoever writes to a disk wait: as often as `times`, so long each time, with as long pauses."""

    disk: Disk
    hang_s: float
    times: int


@dataclass(frozen=True)
class ProtectDisk(Step):
    """Let the agent's disk be read-only for a while, as a file system makes itself after an error."""

    for_s: float


@dataclass(frozen=True)
class DamageCheckpoint(Step):
    """Remove the kubelet's record of slots, or cut it off half-way."""

    how: Literal["removed", "cut off"]


@dataclass(frozen=True)
class RemoveSocket(Step):
    """Remove the agent's socket."""


@dataclass(frozen=True)
class RemoveGrants(Step):
    """Remove the CDI files that the agent has written, if it writes such."""


# Cards.


@dataclass(frozen=True)
class BreakCard(Step):
    """Let a card have a fault, of which it is well again soon after, or be lost for a while."""

    card: int
    lost_for_s: float | None = None


@dataclass(frozen=True)
class LoseDriver(Step):
    """Let the driver be gone for a while."""

    for_s: float
