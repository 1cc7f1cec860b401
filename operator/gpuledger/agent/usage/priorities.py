"""Which containers pause while others compute, and whose core limits are enforced. Pure.

Source: HAMi's vGPUmonitor, cmd/vGPUmonitor/feedback.go. A container that launches kernels stops those of lower priority
on its cards, and a core limit is only enforced where somebody else computes who is not less important. Two differences:

- HAMi-core from 2026-04 on sets `recent_kernel` only where it limits cores, so the time of the last kernel counts, too.
- A container whose processes have all ended is idle at once.

What containers say of themselves decides only whether they are active. Priorities and cards are those of the grants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.formats.runtime.shared_region import ACTIVE, IDLE, LIMITER_OFF, LIMITER_ON, PAUSED


@dataclass(frozen=True, slots=True)
class Observed:
    """One container, as its grant and its region say."""

    uuids: tuple[str, ...]
    priority: int
    """Lower is more important."""
    recent_kernel: int
    utilization_switch: int
    last_kernel_s: int | None
    """Unix time, by the container's word; None where it does not say."""
    lives: bool
    """Whether it has a process that can launch kernels."""


@dataclass(frozen=True, slots=True)
class Controls:
    """What a region should have."""

    recent_kernel: int
    utilization_switch: int


ALONE = Controls(IDLE, LIMITER_ON)
"""Without a monitor nothing pauses, and limits are enforced: what HAMi-core itself begins with, but for `IDLE`."""


def decide(containers: Iterable[Observed], now_s: float, recent_s: float) -> list[Controls]:
    """Return what each container's region should have, in the same order.

    `recent_s` is for how long a kernel counts after its launch. Of `recent_kernel`, one is taken away by each call, so
    it says how many calls ago there was one.
    """
    containers = list(containers)
    active: dict[
        str, list[tuple[int, int]]
    ] = {}  # card -> priority, and place in the list, of those that compute there
    for place, each in enumerate(containers):
        if _is_active(each, now_s, recent_s):
            for uuid in each.uuids:
                active.setdefault(uuid, []).append((each.priority, place))
    return [
        _controls(each, [priority for uuid in each.uuids for priority, other in active.get(uuid, ()) if other != place])
        for place, each in enumerate(containers)
    ]


def _is_active(each: Observed, now_s: float, recent_s: float) -> bool:
    if not each.lives or each.recent_kernel < IDLE:  # one that pauses launches nothing
        return False
    # A time to come is none: the clock was set back, or the container makes it up.
    launched = each.last_kernel_s is not None and -1 < now_s - each.last_kernel_s <= recent_s
    return each.recent_kernel > 1 or launched


def _controls(each: Observed, others: list[int]) -> Controls:
    """Return what one region should have; `others` are the priorities of those that compute on its cards."""
    important = min(others, default=each.priority + 1)
    recent_kernel = PAUSED if important < each.priority else max(min(each.recent_kernel, ACTIVE) - 1, IDLE)
    return Controls(recent_kernel, LIMITER_ON if important <= each.priority else LIMITER_OFF)
