"""Nodes on which the policy `topology` has nothing to go by: an administrator should know that it falls back there."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gpuledger.ledger.book import Ledger
from gpuledger.placement.policy import FALLBACK, Policy, Preference

logger = logging.getLogger(__name__)


class NodesWithoutTopology:
    """Finds them, if the cluster's policy is `topology`, and tells of each once."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self._ledger = ledger
        self._watched = Preference.TOPOLOGY in (policy.nodes, policy.cards)
        self._logged: set[str] = set()  # names of nodes that the log has

    def __iter__(self) -> Iterator[str]:
        """Yield the names of nodes with several cards and no link between them."""
        if self._watched:
            for name in list(self._ledger.node_names()):
                node = self._ledger.node_room(name)
                if len(node.cards) > 1 and (node.topology is None or not node.topology.linked):
                    yield name

    def log_new(self) -> None:
        """Log those that were not among them before."""
        names = set(self)
        for name in sorted(names - self._logged):
            logger.warning(
                "node %s: its cards report no links; the policy topology chooses as %s there", name, FALLBACK
            )
        self._logged = names
