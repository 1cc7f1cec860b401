"""New nodes for which stand-ins were made: they take no pods before these are deleted.

Were a pod bound to such a node first, the node would not be empty any more in an autoscaler's eyes while the stand-in
still wanted one, and one node too many would come. So a new node takes no pods while a stand-in stands for it
(`Ledger.arriving`), from the moment when the Node is seen. Which of a template's stand-ins does so does not matter, as
they are alike: the oldest does for the oldest new node. Every replica sees the same, and the active one writes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from attrs import define

from gpuledger.model.clock import Listeners
from gpuledger.model.json_object import Json
from gpuledger.workflows.context import Component
from gpuledger.workflows.growth.stand_ins import StandIns
from gpuledger.workflows.growth.templates import SeenNode, Templates

logger = logging.getLogger(__name__)

COMPLETE_S = 30.0
"""How long a new node that has all its cards may lack a resource that its template has, before it takes pods."""


@dataclass(slots=True)
class _Arrival:
    """A new node that a stand-in stands for."""

    stand_in: str
    complete_s: float | None = None
    """When it had all its cards, by the operator's clock; None: not yet."""


@define(eq=False, slots=False)
class Arrivals(Component):
    """Follows the nodes of templates."""

    _templates: Templates
    _stand_ins: StandIns

    def __attrs_post_init__(self) -> None:
        self._waiting: dict[str, _Arrival] = {}  # node name -> what it waits for
        self._passed: set[str] = set()  # names of nodes of templates that take pods
        self.on_one = Listeners[[str]]()
        """Called with the template of a node that is complete."""
        self._stand_ins.on_change.append(self._update)

    def __len__(self) -> int:
        return len(self._waiting)

    def stand_ins(self) -> set[str]:
        """Return the names of the stand-ins whose node is there."""
        return {each.stand_in for each in self._waiting.values()}

    def observe_node(self, node: Json) -> None:
        """See Follower."""
        self._update()

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        self._waiting.pop(node_name, None)
        self._passed.discard(node_name)
        self._ledger.arriving.note(node_name, False)

    def became_active(self) -> None:
        """See Follower."""
        self._update()

    def _update(self) -> None:
        """Find out which new nodes stand-ins stand for; all others take pods."""
        for name, arrival in list(self._waiting.items()):
            if self._stand_ins.find(arrival.stand_in) is None or self._templates.is_used(name):
                self._passes(name)
        taken = self.stand_ins()
        for template in self._stand_ins.templates():
            free = [each for each in self._stand_ins.staying(template) if each.pod.name not in taken]
            if free:
                new = (node for node in self._templates.nodes() if self._is_new(node, template, free[0].created))
                for node, stand_in in zip(sorted(new, key=lambda node: node.order), free, strict=False):
                    self._waiting[node.name] = _Arrival(stand_in.pod.name)
                    self._ledger.arriving.note(node.name, True)

    def _is_new(self, node: SeenNode, template: str, since: str) -> bool:
        if node.template != template or node.created < since:
            return False
        return (
            node.name not in self._waiting and node.name not in self._passed and not self._templates.is_used(node.name)
        )

    def _passes(self, node_name: str) -> None:
        """Let a node take pods."""
        self._waiting.pop(node_name, None)
        self._passed.add(node_name)
        self._ledger.arriving.note(node_name, False)

    def let_in(self) -> float | None:
        """Have the stand-ins of complete nodes deleted; the nodes take pods when that was answered.

        Return in how many seconds to look again where one is complete, and does not take pods yet; None if none is.
        """
        now_s = self._clock.now_s()
        for name, arrival in list(self._waiting.items()):
            node = self._templates.find(name)
            if node is None:
                self._passes(name)
            elif arrival.complete_s is None and self._is_ready(node):
                arrival.complete_s = now_s
                self.on_one(node.template)
            if arrival.complete_s is None:
                continue
            if self._offers_all(name) or now_s >= arrival.complete_s + COMPLETE_S:
                self._stand_ins.remove(arrival.stand_in)
            if now_s >= arrival.complete_s + 2 * COMPLETE_S:
                logger.warning("node %s takes pods, though its stand-in %s is not deleted yet", name, arrival.stand_in)
                self._passes(name)
        are_complete = any(each.complete_s is not None for each in self._waiting.values())
        return COMPLETE_S if are_complete else None

    def _is_ready(self, node: SeenNode) -> bool:
        return self._ledger.offer(node.name) is not None and self._templates.is_complete(node.name)

    def _offers_all(self, node_name: str) -> bool:
        """Return whether a node serves what its template does."""
        node, offer = self._templates.find(node_name), self._ledger.offer(node_name)
        if node is None or offer is None:
            return False
        of_template = (each for _, each in self._templates.known() if each.name == node.template)
        return all(offer.resources >= each.offer.resources for each in of_template)
