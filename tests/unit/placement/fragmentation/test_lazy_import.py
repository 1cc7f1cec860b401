"""numpy is for prices alone: an operator with another policy loads it only for a pod that wishes for them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

PROGRAM = """
import asyncio, sys, threading
from dataclasses import replace
import gpuledger.controller.startup
from builders import a_card, a_ledger, a_request, mib
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.tasks import run_cooperatively

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            print("main thread" if threading.current_thread() is threading.main_thread() else "another thread")

sys.meta_path.insert(0, Finder())
chooser = Chooser(a_ledger(a_card()), Policy())
"""
CHOOSE = 'chooser.choose(replace(a_request(mib(1_000)), node_policy="{wish}"), ["node-a"], 1)\n'
ASK = (
    'wished = replace(a_request(mib(1_000)), node_policy="{wish}")\n'
    'asyncio.run(run_cooperatively(chooser.look_around(wished, ["node-a"])))\n'
)
WISH = "fragmentation"


@pytest.mark.parametrize(
    ("uses", "loaded_by"),
    [
        (ASK.format(wish="") + CHOOSE.format(wish=""), []),
        ("Chooser(a_ledger(a_card()), Policy(nodes=Preference.FRAGMENTATION))", ["main thread"]),
        (ASK.format(wish=WISH) + CHOOSE.format(wish=WISH), ["another thread"]),
        (CHOOSE.format(wish=WISH), ["main thread"]),
    ],
    ids=["a policy without prices", "one with prices", "a pod's wish", "a pod's wish, where all is done at once"],
)
def test_numpy_is_loaded_at_start_or_beside_the_event_loop(uses: str, loaded_by: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + uses],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.splitlines() == loaded_by, done.stderr
