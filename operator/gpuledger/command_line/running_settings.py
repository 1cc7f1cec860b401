"""The settings that the operator in a cluster has: what other commands say of that cluster has to rest on the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.command_line.options import read_settings
from gpuledger.formats.objects.lease import LEASE_NAMESPACE
from gpuledger.model.errors import BadInput, Denied, NotFound

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient
    from gpuledger.kube_api.reads import KubeReads

Json = dict[str, Any]

DEPLOYMENT, CONTAINER = "gpuledger", "operator"
FILES = ("hami_config_file", "volcano_config_file", "vendors_file", "node_config_file")
"""Settings that name files, which the operator gets from ConfigMaps, too."""


def named_settings(file: Path | None) -> Settings | None:
    """Return the settings of a file that was named, None if none was. A bad one ends the program with a message."""
    return None if file is None else read_settings(file)


async def settings_in_use(client: KubeClient, named: Settings | None) -> Settings:
    """Return the settings that were named; else those of the cluster's Deployment; without one, the defaults.

    Raises BadInput if the Deployment's settings can't be read, and says that --settings names others.
    """
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.reads import KubeReads

    if named is not None:
        return named
    reads = KubeReads(client)
    try:
        deployment = await reads.deployment(LEASE_NAMESPACE, DEPLOYMENT)
    except NotFound:  # it runs outside, or is not installed yet
        return Settings()
    except Denied as error:
        raise BadInput(f"the operator's settings can't be read: {error}; name them by --settings") from error
    try:
        return await _of_deployment(reads, deployment)
    except (BadInput, Denied, NotFound) as error:
        where = f"Deployment {LEASE_NAMESPACE}/{DEPLOYMENT}"
        raise BadInput(f"the settings of {where} can't be read: {error}; name them by --settings") from error


async def _of_deployment(reads: KubeReads, deployment: Json) -> Settings:
    from gpuledger.configuration.settings import Settings
    from gpuledger.doctor.config_maps import mounted_file, settings_file

    place = settings_file(deployment, CONTAINER)
    if place is None:
        return Settings()
    values = _read(await _text(reads, *place))
    texts = {}
    for option in FILES:
        path = values.get(option)
        found = mounted_file(deployment, CONTAINER, path) if isinstance(path, str) and path else None
        if found is not None:
            texts[option] = await _text(reads, *found)
    return _with_files(values, texts)


def _read(text: str) -> Json:
    import yaml

    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise BadInput(str(error)) from error
    if not isinstance(values, dict):
        raise BadInput("they are not a list of `option: value` lines")
    return values


def _with_files(values: Json, texts: dict[str, str]) -> Settings:
    """Return settings whose files have these texts here."""
    from gpuledger.doctor.config_maps import settings_from

    with tempfile.TemporaryDirectory() as folder:
        for option, text in texts.items():
            file = Path(folder) / option
            file.write_text(text, encoding="utf-8")
            values[option] = str(file)
        return settings_from(values)


async def _text(reads: KubeReads, config_map: str, key: str) -> str:
    data = await reads.config_map(LEASE_NAMESPACE, config_map)
    if key not in data:
        raise BadInput(f"ConfigMap {LEASE_NAMESPACE}/{config_map} has no key {key}")
    return data[key]
