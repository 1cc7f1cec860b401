"""The file with the settings, and the files and ConfigMaps of other systems that it names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gpuledger.configuration.settings import (
    FROM_CONFIG_MAPS,
    ConfigMapName,
    FileContent,
    Settings,
    config_map_name,
    content_of,
)
from gpuledger.formats.dialects.vendors import DeviceConfig, device_config, node_configs
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeConfig, NodeConfigs

logger = logging.getLogger(__name__)

SENTENCES_KEPT = 1_024

_said: BoundedMap[str, None] = BoundedMap(SENTENCES_KEPT)


def config_maps(settings: Settings) -> dict[str, ConfigMapName]:
    """Return the ConfigMaps that the settings name, by option."""
    named = {option: config_map_name(getattr(settings, option)) for option in FROM_CONFIG_MAPS}
    return {option: name for option, name in named.items() if name is not None}


def with_config_files(
    settings: Settings, said: Mapping[str, object], contents: Mapping[str, str] = MappingProxyType({})
) -> Settings:
    """Return the settings with what these files say; `said` are the options that the settings' own file has.

    `contents` are those of files that were read elsewhere: option -> text. Raises BadInput for a file that can't be
    used, and where two places contradict each other.
    """
    read: dict[str, Any] = {
        option: FileContent.of(getattr(settings, option), text) for option, text in contents.items()
    }
    settings = replace(settings, **read)
    values: dict[str, object] = {}
    sources = dict.fromkeys(said, "the settings")
    for option, config in _configs(settings).items():
        for sentence in config.not_supported:
            _say_once(f"{option}: {sentence}")
        for name, value in config.settings.items():
            known = said.get(name, values.get(name, value))
            if known != value:
                raise BadInput(f"settings: {name} is {known!r} in {sources[name]} and {value!r} in {option}: keep one")
            values[name] = value
            sources.setdefault(name, option)
    return replace(settings.changed(values), **read)


def _say_once(sentence: str) -> None:
    """Log a sentence, unless this process has before: files are read again whenever they change."""
    if sentence not in _said:
        _said.note(sentence, None)
        logger.info("%s", sentence)


def nodes_config(settings: Settings) -> NodeConfigs:
    """Return how nodes offer their cards, by the files that the settings name. Raises BadInput."""
    everywhere = NodeConfig(settings.slots_per_card, settings.memory_scaling)
    for config in _configs(settings).values():
        if config.nodes is not None:
            everywhere = config.nodes.everywhere
    if not settings.node_config_file:
        return NodeConfigs(everywhere)
    text = content_of(settings.node_config_file, "node_config_file")
    found, ignored = node_configs(text, everywhere, "node_config_file")
    for sentence in ignored:
        _say_once(f"node_config_file: {sentence}")
    return found


def _configs(settings: Settings) -> dict[str, DeviceConfig]:
    """Return setting -> what the file says that it names."""
    systems = {"hami_config_file": "hami", "volcano_config_file": "volcano"}
    return {
        option: device_config(content_of(getattr(settings, option), option), system, option)
        for option, system in systems.items()
        if getattr(settings, option)
    }


NOTHING_READ: Mapping[str, str] = MappingProxyType({})


def settings_of(file: Path | None, contents: Mapping[str, str] = NOTHING_READ) -> Settings:
    """Return the settings of a file, and of the files that it names; without one, the defaults.

    `contents` are those of the ConfigMaps that it names: option -> text. Raises BadInput if it can't be used.
    """
    if file is None:
        return Settings()
    try:
        values = values_of(_text(file))
        return with_config_files(Settings().changed(values), values, contents)
    except (ValueError, BadInput) as error:
        raise BadInput(f"{file}: {error}") from error


def settings_before_cluster(file: Path | None) -> Settings:
    """Return the same; if the file names ConfigMaps, only what it states itself. Raises BadInput."""
    if file is None:
        return Settings()
    try:
        stated = Settings().changed(values_of(_text(file)))
    except (ValueError, BadInput) as error:
        raise BadInput(f"{file}: {error}") from error
    return stated if config_maps(stated) else settings_of(file)


def values_of(text: str) -> dict[str, Any]:
    """Return the options in the text of a file of settings. Raises BadInput."""
    try:
        values = yaml.safe_load(text) or {}
    except (ValueError, yaml.YAMLError) as error:
        raise BadInput(str(error)) from error
    if not isinstance(values, dict):
        raise BadInput("settings: the file must be a list of `option: value` lines")
    return values


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(error)) from error
