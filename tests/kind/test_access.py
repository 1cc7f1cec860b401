"""Who reaches which port of gpuledger's pods, with which token, and what Pod Security asks of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kind.cluster import COUNT, MEMORY, NAMESPACE, KindCluster, address_of, pod

Json = dict[str, Any]
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
AGENT_PORT = 8890
PORTS = {"metrics": 8889, "page": 8891, "explain": 8892, "extender": 8888, "kube-scheduler": 10259}


def asker(name: str) -> Json:
    """Return a pod that can ask others by HTTP, and holds no card."""
    found = pod(name, {}, "asker")
    found["spec"]["schedulerName"] = "default-scheduler"
    return found


@pytest.fixture
def askers(cluster: KindCluster) -> Iterator[dict[str, str]]:
    """Yield namespace -> a pod in it that asks."""
    found = {"monitoring": "asker", "default": "asker", NAMESPACE: "asker"}
    cluster.kubectl("create", "namespace", "monitoring")
    for namespace, name in found.items():
        body = asker(name)
        body["spec"]["containers"][0]["securityContext"] = SAFE
        cluster.apply(body, namespace=namespace)
    for namespace in found:
        cluster.wait_running("app=asker", 1, namespace)
    yield found
    cluster.kubectl("delete", "pod", "asker", f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
    cluster.kubectl("delete", "namespace", "monitoring")


def reaches(cluster: KindCluster, namespace: str, address: str, port: int) -> bool:
    """Return whether a connection is made. Refused at once means that nothing listens there: that is no answer."""
    argv = ("exec", "asker", f"--namespace={namespace}", "--", "sh", "-c")
    said = cluster.kubectl(*argv, f"timeout 3 nc {address} {port} < /dev/null; echo status $?")
    return "status 0" in said


def test_each_port_is_open_to_those_that_need_it_and_to_nobody_else(
    cluster: KindCluster, askers: dict[str, str]
) -> None:
    operator, agent = address_of(cluster, "gpuledger"), address_of(cluster, "gpuledger-agent")
    asked = [(what, operator, port) for what, port in PORTS.items()] + [("agent", agent, AGENT_PORT)]
    allowed = {("monitoring", "metrics"), ("monitoring", "agent"), *((name, "explain") for name in askers)}
    for namespace in askers:
        for what, address, port in asked:
            if (namespace, what) in allowed:  # the node's part of the policies may not know the new pod at once
                cluster.wait(partial(reaches, cluster, namespace, address, port), f"{namespace} reaches {what}", 30)
    refused = [(namespace, each) for namespace in askers for each in asked if (namespace, each[0]) not in allowed]
    assert [each for each in refused if reaches(cluster, each[0], *each[1][1:])] == []


def test_a_pod_asks_for_its_reasons_with_its_own_token(cluster: KindCluster) -> None:
    """As a developer's tool in a cluster would: the token is a service account's, and the policies let it in."""
    cluster.kubectl("create", "serviceaccount", "curious")
    cluster.kubectl("create", "rolebinding", "curious", "--clusterrole=view", "--serviceaccount=default:curious")
    try:
        body = asker("curious")
        body["spec"] |= {"serviceAccountName": "curious"}
        cluster.apply(body)
        cluster.wait_running("app=asker", 1)
        script = (
            "token=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token); timeout 5 wget -q -O - --header "
            f'"Authorization: Bearer $token" http://{address_of(cluster, "gpuledger")}:8892/v1/'
        )
        said = cluster.kubectl("exec", "curious", "--", "sh", "-c", f"{script} 2>&1 || true")
        assert "refused" not in said
        assert "timed out" not in said
    finally:
        cluster.kubectl("delete", "serviceaccount", "curious")
        cluster.kubectl("delete", "rolebinding", "curious")


def test_a_restricted_namespace_gets_shares_and_the_operator_would_run_in_one(cluster: KindCluster) -> None:
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("create", "namespace", "strict")
    cluster.kubectl("label", "namespace", "strict", restricted)
    try:
        body = pod("strict", {COUNT: 1, MEMORY: 4000})
        body["spec"]["containers"][0]["securityContext"] = SAFE
        cluster.apply(body, namespace="strict")
        cluster.wait_running("app=test", 1, "strict")
    finally:
        cluster.kubectl("delete", "namespace", "strict")
    argv = ["kubectl", "label", "--dry-run=server", "--overwrite", "namespace", NAMESPACE, restricted]
    done = subprocess.run(argv, env=cluster.docker.environment, capture_output=True, text=True, check=True)
    needing_more = re.findall(r"^Warning: (gpuledger-\S+)", done.stderr, re.MULTILINE)
    assert {name.rpartition("-")[0] for name in needing_more} == {"gpuledger-agent"}
