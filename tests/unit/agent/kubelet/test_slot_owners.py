"""Whose slots these are: told where it is certain, and otherwise not told."""

from typing import Any

import pytest

from fakes.agent_node import NODE, AgentNode
from fakes.api_server import Operation
from fakes.device_manager import CHECKPOINT
from fakes.objects import GPU
from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.kubelet.slot_owners import NAME, Owner, SlotOwners, answered_name
from gpuledger.formats.runtime.cdi import CheckpointEntry
from gpuledger.model.errors import NotKnownYet, StartRefused, Unreachable


async def owner_of(node: AgentNode, pod: dict[str, Any], container: str = "main") -> Owner:
    return await node.owners.find(GPU, node.given(pod, container).slots)


def lose_checkpoint(node: AgentNode) -> None:
    (node.kubelet.directory / CHECKPOINT).write_bytes(b'{"Data"')


def finish_init(node: AgentNode, pod: dict[str, Any], *names: str, code: int = 0) -> None:
    ended = [{"name": name, "state": {"terminated": {"exitCode": code}}} for name in names]
    status = node.api.pods["default", pod["metadata"]["name"]]["status"]
    node.api.put_pod(pod | {"status": status | {"initContainerStatuses": ended}})


async def test_the_checkpoint_names_pod_and_container(node: AgentNode) -> None:
    pods = [node.bind("a", {"main": [0]}), node.bind("b", {"main": [1], "side": [2, 3]})]
    for pod in pods:
        await node.admit(pod)
    for pod, container in ((pods[0], "main"), (pods[1], "main"), (pods[1], "side")):
        owner = await owner_of(node, pod, container)
        assert owner.pod["metadata"]["uid"] == pod["metadata"]["uid"]
        assert owner.names == {container: node.name(pod, container)}
    assert node.api.called(Operation.LIST_PODS) == [], "the list has told the name: one pod is read, not all"


async def test_an_init_container_that_nobody_lists_is_found(node: AgentNode) -> None:
    pod = node.bind("a", {"init": [0, 1], "main": [0]}, init=["init"])
    await node.admit(pod)
    assert (await owner_of(node, pod, "init")).names == {"init": node.name(pod, "init")}
    assert (await owner_of(node, pod, "main")).names == {"main": node.name(pod, "main")}


async def test_slots_that_init_and_main_container_share_have_both_names(node: AgentNode) -> None:
    pod = node.bind("a", {"first": [0], "second": [1], "main": [0]}, init=["first", "second"])
    await node.admit(pod)
    owner = await owner_of(node, pod)
    assert owner.names == {name: node.name(pod, name) for name in ("first", "second", "main")}
    assert len(set(owner.names.values())) == 3


async def test_a_sidecar_shares_its_slots_with_nobody(node: AgentNode) -> None:
    pod = node.bind("a", {"side": [0], "main": [1]}, sidecars=["side"])
    await node.admit(pod)
    assert set((await owner_of(node, pod, "side")).names) == {"side"}
    assert set((await owner_of(node, pod, "main")).names) == {"main"}


async def test_a_pod_created_anew_under_its_name_is_told_from_the_old_one(node: AgentNode) -> None:
    old = node.bind("a", {"main": [0]}, uid="uid-old")
    await node.admit(old)
    new = node.bind("a", {"main": [1]}, uid="uid-new")
    await node.admit(new)
    assert (await owner_of(node, new)).pod["metadata"]["uid"] == "uid-new"
    with pytest.raises(StartRefused, match=r"uid-old.*gone"):
        await owner_of(node, old)


@pytest.mark.parametrize("readable", [True, False])
async def test_a_pod_that_is_gone_is_refused_with_the_checkpoint_and_without(node: AgentNode, readable: bool) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    if not readable:
        lose_checkpoint(node)
    node.api.delete_pod("a")
    with pytest.raises(StartRefused, match="gone"):
        await owner_of(node, pod)


async def test_a_pod_that_gave_its_slots_to_the_next_one_is_forgotten(node: AgentNode) -> None:
    node.kubelet.take_list(GPU, [("slot-0", "Healthy")])
    old, new = node.bind("old", {"main": [0]}), node.bind("new", {"main": [1]})
    await node.admit(old)
    node.kubelet.forget("uid-old")
    await node.admit(new)
    assert (await node.owners.find(GPU, frozenset({"slot-0"}))).pod["metadata"]["name"] == "new"


async def test_slots_that_nobody_has_are_asked_for_again(node: AgentNode) -> None:
    with pytest.raises(NotKnownYet):
        await node.owners.find(GPU, frozenset({"slot-7"}))


async def test_slots_are_told_apart_by_their_resource(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    with pytest.raises(NotKnownYet):
        await node.owners.find("other.dev/gpu", node.given(pod, "main").slots)


async def test_what_another_plugin_has_answered_is_refused_with_what_to_do(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    foreign = messages.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-0"}).SerializeToString()

    async def allocate(resource: str, slots: list[str]) -> bytes:
        return foreign

    node.owners.remember(GPU, frozenset({"slot-0"}), "slot-0-of-somebody-before")
    await node.kubelet.admit(pod, allocate)
    with pytest.raises(StartRefused, match=r"another device plugin.*delete"):
        await owner_of(node, pod)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (messages.ContainerAllocateResponse(cdi_devices=[messages.CDIDevice(name="gpuledger.dev/share=a-1")]), "a-1"),
        (messages.ContainerAllocateResponse(envs={NAME: "a-1"}), "a-1"),
        (messages.ContainerAllocateResponse(envs={NAME: "../a"}), None),
        (messages.ContainerAllocateResponse(cdi_devices=[messages.CDIDevice(name="nvidia.com/gpu=0")]), None),
        (messages.ContainerAllocateResponse(), None),
        (None, None),
    ],
)
def test_our_answers_are_known_by_their_name(answer: messages.ContainerAllocateResponse | None, name: str) -> None:
    text = b"\xff\xff" if answer is None else answer.SerializeToString()
    assert answered_name(CheckpointEntry("uid", "main", GPU, frozenset(), text)) == name


# The checkpoint can't be used.


async def test_without_the_checkpoint_the_list_and_our_memory_are_enough(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0], "side": [1]})
    await node.admit(pod)
    lose_checkpoint(node)
    for container in ("main", "side"):
        owner = await owner_of(node, pod, container)
        assert (owner.names, owner.noted) == ({container: node.name(pod, container)}, False)
        node.owners.confirm(owner, GPU, node.given(pod, container).slots)


async def test_without_the_checkpoint_an_init_container_leaves_doubt_until_it_has_ended(node: AgentNode) -> None:
    pod = node.bind("a", {"init": [0], "main": [0]}, init=["init"])
    await node.admit(pod)
    lose_checkpoint(node)
    with pytest.raises(NotKnownYet, match="which container"):
        await owner_of(node, pod)
    finish_init(node, pod, "init", code=1)
    with pytest.raises(NotKnownYet, match="which container"):
        await owner_of(node, pod)
    finish_init(node, pod, "init")
    assert (await owner_of(node, pod)).names == {"main": node.name(pod, "main")}


async def test_without_the_checkpoint_a_sidecar_or_an_init_container_without_gpus_leaves_no_doubt(
    node: AgentNode,
) -> None:
    pod = node.bind("a", {"side": [0], "main": [1]}, sidecars=["side"])
    pod["spec"]["initContainers"].append({"name": "plain", "image": "image"})
    node.api.put_pod(pod)
    await node.admit(pod)
    lose_checkpoint(node)
    assert set((await owner_of(node, pod, "side")).names) == {"side"}
    assert set((await owner_of(node, pod, "main")).names) == {"main"}


async def test_without_the_checkpoint_an_agent_that_started_anew_does_not_guess(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    lose_checkpoint(node)
    node.start_agent()
    with pytest.raises(NotKnownYet, match="checkpoint"):
        await owner_of(node, pod)


async def test_without_the_checkpoint_two_pods_of_one_name_are_not_told_apart(node: AgentNode) -> None:
    for index, uid in enumerate(("uid-old", "uid-new")):
        pod = node.bind("a", {"main": [index]}, uid=uid)
        await node.admit(pod)
    lose_checkpoint(node)
    with pytest.raises(NotKnownYet):
        await owner_of(node, pod)


async def test_without_the_checkpoint_a_pod_created_anew_is_not_taken_for_the_old_one(node: AgentNode) -> None:
    """The kubelet still runs the old one, and has not heard of the new one, when the old one's container starts."""
    old = node.bind("a", {"main": [0]}, uid="uid-old")
    await node.admit(old)
    lose_checkpoint(node)
    new = node.bind("a", {"main": [1]}, uid="uid-new")
    with pytest.raises(NotKnownYet, match="not reported yet"):
        await owner_of(node, old)
    await node.admit(new)
    lose_checkpoint(node)
    for pod in (old, new):
        with pytest.raises(NotKnownYet):
            await owner_of(node, pod)
    node.kubelet.forget("uid-old")
    assert (await owner_of(node, new)).pod["metadata"]["uid"] == "uid-new"


@pytest.mark.parametrize("before", ["nothing", "the former owner"])
async def test_a_checkpoint_that_is_older_than_our_answer_does_not_count(node: AgentNode, before: str) -> None:
    """The kubelet takes a snapshot under its lock and writes it without: an older one can come last."""
    node.kubelet.take_list(GPU, [("slot-0", "Healthy")])
    path = node.kubelet.directory / CHECKPOINT
    if before == "the former owner":
        await node.admit(node.bind("old", {"main": [0]}))
        node.kubelet.forget("uid-old")
    stale = path.read_bytes()
    new = node.bind("new", {"main": [1]})
    await node.admit(new)
    path.write_bytes(stale)
    owner = await owner_of(node, new)
    assert (owner.pod["metadata"]["name"], owner.names) == ("new", {"main": node.name(new, "main")})
    node.owners.confirm(owner, GPU, frozenset({"slot-0"}))


async def test_list_and_checkpoint_that_contradict_each_other_leave_doubt(node: AgentNode) -> None:
    node.kubelet.take_list(GPU, [("slot-0", "Healthy")])
    await node.admit(node.bind("old", {"main": [0]}))
    stale = (node.kubelet.directory / CHECKPOINT).read_bytes()
    node.kubelet.forget("uid-old")
    new = node.bind("new", {"main": [1]})
    await node.admit(new)
    (node.kubelet.directory / CHECKPOINT).write_bytes(stale)
    node.start_agent()
    with pytest.raises(NotKnownYet, match="default/new"):
        await owner_of(node, new)


# What can change while somebody waits.


@pytest.mark.parametrize("readable", [True, False])
async def test_slots_that_came_to_another_pod_meanwhile_are_noticed(node: AgentNode, readable: bool) -> None:
    node.kubelet.take_list(GPU, [("slot-0", "Healthy"), ("slot-1", "Healthy")])
    old, new = node.bind("old", {"main": [0]}), node.bind("new", {"main": [1]})
    await node.admit(old)
    slots = node.given(old, "main").slots
    if not readable:
        lose_checkpoint(node)
    owner = await node.owners.find(GPU, slots)
    node.owners.confirm(owner, GPU, slots)
    node.kubelet.forget("uid-old")
    await node.admit(new)
    if not readable:
        lose_checkpoint(node)
    with pytest.raises(NotKnownYet, match="default/old"):
        node.owners.confirm(owner, GPU, slots)


async def test_slots_of_which_some_came_to_another_pod_are_noticed(node: AgentNode) -> None:
    node.kubelet.take_list(GPU, [("slot-0", "Healthy"), ("slot-1", "Healthy")])
    old, new = node.bind("old", {"main": [0, 1]}), node.bind("new", {"main": [1]})
    await node.admit(old)
    slots = node.given(old, "main").slots
    owner = await node.owners.find(GPU, slots)
    node.kubelet.forget("uid-old")
    await node.admit(new)
    with pytest.raises(NotKnownYet):
        node.owners.confirm(owner, GPU, slots)


async def test_a_kubelet_that_does_not_answer_is_unreachable(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    node.list_fails = Unreachable("no kubelet")
    with pytest.raises(Unreachable):
        await owner_of(node, pod)


async def test_only_so_many_answers_are_remembered(node: AgentNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.agent.kubelet.slot_owners.ANSWERS_REMEMBERED", 2)
    owners = SlotOwners(NODE, node.kubelet.directory, node.api.store, node)
    for number in range(5):
        owners.remember(GPU, frozenset({f"slot-{number}"}), f"name-{number}")
    answers = [owners.answered(GPU, frozenset({f"slot-{number}"})) for number in range(5)]
    assert answers == [None, None, None, "name-3", "name-4"]
