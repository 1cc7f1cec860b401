"""The documents as data: their commands with what they print, their links, and their headings."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WITH_COMMANDS = [ROOT / "README.md", *PAGES]
DOCUMENTS = [*WITH_COMMANDS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

PROMPT = "$ "
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?\)")


@dataclass(frozen=True)
class Command:
    """A command of a document."""

    file: str
    text: str
    output: str | None
    """What the document says it prints; None where it says nothing."""
    section: str = ""
    """The heading above it."""


def commands() -> Iterator[Command]:
    """Yield every command of the fenced blocks `console` and `bash`, one line each.

    In a block with prompts the rest is output; in one without, each line is a command.
    """
    for document in WITH_COMMANDS:
        yield from commands_of(document)


def commands_of(document: Path) -> Iterator[Command]:
    """Yield the commands of one document, in its order."""
    name, text = str(document.relative_to(ROOT)), document.read_text()
    headings = list(re.finditer(r"^#{1,6} (.+)$", FENCE.sub(lambda block: " " * len(block[0]), text), re.MULTILINE))
    for block in FENCE.finditer(text):
        indent, language, body = block.groups()
        if language not in ("console", "bash"):
            continue
        section = next((found[1] for found in reversed(headings) if found.start() < block.start()), "")
        lines = [line.removeprefix(indent) for line in body.replace("\\\n", "").splitlines()]
        if any(line.startswith(PROMPT) for line in lines):
            yield from (replace(each, section=section) for each in _prompted(name, lines))
        else:
            texts = (line.split(" #")[0] for line in lines if not line.startswith("#"))
            yield from (Command(name, " ".join(each.split()), None, section) for each in texts if each.strip())


def mentioned(document: Path) -> Iterator[str]:
    """Yield what a document says of commands in its text, between backticks: a program with two words or more."""
    text = FENCE.sub("", document.read_text())
    programs = "docker|etcdutl|gpuledger|helm|kubectl|make|nvidia-smi"
    yield from (" ".join(each.split()) for each in re.findall(rf"`((?:{programs})(?:\s+[^`\s]+){{2,}})`", text))


@functools.cache
def shown() -> dict[str, list[Command]]:
    """Return the text of each command -> where it is shown."""
    found: dict[str, list[Command]] = {}
    for command in commands():
        found.setdefault(command.text, []).append(command)
    return found


def _prompted(name: str, lines: list[str]) -> Iterator[Command]:
    command, output = "", list[str]()
    for line in [*lines, PROMPT]:
        if line.startswith(PROMPT):
            if command:
                yield Command(name, " ".join(command.split()), "\n".join(output).strip() or None)
            command, output = line.removeprefix(PROMPT), []
        else:
            output.append(line)


def links(document: Path) -> Iterator[str]:
    """Yield the targets of a document's links and pictures, those to other hosts apart."""
    text = FENCE.sub("", document.read_text())
    text = re.sub(r"`[^`\n]*`", "", text)
    yield from (target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:"))


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as code hosts and the site make them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE):
        slug = base = _slug(title)
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


def _slug(title: str) -> str:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
    kept = "".join(c for c in plain if c in "-_ " or unicodedata.category(c)[0] in "LN")
    return kept.replace(" ", "-")


@dataclass(frozen=True)
class Run:
    """How a command of the documents is run by a test."""

    command: str
    run_as: str
    status: int
    compared: bool
    """Whether what it prints is compared with the document."""


def runs(where: str) -> list[Run]:
    """Return the entries of a list in commands.yaml, `here` or `cluster`."""
    found = []
    for entry in _table()[where]:
        given: dict[str, Any] = {"run": entry} if isinstance(entry, str) else entry
        command = given["run"]
        compared = "as" not in given and "varies" not in given
        found.append(Run(command, given.get("as", command), given.get("exit", 0), compared))
    return found


def reasons() -> dict[str, str]:
    """Return command -> why no test runs it."""
    return dict(_table()["not_run"])


def run_elsewhere() -> dict[str, str]:
    """Return document -> the test that runs all of its commands."""
    return dict(_table()["by_file"])


@functools.cache
def _table() -> dict[str, Any]:
    return dict(yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text()))
