"""Where answers go: a terminal with its width and colours, or another program."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Any

from gpuledger.plugin.tables import Page

OUTPUTS = ("table", "wide", "json", "yaml")


def page_of(no_color: bool = False) -> Page:
    """Return what standard output is: colours only on a terminal, and never under NO_COLOR (https://no-color.org)."""
    terminal = sys.stdout.isatty()
    dumb = os.environ.get("TERM") == "dumb"
    return Page(
        width=shutil.get_terminal_size().columns if terminal else None,
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
