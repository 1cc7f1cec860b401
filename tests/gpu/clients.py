"""Programs that use a card under MPS: started, listened to, and which card they may have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mps_client.py")
CONTROL = "nvidia-cuda-mps-control"
TIMEOUT_S = 120
NEEDED = (7, 0)
"""Compute capability of Volta, from which on MPS keeps limits."""


def a_card_that_is_not_cut() -> str:
    """Return the UUID of a card that MPS can serve. Skips the test where there is none."""
    query = ["nvidia-smi", "--query-gpu=uuid,mig.mode.current,compute_cap", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    rows = [re.split(r",\s*", line.strip()) for line in found.stdout.splitlines() if line.strip()]
    cards = [uuid for uuid, mig, version in rows if mig != "Enabled" and _version(version) >= NEEDED]
    if not cards:
        pytest.skip("every card of this machine is in MIG mode, or older than Volta")
    return cards[0]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def tell_daemon(environment: Mapping[str, str], command: str) -> str:
    """Return a daemon's answer."""
    told = subprocess.run(
        [CONTROL], input=f"{command}\n", env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return told.stdout


def start(environment: Mapping[str, str], *arguments: str, user: int | None = None) -> subprocess.Popen[str]:
    """Start a program, as another user if that is asked for."""
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user
    )


def next_line(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a program says next. Fails if it fails, or says nothing any more."""
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line, f"the client ended with {client.wait(TIMEOUT_S)} and said nothing"
    said: dict[str, Any] = json.loads(line)
    assert "failed" not in said, said
    return said


def last_line(client: subprocess.Popen[str], said: str = "") -> dict[str, Any]:
    """Return the last that a program says before it ends; `said` is what it is told."""
    out, _ = client.communicate(input=said, timeout=TIMEOUT_S)
    assert out, f"the client ended with {client.returncode} and said nothing"
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
