"""The kubelet's list is read as seldom as can be, and never too early."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fakes.kubelet import Kubelet
from fakes.objects import GPU, a_pod_object
from gpuledger.agent._generated import pod_resources_pb2 as messages
from gpuledger.agent.kubelet import slot_owners
from gpuledger.agent.kubelet.slot_owners import ClaimInUse, ContainerSlots, PodResources
from gpuledger.model.errors import Unreachable

Until = Callable[[Callable[[], object]], Awaitable[None]]


async def nothing(resource: str, slots: list[str]) -> bytes:
    return b""


@pytest.fixture
async def client(kubelet: Kubelet) -> PodResources:
    await kubelet.start()
    kubelet.manager.take_list(GPU, [(f"slot-{number}", "Healthy") for number in range(9)])
    return PodResources(kubelet.pod_resources / "kubelet.sock")


async def test_rows_of_one_container_are_its_slots(kubelet: Kubelet, client: PodResources) -> None:
    await kubelet.manager.admit(a_pod_object("a", {GPU: "3"}), nothing)
    await kubelet.manager.admit(a_pod_object("plain", {}), nothing)
    found = await client.list()
    slots = frozenset({"slot-0", "slot-1", "slot-2"})
    assert found.rows == (ContainerSlots("default", "a", "main", GPU, slots),)
    assert found.pods == {("default", "a"), ("default", "plain")}
    assert found.owner(GPU, slots) == found.rows[0]
    assert found.owner(GPU, slots - {"slot-0"}) is None
    assert found.owner("other.dev/gpu", slots) is None


async def test_all_who_wait_are_served_by_one_read(kubelet: Kubelet, client: PodResources) -> None:
    """The socket allows a hundred reads a second, and as many containers can start at once."""
    await asyncio.gather(*(client.list() for _ in range(200)))
    assert kubelet.reads == client.reads == 1


async def test_who_asks_while_a_read_is_on_its_way_gets_one_that_begins_later(
    kubelet: Kubelet, client: PodResources, until: Until
) -> None:
    kubelet.answers = asyncio.Event()
    first = asyncio.create_task(client.list())
    await until(lambda: kubelet.reads == 1)
    await kubelet.manager.admit(a_pod_object("late", {GPU: "1"}), nothing)
    later = [asyncio.create_task(client.list()) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert kubelet.reads == 1
    kubelet.answers.set()
    assert (await first).rows == ()
    assert [row.pod for found in await asyncio.gather(*later) for row in found.rows] == ["late"] * 50
    assert kubelet.reads == 2


async def test_a_kubelet_that_is_gone_is_unreachable_and_found_again(kubelet: Kubelet, client: PodResources) -> None:
    await kubelet.stop()
    with pytest.raises(Unreachable, match="kubelet"):
        await client.list()
    await kubelet.start()
    assert (await client.list()).rows == ()


async def test_a_failed_read_fails_all_who_wait_for_it_and_nobody_else(root: Path) -> None:
    client = PodResources(root / "nobody.sock")
    found = await asyncio.gather(*(client.list() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(each, Unreachable) for each in found)
    assert client.reads == 1


async def test_an_error_that_nobody_waits_for_any_more_is_no_noise(root: Path) -> None:
    client = PodResources(root / "nobody.sock")
    waiting = asyncio.create_task(client.list())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.1)


async def test_who_gives_up_takes_the_read_from_nobody(kubelet: Kubelet, client: PodResources, until: Until) -> None:
    kubelet.answers = asyncio.Event()
    waiting = [asyncio.create_task(client.list()) for _ in range(2)]
    await until(lambda: kubelet.reads == 1)
    waiting[0].cancel()
    kubelet.answers.set()
    assert (await waiting[1]).rows == ()


async def test_two_pods_of_one_name_leave_doubt(kubelet: Kubelet, client: PodResources) -> None:
    """One ends while the other, created anew, begins: the list has no UIDs to tell them apart."""
    for uid in ("uid-old", "uid-new"):
        await kubelet.manager.admit(a_pod_object("a", {GPU: "1"}, uid=uid), nothing)
    found = await client.list()
    assert found.owner(GPU, frozenset({"slot-0"})) is None
    assert found.owner(GPU, frozenset({"slot-1"})) is None


def test_claims_are_listed_with_the_devices_that_their_containers_have() -> None:
    devices = [messages.CDIDevice(name=name) for name in ("gpuledger.dev/share=1", "vendor.com/nic=2")]
    claim = messages.DynamicResource(
        claim_name="made",
        claim_namespace="team",
        claim_resources=[messages.ClaimResource(cdi_devices=[device]) for device in devices],
    )
    containers = [messages.ContainerResources(name=name, dynamic_resources=[claim]) for name in ("main", "side")]
    pod = messages.PodResources(name="a", namespace="team", containers=containers)
    found = slot_owners._node_pods(messages.ListPodResourcesResponse(pod_resources=[pod]))
    names = frozenset({"gpuledger.dev/share=1", "vendor.com/nic=2"})
    assert found.claims == {ClaimInUse("team", "made", names)}
    assert not found.rows
