"""The operator's view in a cluster of pods: who reaches it, and what the replicas answer."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_binaries
from control_plane import ControlPlaneError
from gpuledger.command_line.cluster_access import Helper, Kubectl
from gpuledger.command_line.operator_view import FORWARDING
from installation import NAMESPACE, REPOSITORY
from node.pod_cluster import HEALTH_PORT, NODES, PodCluster

Json = dict[str, Any]

VIEW_PORT = 8891
DOCUMENT = REPOSITORY / "docs" / "kubectl-gpuledger.md"


@contextlib.contextmanager
def forwarded(cluster: PodCluster, pod: str) -> Iterator[str]:
    """Yield an address that leads to a replica's view, as docs/page.md has people do it."""
    kubectl = Kubectl(str(ensure_binaries() / "kubectl"), str(cluster.plane.kubeconfig))
    forward = Helper(kubectl.argv("port-forward", "--namespace", NAMESPACE, f"pod/{pod}", f":{VIEW_PORT}"), FORWARDING)
    try:
        yield f"http://127.0.0.1:{forward.wait()[1]}"
    finally:
        forward.end()


def check_view(cluster: PodCluster, pod: str) -> None:
    """Check that the active replica serves the page, that the other one names it, and that no network reaches it."""
    active = cluster.active()
    (standby,) = cluster.system_pods().keys() - {active}
    with forwarded(cluster, active) as address:
        assert b"<title>gpuledger</title>" in _read(f"{address}/")
        assert {node["node"] for node in json.loads(_read(f"{address}/v1/cluster"))["nodes"]} == set(NODES)
        assert json.loads(_read(f"{address}/v1/explain?pod=default/{pod}"))["state"] == "placed"
    with forwarded(cluster, standby) as address:
        assert json.loads(_read(f"{address}/v1/cluster"))["activeElsewhere"] == active
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            _read(f"{address}/v1/explain?pod=default/{pod}")
        assert active in json.loads(refused.value.read())["error"]
    for replica in (active, standby):
        assert "gpuledger" in _by_the_pod_network(cluster, replica, f"{HEALTH_PORT}/proxy/metrics")
        with pytest.raises(ControlPlaneError, match="connection refused"):
            _by_the_pod_network(cluster, replica, f"{VIEW_PORT}/proxy/v1/cluster")


def asked(cluster: PodCluster, pod: str, path: str) -> Json:
    """Return what a replica's view answers."""
    with forwarded(cluster, pod) as address:
        return dict(json.loads(_read(f"{address}/{path}")))


def uses_of(found: Json) -> dict[str, tuple[int, str]]:
    """Return pod -> MiB that its container uses, and its state; of what the view or `top --usage` says."""
    cards = [card for node in found["nodes"] for card in node["cards"]]
    uses = [(pod["pod"], use) for card in cards for pod in card["pods"] for use in pod["containers"]]
    return {pod: (use["memoryUsedMiB"], use["state"]) for pod, use in uses}


def let_ask(cluster: PodCluster, account: str) -> Path:
    """Create an account with the Role that the document shows, and return its kubeconfig."""
    (block,) = [each for each in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "Role" in each]
    role = yaml.safe_load(block)
    assert role["kind"] == "Role"
    cluster.plane.kubectl("create", "serviceaccount", account)
    cluster.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles", role)
    cluster.plane.kubectl(
        *("create", "rolebinding", account, "--namespace", NAMESPACE),
        *(f"--role={role['metadata']['name']}", f"--serviceaccount=default:{account}"),
    )
    return cluster.plane.kubeconfig_of_service_account("default", account)


def let_develop(cluster: PodCluster, namespace: str) -> Path:
    """Create a namespace with an account that has `edit` there and the Role for developers; return its kubeconfig."""
    kubectl = cluster.plane.kubectl
    kubectl("create", "namespace", namespace)
    kubectl("create", "serviceaccount", "developer", "--namespace", namespace)
    account = f"--serviceaccount={namespace}:developer"
    kubectl("create", "rolebinding", "edit", "--namespace", namespace, "--clusterrole=edit", account)
    role = "--role=gpuledger-developer"
    kubectl("create", "rolebinding", namespace, "--namespace", NAMESPACE, role, account)
    return cluster.plane.kubeconfig_of_service_account(namespace, "developer")


def _by_the_pod_network(cluster: PodCluster, pod: str, path: str) -> str:
    """Return what a pod's address answers, to the API server."""
    return cluster.plane.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{path}")


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a forwarded port of this machine
        return bytes(answer.read())
