"""The chart's values as a person reads them: each with its default and its comment, from values.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

LONGEST: Final = 70
"""How long a default may be to be shown in a table, in characters."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value that can be set."""

    path: str
    default: Any
    comment: str

    @property
    def shown(self) -> str:
        """Its default, as YAML on one line; what is long is left to the file."""
        text = yaml.safe_dump(self.default, default_flow_style=True, sort_keys=False, width=1000)
        line = text.removesuffix("...\n").strip()
        return f"`{line}`" if len(line) <= LONGEST else "see the file"


def documented(text: str) -> Iterator[Value]:
    """Yield the values that have a comment above them; those without are only sections of others."""
    values = yaml.safe_load(text)
    path: list[str] = []
    comments: list[str] = []
    inside = -1  # how deep the value is indented whose parts are being passed
    for line in text.splitlines():
        key = re.match(r'( *)"?([\w.-]+)"?:', line)
        depth = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#"):
            comments.append(line.strip("# "))
        elif not line.strip():
            comments = []  # it was about the file
        elif key and not 0 <= inside < depth:
            inside = -1
            path = [*path[: depth // 2], key[2]]
            if comments:
                yield Value(".".join(path), _at(values, path), " ".join(comments))
                inside = depth
            comments = []


def table(text: str) -> str:
    """Return the table for a document."""
    rows = [f"| `{each.path}` | {each.shown} | {each.comment} |\n" for each in documented(text)]
    return "".join(["| value | default | meaning |\n|---|---|---|\n", *rows])


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values
