"""A kubectl that works for a command until it is ended."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from gpuledger.command_line.cluster_access import Helper
from gpuledger.model.errors import BadInput, GpuledgerError


def test_one_that_is_ended_while_somebody_waits_for_it_leaves_no_pipe_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr("gpuledger.command_line.cluster_access.END_TIMEOUT_S", 0.1)  # for who holds the pipe
    helper.end()
    ended.touch()
    waiting.join()
    assert ["does not serve" in str(error) for error in told] == [True]
    helper._listener.join()
    assert helper._process.stdout is not None
    assert helper._process.stdout.closed


def test_one_that_is_not_ready_in_time_is_ended_and_its_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it is told, although a program that it has started still has its output."""
    monkeypatch.setattr("gpuledger.command_line.cluster_access.START_TIMEOUT_S", 0)
    monkeypatch.setattr("gpuledger.command_line.cluster_access.END_TIMEOUT_S", 0.1)
    helper = Helper(["sh", "-c", "sleep 600 & echo logging in; echo $!; exec sleep 600"], re.compile("never"))
    while len(helper._said) < 2:
        helper._listener.join(0.01)
    try:
        with pytest.raises(BadInput, match="logging in"):
            helper.wait()
        assert helper._process.wait() == -signal.SIGKILL
    finally:
        os.kill(int(helper._said[1]), signal.SIGKILL)
        helper._listener.join()
