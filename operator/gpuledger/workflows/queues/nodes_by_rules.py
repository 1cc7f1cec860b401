"""Which nodes pods may go to that do not exist yet: kube-scheduler can't be asked about them."""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern

from gpuledger.formats.kubernetes.constraints import NodeRules, PodRules, node_rules, refused_by_rules
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.workflows.tasks.pauses import in_slices

MOST_CONDITIONS = 256
"""Of a pod. Users choose how many, and each is compared with each node."""


class NodesByRules:
    """Knows labels and taints of all nodes, where that is wanted: they take some 4 kB for each node."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._rules: dict[str, NodeRules] = {}
        self._sets = NodeSets()
        self.changes = 0
        """How often a node has come, gone, or changed so far."""

    def observe(self, node: JsonMapping) -> None:
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
        """Record that a node is gone."""
        self.changes += self._rules.pop(name, None) is not None

    async def allowed(self, rules: PodRules, clock: Clock) -> NodeSet:
        """Return the nodes whose labels and taints do not keep such a pod off; others have their turn meanwhile.

        Raises BadInput for more conditions than are looked at.
        """
        if conditions(rules) > MOST_CONDITIONS:
            raise BadInput(f"its affinity, node selector and tolerations have more than {MOST_CONDITIONS} conditions")
        names: list[str] = []

        def look() -> Iterator[None]:
            for name, node in list(self._rules.items()):
                if refused_by_rules(rules, node) is None:
                    names.append(name)
                yield None

        await in_slices(look(), clock)
        return self._sets.of(names)


def conditions(rules: PodRules) -> int:
    """Return how many labels, values and tolerations a node is compared with at most."""
    expressions = [
        each for term in rules.terms or () for each in (*(term.matchExpressions or ()), *(term.matchFields or ()))
    ]
    values = sum(len(each.values or ()) for each in expressions)
    return len(rules.selector) + len(rules.tolerations) + len(expressions) + values
