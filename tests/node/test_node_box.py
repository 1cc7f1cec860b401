"""The node itself: it runs pods, its programs can be restarted under them, and nothing of it stays behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import local_node
import node_box
from control_plane import ControlPlane
from local_node import Node
from node.pods import Pods, a_pod, wait_for

PODS_AT_ONCE = 10


def box_cgroups(plane: str) -> set[Path]:
    """Return the topmost cgroups of the boxes that belong to the control plane in a directory of that name."""
    pattern = f"{node_box.CGROUP_PREFIX}{plane.removeprefix('plane-')}-*"
    return {top for tree in node_box.hierarchies() for top in tree.boxes.glob(pattern)}


def living(pids: set[int]) -> set[int]:
    """Return those of the processes that have not ended; a zombie only waits for its parent's interest."""

    def state(pid: int) -> str:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return "X"

    return {pid for pid in pids if state(pid) not in "ZX"}


def commands(pids: set[int]) -> list[str]:
    """Return the names of the programs that processes run."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_pods_that_are_created_at_once_run_and_end(pods: Pods, node: Node) -> None:
    names = [f"ends-{number}" for number in range(PODS_AT_ONCE)]
    pods.create(*(a_pod(name, script="echo I am $NAME", env={"NAME": name}) for name in names))
    pods.wait_for_phase("Succeeded")
    assert {pods.log(node, name) for name in names} == {f"I am {name}\n" for name in names}


def test_a_containers_environment_can_be_read(pods: Pods, node: Node) -> None:
    pods.create(a_pod("one", env={"WHO": "one"}), a_pod("two", env={"WHO": "two"}))
    pods.wait_for_phase("Running")
    assert [pods.environment(node, name)["WHO"] for name in ("one", "two")] == ["one", "two"]
    assert node.container_execute(pods.namespace, "two", "main", "sh", "-c", "echo $WHO") == "two\n"


def test_a_pods_account_reaches_the_api_server_where_pods_look_for_it(
    pods: Pods, node: Node, plane: ControlPlane
) -> None:
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    pods.create(a_pod("asks"))
    pods.wait_for_phase("Running")
    environment = pods.environment(node, "asks")
    server = f"https://{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
    ca = pods.plane.directory / "ca-of-the-pod.crt"
    ca.write_text(node.container_execute(pods.namespace, "asks", "main", "cat", f"{account}/ca.crt"))
    token = node.container_execute(pods.namespace, "asks", "main", "cat", f"{account}/token")
    whoami = plane.kubectl(
        *("auth", "whoami", "--output=jsonpath={.status.userInfo}", f"--server={server}", f"--token={token}"),
        f"--certificate-authority={ca}",
        kubeconfig=Path(os.devnull),
    )
    assert f"system:serviceaccount:{pods.namespace}:default" in whoami
    assert node.name in whoami, "a pod's token names its node"


def test_a_token_can_be_bound_to_a_node_without_a_pod(plane: ControlPlane, node: Node, pods: Pods) -> None:
    kubeconfig = plane.kubeconfig_of_service_account(pods.namespace, "default", node=node.name)
    extra = plane.kubectl("auth", "whoami", "--output=jsonpath={.status.userInfo.extra}", kubeconfig=kubeconfig)
    assert re.search(rf'authentication.kubernetes.io/node-name":\["{node.name}"\]', extra)


def test_a_container_that_dies_is_started_again(pods: Pods, node: Node) -> None:
    pods.create(a_pod("dies", restart="Always"))
    pods.wait_for_phase("Running")
    (first,) = pods.statuses("dies")
    os.kill(node.container_pids(node.container_id(pods.namespace, "dies", "main"))[0], signal.SIGKILL)
    wait_for(lambda: pods.statuses("dies")[0]["restartCount"] == 1, "the restart")
    pods.wait_for_phase("Running")
    assert pods.statuses("dies")[0]["containerID"] != first["containerID"]


@pytest.mark.parametrize("program", [pytest.param("kubelet", marks=pytest.mark.long), "containerd"])
def test_running_pods_are_untouched_by_a_restart_of(program: str, pods: Pods, node: Node) -> None:
    names = [f"stays-{number}" for number in range(3)]
    pods.create(*(a_pod(name, restart="Always") for name in names))
    pods.wait_for_phase("Running")
    before = {name: node.container_pids(node.container_id(pods.namespace, name, "main")) for name in names}
    {"kubelet": node.restart_kubelet, "containerd": node.restart_containerd}[program]()
    pods.create(a_pod("new"))
    pods.wait_for_phase("Running")
    assert {name: node.container_pids(node.container_id(pods.namespace, name, "main")) for name in names} == before
    assert {status["restartCount"] for name in names for status in pods.statuses(name)} == {0}


def test_a_program_in_the_box_is_stopped_gently_or_killed_with_its_children(node: Node, tmp_path: Path) -> None:
    script = f"trap 'echo asked > {tmp_path}/asked; exit 3' TERM; sleep 60 & echo $! > /run/child; wait"
    program = node.run("gentle", ["sh", "-c", script], ready=lambda: node.path("/run/child").exists())
    assert program.terminate() == 3
    assert (tmp_path / "asked").exists()
    node.path("/run/child").unlink()
    program = node.run("rude", ["sh", "-c", script], ready=lambda: node.path("/run/child").exists())
    assert commands({program.program_pid}) == ["sh"]
    assert program.program_pid in node.pids()
    assert "sleep" in commands(node.pids())
    assert program.kill() == -signal.SIGKILL
    wait_for(lambda: "sleep" not in commands(node.pids()), "the end of the child")


def test_links_in_the_box_are_followed_in_the_box(node: Node, tmp_path: Path) -> None:
    node.path("/run/real").mkdir()
    node.execute("ln", "-s", "/run/real", "/run/link")
    node.path("/run/link/file").write_text("inside")
    assert node.execute("cat", "/run/real/file") == "inside"
    assert not Path("/run/real").exists()
    assert node.path("/var/run/cdi").is_dir()


@contextlib.contextmanager
def node_of_another_process(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, local_node.__file__],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("export KUBECONFIG="), process.communicate(timeout=60)
            yield process, Path(line.strip().partition("=")[2])
        finally:
            process.kill()


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_nothing_of_a_node_stays_behind(end: signal.Signals, plane: ControlPlane, node: Node, tmp_path: Path) -> None:
    mounts = Path("/proc/mounts").read_text()
    panic = Path("/proc/sys/kernel/panic").read_text()
    with node_of_another_process(tmp_path) as (process, kubeconfig):
        name = kubeconfig.parent.name
        plane.kubectl("create", "-f", "-", stdin=json.dumps(a_pod("stays", nodeName="node-1")), kubeconfig=kubeconfig)
        plane.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s", kubeconfig=kubeconfig)
        pids = {
            int(pid)
            for top in box_cgroups(name)
            for file in top.rglob("cgroup.procs")
            for pid in file.read_text().split()
        }
        assert len(pids) > 5, "init, containerd, kubelet, a shim, pause and the pod's own"
        process.send_signal(end)
        process.wait(20)
        wait_for(lambda: not living(pids), "the end of all that ran in the box")
    if end == signal.SIGKILL:  # what the kernel leaves, the next start of a node removes
        node_box.remove_abandoned_cgroups()
    assert box_cgroups(plane.directory.name)
    assert box_cgroups(name) == set()
    assert Path("/proc/mounts").read_text() == mounts
    assert Path("/proc/sys/kernel/panic").read_text() == panic
    assert node.execute("hostname").strip() == node.name, "another node is not touched"
