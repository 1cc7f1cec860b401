"""The settings that a workload in the cluster has: those of its ConfigMap, with all files and ConfigMaps they name."""

from __future__ import annotations

from gpuledger.configuration.file_content import FROM_CONFIG_MAPS
from gpuledger.configuration.files import config_maps, values_of, with_config_files
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.config_maps import mounted_file, settings_file
from gpuledger.formats.kubernetes.lease import LEASE_NAMESPACE
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.workflows.config_maps import config_map_contents

FILES = (*FROM_CONFIG_MAPS, "vendors_file")
"""Settings that name files, which a workload gets from ConfigMaps, too."""


async def settings_of_workload(client: KubeClient, workload: Json, container: str) -> tuple[str, Settings] | None:
    """Return the name of the ConfigMap, and the settings, of a Deployment or DaemonSet; None if it has none from there.

    Raises BadInput if they can't be used, and what the API server says.
    """
    place = settings_file(workload, container)
    if place is None:
        return None
    reads = KubeReads(client)
    values = values_of(await _text(reads, *place))
    try:
        stated = Settings().changed(values)
    except ValueError as error:
        raise BadInput(str(error)) from error
    contents = await config_map_contents(client, config_maps(stated))
    for option in FILES:
        path = getattr(stated, option)
        found = mounted_file(workload, container, path) if path and option not in contents else None
        if found is not None:
            contents[option] = await _text(reads, *found)
    return place[0], with_config_files(stated, values, contents)


async def _text(reads: KubeReads, config_map: str, key: str) -> str:
    data = await reads.config_map(LEASE_NAMESPACE, config_map)
    if key not in data:
        raise BadInput(f"ConfigMap {LEASE_NAMESPACE}/{config_map} has no key {key}")
    return data[key]
