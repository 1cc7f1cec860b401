"""Tables for terminals and for other programs, without a library: a thousand rows are there in 20 ms.

A cell is a text, or parts of one, each with a style. Where the terminal is too narrow, columns go that matter less, and
long texts are folded; in a file or a pipe nothing is cut. CSV has the same columns, without bars.

Many that are alike, such as the replicas of a Deployment or the pods of a Job, are one line. The ledger knows no
owners, so who belongs together is told by names, as controllers make them. That alone joins nothing: only those are
joined of which everything that is shown is equal, too.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
"""The text on both sides of a ruled table."""
UNPAINTED = re.compile(r"\x1b\[[0-9;]*m")
NARROWEST = 8
"""Columns that it has at least; below that, the terminal breaks lines as it likes."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The properties of the output device."""

    width: int | None = None
    """Columns of the terminal, None where nothing is cut."""
    colours: bool = False
    blocks: bool = True
    """Whether bars can be drawn with characters beyond ASCII."""
    csv: bool = False
    """Whether it is no terminal, but a reader of comma-separated values: tables are all that it gets."""

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
    drawn: bool = False
    """Whether it shows as a bar what another column has as a number."""


def table(
    terminal: Terminal,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    title_style: str = "bold",
    gap: str = GAP,
) -> list[str]:
    """Return the lines of a table, its titles first; `gap` is what stands between two columns."""
    body = [tuple(map(_harmless_cell, row)) for row in rows]
    if terminal.csv:
        return _comma_separated(columns, body)
    titles: tuple[Cell, ...] = tuple(((column.title, title_style),) for column in columns)
    widths = [max(map(length, cells)) for cells in zip(titles, *body, strict=True)]
    layout = _Layout(terminal, columns, widths, gap)
    return [line for row in (titles, *body) for line in layout.lines(row)]


def _comma_separated(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the lines of RFC 4180, without the columns that are drawn."""
    kept = [place for place, column in enumerate(columns) if not column.drawn]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([columns[place].title for place in kept])
    writer.writerows([_plain(row[place]) for place in kept] for row in rows)
    return text.getvalue().splitlines()


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "".join(part for part, _ in cell)


def ruled(terminal: Terminal, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table that stands by itself: a rule under its titles, and room around it."""
    if terminal.csv:
        return table(terminal, columns, rows)
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


class _Layout:
    """Which columns of a table are shown, and how wide."""

    def __init__(self, terminal: Terminal, columns: Sequence[Column], widths: list[int], gap: str) -> None:
        self._terminal, self._columns, self._widths, self._gap = terminal, columns, widths, gap
        self._shown = list(range(len(columns)))
        self._leave_out()
        folded = [position for position in self._shown if columns[position].fold]
        while terminal.width is not None and folded and self._width(widths) > terminal.width:
            widest = max(folded, key=lambda position: widths[position])
            if widths[widest] <= NARROWEST:
                break
            widths[widest] -= 1

    def _leave_out(self) -> None:
        """Leave out the columns that there is no room for."""
        pairs = zip(self._columns, self._widths, strict=True)
        needed = [min(width, READABLE) if column.fold else width for column, width in pairs]
        while self._terminal.width is not None and self._width(needed) > self._terminal.width:
            spared = max(self._shown, key=lambda position: self._columns[position].spare)
            if not self._columns[spared].spare:
                break
            self._shown.remove(spared)

    def _width(self, widths: Sequence[int]) -> int:
        return sum(widths[position] for position in self._shown) + len(self._gap) * (len(self._shown) - 1)

    def lines(self, row: Sequence[Cell]) -> list[str]:
        """Return a row in as many lines as its longest folded text takes."""
        folded = {position: self._folded(position, row[position]) for position in self._shown}
        height = max(map(len, folded.values()))
        return [
            self._line({position: cells[number] if number < len(cells) else "" for position, cells in folded.items()})
            for number in range(height)
        ]

    def _folded(self, position: int, cell: Cell) -> list[Cell]:
        width = self._widths[position]
        if not self._columns[position].fold or length(cell) <= width:
            return [cell]
        text = _plain(cell)
        style = "" if isinstance(cell, str) else cell[0][1]
        return [((line, style),) for line in textwrap.wrap(text, width)]

    def _line(self, cells: Mapping[int, Cell]) -> str:
        texts = []
        for position, cell in cells.items():
            text = cell if isinstance(cell, str) else "".join(self._terminal.paint(*part) for part in cell)
            space = " " * (self._widths[position] - length(cell))
            texts.append(space + text if self._columns[position].right else text + space)
        return self._gap.join(texts).rstrip()


Row = TypeVar("Row")


FEW = 2
"""So many that are alike are shown one by one: there is nothing to gain."""


NAMED = 3
"""Of more names, the others are counted."""


MADE_UP = re.compile(r"(-[bcdfghjklmnpqrstvwxz2456789]{5,10}(?=-|$))|\d+(?=-|$)")
"""The parts that controllers append to their own name: a template's hash or a random end, in Kubernetes' letters; a
number."""


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
    """Return pods in a few words: names, groups with their number, and how many others there are."""
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
