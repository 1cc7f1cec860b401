"""Which nodes pods may go to that do not exist yet: kube-scheduler can't be asked about them."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

from gpuledger.formats.objects.node_rules import NodeRules, PodRules, node_rules, refused_by_rules
from gpuledger.model.errors import BadInput
from gpuledger.model.node_set import NodeSet, NodeSets

Json = Mapping[str, Any]


class NodesByRules:
    """Knows labels and taints of all nodes, where that is wanted: they take some 4 kB for each node."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._rules: dict[str, NodeRules] = {}
        self._sets = NodeSets()
        self.changes = 0
        """How often a node has come, gone, or changed so far."""

    def observe(self, node: Json) -> None:
        """Observe a Node. One that can't be read takes no pods of this kind."""
        if not self._is_wanted:
            return
        name = str(node["metadata"]["name"])
        try:
            found = node_rules(node)
        except BadInput:
            self.forget(name)
            return
        labels = {intern(key): intern(value) for key, value in found.labels.items()}
        found = NodeRules(name, labels, found.taints)
        if self._rules.get(name) != found:
            self._rules[name] = found
            self.changes += 1

    def forget(self, name: str) -> None:
        """Note that a node is gone."""
        self.changes += self._rules.pop(name, None) is not None

    def allowed(self, rules: PodRules) -> NodeSet:
        """Return the nodes whose labels and taints do not keep such a pod off."""
        return self._sets.of(name for name, node in self._rules.items() if refused_by_rules(rules, node) is None)
