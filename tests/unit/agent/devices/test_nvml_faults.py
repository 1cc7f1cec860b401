"""Events of cards and the end of the driver, through the real pynvml."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from fakes.nvml.fake_driver import FakeDriver
from fakes.nvml.fake_nvml import (
    DOUBLE_BIT_ECC,
    GONE,
    LOST,
    UNKNOWN,
    Card,
    Failure,
    Mig,
    NvmlState,
    bus_id,
    environment,
    some_cards,
)
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import DriverGone, DriverReplaced, Fault

MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
FALLEN_OFF = Fault("GPU-00000001", 79, "Xid 79: fallen off the bus")

USES: list[Callable[[NvmlSource], object]] = [
    NvmlSource.snapshot,
    NvmlSource.uses,
    lambda source: source.wait_for_faults(1.0),
]


@pytest.fixture
def listed(source: NvmlSource) -> NvmlSource:
    """Return a source that has looked at its cards, and so gets their events."""
    source.snapshot()
    return source


def seconds(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def test_an_xid_ends_the_wait_at_once_and_comes_once(driver: FakeDriver, listed: NvmlSource) -> None:
    driver.event("GPU-00000001", 79)
    assert listed.wait_for_faults(60.0) == [FALLEN_OFF]
    assert listed.wait_for_faults(0.0) == []


def test_faults_that_came_together_are_returned_together(driver: FakeDriver, listed: NvmlSource) -> None:
    driver.event("GPU-00000000", 31)
    driver.event("GPU-00000001", 79)
    assert [fault.code for fault in listed.wait_for_faults(60.0)] == [31, 79]


def test_a_double_bit_ecc_error_has_the_xid_of_one(driver: FakeDriver, listed: NvmlSource) -> None:
    driver.event("GPU-00000000", 0, type=DOUBLE_BIT_ECC)
    assert listed.wait_for_faults(60.0) == [Fault("GPU-00000000", 48, "Xid 48: double-bit ECC error")]


def test_an_event_whose_card_can_not_be_named_is_about_every_card(driver: FakeDriver, listed: NvmlSource) -> None:
    driver.says(failures=(Failure(UNKNOWN, "nvmlDeviceGetUUID"),))
    driver.event("GPU-00000000", 999)
    assert listed.wait_for_faults(60.0) == [Fault("", 999, "Xid 999")]


def test_an_event_of_an_instance_is_about_its_mig_device_and_any_other_about_the_card(
    driver: FakeDriver, source: NvmlSource
) -> None:
    mig = (Mig("MIG-a", place=0, gpu_instance=7), Mig("MIG-b", place=1, gpu_instance=8))
    driver.says(cards=(Card("GPU-cut", bus_id(0), mig=mig),))
    source.snapshot()
    driver.event("GPU-cut", 94, gpu_instance=8, compute_instance=0)
    driver.event("GPU-cut", 94, gpu_instance=9, compute_instance=0)
    driver.event("GPU-cut", 95)
    assert [fault.uuid for fault in source.wait_for_faults(60.0)] == ["MIG-b", "GPU-cut", "GPU-cut"]


def test_a_lost_card_ends_the_wait_and_the_others_are_still_watched(driver: FakeDriver, listed: NvmlSource) -> None:
    driver.says(failures=(Failure(LOST, card="GPU-00000000"),))
    assert listed.wait_for_faults(60.0) == [Fault("GPU-00000000", 0, "does not answer: GPU is lost")]
    driver.event("GPU-00000001", 79)
    assert listed.wait_for_faults(60.0) == [FALLEN_OFF]


@pytest.mark.parametrize("code", [UNKNOWN, pynvml.NVML_ERROR_TIMEOUT])
def test_a_driver_that_does_not_wait_costs_no_core(driver: FakeDriver, listed: NvmlSource, code: int) -> None:
    driver.says(failures=(Failure(code, "nvmlEventSetWait_v2"),))
    assert seconds(lambda: listed.wait_for_faults(0.2)) >= 0.19


def test_cards_without_events_are_only_probed(driver: FakeDriver, source: NvmlSource) -> None:
    driver.card(0, event_types=None)
    driver.card(1, event_types=0)
    assert len(source.snapshot().devices) == 2
    assert seconds(lambda: source.wait_for_faults(0.2)) >= 0.19


@pytest.mark.parametrize("use", USES)
def test_a_driver_that_goes_is_gone_for_every_call_and_back_when_opened_anew(
    driver: FakeDriver, listed: NvmlSource, use: Callable[[NvmlSource], object]
) -> None:
    before = listed.snapshot()
    driver.says(driver_error=GONE)
    with pytest.raises(DriverGone, match="Driver Not Loaded"):
        use(listed)
    listed.close()
    with pytest.raises(DriverGone):
        listed.open()
    driver.says(driver_error=None)
    with pytest.raises(DriverGone, match="not open"):
        use(listed)
    listed.open()
    assert listed.snapshot() == before
    driver.event("GPU-00000001", 79)
    assert listed.wait_for_faults(60.0) == [FALLEN_OFF]


@pytest.mark.parametrize("use", USES)
def test_a_driver_that_was_away_for_a_moment_has_to_be_opened_anew(
    driver: FakeDriver, listed: NvmlSource, use: Callable[[NvmlSource], object]
) -> None:
    driver.says(driver_error=GONE)
    with pytest.raises(DriverGone):
        listed.snapshot()
    driver.says(driver_error=None)
    with pytest.raises(DriverGone, match="Uninitialized"):
        use(listed)


def test_a_driver_that_does_not_count_its_cards_is_gone(driver: FakeDriver, source: NvmlSource) -> None:
    driver.says(failures=(Failure(UNKNOWN, "nvmlDeviceGetCount_v2"),))
    with pytest.raises(DriverGone, match="does not count its cards: Unknown Error"):
        source.snapshot()


def test_another_version_is_a_reason_to_wait_before_the_library_has_worked_and_to_restart_after(
    driver: FakeDriver,
) -> None:
    source = NvmlSource()
    driver.says(driver_error=MISMATCH)
    with pytest.raises(DriverGone) as waiting:
        source.open()
    assert not isinstance(waiting.value, DriverReplaced)
    driver.says(driver_error=None)
    source.open()
    driver.says(driver_error=MISMATCH)
    with pytest.raises(DriverReplaced):
        source.open()


def test_a_program_with_the_library_in_its_search_path_takes_it_for_the_driver(tmp_path: Path) -> None:
    """As the agent does that runs as a process of its own, or in a container."""
    NvmlState(cards=some_cards(3)).write(tmp_path / "state")
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    variables = {**os.environ, **environment(tmp_path / "state")}
    found = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert found.stdout == "3\n"


def test_a_machine_without_the_library_has_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(DriverGone, match="NVML Shared Library Not Found"):
        NvmlSource().open()


def test_closing_raises_nothing_whatever_the_driver_says(driver: FakeDriver, tmp_path: Path) -> None:
    source = NvmlSource(sysfs=tmp_path)
    source.close()
    source.open()
    driver.says(driver_error=GONE)
    source.close()
    source.close()
