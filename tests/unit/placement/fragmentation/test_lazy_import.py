"""numpy is for prices alone: an operator with another policy never loads it."""

import subprocess
import sys

PROGRAM = """
import sys
import gpuledger.controller.startup
from builders import a_card, a_ledger, a_request, mib
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference

for preference in (Preference.BINPACK, Preference.FRAGMENTATION):
    found = Chooser(a_ledger(a_card()), Policy(nodes=preference)).choose(a_request(mib(1_000)), ["node-a"], 1)
    print(preference.value, len(found.placements), "numpy" in sys.modules)
"""


def test_an_operator_loads_numpy_with_the_first_pod_that_needs_prices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.splitlines() == ["binpack 1 False", "fragmentation 1 True"], done.stderr
