"""How long `make test` takes, as it was written down last, and how long it may take.

Each run leaves the seconds of its tests in build/durations.json. `make durations` makes of them tests/durations.json:
seconds of each file, and each test that takes long. A house rule compares that with the budget; a run itself is never
red for being slow, as machines differ.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from reporting import DURATIONS

RECORD = Path(__file__).with_name("durations.json")

LONGEST_S = 20.0
"""How long a test may take beside three others on two cores, so 10 s alone; without what it is set up with, such as a
control plane, which others use as well."""

WRITTEN_FROM_S = 5.0
"""How long a test takes that is written down by its name."""

BUDGET_S = 4 * 15 * 60.0
"""How long all tests may take together: 15 minutes of four at a time, which share two cores and wait for half of it."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of the lane's tests: of each file with all that it sets up, and of tests that take long by themselves."""

    files: dict[str, float]
    tests: dict[str, float]

    def over_budget_s(self) -> float:
        """Return by how much all of them exceed the budget; 0 if they do not."""
        return max(0.0, sum(self.files.values()) - BUDGET_S)

    def too_long(self) -> dict[str, float]:
        """Return the tests that take longer than a test may."""
        return {name: took_s for name, took_s in self.tests.items() if took_s > LONGEST_S}


def recorded() -> Durations:
    """Return what is written down."""
    return Durations(**json.loads(RECORD.read_text()))


def write_down(root: Path, lane: Collection[str]) -> Durations:
    """Write down how long each test of the lane took in its last run; one that has never run counts nothing."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = {}
    took = json.loads((root / DURATIONS).read_text())
    for name in lane:
        phases = took.get(name, {})
        files[name.partition("::")[0]] += sum(phases.values())
        if phases.get("call", 0.0) >= WRITTEN_FROM_S:
            tests[name] = round(phases["call"], 1)
    found = Durations({name: round(files[name], 1) for name in sorted(files)}, dict(sorted(tests.items())))
    RECORD.write_text(json.dumps({"files": found.files, "tests": found.tests}, indent=1) + "\n")
    return found


if __name__ == "__main__":
    durations = write_down(Path(__file__).parents[1], [line.strip() for line in sys.stdin if "::" in line])
    took_s = sum(durations.files.values())
    sys.stdout.write(f"{took_s:,.0f} s of {BUDGET_S:,.0f} s, {len(durations.too_long())} tests too long\n")
