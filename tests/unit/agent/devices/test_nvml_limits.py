"""Limits of memory, through the real pynvml: which cards can have them, why others can't, and what is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.nvml.fake_driver import FakeDriver
from fakes.nvml.fake_nvml import (
    NO_LIMIT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    Failure,
    Mig,
    SetLimit,
    limit_lines,
)
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.nvml_faults import NEEDS, NO_RIGHT
from gpuledger.agent.devices.source import DriverGone, LimitRefused, MemoryLimit

MIB = 1024 * 1024
SET = "nvmlDeviceSetMemoryLimits_v1"


class Groups:
    """The node's control groups: one, which is the agent's own."""

    def __init__(self, own: Path) -> None:
        self._own: Path | None = own
        self.why_not = ""

    def why_no_limits(self) -> str:
        return self.why_not

    def own(self) -> Path | None:
        return self._own

    def hide(self) -> None:
        self._own = None


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    (tmp_path / "own").mkdir()
    return Groups(tmp_path / "own")


@pytest.fixture
def limits(driver: FakeDriver, tmp_path: Path) -> Path:
    """Return the file in which the driver notes limits: there is one that knows them."""
    driver.says(limits=str(tmp_path / "limits"), driver_version="615.71.09")
    return tmp_path / "limits"


@pytest.fixture
def source(driver: FakeDriver, tmp_path: Path, groups: Groups) -> Iterator[NvmlSource]:
    source = NvmlSource(sysfs=tmp_path / "sys", groups=groups)
    source.open()
    yield source
    source.close()


def reasons(source: NvmlSource) -> list[str]:
    return [device.why_no_limits for device in source.snapshot().devices]


def test_a_driver_that_is_too_old_says_what_is_needed(source: NvmlSource) -> None:
    assert reasons(source) == [NEEDS, NEEDS]


def test_cards_of_a_newer_driver_can_be_limited_and_each_is_tried_once(
    source: NvmlSource, limits: Path, tmp_path: Path
) -> None:
    assert reasons(source) == reasons(source) == ["", ""]
    own = str(tmp_path / "own")
    assert limit_lines(limits.read_text()) == [
        SetLimit("GPU-00000000", own, 0, NO_LIMIT),
        SetLimit("GPU-00000001", own, 0, NO_LIMIT),
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (NO_PERMISSION, NO_RIGHT),
        (NOT_SUPPORTED, "the driver limits no memory on this card"),
        (UNKNOWN, "Unknown Error"),
        (NOT_FOUND, ""),  # the agent's own group has no limits; those of containers may
    ],
)
def test_a_card_that_refuses_says_why_and_the_other_does_not(
    driver: FakeDriver, source: NvmlSource, limits: Path, code: int, reason: str
) -> None:
    driver.says(failures=(Failure(code, SET, "GPU-00000000"),))
    first, second = reasons(source)
    assert first.startswith(reason) if reason else first == ""
    assert second == ""


def test_what_the_node_lacks_goes_before_what_the_driver_can(source: NvmlSource, limits: Path, groups: Groups) -> None:
    groups.why_not = "the node has control groups of version 1"
    assert reasons(source) == [groups.why_not] * 2
    groups.why_not = ""
    groups.hide()
    assert all("does not find its own control group" in each for each in reasons(source))
    assert not limits.exists()


def test_a_limit_is_set_in_bytes_and_removed_again(source: NvmlSource, limits: Path, tmp_path: Path) -> None:
    group = str(tmp_path / "own")
    source.snapshot()
    limits.unlink()
    for guaranteed, most in ((0, 4_000), (1_000, 4_000), (0, None), (0, 81_920), (0, 1_000_000)):
        source.limit_memory(MemoryLimit("GPU-00000001", group, guaranteed, most))
    assert limit_lines(limits.read_text()) == [
        SetLimit("GPU-00000001", group, 0, 4_000 * MIB),
        SetLimit("GPU-00000001", group, 1_000 * MIB, 4_000 * MIB),
        SetLimit("GPU-00000001", group, 0, NO_LIMIT),
        SetLimit("GPU-00000001", group, 0, NO_LIMIT),  # the whole card
        SetLimit("GPU-00000001", group, 0, NO_LIMIT),  # more than there is, by memory scaling
    ]


def test_a_refused_limit_names_card_group_and_reason(source: NvmlSource, limits: Path, tmp_path: Path) -> None:
    source.snapshot()
    with pytest.raises(LimitRefused, match=r"card GPU-00000000 .* for /nowhere: .*dmem"):
        source.limit_memory(MemoryLimit("GPU-00000000", "/nowhere", 0, 1_000))
    with pytest.raises(LimitRefused, match=r"card GPU-9 .* no longer lists it"):
        source.limit_memory(MemoryLimit("GPU-9", str(tmp_path / "own"), 0, 1_000))
    assert reasons(source) == ["", ""]


def test_a_card_that_can_not_after_all_takes_no_more_pods_until_the_driver_is_opened_anew(
    driver: FakeDriver, source: NvmlSource, limits: Path, tmp_path: Path
) -> None:
    assert reasons(source) == ["", ""]
    driver.says(failures=(Failure(NO_PERMISSION, SET, "GPU-00000000"),))
    with pytest.raises(LimitRefused, match="SYS_ADMIN"):
        source.limit_memory(MemoryLimit("GPU-00000000", str(tmp_path / "own"), 0, 1_000))
    driver.says(failures=())
    assert reasons(source) == [NO_RIGHT, ""]
    source.close()
    source.open()
    assert reasons(source) == ["", ""]


def test_a_driver_that_is_gone_sets_nothing(driver: FakeDriver, source: NvmlSource, limits: Path) -> None:
    source.snapshot()
    driver.says(driver_error=9)
    with pytest.raises(DriverGone):
        source.limit_memory(MemoryLimit("GPU-00000000", os.curdir, 0, 1_000))


def test_mig_devices_have_no_limits_and_need_none(driver: FakeDriver, source: NvmlSource, limits: Path) -> None:
    driver.card(0, mig=(Mig("MIG-a", place=0),))
    mig, whole = sorted(source.snapshot().devices, key=lambda device: device.uuid, reverse=True)
    assert (mig.mode, whole.why_no_limits) == ("mig", "")
    assert all(line.uuid != "GPU-00000000" for line in limit_lines(limits.read_text()) if isinstance(line, SetLimit))


def test_what_the_driver_keeps_of_a_card_is_known_and_rounded_up(driver: FakeDriver, source: NvmlSource) -> None:
    driver.state = replace(driver.state)
    driver.card(1, reserved_mib=450)
    source.close()
    source.open()
    assert [device.reserved_mib for device in source.snapshot().devices] == [0, 450]
