"""One seed of the chaos test, so that it stays in working order. `make chaos` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.arena import Arena
from chaos.plan import plan
from chaos.results import repeat_command
from chaos.run import Outcome, run
from chaos.trace import write_trace

SEED = 14
"""Its operator is killed five times, hangs once and loses watches, and requests are lost and refused meanwhile."""


def test_nothing_is_given_twice_or_lost_in_thirty_seconds_of_chaos(tmp_path: Path) -> None:
    outcome = Outcome(plan(SEED))
    with Arena() as arena:
        run(arena, outcome)
    if outcome.findings:
        trace = tmp_path / "trace.txt"
        write_trace(outcome, repeat_command(SEED), trace)
        pytest.fail(trace.read_text(), pytrace=False)
    assert outcome.counts["pods bound"] > 20
    assert outcome.checks > 500
    assert sum(outcome.faults.values()) > 5
