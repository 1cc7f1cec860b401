"""HAMi-core: a library in the container that takes the place of CUDA's calls.

Source: what HAMi-core reads of its environment (src/multiprocess/multiprocess_memory_limit.c, src/libvgpu.c,
src/log_utils.c, as of HAMi 2.4 to 2.9 and June 2026), and the environment and mounts that HAMi 2.10's device plugin
sets.

CDI's variables replace a container's own ones, from its image and its pod alike. So each variable that could weaken a
limit is set here, needed or not, and what a user may wish is read from the pod and judged.

Which HAMi-core a node's new containers get: the one that an image has brought, or one installed by hand.

The agent's own image has the library, or an init container of its pod copies it from another one to the same place.
The agent checks it, and installs it below `versions/`, in a directory of the checksum's name: written beside, then
renamed, so it is there as a whole or not at all, wherever a crash comes. Nothing is ever changed in it. A container's
mounts name its version, so an upgrade changes nothing for those that run, and a rollback is another upgrade.

Source of the names: docker/Dockerfile and docker/vgpu-init.sh of HAMi 2.4 to 2.10, whose image has the library as
/k8s-vgpu/lib/nvidia/libvgpu.so up to 2.4, and from 2.5 on with its version at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.isolation.choice import GrantedCard, HamiCore
from gpuledger.formats.runtime.cdi import bind_mount, memory_mount
from gpuledger.formats.runtime.shared_region import check_shared_library
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json

HAMI_HOME, HAMI_LOCK = "/usr/local/vgpu", "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for them
LOCK_SIZE, LOCK_FILES = "64k", 16
"""Of the directory with the lock that HAMi-core takes up to HAMi 2.8.0: memory of the container's own. A directory that
containers share would let each of them keep all others from CUDA's start, and fill the node's disk."""

REGION = "usage.cache"
"""In a container's own directory: its counters and limits, which its processes share."""

POLICY_VARIABLE, OPT_OUT_VARIABLE = "GPU_CORE_UTILIZATION_POLICY", "CUDA_DISABLE_CONTROL"
"""HAMi's variables of a container, by which its user wishes: whether its cores are limited, and that nothing is."""

HIGH_PRIORITY, LOW_PRIORITY = "0", "1"
NO_LIMIT_OF_CORES, MOST_OF_A_TASK_THAT_PAUSES = 100, 99
"""Percent. Without a limit, a program does not look whether it has to pause."""

_STRICTNESS = ("disable", "default", "force")
_TRUE = ("1", "t", "T", "TRUE", "true", "True")  # as Go's strconv.ParseBool has it, by which HAMi reads it


def hami_core_edits(
    cards: Sequence[GrantedCard],
    directory: str,
    own_directory: str,
    priority: str,
    node: HamiCore = HamiCore(),  # noqa: B008 - it is frozen
    core_policy: str = "",
) -> Json:
    """Return the edits for a container with these cards, in the order of their index.

    `directory` is HAMi-core's on the node, `own_directory` one that only this container has, `priority` HAMi's 0 (high)
    or 1 (low), which anything else is; `core_policy` is what `core_policy_of` has said, empty: the node's.
    """
    env = [
        *_limits(cards, priority),
        f"CUDA_DEVICE_MEMORY_SHARED_CACHE={HAMI_HOME}/{REGION}",
        f"CUDA_REDIRECT={HAMI_HOME}/libvgpu.so",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"CUDA_TASK_PRIORITY={priority if priority == HIGH_PRIORITY else LOW_PRIORITY}",
        f"{POLICY_VARIABLE}={core_policy or node.core_policy}",
    ]
    if node.oversubscribed:
        env.append("CUDA_OVERSUBSCRIBE=true")
    if node.log_level:
        env.append(f"LIBCUDA_LOG_LEVEL={node.log_level}")
    library = node.library_directory or directory
    mounts = [
        # The file and not its directory, so that nobody in the container can put another one in its place.
        bind_mount(f"{own_directory}/{REGION}", f"{HAMI_HOME}/{REGION}", "rw"),
        memory_mount(HAMI_LOCK, LOCK_SIZE, LOCK_FILES),
        bind_mount(f"{library}/libvgpu.so", f"{HAMI_HOME}/libvgpu.so", "ro"),
        bind_mount(f"{library}/ld.so.preload", "/etc/ld.so.preload", "ro"),
    ]
    return {"env": env, "mounts": mounts}


def own_directory(home: str, place: str, starts: bool = False) -> Path:
    """Return the directory of a grant, by its `place`, with a file for HAMi-core's counters. Raises OSError.

    `home` is HAMi-core's directory on the node. For a container that starts now, the counters begin anew: those of the
    processes before it are over, and another version of the library, which takes them for its own, would hang.
    """
    path = _own(home, place)
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


def remove_own_directory(home: str, place: str) -> None:
    """Remove such a directory, if there is one."""
    if home:
        shutil.rmtree(_own(home, place), ignore_errors=True)


def _own(home: str, place: str) -> Path:
    return Path(home) / "containers" / place


def core_policy_of(cards: Sequence[GrantedCard], of_node: str, wish: str) -> str:
    """Return a container's policy of cores, by its user's wish.

    A stricter one than the node's harms no other container; a looser one takes time from others of its cards, if there
    are any.
    """
    wish = wish.lower()
    if wish not in _STRICTNESS:
        return of_node
    stricter = _STRICTNESS.index(wish) > _STRICTNESS.index(of_node)
    return wish if stricter or all(card.exclusive for card in cards) else of_node


def opts_out(environment: Mapping[str, str]) -> bool:
    """Return whether a container's own environment wishes no limits, as HAMi's users say it."""
    return environment.get(OPT_OUT_VARIABLE, "") in _TRUE


def _limits(cards: Sequence[GrantedCard], priority: str) -> list[str]:
    """Return the limits of memory and cores, by the position of each card in the container.

    The library takes a card's own limit of cores before the one for all, and 0 for none of its own: it would then take
    the one for all. Up to HAMi 2.8.1 it limits all cards by the first one's.
    """
    most = MOST_OF_A_TASK_THAT_PAUSES if priority == LOW_PRIORITY else NO_LIMIT_OF_CORES
    cores = [min(card.cores or most, most) for card in cards]
    return [
        *(f"CUDA_DEVICE_MEMORY_LIMIT_{position}={card.most_mib}m" for position, card in enumerate(cards)),
        f"CUDA_DEVICE_SM_LIMIT={cores[0]}",
        *(f"CUDA_DEVICE_SM_LIMIT_{position}={each}" for position, each in enumerate(cores)),
    ]


logger = logging.getLogger(__name__)

LIBRARY, PRELOAD = "libvgpu.so", "ld.so.preload"
IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
"""Where a container has the library: HAMi-core looks for itself there."""

VERSIONS = "versions"
UNFINISHED, DAMAGED = ".unfinished-", ".damaged-"
NAME_LENGTH = 16
"""Of a version's directory: so many digits of the library's SHA-256."""

LARGEST_BYTES = 64 * 2**20
"""HAMi-core has less than 2 MiB."""

KNOWS = b"CUDA_DEVICE_MEMORY_LIMIT"
"""A text that each HAMi-core contains, and other libraries do not."""

LOOK_INTERVAL_S = 30.0
SOON_S = 2.0
"""After a disk's fault."""


@dataclass(frozen=True, slots=True)
class Library:
    """A HAMi-core that lies on the node."""

    directory: str
    """Of the library and its ld.so.preload."""
    sha256: str
    version: str = ""
    """As its image names it; empty: not known."""


class HamiCoreLibrary:
    """Keeps the library in place. Writes may hang with the disk, so a thread makes them; `found` waits for none."""

    def __init__(self, home: Path, image: Path, accepted: Collection[str] = (), machine: str = "") -> None:
        """Make one; `home` is HAMi-core's directory on the node, `image` has what an image has brought, if it has.

        `accepted` are the only SHA-256 that a library may have; empty: it may have any. `machine` is the kernel's name
        of the machine; empty: this one.
        """
        self._home, self._versions, self._image = home, home / VERSIONS, image
        self._accepted, self._machine = frozenset(accepted), machine or platform.machine()
        self._found: Library | None = None
        self._why_not = ""
        self._by_hand: tuple[tuple[int, int, int], Library | None] | None = None  # the file's state, what it was then
        self._unused: set[str] = set()  # names of versions that nobody used at the last look

    def found(self) -> Library | None:
        """Return the library for a container that starts now, None for none."""
        if not self._home.is_absolute():  # the setting is empty; nothing else could be mounted either
            return None
        if not self._files():
            return self._installed_by_hand()
        return self._found if self._found is not None and _is_there(Path(self._found.directory)) else None

    @property
    def why_not(self) -> str:
        """Why there is none; empty if there is one, or none was to be installed."""
        return "" if self.found() else self._why_not

    async def run(self, used: Callable[[], Collection[str]]) -> None:
        """Look after it until cancelled; `used` returns the paths on the node that containers' mounts name."""
        while self._home.is_absolute():
            try:
                await asyncio.to_thread(self._look, used())
            except OSError as error:
                self._say(f"HAMi-core can't be installed in {self._home} yet: {error}")
                await asyncio.sleep(SOON_S)
            else:
                await asyncio.sleep(LOOK_INTERVAL_S)

    def _look(self, used: Collection[str]) -> None:
        self.refresh()
        self.remove_unused(used)

    def refresh(self) -> None:
        """Install what the image has brought, unless it is. Raises OSError; what was there stays, whole."""
        if not self._files():
            self._found = None
            return
        try:
            library, data = self._brought()
        except BadInput as error:
            self._found = None
            self._say(f"HAMi-core from the image is not installed: {error}")
            return
        self._install(Path(library.directory), data, library.sha256)
        if library != self._found:
            logger.info("HAMi-core %s, SHA-256 %s, in %s", library.version or "", library.sha256, library.directory)
        self._found, self._why_not = library, ""

    def remove_unused(self, paths: Collection[str]) -> None:
        """Remove versions that none of these paths names, now and the last time, and that new containers don't get.

        Twice, because a container that starts meanwhile, or an agent that this one follows, may have just named one.
        """
        used = {Path(path).parent.name for path in paths if Path(path).parent.parent == self._versions}
        if self._found is not None:
            used.add(Path(self._found.directory).name)
        with contextlib.suppress(OSError):
            there = {path.name for path in self._versions.iterdir() if not path.name.startswith(".")}
            unused, before = there - used, self._unused
            self._unused = unused
            for name in unused & before:
                logger.info("HAMi-core of %s: no container uses it any more", self._versions / name)
                # Away under another name first: what is half removed must not be taken for a version.
                self._set_aside(self._versions / name)
            self._remove(DAMAGED)
            self._remove(UNFINISHED)  # of a process that has ended; a later one may have nothing to install

    def _brought(self) -> tuple[Library, bytes]:
        """Return the library in the image, with its content. Raises BadInput if it can't be used, and OSError."""
        file, *others = self._files()
        if others:
            names = ", ".join(path.name for path in (file, *others))
            raise BadInput(f"it has {len(others) + 1} files {LIBRARY}*, and not one: {names}")
        if file.stat().st_size > LARGEST_BYTES:
            raise BadInput(f"{file.name} is larger than {LARGEST_BYTES >> 20} MiB")
        data = file.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            check_shared_library(data, self._machine)
        except BadInput as error:
            raise BadInput(f"{file.name} (SHA-256 {sha256}) can't be loaded: {error}") from error
        if KNOWS not in data:
            raise BadInput(f"{file.name} (SHA-256 {sha256}) is not HAMi-core: it has no word of {KNOWS.decode()}")
        self._check_accepted(file.name, sha256)
        directory = self._versions / sha256[:NAME_LENGTH]
        return Library(str(directory), sha256, file.name.removeprefix(LIBRARY).removeprefix(".")), data

    def _files(self) -> list[Path]:
        """Return the libraries that an image has brought, by their names."""
        return sorted(self._image.glob(f"{LIBRARY}*"))

    def _check_accepted(self, name: str, sha256: str) -> None:
        if self._accepted and sha256 not in self._accepted:
            raise BadInput(f"{name} has the SHA-256 {sha256}, which hami_core_sha256 does not list")

    def _install(self, directory: Path, data: bytes, sha256: str) -> None:
        self._versions.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._remove(UNFINISHED)
        if _is_whole(directory, sha256):
            return
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self._versions))
        try:
            _write_lasting(unfinished / LIBRARY, data, 0o755)
            _write_lasting(unfinished / PRELOAD, f"{IN_CONTAINER}\n".encode(), 0o644)
            unfinished.chmod(0o755)
            _flush_directory(unfinished)
            if directory.exists() and not _is_whole(directory, sha256):  # somebody has changed it, or the disk has
                self._set_aside(directory)
            unfinished.rename(directory)
            _flush_directory(self._versions)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)  # a full disk needs the room
            if not _is_whole(directory, sha256):  # another agent may have been faster
                raise

    def _set_aside(self, directory: Path) -> None:
        """Move a version away. Containers that run keep their mounts of it."""
        directory.rename(Path(tempfile.mkdtemp(prefix=DAMAGED, dir=self._versions)) / directory.name)

    def _remove(self, prefix: str) -> None:
        for left in self._versions.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _installed_by_hand(self) -> Library | None:
        """Return the library directly in HAMi-core's directory; its content is read again when it has changed."""
        if not _is_there(self._home):
            return None
        try:
            file = (self._home / LIBRARY).stat()
            state = (file.st_mtime_ns, file.st_size, file.st_ino)
            if self._by_hand is None or self._by_hand[0] != state:
                self._by_hand = (state, self._checked_by_hand())
        except OSError:
            return None
        return self._by_hand[1]

    def _checked_by_hand(self) -> Library | None:
        with (self._home / LIBRARY).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        try:
            self._check_accepted(str(self._home / LIBRARY), sha256)
        except BadInput as error:
            self._say(f"HAMi-core is not used: {error}")
            return None
        return Library(str(self._home), sha256)

    def _say(self, why_not: str) -> None:
        if why_not != self._why_not:
            logger.error("%s", why_not)
        self._why_not = why_not


def _is_there(directory: Path) -> bool:
    return all((directory / name).is_file() for name in (LIBRARY, PRELOAD))


def _is_whole(directory: Path, sha256: str) -> bool:
    """Return whether a version's directory holds what we would write into it."""
    try:
        with (directory / LIBRARY).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return found == sha256 and (directory / PRELOAD).read_text() == f"{IN_CONTAINER}\n"
    except (OSError, UnicodeDecodeError):
        return False


def _write_lasting(file: Path, data: bytes, mode: int) -> None:
    """Write a file so that a power loss does not take its content. Raises OSError."""
    with file.open("xb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    file.chmod(mode)  # whatever our umask is: containers' programs have any user


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
