"""What `gpuledger top` shows: the views, and what their rows are sorted by. The help needs no more than this."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuledger.command_line.top.rows import Line

VIEWS = {"nodes": "NODE", "cards": "CARD", "models": "MODEL", "namespaces": "NAMESPACE"}
"""View -> the title of the column with what its rows are about."""

SORTS: dict[str, Callable[[Line], Any]] = {
    "memory": lambda line: -_part(line.used.memory_mib, line.capacity.memory_mib),
    "cores": lambda line: -_part(line.used.cores, line.capacity.cores),
    "slots": lambda line: -_part(line.used.number, line.capacity.number),
    "cards": lambda line: -line.cards,
    "pods": lambda line: -line.pods,
    "state": lambda line: (line.ready, line.state),
}
"""Sort orders besides the name -> key. The fullest comes first, and rows that need attention."""


def _part(used: int, capacity: int) -> float:
    return used / capacity if capacity else float(used)
