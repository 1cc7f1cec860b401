"""Bars: how much of something is taken, at a glance."""

from __future__ import annotations

from gpuledger.reports.tables import Part, Terminal

WIDTH = 10
EIGHTHS = " ▏▎▍▌▋▊▉"
FULL, EMPTY = "█", "░"


def bar(terminal: Terminal, used: int, capacity: int, style: str, width: int = WIDTH) -> tuple[Part, ...]:
    """Return a bar of `width` columns. Anything taken shows, and only what is full looks full; red is too much."""
    if capacity <= 0:
        return ((" " * width, ""),)
    steps = 8 if terminal.blocks else 1
    filled = round(width * steps * used / capacity)
    if 0 < used < capacity:
        filled = min(max(filled, 1), width * steps - 1)
    if used > capacity:
        filled, style = width * steps, "red"
    whole, rest = divmod(filled, steps)
    if not terminal.blocks:
        return (("#" * whole, style), ("." * (width - whole), "dim"))
    drawn = FULL * whole + (EIGHTHS[rest] if rest else "")
    return ((drawn, style), (EMPTY * (width - len(drawn)), "dim"))
