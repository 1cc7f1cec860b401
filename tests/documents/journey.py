"""Runs the commands of a document one after the other, and compares what they print with what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from documents.pages import Command

TIMEOUT_S = 240

LOOKS = ("kubectl gpuledger ", "kubectl get ")
"""Commands that only look: a person looks again if something takes a moment."""
PATIENCE_S = 20.0

CUT = "..."
"""A line of a document that stands for others which it does not show."""

_GENERATED = re.compile(r"\b(gpuledger(?:-agent)?)-[a-z0-9]{8,10}(?:-[a-z0-9]{5})?\b")
_TIME = re.compile(r"\b\d\d:\d\d:\d\d\b|\b\d+(?:m\d+)?s\b|\b\d+ s\b")
_BARS = re.compile(r"[█▏▎▍▌▋▊▉░]+")


@dataclass
class Journey:
    """A shell in a directory, and what has been run in it."""

    directory: Path
    variables: Mapping[str, str]
    instead: Mapping[str, str] = field(default_factory=dict)
    """A command that can't be run here -> what stands in for it; its output is not compared."""
    done: list[tuple[Command, str]] = field(default_factory=list)

    def run(self, command: Command) -> str:
        """Run a command; it has to end well and to print what the document shows. Return what it printed."""
        where = f"{command.file}, {command.section}: {command.text}"
        until_s = time.monotonic() + (PATIENCE_S if command.text.startswith(LOOKS) else 0)
        while True:
            status, printed = self._run(self.instead.get(command.text, command.text))
            problem = "" if status == 0 else f"ended with {status} and\n{printed}"
            if not problem and command.output is not None and command.text not in self.instead:
                problem = missing(command.output, printed)
            if not problem or time.monotonic() > until_s:
                break
            time.sleep(0.5)
        self.done.append((command, printed))
        assert not problem, f"{where}\n{problem}"
        return printed

    def _run(self, text: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {text}"],
            cwd=self.directory,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr


def missing(shown: str, printed: str) -> str:
    """Return what of the document is not printed, empty if all of it is; `...` stands for any lines.

    Line by line, in order, but for what differs in each run.
    """
    have = [shape(line) for line in printed.splitlines() if line.strip()]
    for line in shown.splitlines():
        if not line.strip() or line.strip() == CUT:
            continue
        wanted = shape(line)
        if wanted not in have:
            return f"the document shows\n  {line}\nas the next line, and this is printed:\n{printed}"
        del have[: have.index(wanted) + 1]
    return ""


def shape(line: str) -> str:
    """Return what of a line is the same in each run: times, ages, and ends of generated names are not."""
    return " ".join(_BARS.sub("=", _TIME.sub("T", _GENERATED.sub(r"\1-X", line))).split())
