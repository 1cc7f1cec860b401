"""Files that a setting names, as ways to their content: a path, or a ConfigMap of the cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpuledger.model.errors import BadInput

PREFIX = "configmap:"
_PATTERN = re.compile(PREFIX + r"([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})")

FROM_CONFIG_MAPS = ("hami_config_file", "volcano_config_file", "node_config_file")
"""Settings that can name a ConfigMap."""


class ConfigMapName(NamedTuple):
    """Where a ConfigMap is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class FileContent(str):
    """The value of a setting that names a file, with the content that was read of it elsewhere."""

    __slots__ = ("content",)

    content: str

    @classmethod
    def of(cls, named: str, content: str) -> FileContent:
        """Return the name of a file with its content."""
        found = cls(named)
        found.content = content
        return found


def config_map_name(named: str) -> ConfigMapName | None:
    """Return which ConfigMap `configmap:NAMESPACE/NAME` names, None for a path. Raises ValueError for another form."""
    if not named.startswith(PREFIX):
        return None
    found = _PATTERN.fullmatch(named)
    if found is None:
        raise ValueError(f"a ConfigMap is named as configmap:NAMESPACE/NAME, not {named!r}")
    return ConfigMapName(found[1], found[2])


def config_map_text(data: Mapping[str, str]) -> str:
    """Return a ConfigMap's data as a file has it that holds the ConfigMap. The same data give the same text."""
    return json.dumps({"kind": "ConfigMap", "data": dict(data)}, sort_keys=True)


def content_of(named: str, option: str) -> str:
    """Return the content of a file that a setting names. Raises BadInput."""
    if isinstance(named, FileContent):
        return named.content
    if config_map_name(named) is not None:
        raise BadInput(f"settings: {option}: {named} has not been read from the cluster")
    try:
        return Path(named).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings: {option}: {error}") from error
