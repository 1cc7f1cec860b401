"""What a grant says of limits, priority and the place of counters; all of it the agent's own word."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.grants import a_grant
from fakes.shared_regions import a_hami_grant
from gpuledger.agent.isolation.choice import GrantedCard, mps_edits
from gpuledger.agent.isolation.hami_core import hami_core_edits
from gpuledger.agent.usage.regions import LOW, GrantedPart, granted_parts, region_place
from gpuledger.formats.runtime.cdi import CardLimit, bind_mount

NAMES = ["GPULEDGER_UUIDS=GPU-1,GPU-2", "GPULEDGER_MEMORY_MIB=3000,8000", "GPULEDGER_CORES=30,0"]


def a_card(uuid: str, memory_mib: int) -> GrantedCard:
    return GrantedCard(uuid, 0, "nvidia", "", memory_mib, cores=30, exclusive=False)


CARDS = (a_card("GPU-1", 3000), a_card("GPU-2", 8000))


def test_what_is_held_is_what_the_container_was_told() -> None:
    grant = a_grant(uuids=("GPU-1", "GPU-2"), edits={"env": NAMES})
    assert granted_parts(grant) == [GrantedPart("GPU-1", 0, 3000, 30, None), GrantedPart("GPU-2", 1, 8000, 0, None)]


@pytest.mark.parametrize("edits", [hami_core_edits(CARDS, "/lib", "/own", ""), mps_edits(CARDS, "/mps")])
def test_the_limit_is_the_one_that_the_isolation_sets(edits: dict[str, list[str]]) -> None:
    grant = a_grant(uuids=("GPU-1", "GPU-2"), edits={"env": [*NAMES, *edits["env"]]})
    assert [part.memory_limit_mib for part in granted_parts(grant)] == [3000, 8000]


def test_a_limit_of_the_driver_is_its_most() -> None:
    limits = (CardLimit("GPU-1", 1000, 3000),)
    grant = a_grant(uuids=("GPU-1", "GPU-2"), edits={"env": NAMES}, limits=limits)
    assert [part.memory_limit_mib for part in granted_parts(grant)] == [3000, None]


def test_hardware_limits_a_mig_device() -> None:
    grant = a_grant(uuids=("MIG-1",), edits={"env": ["GPULEDGER_MEMORY_MIB=9856", "GPULEDGER_CORES=100"]})
    assert granted_parts(grant) == [GrantedPart("MIG-1", 0, 9856, 100, 9856)]


@pytest.mark.parametrize("amount", ["3g", "3072m", "3145728k", "3221225472"])
def test_an_amount_is_read_as_hami_core_reads_it(amount: str) -> None:
    (part,) = granted_parts(a_grant(edits={"env": [f"CUDA_DEVICE_MEMORY_LIMIT_0={amount}"]}))
    assert part.memory_limit_mib == 3072


@pytest.mark.parametrize("amount", ["0m", "", "many", "3t", "-3m", "m"])
def test_what_is_no_amount_limits_nothing(amount: str) -> None:
    (part,) = granted_parts(a_grant(edits={"env": [f"CUDA_DEVICE_MEMORY_LIMIT_0={amount}"]}))
    assert part.memory_limit_mib is None


def test_counters_that_are_mounted_as_a_file_are_found(tmp_path: Path) -> None:
    grant = a_hami_grant("a", tmp_path)
    mounts = [bind_mount(f"{tmp_path}/counters", "/usr/local/vgpu/usage.cache", "rw"), *grant.edits["mounts"]]
    place = region_place(replace(grant, edits=grant.edits | {"mounts": mounts}))
    assert place is not None
    assert (place.directory, place.file) == (str(tmp_path), "counters")


def test_the_counters_are_where_the_agent_has_mounted_them(tmp_path: Path) -> None:
    edits = hami_core_edits(CARDS, "/lib", "/own/of-uid-a", "0")
    place = region_place(a_grant("slot-1", uuids=("GPU-1", "GPU-2"), edits=edits))
    assert place is not None
    assert (place.directory, place.file, place.priority) == ("/own/of-uid-a", "usage.cache", 0)
    assert (place.name, place.uuids) == ("slot-1", ("GPU-1", "GPU-2"))


def test_a_container_whose_grant_names_no_priority_has_a_low_one(tmp_path: Path) -> None:
    for grant in (a_hami_grant("a", tmp_path), a_hami_grant("a", tmp_path, priority=1)):
        place = region_place(grant)
        assert place is not None
        assert place.priority == LOW


def test_a_container_without_hami_core_has_no_counters() -> None:
    assert region_place(a_grant()) is None
    assert region_place(a_grant(edits=mps_edits(CARDS, "/mps"))) is None
    assert region_place(a_grant(edits={"env": ["CUDA_DEVICE_MEMORY_SHARED_CACHE=/elsewhere/usage.cache"]})) is None
