"""Run commands on a terminal of their own and draw what it shows: `terminal_picture.py OUT.svg COLUMNS 'COMMAND'...`.

Pictures of the documents are made so: they are what the programs print, colours included. The commands run in a shell.
"""

from __future__ import annotations

import html
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A font that a browser would fetch from elsewhere; any other of equal widths does."""

RUN = re.compile(r'<text ([^>]*?)x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"([^>]*)>([^<]+)</text>')
SPACE = "&#160;"


def _in_pieces(run: re.Match[str]) -> str:
    """Place what stands between gaps by itself: some programs draw the spaces of a text in another width."""
    before, left, y, length, after, text = run.groups()
    plain = html.unescape(text)
    size = float(length) / len(plain)
    pieces = []
    for piece in re.finditer(r"[^\xa0\n]+(?:\xa0[^\xa0\n]+)*", plain):
        x, taken = float(left) + piece.start() * size, len(piece[0]) * size
        words = html.escape(piece[0]).replace("\xa0", SPACE)
        pieces.append(f'<text {before}x="{x:.1f}" y="{y}" textLength="{taken:.1f}"{after}>{words}</text>')
    return "".join(pieces)


def shown(command: str, columns: int) -> str:
    """Return what a command writes to a terminal that wide."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "60", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, shell=True, stdout=follower, stderr=follower, env=environment)  # noqa: S602
    os.close(follower)
    read = b""
    while True:
        try:
            read += os.read(leader, 65_536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            break
    os.close(leader)
    process.wait()
    return read.decode().replace("\r\n", "\n")


def draw(target: Path, columns: int, commands: Sequence[str]) -> None:
    """Draw commands and what they print below each other."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        for number, command in enumerate(commands):
            console.print(Text(("\n" if number else "") + f"$ {command}", style="bold"))
            console.print(Text.from_ansi(shown(command, columns).rstrip("\n")), soft_wrap=True)
        picture = console.export_svg(title="kubectl gpuledger", theme=MONOKAI, unique_id=target.stem)
    picture = RUN.sub(_in_pieces, FONT.sub("", picture))
    target.write_text(picture.replace("Fira Code, monospace", "monospace"))


def main() -> None:
    """Draw the commands of the command line."""
    target, columns, *commands = sys.argv[1:]
    draw(Path(target), int(columns), commands)


if __name__ == "__main__":
    main()
