"""From a seed to a plan: the pods, what goes wrong, and when. The same seed always gives the same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from chaos.steps import Step
from node_chaos.steps import (
    BreakCard,
    Create,
    DamageCheckpoint,
    Delete,
    Delivery,
    Disk,
    End,
    FillDisk,
    HangDisk,
    HitContainers,
    Isolation,
    LoseDriver,
    PlannedPod,
    Program,
    ProtectDisk,
    RemoveGrants,
    RemoveSocket,
    Stop,
    Stoppable,
)

CHAOS_S = 20.0
CARDS = 4
MOST_MIB = 1000
"""Pods of a run, at most: what each asks for differs by a MiB from what the others of its shape do."""

SHAPES = {
    "small": 30,
    "large": 8,
    "cores": 8,
    "whole": 4,
    "two-cards": 10,
    "two-containers": 10,
    "plain-beside": 4,
    "init": 12,
    "init-only": 3,
    "sidecar": 8,
}
"""Shape of a pod (see pods.py) -> how often, compared with the others."""

CLAIM_SHAPES = {"claim": 10, "claim-of-two": 8, "claim-of-three": 4, "claim-beside": 6, "joins": 10}
"""The same of those that have a ResourceClaim."""

ISOLATIONS: dict[Isolation, int] = {"none": 35, "driver": 30, "hami-core": 20, "mps": 15}

LONGEST_OUTAGE_S = 8.0
"""Of a program or a disk. The shares of a pod of which nobody speaks stay longer than that (arena.py)."""

PROGRAMS: tuple[Program, ...] = ("agent", "kubelet", "containerd")
STOPPABLE: tuple[Stoppable, ...] = ("agent", "agent's child", "kubelet", "containerd")
DISKS: tuple[Disk, ...] = ("agent", "kubelet")


@dataclass(frozen=True)
class NodePlan:
    """One run."""

    seed: int
    seconds: float
    steps: tuple[Step, ...]
    delivery: Delivery = "cdi"
    """How containers get to know their cards (settings.py)."""
    isolation: Isolation = "none"
    """What keeps them to their shares (settings.py). Without CDI nothing does, and no claims are served."""


def plan(seed: int, seconds: float = CHAOS_S) -> NodePlan:
    """Return the plan of a seed."""
    delivery: Delivery = "directory" if _dice(seed, "delivery").random() < 0.2 else "cdi"
    by_cdi = delivery == "cdi"
    isolation = _isolation(_dice(seed, "isolation")) if by_cdi else "none"
    steps = [
        *_pods(_dice(seed, "pods"), seconds),
        *(_claims(_dice(seed, "claims"), seconds) if by_cdi else ()),
        *_programs_end(_dice(seed, "programs end"), seconds),
        *_programs_stop(_dice(seed, "programs stop"), seconds),
        *_disks(_dice(seed, "disks"), seconds),
        *_files(_dice(seed, "files"), seconds),
        *_cards(_dice(seed, "cards"), seconds),
    ]
    in_time = (step for step in steps if step.at_s < seconds)
    return NodePlan(seed, seconds, tuple(sorted(in_time, key=lambda step: step.at_s)), delivery, isolation)


def _isolation(dice: Random) -> Isolation:
    return dice.choices(list(ISOLATIONS), list(ISOLATIONS.values()))[0]


def _dice(seed: int, topic: str) -> Random:
    """Return dice for one topic, so that a change of one leaves the others as they were."""
    return Random(f"node {seed} {topic}")  # noqa: S311 - no secret


# Pods.


def _pods(dice: Random, seconds: float) -> Iterator[Step]:
    rate = dice.uniform(0.6, 1.6)
    times = [dice.uniform(0, seconds) for _ in range(int(rate * seconds))]
    for _ in range(dice.randint(0, 2)):
        burst_s = dice.uniform(0, seconds)
        times += [burst_s + dice.uniform(0, 0.3) for _ in range(dice.randint(3, 8))]
    numbers = iter(range(MOST_MIB))
    for name, at_s in enumerate(sorted(times)):
        yield from _life(dice, at_s, seconds, f"pod-{name}", numbers, SHAPES)


def _claims(dice: Random, seconds: float) -> Iterator[Step]:
    numbers = iter(range(MOST_MIB))
    times = sorted(dice.uniform(0, seconds) for _ in range(int(dice.uniform(0.2, 0.7) * seconds)))
    for name, at_s in enumerate(times):
        yield from _life(dice, at_s, seconds, f"claims-{name}", numbers, CLAIM_SHAPES)


def _life(
    dice: Random, at_s: float, seconds: float, name: str, numbers: Iterator[int], shapes: Mapping[str, int]
) -> Iterator[Step]:
    """Yield what happens to one name: a pod, its end, and sometimes another pod of that name."""
    while at_s < seconds:
        fate = dice.choices(("stays", "ends", "is deleted", "is killed"), (15, 30, 30, 25))[0]
        yield Create(at_s, _pod(dice, name, next(numbers), dice.randint(1, 6) if fate == "ends" else None, shapes))
        if dice.random() < 0.1:
            yield HitContainers(at_s + dice.uniform(1, 8), name)
        if fate in ("stays", "ends"):
            return
        soon = dice.random() < 0.25  # while it is bound, or being started
        at_s += dice.uniform(0, 1.5) if soon else dice.uniform(2, 12)
        yield Delete(at_s, name, by_force=fate == "is killed")
        if dice.random() < 0.6:
            return
        at_s += dice.choice((0.0, 0.05, 0.5))


def _pod(dice: Random, name: str, number: int, run_s: int | None, shapes: Mapping[str, int]) -> PlannedPod:
    shape = dice.choices(list(shapes), list(shapes.values()))[0]
    stubborn, grace_s = dice.random() < 0.2, dice.choice((1, 2, 4))
    greedy = Random(f"{name} {number} {shape}").random() < 0.3  # noqa: S311 - no secret
    return PlannedPod(name, shape, number, run_s, stubborn, grace_s, greedy)


# Programs.


def _programs_end(dice: Random, seconds: float) -> Iterator[Step]:
    for _ in range(dice.choice((0, 1, 2, 3, 4, 6))):
        program = dice.choice(PROGRAMS)
        down_s = dice.choice((0.0, 0.0, 1.0, 3.0, LONGEST_OUTAGE_S))
        yield End(dice.uniform(0.5, seconds), program, down_s, gently=dice.random() < 0.25)
    if dice.random() < 0.2:  # all at once, as when the node's memory is short
        at_s = dice.uniform(0.5, seconds)
        yield from (End(at_s, program, dice.choice((0.0, 1.0, 3.0))) for program in PROGRAMS)


def _programs_stop(dice: Random, seconds: float) -> Iterator[Step]:
    for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
        yield Stop(dice.uniform(0.5, seconds), dice.choice(STOPPABLE), dice.uniform(0.3, LONGEST_OUTAGE_S))


# Disks and files.


def _disks(dice: Random, seconds: float) -> Iterator[Step]:
    for disk in DISKS:
        if dice.random() < 0.25:
            yield FillDisk(dice.uniform(0.5, seconds), disk, dice.uniform(1, LONGEST_OUTAGE_S))
        if dice.random() < 0.25:
            at_s, hang_s = dice.uniform(0.5, seconds), dice.choice((0.2, 0.7, 3.0, LONGEST_OUTAGE_S))
            yield HangDisk(at_s, disk, hang_s, times=max(1, int(4 / hang_s)))
    if dice.random() < 0.15:
        yield ProtectDisk(dice.uniform(0.5, seconds), dice.uniform(1, LONGEST_OUTAGE_S))


def _files(dice: Random, seconds: float) -> Iterator[Step]:
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        at_s = dice.uniform(1, seconds)
        yield DamageCheckpoint(at_s, dice.choice(("removed", "cut off")))
        if dice.random() < 0.5:  # it reads it when it starts, and at no other time
            yield End(at_s, "kubelet", dice.choice((0.0, 1.0)))
    for _ in range(dice.choice((0, 0, 1))):
        yield RemoveSocket(dice.uniform(1, seconds))
    for _ in range(dice.choice((0, 0, 0, 1))):
        yield RemoveGrants(dice.uniform(1, seconds))


# Cards.


def _cards(dice: Random, seconds: float) -> Iterator[Step]:
    for _ in range(dice.choice((0, 0, 1, 2))):
        lost_for_s = dice.choice((None, dice.uniform(1, 6)))
        yield BreakCard(dice.uniform(0.5, seconds), dice.randrange(CARDS), lost_for_s)
    if dice.random() < 0.15:
        yield LoseDriver(dice.uniform(0.5, seconds), dice.uniform(1, 6))
