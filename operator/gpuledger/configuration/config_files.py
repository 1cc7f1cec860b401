"""The files of other systems that the settings name: read once, at the start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.device_config import DeviceConfig, device_config, node_configs
from gpuledger.model.errors import BadInput
from gpuledger.model.node_config import NodeConfig, NodeConfigs

logger = logging.getLogger(__name__)


def with_config_files(settings: Settings, said: Mapping[str, object]) -> Settings:
    """Return the settings with what these files say; `said` are the options that the settings' own file has.

    Raises BadInput for a file that can't be used, and where two places contradict each other.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(said, "the settings")
    for option, config in _configs(settings).items():
        for sentence in config.not_supported:
            logger.info("%s: %s", option, sentence)
        for name, value in config.settings.items():
            known = said.get(name, values.get(name, value))
            if known != value:
                raise BadInput(f"settings: {name} is {known!r} in {sources[name]} and {value!r} in {option}: keep one")
            values[name] = value
            sources.setdefault(name, option)
    return settings.changed(values)


def nodes_config(settings: Settings) -> NodeConfigs:
    """Return how nodes offer their cards, by the files that the settings name. Raises BadInput."""
    everywhere = NodeConfig()
    for config in _configs(settings).values():
        if config.nodes is not None:
            everywhere = config.nodes.everywhere
    if not settings.node_config_file:
        return NodeConfigs(everywhere)
    found, ignored = node_configs(_text(settings, "node_config_file"), everywhere, "node_config_file")
    for sentence in ignored:
        logger.info("node_config_file: %s", sentence)
    return found


def _configs(settings: Settings) -> dict[str, DeviceConfig]:
    """Return setting -> what the file says that it names."""
    systems = {"hami_config_file": "hami", "volcano_config_file": "volcano"}
    return {
        option: device_config(_text(settings, option), system, option)
        for option, system in systems.items()
        if getattr(settings, option)
    }


def _text(settings: Settings, option: str) -> str:
    try:
        return Path(getattr(settings, option)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings: {option}: {error}") from error
