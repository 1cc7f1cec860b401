"""The memory that a ledger takes, step by step; in a fresh process, or the figures mean nothing.

The cards come as the API server sends them: so nothing is shared that would not be.
"""

from __future__ import annotations

import gc
import os

import orjson
from rich import box
from rich.table import Table

from benchmark.machine import memory_mib
from benchmark.shapes import CARDS_PER_NODE, QUARTER, pod
from benchmark.table import wide_console
from gpuledger.agent.simulated import fake_nodes
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.controller import kopf_frame
from gpuledger.formats.custom_resource.stored_card import holder_json, new_allocation, stored_card, used_json
from gpuledger.formats.dialects.request import pod_request
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.node import NodeOffer
from gpuledger.model.share import Holder, Pod, shares_of
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy

SHARES_PER_CARD = 4
SERVED = NodeOffer(resources=frozenset({"nvidia.com/gpu"}))


def measure_memory(nodes: int, holders: int) -> None:
    """Build a ledger and print what each step took."""
    table = Table(title=f"{nodes * CARDS_PER_NODE} cards, {holders} holders", box=box.SIMPLE_HEAD)
    for head in ("step", "MiB more", "MiB"):
        table.add_column(head, justify="left" if head == "step" else "right")
    before = 0.0

    def note(step: str) -> None:
        nonlocal before
        gc.collect()
        now, _ = memory_mib(os.getpid())
        table.add_row(step, f"{now - before:.1f}", f"{now:.1f}")
        before = now

    assert kopf_frame.run is not None  # all that the operator imports
    note("the operator's modules, and this program's")
    request = pod_request(pod("pod", "gpuledger", QUARTER), dialects_of(Settings()))
    assert request is not None
    ledger, left = Ledger(), holders
    for number in range(nodes):
        # One node at a time, so that what the benchmark itself makes is small.
        (node,) = fake_nodes(f"bench-{number}", 1, CARDS_PER_NODE, "A100-40GB")
        for card in node.cards:
            pods = min(left, SHARES_PER_CARD)
            held = [
                Holder(_pod(left - each), shares_of(request, ((card.uuid,),), [card])[0], attempt="1" * 16)
                for each in range(pods)
            ]
            left -= pods
            ledger.load(stored_card(orjson.loads(_as_stored(card, held))))
        ledger.set_offer(node.name, SERVED)
    note("cards and holders")
    chooser = Chooser(ledger, Policy())
    chooser.best(request, None)
    note("one shape's set of nodes")
    wide_console().print(table)


def _pod(number: int) -> Pod:
    return Pod(f"00000000-0000-0000-0000-{number:012}", "default", f"pod-{number}")


def _as_stored(card: Card, holders: list[Holder]) -> bytes:
    allocation = new_allocation(card)
    allocation["metadata"]["resourceVersion"] = "1"
    status = {
        "phase": "Ready",
        "reason": "",
        "used": used_json(holders),
        "pods": "",
        "holders": [holder_json(h) for h in holders],
    }
    return orjson.dumps({**allocation, "status": status})
