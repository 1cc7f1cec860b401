"""The control plane itself: nothing stays behind, accounts are bound by RBAC, and the audit log names them."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import control_plane
from control_plane import ControlPlane, ControlPlaneError

PROGRAMS = {"etcd", "kube-apiserver", "kube-controller-manager"}
TIMEOUT_S = 20.0


@contextlib.contextmanager
def running_in_another_process(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        # Whoever runs the tests in the background has them ignore SIGINT, and children inherit that.
        ["env", "--default-signal=INT", sys.executable, control_plane.__file__],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_S:g} s"
        time.sleep(0.02)


def wait_until_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("export KUBECONFIG="), line


def children_of(pid: int) -> dict[int, str]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/comm").read_text().strip() for child in listed}


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie only waits for somebody to ask for its exit status


def planes_in(temporary: Path) -> set[str]:
    return {path.name for path in temporary.glob("gpuledger-*/plane-*")}


def test_no_process_survives_a_killed_parent(plane: ControlPlane, tmp_path: Path) -> None:
    with running_in_another_process(tmp_path) as parent:
        wait_until_started(parent)
        children = children_of(parent.pid)
        assert {name[:15] for name in PROGRAMS} == set(children.values())
        parent.kill()
        parent.wait(TIMEOUT_S)
        wait_for(lambda: not any(map(is_running, children)), "the end of all children")


def test_an_interrupt_stops_everything_and_cleans_up(plane: ControlPlane, tmp_path: Path) -> None:
    base = tmp_path / f"gpuledger-{os.getuid()}"
    left_behind, in_use = base / "plane-1-left", base / "plane-1-used"
    left_behind.mkdir(parents=True)
    in_use.mkdir()
    lock = os.open(in_use, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with running_in_another_process(tmp_path) as parent:
            wait_until_started(parent)
            children = children_of(parent.pid)
            assert not left_behind.exists(), "the directory of a control plane that was killed stays for ever"
            assert len(planes_in(tmp_path)) == 2
            parent.send_signal(signal.SIGINT)
            _, errors = parent.communicate(timeout=TIMEOUT_S)
            assert parent.returncode == 0
            assert "Traceback" not in errors
    finally:
        os.close(lock)
    assert children
    assert not any(map(is_running, children))
    assert planes_in(tmp_path) == {in_use.name}


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interrupt_during_the_start_leaves_nothing(plane: ControlPlane, tmp_path: Path, end: signal.Signals) -> None:
    with running_in_another_process(tmp_path) as parent:
        wait_for(lambda: bool(list(tmp_path.glob("*/*/logs/kube-apiserver.log"))), "the start of the API server")
        children = children_of(parent.pid)
        parent.send_signal(end)
        _, errors = parent.communicate(timeout=TIMEOUT_S)
    assert parent.returncode == 0
    assert "Traceback" not in errors
    # A child that was being started just then dies of its parent's death, a moment later.
    wait_for(lambda: not any(map(is_running, children)), "the end of all children")
    assert not planes_in(tmp_path)


@pytest.fixture
def reader_of_config_maps(plane: ControlPlane, namespace: str) -> Path:
    plane.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    plane.kubectl("create", "role", "reader", "-n", namespace, "--verb=get,list", "--resource=configmaps")
    plane.kubectl(
        "create", "rolebinding", "reader", "-n", namespace, "--role=reader", f"--serviceaccount={namespace}:reader"
    )
    return plane.kubeconfig_of_service_account(namespace, "reader")


def test_a_service_account_may_do_what_its_role_says(
    plane: ControlPlane, namespace: str, reader_of_config_maps: Path
) -> None:
    plane.kubectl("get", "configmaps", "-n", namespace, kubeconfig=reader_of_config_maps)
    with pytest.raises(ControlPlaneError, match="cannot list resource"):
        plane.kubectl("get", "configmaps", "-n", "default", kubeconfig=reader_of_config_maps)


def test_the_audit_log_names_the_account_of_a_refused_write(
    plane: ControlPlane, namespace: str, reader_of_config_maps: Path
) -> None:
    begin = plane.audit_offset()
    plane.kubectl("create", "configmap", "mine", "-n", namespace, kubeconfig=reader_of_config_maps, check=False)
    plane.kubectl("create", "configmap", "mine", "-n", namespace)

    def seen() -> set[tuple[str, int]]:
        writes = plane.api_writes(begin)
        return {
            (event.user, event.code)
            for event in writes
            if (event.resource, event.namespace) == ("configmaps", namespace)
        }

    expected = {(f"system:serviceaccount:{namespace}:reader", 403), ("admin", 201)}
    wait_for(lambda: seen() >= expected, "both writes in the audit log")
    assert seen() == expected


def test_an_etcd_that_was_killed_comes_back_with_what_it_had_stored() -> None:
    with ControlPlane.run(durable=True) as plane:  # etcd is killed
        plane.kubectl("create", "configmap", "before")
        plane.stop_etcd()
        with pytest.raises(ControlPlaneError):
            plane.kubectl("create", "configmap", "meanwhile", "--request-timeout=1s")
        plane.start_etcd()
        stored = ("get", "configmap", "before", "--output=name")
        wait_for(lambda: plane.kubectl(*stored, check=False) == "configmap/before\n", "what was stored")
        plane.kubectl("create", "configmap", "after")
        plane.ensure_alive()


def test_a_program_that_dies_is_reported_with_its_last_words(plane: ControlPlane) -> None:
    with pytest.raises(ControlPlaneError, match=r"(?s)dying ended with status 3 .*last words"):
        plane.start_program("dying", ["sh", "-c", "echo last words; exit 3"], ready=lambda: False)


def test_a_program_that_ignores_being_asked_is_killed_with_its_children(plane: ControlPlane) -> None:
    program = plane.start_program(
        "stubborn", ["sh", "-c", "trap '' TERM; sleep 60 & echo $!; while :; do sleep 60; done"]
    )
    wait_for(lambda: bool(program.log_text().strip()), "the child's id in the log")
    child = int(program.log_text())
    assert program.terminate(grace_s=0.1) == -signal.SIGKILL
    wait_for(lambda: not is_running(child), "the end of the child")
