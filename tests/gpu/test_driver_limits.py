"""A real driver keeps two control groups to their limits on one card, at once; where it can't, it says why."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CGROUPS = Path("/sys/fs/cgroup")
TIMEOUT_S = 120
OUT_OF_MEMORY = 2
LIMITS_MIB = (3000, 2000)
CONTEXT_MIB = 1024
"""A context counts, too; it takes less than this."""


def own_code(*arguments: str) -> dict[str, Any]:
    """Run the agent's code; return what it has found."""
    argv = [sys.executable, str(HERE / "driver_limits.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def card(say: Callable[[str], None]) -> str:
    """Return the UUID of a card whose memory can be limited; skip where there is none, with the driver's reason."""
    found = own_code("look")
    for each in found["cards"]:
        say(f"driver {found['driver']}, card {each['uuid']}: keeps {each['reserved_mib']} of {each['memory_mib']} MiB")
    able = [each["uuid"] for each in found["cards"] if not each["why"]]
    if not able:
        pytest.skip(f"driver {found['driver']}: {sorted({each['why'] for each in found['cards']})}")
    return str(able[0])


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Yield two control groups side by side."""
    if "dmem" in (CGROUPS / "cgroup.controllers").read_text().split():
        (CGROUPS / "cgroup.subtree_control").write_text("+dmem")
    made = [CGROUPS / f"gpuledger-test-{secrets.token_hex(4)}" for _ in LIMITS_MIB]
    for each in made:
        each.mkdir()
    yield made
    for each in made:
        each.rmdir()


def exceed_in(group: Path, card: str) -> subprocess.Popen[str]:
    """Start a program in a group that takes more and more memory until it is refused."""
    script = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
    argv = ["sh", "-c", script, sys.executable, str(HERE / "mps_client.py"), "exceed"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)


def test_two_groups_limits_hold_at_once_and_are_what_cuda_shows(card: str, groups: list[Path]) -> None:
    for group, limit_mib in zip(groups, LIMITS_MIB, strict=True):
        own_code("set", card, str(group), str(limit_mib))
    programs = [exceed_in(group, card) for group in groups]
    for program, limit_mib in zip(programs, LIMITS_MIB, strict=True):
        output, _ = program.communicate(timeout=TIMEOUT_S)
        said = json.loads(output)
        assert said["result"] == OUT_OF_MEMORY, said
        assert said["total_mib"] == limit_mib, said
        assert limit_mib - CONTEXT_MIB <= said["taken_mib"] <= limit_mib, said
    own_code("set", card, str(groups[0]), "0")
