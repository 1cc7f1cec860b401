"""The pod of a node's agent: where it is asked, and which addresses are not asked at all."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.node import AgentPod, agent_pod, best_by_node, host_of

Json = dict[str, Any]


def a_pod(name: str = "agent-x", node: str = "gpu-1", ready: bool = True, **status: Any) -> Json:
    conditions = [{"type": "Ready", "status": str(ready)}]
    ports = [{"name": "other", "containerPort": 1}, {"name": "health", "containerPort": 8890}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "copy"}, {"name": "agent", "ports": ports}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "conditions": conditions, **status},
    }


def test_its_port_is_the_one_that_is_probed() -> None:
    assert agent_pod(a_pod()) == AgentPod("agent-x", "gpu-1", "10.0.0.7", 8890, ready=True)


def test_a_pod_that_has_not_started_has_no_address() -> None:
    assert agent_pod({"metadata": {"name": "new"}}) == AgentPod("new", "", "", 0, ready=False)


@pytest.mark.parametrize("order", [1, -1])
def test_while_one_follows_another_the_one_that_is_ready_is_asked(order: int) -> None:
    pods = [agent_pod(a_pod("old")), agent_pod(a_pod("new", ready=False)), agent_pod(a_pod("unbound", node=""))]
    assert {node: pod.name for node, pod in best_by_node(pods[::order]).items()} == {"gpu-1": "old"}


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("240.0.0.7", "240.0.0.7"),  # class E, which some clusters give to pods
        ("fd00::7", "[fd00::7]"),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("169.254.169.254", ""),  # clouds tell their machines secrets there
        ("fe80::1", ""),
        ("fd00::1%eth0", ""),
        ("224.0.0.1", ""),
        ("0.0.0.0", ""),  # noqa: S104 - nobody listens there
        ("example.com", ""),
        ("10.0.0.7:80/#", ""),
        ("", ""),
    ],
)
def test_an_address_that_leads_to_whoever_asks_is_none(address: str, host: str) -> None:
    assert host_of(address) == host
