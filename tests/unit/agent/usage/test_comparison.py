"""Who uses a card is known by control group, and who has no share of it is told once."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.grants import a_grant
from gpuledger.agent.devices.source import DeviceProcess
from gpuledger.agent.usage.regions import ProcessesUse
from gpuledger.agent.usage.report import ASK_AGAIN_S, REPORT_AGAIN_S, Comparison, ContainerOfPod, PodUsage
from gpuledger.model.errors import BadInput, Unreachable

UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
OTHER = "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9"


class Machine:
    """Processes, grants, a ledger, and what was told."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.grants = [a_grant(pod_uid=UID, uuids=("GPU-1",))]
        self.ledger: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str]] = []
        self.told: list[str] = []
        self.error: Exception | None = None
        self.usage = Comparison(lambda: self.grants, self._holds, self.told.append, proc)

    def process(self, pid: int, uid: str = "", uuid: str = "GPU-1", memory_mib: int | None = 100) -> DeviceProcess:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        group = f"/kubepods/burstable/pod{uid}/{'c' * 64}" if uid else "/system.slice/monitor.service"
        (folder / "cgroup").write_text(f"0::{group}\n")
        return DeviceProcess(pid=pid, uuid=uuid, memory_mib=memory_mib)

    async def _holds(self, uid: str, uuid: str) -> bool:
        self.asked.append((uid, uuid))
        if self.error:
            raise self.error
        return (uid, uuid) in self.ledger


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_memory_and_processes_of_a_pod_are_added_up_for_each_card(machine: Machine) -> None:
    machine.grants = [a_grant(pod_uid=UID, uuids=("GPU-1", "GPU-2"))]
    await machine.usage.compare(
        [machine.process(1, UID), machine.process(2, UID, memory_mib=None), machine.process(3, UID, "GPU-2", 7)]
    )
    assert machine.usage.uses == (PodUsage("GPU-1", UID, 100, 2, True), PodUsage("GPU-2", UID, 7, 1, True))


async def test_processes_of_a_pod_that_serves_the_node_are_the_nodes_own(machine: Machine) -> None:
    machine.usage = Comparison(list, machine._holds, machine.told.append, machine.proc, node_pods=lambda: {OTHER})
    await machine.usage.compare([machine.process(1, OTHER), machine.process(2)])
    assert machine.usage.uses == (PodUsage("GPU-1", "", 200, 2, True),)
    assert (machine.asked, machine.told) == ([], [])


async def test_a_card_is_unclear_while_one_of_its_processes_may_be_any_containers(machine: Machine) -> None:
    await machine.usage.compare([machine.process(1, UID), machine.process(2)])
    assert machine.usage.unclear == frozenset(), "the monitor of the node is no container"
    await machine.usage.compare([machine.process(1, UID), DeviceProcess(pid=99, uuid="GPU-2", memory_mib=1)])
    assert machine.usage.unclear == {"GPU-2"}


async def test_what_a_grant_explains_is_not_asked_of_the_ledger(machine: Machine) -> None:
    await machine.usage.compare([machine.process(1, UID), machine.process(2)])
    assert (machine.asked, machine.told) == ([], [])


async def test_a_share_that_only_the_ledger_knows_is_no_finding(machine: Machine) -> None:
    machine.ledger = {(OTHER, "GPU-1")}
    await machine.usage.compare([machine.process(1, OTHER)])
    assert machine.asked == [(OTHER, "GPU-1")]
    assert machine.told == []
    assert machine.usage.uses[0].allowed


async def test_a_pod_without_a_share_is_told_once_while_it_goes_on(machine: Machine) -> None:
    for _ in range(5):
        await machine.usage.compare([machine.process(1, OTHER), machine.process(2, OTHER)])
    assert len(machine.told) == 1
    assert OTHER in machine.told[0]
    assert "GPU-1" in machine.told[0]
    assert not machine.usage.uses[0].allowed


async def test_a_share_of_another_card_explains_nothing(machine: Machine) -> None:
    await machine.usage.compare([machine.process(1, UID, "GPU-2")])
    assert len(machine.told) == 1


async def test_who_begins_again_is_told_again_after_an_hour_and_not_each_time(machine: Machine) -> None:
    for _ in range(5):
        for processes in ([machine.process(1, OTHER)], []):
            await machine.usage.compare(processes)
    assert len(machine.told) == 1
    await asyncio.sleep(REPORT_AGAIN_S)
    await machine.usage.compare([machine.process(1, OTHER)])
    assert len(machine.told) == 2


async def test_a_card_that_can_not_be_read_ends_nothing(machine: Machine) -> None:
    machine.error = BadInput("GPUAllocation gpu-1 lacks 'spec'")
    await machine.usage.compare([machine.process(1, OTHER)])
    assert machine.told == []


async def test_a_server_that_does_not_answer_makes_no_finding_and_no_second_one(machine: Machine) -> None:
    machine.error = Unreachable("no answer")
    await machine.usage.compare([machine.process(1, OTHER)])
    assert machine.told == []
    for error in (None, Unreachable("no answer"), None):
        machine.error = error
        await machine.usage.compare([machine.process(1, OTHER)])
    assert len(machine.told) == 1


async def test_processes_of_the_node_itself_are_its_own_matter(machine: Machine) -> None:
    await machine.usage.compare([machine.process(1), DeviceProcess(pid=99, uuid="GPU-1", memory_mib=5)])
    assert machine.usage.uses == (PodUsage("GPU-1", "", 105, 2, True),)
    assert machine.told == []


async def test_a_container_does_not_choose_whose_it_is(machine: Machine) -> None:
    process = machine.process(1, OTHER)
    path = machine.proc / "1" / "cgroup"
    path.write_text(f"0::/kubepods/pod{OTHER}/{'c' * 64}/kubepods/pod{UID}/x\n")
    await machine.usage.compare([process])
    assert [use.pod_uid for use in machine.usage.uses] == [OTHER]
    assert len(machine.told) == 1


async def test_a_container_is_looked_up_where_the_kubelet_keeps_no_groups_for_pods(machine: Machine) -> None:
    """Once for all, and one that is in no pod again after some minutes: its kubelet may not have told yet."""
    known, asked = {"a" * 64: ContainerOfPod(UID, "main")}, []

    async def containers() -> dict[str, ContainerOfPod]:
        asked.append(True)
        return dict(known)

    usage = Comparison(lambda: machine.grants, machine._holds, machine.told.append, machine.proc, containers)
    processes = [machine.process(pid) for pid in (1, 2, 3)]
    for pid, container in {1: "a" * 64, 2: "b" * 64, 3: "c" * 64}.items():
        (machine.proc / str(pid) / "cgroup").write_text(f"5:pids:/k8s.io/{container}\n")
    for _ in range(3):
        await usage.compare(processes)
    assert usage.uses == (PodUsage("GPU-1", "", 200, 2, True), PodUsage("GPU-1", UID, 100, 1, True))
    assert len(asked) == 3
    known["b" * 64] = ContainerOfPod(OTHER, "main")
    await asyncio.sleep(ASK_AGAIN_S)
    await usage.compare(processes)
    assert PodUsage("GPU-1", OTHER, 100, 1, False) in usage.uses


async def test_what_is_used_counts_for_the_container_that_has_the_card(machine: Machine) -> None:
    processes = [machine.process(1, UID), machine.process(2, UID, memory_mib=None), machine.process(3)]
    processes[0] = replace(processes[0], cores_percent=60)
    processes[1] = replace(processes[1], cores_percent=50)
    await machine.usage.compare(processes)
    assert machine.usage.of_containers == {("GPU-1", UID, "main"): ProcessesUse(100, 100)}
    await machine.usage.compare([machine.process(2, UID, memory_mib=None)])
    assert machine.usage.of_containers == {("GPU-1", UID, "main"): ProcessesUse(None, None)}


@pytest.mark.parametrize("group", [f"/kubepods/pod{UID}/", "/k8s.io/"], ids=["groups of pods", "none"])
async def test_what_a_container_uses_by_a_claim_counts_for_the_claim(machine: Machine, group: str) -> None:
    """Also where another container of the pod has a part of the card by its own resources."""
    machine.grants = [a_grant(name, pod_uid=UID, container=name) for name in ("main", "c0/gpu")]
    known = {"a" * 64: ContainerOfPod(UID, "claiming"), "b" * 64: ContainerOfPod(UID, "main")}

    async def containers() -> dict[str, ContainerOfPod]:
        return known

    usage = Comparison(lambda: machine.grants, machine._holds, machine.told.append, machine.proc, containers)
    processes = [machine.process(1, memory_mib=70), machine.process(2, memory_mib=7)]
    for pid, container in {1: "a" * 64, 2: "b" * 64}.items():
        (machine.proc / str(pid) / "cgroup").write_text(f"0::{group}{container}\n")
    await usage.compare(processes)
    assert usage.of_containers == {
        ("GPU-1", UID, "c0/gpu"): ProcessesUse(70, None),
        ("GPU-1", UID, "main"): ProcessesUse(7, None),
    }


async def test_of_several_containers_with_a_card_it_is_the_one_that_the_api_server_names(machine: Machine) -> None:
    machine.grants = [a_grant(name, pod_uid=UID, container=name) for name in ("main", "second")]
    known = {"a" * 64: ContainerOfPod(UID, "second"), "b" * 64: ContainerOfPod(OTHER, "main")}

    async def containers() -> dict[str, ContainerOfPod]:
        return known

    usage = Comparison(lambda: machine.grants, machine._holds, machine.told.append, machine.proc, containers)
    processes = [machine.process(pid) for pid in (1, 2, 3)]
    for pid, container in {1: "a" * 64, 2: "b" * 64, 3: "c" * 64}.items():
        (machine.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/{container}\n")
    await usage.compare(processes)
    assert usage.of_containers == {("GPU-1", UID, "second"): ProcessesUse(100, None)}
    assert usage.uses == (PodUsage("GPU-1", UID, 300, 3, True),)
