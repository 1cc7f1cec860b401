"""Regular expressions in CEL: RE2's, whose work grows with the text and never with its powers.

Source: the CEL specification (`matches`), and k8s.io/apiserver (pkg/cel/library/regex.go) for `find` and `findAll`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpuledger.formats.resource_claims.cel.values import CelError, Unsupported, no_overload

MEMORY_BYTES = 256 * 1024
"""What RE2 may use for one pattern. It also limits how long a search may take per character."""

MOST_CLASSES = 4
"""Classes of Unicode's letters, such as `\\pL`, in a pattern: RE2 takes up to 7 ms to compile one."""

_PATTERNS_KEPT = 32
"""Compiled patterns that are remembered, of those that are texts made by an expression."""

_PLAIN_STEPS, _REPEATING_STEPS, _CLASS_STEPS = 100, 1_000, 10_000
"""Of an evaluation, to compile a pattern: any, one with a number of repetitions, one with a class of Unicode's."""

_TOO_LARGE = "pattern too large"


class Pattern:
    """A regular expression, or a text that is none."""

    __slots__ = ("problem", "program", "size", "too_large")

    def __init__(self, text: str) -> None:
        import re2  # as late as the CEL library: most runs meet no selector

        options = re2.Options()
        options.log_errors = False
        options.max_mem = MEMORY_BYTES
        self.program: Any = None
        self.problem, self.too_large, self.size = "", True, 1
        if "\\C" in text:
            self.problem = "\\C"
        elif classes(text) > MOST_CLASSES:
            self.problem = f"it has more than {MOST_CLASSES} classes such as \\pL"
        else:
            try:
                self.program = re2.compile(text, options)
                self.size = int(self.program.programsize)
            except re2.error as error:
                told = error.args[0] if error.args else ""
                told = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
                self.problem, self.too_large = told[:200], _TOO_LARGE in told


_made = lru_cache(maxsize=_PATTERNS_KEPT)(Pattern)


def classes(text: str) -> int:
    """Return how many classes of Unicode's letters a pattern has, or a few more."""
    return text.count("\\p") + text.count("\\P")


def compile_cost(text: str) -> int:
    """Return how many steps of an evaluation it takes at most to compile a pattern."""
    repeating = _REPEATING_STEPS if "{" in text else 0
    return _PLAIN_STEPS + repeating + (_CLASS_STEPS if classes(text) else 0) + len(text)


def pattern_size(pattern: str | Pattern) -> int:
    """Return how much RE2 does for a character of a text at most. Compiles a text."""
    return pattern.size if isinstance(pattern, Pattern) else _made(pattern).size


def _usable(name: str, text: object, pattern: object) -> tuple[str, Any]:
    """Return a text and the program of a pattern, which is one already if it is a literal. Raises CelError."""
    if not isinstance(text, str) or not isinstance(pattern, str | Pattern):
        raise no_overload(name, text, "" if isinstance(pattern, Pattern) else pattern)
    found = _made(pattern) if isinstance(pattern, str) else pattern
    if found.problem and found.too_large:
        raise Unsupported(f"a regular expression that gpuledger does not evaluate: {found.problem}")
    if found.problem:
        raise CelError(f"not a regular expression: {found.problem}")
    return text, found.program


def matches(text: object, pattern: object) -> bool:
    """Return whether a part of the text matches."""
    found, program = _usable("matches", text, pattern)
    return program.search(found) is not None


def find_first(text: object, pattern: object) -> str:
    """Return the first match, an empty text if there is none."""
    found, program = _usable("find", text, pattern)
    match = program.search(found)
    return str(match.group()) if match else ""


def find_all(text: object, pattern: object, limit: object = -1) -> list[object]:
    """Return all matches that do not overlap, or the first of them."""
    found, program = _usable("findAll", text, pattern)
    if type(limit) is not int:
        raise no_overload("findAll", text, "", limit)
    place, end = 0, -1
    matched: list[object] = []
    while place <= len(found) and (limit < 0 or len(matched) < limit):
        match = program.search(found, place)
        if not match:
            break
        start, stop = match.span()
        if stop > start or start != end:  # an empty match right after another one does not count
            matched.append(found[start:stop])
        end = stop
        place = stop if stop > start else stop + 1
    return matched
