"""Which nodes are close to each other, as their labels say: a rack, an NVLink domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Zones:
    """The values that nodes have of some labels, the narrowest label first."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)
        self._values: dict[str, tuple[str, ...]] = {}  # node name -> its value of each label, empty if it has none

    def observe(self, node_name: str, labels: Mapping[str, str]) -> None:
        """Note a node's labels."""
        values = tuple(str(labels.get(label) or "") for label in self.labels)
        if any(values):
            self._values[node_name] = values
        else:
            self.forget(node_name)

    def forget(self, node_name: str) -> None:
        """Note that a node is gone."""
        self._values.pop(node_name, None)

    def of(self, node_name: str, label: int) -> str:
        """Return a node's zone by one of the labels, given by its position; empty if it has none."""
        values = self._values.get(node_name)
        return values[label] if values else ""

    def nodes_by_zone(self, label: int) -> dict[str, set[str]]:
        """Return the names of the nodes of each zone."""
        found: dict[str, set[str]] = {}
        for name, values in self._values.items():
            if values[label]:
                found.setdefault(values[label], set()).add(name)
        return found
