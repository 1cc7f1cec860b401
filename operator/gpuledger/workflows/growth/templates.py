"""The nodes that can be added, by the settings; and what is learned of them from nodes that exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from attrs import define

from gpuledger.configuration.node_templates import NewNodes
from gpuledger.formats.kubernetes.constraints import NodeRules, Taint
from gpuledger.formats.kubernetes.pod import created_at
from gpuledger.formats.quantity import host_capacity
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.model.card import ALL_CORES, Amounts, Card
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.placement.growth import NodeTemplate
from gpuledger.workflows.context import Component
from gpuledger.workflows.inventory import InventoryKeeper


def rules_of(nodes: NewNodes) -> NodeRules:
    """Return what counts of such a node for kube-scheduler."""
    taints = tuple(Taint(key=each.key, value=each.value, effect=each.effect) for each in nodes.taints)
    return NodeRules(f"{nodes.name}/", nodes.labels, taints)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node that has the labels of a template."""

    name: str
    template: str
    created: str
    """RFC 3339."""

    @property
    def order(self) -> tuple[str, str]:
        """Sort key: the oldest first."""
        return self.created, self.name


@define(eq=False, slots=False)
class Templates(Component):
    """Follows the nodes that are of a template."""

    _inventory: InventoryKeeper

    def __attrs_post_init__(self) -> None:
        self._nodes: dict[str, SeenNode] = {}
        self._learned: dict[str, NodeTemplate] = {}  # template -> what its last node was like

    @property
    def settings(self) -> tuple[NewNodes, ...]:
        """Return the templates as the settings have them, if there is growth."""
        return self._settings.node_templates if self._settings.growth != "none" else ()

    def observe_node(self, node: Json) -> None:
        """See Follower. A node is of the first template whose labels it has."""
        labels, name = node["metadata"].get("labels") or {}, str(node["metadata"]["name"])
        for each in self.settings:
            if each.labels.items() <= labels.items():
                self._nodes[name] = SeenNode(name, each.name, created_at(node))
                return
        self._nodes.pop(name, None)

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        self._nodes.pop(node_name, None)

    def nodes(self) -> Iterable[SeenNode]:
        """Return the nodes of any template."""
        return self._nodes.values()

    def find(self, node_name: str) -> SeenNode | None:
        """Return a node of a template, None for any other."""
        return self._nodes.get(node_name)

    def known(self) -> Iterator[tuple[NewNodes, NodeTemplate]]:
        """Yield the templates of which it is known what their nodes are like, and how many more there may be.

        A node that exists is believed more than what is described: else, where that promises too much, one node would
        be asked for after the other.
        """
        for each in self.settings:
            found = self._learn(each) or (self._described(each) if each.is_described else None)
            if found is not None:
                there = sum(node.template == each.name for node in self._nodes.values())
                yield each, replace(found, at_most=max(each.most_nodes - there, 0))

    def _described(self, nodes: NewNodes) -> NodeTemplate:
        capacity = Amounts(nodes.memory_mib, ALL_CORES, nodes.slots or self._settings.slots_per_card)
        cards = tuple(
            Card(f"{nodes.name}-{index}", "", index, capacity, model=nodes.model) for index in range(nodes.cards)
        )
        host = {"cpu": nodes.cpu, "memory": nodes.memory}
        names = [self._settings.resource_count, *self._also_served()]
        names += [DRIVER] if self._settings.resource_claims else []
        known = {name: amount for name, amount in host.items() if amount is not None}
        capacity_of_host = host_capacity({"status": {"allocatable": known}})
        return NodeTemplate(
            nodes.name, cards, NodeOffer(Dialect.NATIVE, frozenset(names)), capacity_of_host, nodes.labels
        )

    def _also_served(self) -> list[str]:
        names = {
            "volcano": self._settings.volcano_count,
            "volcano-classic": self._settings.volcano_classic_count,
        }
        return [names[each] for each in self._settings.agent_also_serves if names.get(each)]

    def _learn(self, nodes: NewNodes) -> NodeTemplate | None:
        """Return what they are like: as the newest of those with the most cards that there are, or have been."""
        of_template = [each for each in self._nodes.values() if each.template == nodes.name]
        usable = [each for each in of_template if self.takes_pods(each.name) and self.is_complete(each.name)]
        if usable:
            best = max(usable, key=lambda each: (len(self._ledger.entries_of_node(each.name)), each.order)).name
            cards = tuple(entry.card for entry in self._ledger.entries_of_node(best))
            offer, host = self._ledger.offer(best) or NodeOffer(), self._ledger.hosts.capacity(best)
            self._learned[nodes.name] = NodeTemplate(nodes.name, cards, offer, host, nodes.labels)
        return self._learned.get(nodes.name)

    def takes_pods(self, node_name: str) -> bool:
        """Return whether a node is open to pods, as far as it is not about its cards."""
        ledger = self._ledger
        return ledger.offer(node_name) is not None and not ledger.hangs(node_name) and node_name not in ledger.arriving

    def is_complete(self, node_name: str) -> bool:
        """Return whether all cards that a node reports are in the ledger, with their first status."""
        entries = [self._ledger.entry(uuid) for uuid in self._inventory.cards.get(node_name, ())]
        return bool(entries) and all(entry is not None and entry.confirmed for entry in entries)

    def empty(self, template: str) -> list[str]:
        """Return the nodes of a template that take pods, and have none with cards."""
        of_template = (each.name for each in self._nodes.values() if each.template == template)
        return [name for name in of_template if self.takes_pods(name) and not self.is_used(name)]

    def is_used(self, node_name: str) -> bool:
        """Return whether a card of a node is held."""
        return any(entry.listed for entry in self._ledger.entries_of_node(node_name))
