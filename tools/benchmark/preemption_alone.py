"""Preemption by itself: the choice of victims over all nodes, in this process, with no API server or scheduler.

Each card is full of ten shares of mixed sizes, whose pods have one of a few priorities. A decision asks node after node
for victims that cost less than the best so far. After it, the victims leave and the pod gets its cards.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.table import Table

from benchmark.shapes import CARDS_PER_NODE
from benchmark.table import wide_console
from gpuledger.agent.simulated import fake_nodes
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import Demand, PodRequest
from gpuledger.model.share import ContainerShare, Holder, Pod, Share, StoredCard, shares_of
from gpuledger.placement.policy import Preference
from gpuledger.placement.preemption.victims import Eviction, Tenant, cheapest_eviction

SERVED = NodeOffer(resources=frozenset({"nvidia.com/gpu"}))
PERCENT_OF_CARD = (25, 15, 10, 10, 10, 10, 5, 5, 5, 5)
PRIORITIES = (0, 0, 0, 100, 1000)
STARTS_S = 1_000_000
BUDGETS = 200
"""Each covers pods all over the cluster, and allows from none to three evictions."""

REQUESTS = {
    "1 whole card": (Demand(1, exclusive=True),),
    "4 whole cards": (Demand(4, exclusive=True),),
    "half a card": (Demand(1, None, 50),),
    "60 % of 4 cards": (Demand(4, None, 60),),
    "2 containers, 60 % of 2 cards each": (Demand(2, None, 60), Demand(2, None, 60)),
}

Row = dict[str, object]


@dataclass
class Cluster:
    """A full ledger, and the pods in it that may be asked to leave."""

    nodes: int
    budgeted: float
    """Share of the pods that a budget covers."""
    ledger: Ledger = field(default_factory=Ledger)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)
    _version: int = 1

    def __post_init__(self) -> None:
        chance = random.Random(1)  # noqa: S311 - no secret
        self.allowed = {f"budget-{number}": number % 4 for number in range(BUDGETS)}
        for node in fake_nodes("bench", self.nodes, CARDS_PER_NODE, "A100-40GB"):
            self.ledger.set_offer(node.name, SERVED)
            for card in node.cards:
                self.ledger.load(StoredCard(card, 1, self._full(card, chance), "Ready"))

    def _full(self, card: Card, chance: random.Random) -> tuple[Holder, ...]:
        """Return who is on a card."""
        holders: list[Holder] = []
        for percent in PERCENT_OF_CARD:
            memory_mib = card.capacity.memory_mib * percent // 100
            uid = f"{card.uuid}-{len(holders)}"
            share = Share(
                card.uuid, Amounts(memory_mib, percent, 1), False, (ContainerShare("c", memory_mib, percent),)
            )
            holders.append(Holder(Pod(uid, "default", uid), share))
            budgets = (f"budget-{chance.randrange(BUDGETS)}",) if chance.random() < self.budgeted else ()
            self.tenants[uid] = Tenant(uid, chance.choice(PRIORITIES), chance.randrange(1, STARTS_S), budgets)
        return tuple(holders)

    def decide(self, request: PodRequest) -> Eviction | None:
        """Return the cheapest eviction of all nodes."""
        best: Eviction | None = None
        for name in self.ledger.node_names():
            room, entries = self.ledger.node_room(name), self.ledger.entries_of_node(name)
            below = best.cost if best else None
            found = cheapest_eviction(
                request.shape, room, entries, self.tenants, self.allowed, Preference.BINPACK, below
            )
            best = found or best
        return best

    def carry_out(self, request: PodRequest, eviction: Eviction, uid: str) -> None:
        """Take in that the victims have left and the pod, which nobody asks to leave, has its cards."""
        cards = [entry.card for entry in self.ledger.entries_of_node(eviction.node_name)]
        added = {share.uuid: share for share in shares_of(request, eviction.assignment, cards)}
        self._version += 1
        for entry in self.ledger.entries_of_node(eviction.node_name):
            holders = [holder for key, holder in entry.holders.items() if key not in eviction.victims]
            if entry.card.uuid in added:
                holders.append(Holder(Pod(uid, "default", uid), added[entry.card.uuid]))
            self.ledger.load(StoredCard(replace(entry.card), self._version, tuple(holders), "Ready"))


def measure_preemption(nodes: Sequence[int], decisions: int, budgeted: float, as_json: bool) -> None:
    """Measure decisions at each size and print a table; a share of the pods is covered by budgets."""
    rows = []
    for number in nodes:
        print(f"{number} nodes: filling the ledger", file=sys.stderr)
        cluster = Cluster(number, budgeted)
        rows += [_measured(cluster, name, decisions) for name in REQUESTS]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for head in rows[0]:
        table.add_column(head, justify="left" if head == "request" else "right")
    for row in rows:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    wide_console().print(table)


def _measured(cluster: Cluster, name: str, decisions: int) -> Row:
    demands = REQUESTS[name]
    request = PodRequest(tuple(f"c{position}" for position in range(len(demands))), demands)
    times_ms, victims = [], 0
    gc.collect()
    for number in range(decisions):
        begin_s = time.perf_counter()
        eviction = cluster.decide(request)
        times_ms.append(1000 * (time.perf_counter() - begin_s))
        if eviction is None:
            raise ValueError(f"{cluster.nodes} nodes are too few for so many decisions")
        victims += len(eviction.victims)
        cluster.carry_out(request, eviction, f"{name} {number}")
    times_ms.sort()
    return {
        "nodes": cluster.nodes,
        "pods that may leave": len(cluster.tenants),
        "request": name,
        "decisions": decisions,
        "p50 ms": times_ms[decisions // 2],
        "max ms": times_ms[-1],
        "victims": victims / decisions,
    }
