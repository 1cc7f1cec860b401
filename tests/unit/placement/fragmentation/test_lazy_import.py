"""numpy is for prices alone: an operator with another policy never loads it."""

import subprocess
import sys

PROGRAM = """
import sys
import gpuledger.controller.startup
from builders import a_card, a_ledger, a_request, mib
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference

Chooser(a_ledger(a_card()), Policy()).choose(a_request(mib(1_000)), ["node-a"], 1)
print("numpy" in sys.modules)
Chooser(a_ledger(a_card()), Policy(nodes=Preference.FRAGMENTATION))
print("numpy" in sys.modules)
"""


def test_an_operator_loads_numpy_when_its_policy_needs_prices_before_any_pod_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.splitlines() == ["False", "True"], done.stderr
