"""The files from which the container runtime learns what each container got, one for each container.

A file is written under a name that no other container ever had, and in one step: the runtime reads its directory
whenever it likes. On Linux it overlooks a file that is moved in from elsewhere, so the unfinished one lies beside it,
under a name that is no CDI file's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

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
