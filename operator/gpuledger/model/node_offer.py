"""The offer of a node's device plugin, and the vocabulary that it understands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Dialect(StrEnum):
    """The system in whose format a node's register is; its device plugin expects assignments in the same."""

    NATIVE = "native"
    HAMI = "hami"
    VOLCANO = "volcano"


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node whose device plugin answers."""

    dialect: Dialect = Dialect.NATIVE
    resources: frozenset[str] = frozenset()
    """Count resources that it serves: the kubelet asks it for no container that counts cards in another name."""
    once: frozenset[str] = frozenset()
    """Others that the node still lists, with nothing allocatable: a plugin that is gone has given out cards by them."""

    def serves(self, resource: str) -> bool:
        """Tell whether a container that counts its cards in this name gets them; an empty name stands for any."""
        return not resource or resource in self.resources
