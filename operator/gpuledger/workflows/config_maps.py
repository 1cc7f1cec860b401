"""The ConfigMaps that the settings name: read before a program begins, and followed until one of them changes it.

What depends on the settings is built once, at the start. So a change that matters ends the program in good order, and
it begins again with what the ConfigMap says now. A change that can't be used is told of, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuledger.configuration.file_content import ConfigMapName, config_map_text, content_of
from gpuledger.configuration.files import config_maps, settings_of
from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads, config_maps_in
from gpuledger.kube_api.watch import follow
from gpuledger.model.errors import BadInput, Denied, NotFound, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.workflows.tasks.pauses import sleep_backoff

logger = logging.getLogger(__name__)


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
