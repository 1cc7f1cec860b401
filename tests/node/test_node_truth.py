"""What the node knows of its cards reaches the ledger, and nothing is written when nothing changes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cluster.cluster import COUNT, MEMORY
from control_plane import AuditEvent
from effort import times
from fakes.nvml.fake_nvml import GONE, Failure, Process
from node.gpu_node import AGENT_ACCOUNT, GpuNode, gpu_pod, one_card

IDLE_S = times(30, 120)
QUIET_S = 3.0
AGENT = f"system:serviceaccount:gpuledger-system:{AGENT_ACCOUNT}"
OURS = (AGENT, "system:serviceaccount:gpuledger-system:gpuledger")


@pytest.fixture
def faulty(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with an agent for which a card is well again soon after a fault, and a driver that can break."""
    gpu.kill_agent()
    gpu.change_settings(fault_quiet_s=QUIET_S)
    gpu.start_agent()
    gpu.wait_ready()
    healthy = gpu.state
    yield gpu
    gpu.show(replace(healthy, events=gpu.state.events))
    gpu.wait_ready()


@pytest.mark.promise("agent crashes")
def test_a_card_with_a_fault_takes_no_pods_and_comes_back_and_its_holders_are_told(faulty: GpuNode) -> None:
    gpu, (first, *_) = faulty, faulty.state.cards
    gpu.create(gpu_pod("holder", one_card(), annotations={"nvidia.com/use-gpuuuid": first.uuid}))
    gpu.wait_running("holder")
    before = gpu.identities("holder")
    gpu.show(gpu.state.with_event(first.uuid, 94))
    gpu.cluster.wait(lambda: first.uuid not in gpu.open_cards(), "the card takes no pods")
    reason = gpu.cluster.cards()[first.uuid]["status"]["reason"]
    assert re.search(r"\b94\b", reason), reason
    gpu.cluster.wait(lambda: any(first.uuid in text for text in gpu.cluster.messages("holder")), "the holder is told")
    gpu.cluster.wait(lambda: first.uuid in gpu.open_cards(), "it is well again")
    assert gpu.identities("holder") == before


def test_a_programs_own_fault_is_not_the_cards(faulty: GpuNode) -> None:
    first, second, *_ = (card.uuid for card in faulty.state.cards)
    faulty.show(faulty.state.with_event(first, 31).with_event(second, 94))
    faulty.cluster.wait(lambda: second not in faulty.open_cards(), "the second card takes no pods")
    assert first in faulty.open_cards()


def test_a_card_that_the_driver_loses_is_out_until_it_answers_again(faulty: GpuNode) -> None:
    lost = faulty.state.cards[1].uuid
    healthy = faulty.state
    faulty.show(replace(healthy, failures=(Failure(15, card=lost),)).with_event(lost, 94))
    faulty.cluster.wait(lambda: lost not in faulty.open_cards(), "the card takes no pods")
    others = {card.uuid for card in healthy.cards} - {lost}
    assert others <= faulty.open_cards()
    faulty.show(replace(healthy, events=faulty.state.events))
    faulty.cluster.wait(lambda: lost in faulty.open_cards(), "it is well again")


def test_without_its_driver_a_node_takes_no_pods_and_its_pods_go_on(faulty: GpuNode) -> None:
    gpu, healthy = faulty, faulty.state
    gpu.create(gpu_pod("stays", one_card()))
    gpu.wait_running("stays")
    before = gpu.identities("stays")
    gpu.show(replace(healthy, driver_error=GONE))
    gpu.cluster.wait(lambda: not gpu.open_cards(), "no card takes pods")
    gpu.create(gpu_pod("waits", one_card()))
    gpu.cluster.wait_refused("waits", "GPU node agent is not ready")
    gpu.show(healthy)
    gpu.wait_running("waits")
    gpu.check("stays", "waits")
    assert gpu.identities("stays") == before


def test_a_process_on_a_card_of_which_its_pod_has_no_share_is_found(gpu: GpuNode) -> None:
    """Whoever gets at the device files can use a card; the ledger does not stop that, but it shows."""
    gpu.create(gpu_pod("honest", one_card()), gpu_pod("thief", {}, schedulerName="default-scheduler"))
    gpu.wait_running("honest", "thief")
    held = gpu.told("honest")[0][0]
    pids = {name: gpu.pid_in_box(name) for name in ("honest", "thief")}
    gpu.show(replace(gpu.state, processes=tuple(Process(held, pid, 500) for pid in pids.values())))
    thief = gpu.cluster.pod("thief")["metadata"]["uid"]
    gpu.cluster.wait(
        lambda: any(thief in text and held in text for text in gpu.cluster.messages(gpu.node.name, "Node")),
        "the node's events name the pod and the card",
        timeout_s=90,
    )
    honest = gpu.cluster.pod("honest")["metadata"]["uid"]
    metrics = gpu.agent_metrics()
    memory = 500 * 2.0**20
    name = "gpuledger_agent_process_memory_bytes"
    assert metrics[f'{name}{{has_share="true",pod_uid="{honest}",uuid="{held}"}}'] == memory
    assert metrics[f'{name}{{has_share="false",pod_uid="{thief}",uuid="{held}"}}'] == memory
    gpu.show(replace(gpu.state, processes=()))


def by_scheduler(event: AuditEvent) -> bool:
    return event.resource == "events" and event.agent.startswith("kube-scheduler/")


def test_being_idle_costs_no_write_and_next_to_no_cpu_and_files_of_pods_that_are_gone_go(
    gpu: GpuNode, say: Callable[[str], None]
) -> None:
    kept = gpu.create(*(gpu_pod(f"idle-{n}", {COUNT: 1, MEMORY: 1000}) for n in range(6)))
    gone = gpu.create(*(gpu_pod(f"gone-{n}", one_card()) for n in range(3)))
    gpu.wait_running(*kept, *gone)
    gpu.remove(*gone)
    gpu.cluster.settle()
    offset, cpu_s, wakes, begin_s = gpu.plane.audit_offset(), gpu.agent_cpu_s(), gpu.agent_wakes(), time.monotonic()
    time.sleep(IDLE_S)
    passed_s = time.monotonic() - begin_s
    spent, wakes_per_s = (gpu.agent_cpu_s() - cpu_s) / passed_s, (gpu.agent_wakes() - wakes) / passed_s
    # kube-scheduler has the operator's account. Minutes after it has refused pods for the last time, it closes the
    # series of their Events, as it does for all pods.
    writes = [event for event in gpu.plane.api_writes(offset) if event.user in OURS and not by_scheduler(event)]
    requests: list[AuditEvent] = [event for event in gpu.plane.audit_events(offset) if event.user == AGENT]
    say(
        f"idle for {IDLE_S:g} s: {len(writes)} writes of ours, {len(requests)} requests of the agent, "
        f"agent {spent:.2%} of a core, {wakes_per_s:.0f} wake-ups per second, "
        f"{gpu.agent_memory_mib():.0f} MiB with its parent"
    )
    assert writes == []
    # Wake-ups are counted. What each costs depends on the machine: half of this by itself, more beside other tests.
    assert wakes_per_s < 60
    assert spent < 0.01
    wanted = {f"default/{name}" for name in kept}
    gpu.cluster.wait(lambda: _pods_with_files(gpu) == wanted, "files of pods that are gone go", timeout_s=120)


def _pods_with_files(gpu: GpuNode) -> set[str]:
    return {file["devices"][0]["annotations"]["gpuledger.dev/pod"] for file in gpu.grant_files().values()}
