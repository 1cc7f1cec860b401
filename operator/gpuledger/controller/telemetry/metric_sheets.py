"""Gauges about each card and each share, as Prometheus' text, made in slices.

A thousand nodes with eight cards have some 180,000 samples. The client library takes seconds to write them, in which no
Filter would be answered. So they are written here, a few cards at a time: what is in one slice was true at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger.ledger.entry import CardEntry
from gpuledger.reports.cards import CardReport, report_of

SLICE_CARDS = 20
"""Cards that are looked at without a pause: some 2 ms with all metrics there are."""

Row = tuple[tuple[str, ...], tuple[float, ...]]
"""Values of a sheet's labels, and one number for each of its families."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Gauges that have their labels in common. No two rows of all cards may have the same values of the labels."""

    labels: tuple[str, ...]
    families: tuple[tuple[str, str], ...]
    """Name and help of each gauge."""
    rows: Callable[[CardReport], Iterable[Row]]
    """Returns what a card adds to the sheet."""


class Scrape:
    """One look at all cards. Run through `steps`, with pauses between them; then take the `text`."""

    def __init__(
        self, entries: Sequence[CardEntry], sheets: Sequence[Sheet], count: Callable[[CardReport], None]
    ) -> None:
        self._entries = entries
        self._sheets = sheets
        self._count = count  # is called with the report of each card
        self._written: list[list[list[str]]] = [[[] for _ in sheet.families] for sheet in sheets]
        self._templates = [",".join(f'{label}="%s"' for label in sheet.labels) for sheet in sheets]

    def steps(self) -> Iterator[None]:
        """Look at the cards, a slice in each step."""
        for begin in range(0, len(self._entries), SLICE_CARDS):
            reports = [report_of(entry) for entry in self._entries[begin : begin + SLICE_CARDS]]
            for report in reports:
                self._count(report)
            for sheet, template, written in zip(self._sheets, self._templates, self._written, strict=True):
                _write(sheet, template, reports, written)
            yield

    def text(self) -> Iterator[bytes]:
        """Yield all families, each whole, as the format wants it."""
        for sheet, written in zip(self._sheets, self._written, strict=True):
            for (name, text), slices in zip(sheet.families, written, strict=True):
                yield f"# HELP {name} {text}\n# TYPE {name} gauge\n{''.join(slices)}".encode()


def _write(sheet: Sheet, template: str, reports: Iterable[CardReport], written: Sequence[list[str]]) -> None:
    lines: list[list[str]] = [[] for _ in sheet.families]
    names = [name for name, _ in sheet.families]
    for report in reports:
        for values, numbers in sheet.rows(report):
            labels = template % _escaped(values)
            for name, number, of_family in zip(names, numbers, lines, strict=True):
                of_family.append(f"{name}{{{labels}}} {number}\n")
    for slices, of_family in zip(written, lines, strict=True):
        slices.append("".join(of_family))


def _escaped(values: tuple[str, ...]) -> tuple[str, ...]:
    together = "".join(values)
    if "\\" in together or '"' in together or "\n" in together:
        return tuple(value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values)
    return values
