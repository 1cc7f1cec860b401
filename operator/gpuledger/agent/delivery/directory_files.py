"""Directories on the node: a container's own one for its limits, and what stands in for CDI on older runtimes.

Without CDI nothing about a container can be changed once its slots are given out, so it has a directory mounted from
then on, read-only, whose files are written when it starts: `devices.json`, and `environment`, which a shell can read.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import orjson

from gpuledger.agent.delivery.grant_files import write_whole
from gpuledger.agent.isolation.hami_core import REGION
from gpuledger.agent.isolation.kinds import GrantedCard
from gpuledger.formats.runtime.cdi import Grant, grant_file, read_grant
from gpuledger.model.errors import BadInput

logger = logging.getLogger(__name__)

SHARE_DIRECTORY = "/run/gpuledger"
"""Where a container finds its files."""

RECORD = "grant.json"


class DirectoryFiles:
    """All such directories below one of the node's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place(self, name: str) -> Path:
        """Return where the directory for what a container will get is, once that is known."""
        return self._directory / name / "share"

    def write(self, grant: Grant, cards: Sequence[GrantedCard]) -> None:
        """Fill a container's directory. Raises OSError."""
        share = self.place(grant.name)
        share.mkdir(parents=True, exist_ok=True)
        share.chmod(0o755)  # whatever our umask is: the container's programs have any user
        devices = [{"uuid": c.uuid, "index": c.index, "memoryMiB": c.memory_mib, "cores": c.cores} for c in cards]
        variables = (line.partition("=") for line in grant.edits.get("env", ()))
        environment = "".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in variables)
        for file, text in {
            share.parent / RECORD: grant_file(grant),
            share / "devices.json": orjson.dumps(devices),
            share / "environment": environment.encode(),
        }.items():
            write_whole(file, text)

    def remove(self, is_over: Callable[[Grant], bool]) -> list[Grant]:
        """Remove the directories of grants that are over; return these."""
        over = [grant for grant in self.all() if is_over(grant)]
        for grant in over:
            shutil.rmtree(self._directory / grant.name, ignore_errors=True)
        return over

    def remove_unused(self, names: Collection[str]) -> None:
        """Remove directories without a record that can be read, except under these names.

        An agent that died in the middle has left them, or a power loss: their owner could never be found.
        """
        given = {grant.name for grant in self.all()}
        for path in self._directory.glob("*/share"):
            if path.parent.name not in names and path.parent.name not in given:
                shutil.rmtree(path.parent, ignore_errors=True)

    def all(self) -> list[Grant]:
        """Return every grant that has such a directory."""
        found = []
        for record in sorted(self._directory.glob(f"*/{RECORD}")):
            try:
                grant = read_grant(record.read_bytes())
            except (OSError, BadInput) as error:
                logger.warning("%s is not ours and stays: %s", record, error)
                continue
            if grant.name == record.parent.name:
                found.append(grant)
        return found

    def own(self, hami_core_directory: str, place: str, starts: bool = False) -> Path:
        """Return the directory of a grant, by its `place`, with a file for HAMi-core's counters. Raises OSError.

        For a container that starts now, the counters begin anew: those of the processes before it are over, and another
        version of the library, which takes them for its own, would hang.
        """
        path = _own(hami_core_directory, place)
        path.mkdir(parents=True, exist_ok=True)
        region = path / REGION
        if starts:
            region.unlink(missing_ok=True)
        descriptor = os.open(region, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o666)  # the container's programs have any user
        finally:
            os.close(descriptor)
        return path

    def remove_own(self, hami_core_directory: str, grant: Grant) -> None:
        """Remove such a directory, if there is one."""
        if hami_core_directory:
            shutil.rmtree(_own(hami_core_directory, grant.place), ignore_errors=True)


def _own(hami_core_directory: str, place: str) -> Path:
    return Path(hami_core_directory) / "containers" / place
