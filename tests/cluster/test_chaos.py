"""Seeds of the chaos test that no run has had before, by `make test-all`. `make chaos` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.arena import Arena
from chaos.outcome import Outcome
from chaos.plan import plan
from chaos.results import repeat_command
from chaos.run import run
from chaos.trace import write_trace
from effort import seeds_for, times

pytestmark = pytest.mark.promise("never twice")

FOUND = {14: "what victims had left for a pod was taken back by the next full list"}
"""Seed -> what was wrong in it. `make test-all` runs it again; a test of its own has the order of its events."""

FAULTY = 14
"""Its operator is killed five times, hangs once and loses watches, and requests are lost and refused meanwhile."""


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*seeds_for("chaos", times(1, 5)), *(pytest.param(s, marks=pytest.mark.long) for s in FOUND)]
)
def test_nothing_is_given_twice_or_lost_in_thirty_seconds_of_chaos(seed: int, tmp_path: Path) -> None:
    outcome = Outcome(plan(seed))
    with Arena() as arena:
        run(arena, outcome)
    if outcome.findings:
        trace = tmp_path / "trace.txt"
        write_trace(outcome, repeat_command(seed), trace)
        pytest.fail(trace.read_text(), pytrace=False)
    assert outcome.counts["pods bound"] > 20
    assert outcome.checks > 500
    if seed == FAULTY:  # another may have no weather at all
        assert sum(outcome.faults.values()) > 5
