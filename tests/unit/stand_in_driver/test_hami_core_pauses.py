"""Programs with HAMi-core itself pause and go on as the agent's monitor has it, with what the agent gives containers.

The library is not part of this repository: test_hami_core.py says which one GPULEDGER_HAMI_CORE has to name.
"""

import os
import time
from pathlib import Path

import pytest

from fakes.shared_regions import a_hami_grant
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.isolation.hami_core import hami_core_edits
from gpuledger.agent.usage.regions import RegionPlace, Regions, region_place
from stand_in_driver.stand_in_driver import CudaProgram, StandInDriver, some_cards

LIBRARY = os.environ.get("GPULEDGER_HAMI_CORE", "")
STILL_WAITS_S = 1.5
"""A paused program looks once a second whether it may go on."""

PATIENCE_S = 30.0
RECENT_S = 20.0
"""Longer than the agent's, so that a slow machine is no idle program."""

pytestmark = pytest.mark.skipif(not LIBRARY, reason="GPULEDGER_HAMI_CORE names no libvgpu.so of HAMi-core")


class Containers:
    """One card, containers with parts of it, and the monitor's passes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (self._card,) = some_cards(1)
        self._driver = StandInDriver(root, [self._card])
        self._places: list[RegionPlace] = []
        self.later_s = 0.0
        self._regions = Regions(RECENT_S, lambda: time.time() + self.later_s)

    def start(self, name: str, priority: int, cores: int) -> CudaProgram:
        """Start a program in a container of its own, which holds so many percent of cores; 0: none were promised."""
        directory = self._root / name
        directory.mkdir()
        place = region_place(a_hami_grant(name, directory, priority, [self._card.uuid]))
        assert place is not None
        self._places.append(place)
        card = GrantedCard(self._card.uuid, 0, "nvidia", "", 3000, cores, exclusive=False)
        edits = hami_core_edits([card], "/lib", str(directory), str(priority))
        here = {
            "LD_PRELOAD": str(Path(LIBRARY).resolve()),
            "CUDA_REDIRECT": str(Path(LIBRARY).resolve()),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(directory / "usage.cache"),
        }
        return self._driver.start(**dict(line.split("=", 1) for line in edits["env"]) | here)

    def pausing(self) -> set[str]:
        """Let a pass go by; return who pauses then."""
        return {name for name, look in self._regions.look(self._places).items() if look.paused}

    def wait_for_thread(self, name: str) -> None:
        """Wait until the library's thread runs, by which its programs pause at all."""
        give_up = time.monotonic() + PATIENCE_S
        while not any(
            process.uses[0].monitored_bytes for process in self._regions.look(self._places)[name].region.processes
        ):
            assert time.monotonic() < give_up, "the library asks NVML for nothing"
            time.sleep(0.01)


def stops(program: CudaProgram) -> bool:
    """Return whether a program waits, in a step that it does not end: its library reads the switch now and then."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        program.begin("launch 5 1")
        if not program.has_answered(STILL_WAITS_S):
            return True
        program.answer()
    return False


@pytest.mark.parametrize("cores", [0, 30])
def test_a_low_priority_launches_nothing_while_a_high_one_does(tmp_path: Path, cores: int) -> None:
    containers = Containers(tmp_path)
    with containers.start("low", 1, cores) as low, containers.start("high", 0, cores) as high:
        assert low.step("launch 5 1").startswith("launch CUDA_SUCCESS")
        containers.wait_for_thread("low")
        assert high.step("launch 5 1").startswith("launch CUDA_SUCCESS")
        assert containers.pausing() == {"low"}
        assert stops(low)
        assert high.step("launch 5 1").startswith("launch CUDA_SUCCESS")
        containers.later_s = RECENT_S + 2
        containers.pausing()  # in which the count of kernels that older libraries keep goes down
        assert containers.pausing() == set()
        assert low.answer().startswith("launch CUDA_SUCCESS")

        containers.later_s = 0
        assert high.step("launch 5 1").startswith("launch CUDA_SUCCESS")
        assert containers.pausing() == {"low"}
        assert stops(low)
        high.kill()
        assert containers.pausing() == set()
        assert low.answer().startswith("launch CUDA_SUCCESS")
