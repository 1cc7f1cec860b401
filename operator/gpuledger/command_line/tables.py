"""Tables for people: as wide as the terminal, or whole lines where another program reads them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType

NARROWEST = 120
"""Columns of a table on a terminal: narrower, a detail beside a UUID would be a column of syllables."""

WIDEST = 10_000
"""Columns of a table for a file or another program: no line is broken, nothing is cut."""


def printed(parts: Iterable[RenderableType], narrowest: int = NARROWEST) -> str:
    """Return the parts below each other, in colours if they go to a terminal. Foreign text is no markup."""
    console = Console(highlight=False, markup=False, emoji=False)
    on_terminal = console.is_terminal
    console.width = max(console.width, narrowest) if on_terminal else WIDEST
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    text = capture.get()
    return text if on_terminal else "".join(line.rstrip() + "\n" for line in text.splitlines())
