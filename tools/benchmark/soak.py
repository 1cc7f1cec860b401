"""The operator's memory over many assignments: pods come and go, round after round.

What a round leaves behind shows as memory that grows with the rounds: in the ledger, the trail, the metrics, or what is
remembered of pods that are gone. Pods of a round have the names of the round before, and UIDs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from benchmark.machine import memory_mib
from benchmark.measuring import measure
from benchmark.progress import Story
from benchmark.shapes import SHAPES, burst
from benchmark.site import Site
from benchmark.table import wide_console

SHAPE = SHAPES["quarter-card"]
ROWS = 12
"""Of the table, about."""


@dataclass(frozen=True, slots=True)
class State:
    """The operator at rest, when no pod is left."""

    assignments: int
    memory_mib: float
    peak_mib: float


async def soak(nodes: int, assignments: int, pods_per_round: int) -> None:
    """Have at least so many pods assigned, and print what the operator's memory was meanwhile."""
    pods = SHAPE.pods_for(nodes, pods_per_round)
    rounds = -(-assignments // pods)
    async with Site.open(nodes) as site:
        await site.first_start()
        await site.start_scheduler("gpuledger")
        states = [_state(site, 0)]
        with Story(rounds) as story:
            for done in range(pods, rounds * pods + 1, pods):
                story.step(f"{done:,} of {rounds * pods:,} assignments; {states[-1].memory_mib:.0f} MiB before")
                await measure(site, burst(SHAPE, pods, "gpuledger"))
                await site.delete_pods()
                await site.quiet()
                states.append(_state(site, done))
    wide_console().print(table(nodes, states))


def _state(site: Site, assignments: int) -> State:
    return State(assignments, *memory_mib(site.operator.pid if site.operator else None))


def table(nodes: int, states: Sequence[State]) -> Table:
    """Return the first state, the last, and some between."""
    step = -(-len(states) // ROWS)
    shown = Table(title=f"{nodes} nodes, {states[-1].assignments:,} assignments", box=box.SIMPLE_HEAD)
    for head in ("assignments", "MiB", "peak MiB"):
        shown.add_column(head, justify="right")
    for state in [*states[:-1:step], states[-1]]:
        shown.add_row(f"{state.assignments:,}", f"{state.memory_mib:.1f}", f"{state.peak_mib:.1f}")
    return shown
