"""What a container is given: written anew where it is missing, apart from others, and on any runtime."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from fakes.agent_node import AgentNode
from fakes.device_manager import CHECKPOINT
from fakes.objects import GPU
from gpuledger.agent.grants.grants import ISOLATION_ANNOTATION, NodeCapabilities
from gpuledger.agent.isolation.choice import Installed, Isolation, MpsPipes
from gpuledger.formats.runtime.cdi import VendorDevices
from gpuledger.model.errors import StartRefused, Unreachable

# An agent that starts anew.


async def test_files_that_are_missing_are_written_anew(node: AgentNode, tmp_path: Path) -> None:
    pods = [node.bind(f"p{number}", {"init": [3], "main": [number]}, init=["init"]) for number in range(3)]
    for pod in pods:
        await node.admit(pod)
        await node.start(pod, "main")
    expected = {grant.name: grant for grant in node.grants.all()}
    for file in list((tmp_path / "cdi").iterdir())[:3]:
        file.unlink()
    node.start_agent()
    await node.starts.rebuild((GPU,))
    assert {grant.name: grant for grant in node.grants.all()} == expected


async def test_an_agent_that_finds_everything_asks_nobody(node: AgentNode) -> None:
    pod = node.bind("a", {"init": [3], "main": [0]}, init=["init"])
    await node.admit(pod)
    await node.start(pod, "main")
    node.api.calls.clear()
    node.start_agent()
    node.list_fails = Unreachable("the kubelet starts, too")
    await node.starts.rebuild((GPU, "other.dev/gpu"))
    assert node.api.calls == []


async def test_what_can_not_be_rebuilt_is_left_and_the_rest_is_not(node: AgentNode, tmp_path: Path) -> None:
    pods = [node.bind(name, {"main": [index]}) for index, name in enumerate(("gone", "loose", "good"))]
    for pod in pods:
        await node.admit(pod)
    node.api.delete_pod("gone")
    node.release("uid-loose")
    node.start_agent()
    await node.starts.rebuild((GPU,))
    assert [grant.pod for grant in node.grants.all()] == ["good"]


async def test_a_pod_that_has_ended_is_none_that_went_past_the_scheduler(
    node: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet's checkpoint has its slots until others need them, and the ledger has nothing of it any more."""
    pod = node.bind("done", {"main": [0]})
    await node.admit(pod)
    node.api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
    node.release("uid-done")
    node.start_agent()
    with caplog.at_level(logging.INFO):
        await node.starts.rebuild((GPU,))
    assert [record.message for record in caplog.records if "files of slots" in record.message] == []


async def test_a_checkpoint_that_can_not_be_read_is_no_reason_to_fail(node: AgentNode) -> None:
    (node.kubelet.directory / CHECKPOINT).write_bytes(b"{")
    await node.starts.rebuild((GPU,))
    (node.kubelet.directory / CHECKPOINT).unlink()
    await node.starts.rebuild((GPU,))


# Isolation.


@pytest.mark.parametrize("isolation", [Isolation.NONE, Isolation.MIG])
async def test_what_needs_no_limits_gets_none(node: AgentNode, isolation: Isolation) -> None:
    node.capabilities = NodeCapabilities(isolation, Installed("/hami", "/mps", ""), VendorDevices())
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    await node.start(pod, "main")
    (grant,) = node.grants.all()
    names = {line.partition("=")[0] for line in grant.edits["env"]}
    assert names == {"NVIDIA_VISIBLE_DEVICES", "GPULEDGER_UUIDS", "GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"}
    assert set(grant.edits) == {"env"}
    assert not grant.limits


async def test_what_the_nodes_isolation_needs_is_waited_for(node: AgentNode) -> None:
    node.capabilities = NodeCapabilities(Isolation.MPS, Installed(), VendorDevices())
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    starting = asyncio.create_task(node.start(pod, "main"))
    await asyncio.sleep(2)
    assert node.grants.all() == ()
    node.capabilities = NodeCapabilities(Isolation.MPS, Installed(mps_directory="/mps"), VendorDevices())
    await starting
    assert any("CUDA_MPS_PINNED" in line for grant in node.grants.all() for line in grant.edits["env"])


async def test_a_card_whose_mps_daemon_takes_no_programs_is_waited_for_with_the_reason(
    node: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    def daemons(pipes: MpsPipes) -> NodeCapabilities:
        return NodeCapabilities(Isolation.MPS, Installed(mps_directory="/mps", mps_pipes=pipes), VendorDevices())

    pod = node.bind("a", {"main": [0]})
    uuid = node.cards[0].uuid
    node.capabilities = daemons(MpsPipes(why_not={uuid: "a fatal fault"}))
    await node.admit(pod)
    with caplog.at_level(logging.INFO):
        starting = asyncio.create_task(node.start(pod, "main"))
        await asyncio.sleep(2)
    assert node.grants.all() == ()
    assert f"the MPS daemon of GPU {uuid} takes no programs: a fatal fault" in caplog.text
    node.capabilities = daemons(MpsPipes({uuid: "/mps/one"}))
    await starting
    (grant,) = node.grants.all()
    assert [mount["hostPath"] for mount in grant.edits["mounts"]] == ["/mps/one", "/mps/shm"]


async def test_a_pods_wish_is_heard_where_it_harms_nobody(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    node.capabilities = NodeCapabilities(Isolation.MPS, Installed(mps_directory="/mps"), VendorDevices())
    pod = node.bind("a", {"main": [0]})
    pod["metadata"]["annotations"][ISOLATION_ANNOTATION] = "none"
    node.api.put_pod(pod)
    await node.admit(pod)
    await node.start(pod, "main")
    assert any("CUDA_MPS" in line for grant in node.grants.all() for line in grant.edits["env"])
    assert "none is only for pods that have their cards alone" in caplog.text


async def test_hami_core_has_a_directory_for_each_container_until_its_pod_is_gone(
    node: AgentNode, tmp_path: Path
) -> None:
    hami = tmp_path / "hami"
    hami.mkdir()
    node.capabilities = NodeCapabilities(
        Isolation.HAMI_CORE, Installed(str(hami)), VendorDevices(), "nvidia.com/priority"
    )
    pod = node.bind("a", {"main": [0]})
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/priority"] = "1"
    node.api.put_pod(pod)
    await node.admit(pod)
    await node.start(pod, "main")
    (grant,) = node.grants.all()
    assert "CUDA_TASK_PRIORITY=1" in grant.edits["env"]
    own = hami / "containers" / "uid-a_main"
    assert str(own / "usage.cache") in [each["hostPath"] for each in grant.edits["mounts"]]
    assert (own / "usage.cache").is_file()
    node.granting.forget(lambda each: each.pod_uid == "uid-a")
    assert not own.exists()


# Runtimes without CDI.


async def test_without_cdi_a_container_reads_its_directory(tmp_path: Path) -> None:
    node = AgentNode(tmp_path, with_cdi=False)
    pod = node.bind("a", {"main": [1]})
    await node.admit(pod)
    name = await node.start(pod, "main")
    share = tmp_path / "shares" / name / "share"
    assert [card["uuid"] for card in orjson.loads((share / "devices.json").read_bytes())] == list(node.uuids(1))
    assert not list((tmp_path / "cdi").iterdir())
    dead = node.bind("dead", {"main": [2]})
    await node.admit(dead)
    node.kubelet.forget("uid-dead")
    node.kubelet._update()
    node.kubelet.write_checkpoint()
    node.start_agent()
    node.starts.remove_left_overs()
    assert [path.name for path in (tmp_path / "shares").iterdir()] == [name]
    node.granting.forget(lambda grant: grant.pod_uid == "uid-a")
    assert list((tmp_path / "shares").iterdir()) == []


async def test_without_cdi_a_disk_without_room_lets_a_start_wait_and_loses_no_pod(tmp_path: Path) -> None:
    """A kubelet whose Allocate fails has its pod failed for good; a start that fails is tried again."""
    node = AgentNode(tmp_path, with_cdi=False)
    in_the_way = tmp_path / "shares"
    in_the_way.write_text("no directory can be made here")
    pod = node.bind("a", {"main": [1]})
    await node.admit(pod)
    starting = asyncio.create_task(node.start(pod, "main"))
    await asyncio.sleep(2)
    assert not starting.done()
    in_the_way.unlink()
    assert (tmp_path / "shares" / await starting / "share" / "devices.json").exists()


async def test_nobody_but_its_own_container_is_ever_given_under_a_name(node: AgentNode) -> None:
    pod = node.bind("a", {"main": [0]})
    await node.admit(pod)
    name = await node.start(pod, "main")
    (grant,) = node.grants.all()
    with pytest.raises(StartRefused, match="belong to default/a"):
        node.grants.write(replace(grant, pod_uid="uid-b", pod="b"))
    assert node.delivered(name) == ("uid-a", "main", node.uuids(0))
