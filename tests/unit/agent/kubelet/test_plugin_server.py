"""A plugin is known to its kubelet, whatever happens to either of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from fakes.kubelet import Kubelet
from fakes.objects import GPU, a_pod_object
from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.kubelet import device_plugin as plugin_server
from gpuledger.agent.kubelet.device_plugin import DevicePlugin, VendorSlots
from gpuledger.model.errors import StartRefused

Until = Callable[[Callable[[], object]], Awaitable[None]]

ONE = {GPU: "1"}


class Node:
    """A plugin on its socket, and what it was asked."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.slots = VendorSlots()
        self.slots.offer(3)
        self.allocated: list[tuple[str, frozenset[str]]] = []
        self.started: list[tuple[str, frozenset[str]]] = []
        self.refusal: Exception | None = None
        self.plugin = self.of_resource(GPU, kubelet.plugins)

    def of_resource(self, resource: str, directory: Path) -> DevicePlugin:
        """Return another plugin that asks the same."""
        return DevicePlugin(resource, directory, self.slots, self._allocate, self._start)

    def _allocate(self, resource: str, slots: frozenset[str]) -> messages.ContainerAllocateResponse:
        self.allocated.append((resource, slots))
        name = f"gpuledger.dev/share={min(slots)}"
        return messages.ContainerAllocateResponse(cdi_devices=[messages.CDIDevice(name=name)])

    async def _start(self, resource: str, slots: frozenset[str]) -> None:
        self.started.append((resource, slots))
        if self.refusal:
            raise self.refusal


@pytest.fixture
async def node(kubelet: Kubelet) -> AsyncIterator[Node]:
    """Return a plugin that its kubelet has met; what it was told until then is forgotten."""
    await kubelet.start()
    found = Node(kubelet)
    async with serving(found.plugin):
        async with asyncio.timeout(20):
            while not offers(kubelet, 3)():  # noqa: ASYNC110 - of another program, as it were
                await asyncio.sleep(0.005)
        yield found


@contextlib.asynccontextmanager
async def serving(*plugins: DevicePlugin) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(plugin.run()) for plugin in plugins]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def offers(kubelet: Kubelet, slots: int) -> Callable[[], bool]:
    return lambda: kubelet.manager.capacity(GPU)[1] == slots


async def test_a_plugin_registers_and_its_slots_can_be_given_out(kubelet: Kubelet, node: Node, until: Until) -> None:
    request = kubelet.endpoints[GPU].request
    assert (request.version, request.endpoint) == ("v1beta1", "gpuledger-nvidia.com_gpu.sock")
    assert request.options.pre_start_required
    assert kubelet.endpoints[GPU].options == request.options
    assert not request.options.get_preferred_allocation_available
    assert kubelet.registrations[GPU] == 1
    assert node.plugin.connected


async def test_several_resources_have_a_plugin_each(kubelet: Kubelet, until: Until) -> None:
    await kubelet.start()
    node = Node(kubelet)
    async with serving(node.plugin, node.of_resource("volcano.sh/vgpu-number", kubelet.plugins)):
        await until(lambda: {GPU, "volcano.sh/vgpu-number"} <= set(kubelet.endpoints))


async def test_a_kubelet_that_comes_later_is_found(kubelet: Kubelet, until: Until, looks: list[Path]) -> None:
    node = Node(kubelet)
    async with serving(node.plugin):
        await until(lambda: len(looks) > 10)
        assert not node.plugin.connected
        await kubelet.start()
        await until(offers(kubelet, 3))


async def test_a_kubelet_that_starts_anew_is_registered_with_anew(kubelet: Kubelet, node: Node, until: Until) -> None:
    for _ in range(3):
        await kubelet.stop()
        await kubelet.start()
        assert kubelet.manager.capacity(GPU)[1] == 0
        await until(offers(kubelet, 3))
    assert node.plugin.connected


async def test_a_kubelet_that_dies_is_seen_to_be_gone(kubelet: Kubelet, node: Node, until: Until) -> None:
    await kubelet.stop()
    await until(lambda: not node.plugin.connected)


async def test_a_plugin_whose_socket_somebody_removed_makes_a_new_one(
    kubelet: Kubelet, node: Node, until: Until
) -> None:
    (kubelet.plugins / "gpuledger-nvidia.com_gpu.sock").unlink()
    await until(lambda: kubelet.registrations[GPU] == 2 and offers(kubelet, 3)())


async def test_a_socket_that_an_earlier_agent_left_is_no_obstacle(kubelet: Kubelet, until: Until) -> None:
    (kubelet.plugins / "gpuledger-nvidia.com_gpu.sock").write_text("left")
    await kubelet.start()
    async with serving(Node(kubelet).plugin):
        await until(offers(kubelet, 3))


async def test_a_registered_plugin_stays_as_it_is(
    kubelet: Kubelet, node: Node, until: Until, looks: list[Path]
) -> None:
    before = (kubelet.plugins / "gpuledger-nvidia.com_gpu.sock").stat().st_ino
    await until(lambda: len(looks) > 40)
    assert (kubelet.plugins / "gpuledger-nvidia.com_gpu.sock").stat().st_ino == before
    assert kubelet.registrations[GPU] == 1
    assert len(kubelet.endpoints[GPU].lists) == 1


async def test_a_kubelet_that_refuses_is_asked_again(kubelet: Kubelet, node: Node, until: Until) -> None:
    kubelet.refuses = True
    await kubelet.stop()
    await kubelet.start()
    await until(lambda: kubelet.registrations[GPU] >= 4)
    assert not node.plugin.connected
    kubelet.refuses = False
    await until(offers(kubelet, 3))


async def test_a_kubelet_that_takes_us_and_does_not_listen_is_told_again(
    kubelet: Kubelet, node: Node, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_server, "LISTEN_GRACE_S", 0.2)
    kubelet.listens = False
    await kubelet.stop()
    await kubelet.start()
    await until(lambda: kubelet.registrations[GPU] >= 3)
    assert not node.plugin.connected
    kubelet.listens = True
    await until(offers(kubelet, 3))
    assert node.plugin.connected


async def test_slots_that_change_are_listed_anew(kubelet: Kubelet, node: Node, until: Until) -> None:
    node.slots.offer(5)
    await until(offers(kubelet, 5))
    node.slots.offer(1)
    await until(offers(kubelet, 1))
    assert kubelet.registrations[GPU] == 1


async def test_without_a_driver_all_slots_are_unhealthy_and_come_back(
    kubelet: Kubelet, node: Node, until: Until
) -> None:
    node.slots.withdraw()
    await until(offers(kubelet, 0))
    assert kubelet.manager.capacity(GPU) == (3, 0)
    assert {health for _, health in kubelet.endpoints[GPU].lists[-1]} == {"Unhealthy"}
    node.slots.offer(3)
    await until(offers(kubelet, 3))
    assert kubelet.registrations[GPU] == 1


async def test_an_agent_that_ends_withdraws_its_slots(kubelet: Kubelet, until: Until) -> None:
    await kubelet.start()
    async with serving(Node(kubelet).plugin):
        await until(offers(kubelet, 3))
    await until(offers(kubelet, 0))


async def test_containers_get_slots_and_start_with_what_they_were_told(
    kubelet: Kubelet, node: Node, until: Until
) -> None:
    pod = a_pod_object("a", {GPU: "2"})
    await kubelet.admit(pod)
    slots = frozenset({"slot-0", "slot-1"})
    assert node.allocated == [(GPU, slots)]
    assert await kubelet.start_container(pod, "main") == ["gpuledger.dev/share=slot-0"]
    assert node.started == [(GPU, slots)]


async def test_why_a_container_must_not_start_reaches_the_kubelet(kubelet: Kubelet, node: Node, until: Until) -> None:
    pod = a_pod_object("a", ONE)
    await kubelet.admit(pod)
    node.refusal = StartRefused("it came around the scheduler")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.start_container(pod, "main")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == "it came around the scheduler"
    node.refusal = None
    assert await kubelet.start_container(pod, "main")


async def test_a_start_that_takes_long_does_not_hold_up_allocate(kubelet: Kubelet, node: Node, until: Until) -> None:
    """The kubelet waits for Allocate with all its pods."""
    pods = [a_pod_object(name, ONE) for name in ("a", "b")]
    await kubelet.admit(pods[0])
    event = asyncio.Event()

    async def wait(resource: str, slots: frozenset[str]) -> None:
        await event.wait()

    node.plugin._start = wait
    starting = asyncio.create_task(kubelet.start_container(pods[0], "main"))
    async with asyncio.timeout(60):
        await kubelet.admit(pods[1])
    assert not starting.done()
    event.set()
    await starting


async def test_a_path_that_is_too_long_is_said_and_nothing_falls_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, until: Until, kubelet: Kubelet
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    async with serving(Node(kubelet).of_resource(GPU, deep)):
        await until(lambda: caplog.text.count("no socket at") > 1)
