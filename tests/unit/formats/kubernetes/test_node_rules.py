"""What of kube-scheduler's conditions is looked at."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.constraints import node_rules, pod_rules, refused_by_host, refused_by_rules
from gpuledger.model.errors import BadInput
from gpuledger.model.request import HostAmounts

Json = dict[str, Any]

LABELS = {"zone": "a", "size": "8"}
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def refused(pod_spec: Json, node_spec: Json | None = None) -> str | None:
    node = {"metadata": {"name": "n1", "labels": LABELS}, "spec": node_spec or {}}
    found = refused_by_rules(pod_rules({"spec": pod_spec}), node_rules(node))
    return found and found[0]


def affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints(toleration: Json, tolerates: bool) -> None:
    assert refused({"tolerations": [toleration]}, {"taints": [TAINT]}) == (None if tolerates else "taint")


def test_a_taint_that_only_prefers_keeps_nobody_off() -> None:
    assert refused({}, {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}) is None


def test_an_unschedulable_node() -> None:
    assert refused({}, {"unschedulable": True}) == "unschedulable"
    assert refused({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}) is None


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "size": "4"}}, False),
        (affinity(expression("zone", "In", "a", "b")), True),
        (affinity(expression("zone", "NotIn", "a")), False),
        (affinity(expression("other", "NotIn", "a")), True),
        (affinity(expression("zone", "Exists")), True),
        (affinity(expression("zone", "DoesNotExist")), False),
        (affinity(expression("size", "Gt", "7")), True),
        (affinity(expression("size", "Lt", "8")), False),
        (affinity(expression("zone", "Gt", "7")), False),
        (affinity(expression("zone", "Like", "a")), False),
        (affinity(expression("zone", "In", "b"), expression("size", "In", "8")), True),
        (affinity({}), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), False),
        ({"nodeSelector": None, "affinity": None, "tolerations": None}, True),
    ],
)
def test_labels(spec: Json, fits: bool) -> None:
    assert refused(spec) == (None if fits else "node-affinity" if spec.get("affinity") else "node-selector")


def test_cpu_and_memory() -> None:
    asked = HostAmounts(1000, 1000)
    assert refused_by_host(asked, None) is None
    assert refused_by_host(asked, HostAmounts(1000, 1000)) is None
    assert refused_by_host(asked, HostAmounts(999, 0)) == ("host-cpu", "not enough CPU on the node")
    assert refused_by_host(asked, HostAmounts(1000, 999)) == ("host-memory", "not enough memory on the node")


def test_what_cannot_be_read_is_said_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"spec\.tolerations\.0\.effect"):
        pod_rules({"spec": {"tolerations": [{"effect": 3}]}})
    with pytest.raises(BadInput, match=r"taints\.0\.effect"):
        node_rules({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a"}]}})
