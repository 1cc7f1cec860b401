"""Nodes whose agent is not Ready or whose kubelet hangs, cards with faults, and what pods are told of it."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster.cluster import COUNT, DEADLINE_S, MEMORY, PODS, Cluster, phase, pod, uuids
from cluster.shared import SharedPlane
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.model.card import Amounts
from gpuledger.workflows.inventory import SLOW_S
from installation import NAMESPACE, USER

Json = dict[str, Any]

START_TIMEOUT_S = 4
SEEN_S = 2.0
"""How long it takes at most until the operator has seen a Binding."""
AGENTS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the namespace asks of its pods; this one never runs."""

OURS = ["pods", "nodes", "gpuallocations", "events"]


@pytest.fixture(scope="module")
def impatient(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster whose operator gives kubelets a few seconds."""
    settings = {"start_timeout_s": START_TIMEOUT_S, "release_delay_s": 1, "longest_release_s": 3}
    with shared.cluster(settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(impatient: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods, and leave it so."""
    yield impatient
    impatient.clear()


def reasons(cluster: Cluster, node: FakeNode) -> set[tuple[str, str]]:
    """Return phase and reason of the node's cards."""
    mine, cards = {card.uuid for card in node.cards}, cluster.cards()
    return {(phase(cards[uuid]), cards[uuid]["status"].get("reason", "")) for uuid in mine}


def wait_open(cluster: Cluster, node: FakeNode) -> None:
    cluster.wait(lambda: reasons(cluster, node) == {("Ready", "")}, f"node {node.name} takes pods")


def wait_closed(cluster: Cluster, node: FakeNode, why: str) -> None:
    cluster.wait(lambda: reasons(cluster, node) == {("Unavailable", why)}, f"node {node.name} is closed: {why}")


def start(cluster: Cluster, *names: str) -> None:
    """Do what a kubelet does with pods that come to it."""
    for name in names:
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        cluster.patch(f"{PODS}/{name}/status", {"status": status})


def run(cluster: Cluster, body: Json) -> Json:
    """Create a pod, and start it once it is bound."""
    name = body["metadata"]["name"]
    cluster.create(body)
    (bound,) = cluster.wait_bound(name)
    start(cluster, name)
    return bound


def agent_body(node: FakeNode) -> Json:
    """Return the pod of a node's agent."""
    return {
        "metadata": {"name": f"agent-of-{node.name}", "labels": {"app.kubernetes.io/name": "gpuledger-agent"}},
        "spec": {"nodeName": node.name, "containers": [{"name": "agent", "image": "none", "securityContext": SAFE}]},
    }


def set_agent(cluster: Cluster, node: FakeNode, ready: bool) -> None:
    """Have the agent's pod of a node say whether it is Ready; it is created if there is none."""
    body = agent_body(node)
    name = body["metadata"]["name"]
    if name not in [found["metadata"]["name"] for found in cluster.request("GET", AGENTS)["items"]]:
        cluster.request("POST", AGENTS, body)
    say_ready(cluster, name, ready)


def say_ready(cluster: Cluster, name: str, ready: bool) -> None:
    """Have an agent's pod say whether it is Ready."""
    condition = {"type": "Ready", "status": str(ready)}
    cluster.patch(f"{AGENTS}/{name}/status", {"status": {"phase": "Running", "conditions": [condition]}})


@pytest.mark.promise("node changes")
def test_a_node_whose_agents_pod_is_not_ready_takes_no_pods_and_keeps_those_it_has(cluster: Cluster) -> None:
    """The kubelet still offers the slots: a plugin that hangs keeps its socket."""
    (node,) = cluster.add_nodes(1)
    run(cluster, pod("running", {COUNT: 1, MEMORY: 4000}))
    before = cluster.holders()
    set_agent(cluster, node, ready=False)
    wait_closed(cluster, node, "the node's GPU agent is not ready")
    cluster.create(pod("new", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_refused("new", "1 GPU node agent is not ready")
    assert cluster.holders() == before
    set_agent(cluster, node, ready=True)
    cluster.wait_bound("new")
    start(cluster, "new")
    wait_open(cluster, node)
    set_agent(cluster, node, ready=False)
    wait_closed(cluster, node, "the node's GPU agent is not ready")
    cluster.request("DELETE", f"{AGENTS}/agent-of-{node.name}", {"gracePeriodSeconds": 0})
    wait_open(cluster, node)  # there is no agent's pod: the kubelet's word counts
    cluster.check_consistent()


def test_an_operator_that_starts_leaves_a_node_closed_whose_agent_is_not_ready(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    set_agent(cluster, node, ready=False)
    wait_closed(cluster, node, "the node's GPU agent is not ready")
    cluster.settle()
    offset = cluster.plane.audit_offset()
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()
    assert cluster.our_writes(offset, OURS) == []
    cluster.request("DELETE", f"{AGENTS}/agent-of-{node.name}", {"gracePeriodSeconds": 0})


def test_a_node_that_does_not_start_its_pods_takes_no_more_until_it_does(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    why = f"its kubelet has not started pod default/stuck-0 for {START_TIMEOUT_S} s"
    names = [f"stuck-{number}" for number in range(5)]
    cluster.create(pod(names[0], {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound(names[0])
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 4000}) for name in names[1:]))
    cluster.wait_bound(*names)
    wait_closed(cluster, node, why)
    cluster.create(pod("new", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_refused("new", "1 node starts no pods: its kubelet or GPU node agent hangs")
    cluster.settle()
    offset = cluster.plane.audit_offset()
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    wait_closed(cluster, node, why)
    cluster.settle()
    assert not [event for event in cluster.our_writes(offset, OURS) if event.subresource == "binding"]
    start(cluster, *names)
    cluster.wait_bound("new", timeout_s=2 * DEADLINE_S)
    start(cluster, "new")
    wait_open(cluster, node)
    cluster.check_consistent()


def test_a_node_that_dies_gets_no_more_pods_than_were_bound_to_it_before_its_silence_was_seen(cluster: Cluster) -> None:
    """By binpack it is the preferred one, and Kubernetes needs 40 s to say that it is dead."""
    cluster.add_nodes(3)
    with cluster.other_settings(start_timeout_s=60):
        dead = run(cluster, pod("before", {COUNT: 1, MEMORY: 4000}))["spec"]["nodeName"]
        bound_to, silent_since_s = dict[str, str](), time.monotonic()
        for number in range(30):
            name, asked_s = f"new-{number}", time.monotonic()
            cluster.create(pod(name, {COUNT: 1, MEMORY: 4000}))
            (found,) = cluster.wait_bound(name)
            bound_to[name] = found["spec"]["nodeName"]
            if bound_to[name] != dead:
                start(cluster, name)
                break
            assert asked_s < silent_since_s + SLOW_S + SEEN_S, f"{number} pods went to it"
            time.sleep(SLOW_S / 10)
        lost = [name for name, node in bound_to.items() if node == dead]
        others = [f"other-{number}" for number in range(10)]
        cluster.create(*(pod(name, {COUNT: 1, MEMORY: 4000}) for name in others))
        assert dead not in {found["spec"]["nodeName"] for found in cluster.wait_bound(*others)}
        start(cluster, *lost, *others)
        cluster.settle()
        cluster.check_consistent()


def register(cluster: Cluster, node: FakeNode) -> None:
    cluster.patch(
        f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": {REGISTER_ANNOTATION: register_of(node.cards)}}}
    )


def told(cluster: Cluster, name: str) -> list[tuple[str, str, str]]:
    """Return type, reason and text of what we have told a pod."""
    events = cluster.request("GET", "/api/v1/namespaces/default/events")["items"]
    mine = [e for e in events if e["involvedObject"]["name"] == name and e["reason"].startswith("GPU")]
    return [
        (e["type"], e["reason"], e["message"]) for e in sorted(mine, key=lambda e: e["metadata"]["creationTimestamp"])
    ]


def test_the_pods_on_a_card_are_told_of_its_fault_and_of_its_end_once_each(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    for name in ("first", "second"):
        run(cluster, pod(name, {COUNT: 1, MEMORY: 4000}))
    run(cluster, pod("elsewhere", {COUNT: 1}))
    uuid = uuids(cluster.pod("first"))[0]
    assert uuids(cluster.pod("second")) == [uuid]
    sick = tuple(replace(c, healthy=c.uuid != uuid, fault="Xid 79" if c.uuid == uuid else "") for c in node.cards)
    register(cluster, FakeNode(node.name, sick))
    cluster.wait(lambda: phase(cluster.cards()[uuid]) == "Unhealthy", "the card is unhealthy")
    assert cluster.cards()[uuid]["status"]["reason"] == "its node reports a fault: Xid 79"
    where = f"GPU {uuid} (index 0 of node {node.name})"
    bad = ("Warning", "GPUUnhealthy", f"{where}: its node reports a fault: Xid 79")
    good = ("Normal", "GPUHealthy", f"{where} works again, as its node reports")
    cluster.wait(lambda: [told(cluster, name) for name in ("first", "second")] == [[bad]] * 2, "both pods are told")
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()
    assert [told(cluster, name) for name in ("first", "second")] == [[bad]] * 2
    register(cluster, node)
    cluster.wait(
        lambda: [set(told(cluster, name)) for name in ("first", "second")] == [{bad, good}] * 2, "both are told again"
    )
    assert told(cluster, "elsewhere") == []
    assert {e.user for e in cluster.our_writes(0, ["events"])} == {USER}


def test_a_name_that_the_agent_does_not_serve_gets_no_pods(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    run(cluster, pod("served", {"volcano.sh/vgpu-number": 1}))
    cluster.set_slots(node.name, 0, "volcano.sh/vgpu-number")
    cluster.settle()
    cluster.create(pod("other", {"volcano.sh/vgpu-number": 1}))
    cluster.wait_refused("other", "1 the node's device plugin does not serve volcano.sh/vgpu-number")
    cluster.set_slots(node.name, 80, "volcano.sh/vgpu-number")
    cluster.wait_bound("other")
    start(cluster, "other")


def test_mig_devices_are_for_who_asks_by_memory_or_names_the_mode(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=3)
    device = Amounts(memory_mib=5000, cores=100, number=1)
    first, second, whole = node.cards
    cut = [
        replace(c, uuid=c.uuid.replace("GPU", "MIG"), capacity=device, mode="mig", links={}) for c in (first, second)
    ]
    cluster.register(FakeNode(node.name, (*cut, replace(whole, links={}))))
    mine = {card.uuid for card in cut}
    cluster.wait(lambda: {u for u, c in cluster.cards().items() if phase(c) == "Ready"} == {*mine, whole.uuid}, "ready")
    assert uuids(run(cluster, pod("whole", {COUNT: 1}))) == [whole.uuid]
    cluster.create(pod("another", {COUNT: 1}))
    cluster.wait_refused("another", "1 no card entirely free")
    small = uuids(run(cluster, pod("small", {COUNT: 1, MEMORY: 4000})))
    by_mode = uuids(run(cluster, pod("by-mode", {COUNT: 1}, annotations={"gpuledger.dev/vgpu-mode": "mig"})))
    assert {*small, *by_mode} == mine
    cluster.create(pod("too-many", {COUNT: 1, MEMORY: 100}))
    cluster.wait_refused("too-many", "1 no card with 100 MiB, cores and a slot free together")
    cluster.check_consistent()
