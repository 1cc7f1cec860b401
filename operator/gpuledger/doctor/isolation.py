"""How nodes keep shares apart, for whoever looks after them: no finding, since each way can be meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpuledger.doctor.facts import Facts, Unread
from gpuledger.formats.objects.node import node_facts, read_registers
from gpuledger.model.errors import BadInput

UNKNOWN = "unknown"
"""Of a card whose register does not say it."""


def isolation_of(facts: Facts) -> Mapping[str, int]:
    """Return the ways, and on how many nodes: one with several counts for each. Nothing where nodes can't be read."""
    if isinstance(facts.nodes, Unread) or isinstance(facts.release, Unread):
        return {}
    found: Counter[str] = Counter()
    for node in facts.nodes:
        named = node_facts(node, facts.release.dialects)
        try:
            cards = read_registers(named).cards if named.registers else ()
        except BadInput:
            continue  # check_registers says so
        found.update({card.mode or UNKNOWN for card in cards})
    return dict(sorted(found.items()))
