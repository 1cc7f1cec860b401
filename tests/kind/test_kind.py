"""gpuledger on a real cluster of kind: what `make kind-demo` shows, and what people do with a cluster after it."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from installation import REPOSITORY
from kind.cluster import COUNT, MEMORY, NAMESPACE, WORKERS, KindCluster, pod, restarts, shares

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


@pytest.fixture(autouse=True)
def as_before(cluster: KindCluster) -> Iterator[None]:
    """Let each test leave no pod of its own, no drained node, and a ledger that says what the cluster says."""
    yield
    for name in WORKERS:
        cluster.kubectl("uncordon", name)
    cluster.clear("app")
    cluster.audit()


def test_the_demo_places_what_it_shows_and_can_be_repeated(cluster: KindCluster) -> None:
    told = cluster.demo()
    assert "no card as large as 60000 MiB" in told
    assert all(f"{worker} " in told for worker in WORKERS)
    assert "control-plane" not in told.partition("gpuledger top")[2].partition("gpuledger explain")[0]
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.objects("pods")}
    assert phases.pop("too-large") == "Pending"
    assert set(phases.values()) <= {"Running", "Succeeded"}
    assert len(cluster.cards()) == 8 * len(WORKERS)


# Who reaches which port.


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


def address_of(cluster: KindCluster, app: str) -> str:
    found = cluster.pods(f"app.kubernetes.io/name={app}", NAMESPACE)
    return str(found[0]["status"]["podIP"])


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


# Settings, releases.


def test_settings_and_versions_change_under_shares_and_no_container_restarts(cluster: KindCluster) -> None:
    cluster.apply(*shares(20, "kept"))
    before = cluster.wait_running("app=kept", 20)
    held = cluster.holders()

    def unchanged() -> None:
        now = cluster.wait_running("app=kept", 20)
        assert restarts(now) == 0
        assert {each["metadata"]["uid"] for each in now} == {each["metadata"]["uid"] for each in before}
        assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == {
            name: cards for name, cards in held.items() if name.startswith("kept")
        }

    cluster.upgrade("settings.node_policy=spread")
    unchanged()
    cluster.docker.run("docker", "tag", image(cluster), "gpuledger:next")
    cluster.docker.run("kind", "load", "docker-image", "gpuledger:next", "--name", "gpuledger")
    cluster.upgrade("image.tag=next")
    unchanged()
    cluster.apply(*shares(3, "later"))
    cluster.wait_running("app=later", 3)
    cluster.helm("rollback", "gpuledger", "1")
    cluster.wait_rolled_out()
    unchanged()


def image(cluster: KindCluster) -> str:
    [deployment] = cluster.objects("deployment/gpuledger", f"--namespace={NAMESPACE}")
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_new_certificate_of_the_webhook_is_served_without_a_restart(cluster: KindCluster, tmp_path: Path) -> None:
    """The API server trusts both while one takes over, and in the end the new one alone."""
    first, second, both = (tmp_path / name for name in ("first", "second", "both"))
    for name in (first, second):
        subject = "gpuledger-webhook.gpuledger-system.svc"
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={subject}"]
        files = ["-addext", f"subjectAltName=DNS:{subject}", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run([*argv, *files], capture_output=True, check=True)
    both.write_text(first.with_suffix(".crt").read_text() + second.with_suffix(".crt").read_text())
    webhook = ("admission.mode=webhook", "admission.webhook.certificate=secret")
    set_certificate(cluster, first)
    cluster.upgrade(*webhook, admission_webhook_caBundle=both)
    assert filled_in(cluster, "by-first")
    [before] = cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE)
    set_certificate(cluster, second)
    deadline_s = time.monotonic() + 150  # the kubelet shows a new Secret within a minute or so
    number = 0
    while served(cluster) != second.with_suffix(".crt").read_text().strip():
        assert time.monotonic() < deadline_s
        number += 1
        assert filled_in(cluster, f"between-{number}")
        time.sleep(5)
    assert filled_in(cluster, "by-second")
    [after] = cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE)
    assert (after["metadata"]["uid"], restarts([after])) == (before["metadata"]["uid"], restarts([before]))
    cluster.upgrade("admission.mode=auto")
    cluster.kubectl("delete", "secret", "gpuledger-webhook", f"--namespace={NAMESPACE}", "--ignore-not-found")


def set_certificate(cluster: KindCluster, name: Path) -> None:
    argv = ("create", "secret", "tls", "gpuledger-webhook", f"--cert={name}.crt", f"--key={name}.key")
    secret = cluster.kubectl(*argv, f"--namespace={NAMESPACE}", "--dry-run=client", "--output=yaml")
    cluster.kubectl("apply", "--filename=-", stdin=secret)


def served(cluster: KindCluster) -> str:
    """Return the certificate that the webhook serves, PEM, asked from a node."""
    script = (
        f"openssl s_client -connect {address_of(cluster, 'gpuledger')}:9443 < /dev/null 2> /dev/null | openssl x509"
    )
    return cluster.docker.run("docker", "exec", WORKERS[0], "sh", "-c", script).strip()


def filled_in(cluster: KindCluster, name: str) -> bool:
    """Return whether a pod that names no scheduler comes to ours: no policy does that in this mode."""
    body = pod(name, {COUNT: 1, MEMORY: 1000})
    del body["spec"]["schedulerName"]
    cluster.apply(body)
    [found] = cluster.objects("pod", name)
    return bool(found["spec"]["schedulerName"] == "gpuledger")


def test_helm_test_asks_the_operator_and_audits_and_leaves_nothing(cluster: KindCluster) -> None:
    cluster.helm("test", "gpuledger", "--timeout", "2m")
    assert cluster.pods("app.kubernetes.io/name=gpuledger-test", NAMESPACE) == []


# Failures.


def test_a_killed_active_replica_is_followed_by_the_other_and_no_pod_is_bound_twice(cluster: KindCluster) -> None:
    cluster.upgrade("operator.replicas=2")
    names = [f"stream-{number}" for number in range(30)]
    with Stream(cluster, names):
        time.sleep(3)
        cluster.kubectl("delete", "pod", active(cluster), f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
    cluster.wait_running("app=stream", len(names))
    assert {name: len(cards) for name, cards in cluster.holders().items() if name in names} == dict.fromkeys(names, 1)
    cluster.upgrade("operator.replicas=1")


def active(cluster: KindCluster) -> str:
    [lease] = cluster.objects("lease/gpuledger-scheduler", f"--namespace={NAMESPACE}")
    return str(lease["spec"]["holderIdentity"]).rpartition("_")[0]


class Stream:
    """Create pods one by one, in a thread."""

    def __init__(self, cluster: KindCluster, names: list[str], pause_s: float = 0.4) -> None:
        self._cluster, self._names, self._pause_s = cluster, names, pause_s
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        for name in self._names:
            self._cluster.apply(pod(name, {COUNT: 1, MEMORY: 2000}, "stream"))
            time.sleep(self._pause_s)


def have_operator_elsewhere(cluster: KindCluster, node: str) -> None:
    """Move the operator from a node, so that it does not die with it: that is what the test of replicas is for."""
    cluster.kubectl("cordon", node)
    for each in cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE):
        if each["spec"]["nodeName"] == node:
            cluster.kubectl("delete", "pod", each["metadata"]["name"], f"--namespace={NAMESPACE}")
    cluster.wait_rolled_out()
    cluster.kubectl("uncordon", node)


def nodes_of(pods: list[Json]) -> dict[str, str]:
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods}


def test_a_dead_worker_gets_no_more_pods_than_in_its_first_seconds(cluster: KindCluster) -> None:
    """It is the fullest one, and Kubernetes needs 40 s to say that it is dead."""
    cluster.apply(*shares(4, "before"))
    dead = next(iter(nodes_of(cluster.wait_running("app=before", 4)).values()))
    have_operator_elsewhere(cluster, dead)
    cluster.docker.run("docker", "kill", dead)
    begun_s, bound_s = time.monotonic(), dict[str, float]()
    try:
        for number in range(30):
            name = f"stream-{number}"
            cluster.apply(pod(name, {COUNT: 1, MEMORY: 2000}, "stream"))
            bound_s[name] = time.monotonic() - begun_s
            time.sleep(0.5)
        cluster.wait(lambda: all(nodes_of(cluster.pods("app=stream")).values()), "all are bound")
        lost = sorted(bound_s[name] for name, node in nodes_of(cluster.pods("app=stream")).items() if node == dead)
        assert all(each < 8.0 for each in lost), lost
    finally:
        cluster.docker.run("docker", "start", dead)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{dead}", "--timeout=120s")
        cluster.wait_rolled_out()


def test_a_drained_worker_is_left_by_its_pods_and_their_shares(cluster: KindCluster) -> None:
    cluster.apply(*shares(4, "moved"))
    node = next(iter(nodes_of(cluster.wait_running("app=moved", 4)).values()))
    cluster.kubectl("drain", node, "--pod-selector=app=moved", "--force", "--ignore-daemonsets", "--timeout=120s")
    cluster.wait(lambda: not any(name.startswith("moved") for name in cluster.holders()), "their shares are free")
    cluster.apply(*shares(2, "next"))
    assert node not in nodes_of(cluster.wait_running("app=next", 2)).values()


def test_after_a_reboot_pods_with_claims_run_on_the_same_cards(cluster: KindCluster) -> None:
    """Those that count in their limits have failed for good: their kubelet is back before the agent."""
    template = (REPOSITORY / "examples" / "claims" / "01-share.yaml").read_text()
    cluster.kubectl("apply", "--filename=-", stdin=template)
    names = {"claim-chat-1", "claim-chat-2"}
    try:
        cluster.wait(lambda: len(containers(cluster, names)) == len(names), "they run")
        before = containers(cluster, names)
        by_node = {name: node for name, node in nodes_of(cluster.objects("pods")).items() if name in names}
        held = {name: cluster.holders()[name] for name in names}
        for node in set(by_node.values()):
            cluster.docker.run("docker", "restart", "--time=0", node)
            cluster.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")

        cluster.wait(lambda: len(containers(cluster, names) - before) == len(names), "they run again", 240)
        assert {name: cluster.holders()[name] for name in names} == held
    finally:
        cluster.kubectl("delete", "--filename=-", "--force", "--grace-period=0", stdin=template)
        cluster.wait_rolled_out()


def containers(cluster: KindCluster, names: set[str]) -> set[str]:
    """Return the ids of the containers of these pods that are ready."""
    pods = [each for each in cluster.objects("pods") if each["metadata"]["name"] in names]
    statuses = [status for each in pods for status in each["status"].get("containerStatuses", ())]
    return {status["containerID"] for status in statuses if status["ready"]}


def test_uninstalling_keeps_the_ledger_and_the_kustomization_takes_it_over(cluster: KindCluster) -> None:
    """The last test: the kustomization has agents for real GPUs, of which there are none here."""
    cluster.apply(*shares(5, "kept"))
    cluster.wait_running("app=kept", 5)
    held = {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")}
    cluster.helm("uninstall", "gpuledger")

    def left() -> list[str]:
        found = cluster.objects("all,configmaps,roles,rolebindings", f"--namespace={NAMESPACE}")
        return [each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("gpuledger")]

    cluster.wait(lambda: not left(), "what Helm has made is gone")
    assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == held
    assert restarts(cluster.wait_running("app=kept", 5)) == 0
    cluster.kubectl("apply", "--kustomize", str(REPOSITORY / "manifests"))
    cluster.kubectl("rollout", "status", "deployment/gpuledger", f"--namespace={NAMESPACE}", "--timeout=180s")
    assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == held
