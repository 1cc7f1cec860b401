"""Programs with HAMi-core as the agent's own code gives it to containers, side by side on the first card of a machine.

The machine's driver is a real one or the stand-in. HAMi-core numbers cards as NVML does, so the first one is the card:
the runtime, which would hide the others from a container, is not here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.grants import a_grant
from gpuledger.agent.isolation.choice import GrantedCard, HamiCore
from gpuledger.agent.isolation.hami_core import REGION, hami_core_edits, own_directory
from gpuledger.agent.usage.regions import region_place
from gpuledger.formats.runtime.shared_region import RegionProcess, SharedRegion, read_shared_region
from gpuledger.model.errors import BadInput
from stand_in_driver.stand_in_driver import CudaProgram

Json = dict[str, Any]

LIBRARY = os.environ.get("GPULEDGER_HAMI_CORE", "")
HERE = Path(__file__).parent
PATIENCE_S = 120.0
NVML_S = 240.0
"""More than the longest look, which is of the minute in which utilization is measured."""

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Machine:
    """A driver with at least one card."""

    driver: str
    """Which one, and which card: for the report."""
    uuid: str
    environment: Mapping[str, str]
    """Of a program that uses the card, without HAMi-core."""
    measured_s: int
    """For how long utilization is measured."""
    computes_s: int
    """For how long a program of high priority computes."""

    def nvml(self, *arguments: str) -> Json:
        """Return what NVML says outside of containers. Skips the test if the driver refuses it."""
        return self.nvml_begun(*arguments)()

    def nvml_begun(self, *arguments: str) -> Callable[[], Json]:
        """Begin to ask NVML, and return what waits for its answer, as `nvml` does."""
        argv = [sys.executable, str(HERE / "nvml_view.py"), *arguments]
        asked = subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def answer() -> Json:
            out, errors = asked.communicate(timeout=NVML_S)
            assert asked.returncode == 0, errors
            found: Json = json.loads(out)
            if "refused" in found:
                pytest.skip(f"{self.driver}: NVML does not say what HAMi-core needs to know: {found['refused']}")
            return found

        return answer


class Container:
    """A container's only program."""

    def __init__(self, machine: Machine, directory: Path, name: str, card: GrantedCard, priority: str, policy: str):
        self._machine = machine
        own = own_directory(str(directory), f"uid-{name}_main", starts=True)
        node = HamiCore(core_policy=policy, log_level="1")
        edits = hami_core_edits([card], str(directory), str(own), priority, node)
        place = region_place(a_grant(name, name, uuids=(card.uuid,), edits=edits))
        assert place is not None
        self.place = place
        self._region = own / REGION
        here = {  # what the container would have mounted
            "LD_PRELOAD": str(Path(LIBRARY).resolve()),
            "CUDA_REDIRECT": str(Path(LIBRARY).resolve()),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self._region),
        }
        variables = dict(line.split("=", 1) for line in edits["env"]) | here
        command = [sys.executable, "-m", "gpu.hami_core_client"]
        self.program = CudaProgram(command, {**machine.environment, **variables})

    def ask(self, step: str) -> Json:
        """Have a step done, and return what the program says of it."""
        self.program.begin(step)
        return self.answer()

    def answer(self) -> Json:
        """Wait for what the program says of the step that was begun."""
        assert self.program.has_answered(PATIENCE_S), f"{self.place.name} says nothing"
        line = self.program.answer()
        if not line:
            code, errors = self.program.end()
            pytest.fail(f"{self.place.name} has ended with {code}: {errors[-2000:]}")
        said: Json = json.loads(line)
        assert "failed" not in said, said
        return said

    def region(self) -> SharedRegion:
        data = self._region.read_bytes()
        return read_shared_region(len(data), lambda offset, length: data[offset : offset + length])

    def number(self) -> int:
        """Wait until HAMi-core knows NVML's number of the process, and return it.

        Without it, it neither limits cores nor pauses. Skips the test where NVML lists no processes.
        """
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            for process in self._processes():
                if process.host_pid and process.uses[0].monitored_bytes:
                    return process.host_pid
            if not self._machine.nvml("memory")["processes"]:
                pytest.skip(f"{self._machine.driver}: NVML lists no processes, so HAMi-core limits no cores")
            time.sleep(0.1)
        pytest.fail(f"HAMi-core does not find the process of {self.place.name} among those that NVML lists")

    def _processes(self) -> tuple[RegionProcess, ...]:
        try:
            return self.region().processes
        except BadInput:
            return ()  # it is not set up yet


class Containers:
    """All containers of a test. As a context manager, their programs end with the block."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self._directory = machine, directory
        self._programs = ExitStack()

    def start(
        self, name: str, memory_mib: int, cores: int = 0, *, priority: str = "1", policy: str = "default"
    ) -> Container:
        """Start a program in a container with these parts of the card; cores in percent, 0: none were promised."""
        card = GrantedCard(self.machine.uuid, 0, "nvidia", "", memory_mib, cores, exclusive=False)
        container = Container(self.machine, self._directory, name, card, priority, policy)
        self._programs.enter_context(container.program)
        container.ask("seen")  # it has a context then
        return container

    def close(self) -> None:
        self._programs.close()


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something, looking as often as the monitor of an impatient agent would."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, f"never: {what}"
        time.sleep(LOOK_S)
