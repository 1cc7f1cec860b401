"""Tables for terminals and for other programs, without a library: a thousand rows are there in 20 ms.

A cell is a text, or parts of one, each with a style. Where the terminal is too narrow, columns go that matter less, and
long texts are folded; in a file or a pipe nothing is cut.

Many that are alike, such as the replicas of a Deployment or the pods of a Job, are one line. The ledger knows no
owners, so who belongs together is told by names, as controllers make them. That alone joins nothing: only those are
joined of which everything that is shown is equal, too.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

Part = tuple[str, str]
"""A text and its style: a name of STYLES, or empty."""
Cell = str | tuple[Part, ...]

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}

GAP, NARROW_GAP = "   ", "  "
READABLE = 20
"""Columns that a folded text should have: other columns go for it."""
EDGE = "  "
"""What stands on both sides of a ruled table."""
UNPAINTED = re.compile(r"\x1b\[[0-9;]*m")
NARROWEST = 8
"""Columns that it has at least; below that, the terminal breaks lines as it likes."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What is printed on."""

    width: int | None = None
    """Columns of the terminal, None where nothing is cut."""
    colours: bool = False
    blocks: bool = True
    """Whether bars can be drawn with characters beyond ASCII."""

    def paint(self, text: str, style: str) -> str:
        """Return a text in a style, if there are colours."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colours and style and text else text

    def folded(self, text: str, indent: int = 0) -> list[str]:
        """Return a text in lines that leave room for an indent; as one line where nothing is cut."""
        text = harmless(text)
        if self.width is None:
            return [text]
        return textwrap.wrap(text, max(self.width - indent, NARROWEST)) or [""]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Those with a higher `spare` go first where there is no room; with 0 they stay."""

    title: str
    right: bool = False
    spare: int = 0
    fold: bool = False
    """Whether its texts may go on in the next line."""


def table(
    terminal: Terminal,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    title_style: str = "bold",
    gap: str = GAP,
) -> list[str]:
    """Return the lines of a table, its titles first; `gap` is what stands between two columns."""
    body = [tuple(map(_harmless_cell, row)) for row in rows]
    titles: tuple[Cell, ...] = tuple(((column.title, title_style),) for column in columns)
    widths = [max(map(length, cells)) for cells in zip(titles, *body, strict=True)]
    shown = _shown(terminal, columns, widths, len(gap))
    folded = [position for position in shown if columns[position].fold]
    while terminal.width is not None and folded and _width(widths, shown, len(gap)) > terminal.width:
        widest = max(folded, key=lambda position: widths[position])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return [line for row in (titles, *body) for line in _lines(terminal, columns, row, shown, widths, gap)]


def ruled(terminal: Terminal, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table that stands by itself: a rule under its titles, and room around it."""
    inner = terminal if terminal.width is None else replace(terminal, width=terminal.width - 2 * len(EDGE))
    titles, *body = table(inner, columns, rows, title_style="dim")
    width = max(len(UNPAINTED.sub("", line)) for line in (titles, *body))
    rule = " " + ("─" if terminal.blocks else "-") * (width + 2)
    return ["", EDGE + titles, rule, *(EDGE + line for line in body), ""]


def harmless(text: str) -> str:
    """Return a text without what moves a terminal's cursor or changes its colours: users write some of it."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def _harmless_cell(cell: Cell) -> Cell:
    return harmless(cell) if isinstance(cell, str) else tuple((harmless(text), style) for text, style in cell)


def length(cell: Cell) -> int:
    """Return how many columns a cell takes."""
    return len(cell) if isinstance(cell, str) else sum(len(text) for text, _ in cell)


def _shown(terminal: Terminal, columns: Sequence[Column], widths: Sequence[int], gap: int) -> list[int]:
    """Return the positions of the columns that there is room for."""
    shown = list(range(len(columns)))
    needed = [min(width, READABLE) if column.fold else width for column, width in zip(columns, widths, strict=True)]
    while terminal.width is not None and _width(needed, shown, gap) > terminal.width:
        spared = max(shown, key=lambda position: columns[position].spare)
        if not columns[spared].spare:
            break
        shown.remove(spared)
    return shown


def _width(widths: Sequence[int], shown: Sequence[int], gap: int) -> int:
    return sum(widths[position] for position in shown) + gap * (len(shown) - 1)


def _lines(
    terminal: Terminal,
    columns: Sequence[Column],
    row: Sequence[Cell],
    shown: Sequence[int],
    widths: Sequence[int],
    gap: str,
) -> list[str]:
    folded = {position: _fold(row[position], widths[position], columns[position].fold) for position in shown}
    height = max(map(len, folded.values()))
    if height == 1:
        return [_line(terminal, columns, row, shown, widths, gap)]
    lines = []
    for number in range(height):
        cells = [folded.get(p, [""])[number] if number < len(folded.get(p, [""])) else "" for p in range(len(row))]
        lines.append(_line(terminal, columns, cells, shown, widths, gap))
    return lines


def _fold(cell: Cell, width: int, fold: bool) -> list[Cell]:
    if not fold or length(cell) <= width:
        return [cell]
    text = cell if isinstance(cell, str) else "".join(part for part, _ in cell)
    style = "" if isinstance(cell, str) else cell[0][1]
    return [((line, style),) for line in textwrap.wrap(text, width)]


def _line(
    terminal: Terminal,
    columns: Sequence[Column],
    row: Sequence[Cell],
    shown: Sequence[int],
    widths: Sequence[int],
    gap: str,
) -> str:
    cells = []
    for position in shown:
        cell = row[position]
        if isinstance(cell, str):
            text, size = cell, len(cell)
        else:
            text, size = "".join(terminal.paint(*part) for part in cell), length(cell)
        space = " " * (widths[position] - size)
        cells.append(space + text if columns[position].right else text + space)
    return gap.join(cells).rstrip()


Row = TypeVar("Row")


FEW = 2
"""So many that are alike are shown one by one: there is nothing to gain."""


NAMED = 3
"""Of more names, the others are counted."""


MADE_UP = re.compile(r"(-[bcdfghjklmnpqrstvwxz2456789]{5,10}(?=-|$))|\d+(?=-|$)")
"""What controllers append to their own name: a template's hash or a random end, in Kubernetes' letters; a number."""


def family(name: str) -> str:
    """Return a pod's name with marks for what its controller has appended: "chat-*-*" of a Deployment's replica."""
    return MADE_UP.sub(lambda found: "-*" if found[1] else "#", name)


def gathered(
    rows: Iterable[Row], name: Callable[[Row], str], shown: Callable[[Row], Hashable], few: int = FEW
) -> list[list[Row]]:
    """Return rows in groups of which no more than the end of the name differs, in the order of the first of each."""
    groups: dict[Hashable, list[tuple[int, Row]]] = {}  # family, and what is shown -> places and rows
    for place, row in enumerate(rows):
        groups.setdefault((family(name(row)), shown(row)), []).append((place, row))
    parts = []
    for group in groups.values():
        many = len({name(row) for _, row in group}) > few
        parts += [group] if many else [[each] for each in group]
    return [[row for _, row in part] for part in sorted(parts, key=lambda part: part[0][0])]


def title_of(names: Sequence[str], noun: str = "pods") -> str:
    """Return one name, or "30 pods like default/chat-0"."""
    return names[0] if len(names) == 1 else f"{len(names)} {noun} like {names[0]}"


def pods_named(names: Iterable[str], most: int = NAMED) -> str:
    """Return who is meant in a few words: names, crowds with their number, and how many others there are."""
    groups = gathered(names, str, lambda _: None)
    rest = sum(map(len, groups[most:]))
    return ", ".join(map(title_of, groups[:most])) + (f" +{rest}" if rest else "")


def nodes_named(nodes: Iterable[str]) -> str:
    """Return where many are, each by its node: that node, or "24 on node-1, 6 on node-2"."""
    counts = Counter(nodes)
    return next(iter(counts)) if len(counts) == 1 else listed([f"{count} on {node}" for node, count in counts.items()])


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """Return names in a sentence: "a", "a and b", "a, b, c and 4 more"."""
    if len(names) == 1:
        return names[0]
    shown, rest = (names[:-1], names[-1]) if len(names) <= most else (names[:most], f"{len(names) - most} more")
    return f"{', '.join(shown)} and {rest}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in order, those in a row as one: "0-2, 5"."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)
