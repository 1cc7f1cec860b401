"""Which faults an agent finds that another one has seen, and that they end with the machine's and the driver's life."""

from pathlib import Path

import pytest

from gpuledger.agent.devices.health import Remembered
from gpuledger.agent.fault_memory import FILE, FaultFile, life_of_driver
from gpuledger.model.failure import Failure, FaultClass

SEEN = (
    Remembered("GPU-a", Failure(FaultClass.LOST, "2026-01-01T00:00:00Z"), "Xid 79", was_asked=True),
    Remembered("GPU-b", Failure(FaultClass.OTHER, "2026-01-01T00:00:05Z")),
)


def test_what_one_agent_keeps_the_next_one_finds(tmp_path: Path) -> None:
    assert FaultFile(tmp_path / "state", "1").load() == ()
    FaultFile(tmp_path / "state", "1").keep(SEEN)
    assert FaultFile(tmp_path / "state", "1").load() == SEEN


def test_nothing_is_left_of_an_earlier_life_of_the_machine_or_its_driver(tmp_path: Path) -> None:
    FaultFile(tmp_path, "1").keep(SEEN)
    assert FaultFile(tmp_path, "2").load() == ()


@pytest.mark.parametrize("content", ["", "[]", '{"life": "1", "faults": [{"uuid": 7}]}', "\x00"])
def test_a_file_that_can_not_be_read_stops_no_agent(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert FaultFile(tmp_path, "1").load() == ()


def test_a_directory_that_can_not_be_written_stops_no_agent(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    FaultFile(tmp_path / "state", "1").keep(SEEN)


def test_a_life_ends_when_the_machine_starts_or_the_driver_is_loaded_anew(tmp_path: Path) -> None:
    boot_id, module, other = tmp_path / "boot_id", tmp_path / "nvidia", tmp_path / "another"
    lives = [life_of_driver(boot_id, module)]
    boot_id.write_text("one\n")
    lives.append(life_of_driver(boot_id, module))
    module.mkdir()
    lives.append(life_of_driver(boot_id, module))
    other.mkdir()  # while the first is there, so that it has a number of its own
    lives.append(life_of_driver(boot_id, other))
    boot_id.write_text("two\n")
    lives.append(life_of_driver(boot_id, other))
    assert len(set(lives)) == len(lives)
    assert life_of_driver(boot_id, other) == lives[-1]
