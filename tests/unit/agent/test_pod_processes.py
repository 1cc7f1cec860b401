"""A pod has processes as long as the kernel shows one in its control group of which anything is left."""

from pathlib import Path

import pytest

from gpuledger.agent.ended_pods import look_for_pods

UID, OTHER = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9"
CONTAINER = "c" * 64
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
GROUPS = {
    "systemd": f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope",
    "cgroupfs": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}",
    "version 1": f"11:memory:/kubepods/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/pod{UID}/{CONTAINER}",
    "seen from a container": f"0::/../../{SLICE}/cri-containerd-{CONTAINER}.scope",
    "no group of the pod": f"0::/system.slice/{CONTAINER}",
}


def process(proc: Path, pid: int, groups: str, *states: str) -> None:
    """Let there be a process, with threads in these states."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(groups + "\n")
    for number, state in enumerate(states or ("S",)):
        thread = proc / str(pid) / "task" / str(pid + number)
        thread.mkdir(parents=True)
        (thread / "stat").write_text(f"{pid + number} (od) d Z (name) {state} 1 1 0 -1 4194560\n")


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
def test_a_process_is_found_wherever_the_kubelet_puts_it(tmp_path: Path, groups: str) -> None:
    process(tmp_path, 7, groups)
    (tmp_path / "self").mkdir()
    assert look_for_pods(tmp_path, {UID: [CONTAINER], OTHER: []}).pods == {UID}


@pytest.mark.parametrize("states", ["Z", "X", "ZX"])
def test_a_process_that_has_ended_and_was_not_reaped_holds_nothing(tmp_path: Path, states: str) -> None:
    process(tmp_path, 7, GROUPS["systemd"], *states)
    assert look_for_pods(tmp_path, {UID: []}).pods == set()


@pytest.mark.parametrize("states", ["D", "ZD", "ZZS", "R", "T"])
def test_a_thread_that_hangs_keeps_a_process_that_has_ended_otherwise(tmp_path: Path, states: str) -> None:
    process(tmp_path, 7, GROUPS["systemd"], *states)
    assert look_for_pods(tmp_path, {UID: []}).pods == {UID}


def test_processes_of_the_node_and_of_other_pods_are_nobodys(tmp_path: Path) -> None:
    process(tmp_path, 1, "0::/init.scope")
    process(tmp_path, 2, GROUPS["systemd"])
    assert look_for_pods(tmp_path, {OTHER: ["d" * 64]}).pods == set()


def test_a_process_that_ends_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    process(tmp_path, 7, GROUPS["systemd"])
    for file in ("stat",):
        (tmp_path / "7" / "task" / "7" / file).unlink()
    (tmp_path / "8").mkdir()
    assert look_for_pods(tmp_path, {UID: []}).pods == set()


def test_it_is_told_whether_pods_have_groups_of_their_own(tmp_path: Path) -> None:
    process(tmp_path, 1, "0::/init.scope")
    process(tmp_path, 2, GROUPS["no group of the pod"])
    assert not look_for_pods(tmp_path, {UID: [CONTAINER]}).sees_pods
    process(tmp_path, 3, GROUPS["systemd"])
    assert look_for_pods(tmp_path, {OTHER: []}).sees_pods


@pytest.mark.parametrize("unread", ["cgroup", "task/7/stat"])
def test_a_process_that_cannot_be_looked_at_is_not_taken_for_one_that_has_ended(tmp_path: Path, unread: str) -> None:
    """As for want of a file descriptor or of memory: then nothing is known, and no card may be given away."""
    process(tmp_path, 7, GROUPS["systemd"])
    file = tmp_path / "7" / unread
    file.unlink()
    file.mkdir()  # reading it is an error, and not that it is missing
    with pytest.raises(IsADirectoryError):
        look_for_pods(tmp_path, {UID: []})
