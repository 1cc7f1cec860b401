"""A terminal's other screen: what stood on the first one is there again when this ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""To the other screen, without a cursor, and with lines that end where it ends; and back."""
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """The terminal while a `with` lasts."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def __enter__(self) -> Self:
        """Take the other screen."""
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the first screen back."""
        self._write(LEAVE)

    def show(self, lines: Sequence[str]) -> None:
        """Paint lines over those before: in place, so that nothing flickers.."""
        self._write(HOME + "\r\n".join(f"{line}{REST_OF_LINE}" for line in lines) + REST_OF_SCREEN)

    def _write(self, text: str) -> None:
        encoding = self._terminal.encoding or "utf-8"
        self._terminal.write(text.encode(encoding, "replace").decode(encoding))
        self._terminal.flush()
