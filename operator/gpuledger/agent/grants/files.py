"""The files of grants: CDI's for the container runtime, a container's own directory, and both removed again.

A file is written under a name that no other container ever had, and in one step: the runtime reads its directory
whenever it likes. On Linux it overlooks a file that is moved in from elsewhere, so the unfinished one lies beside it,
under a name that is no CDI file's.

On runtimes without CDI nothing about a container can be changed once its slots are given out, so it has a directory
mounted from then on, read-only, whose files are written when it starts: `devices.json`, and `environment`, which a
shell can read.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import orjson

from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.formats.runtime.cdi import FILE_PREFIX, FILE_SUFFIX, Grant, grant_file, read_grant
from gpuledger.model.errors import BadInput, StartRefused

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"

SHARE_DIRECTORY = "/run/gpuledger"
"""Where a container without CDI finds its files."""

RECORD = "grant.json"
"""Beside the directory that such a container has mounted: the same as CDI's file."""


class GrantFiles:
    """All grants of this node: in memory, and as files. What is in memory is on the disk."""

    def __init__(
        self,
        directory: Path,
        shares: Path | None = None,
        with_cdi: bool = True,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Make them; `directory` is the runtime's, and containers without CDI have their directories in `shares`.

        `with_cdi` is for new grants; `changed` is called when there are others than before.
        """
        self._directory, self._shares, self._changed = directory, shares, changed
        self.with_cdi = with_cdi
        self._grants: dict[str, tuple[Grant, Path]] = {}  # name -> grant, and the file that says so

    def load(self) -> None:
        """Read what an earlier agent has left. Files that are not ours, or can't be read, stay untouched."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for file in self._directory.glob(f"{FILE_PREFIX}*{UNFINISHED}"):
            with contextlib.suppress(OSError):  # on a read-only disk it stays, and does no harm
                file.unlink()
        records = self._shares.glob(f"*/{RECORD}") if self._shares is not None else ()
        for file in (*sorted(self._directory.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}")), *sorted(records)):
            try:
                grant = read_grant(file.read_bytes())
            except (OSError, BadInput) as error:
                logger.warning("%s is not ours and stays: %s", file, error)
                continue
            if file.name == grant.file_name or (file.name == RECORD and file.parent.name == grant.name):
                self._grants[grant.name] = grant, file

    def place(self, name: str) -> Path:
        """Return where the directory for what a container without CDI will get is, once that is known."""
        return self._record(name).parent / "share"

    def write(self, grant: Grant, cards: Sequence[GrantedCard] = ()) -> None:
        """Have the runtime, or without CDI the container, know of a grant of these cards. Writes nothing if it does.

        Raises StartRefused if another container has its name, and OSError.
        """
        before = self._grants[grant.name][0] if grant.name in self._grants else grant
        if (before.pod_uid, before.container) != (grant.pod_uid, grant.container):
            raise StartRefused(
                f"the files of pod {grant.namespace}/{grant.pod} belong to {before.namespace}/{before.pod}: "
                "delete the pod, so that it is recreated"
            )
        file = self._directory / grant.file_name if self.with_cdi else self._record(grant.name)
        if not self.with_cdi:
            self.place(grant.name).mkdir(parents=True, exist_ok=True)
        write_whole(file, grant_file(grant))
        if not self.with_cdi:
            self._fill(self.place(grant.name), grant, cards)
        self._grants[grant.name] = grant, file
        self._changed()

    def remove(self, is_over: Callable[[Grant], bool]) -> list[Grant]:
        """Remove the grants that are over, with their files; return them. A grant whose file can't be removed stays."""
        removed = []
        for grant, file in [each for each in self._grants.values() if is_over(each[0])]:
            try:
                if file.name == RECORD:
                    shutil.rmtree(file.parent)
                elif self._owner(file) == grant.pod_uid:
                    file.unlink(missing_ok=True)
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.warning("%s can't be removed yet: %s", file, error)
                continue
            removed.append(self._grants.pop(grant.name)[0])
        return removed

    def remove_unused(self, names: Collection[str]) -> None:
        """Remove directories without a record that can be read, except under these names.

        An agent that died in the middle has left them, or a power loss: their owner could never be found.
        """
        for path in self._shares.glob("*/share") if self._shares is not None else ():
            if path.parent.name not in names and path.parent.name not in self._grants:
                shutil.rmtree(path.parent, ignore_errors=True)

    def all(self) -> Sequence[Grant]:
        """Return every grant."""
        return tuple(grant for grant, _ in self._grants.values())

    def _record(self, name: str) -> Path:
        assert self._shares is not None  # noqa: S101 - only an agent has grants without CDI, and a place for them
        return self._shares / name / RECORD

    def _fill(self, share: Path, grant: Grant, cards: Sequence[GrantedCard]) -> None:
        """Write what a container without CDI reads. Raises OSError."""
        share.chmod(0o755)  # whatever our umask is: the container's programs have any user
        devices = [{"uuid": c.uuid, "index": c.index, "memoryMiB": c.memory_mib, "cores": c.cores} for c in cards]
        variables = (line.partition("=") for line in grant.edits.get("env", ()))
        environment = "".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in variables)
        write_whole(share / "devices.json", orjson.dumps(devices))
        write_whole(share / "environment", environment.encode())

    def _owner(self, file: Path) -> str | None:
        try:
            return read_grant(file.read_bytes()).pod_uid
        except (OSError, BadInput):
            return None


def write_whole(file: Path, text: bytes) -> None:
    """Have a file hold this text, in one step and readable for all. Writes nothing if it does.

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
