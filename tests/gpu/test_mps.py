"""Under MPS, a process that wants more memory than its limit fails, and its neighbour on the card goes on."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.clients import CONTROL, TIMEOUT_S, a_card_that_is_not_cut, last_line, next_line, start, tell_daemon

LIMIT_MIB = 2048
HELD_MIB = 512
GOES_ON_S = 1.0
"""The other one has to work for so long after the refusal."""


@pytest.fixture
def mps() -> Iterator[dict[str, str]]:
    """Start a daemon of our own, for one card; return the environment of its clients."""
    if shutil.which(CONTROL) is None:
        pytest.skip(f"{CONTROL} is missing: it comes with the driver's compute utilities")
    directory = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))  # a socket's path has 107 characters
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    clients = {
        **own,
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(directory / "log"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M",
    }
    for name in ("pipe", "log"):
        (directory / name).mkdir()
    daemon = {**clients, "CUDA_VISIBLE_DEVICES": a_card_that_is_not_cut()}
    daemon.pop("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")  # it would be the limit of the server itself
    subprocess.run([CONTROL, "-d"], env=daemon, check=True, timeout=TIMEOUT_S)
    try:
        yield clients
    finally:
        tell_daemon(clients, "quit")
        logs = "".join(log.read_text(errors="replace") for log in sorted((directory / "log").glob("*.log")))
        print(f"\nMPS log, its end:\n{logs[-2000:]}")  # noqa: T201
        shutil.rmtree(directory, ignore_errors=True)


def test_who_exceeds_the_limit_fails_and_the_other_goes_on(mps: dict[str, str]) -> None:
    steady = start(mps, "hold", str(HELD_MIB))
    try:
        before = next_line(steady)["rounds"]
        assert tell_daemon(mps, "get_server_list").strip(), "no client has come to the MPS server"
        greedy = start(mps, "exceed")
        exceeded = last_line(greedy)
        refused_s = time.monotonic()
        while (later := next_line(steady))["at_s"] < refused_s + GOES_ON_S:
            pass
        ended = last_line(steady, "end\n")
    finally:
        steady.kill()
        steady.wait(TIMEOUT_S)
    print(f"\nlimit {LIMIT_MIB} MiB; exceeding: {exceeded}; the other: rounds {before}, {later['rounds']}, {ended}")  # noqa: T201
    assert greedy.returncode == 3, "it was refused for another reason than memory"
    assert exceeded["taken_mib"] <= LIMIT_MIB < exceeded["total_mib"]
    assert exceeded["taken_mib"] > 0, "the limit has no room for anything: a context alone takes more"
    assert steady.returncode == 0
    assert ended["ended"] >= later["rounds"] > before
