"""A kubectl that works for a command until it is ended."""

import re
import threading
from pathlib import Path

from gpuledger.command_line.cluster_access import Helper
from gpuledger.model.errors import GpuledgerError


def test_one_that_is_ended_while_somebody_waits_for_it_leaves_no_pipe_open(tmp_path: Path) -> None:
    """Nobody else would close it: a command that is denied ends what it has started, whoever waits."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    # It holds the pipe for longer than the program itself, as what that has started to log in can.
    holder = f"(until [ -e {ended} ]; do sleep 0.01; done) & touch {begun};"
    helper = Helper(["sh", "-c", f"{holder} exec sleep 60"], re.compile("never"))
    told: list[GpuledgerError] = []

    def wait() -> None:
        try:
            helper.wait()
        except GpuledgerError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not (helper._lock.locked() and begun.exists()):
        waiting.join(0.01)
    helper.end()
    ended.touch()
    waiting.join()
    assert ["does not serve" in str(error) for error in told] == [True]
    assert helper._process.stdout is not None
    assert helper._process.stdout.closed
