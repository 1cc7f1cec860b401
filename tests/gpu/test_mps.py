"""Under MPS, a process that wants more memory than its limit fails, and its neighbour on the card goes on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CLIENT = Path(__file__).with_name("mps_client.py")
CONTROL = "nvidia-cuda-mps-control"
LIMIT_MIB = 2048
HELD_MIB = 512
TIMEOUT_S = 120
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


def a_card_that_is_not_cut() -> str:
    query = ["nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    rows = [re.split(r",\s*", line.strip()) for line in found.stdout.splitlines() if line.strip()]
    cards = [uuid for uuid, mig, *_ in rows if mig != "Enabled"]
    if not cards:
        pytest.skip("every card of this machine is in MIG mode")
    return cards[0]


def tell_daemon(environment: dict[str, str], command: str) -> str:
    told = subprocess.run(
        [CONTROL], input=f"{command}\n", env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return told.stdout


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(CLIENT), *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def next_line(client: subprocess.Popen[str]) -> dict[str, Any]:
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line, f"the client ended with {client.wait(TIMEOUT_S)} and said nothing"
    said: dict[str, Any] = json.loads(line)
    assert "failed" not in said, said
    return said


def test_who_exceeds_the_limit_fails_and_the_other_goes_on(mps: dict[str, str]) -> None:
    steady = start(mps, "hold", str(HELD_MIB))
    try:
        before = next_line(steady)["rounds"]
        assert tell_daemon(mps, "get_server_list").strip(), "no client has come to the MPS server"
        greedy = start(mps, "exceed")
        out, _ = greedy.communicate(timeout=TIMEOUT_S)
        exceeded = json.loads(out.splitlines()[-1])
        refused_s = time.monotonic()
        while (later := next_line(steady))["at_s"] < refused_s + GOES_ON_S:
            pass
        out, _ = steady.communicate(input="end\n", timeout=TIMEOUT_S)
        ended = json.loads(out.splitlines()[-1])
    finally:
        steady.kill()
        steady.wait(TIMEOUT_S)
    print(f"\nlimit {LIMIT_MIB} MiB; exceeding: {exceeded}; the other: rounds {before}, {later['rounds']}, {ended}")  # noqa: T201
    assert greedy.returncode == 3, "it was refused for another reason than memory"
    assert exceeded["taken_mib"] <= LIMIT_MIB < exceeded["total_mib"]
    assert exceeded["taken_mib"] > 0, "the limit has no room for anything: a context alone takes more"
    assert steady.returncode == 0
    assert ended["ended"] >= later["rounds"] > before
