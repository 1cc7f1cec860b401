"""One way to name a cluster, for every command: contexts, several kubeconfig files, programs that log in, no cluster.

With kubectl on the PATH, which then reads the files, and without, when we read them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_binaries
from cluster.cluster import MEMORY, Cluster, pod
from effort import times

Json = dict[str, Any]

NOWHERE = "http://127.0.0.1:1"
"""The other cluster of each table: a command that takes it reports that nothing answers."""


@dataclass(frozen=True)
class Command:
    """A command line, and what its output has if it has reached the cluster."""

    argv: str
    shows: str
    status: int = 0
    needs_kubectl: bool = False


COMMANDS = [
    Command("top", "named-1"),
    Command("get pod web", "named-1"),
    Command("explain pod web", "no operator leads", status=2, needs_kubectl=True),
    Command("history pods", "no operator leads", status=2, needs_kubectl=True),
    Command("cordon node named-1", "takes no new pods"),
    Command("uncordon node/named-1", "takes new pods again"),
    Command("doctor --as-init", ""),
    Command("audit --settle-s 0", "Ledger, pods and nodes agree."),
    Command("migrate --dry-run", "Nothing to migrate"),
    Command("inspect pods", "Pod default/web"),
    Command("simulate --from-cluster --policy binpack", "No pod here waits"),
    Command("fake-nodes --count 1 --gpus 1 --prefix named", "1 nodes with 1 cards registered"),
]
WITHOUT_FILES = [*(each.argv for each in COMMANDS), "run", "agent --node-name here"]
"""Those that run for ever end at once, too, where no cluster is named."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("naming")


def config(server: Json, user: Json, *, current: str, name: str = "real") -> Json:
    """Return a kubeconfig with a context for the real cluster, under this name, and one that leads nowhere."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [{"name": name, "cluster": server}, {"name": "nowhere", "cluster": {"server": NOWHERE}}],
        "users": [{"name": name, "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}},
            {"name": "nowhere", "context": {"cluster": "nowhere", "user": name}},
        ],
    }


def by_context(server: Json, user: Json, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Name a context that is not the current one, which leads nowhere."""
    file = written(directory / "two-contexts", config(server, user, current="nowhere"))
    return ["--kubeconfig", str(file), "--context", "real"], {}


def by_two_files(server: Json, user: Json, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Name several files: the first one's context counts, a later one has what it is, and one is missing."""
    whole = config(server, user, current="nowhere")
    first = written(directory / "first", {"apiVersion": "v1", "kind": "Config", "current-context": "real"})
    second = written(directory / "second", whole)
    return [], {"KUBECONFIG": f"{first}:{directory / 'missing'}:{second}"}


def by_a_program(server: Json, user: Json, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Let a program give the token, as clouds' kubeconfigs do."""
    version = "client.authentication.k8s.io/v1"
    status = {"token": user["token"], "expirationTimestamp": "2099-01-01T00:00:00Z"}
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    program = directory / "log-in"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    asks = {"exec": {"apiVersion": version, "command": str(program), "interactiveMode": "Never"}}
    return [], {"KUBECONFIG": str(written(directory / "exec", config(server, asks, current="real")))}


WAYS = [by_context, by_two_files, by_a_program]
WITH_EVERY_COMMAND = [(by_context, True), (by_two_files, False)]
"""Way, and whether kubectl is there. In the other combinations, each run tries every fourth command."""


def written(file: Path, content: Json) -> Path:
    file.write_text(yaml.safe_dump(content))
    return file


def run(
    directory: Path, argv: list[str], variables: Mapping[str, str], kubectl: bool
) -> subprocess.CompletedProcess[str]:
    """Run a command of somebody with an empty home directory, in no pod."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    path = f"{ensure_binaries()}:/usr/bin:/bin" if kubectl else str(home)
    unset = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GPULEDGER_URL", "GPULEDGER_SETTINGS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {
        "PATH": path,
        "HOME": str(home),
        "KUBERC": "off",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "gpuledger", *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("kubectl", [True, False], ids=["kubectl", "alone"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_command_reaches_the_cluster_that_is_named(
    cluster: Cluster,
    directory: Path,
    way: Callable[[Json, Json, Path], tuple[list[str], dict[str, str]]],
    kubectl: bool,
) -> None:
    admin = yaml.safe_load(cluster.plane.kubeconfig.read_text())
    options, variables = way(admin["clusters"][0]["cluster"], admin["users"][0]["user"], directory)
    cluster.installation.fake_nodes("--count", "1", "--gpus", "1", "--prefix", "named")
    cluster.create(pod("web", {"nvidia.com/gpu": 1, MEMORY: 4000}))
    cluster.wait_bound("web")
    failed = {}
    for command in COMMANDS if (way, kubectl) in WITH_EVERY_COMMAND else COMMANDS[:: times(4, 1)]:
        if command.needs_kubectl and not kubectl:
            continue
        done = run(directory, [*command.argv.split(), *options], variables, kubectl)
        if done.returncode != command.status or command.shows not in done.stdout + done.stderr:
            failed[command.argv] = (done.returncode, done.stdout[-300:], done.stderr[-600:])
    assert failed == {}


@pytest.mark.parametrize("kubectl", [True, False], ids=["kubectl", "alone"])
@pytest.mark.parametrize("argv", WITHOUT_FILES)
def test_without_a_cluster_every_command_says_so_in_one_line_and_ends_with_two(
    directory: Path, argv: str, kubectl: bool
) -> None:
    done = run(directory, argv.split(), {}, kubectl)
    (line,) = done.stderr.splitlines()
    if argv.split()[0] in ("explain", "history") and not kubectl:
        assert "kubectl is not on the PATH" in line or "no cluster is named" in line
    else:
        assert line.startswith("Error: no cluster is named: no kubeconfig, and not in a pod.")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("kubectl", [True, False], ids=["kubectl", "alone"])
@pytest.mark.parametrize("argv", ["top", "inspect nodes", "audit", "migrate", "doctor", "get pod x", "cordon node x"])
def test_a_cluster_that_does_not_answer_is_one_line_and_ends_with_two(
    directory: Path, argv: str, kubectl: bool
) -> None:
    file = written(directory / "nowhere", config({"server": NOWHERE}, {}, current="nowhere"))
    done = run(directory, [*argv.split(), "--kubeconfig", str(file)], {}, kubectl)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "--kubeconfig, --context" in line
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("kubectl", [True, False], ids=["kubectl", "alone"])
def test_what_is_not_there_is_named(cluster: Cluster, directory: Path, kubectl: bool) -> None:
    known = {"KUBECONFIG": str(cluster.plane.kubeconfig)}
    for argv, said in {
        "inspect pod/nosuch": "there is no pod 'nosuch' in namespace 'default'; -n names another",
        "inspect pod nosuch -n kube-system": "there is no pod 'nosuch' in namespace 'kube-system'",
        "inspect node nosuch": "there is no node 'nosuch'",
        "get pod nosuch": "there is no pod 'nosuch' in namespace 'default'",
        "top --context nosuch": "nosuch",
        "audit --kubeconfig /nosuch": "/nosuch",
    }.items():
        done = run(directory, argv.split(), known, kubectl)
        (line,) = done.stderr.splitlines()
        assert said in line
        assert "CRD" not in line
        assert (done.returncode, done.stdout) == (2, "")
