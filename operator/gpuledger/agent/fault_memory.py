"""The file in which an agent finds the faults that only a reset mends, and when the others began.

It is of use until the machine is started or the driver loaded anew, which set up every card. So the file says in which
life of both it was written: by the kernel's `random/boot_id`, and by the number of the driver's directory in sysfs,
which is another one each time (kernfs gives none twice while the machine runs).
"""

from __future__ import annotations

import logging
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gpuledger.agent.devices.health import Remembered
from gpuledger.agent.grants.files import write_whole
from gpuledger.model.failure import Failure, FaultClass

logger = logging.getLogger(__name__)

FILE = "faults.json"
BOOT_ID, MODULE = Path("/proc/sys/kernel/random/boot_id"), Path("/sys/module/nvidia")


class _Row(BaseModel):
    model_config = ConfigDict(strict=True)

    uuid: str
    fault_class: str
    since: str
    text: str = ""
    was_asked: bool = False


class _File(BaseModel):
    life: str
    faults: list[_Row]


_FILE = TypeAdapter(_File)


class FaultFile:
    """Implements FaultMemory."""

    def __init__(self, directory: Path, life: str | None = None) -> None:
        self._file, self._life = directory / FILE, life_of_driver() if life is None else life

    def load(self) -> tuple[Remembered, ...]:
        """Return what was kept last, in this life of the machine and its driver."""
        try:
            found = _FILE.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            logger.warning("%s can't be read, so earlier faults of cards are not known: %s", self._file, error)
            return ()
        if found.life != self._life:
            return ()
        return tuple(
            Remembered(each.uuid, Failure(FaultClass(each.fault_class), each.since), each.text, each.was_asked)
            for each in found.faults
        )

    def keep(self, remembered: tuple[Remembered, ...]) -> None:
        """Keep this in place of it."""
        rows = [
            _Row(
                uuid=each.uuid,
                fault_class=each.failure.fault_class,
                since=each.failure.since,
                text=each.text,
                was_asked=each.was_asked,
            )
            for each in remembered
        ]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, orjson.dumps(_File(life=self._life, faults=rows).model_dump()))
        except OSError as error:
            logger.warning("another agent on this node would not know these faults: %s", error)


def life_of_driver(boot_id: Path = BOOT_ID, module: Path = MODULE) -> str:
    """Return what is another text after each start of the machine, and each time its driver was loaded."""
    try:
        booted = boot_id.read_text().strip()
    except OSError:
        booted = ""
    try:
        loaded = str(module.stat().st_ino)
    except OSError:
        loaded = ""
    return f"{booted}/{loaded}"
