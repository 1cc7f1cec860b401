"""A driver whose answers a test changes as it goes, in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml import fake_nvml
from fakes.nvml.fake_driver import FakeDriver
from gpuledger.agent.devices.nvml import NvmlSource


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Return a driver with two cards."""
    monkeypatch.setenv(fake_nvml.STATE_VARIABLE, str(tmp_path / "state"))
    fake_nvml.load()
    return FakeDriver(tmp_path / "state")


@pytest.fixture
def source(driver: FakeDriver, tmp_path: Path) -> Iterator[NvmlSource]:
    """Return an open source on that driver, with an empty /sys."""
    source = NvmlSource(sysfs=tmp_path / "sys")
    source.open()
    yield source
    source.close()
