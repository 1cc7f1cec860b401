"""Input that makes no sense gets a sentence, is counted, and hurts nobody else."""

import json

import pytest

from cluster.cluster import CORES, COUNT, MEMORY, PERCENT, Cluster, RequestFailed, phase, pod, uuids
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of

pytestmark = pytest.mark.promise("hostile objects")

BAD_PODS = 'gpuledger_bad_input_total{kind="pod"}'
BAD_NODES = 'gpuledger_bad_input_total{kind="node"}'

UNREADABLE: dict[str, tuple[dict[str, object], str]] = {
    "memory-of-no-card": ({COUNT: 0, MEMORY: 4000}, "asks for GPU memory or cores on 0 GPUs"),
    "too-much-percent": ({COUNT: 1, PERCENT: 150}, f"container main, {PERCENT}: 150 is more than 100"),
    "too-many-cores": ({COUNT: 1, CORES: 150}, f"container main, {CORES}: 150 is more than 100"),
    "bytes": ({COUNT: 1, MEMORY: "4Gi"}, f"container main, {MEMORY}: 4Gi has a unit of bytes"),
}
IMPOSSIBLE: dict[str, tuple[dict[str, object], str]] = {
    "too-many-cards": ({COUNT: 9}, "fewer than 9 GPUs on the node"),
    "too-large": ({COUNT: 1, MEMORY: 50000}, "no card as large as 50000 MiB"),
}


def test_a_request_that_makes_no_sense_waits_with_a_sentence_and_stops_nobody(cluster: Cluster) -> None:
    cluster.add_nodes(1)
    before = cluster.metric(BAD_PODS)
    cases = {**UNREADABLE, **IMPOSSIBLE}
    cluster.create(*(pod(name, limits) for name, (limits, _) in cases.items()))
    cluster.create(pod("good", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("good")
    for name, (_, text) in cases.items():
        cluster.wait_refused(name, text)
    assert cluster.metric(BAD_PODS) - before >= len(UNREADABLE)
    cluster.check_consistent()


@pytest.mark.parametrize("amount", ["-1", "0.5", "500m"])
def test_negative_and_fractional_amounts_are_refused_by_the_api_server(cluster: Cluster, amount: str) -> None:
    with pytest.raises(RequestFailed, match="must be"):
        cluster.create(pod("odd", {COUNT: amount}))


GOOD = {"uuid": "GPU-good", "index": 0, "memoryMiB": 1000}
BAD_REGISTERS = {
    "no JSON": ("GPU-1,10,1000", "is not JSON"),
    "not a list": ('{"uuid": "GPU-1"}', "is not a list of cards"),
    "odd characters in a UUID": (json.dumps([{**GOOD, "uuid": "GPU_1/2"}, GOOD]), "card GPU_1/2: uuid"),
    "negative memory": (json.dumps([{**GOOD, "uuid": "GPU-1", "memoryMiB": -5}, GOOD]), "card GPU-1: memoryMiB"),
    "a card twice": (json.dumps([GOOD, {**GOOD, "index": 1}]), "card GPU-good: listed twice"),
    "no object": (json.dumps([GOOD, 7]), "card number 1"),
}


@pytest.mark.parametrize("case", BAD_REGISTERS)
def test_an_inventory_that_makes_no_sense_is_told_to_its_node_and_stops_nobody(cluster: Cluster, case: str) -> None:
    register, text = BAD_REGISTERS[case]
    before = cluster.metric(BAD_NODES)
    amounts = {"cpu": 8, "memory": "8Gi", "pods": 10, COUNT: 80}
    cluster.create_node("odd", amounts, annotations={REGISTER_ANNOTATION: register})
    cluster.wait(lambda: any(text in message for message in cluster.messages("odd", "Node")), f"the node says {text!r}")
    assert cluster.metric(BAD_NODES) > before
    if "GPU-good" in register:
        cluster.wait(
            lambda: {u: phase(c) for u, c in cluster.cards().items()} == {"GPU-good": "Ready"}, "the good card"
        )
        cluster.create(pod("small", {COUNT: 1, MEMORY: 900}))
        (small,) = cluster.wait_bound("small")
        assert uuids(small) == ["GPU-good"]
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("good", {COUNT: 1, MEMORY: 40000}))
    cluster.wait_bound("good")


def test_an_annotation_that_turns_unreadable_leaves_the_cards_as_they_were(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    change = {"metadata": {"annotations": {REGISTER_ANNOTATION: register_of(node.cards)[:-9]}}}
    cluster.patch(f"/api/v1/nodes/{node.name}", change)
    cluster.wait(lambda: bool(cluster.messages(node.name, "Node")), "the node is told")
    cluster.create(pod("pod", {COUNT: 1}))
    cluster.wait_bound("pod")
