"""Kopf's own command starts the operator that `gpuledger run` starts, and both end in the same ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.shared import SharedPlane
from control_plane import ManagedProcess, free_port
from installation import NO_KUBELET, Installation

EXIT_S = 15.0
"""Kopf kills its process after ten."""

BY_GPULEDGER = ("-m", "gpuledger", "run")
BY_KOPF = ("-m", "kopf", "run", "--module=gpuledger.controller.kopf_frame", "--all-namespaces")


@pytest.fixture(scope="module")
def installation(shared: SharedPlane) -> Iterator[Installation]:
    with shared.lent() as plane:
        installed = Installation(plane, {**NO_KUBELET, "release_delay_s": 2, "longest_release_s": 4})
        installed.install()
        installed.start_scheduler()
        yield installed


@pytest.fixture
def cluster(installation: Installation) -> Iterator[Cluster]:
    running = Cluster(installation.plane, installation)
    yield running
    running.close()
    installation.kill_operator()


def environment(installation: Installation) -> dict[str, str]:
    return {
        "GPULEDGER_SETTINGS": str(installation.settings_file),
        "KUBECONFIG": str(installation.kubeconfig),
        "GPULEDGER_LEADER_ELECT": "false",
        "GPULEDGER_EXTENDER_SECRET": str(installation.secret_file),
    }


def start(installation: Installation, command: tuple[str, ...], name: str) -> ManagedProcess:
    """Start the operator by a command, with all that it has to know in the environment."""
    argv, env = [sys.executable, *command], environment(installation)
    installation.operator = installation.plane.start_program(name, argv, env, installation.is_ready)
    return installation.operator


def test_kopfs_command_starts_the_operator_and_a_pod_is_bound(cluster: Cluster) -> None:
    installation = cluster.installation
    port = free_port()
    live = f"http://127.0.0.1:{port}/live"
    operator = start(installation, (*BY_KOPF, f"--liveness={live}"), "kopf-run")
    cluster.add_nodes(1, gpus=2)
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("pod")
    with urllib.request.urlopen(live, timeout=5) as answer:
        assert json.load(answer) == {"ledger": "read"}
    cluster.clear()
    assert operator.terminate(EXIT_S) == 0, operator.log_text()
    assert "Traceback" not in operator.log_text()


@pytest.mark.parametrize("command", [BY_GPULEDGER, BY_KOPF], ids=["gpuledger", "kopf"])
def test_a_node_that_comes_and_goes_is_seen(cluster: Cluster, command: tuple[str, ...]) -> None:
    start(cluster.installation, command, f"seen-{command[1]}")
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.request("DELETE", f"/api/v1/nodes/{node.name}")
    cluster.wait(lambda: not cluster.cards(), "its cards are gone")


@pytest.mark.parametrize("command", [BY_GPULEDGER, BY_KOPF], ids=["gpuledger", "kopf"])
def test_an_operator_that_can_not_start_says_why_and_fails(
    installation: Installation, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The first thing that it needs is an account."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    env = {**os.environ, **environment(installation), "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if command is BY_GPULEDGER else 1)
    assert "no credentials for an API server" in done.stderr
    assert ("Traceback" in done.stderr) == (command is BY_KOPF)  # a person's mistake has a plain message
