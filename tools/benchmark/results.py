"""What a run has found, as it is kept: rows of figures, with the machine and the versions they come from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FORMAT = 1

Key = tuple[str, int, str]
"""Case, nodes, subject: what the rounds of one measurement have in common."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. The unit of a figure is the end of its name."""

    case: str
    nodes: int
    subject: str
    """Who was measured: plain, gpuledger, or floor."""
    round: int
    figures: dict[str, float]

    @property
    def key(self) -> Key:
        """What this row shares with those of other rounds."""
        return (self.case, self.nodes, self.subject)


@dataclass(frozen=True, slots=True)
class Run:
    """All rows of one run, in the order in which they were measured."""

    begin: str
    machine: dict[str, object]
    versions: dict[str, str]
    rows: list[Row]

    def save(self, path: Path) -> None:
        """Write the run to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.json() + "\n")

    def json(self) -> str:
        """Return the run as it is kept."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read a run that was saved. Raises ValueError if the file is none."""
        try:
            content = json.loads(path.read_text())
            if content.pop("format") != FORMAT:
                raise ValueError("of another format")
            rows = [Row(**row) for row in content.pop("rows")]
            return cls(rows=rows, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no result of this benchmark: {error}") from error


def medians(rows: Iterable[Row]) -> dict[Key, dict[str, float]]:
    """Return each figure's median over the rounds, in the order of the rows."""
    gathered: dict[Key, dict[str, list[float]]] = {}
    for row in rows:
        figures = gathered.setdefault(row.key, {})
        for name, value in row.figures.items():
            figures.setdefault(name, []).append(value)
    return {
        key: {name: statistics.median(values) for name, values in figures.items()} for key, figures in gathered.items()
    }
