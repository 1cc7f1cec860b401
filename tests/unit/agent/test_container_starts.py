"""A container starts with the cards that the ledger gave it, or it does not start and says why."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.agent_node import NODE, AgentNode
from fakes.api_server import Operation, hold_answer, lose_request, refuse
from fakes.objects import GPU
from fakes.virtual_time import now_s
from gpuledger.agent.grants.grants import NodeCapabilities
from gpuledger.agent.grants.starts import PATIENCE_S
from gpuledger.agent.isolation.choice import GrantedCard, Installed, Isolation
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.runtime.cdi import CardLimit, Grant, GrantedPart, VendorDevices
from gpuledger.formats.runtime.limit_hook import ANSWERS, SCRIPT
from gpuledger.model.errors import Denied, NotKnownYet, StartRefused, Unreachable
from gpuledger.model.share import HolderState

KUBELET_PATIENCE_S = 30.0
"""After which the kubelet has given up, and our words reach nobody."""


async def test_each_container_gets_its_cards_under_the_name_that_its_runtime_is_told(node: AgentNode) -> None:
    pods = [node.bind("a", {"main": [0]}), node.bind("b", {"main": [1, 3], "side": [2]})]
    for pod in pods:
        await node.admit(pod)
    assert node.grants.all() == ()
    for pod, container, indexes in ((pods[1], "side", [2]), (pods[0], "main", [0]), (pods[1], "main", [1, 3])):
        name = await node.start(pod, container)
        assert node.delivered(name) == (pod["metadata"]["uid"], container, node.uuids(*indexes))
    assert node.starts.outcomes == {"started": 3}


async def test_a_start_whose_slots_come_to_another_pod_while_it_waits_is_refused(node: AgentNode) -> None:
    """Of its own pod, which is gone, the kubelet has forgotten our answer, and would start the container without."""
    gone = node.bind("gone", {"main": [0]})
    await node.admit(gone)
    slots = node.given(gone, "main").slots
    node.list_fails = Unreachable("the kubelet is busy")
    starting = asyncio.create_task(node.starts.start(GPU, slots))
    await asyncio.sleep(1)
    node.api.delete_pod("gone")
    node.kubelet.forget("uid-gone")
    later = node.bind("later", {"main": [1]})
    await node.admit(later)
    assert node.given(later, "main").slots == slots
    node.list_fails = None
    with pytest.raises(StartRefused, match="another container"):
        await starting
    name = await node.start(later, "main")
    assert node.delivered(name) == ("uid-later", "main", node.uuids(1))


async def test_every_answer_has_a_name_of_its_own(node: AgentNode) -> None:
    slots = frozenset({"slot-1"})
    names = {node.starts.allocate(GPU, slots).cdi_devices[0].name for _ in range(100)}
    assert len(names) == 100


async def test_a_runtime_that_overlooks_the_device_brings_no_cards_at_all(node: AgentNode) -> None:
    """The images of CUDA ask NVIDIA's runtime for all cards of the node."""
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    await node.start(pod, "main")
    answer = node.starts.allocate(GPU, frozenset({"slot-1"}))
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    (grant,) = node.grants.all()
    edits = dict(line.split("=", 1) for line in grant.edits["env"])
    assert edits["NVIDIA_VISIBLE_DEVICES"] == node.uuids(0)[0], "said later than the answer, so it counts"


async def test_what_the_container_is_told_is_what_the_ledger_says(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [1, 2]})
    await node.admit(pod)
    await node.start(pod, "main")
    (grant,) = node.grants.all()
    told = dict(line.split("=", 1) for line in grant.edits["env"])
    assert told["GPULEDGER_UUIDS"] == ",".join(node.uuids(1, 2))
    assert (told["GPULEDGER_MEMORY_MIB"], told["GPULEDGER_CORES"]) == ("100,100", "10,10")


@pytest.mark.parametrize(
    "annotation",
    [
        '{"main": [{"uuid": "GPU-node-a-2", "memoryMiB": 1, "cores": 1}, {"uuid": "GPU-node-a-3"}]}',
        '{"main": [{"uuid": "GPU-node-a-0", "memoryMiB": 1, "cores": 1}]}',
        '{"main": [{"uuid": "GPU-node-a-0"}, {"uuid": "GPU-node-a-1"}, {"uuid": "GPU-node-a-2"}]}',
        '{"main": [{"uuid": "../../nodes/node-a"}, {"uuid": "GPU-of-another-node"}]}',
        "{}",
        "no JSON",
        None,
    ],
    ids=["other cards", "fewer", "more", "nonsense", "none", "unreadable", "removed"],
)
async def test_the_ledgers_word_counts_and_not_the_annotation(node: AgentNode, annotation: str | None) -> None:
    pod = node.bind("a", {"main": [0, 1]}, annotation=annotation)
    node.bind("b", {"main": [2]})
    if annotation is None:
        pod["metadata"]["annotations"] = {}
        node.api.put_pod(pod)
    await node.admit(pod)
    assert node.delivered(await node.start(pod, "main")) == ("uid-a", "main", node.uuids(0, 1))
    read = {call.path.rpartition("/")[2] for call in node.api.called(Operation.READ_CARD)}
    assert read <= {card.object_name for card in node.cards}, "an annotation must not choose what is read"


async def test_an_annotation_edited_before_a_restart_changes_nothing(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    before = node.delivered(await node.start(pod, "main"))
    pod["metadata"]["annotations"][DEVICES_ANNOTATION] = '{"main": [{"uuid": "GPU-node-a-3"}]}'
    node.api.put_pod(pod)
    assert node.delivered(await node.start(pod, "main")) == before == ("uid-a", "main", node.uuids(0))


async def test_a_card_costs_one_read_where_the_annotation_is_right(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [2]})
    await node.admit(pod)
    await node.start(pod, "main")
    assert len(node.api.called(Operation.READ_CARD)) == 1
    assert len(node.api.called(Operation.READ_POD)) == 1
    assert (node.api.called(Operation.LIST_PODS), node.api.writes()) == ([], [])


async def test_a_pod_around_the_scheduler_is_refused_and_hurts_nobody(node: AgentNode) -> None:
    good, bad = node.bind("good", {"main": [0]}), node.bind("bad", {"main": []})
    bad["spec"]["containers"][0]["resources"]["limits"] = {GPU: "1"}
    bad["metadata"]["annotations"][DEVICES_ANNOTATION] = '{"main": [{"uuid": "GPU-node-a-0"}]}'
    node.api.put_pod(bad)
    for pod in (bad, good):
        await node.admit(pod)
    with pytest.raises(StartRefused) as refused:
        await node.start(bad, "main")
    for word in ("default/bad", NODE, "schedulerName", "recreate the pod"):
        assert word in str(refused.value)
    assert now_s() < 1_001, "what can't change is said at once"
    assert node.delivered(await node.start(good, "main")) == ("uid-good", "main", node.uuids(0))
    assert node.starts.outcomes == {"started": 1, "refused": 1}


@pytest.mark.parametrize("held", [[0], [0, 1, 2]])
async def test_another_number_of_cards_than_asked_for_is_refused(node: AgentNode, held: list[int]) -> None:
    pod = node.bind("a", {"main": [0, 1]})
    node.release("uid-a")
    node.hold("uid-a", "a", {"main": held})
    pod["metadata"]["annotations"] = {}
    node.api.put_pod(pod)
    await node.admit(pod)
    with pytest.raises(StartRefused, match=rf"2 GPUs.*gives it {len(held)}.*audit"):
        await node.start(pod, "main")


async def test_cards_of_another_node_are_not_given(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    node.api.delete_card(node.cards[0])
    node.cards[0] = replace(node.cards[0], node_name="node-b")
    node.api.put_card(node.cards[0])
    node.hold("uid-a", "a", {"main": [0]})
    await node.admit(pod)
    with pytest.raises(StartRefused, match="not placed by"):
        await node.start(pod, "main")


async def test_a_card_that_the_driver_shows_no_more_is_named(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    del node.shown["GPU-node-a-0"]
    with pytest.raises(StartRefused, match=r"GPU-node-a-0.*delete the pod"):
        await node.start(pod, "main")


async def test_the_number_of_a_card_is_the_drivers_and_not_the_ledgers(node: AgentNode) -> None:
    """After a reboot the toolkit's device "0" can be another card than the ledger's number 0."""
    pod = node.bind("a", {"main": [0, 1]})
    node.shown |= {"GPU-node-a-0": 1, "GPU-node-a-1": 0}
    devices = {f"nvidia.com/gpu={index}": {"deviceNodes": [{"path": f"/dev/nvidia{index}"}]} for index in (0, 1)}
    node.capabilities = NodeCapabilities(Isolation.NONE, Installed(), VendorDevices(devices))
    await node.admit(pod)
    await node.start(pod, "main")
    (grant,) = node.grants.all()
    assert grant.uuids == node.uuids(1, 0)
    assert [each["path"] for each in grant.edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.parametrize("state", [HolderState.RELEASING, HolderState.RESERVED])
async def test_a_share_that_is_not_the_pods_yet_or_any_more_is_waited_for(node: AgentNode, state: HolderState) -> None:
    pod = node.bind("a", {"main": [0]}, state=state)
    await node.admit(pod)
    starting = asyncio.create_task(node.start(pod, "main"))
    await asyncio.sleep(5)
    assert not starting.done()
    assert node.grants.all() == ()
    node.hold("uid-a", "a", {"main": [0]})
    assert node.delivered(await starting) == ("uid-a", "main", node.uuids(0))


async def test_a_share_that_stays_taken_back_is_told_before_the_kubelet_gives_up(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]}, state=HolderState.RELEASING)
    await node.admit(pod)
    begin_s = now_s()
    with pytest.raises(NotKnownYet, match="releasing"):
        await node.start(pod, "main")
    assert now_s() - begin_s == pytest.approx(PATIENCE_S, abs=0.1)
    assert node.starts.outcomes == {"not_yet": 1}


async def test_a_server_that_is_away_for_a_moment_costs_a_moment(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    node.api.queue(Operation.READ_POD, *[lose_request()] * 3)
    node.api.queue(Operation.READ_CARD, *[refuse(Unreachable("overloaded", 503))] * 2)
    await node.start(pod, "main")
    assert node.starts.outcomes == {"started": 1}


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_server_that_stays_away_is_told_before_the_kubelet_gives_up(node: AgentNode, hangs: bool) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    fault = hold_answer(asyncio.Event()) if hangs else lose_request()
    node.api.queue(Operation.READ_CARD, *[fault] * 1_000)
    begin_s = now_s()
    with pytest.raises(NotKnownYet, match="tried for 20 s"):
        await node.start(pod, "main")
    assert now_s() - begin_s < KUBELET_PATIENCE_S - 5
    assert len(node.api.called(Operation.READ_CARD)) < 20, "a server in trouble is not hammered"
    node.api._faults.clear()
    await node.start(pod, "main")


async def test_a_kubelet_that_does_not_answer_is_asked_again(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    node.list_fails = Unreachable("the kubelet's list")
    starting = asyncio.create_task(node.start(pod, "main"))
    await asyncio.sleep(3)
    node.list_fails = None
    assert node.delivered(await starting)


async def test_what_the_account_may_not_do_is_said_at_once(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    node.api.queue(Operation.READ_CARD, refuse(Denied("forbidden", 403)))
    with pytest.raises(Denied):
        await node.start(pod, "main")


async def test_a_container_whose_driver_limits_it_has_a_hook_that_is_expected_before_its_file_is_there(
    node: AgentNode, tmp_path: Path
) -> None:
    installed = Installed(why_no_driver_limits="")
    node.capabilities = replace(node.capabilities, isolation=Isolation.DRIVER, installed=installed)
    pod = node.bind("a", {"main": [1, 2]})
    await node.admit(pod)
    expected: list[bool] = []
    real = node.grants.write
    fifos = tmp_path / "limits" / ANSWERS

    def write(grant: Grant, cards: Sequence[GrantedCard] = ()) -> None:
        expected.append((fifos / grant.name).is_fifo())
        real(grant, cards)

    node.grants.write = write  # type: ignore[method-assign]
    name = await node.start(pod, "main")
    (grant,) = node.grants.all()
    assert expected == [True]
    assert grant.limits == tuple(CardLimit(uuid, 0, 100) for uuid in node.uuids(1, 2))
    (hook,) = grant.edits["hooks"]
    assert hook["args"] == ["/bin/sh", str(tmp_path / "limits" / SCRIPT), name, str(tmp_path / "limits")]
    node.granting.forget(lambda _: True)
    assert list(fifos.iterdir()) == []
    node.by_driver.close()


async def test_a_node_whose_driver_can_not_limit_starts_nothing_and_says_why(node: AgentNode, tmp_path: Path) -> None:
    installed = Installed(why_no_driver_limits="it needs driver 615")
    node.capabilities = replace(node.capabilities, isolation=Isolation.DRIVER, installed=installed)
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    with pytest.raises(NotKnownYet, match="isolation is driver, which it does not have: it needs driver 615"):
        await node.start(pod, "main")
    assert not (tmp_path / "limits").exists()


async def test_a_restart_in_place_finds_everything_as_it_was(node: AgentNode, tmp_path: Path) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    name = await node.start(pod, "main")
    file = tmp_path / "cdi" / f"gpuledger.dev-share-{name}.json"
    before = file.stat().st_ino
    for _ in range(3):
        assert await node.start(pod, "main") == name
    assert file.stat().st_ino == before
    assert len(list((tmp_path / "cdi").iterdir())) == 1


async def test_containers_that_share_their_slots_have_a_file_each(node: AgentNode) -> None:
    pod = node.bind("a", {"init": [2], "main": [0]}, init=["init"])
    await node.admit(pod)
    assert node.given(pod, "init").slots == node.given(pod, "main").slots
    await node.start(pod, "init")
    for container, index in (("init", 2), ("main", 0)):
        assert node.delivered(node.name(pod, container)) == ("uid-a", container, node.uuids(index))


async def test_of_containers_that_share_their_slots_one_without_cards_does_not_hold_up_the_other(
    node: AgentNode,
) -> None:
    pod = node.bind("a", {"init": [2], "main": [0]}, init=["init"])
    node.release("uid-a")
    node.hold("uid-a", "a", {"main": [0]})
    await node.admit(pod)
    await node.start(pod, "main")
    assert node.delivered(node.name(pod, "main")) == ("uid-a", "main", node.uuids(0))
    assert node.delivered(node.name(pod, "init")) is None, "its runtime finds no file, and does not start it"
    node.release("uid-a")
    with pytest.raises(StartRefused):
        await node.start(pod, "main")


async def test_what_a_container_was_given_stays_though_a_kubelet_that_has_lost_its_record_gives_out_its_slots_again(
    node: AgentNode,
) -> None:
    """It may run: whether its pod is gone, others say (cleanup.py)."""
    node.kubelet.take_list(GPU, [("slot-0", "Healthy"), ("slot-1", "Healthy")])
    old, other = node.bind("old", {"main": [0]}), node.bind("other", {"main": [1]})
    for pod in (old, other):
        await node.admit(pod)
        await node.start(pod, "main")
    slots = node.given(old, "main").slots
    node.kubelet.forget("uid-old")
    new = node.bind("new", {"main": [2]})
    await node.admit(new)
    assert node.given(new, "main").slots == slots
    await node.start(new, "main")
    assert {grant.pod_uid for grant in node.grants.all()} == {"uid-old", "uid-other", "uid-new"}


async def test_the_file_of_a_pod_that_was_created_anew_goes(node: AgentNode) -> None:
    old = node.bind("a", {"main": [0]}, uid="uid-old")
    await node.admit(old)
    await node.start(old, "main")
    node.kubelet.forget("uid-old")
    node.kubelet.choose = lambda slots: sorted(slots, reverse=True)  # another slot than before
    new = node.bind("a", {"main": [1]}, uid="uid-new")
    await node.admit(new)
    await node.start(new, "main")
    assert [grant.pod_uid for grant in node.grants.all()] == ["uid-new"]


async def test_a_start_that_was_overtaken_by_the_next_owner_does_no_harm(node: AgentNode) -> None:
    """The first pod dies while its cards are looked up; the next one has its slot, and is quicker."""
    node.kubelet.take_list(GPU, [("slot-0", "Healthy")])
    old, new = node.bind("old", {"main": [0]}), node.bind("new", {"main": [1]})
    await node.admit(old)
    event = asyncio.Event()
    node.api.queue(Operation.READ_CARD, hold_answer(event))
    late = asyncio.create_task(node.starts.start(GPU, node.given(old, "main").slots))
    await asyncio.sleep(0.1)
    node.kubelet.forget("uid-old")
    await node.admit(new)
    name = await node.start(new, "main")
    event.set()
    with pytest.raises(StartRefused, match="another container"):
        await late
    assert node.delivered(name) == ("uid-new", "main", node.uuids(1))
    assert [grant.pod_uid for grant in node.grants.all()] == ["uid-new"]


async def test_many_identical_pods_at_once_are_never_swapped(node: AgentNode) -> None:
    pods = [node.bind(f"p{number}", {"main": [number % 4]}) for number in range(20)]
    for pod in pods:
        await node.admit(pod)
    names = await asyncio.gather(*(node.start(pod, "main") for pod in pods))
    for number, name in enumerate(names):
        assert node.delivered(name) == (f"uid-p{number}", "main", node.uuids(number % 4))


async def test_a_start_waits_for_a_pod_that_the_api_server_does_not_know_and_that_leaves_too_little(
    node: AgentNode,
) -> None:
    """As after etcd was put back, before the operator has asked: the ledger does not count it."""
    lost, most = node.bind("lost", {"main": [0]}), node.cards[0].capacity.memory_mib
    await node.admit(lost)
    name = await node.start(lost, "main")
    (grant,) = node.grants.all()
    node.grants.write(replace(grant, parts=(GrantedPart(node.cards[0].uuid, most - 50, 0),)))
    node.may_run.add("uid-lost")
    pod = node.bind("next", {"main": [0]})
    await node.admit(pod)
    with pytest.raises(NotKnownYet, match="does not know any more"):
        await node.start(pod, "main")
    node.may_run.clear()
    assert node.delivered(await node.start(pod, "main")) == ("uid-next", "main", node.uuids(0))
    assert node.delivered(name) is not None


async def test_a_start_does_not_wait_for_one_that_leaves_enough(node: AgentNode) -> None:
    lost = node.bind("lost", {"main": [0]})
    await node.admit(lost)
    await node.start(lost, "main")
    node.may_run.add("uid-lost")
    pod = node.bind("next", {"main": [0]})
    await node.admit(pod)
    assert node.delivered(await node.start(pod, "main")) == ("uid-next", "main", node.uuids(0))
