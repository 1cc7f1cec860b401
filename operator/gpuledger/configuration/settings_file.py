"""The file with the settings, and the files and ConfigMaps that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gpuledger.configuration.config_files import config_maps, with_config_files
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput

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
