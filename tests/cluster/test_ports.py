"""What clients of the operator's ports can do to it, and to pods: with few descriptors, and without the secret."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.shared import SharedPlane
from control_plane import free_port
from gpuledger.serving import raise_descriptor_limit
from installation import NO_KUBELET, Installation

pytestmark = pytest.mark.promise("ports")

DESCRIPTORS = 1_500
CLIENTS = 1_600
"""More than there are descriptors."""

BOUND_WITHIN_S = 5.0
VERBS = ("filter", "prioritize", "preempt", "bind")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster whose operator may open few descriptors."""
    with shared.lent() as plane:
        installation = Installation(plane, {**NO_KUBELET, "view_port": free_port()})
        installation.install()
        limited = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", sys.executable]
        env = {
            "GPULEDGER_SETTINGS": str(installation.settings_file),
            "KUBECONFIG": str(installation.kubeconfig),
            "GPULEDGER_LEADER_ELECT": "false",
            "GPULEDGER_EXTENDER_SECRET": str(installation.secret_file),
        }
        argv = [*limited, "-m", "gpuledger", "run"]
        installation.operator = plane.start_program("operator", argv, env, installation.is_ready)
        installation.start_scheduler()
        found = Cluster(plane, installation)
        found.add_nodes(1, gpus=4)
        yield found
        found.close()


def connecting(address: tuple[str, int]) -> socket.socket:
    """Return a socket that begins to connect."""
    found = socket.socket()
    found.setblocking(False)
    with suppress(BlockingIOError):
        found.connect(address)
    return found


def is_closed(client: socket.socket) -> bool:
    """Return whether the other side has closed a connection, or refused it."""
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def silent_clients(url: str, number: int) -> Iterator[None]:
    """Have so many clients connect, say nothing, and come again when they are sent away."""
    parts, is_over = urlsplit(url), threading.Event()
    address = str(parts.hostname), int(parts.port or 0)
    clients = [connecting(address) for _ in range(number)]

    def come_again() -> None:
        while not is_over.wait(0.1):
            for place, client in enumerate(clients):
                if is_closed(client):
                    client.close()
                    clients[place] = connecting(address)

    thread = threading.Thread(target=come_again)
    thread.start()
    time.sleep(2.0)  # as many as can be have connected
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for client in clients:
            client.close()


def asked(url: str, body: object = None, headers: Mapping[str, str] = {}) -> tuple[int, str]:
    """Return status and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, dict(headers)), timeout=5) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("port", ["explain_url", "view_url", "health_url", "extender_url"])
def test_clients_that_say_nothing_take_no_port_but_their_own_and_pods_are_bound(cluster: Cluster, port: str) -> None:
    installation = cluster.installation
    raise_descriptor_limit()
    with silent_clients(getattr(installation, port), CLIENTS):
        assert asked(f"{installation.health_url}/healthz")[0] == 200
        begin_s = time.monotonic()
        cluster.create(pod("ordinary", {COUNT: 1, MEMORY: 1_000}))
        cluster.wait_bound("ordinary")
        assert time.monotonic() - begin_s < BOUND_WITHIN_S
        assert asked(f"{installation.health_url}/readyz")[0] == 200
    assert installation.operator
    assert "Too many open files" not in installation.operator.log_text()
    cluster.delete("ordinary")


def test_who_does_not_know_the_secret_binds_nothing(cluster: Cluster) -> None:
    """Such as somebody who may forward ports of the operator's pod."""
    installation = cluster.installation
    assert installation.scheduler
    installation.scheduler.kill()
    cluster.create(pod("pending", {COUNT: 1, MEMORY: 1_000}))
    wanted = cluster.pod("pending")
    node = cluster.request("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    questions: Json = {
        "filter": {"Pod": wanted, "Nodes": None, "NodeNames": [node]},
        "prioritize": {"Pod": wanted, "Nodes": None, "NodeNames": [node]},
        "preempt": {"Pod": wanted, "NodeNameToMetaVictims": {node: {"Pods": [], "NumPDBViolations": 0}}},
        "bind": {
            "PodName": "pending",
            "PodNamespace": "default",
            "PodUID": wanted["metadata"]["uid"],
            "Node": node,
        },
    }
    headers = installation.extender_headers()
    without = {name: value for name, value in headers.items() if name != "Authorization"}
    for wrong in (without, {**headers, "Authorization": headers["Authorization"][:-4] + "AAA="}):
        for verb in VERBS:
            found = asked(f"{installation.extender_url}/{verb}", questions[verb], wrong)
            assert found == (404, "nothing is asked here\n")
    assert not cluster.pod("pending")["spec"].get("nodeName")
    status, text = asked(f"{installation.extender_url}/filter", questions["filter"], headers)
    assert (status, json.loads(text)["NodeNames"]) == (200, [node])
    installation.start_scheduler()
    cluster.wait_bound("pending")
    cluster.delete("pending")


def test_kube_scheduler_does_not_show_the_secret_to_users(cluster: Cluster) -> None:
    """It writes the URL of an extender that does not answer into the pod; its HTTP client leaves the password out."""
    installation = cluster.installation
    assert installation.operator
    secret = installation.secret_file.read_text()
    installation.kill_operator()
    cluster.create(pod("asked-in-vain", {COUNT: 1, MEMORY: 1_000}))

    def refused() -> str:
        return str([each.get("message") for each in cluster.pod("asked-in-vain")["status"].get("conditions") or ()])

    cluster.wait(lambda: "connection refused" in refused(), "kube-scheduler says that nobody answers")
    assert "kube-scheduler:***@127.0.0.1" in refused()
    seen = cluster.request("GET", "/api/v1/events")
    assert installation.scheduler
    for text in (refused(), json.dumps(seen), installation.scheduler.log_text(), installation.operator.log_text()):
        assert secret not in text
    installation.start_operator()
    cluster.wait_bound("asked-in-vain")
