"""Which cases run on which number of nodes, and the run itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from benchmark.cases import TURNS, Cases, Effort
from benchmark.claims import CASE as CLAIMS
from benchmark.claims import SUBJECTS
from benchmark.gangs import SIZES
from benchmark.machine import describe_machine, describe_versions
from benchmark.progress import Story
from benchmark.results import Run
from benchmark.shapes import SHAPES
from benchmark.site import Site

AT_THE_FIRST_SIZE = ("paced", "full-cluster", "looked-at", *SIZES, CLAIMS, "slow-writes")
"""Cases that are about one size of cluster."""

CASES = (*SHAPES, "floor", "start-up", *AT_THE_FIRST_SIZE)
LARGE_NODES, LARGE_SHARE = 5000, 4
"""On so many nodes, kube-scheduler takes its time: a part of the pods will do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    nodes: Sequence[int]
    pods: int
    rounds: int
    cases: frozenset[str]

    def effort(self, nodes: int) -> Effort:
        """Return how much is measured at this size."""
        pods = max(1, self.pods // LARGE_SHARE) if nodes >= LARGE_NODES else self.pods
        return Effort(pods, self.rounds)

    def cases_at(self, nodes: int) -> frozenset[str]:
        """Return the cases at this size."""
        return self.cases if nodes == self.nodes[0] else self.cases - set(AT_THE_FIRST_SIZE)

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        return sum(self._steps_at(nodes) for nodes in self.nodes)

    def _steps_at(self, nodes: int) -> int:
        cases = self.cases_at(nodes)
        shapes = len(cases & set(SHAPES))
        rounds = (
            len(TURNS) * shapes
            + shapes * ("floor" in cases)
            + len(SUBJECTS) * (CLAIMS in cases)
            + 2 * len(cases & {"paced", "full-cluster", "looked-at", *SIZES})
        )
        return 1 + self.rounds * rounds + ("slow-writes" in cases) + ("start-up" in cases)


def begin() -> Run:
    """Return a run without rows: on which machine, and with which versions."""
    return Run(datetime.now(UTC).isoformat(timespec="seconds"), describe_machine(), describe_versions(), [])


async def carry_out(plan: Plan, run: Run) -> None:
    """Measure everything. The rows are added as they come, so that what there is survives an error."""
    with Story(plan.steps) as story:
        for nodes in plan.nodes:
            story.step(f"{nodes} nodes: control plane and nodes")
            async with Site.open(nodes) as site:
                await _measure(Cases(site, plan.effort(nodes), story, run.rows), site, plan.cases_at(nodes))


async def _measure(cases: Cases, site: Site, chosen: frozenset[str]) -> None:
    """Measure at one size: first what needs the operator, then what must not have it."""
    shapes = [shape for name, shape in SHAPES.items() if name in chosen]
    await cases.first_start()
    for shape in shapes:
        await cases.shape(shape)
    at_this_size: dict[str, Callable[[], Awaitable[None]]] = {
        "paced": cases.paced,
        "full-cluster": cases.full_cluster,
        "looked-at": cases.looked_at,
        **{case: partial(cases.gangs, case) for case in SIZES},
        CLAIMS: cases.claims,
        "slow-writes": cases.slow_writes,
    }
    for name, case in at_this_size.items():
        if name in chosen:
            await case()
    site.stop_scheduler()
    site.stop_operator()
    for shape in shapes if "floor" in chosen else ():
        await cases.floor(shape)
    if "start-up" in chosen:
        await cases.start_up()
