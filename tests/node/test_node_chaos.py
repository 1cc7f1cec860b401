"""Seeds of the chaos on a node that no run has had before, by `make test-long`. `make node-chaos` runs many."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from chaos.outcome import Outcome
from chaos.results import repeat_command
from chaos.trace import write_trace
from effort import seeds_for, times
from node_chaos.arena import NodeArena
from node_chaos.disks import lacking
from node_chaos.plan import NodePlan, plan
from node_chaos.programs import CONFUSED_AGENT
from node_chaos.run import run
from node_chaos.steps import Create
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
"""Seed -> what was wrong in it. `make test-long` runs it again; a test of its own has the order of its events."""


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


@pytest.mark.long
def test_an_agent_that_takes_one_pod_for_another_is_found() -> None:
    require("chaos on a node", lacking())
    quiet = tuple(step for step in plan(1).steps if isinstance(step, Create))
    outcome = Outcome(NodePlan(1, 10.0, tuple(step for step in quiet if step.at_s < 10)))
    with NodeArena(CONFUSED_AGENT) as arena, contextlib.suppress(RuntimeError):  # it leaves more than can be cleared
        run(arena, outcome)
    assert {finding.rule for finding in outcome.findings} & {
        "a container runs without a share",
        "a container has another share than its own",
    }
