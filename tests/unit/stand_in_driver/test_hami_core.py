"""What HAMi-core itself does over the stand-in driver: the facts that isolation `hami-core` and its monitor rely on.

It is not part of this repository. GPULEDGER_HAMI_CORE names a libvgpu.so of HAMi-core's source at 8f3a89c or later,
built with CUDA's and NVML's headers and the macros of its build.sh (MULTIPROCESS_LIMIT_ENABLE, HOOK_MEMINFO_ENABLE,
HOOK_NVML_ENABLE, DLSYM_HOOK_ENABLE), without its tests, which need nvcc. Contexts take 300 MiB here, and count.
"""

import os
import time
from pathlib import Path

import pytest

from gpuledger.agent.isolation.choice import GrantedCard, HamiCore
from gpuledger.agent.isolation.hami_core import hami_core_edits, own_directory
from gpuledger.formats.runtime.shared_region import (
    ACTIVE,
    IDLE,
    LIMITER_OFF,
    PAUSED,
    SharedRegion,
    packed,
    read_shared_region,
)
from stand_in_driver.stand_in_driver import CudaProgram, StandInDriver, some_cards

LIBRARY = os.environ.get("GPULEDGER_HAMI_CORE", "")
MIB = 1024 * 1024
STILL_WAITS_S = 1.5
"""A paused program looks once a second whether it may go on."""

pytestmark = pytest.mark.skipif(not LIBRARY, reason="GPULEDGER_HAMI_CORE names no libvgpu.so of HAMi-core")


class Container:
    """Programs that share a region, as those of one container do."""

    def __init__(self, directory: Path) -> None:
        self._driver = StandInDriver(directory, some_cards(2))
        self.region_file = directory / "usage.cache"
        self._variables = {
            "LD_PRELOAD": str(Path(LIBRARY).resolve()),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region_file),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_MEMORY_LIMIT_1": "5000m",
        }

    def run(self, *steps: str, **more: str) -> list[str]:
        return self._driver.run(*steps, **(self._variables | more))

    def start(self, **more: str) -> CudaProgram:
        return self._driver.start(**(self._variables | more))

    def region(self) -> SharedRegion:
        data = self.region_file.read_bytes()
        return read_shared_region(len(data), lambda offset, length: data[offset : offset + length])

    def write(self, offset: int, value: int) -> None:
        file = os.open(self.region_file, os.O_RDWR)
        os.pwrite(file, packed(value), offset)
        os.close(file)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.parametrize("way", ["address", "dlsym"])
def test_a_limited_program_sees_its_limit_and_gets_cudas_error_beyond_it(container: Container, way: str) -> None:
    steps = ("info", "total", "nvml", "alloc 2701", "alloc 2700", "info", "nvml", "free", "alloc 100")
    assert container.run(*steps, CUDA_STEPS_BY=way) == [
        "info CUDA_SUCCESS free_mib=2700 total_mib=3000",
        "total CUDA_SUCCESS total_mib=3000",
        "nvml used_mib=300 total_mib=3000",
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=2701",
        "alloc CUDA_SUCCESS mib=2700",
        "info CUDA_SUCCESS free_mib=0 total_mib=3000",
        "nvml used_mib=3000 total_mib=3000",
        "free CUDA_SUCCESS",
        "alloc CUDA_SUCCESS mib=100",
    ]


def test_each_card_has_its_own_limit(container: Container) -> None:
    assert container.run("alloc 2700", "device 1", "info", "alloc 4701", "alloc 4700") == [
        "alloc CUDA_SUCCESS mib=2700",
        "device CUDA_SUCCESS",
        "info CUDA_SUCCESS free_mib=4700 total_mib=5000",
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=4701",
        "alloc CUDA_SUCCESS mib=4700",
    ]


def test_what_our_agent_sets_is_what_the_library_reads(container: Container, tmp_path: Path) -> None:
    cards = [
        GrantedCard("GPU-0", 0, "nvidia", "", 3000, 30, False),
        GrantedCard("GPU-1", 1, "nvidia", "", 500, 0, False),
    ]
    own = own_directory(str(tmp_path), "uid-a_main", starts=True)
    edits = hami_core_edits(cards, str(tmp_path), str(own), "0", HamiCore(core_policy="force"))
    container.region_file = own / "usage.cache"
    here = {
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(container.region_file),
        "CUDA_REDIRECT": str(Path(LIBRARY).resolve()),
    }
    variables = dict(line.split("=", 1) for line in edits["env"]) | here
    own.chmod(0o555)  # the container has the file mounted, and no directory
    printed = container.run("alloc 2701", "alloc 2700", "device 1", "info", **variables)
    assert printed == [
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=2701",
        "alloc CUDA_SUCCESS mib=2700",
        "device CUDA_SUCCESS",
        "info CUDA_SUCCESS free_mib=200 total_mib=500",
    ]
    region = container.region()
    limits = [(each.memory_limit_bytes // MIB, each.cores_limit_percent) for each in region.devices]
    assert (limits, region.priority) == ([(3000, 30), (500, 100)], 0)


def test_processes_of_one_container_share_its_limit_and_its_region_has_them(container: Container) -> None:
    with container.start(CUDA_TASK_PRIORITY="0", CUDA_DEVICE_SM_LIMIT="30") as one:
        assert one.step("alloc 2000") == "alloc CUDA_SUCCESS mib=2000"
        with container.start() as other:
            assert other.step("alloc 401") == "alloc CUDA_ERROR_OUT_OF_MEMORY mib=401"
            assert other.step("alloc 400") == "alloc CUDA_SUCCESS mib=400"
            region = container.region()
    assert {process.pid: process.uses[0].total_bytes // MIB for process in region.processes} == {
        one.pid: 2300,
        other.pid: 700,
    }
    limits = [(each.memory_limit_bytes // MIB, each.cores_limit_percent) for each in region.devices]
    assert limits == [(3000, 30), (5000, 30)]
    assert (region.priority, region.recent_kernel) == (0, ACTIVE)


def test_what_a_killed_process_had_counts_until_the_next_one_starts(container: Container) -> None:
    with container.start() as victim:
        assert victim.step("alloc 2000") == "alloc CUDA_SUCCESS mib=2000"
        victim.kill()
    assert container.region().used_bytes(0) == 2300 * MIB
    assert container.run("info", "alloc 2700") == [
        "info CUDA_SUCCESS free_mib=2700 total_mib=3000",
        "alloc CUDA_SUCCESS mib=2700",
    ]
    assert container.region().used_bytes(0) == 0


@pytest.mark.parametrize("limit", ["30", "99"])
def test_a_program_with_a_core_limit_waits_while_it_is_paused(container: Container, limit: str) -> None:
    with container.start(CUDA_DEVICE_SM_LIMIT=limit, CUDA_TASK_PRIORITY="1") as program:
        pause(container, program)
        program.begin("launch 1 1")
        assert not program.has_answered(STILL_WAITS_S)
        container.write(container.region().layout.recent_kernel_at, IDLE)
        assert program.answer().startswith("launch CUDA_SUCCESS")
        assert container.region().recent_kernel == ACTIVE


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_DEVICE_SM_LIMIT": "0"},
        {"CUDA_DEVICE_SM_LIMIT": "100"},
        {"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "disable"},
    ],
)
def test_a_program_without_a_core_limit_does_not_pause(container: Container, variables: dict[str, str]) -> None:
    with container.start(CUDA_TASK_PRIORITY="1", **variables) as program:
        pause(container, program)
        assert program.step("launch 1 1").startswith("launch CUDA_SUCCESS")
        assert container.region().recent_kernel == PAUSED


def test_where_the_limiter_is_off_only_the_policy_force_pauses(container: Container) -> None:
    with container.start(CUDA_DEVICE_SM_LIMIT="30", GPU_CORE_UTILIZATION_POLICY="force") as program:
        pause(container, program)
        container.write(container.region().layout.utilization_switch_at, LIMITER_OFF)
        program.begin("launch 1 1")
        assert not program.has_answered(STILL_WAITS_S)


def pause(container: Container, program: CudaProgram) -> None:
    """Pause a program once the thread of the library runs that reads the switch, and writes what NVML says."""
    assert program.step("info").startswith("info CUDA_SUCCESS")
    give_up = time.monotonic() + 30
    while not any(process.uses[0].monitored_bytes for process in container.region().processes):
        assert time.monotonic() < give_up, "the library asks NVML for nothing"
        time.sleep(0.01)
    container.write(container.region().layout.recent_kernel_at, PAUSED)


def test_a_region_that_can_not_be_made_ends_the_program(container: Container) -> None:
    with container.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/nowhere/usage.cache") as program:
        code, errors = program.end()
        assert code == 1
        assert "Fail to open shrreg" in errors


def test_the_limits_of_the_process_that_made_the_region_stay(container: Container) -> None:
    assert container.run("total") == ["total CUDA_SUCCESS total_mib=3000"]
    assert container.run("total", CUDA_DEVICE_MEMORY_LIMIT_0="9000m") == ["total CUDA_SUCCESS total_mib=3000"]


def test_a_card_without_a_limit_has_no_memory_by_cu_device_total_mem(container: Container) -> None:
    assert container.run("total", "info", "alloc 80000", CUDA_DEVICE_MEMORY_LIMIT_0="") == [
        "total CUDA_SUCCESS total_mib=0",
        "info CUDA_SUCCESS free_mib=81620 total_mib=81920",
        "alloc CUDA_SUCCESS mib=80000",
    ]


def test_a_limit_above_the_card_gives_no_more_than_the_card(container: Container) -> None:
    variables = {"CUDA_DEVICE_MEMORY_LIMIT_0": "100000m", "CUDA_OVERSUBSCRIBE": "true"}
    assert container.run("total", "info", "alloc 81621", **variables) == [
        "total CUDA_SUCCESS total_mib=100000",
        "info CUDA_SUCCESS free_mib=81620 total_mib=81920",
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=81621",
    ]
