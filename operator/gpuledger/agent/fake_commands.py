"""What a container's command would do, for the few commands that take no machine to find out: sleep, true, exit ..."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
SCRIPT_FLAG = re.compile(r"-[a-z]*c")
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
JOINTS = frozenset({";", "\n", "&&", "||"})
EXIT_CODES = 256

Step = tuple[str, list[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: how long it takes, `math.inf` for one that runs until it is killed, and how it ends."""

    lasts_s: float
    exit_code: int = 0


ENDLESS = Run(math.inf)
AT_ONCE = Run(0.0)


def run_of(words: Sequence[str]) -> Run | None:
    """Return what a command does, None where only running it would tell."""
    match words:
        case [shell, flag, script, *_] if _name(shell) in SHELLS and SCRIPT_FLAG.fullmatch(flag):
            return _script(script)
        case _:
            return _command(words)


def _command(words: Sequence[str]) -> Run | None:
    name, arguments = _name(words[0]) if words else "", words[1:]
    match name:
        case "sleep":
            return _sleep(arguments)
        case "true" | ":" | "echo":
            return AT_ONCE
        case "false":
            return Run(0.0, exit_code=1)
        case "pause":
            return ENDLESS
        case "tail" if list(arguments) == ["-f", "/dev/null"]:
            return ENDLESS
    return None


def _sleep(durations: Sequence[str]) -> Run | None:
    if "infinity" in durations:
        return ENDLESS
    found = [DURATION.fullmatch(text) for text in durations]
    times_s = [float(match[1]) * UNITS_S[match[2]] for match in found if match]
    return Run(sum(times_s)) if durations and len(times_s) == len(durations) else None


def _script(script: str) -> Run | None:
    """Return what commands do one after the other, None if one of them is not understood."""
    lasts_s, code = 0.0, 0
    try:
        for joint, words in _steps(script):
            if joint not in JOINTS:
                return None
            if not words or (joint == "&&" and code) or (joint == "||" and not code):
                continue
            if words[0] == "exit":
                return Run(lasts_s, int(words[1]) % EXIT_CODES if words[1:] else code)
            run = _command(words)
            if run is None:
                return None
            lasts_s, code = lasts_s + run.lasts_s, run.exit_code
    except ValueError:  # an open quote, or an exit code that is no number
        return None
    return Run(lasts_s, code)


def _steps(script: str) -> Iterator[Step]:
    """Yield each command of a script, with what stands before it. Raises ValueError."""
    tokens = shlex.shlex(script, posix=True, punctuation_chars=";&|<>()\n")
    tokens.whitespace, tokens.commenters, tokens.whitespace_split = " \t\r", "", True
    joint, words = ";", list[str]()
    for token in tokens:
        if set(token) <= set(";&|<>()\n"):
            yield joint, words
            joint, words = token.strip("\n") or "\n", []
        else:
            words.append(token)
    yield joint, words


def _name(program: str) -> str:
    return PurePosixPath(program).name
