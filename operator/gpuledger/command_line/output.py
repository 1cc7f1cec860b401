"""Where answers go: a terminal with its width and colours, or another program."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from gpuledger.reports.tables import Terminal

NARROWEST = 120
"""Columns of a table with UUIDs and details on a terminal: narrower, a detail would be a column of syllables."""


def terminal_of(no_color: bool = False, narrowest: int = 0) -> Terminal:
    """Return what standard output is: colours only on a terminal, and never under NO_COLOR (https://no-color.org).

    A terminal with fewer columns than `narrowest` breaks the lines itself.
    """
    terminal = sys.stdout.isatty()
    dumb = os.environ.get("TERM") == "dumb"
    return Terminal(
        width=max(shutil.get_terminal_size().columns, narrowest) if terminal else None,
        colours=terminal and not dumb and not no_color and not os.environ.get("NO_COLOR"),
        blocks=(sys.stdout.encoding or "").lower().startswith("utf"),
    )


def data(content: Any, output: str) -> str:
    """Return content as JSON or YAML."""
    if output == "json":
        import orjson

        return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"
    import yaml

    return str(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))


def write(lines: Iterable[str]) -> None:
    """Print lines. What the terminal's encoding lacks becomes a question mark: no error in the middle of a table."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def show(
    found: Any, output: str, lines: Callable[[Terminal], Iterable[str]], no_color: bool = False, narrowest: int = 0
) -> None:
    """Print what was found as data, or as the lines for people."""
    if output in ("json", "yaml"):
        sys.stdout.write(data(found, output))
        sys.stdout.flush()
    else:
        write(lines(terminal_of(no_color, narrowest)))
