"""The nodes as they are: which cards they have, and whether their agents answer. The API server hears of it later.

An act changes what is there at once. The node's report is a thing of its own, on its way like any other; one report
tells all that has changed until it happens.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from fakes.objects import GPU
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.model.card import Card
from simulation.api_server import Json, Kind
from simulation.item import Item
from simulation.readings import holders_of

if TYPE_CHECKING:
    from simulation.world import World

SLOTS = "80"
"""What a kubelet offers whose agent answers; "0" otherwise."""


class Nodes:
    """All nodes of a world."""

    def __init__(self, world: "World", cards: Iterable[Card]) -> None:
        self._world = world
        self._cards: dict[str, Card] = {card.uuid: card for card in cards}
        self._away: set[str] = set()  # names of nodes whose agent does not answer
        self._whole = dict(self._cards)
        self._unreported: set[str] = set()  # names of nodes of which the API server has still to hear something
        self.unsteady: set[str] = set()
        """UUIDs of the cards that were not at one place all the time: their objects may go, and come back."""

    def card(self, uuid: str) -> Card | None:
        """Return a card as it is, with its node; None while no node has it."""
        return self._cards.get(uuid)

    def takes_pods(self, card: Json) -> bool:
        """Return whether a card's object says of it where it is, and it works, on a node whose agent answers."""
        node_name, found = card["spec"]["nodeName"], self.card(card["spec"]["uuid"])
        return found is not None and found.node_name == node_name and found.healthy and node_name not in self._away

    # What happens to them.

    def toggle_agent(self, node_name: str) -> None:
        """Let the agent of a node stop to answer, or answer again; its kubelet says so at once."""
        self._away ^= {node_name}
        self.report(node_name)

    def change(self, card: Card) -> None:
        """Let a card be as this one."""
        self._cards[card.uuid] = card
        self.report_soon(card.node_name)

    def take_out(self, uuid: str) -> None:
        """Let a card be gone from its node."""
        self.unsteady.add(uuid)
        self.report_soon(self._cards.pop(uuid).node_name)

    def put_in(self, uuid: str, node_name: str) -> None:
        """Let a card that is in no node be there, as the last one of a node."""
        places = [other.index for other in self._cards.values() if other.node_name == node_name]
        self.unsteady.add(uuid)
        self.change(replace(self._whole[uuid], node_name=node_name, index=max(places, default=-1) + 1))

    def whole(self, uuid: str) -> Card | None:
        """Return a card as it would be if it worked, with all its memory; None while no node has it."""
        card, whole = self.card(uuid), self._whole[uuid]
        return card and replace(card, healthy=whole.healthy, capacity=whole.capacity)

    # What they say of it.

    def report_soon(self, node_name: str) -> None:
        """Let a node's report be on its way."""
        self._unreported.add(node_name)
        self._world.pend(NodeReports(self._world, node_name))

    def report(self, node_name: str) -> None:
        """Write to the API server what is true of a node."""
        self._unreported.discard(node_name)
        self._world.api.put(Kind.NODE, node_name, self._reported(node_name))

    def is_unreported(self, node_name: str) -> bool:
        """Return whether the API server has still to hear of a node."""
        return node_name in self._unreported

    def _reported(self, node_name: str) -> Json:
        node = self._world.api.objects[Kind.NODE][node_name]
        here = sorted((c for c in self._cards.values() if c.node_name == node_name), key=lambda card: card.index)
        annotations = {**node["metadata"]["annotations"], REGISTER_ANNOTATION: register_of(here)}
        slots = "0" if node_name in self._away else SLOTS
        return {
            **node,
            "metadata": {**node["metadata"], "annotations": annotations},
            "status": {**node["status"], "allocatable": {**node["status"]["allocatable"], GPU: slots}},
        }

    # In the end.

    def unmet(self) -> list[str]:
        """Return which cards' objects are not as their nodes say."""
        stored = {card["spec"]["uuid"]: card for card in self._world.api.cards.values()}
        found = [f"card {uuid} is there, and has no object" for uuid in self._cards.keys() - stored.keys()]
        for uuid, allocation in stored.items():
            found += self._unmet_card(uuid, allocation)
        return sorted(found)

    def _unmet_card(self, uuid: str, allocation: Json) -> list[str]:
        card, spec, held = self.card(uuid), allocation["spec"], bool(holders_of(allocation))
        is_open = (allocation.get("status") or {}).get("phase") == "Ready"
        if card is None or card.node_name != spec["nodeName"]:
            if not held:
                return [f"card {uuid} is not there, or on another node, and nobody holds it; its object stays"]
            return [f"card {uuid} is not where its object says, and takes pods"] if is_open else []
        if (spec["healthy"], spec["capacity"]["memoryMiB"]) != (card.healthy, card.capacity.memory_mib):
            return [f"card {uuid} is not what its object says"]
        return [f"card {uuid} should take pods, or should not"] if is_open != self.takes_pods(allocation) else []


class NodesSeen:
    """The nodes as one operator has been shown them, by its watch or by a list: of each the latest."""

    def __init__(self) -> None:
        self._nodes: dict[str, Json] = {}

    def show(self, node: Json) -> None:
        """Take in a node that the operator is shown now."""
        known = self._nodes.get(node["metadata"]["name"])
        if known is None or _version(known) < _version(node):
            self._nodes[node["metadata"]["name"]] = node

    def faults_in(self, node_name: str, uuids: Iterable[str]) -> list[str]:
        """Return those of some cards that the node does not list, or not as working, as far as the operator knows."""
        node = self._nodes.get(node_name)
        if node is None:
            return []
        register = orjson.loads(node["metadata"]["annotations"][REGISTER_ANNOTATION])
        healthy = {card["uuid"] for card in register if card.get("healthy", True)}
        return [uuid for uuid in uuids if uuid not in healthy]


def _version(node: Json) -> int:
    return int(node["metadata"]["resourceVersion"])


class NodeReports(Item):
    """A node writes down what has become of its cards."""

    __slots__ = ("node_name",)

    def __init__(self, world: "World", node_name: str) -> None:
        super().__init__(world)
        self.node_name = node_name

    def what(self) -> str:
        return f"{self.node_name}: reports"

    def is_void(self) -> bool:
        return not self.world.nodes.is_unreported(self.node_name)

    def do(self) -> None:
        self.world.nodes.report(self.node_name)
