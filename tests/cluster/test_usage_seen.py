"""What is used, as people get it: through a real API server's proxy with their own account, and from the operator."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import MEMORY, STRATEGIC_PATCH, Cluster, pod
from cluster.test_kubectl_gpuledger import Plugin
from fakes.usage import an_agent_server, an_answer
from requirements import require

Json = dict[str, Any]

PODS = "/api/v1/namespaces/gpuledger-system/pods"


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


@pytest.fixture
def address() -> str:
    """Return an address of this machine: neither API server nor operator asks a pod at a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        try:
            anything.connect(("192.0.2.1", 9))  # sends nothing, and tells where it would be sent from
            found = str(anything.getsockname()[0])
        except OSError:
            found = "127.0.0.1"
    missing = "this machine has no address but loopback ones" if found.startswith("127.") else ""
    require("agents are asked through the API server", missing)
    return found


@contextmanager
def an_agent_pod(cluster: Cluster, node: str, address: str, port: int) -> Iterator[None]:
    """Let a node's agent have a pod at this address, as its kubelet would report it."""
    ports = [{"name": "health", "containerPort": port}]
    made = pod(f"agent-of-{node}", {"name": "agent", "image": "none", "ports": ports}, nodeName=node)
    made["metadata"] |= {"namespace": "gpuledger-system", "labels": {"app.kubernetes.io/name": "gpuledger-agent"}}
    cluster.request("POST", PODS, made)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    status |= {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.request("PATCH", f"{PODS}/agent-of-{node}/status", {"status": status}, STRATEGIC_PATCH)
    try:
        yield
    finally:
        cluster.request("DELETE", f"{PODS}/agent-of-{node}", {"gracePeriodSeconds": 0})


@contextmanager
def an_agent(cluster: Cluster, node: str, address: str, answer: Json) -> Iterator[None]:
    """Let a node's agent answer."""
    with an_agent_server(answer, address) as port, an_agent_pod(cluster, node, address, port):
        yield


def answer_of(cluster: Cluster, node: str, name: str, used_mib: int) -> Json:
    """Return what a node's agent says: a pod uses so much of its card, and a pod that nobody knows all of the rest."""
    (card,) = [each for each in cluster.objects("gpuallocations") if each["spec"]["nodeName"] == node]
    uuid, uid = card["spec"]["uuid"], cluster.pod(name)["metadata"]["uid"]
    use = {"container": "main", "uuid": uuid, "memoryUsedMiB": used_mib, "memoryLimitMiB": 4_000, "paused": False}
    use |= {"utilizationPercent": 0, "lastKernelSecondsAgo": 120, "source": "region"}
    uses = [{"podUID": uid, **use}, {"podUID": "made-up", **use, "memoryUsedMiB": 30_000}]
    return an_answer(node, [{"uuid": uuid, "memoryUsedMiB": used_mib, "utilizationPercent": 3}], uses)


def uses_of(nodes: list[Json], node: str) -> Json:
    """Return pod -> memory in use and state, of the only card of a node."""
    ((card,),) = ([*each["cards"]] for each in nodes if each["node"] == node)
    return {
        each["pod"]: (each["containers"][0]["memoryUsedMiB"], each["containers"][0]["state"]) for each in card["pods"]
    }


def test_a_person_and_a_viewer_of_the_page_see_what_an_agent_says_of_pods_in_the_ledger(
    cluster: Cluster, plugin: Plugin, address: str
) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.create(pod("web", {"nvidia.com/gpu": 1, MEMORY: 4000}))
    cluster.wait_bound("web")
    with an_agent(cluster, node.name, address, answer_of(cluster, node.name, "web", 1_200)):
        for idle_after_s, state in ((300, "in use"), (60, "idle")):
            asked = ("--node", node.name, "--idle-after-s", str(idle_after_s))
            by_command = plugin.json("top", "--usage", *asked)["nodes"]
            assert uses_of(by_command, node.name) == {"web": (1_200, state)}
            url = f"{cluster.installation.view_url}/v1/usage?idleAfterS={idle_after_s}"
            cluster.wait(partial(is_known, url, node.name), "the operator has seen the agent's pod")
            by_operator = [each for each in view(url) if each["node"] == node.name]
            assert by_operator == by_command
            told = ("--operator-url", cluster.installation.view_url)
            assert plugin.json("top", "--usage", *asked, *told)["nodes"] == by_command


def test_the_role_is_all_that_it_takes_beside_the_ledger(cluster: Cluster, plugin: Plugin, address: str) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.create(pod("seen", {"nvidia.com/gpu": 1, MEMORY: 4000}))
    cluster.wait_bound("seen")
    kubectl, account = cluster.plane.kubectl, "system:serviceaccount:default:viewer"
    kubectl("create", "serviceaccount", "viewer", "--namespace", "default")
    viewer = str(cluster.plane.kubeconfig_of_service_account("default", "viewer"))
    kubectl("create", "clusterrole", "cards-viewer", "--verb=list", "--resource=gpuallocations.gpuledger.dev")
    kubectl("create", "clusterrolebinding", "cards-viewer", "--clusterrole=cards-viewer", f"--user={account}")
    asked = ("top", "--usage", "--node", node.name, "--kubeconfig", viewer)
    try:
        with an_agent(cluster, node.name, address, answer_of(cluster, node.name, "seen", 7)):
            refused = plugin.run(*asked, status=2)
            assert "needs `list` on pods and `get` on pods/proxy in namespace gpuledger-system" in refused
            kubectl(
                *("create", "rolebinding", "usage-viewer", "--namespace", "gpuledger-system"),
                *("--role=gpuledger-usage", f"--user={account}"),
            )
            expected = {"seen": (7, "in use")}
            cluster.wait(
                lambda: uses_of(plugin.json(*asked)["nodes"], node.name) == expected,
                "the Role counts, and the agent is asked",
            )
        gone = plugin.json(*asked)["nodes"][0]
        assert gone["problem"] == "no agent of gpuledger runs there"
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", "cards-viewer")
        kubectl("delete", "rolebinding", "usage-viewer", "--namespace", "gpuledger-system", "--ignore-not-found")
        kubectl("delete", "serviceaccount", "viewer", "--namespace", "default")


def test_an_agent_that_does_not_listen_is_said_in_the_api_servers_words(
    cluster: Cluster, plugin: Plugin, address: str
) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    with an_agent_server({}, address) as port:
        pass
    with an_agent_pod(cluster, node.name, address, port):
        found = plugin.json("top", "--usage", "--node", node.name)["nodes"][0]
    assert found["problem"].startswith("the API server does not reach its agent: ")
    assert "connection refused" in found["problem"]


def view(url: str) -> list[Json]:
    """Return what the operator's view server says of each node."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own process
        return list(json.load(answer)["nodes"])


def is_known(url: str, node: str) -> bool:
    return any(each["node"] == node and each["problem"] is None for each in view(url))
