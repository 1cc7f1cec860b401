"""Semantic versions as Kubernetes reads them in device attributes and in CEL.

Source: blang/semver 4.0.0, which Kubernetes uses: semver.org's rules, with numbers up to 64 bits; and
`normalizeAndParse` of k8s.io/apiserver (pkg/cel/library/semverlib.go) for versions that people shorten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PLAIN = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-(?P<before>[0-9A-Za-z.-]*))?(?:\+(?P<build>[0-9A-Za-z.-]*))?",
    re.ASCII,
)
_LARGEST = 2**64
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. Build metadata does not count in comparisons."""

    major: int
    minor: int
    patch: int
    before_release: tuple[str, ...] = ()
    build: tuple[str, ...] = field(default=(), compare=False)
    size: int = field(default=1, compare=False)
    """What it costs to compare it, in steps of an evaluation."""

    def compare(self, other: Version) -> int:
        """Return -1, 0 or 1."""
        return (self._order > other._order) - (self._order < other._order)

    @property
    def _order(self) -> tuple[object, ...]:
        # A version comes after those before its release; numbers come before words; fewer parts before more.
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.before_release)
        return (self.major, self.minor, self.patch, not self.before_release, parts)


def parse_version(text: str) -> Version | None:
    """Return the version that a text is, None if it is none."""
    match = _PLAIN.fullmatch(text)
    if not match or any(len(number) > _MOST_DIGITS or int(number) >= _LARGEST for number in match.groups()[:3]):
        return None
    before, build = ((match[part] or "").split(".") if match[part] is not None else [] for part in ("before", "build"))
    if not all(before) or not all(build) or not all(_is_part(part) for part in before):
        return None
    size = 4 + 2 * len(before) + (len(text) >> 5)
    return Version(int(match[1]), int(match[2]), int(match[3]), tuple(before), tuple(build), size)


def _is_part(part: str) -> bool:
    if not part.isdigit():
        return True
    return part == "0" or (part[0] != "0" and len(part) <= _MOST_DIGITS and int(part) < _LARGEST)


def normalized(text: str) -> str:
    """Return the text with three numbers: without a `v`, without leading zeros, and with the numbers that it lacks.

    A text that can't be normalized is returned as no version.
    """
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) for part in parts]
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            return ""
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    short = part.lstrip("0")
    return short if short[:1] in tuple("0123456789") else "0" + short
