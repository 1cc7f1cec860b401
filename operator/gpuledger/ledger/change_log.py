"""Numbers the changes of nodes, so that a reader only looks again at nodes that have changed since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

NodeChange = tuple[int, str]
"""The number of a change and the name of its node."""


class ChangeLog:
    """The last change of each node."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes so far."""
        self._last: OrderedDict[str, int] = OrderedDict()  # node name -> number of its last change, oldest first

    def touch(self, node_name: str) -> None:
        """Note a change of a node."""
        self.changes += 1
        self._last[node_name] = self.changes
        self._last.move_to_end(node_name)

    def names(self) -> Iterator[str]:
        """Yield every node that has ever changed, the latest first."""
        return reversed(self._last)

    def since(self, change: int) -> Iterator[NodeChange]:
        """Yield the last change of each node that has one later than this, latest first. Costs what it yields."""
        for node_name in reversed(self._last):
            if self._last[node_name] <= change:
                return
            yield self._last[node_name], node_name
