"""What the whole agent shows of itself before it talks to anybody."""

import errno
import hashlib
from pathlib import Path
from typing import cast

import pytest

from fakes.grants import a_grant
from fakes.objects import a_container, a_pod_object
from gpuledger.agent.agent import Agent
from gpuledger.agent.config import AgentConfig
from gpuledger.agent.devices.source import Device, Snapshot
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.agent.ended_pods import Sight
from gpuledger.agent.isolation.choice import Isolation
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.node import NodeConfig


def an_agent(root: Path, hami_core_directory: str = "") -> Agent:
    plan = AgentConfig(
        "node-a",
        {"nvidia": ("nvidia.com/gpu",)},
        NodeConfig(),
        Isolation.NONE,
        cdi_directory=root,
        hami_core_directory=hami_core_directory,
    )
    return Agent(plan, YamlSource(root / "cards.yaml"), cast(KubeClient, None))


def value(agent: Agent, name: str) -> float:
    (sample,) = (each for family in agent._metrics() for each in family.samples if each.name == name)
    return float(sample.value)


def value_count(agent: Agent, name: str) -> int:
    return sum(len(family.samples) for family in agent._metrics() if family.name == name)


async def test_a_driver_that_tells_no_version_is_up_all_the_same(tmp_path: Path) -> None:
    agent = an_agent(tmp_path)
    assert value(agent, "gpuledger_agent_driver_up") == 0
    agent._take_in(Snapshot((Device("ACCEL-0", 0, "X1", 65536),)))
    assert value(agent, "gpuledger_agent_driver_up") == 1
    agent._take_in(None)
    assert value(agent, "gpuledger_agent_driver_up") == 0
    assert value(agent, "gpuledger_agent_slots") == 0


async def test_the_versions_of_the_driver_are_shown(tmp_path: Path) -> None:
    agent = an_agent(tmp_path)
    agent._take_in(Snapshot((Device("GPU-0", 0, "A100", 81920),), "580.95.05", "13.0"))
    (family,) = (each for each in agent._metrics() if each.name == "gpuledger_agent_driver_info")
    assert [sample.labels for sample in family.samples] == [{"driver": "580.95.05", "cuda": "13.0"}]


async def test_the_hami_core_of_new_containers_is_shown(tmp_path: Path) -> None:
    agent = an_agent(tmp_path, hami_core_directory=str(tmp_path))
    assert value_count(agent, "gpuledger_agent_hami_core_info") == 0
    for name in ("libvgpu.so", "ld.so.preload"):
        (tmp_path / name).write_bytes(b"by hand")
    (family,) = (each for each in agent._metrics() if each.name == "gpuledger_agent_hami_core_info")
    sha256 = hashlib.sha256(b"by hand").hexdigest()
    assert [sample.labels for sample in family.samples] == [{"version": "", "sha256": sha256}]


async def test_the_paths_that_containers_have_mounted_are_those_of_their_grants(tmp_path: Path) -> None:
    agent = an_agent(tmp_path)
    assert agent._mounted() == set()
    mount = {"hostPath": "/vgpu/versions/0123/libvgpu.so", "containerPath": "/usr/local/vgpu/libvgpu.so"}
    agent._grants.write(a_grant(edits={"mounts": [mount]}))
    assert agent._mounted() == {"/vgpu/versions/0123/libvgpu.so"}


async def test_what_a_read_only_disk_does_not_let_go_goes_later_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    async def gone() -> frozenset[str]:
        return frozenset({a_grant().name})

    agent = an_agent(tmp_path)
    agent._grants.write(a_grant())
    monkeypatch.setattr(agent._orphaned_grants, "find", gone)
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        await agent._tidy()
    assert list(agent._grants.all()) == [a_grant()]
    await agent._tidy()
    assert list(agent._grants.all()) == []


async def test_what_a_container_was_given_stays_as_long_as_something_of_its_pod_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod was deleted by force, and a kubelet that was away never shows it again."""

    async def gone() -> frozenset[str]:
        return frozenset({a_grant().name})

    agent = an_agent(tmp_path)
    agent._grants.write(a_grant())
    monkeypatch.setattr(agent._orphaned_grants, "find", gone)
    main = a_container("main", {"nvidia.com/gpu": "1"})
    status = {"containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": "containerd://1"}]}
    pod = a_pod_object("a", uid="uid-a", node_name="node-a", containers=[main]) | {"status": status}
    agent._ended.observe(pod, gone=False)
    agent._ended.observe(pod, gone=True)
    await agent._tidy()
    assert list(agent._grants.all()) == [a_grant()]
    agent._ended._conclude(dict(agent._ended._doubtful), Sight(frozenset(), False))
    await agent._tidy()
    assert list(agent._grants.all()) == []
