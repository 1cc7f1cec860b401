"""TAB in real shells: what bash, zsh and fish offer, by the line that docs/kubectl-gpuledger.md has for each."""

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from requirements import require

PROGRAMS = Path(sys.executable).parent
DEADLINE_S = 60
DOCUMENT = Path(__file__).parents[3] / "docs" / "kubectl-gpuledger.md"

OFFERED = {"audit", "agent", "admission-policies"}
"""All that begins with an a."""


def switched_on(shell: str) -> str:
    """Return the line that switches completion on in a shell, as the document has it."""
    (line,) = re.findall(rf"^\| {shell} \| `([^`]+)` \|$", DOCUMENT.read_text(), re.MULTILINE)
    return str(line)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return what a user's shell has, and a home without settings of its own."""
    return {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}


def needs(shell: str) -> str:
    program = shutil.which(shell) or ""
    require(f"what TAB offers in {shell}", "" if program else f"{shell} is not installed")
    return program


def test_bash_offers_the_commands(environment: dict[str, str]) -> None:
    script = f"""{switched_on("bash")}
        COMP_WORDS=(gpuledger a) COMP_CWORD=1
        _gpuledger_completion gpuledger
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        [needs("bash"), "-c", script], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert set(done.stdout.split()) == OFFERED


def test_fish_offers_the_commands(environment: dict[str, str]) -> None:
    script = f'{switched_on("fish")}; complete -C "gpuledger a"'
    done = subprocess.run(
        [needs("fish"), "-c", script], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert {line.split()[0] for line in done.stdout.splitlines()} == OFFERED


def test_zsh_offers_the_commands(environment: dict[str, str]) -> None:
    """Zsh completes only while somebody types, so this types."""
    program = needs("zsh")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(program, [program, "-f", "-i"], environment)  # noqa: S606 - it replaces this copy of the test
    try:
        setting_up = f"autoload -Uz compinit && compinit -u; {switched_on('zsh')}; echo READ''Y"
        os.write(terminal, f"{setting_up}\n".encode())
        read_until(terminal, {"READY"})
        os.write(terminal, b"gpuledger a\t\t")
        read_until(terminal, OFFERED)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, words: set[str]) -> None:
    """Read what a shell prints until all words were in it."""
    text, until_s = "", time.monotonic() + DEADLINE_S
    os.set_blocking(terminal, False)
    while not all(re.search(rf"(?<![\w-]){word}(?![\w-])", text) for word in words):
        assert time.monotonic() < until_s, text
        try:
            text += os.read(terminal, 4096).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.05)
