"""The files of grants: CDI's for the container runtime, a container's own directory, and both removed again.

A file is written under a name that no other container ever had, and in one step: the runtime reads its directory
whenever it likes. On Linux it overlooks a file that is moved in from elsewhere, so the unfinished one lies beside it,
under a name that is no CDI file's.

On runtimes without CDI nothing about a container can be changed once its slots are given out, so it has a directory
mounted from then on, read-only, whose files are written when it starts: `devices.json`, and `environment`, which a
shell can read. With every runtime, a container's limits are in a directory of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import orjson

from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.isolation.hami_core import REGION
from gpuledger.formats.runtime.cdi import FILE_PREFIX, FILE_SUFFIX, Grant, grant_file, read_grant
from gpuledger.model.errors import BadInput, StartRefused

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"


class GrantFiles:
    """All grants of this node: in memory, and as files in a directory. What is in memory is in the directory."""

    def __init__(self, directory: Path, changed: Callable[[], None] = lambda: None) -> None:
        """Make them; `changed` is called when there are others than before."""
        self._directory, self._changed = directory, changed
        self._grants: dict[str, Grant] = {}  # name -> grant

    def load(self) -> None:
        """Read what an earlier agent has left. Files that are not ours, or can't be read, stay untouched."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for file in self._directory.glob(f"{FILE_PREFIX}*{UNFINISHED}"):
            with contextlib.suppress(OSError):  # on a read-only disk it stays, and does no harm
                file.unlink()
        for file in sorted(self._directory.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}")):
            try:
                grant = read_grant(file.read_bytes())
            except (OSError, BadInput) as error:
                logger.warning("%s is not ours and stays: %s", file, error)
                continue
            if grant.file_name == file.name:
                self._grants[grant.name] = grant

    def write(self, grant: Grant) -> None:
        """Have the runtime know of a grant. Writes nothing if it does.

        Raises StartRefused if another container has its name, and OSError.
        """
        before = self._grants.get(grant.name)
        if before is not None and (before.pod_uid, before.container) != (grant.pod_uid, grant.container):
            raise StartRefused(
                f"the files of pod {grant.namespace}/{grant.pod} belong to {before.namespace}/{before.pod}: "
                "delete the pod, so that it is recreated"
            )
        file = self._directory / grant.file_name
        text = grant_file(grant)
        write_whole(file, text)
        self._grants[grant.name] = grant
        self._changed()

    def remove(self, is_over: Callable[[Grant], bool]) -> list[Grant]:
        """Remove the grants that are over, with their files; return them. What a disk does not let go stays."""
        removed = []
        for grant in [grant for grant in self._grants.values() if is_over(grant)]:
            file = self._directory / grant.file_name
            try:
                if self._owner(file) == grant.pod_uid:
                    file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s can't be removed yet: %s", file, error)
                continue
            removed.append(self._grants.pop(grant.name))
        return removed

    def all(self) -> Iterable[Grant]:
        """Return every grant."""
        return tuple(self._grants.values())

    def _owner(self, file: Path) -> str | None:
        try:
            return read_grant(file.read_bytes()).pod_uid
        except (OSError, BadInput):
            return None


def write_whole(file: Path, text: bytes) -> None:
    """Have a file hold this text, in one step and for everybody to read. Writes nothing if it does.

    Raises OSError; then the file is as it was, and nothing else is left: a full disk needs the room.
    """
    with contextlib.suppress(OSError):
        if file.read_bytes() == text:
            return
    unfinished = file.with_suffix(UNFINISHED)
    try:
        unfinished.write_bytes(text)
        unfinished.chmod(0o644)  # whatever our umask is
        unfinished.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


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
