"""Looks up what the node offers now: devices of NVIDIA's container toolkit, MPS, HAMi-core, limits by the driver."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from gpuledger.agent.grants import NodeCapabilities
from gpuledger.agent.isolation.bursts import Bursts
from gpuledger.agent.isolation.choice import fitting
from gpuledger.agent.isolation.hami_core_library import HamiCoreLibrary
from gpuledger.agent.isolation.kinds import HamiCore, Installed, Isolation, MpsPipes
from gpuledger.agent.mps.daemon_process import running_daemon
from gpuledger.formats.runtime.cdi import FILE_PREFIX, VendorDevices, vendor_devices

logger = logging.getLogger(__name__)


class NodeCapabilitiesReader:
    """Looks at the node whenever a container starts; parses files only when they have changed."""

    def __init__(
        self,
        isolation: Isolation | None,
        cdi_directories: Sequence[Path],
        hami_core_directory: str,
        mps_directory: str,
        priority_resource: str,
        proc: Path = Path("/proc"),
        why_no_driver_limits: Callable[[], str] = lambda: Installed().why_no_driver_limits,
        library: HamiCoreLibrary | None = None,
        hami_core: HamiCore = HamiCore(),  # noqa: B008 - it is frozen
        mps_pipes: Callable[[], MpsPipes] | None = None,
        bursts: Bursts = Bursts.NEVER,
    ) -> None:
        """Make one, for a way to isolate, or None for the one that fits.

        `mps_pipes` returns where the MPS daemons are that `gpuledger mps-daemon` runs, if it does.
        """
        self._mps_pipes, self._bursts = mps_pipes, bursts
        self._isolation, self._priority_resource = isolation, priority_resource
        self._cdi_directories = cdi_directories
        self._hami_core_directory, self._mps_directory, self._proc = hami_core_directory, mps_directory, proc
        self._why_no_driver_limits = why_no_driver_limits
        home = Path(hami_core_directory)
        self._library, self._hami_core = library or HamiCoreLibrary(home, home / "no image"), hami_core
        self._seen: tuple[tuple[str, int, int], ...] = ()  # path, mtime in ns, size of each file
        self._vendor = VendorDevices()

    def __call__(self) -> NodeCapabilities:
        """Return what there is now."""
        installed = self._installed()
        isolation = fitting(installed) if self._isolation is None else self._isolation
        return NodeCapabilities(isolation, installed, self._vendor_devices(), self._priority_resource, self._bursts)

    def _installed(self) -> Installed:
        library = self._library.found()
        pipes = self._mps_pipes() if self._mps_pipes is not None else None
        with_mps = pipes is not None or running_daemon(Path(self._mps_directory) / "pipe", self._proc)
        return Installed(
            hami_core_directory=self._hami_core_directory if library else "",
            mps_directory=self._mps_directory if with_mps else "",
            mps_pipes=pipes,
            why_no_driver_limits=self._why_no_driver_limits(),
            hami_core=replace(self._hami_core, library_directory=library.directory if library else ""),
            why_no_hami_core=self._library.why_not,
        )

    def _vendor_devices(self) -> VendorDevices:
        files = [
            file
            for directory in self._cdi_directories  # the last one counts, as runtimes have it
            for file in _files(directory)
            if file.suffix in (".json", ".yaml", ".yml") and not file.name.startswith(FILE_PREFIX)
        ]
        seen = []
        for file in files:
            with contextlib.suppress(OSError):
                found = file.stat()
                seen.append((str(file), found.st_mtime_ns, found.st_size))
        if tuple(seen) != self._seen:
            self._seen = tuple(seen)
            self._vendor = vendor_devices(spec for path, _, _ in seen for spec in _specs(Path(path)))
        return self._vendor


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _specs(file: Path) -> list[object]:
    try:
        return [yaml.safe_load(file.read_text())]  # JSON is YAML, too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        logger.warning("CDI file %s can't be read: %s", file, error)
        return []
