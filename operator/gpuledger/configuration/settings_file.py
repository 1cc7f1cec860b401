"""The file with the settings, and the files that it names."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpuledger.configuration.config_files import with_config_files
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput


def settings_of(file: Path | None) -> Settings:
    """Return the settings of a file, and of the files that it names; without one, the defaults.

    Raises BadInput if it can't be used.
    """
    if file is None:
        return Settings()
    try:
        values = yaml.safe_load(file.read_text()) or {}
        if not isinstance(values, dict):
            raise ValueError("settings: the file must be a list of `option: value` lines")
        return with_config_files(Settings().changed(values), values)
    except (OSError, ValueError, BadInput, yaml.YAMLError) as error:
        raise BadInput(f"{file}: {error}") from error
