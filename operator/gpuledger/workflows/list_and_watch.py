"""Helpers of everything that follows objects: lists and watches, objects that can't be processed, ConfigMaps.

Between a list and its watch, the newer resourceVersion wins. A watch begins where the first full list has ended. An
object that can't be processed is skipped, so that it affects no other.

The ConfigMaps that the settings name are read before a program begins. What depends on the settings is built once, at
the start. So a change that matters ends the program in good order, and it begins again with the ConfigMap of then. A
change that can't be used is reported, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuledger.configuration.files import config_maps, settings_of
from gpuledger.configuration.settings import ConfigMapName, Settings, config_map_text, content_of
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads, config_maps_in
from gpuledger.kube_api.watch import Listed, follow
from gpuledger.model.errors import BadInput, Denied, NotFound, StateRolledBack, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.tasks import sleep_backoff


class EventsDuringList:
    """The events of a watch while a full list is read: they are newer than the list."""

    def __init__(self) -> None:
        self._keys: set[str] | None = None  # None while no list is read

    def note(self, key: str) -> None:
        """Record that the watch has shown something."""
        if self._keys is not None:
            self._keys.add(key)

    @contextmanager
    def since_now(self) -> Iterator[set[str]]:
        """Yield the keys of what is shown from here on, a set that grows."""
        self._keys = set()
        try:
            yield self._keys
        finally:
            self._keys = None


class FirstList:
    """The first full list of a kind: its watch goes on from there, instead of listing all of it once more."""

    def __init__(self) -> None:
        self._is_read = asyncio.Event()
        self._version = ""

    def read(self, version: str) -> None:
        """Record that a full list has been read, and of which version it is."""
        if not self._is_read.is_set():
            self._version = version
            self._is_read.set()

    async def version(self) -> str:
        """Wait until it is read, and return its version."""
        await self._is_read.wait()
        return self._version


class WatchedUpTo:
    """How far a plain watch has come: all that was written up to this version is known, whoever has written it.

    A watch shows its kind's objects in the order in which etcd has stored them; a list shows them in the order of their
    names, and counts once it is complete.
    """

    def __init__(self) -> None:
        self._version = 0
        self._of_list: int | None = None  # the newest version of a list that is being read
        self._moved = asyncio.Event()

    def note(self, version: int) -> None:
        """Record that an object was shown, as it is or was in this version."""
        if self._of_list is not None:
            self._of_list = max(self._of_list, version)
        elif version > self._version:
            self._version = version
            self._moved.set()

    def listing(self) -> Listed:
        """Record that the watch lists everything anew; return what notes that it has."""
        self._of_list = 0

        def listed(_: set[str]) -> None:
            version, self._of_list = self._of_list or 0, None
            self.note(version)

        return listed

    async def reaches(self, version: int) -> None:
        """Wait until the watch has come so far."""
        while self._version < version:
            self._moved.clear()
            await self._moved.wait()


def version_of(found: Json) -> int:
    """Return the version of an object, as a number."""
    return int(found["metadata"].get("resourceVersion") or 0)


logger = logging.getLogger(__name__)


@contextmanager
def skipping_bad_objects(kind: str, found: Json, counts: Counts) -> Iterator[None]:
    """Process one object: if that fails, it is logged with its name, counted, and left out.

    Raises StateRolledBack: then nothing that is remembered can be trusted.
    """
    try:
        yield
    except StateRolledBack:
        raise
    except BadInput as error:
        counts.bad_input.labels(kind).inc()
        logger.error("%s %s is skipped: %s", kind, _name(found), error)
    except Exception:
        counts.bad_input.labels(kind).inc()
        logger.exception("%s %s is skipped: processing it failed, which is a bug in gpuledger", kind, _name(found))


def _name(found: Json) -> str:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(metadata, dict):
        return "without a name"
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))


GONE = "it is gone"


async def config_map_contents(client: KubeClient, names: Mapping[str, ConfigMapName]) -> dict[str, str]:
    """Return what these ConfigMaps hold: option of the settings -> text.

    Raises BadInput if one does not exist or must not be read, and ApiError.
    """
    reads, contents = KubeReads(client), {}
    for option, name in names.items():
        try:
            contents[option] = config_map_text(await reads.config_map(name.namespace, name.name))
        except NotFound:
            raise BadInput(f"settings: {option}: there is no ConfigMap {name}") from None
        except Denied as error:
            raise BadInput(
                f"settings: {option}: ConfigMap {name} can't be read: {error}; a Role has to allow `get`, `list` and "
                "`watch` of it (docs/settings.md)"
            ) from None
    return contents


async def settings_in_cluster(client: KubeClient, settings: Settings, file: Path | None) -> Settings:
    """Return the settings of a file with what the ConfigMaps say that it names, once the API server answers.

    `settings` are what the file states itself. Raises BadInput.
    """
    names, attempt = config_maps(settings), 0
    while names:
        try:
            return settings_of(file, await config_map_contents(client, names))
        except Unreachable as error:
            logger.warning("the ConfigMaps that the settings name can't be read yet, retrying: %s", error)
            await sleep_backoff(attempt, error)
            attempt += 1
    return settings


async def until_settings_differ(
    client: KubeClient,
    settings: Settings,
    file: Path | None,
    differ: Callable[[Settings], bool],
    refused: Callable[[], None] = lambda: None,
) -> None:
    """Follow the ConfigMaps that settings name until one makes others of them. If they name none, for ever.

    `differ` tells whether other settings change anything for the program. Where they can't be used, as it may say, too,
    by BadInput, they stay unused, and `refused` is called.
    """
    names = config_maps(settings)
    latest = {option: content_of(getattr(settings, option), option) for option in names}
    news = asyncio.Event()

    def shown(option: str, found: Json, gone: bool) -> None:
        text = GONE if gone else config_map_text(found.get("data") or {})
        if text != latest[option]:
            latest[option] = text
            news.set()

    async def followed(option: str, name: ConfigMapName) -> None:
        only = {"fieldSelector": f"metadata.name={name.name}"}
        path = config_maps_in(name.namespace)
        await follow(client, path, only, lambda found, gone: shown(option, found, gone), lambda: lambda _: None)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(followed(option, name)) for option, name in names.items()]
        while True:
            await news.wait()
            news.clear()
            if _judge(names, latest, lambda: differ(settings_of(file, latest)), refused):
                break
        for task in tasks:
            task.cancel()


def _judge(
    names: Mapping[str, ConfigMapName],
    latest: Mapping[str, str],
    differ: Callable[[], bool],
    refused: Callable[[], None],
) -> bool:
    gone = [f"{names[option]}, which {option} names" for option, text in latest.items() if text == GONE]
    try:
        if gone:
            raise BadInput(f"there is no ConfigMap {' and no ConfigMap '.join(gone)}")
        found = differ()
    except BadInput as error:
        refused()
        logger.warning("a change of a ConfigMap can't be used, what was there before stays in use: %s", error)
        return False
    if found:
        listed = ", ".join(map(str, names.values()))
        logger.info("the settings have changed (ConfigMaps %s): this program begins again with them", listed)
    return found
