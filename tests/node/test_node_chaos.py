"""Seeds of the chaos on a node that no run has had before, by `make test-all`. `make node-chaos` runs many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.outcome import Outcome
from chaos.results import repeat_command
from chaos.steps import Step
from chaos.trace import write_trace
from effort import seeds_for, times
from node_chaos.arena import NodeArena
from node_chaos.disks import lacking
from node_chaos.faulty_agent import FAULTS, Fault
from node_chaos.plan import ISOLATIONS, NodePlan, plan
from node_chaos.plan import SHAPES as ALL_SHAPES
from node_chaos.programs import FAULTY_AGENT, IMPATIENT_AGENT
from node_chaos.run import run
from node_chaos.steps import Create, Delete, PlannedPod
from requirements import require

FOUND = {
    5: "a kubelet that had lost its checkpoint never started containers anew that it had known",
    10: "before the agent had registered, such a kubelet started containers without their cards",
    26: "without CDI, a container lost its directory, as its pod had been deleted by force while its kubelet was away",
    36: "without CDI, a container lost its directory, as its kubelet had lost its record and given out its slots again",
    39: "the file of a pod stayed that had run beside the next one of its name",
    53: "a start that waited was answered for the pod that had got its slots meanwhile",
    98: "without CDI, Allocate failed for want of room, and pods with it",
}
"""Seed -> what was wrong in it. `make test-all` runs it again; a test of its own has the order of its events."""


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*seeds_for("node chaos", times(1, 5)), *(pytest.param(s, marks=pytest.mark.long) for s in FOUND)]
)
def test_each_container_has_its_own_cards_whatever_dies_hangs_or_is_lost_on_its_node(seed: int, tmp_path: Path) -> None:
    require("chaos on a node", lacking())
    outcome = Outcome(plan(seed))
    with NodeArena() as arena:
        run(arena, outcome)
    if outcome.findings:
        trace = tmp_path / "trace.txt"
        write_trace(outcome, repeat_command(seed, "node-chaos"), trace)
        pytest.fail(trace.read_text(), pytrace=False)
    assert outcome.counts["containers seen"] > 5
    assert outcome.counts["looks"] > 20
    assert outcome.checks > 200


PLANTED_S, PATIENCE_S = 9.0, 12.0
SHAPES = (
    *("small", "claim-of-two", "small", "joins", "two-cards", "claim-of-three", "joins", "claim", "two-containers"),
    *("small", "joins", "claim-beside", "small", "init"),
)


def workload(fault: Fault) -> NodePlan:
    """Return pods of all kinds that a fault can concern: some end by themselves, and one by force, which goes on."""
    shapes = [each for each in SHAPES if fault.delivery == "cdi" or each in ALL_SHAPES]
    steps: list[Step] = [
        Create(
            0.25 * n, PlannedPod(f"pod-{n}", shape, 3 * n, 4 if n == 2 else None, stubborn=n == 0, greedy=n % 2 == 0)
        )
        for n, shape in enumerate(shapes)
    ]
    steps.append(Delete(6.0, "pod-0", by_force=True))
    return NodePlan(0, PLANTED_S, tuple(steps), fault.delivery, fault.isolation)


@pytest.fixture(scope="module")
def arenas() -> Iterator[Callable[[], NodeArena]]:
    """Yield what returns an arena: a new one where the one before could not be emptied."""
    require("chaos on a node", lacking())
    with ExitStack() as stack:
        there: list[NodeArena] = []

        def arena() -> NodeArena:
            if not there or not there[-1].is_empty:
                stack.close()
                there.append(stack.enter_context(NodeArena()))
            return there[-1]

        yield arena


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_an_agent_with_this_fault_is_found(name: str, arenas: Callable[[], NodeArena]) -> None:
    fault, arena = FAULTS[name], arenas()
    outcome = Outcome(workload(fault))
    arena.run_agent(FAULTY_AGENT, name)
    try:
        with contextlib.suppress(RuntimeError):  # some leave more than can be cleared
            run(arena, outcome, PATIENCE_S)
    finally:
        arena.run_agent(IMPATIENT_AGENT)
    found = {finding.rule for finding in outcome.findings}
    assert found & fault.rules, found


@pytest.mark.long
def test_one_without_a_fault_is_not(arenas: Callable[[], NodeArena]) -> None:
    """The same pods, by each way to isolate: what is found above is found for its reason."""
    for isolation in ISOLATIONS:
        outcome = Outcome(replace(workload(FAULTS["no limits"]), isolation=isolation))
        run(arenas(), outcome)
        assert not outcome.findings, (isolation, outcome.findings)
