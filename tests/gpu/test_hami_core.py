"""HAMi-core keeps what docs/isolation.md says of it, on this machine's card and driver.

`tests/unit/stand_in_driver/test_hami_core.py` says which library GPULEDGER_HAMI_CORE has to name. The same tests, but
that of two core limits, run over the stand-in driver: `test_hami_core_as_on_a_card.py` there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import pytest

from gpu.clients import TIMEOUT_S
from gpu.hami_core_containers import LIBRARY, LOOK_S, Container, Containers, Machine, until
from gpuledger.agent.usage.regions import Regions

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""

CONTEXT_MIB = 1024
"""A context counts, too; it takes less than this."""

NEEDED_MIB = 8192
SETTLES_S = 5
TOLERANCE_PERCENT = 10
RECENT_S = 3.0
"""For so long a kernel counts after its launch."""

Say = Callable[[str], None]

pytestmark = pytest.mark.skipif(not LIBRARY, reason="GPULEDGER_HAMI_CORE names no libvgpu.so of HAMi-core")


@pytest.fixture
def machine() -> Machine:
    fields = "uuid,name,driver_version,mig.mode.current,compute_mode,memory.free"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
    uuid, name, version, mig, mode, free_mib = (each.strip() for each in found.strip().split(","))
    driver = f"driver {version}, {name}"
    if mig == "Enabled":
        pytest.skip(f"{driver}: the first card is in MIG mode")
    if mode != "Default":
        pytest.skip(f"{driver}: the first card is for one program at a time, its compute mode is {mode}")
    if free_mib.isdecimal() and int(free_mib) < NEEDED_MIB:
        pytest.skip(f"{driver}: {free_mib} MiB of the first card are free, and the tests need {NEEDED_MIB}")
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environment = {**own, "PYTHONPATH": os.pathsep.join(sys.path)}
    return Machine(driver, uuid, environment, measured_s=60, computes_s=10)


@pytest.fixture
def containers(machine: Machine, tmp_path: Path) -> Iterator[Containers]:
    made = Containers(machine, tmp_path)
    yield made
    made.close()


def test_the_guides_pod_sees_3000_mib_and_goes_on_after_cudas_error(containers: Containers, say: Say) -> None:
    pod = containers.start("guide", 3000)
    seen = pod.ask("seen")
    assert (seen["total_mib"], seen["nvml_total_mib"]) == (3000, 3000)
    assert 3000 - CONTEXT_MIB <= seen["free_mib"] <= 3000
    assert pod.ask(f"take {seen['free_mib'] + 1}")["result"] == OUT_OF_MEMORY
    assert pod.ask("launch 3")["launches"] == 3
    assert pod.ask(f"take {seen['free_mib'] // 2}")["result"] == 0
    filled = pod.ask("fill")
    held_mib = seen["free_mib"] // 2 + filled["taken_mib"]
    assert filled["result"] == OUT_OF_MEMORY
    assert 3000 - CONTEXT_MIB <= held_mib <= 3000
    assert pod.ask("launch 3")["launches"] == 3
    say(
        f"HAMi-core, {containers.machine.driver}: of 3000 MiB {seen['free_mib']} were free beside the context, one "
        f"more was refused with CUDA_ERROR_OUT_OF_MEMORY, {held_mib} were allocated, and kernels ran after it"
    )


def test_two_containers_limits_hold_at_once_on_one_card(containers: Containers, say: Say) -> None:
    pods = {limit_mib: containers.start(f"pod-{limit_mib}", limit_mib) for limit_mib in (3000, 2000)}
    filled = {limit_mib: pod.ask("fill") for limit_mib, pod in pods.items()}
    for limit_mib, pod in pods.items():
        seen = pod.ask("seen")
        assert (seen["total_mib"], seen["nvml_total_mib"]) == (limit_mib, limit_mib)
        assert filled[limit_mib]["result"] == OUT_OF_MEMORY
        assert limit_mib - CONTEXT_MIB <= filled[limit_mib]["taken_mib"] <= limit_mib
    taken_mib = [each["taken_mib"] for each in filled.values()]
    used_mib = containers.machine.nvml("memory")["used_mib"]
    assert used_mib >= sum(taken_mib)
    say(
        f"HAMi-core, {containers.machine.driver}: limits of {' and '.join(map(str, pods))} MiB at once; allocated "
        f"{' and '.join(map(str, taken_mib))}, and the card has {used_mib} in use"
    )


def test_a_low_priority_pauses_while_a_high_one_computes_and_goes_on_after_it(containers: Containers, say: Say) -> None:
    low = containers.start("low", 3000, priority="1")
    low.program.begin("compute")
    low.number()
    high = containers.start("high", 3000, priority="0")
    places, regions, paused = [low.place, high.place], Regions(RECENT_S), set[str]()

    def pausing() -> set[str]:
        return {name for name, look in regions.look(places).items() if look.paused}

    high.program.begin(f"compute {containers.machine.computes_s}")
    while not high.program.has_answered(LOOK_S):
        paused |= pausing()
    said_by_high = high.answer()
    assert paused == {"low"}
    until(lambda: not pausing(), "low goes on")
    resumed_s = low.region().last_kernel_s or 0
    until(lambda: (low.region().last_kernel_s or 0) > resumed_s + 1, "low launches kernels again")
    said = low.ask("stop")
    after = said["launches"] - said["before_longest"] - 1
    say(
        f"HAMi-core, {containers.machine.driver}: while a program of high priority computed for "
        f"{said_by_high['seconds']:.1f} s ({said_by_high['launches']} kernels), one of low priority waited for "
        f"{said['longest_s']:.1f} s, after {said['before_longest']} kernels and before {after}"
    )
    assert said["longest_s"] >= said_by_high["seconds"] - 4 * LOOK_S
    assert said["before_longest"] > 0
    assert after > 0


def test_mean_utilization_is_that_of_the_core_limit(containers: Containers, say: Say) -> None:
    machine = containers.machine
    unlimited = containers.start("unlimited", 3000, priority="0")
    whole, _ = busy_percents(machine, unlimited, SETTLES_S)
    unlimited.program.kill()
    limited = containers.start("limited", 3000, cores=30, policy="force")
    percents, kernels_percent = busy_percents(machine, limited, machine.measured_s)
    say(
        f"HAMi-core, {machine.driver}: with a core limit of 30 %, {mean(percents):.1f} % on average of "
        f"{len(percents)} s by NVML (a second: {min(percents):.0f} to {max(percents):.0f} %), "
        f"at least {kernels_percent:.1f} % by the program's clock; without a limit {mean(whole):.1f} %"
    )
    assert mean(whole) >= 80, "the kernels are too small to need a limit"
    assert abs(mean(percents) - 30) <= TOLERANCE_PERCENT


def test_two_core_limits_hold_at_once_on_one_card(containers: Containers, say: Say) -> None:
    machine, limits = containers.machine, (20, 50)
    pods = [containers.start(f"cores-{limit}", 3000, cores=limit, policy="force") for limit in limits]
    for pod in pods:
        pod.program.begin("compute")
    numbers = [pod.number() for pod in pods]
    seconds = SETTLES_S + machine.measured_s // 2
    views = [machine.nvml_begun("cores", str(number), str(seconds)) for number in numbers]
    means = [mean(view()["percents"][SETTLES_S:]) for view in views]
    launches = [pod.ask("stop")["launches"] for pod in pods]
    say(
        f"HAMi-core, {machine.driver}: with core limits of {' and '.join(map(str, limits))} % at once, "
        f"{' and '.join(f'{each:.1f}' for each in means)} % on average of {seconds - SETTLES_S} s by NVML, and "
        f"{' and '.join(map(str, launches))} kernels"
    )
    for limit, found in zip(limits, means, strict=True):
        assert abs(found - limit) <= TOLERANCE_PERCENT


def busy_percents(machine: Machine, container: Container, seconds: int) -> tuple[list[float], float]:
    """Have a program compute; return what NVML says of each second, and what it says itself, once it has settled."""
    container.program.begin("compute")
    percents = machine.nvml("cores", str(container.number()), str(SETTLES_S + seconds))["percents"]
    said = container.ask("stop")
    return percents[SETTLES_S:], 100 * said["launches"] * said["shortest_s"] / said["seconds"]
