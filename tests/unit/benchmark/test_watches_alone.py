"""The benchmark of watches: its objects are ones that the operator can read, and all of them are seen."""

import orjson
import pytest

from benchmark.watches_alone import KINDS, PODS_PER_NODE, measure
from fakes.objects import DIALECTS
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.kubernetes.node import node_facts
from gpuledger.formats.kubernetes.pod import bound_node, pod_identity


def test_the_operator_can_read_what_is_watched() -> None:
    (node,) = map(orjson.loads, KINDS["nodes"].objects(1))
    pods, cards = (list(map(orjson.loads, KINDS[kind].objects(1))) for kind in ("pods", "cards"))
    name = node["metadata"]["name"]
    assert node_facts(node, DIALECTS).registers
    assert {bound_node(pod) for pod in pods} == {name}
    assert len({pod_identity(pod).uid for pod in pods}) == PODS_PER_NODE
    assert {stored_card(card).card.node_name for card in cards} == {name}
    assert all(stored_card(card).holders for card in cards)


@pytest.mark.thorough
def test_a_measurement_sees_the_list_and_every_event() -> None:
    cost = measure("Kopf", "nodes", KINDS["nodes"].objects(3), events=7)
    assert cost.objects == 3
    assert cost.list_cpu_s > 0
    assert cost.event_us > 0
