"""To which nodes a pod may go that does not exist yet, its template says, and labels and taints of the nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.virtual_time import StoppedClock
from gpuledger.formats.kubernetes.constraints import PodRules, pod_rules
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeSet
from gpuledger.workflows.queues.workloads import MOST_CONDITIONS, NodesByRules

ANY = pod_rules({"spec": {}})


def node(name: str, taints: list[dict[str, str]] | None = None, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints or []}}


@pytest.fixture
def nodes() -> NodesByRules:
    """Return three nodes: of two models of cards, and one that takes nobody without a toleration."""
    known = NodesByRules(is_wanted=True)
    known.observe_node(node("node-a", model="a100"))
    known.observe_node(node("node-b", model="t4"))
    known.observe_node(node("node-c", [{"key": "spot", "effect": "NoSchedule"}], model="t4"))
    return known


def found(nodes: NodesByRules, rules: PodRules) -> NodeSet:
    return asyncio.run(nodes.allowed(rules, StoppedClock()))


def allowed(nodes: NodesByRules, **spec: Any) -> set[str]:
    return set(found(nodes, pod_rules({"spec": spec})))


def test_labels_taints_and_affinity_count(nodes: NodesByRules) -> None:
    spot = [{"key": "spot", "operator": "Exists"}]
    terms = [{"matchExpressions": [{"key": "model", "operator": "NotIn", "values": ["t4"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert allowed(nodes) == {"node-a", "node-b"}
    assert allowed(nodes, tolerations=spot) == {"node-a", "node-b", "node-c"}
    assert allowed(nodes, nodeSelector={"model": "t4"}) == {"node-b"}
    assert allowed(nodes, nodeSelector={"model": "t4"}, tolerations=spot) == {"node-b", "node-c"}
    assert allowed(nodes, affinity=affinity) == {"node-a"}
    assert allowed(nodes, nodeSelector={"model": "h100"}) == set()


def test_the_same_answer_is_the_same_object(nodes: NodesByRules) -> None:
    """A trial remembers by it which nodes have refused pods like one."""
    assert (first := found(nodes, ANY)) is found(nodes, pod_rules({"spec": {"nodeSelector": {}}})), first


def test_only_what_matters_is_a_change(nodes: NodesByRules) -> None:
    before = nodes.changes
    nodes.observe_node({**node("node-a", model="a100"), "status": {"conditions": []}})
    assert nodes.changes == before
    nodes.observe_node({**node("node-a", model="a100"), "spec": {"unschedulable": True}})
    assert nodes.changes == before + 1
    assert allowed(nodes) == {"node-b"}
    nodes.forget_node("node-b")
    nodes.forget_node("node-b")
    assert nodes.changes == before + 2
    assert allowed(nodes) == set()


def test_a_node_that_can_not_be_read_takes_no_pods(nodes: NodesByRules) -> None:
    nodes.observe_node({"metadata": {"name": "node-a", "labels": {"model": 7}}, "spec": {"taints": "odd"}})
    assert allowed(nodes) == {"node-b"}


def test_where_it_is_not_wanted_nothing_is_kept() -> None:
    nodes = NodesByRules(is_wanted=False)
    nodes.observe_node(node("node-a"))
    assert set(found(nodes, ANY)) == set()
    assert nodes.changes == 0


def test_more_conditions_than_are_looked_at_are_refused(nodes: NodesByRules) -> None:
    """Users choose how many, and each is compared with each node."""

    def selecting(values: int) -> dict[str, Any]:
        expression = {"key": "model", "operator": "In", "values": ["a100"] * values}
        terms = [{"matchExpressions": [expression]}]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    assert allowed(nodes, affinity=selecting(MOST_CONDITIONS - 1)) == {"node-a"}
    with pytest.raises(BadInput):
        allowed(nodes, affinity=selecting(MOST_CONDITIONS))
