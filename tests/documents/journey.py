"""Runs the commands of a document one after the other, and compares what they print with what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from documents.pages import Command, commands_of
from documents.shell import Shell

LOOKS = ("kubectl gpuledger ", "kubectl get ")
"""Commands that only look: a person looks again if something takes a moment."""
PATIENCE_S = 20.0

CUT = "..."
"""A line of a document that stands for others which it does not show."""

_GENERATED = re.compile(r"\b(gpuledger(?:-agent)?)-[a-z0-9]{8,10}(?:-[a-z0-9]{5})?\b")
_TIME = re.compile(r"\b\d\d:\d\d:\d\d\b|\b\d+(?:m\d+)?s\b|\b\d+ (?:s|min|h)\b")
_NODE = re.compile(r"\bnode-\d\b")
_BARS = re.compile(r"[█▏▎▍▌▋▊▉░]+")


@dataclass
class Journey:
    """A shell, and what has been run in it."""

    shell: Shell
    instead: Mapping[str, str] = field(default_factory=dict)
    """A command that can't be run here -> what stands in for it; its output is not compared."""
    fills: dict[str, str] = field(default_factory=dict)
    """What the document writes in capitals -> what it is now. Where it shows a node, NAME is meant."""
    done: list[tuple[Command, str]] = field(default_factory=list)

    def run(self, command: Command) -> str:
        """Run a command; it has to end well and to print what the document shows. Return what it printed."""
        where = f"{command.file}, {command.section}: {command.text}"
        until_s = time.monotonic() + (PATIENCE_S if command.text.startswith(LOOKS) else 0)
        while True:
            ended = self.shell.run(self.filled(self.instead.get(command.text, command.text)))
            printed = ended.stdout + ended.stderr
            problem = "" if ended.returncode == 0 else f"ended with {ended.returncode} and\n{printed}"
            if not problem and command.output is not None and command.text not in self.instead:
                problem = missing(self._expected(command), printed)
            if not problem or time.monotonic() > until_s:
                break
            time.sleep(0.5)
        self.done.append((command, printed))
        assert not problem, f"{where}\n{problem}"
        return printed

    def filled(self, text: str) -> str:
        """Return a text with what its placeholders stand for."""
        for placeholder, value in self.fills.items():
            text = re.sub(rf"\b{placeholder}\b", value, text)
        return text

    def _expected(self, command: Command) -> str:
        shown = command.output or ""
        return _NODE.sub(self.fills["NAME"], shown) if "NAME" in self.fills and "NAME" in command.text else shown


class Walk:
    """The commands of one section of a document, a part at a time.

    A command that names a node is run for each of `nodes`; `fills` says what other placeholders stand for.
    """

    def __init__(self, journey: Journey, document: Path, section: str, *nodes: str, **fills: str) -> None:
        self._journey, self._nodes = journey, nodes
        self._left = [command for command in commands_of(document) if command.section == section]
        assert self._left, f"{document} has no commands under {section}"
        journey.fills = dict(fills)

    def through(self, beginning: str) -> None:
        """Run the commands up to the next one that begins so, and that one."""
        while self._left:
            if self._run_next().startswith(beginning):
                return
        raise AssertionError(f"no command that is left begins with {beginning}")

    def rest(self) -> None:
        """Run all that are left."""
        while self._left:
            self._run_next()

    def _run_next(self) -> str:
        command = self._left.pop(0)
        for name in self._nodes if "NAME" in command.text else ("",):
            self._journey.fills["NAME"] = name
            self._journey.run(command)
        return command.text


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
