"""Best fit: a yardstick to compare with.

Source: the paper in `fgd` and its authors' simulator. A pod goes to the node on which least is left afterwards of CPU
and of GPU, each as a part of the largest node's; whole numbers from 0 to 100. Its card is the fullest that it fits on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuledger.ledger.book import Ledger
from gpuledger.placement.decide import Candidate, Effect, Footprint
from gpuledger.placement.fragmentation.expected import Floats
from gpuledger.placement.fragmentation.nodes import UNLIMITED, CardSums, NodeTable, together


class BestFit:
    """Prices of the yardstick."""

    def __init__(self, ledger: Ledger) -> None:
        self._nodes = NodeTable(ledger)
        self._free = CardSums(self._nodes, lambda _, milli: np.array([milli], dtype=np.float32), 1)
        self._seen = -1
        self._largest = np.ones(2)  # CPU and thousandths of cards of the emptiest node so far
        self._version = 0

    @property
    def version(self) -> int:
        """Grows when a larger node is found."""
        return self._version

    def tick(self) -> None:
        """Look at nodes that are new or have changed."""
        self._nodes.sync()
        self._free.sync()
        changed = self._nodes.changed_since(self._seen)
        self._seen = self._nodes.seen
        cpu, cards = _known(self._nodes.cpu[changed]), self._free.of(changed)[:, 0]
        largest = np.maximum(self._largest, [cpu.max(initial=0), cards.max(initial=0)])
        if (largest > self._largest).any():
            self._largest = largest
            self._version += 1

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does to its node."""
        self._nodes.sync()
        return self._nodes.effect(footprint, candidate)

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return minus the score of each way, a whole number from 0 to 100."""
        self.tick()
        candidates = together(effects)
        cpu = _known(self._nodes.cpu[candidates.nodes]) - footprint.host.cpu_milli
        left = 0.5 * cpu / self._largest[0] + 0.5 * self._free.after(candidates)[:, 0] / self._largest[1]
        return [-int(100 * (1 - part)) for part in left]


def _known(cpu: Floats) -> Floats:
    """Return CPU with 0 where it is not known."""
    return np.where(cpu < UNLIMITED / 2, cpu, np.float32(0))
