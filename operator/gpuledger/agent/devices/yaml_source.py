"""Cards that a file lists: for simulations, and for cards of other vendors, whose drivers we don't know.

    driverVersion: "1.2"            # optional, as is cudaVersion
    cards:
      - uuid: ASCEND-0              # as it shall be named in the ledger
        memoryMiB: 65536
        vendor: ascend              # nvidia if absent; of the fields, only uuid and memoryMiB have to be there
        model: 910B3
        index: 0                    # the position in the list if absent
        numaNode: 0
        pcieRoot: pci0000:16
        links: {ASCEND-1: 100}      # peer's UUID to score, higher is faster
        number: 4                   # slots; the node's configuration if absent
        healthy: false              # or `fault`, with the reason
        faultClass: lost            # or reset, contained, other: what it means for programs (docs/failed-cards.md)

The file is read again when it changes, also while cards are in use. A version that can't be used changes nothing.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuledger.agent.devices.source import NOT_ASKED, Device, DeviceUses, Fault, LimitRefused, MemoryLimit, Snapshot
from gpuledger.formats.custom_resource.gpu_allocation import Line, LinkScore, SomeMemoryMiB, SomeSlots, Word, wire_name
from gpuledger.formats.custom_resource.stored_card import MAX_INDEX, MAX_LINKS, UUID_PATTERN
from gpuledger.formats.dialects.vendors import yaml_of
from gpuledger.model.errors import BadInput
from gpuledger.model.failure import Failure, FaultClass

logger = logging.getLogger(__name__)

NO_REASON = "the file marks it as unhealthy"

_Uuid = Annotated[str, Field(pattern=UUID_PATTERN, max_length=253)]
_Index = Annotated[int, Field(ge=0, le=MAX_INDEX)]
_Version = tuple[int, int, int]  # inode, time of the last change in nanoseconds, size


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=wire_name, frozen=True, strict=True, extra="forbid")


class _Card(_Part):
    uuid: _Uuid
    memory_mib: SomeMemoryMiB
    index: _Index | None = None
    vendor: Word = "nvidia"
    model: Line = ""
    numa_node: Annotated[int, Field(ge=-1, le=MAX_INDEX)] | None = None
    pcie_root: Word = ""
    links: Annotated[dict[_Uuid, LinkScore], Field(max_length=MAX_LINKS)] = {}
    number: SomeSlots | None = None
    healthy: bool = True
    fault: Line = ""
    fault_class: Literal["lost", "reset", "contained", "other"] | None = None

    def device(self, position: int) -> Device:
        index = position if self.index is None else self.index
        fault = self.fault or ("" if self.healthy else NO_REASON)
        failure = Failure(FaultClass(self.fault_class), "") if fault and self.fault_class else None
        own = self.model_dump(exclude={"index", "healthy", "fault", "fault_class"})
        return Device(**own, index=index, fault=fault, failure=failure)


class _File(_Part):
    cards: list[_Card]
    driver_version: Line = ""
    cuda_version: Line = ""


class YamlSource:
    """Implements DeviceSource."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version: _Version | None = None
        self._snapshot = Snapshot(())

    def open(self) -> None:
        """Read the file. Raises BadInput when it can't be used."""
        try:
            self._version = self._version_now()
            self._snapshot = read_cards_file(self._file)
        except OSError as error:
            raise BadInput(f"{self._file} can't be read: {error.strerror}") from error

    def snapshot(self) -> Snapshot:
        """Return the cards of the file; of its last good version when the present one can't be used."""
        try:
            version = self._version_now()
            if version != self._version:
                self._version = version
                self._snapshot = read_cards_file(self._file)
                logger.info("%s has changed: it lists %d cards", self._file, len(self._snapshot.devices))
        except OSError as error:
            if self._version is not None:
                logger.error("%s can't be read, the cards stay as they are: %s", self._file, error.strerror)
            self._version = None
        except BadInput as error:
            logger.error("the cards stay as they are: %s", error)
        return self._snapshot

    def wait_for_faults(self, timeout_s: float) -> list[Fault]:
        """Wait; a file tells of faults by what it says of a card."""
        time.sleep(timeout_s)
        return []

    def uses(self) -> DeviceUses:
        """Return nothing: no driver is asked."""
        return DeviceUses()

    def limit_memory(self, limit: MemoryLimit) -> None:
        """Refuse: no driver is asked. Raises LimitRefused."""
        raise LimitRefused(f"the memory of card {limit.uuid} can't be limited: {NOT_ASKED}")

    def close(self) -> None:
        """Nothing is open between two reads."""

    def _version_now(self) -> _Version:
        found = os.stat(self._file)
        return found.st_ino, found.st_mtime_ns, found.st_size


def read_cards_file(file: Path) -> Snapshot:
    """Return the cards that a file lists. Raises BadInput, which says where; OSError when there is no such file."""
    try:
        content = yaml_of(file.read_text(), str(file))
        cards = _File.model_validate(content)
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not a text file") from None
    except ValidationError as error:
        raise BadInput(f"{file}: {_reason(error)}") from None
    devices = tuple(card.device(position) for position, card in enumerate(cards.cards))
    _refuse_doubles(file, devices)
    ordered = sorted(devices, key=lambda device: device.index)
    return Snapshot(tuple(ordered), cards.driver_version, cards.cuda_version)


def _refuse_doubles(file: Path, devices: tuple[Device, ...]) -> None:
    seen: dict[str | int, int] = {}  # UUID as the object's name, or index -> position of the card in the file
    for position, device in enumerate(devices):
        for value, what in ((device.uuid.lower(), f"UUID {device.uuid}"), (device.index, f"index {device.index}")):
            if value in seen:
                raise BadInput(f"{file}: cards.{position}: {what} is that of cards.{seen[value]}, too")
            seen[value] = position


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
