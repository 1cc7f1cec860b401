"""The policy `fragmentation`: a pod goes where it takes least from the pods that are to be expected.

The cost of a way is the sum of three things, all in thousandths of a card:

- the *slots* it takes: how much less the node is worth to further pods of each expected kind (`slots`);
- the *remnant* it leaves on a shared card, less than the one that it found (`remnant_worth`);
- the *load* of the kind of card it takes, for pods that could as well have another (`model_load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuledger.model.amounts import Amounts
from gpuledger.placement.candidates import Footprint
from gpuledger.placement.decide import Effect
from gpuledger.placement.fragmentation.nodes import Effects, NodeTable, together
from gpuledger.placement.fragmentation.remnant_worth import GRID
from gpuledger.placement.fragmentation.slots import Slots, Worth
from gpuledger.placement.fragmentation.typical import Numbers

REMNANT_WEIGHT = 0.1
LOAD_WEIGHT = 0.2


class Prices:
    """Prices made from one look at the cluster and at the mix of pods.

    `loads` are per number of a kind of card, `remnant_worth` per capacity and steps of the grid. `now` is what the
    nodes' slots were worth when the ledger had made `seen` changes; what has changed since is found out when it is
    asked for.
    """

    def __init__(
        self,
        nodes: NodeTable,
        slots: Slots,
        worth: Worth,
        loads: Sequence[float],
        remnant_worth: Mapping[Amounts, Numbers],
        now: Numbers,
        seen: int,
    ) -> None:
        self._nodes = nodes
        self._slots = slots
        self._worth = worth
        self._loads = loads
        self._remnant_worth = remnant_worth
        self._now = now
        self._seen = seen
        self._of_remnant = np.zeros((0, 2))  # remnant -> its worth, and what taking all of it costs by its kind's load

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Numbers:
        """Return the cost of each way, in thousandths of a card."""
        candidates = together(effects)
        self._sync()
        lost = self._now[candidates.nodes] - self._worth.of(self._slots.after(candidates, footprint.host))
        remnant, load = self._given(candidates)
        shared = not all(demand.exclusive for demand in footprint.shape)
        costs: Numbers = lost + LOAD_WEIGHT * load + (REMNANT_WEIGHT * remnant if shared else 0)
        return costs

    def _sync(self) -> None:
        """Apply what has changed of the nodes, and remnants that were not seen before."""
        self._slots.sync()
        changed = self._nodes.changed_since(self._seen)
        self._seen = self._nodes.seen
        if self._nodes.size > len(self._now):
            self._now = np.pad(self._now, (0, 2 * self._nodes.size - len(self._now)))
        self._now[changed] = self._worth.of(self._slots.of(changed))
        new = self._nodes.remnants.found[len(self._of_remnant) :]
        if new:
            values = [self._value(kind, milli) for kind, milli in new]
            self._of_remnant = np.concatenate([self._of_remnant, values])

    def _given(self, candidates: Effects) -> Numbers:
        """Return, for each way, what the cards are worth that it uses, less what they are worth afterwards."""
        given: Numbers = (self._of_remnant[candidates.before] - self._of_remnant[candidates.after]).sum(axis=1).T
        return given

    def _value(self, kind: int, milli: int) -> tuple[float, float]:
        kinds = self._nodes.remnants.kinds
        known = self._remnant_worth.get(kinds[kind].capacity) if kinds else None
        load = self._loads[kind] if kind < len(self._loads) else 1.0
        return (0.0 if known is None else float(known[milli // GRID])), load * milli
