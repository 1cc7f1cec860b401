"""The ConfigMaps that HAMi and Volcano's vGPU read, as they are.

`hami-scheduler-device` and `volcano-vgpu-device-config` hold YAML about a vendor's resources; `hami-device-plugin` and
`volcano-vgpu-node-config` hold JSON about single nodes. Every key has its documented name and default, or is listed as
not supported. Sources: HAMi 2.10, charts/hami/templates/scheduler/device-configmap.yaml and
docs/config.md; volcano-vgpu-device-plugin, pkg/config/config.go and doc/config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuledger.formats.custom_resource.stored_card import MAX_INDEX, MAX_MEMORY_MIB, MAX_SLOTS
from gpuledger.formats.dialects.vendors import yaml_of
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeConfig, NodeConfigs

Scaling = Annotated[float, Field(gt=0, le=100)]
Mib = Annotated[int, Field(ge=0, le=MAX_MEMORY_MIB)]
Factor = Annotated[int, Field(ge=1, le=MAX_MEMORY_MIB)]


def _key(name: str, default: Any) -> Any:
    """Declare a key of the file: the field is called as our setting that says the same, or as that of NodeConfig."""
    return Field(default, alias=name)


_OF_NODES = frozenset(each.name for each in fields(NodeConfig))


class _Nvidia(BaseModel):
    """What both systems' `nvidia` block has, with the documented defaults."""

    model_config = ConfigDict(extra="allow", strict=True)

    default_memory_mib: Mib = _key("defaultMemory", 0)
    default_cores: Annotated[int, Field(ge=0, le=100)] = _key("defaultCores", 0)
    default_gpus: Annotated[int, Field(ge=0, le=1024)] = _key("defaultGPUNum", 1)
    split_count: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = _key("deviceSplitCount", 10)
    memory_scaling: Scaling = _key("deviceMemoryScaling", 1.0)
    core_scaling: Scaling = _key("deviceCoreScaling", 1.0)

    def of_nodes(self) -> NodeConfig:
        """Return what concerns the cards of every node."""
        return NodeConfig(self.split_count, self.memory_scaling, self.core_scaling)

    def settings(self) -> dict[str, object]:
        """Return our settings that say the same."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in _OF_NODES}


class _Hami(_Nvidia):
    resource_count: str = _key("resourceCountName", "nvidia.com/gpu")
    resource_memory: str = _key("resourceMemoryName", "nvidia.com/gpumem")
    resource_memory_percentage: str = _key("resourceMemoryPercentageName", "nvidia.com/gpumem-percentage")
    resource_cores: str = _key("resourceCoreName", "nvidia.com/gpucores")
    resource_priority: str = _key("resourcePriorityName", "nvidia.com/priority")
    resource_memory_unit_mib: Factor = _key("memoryFactor", 1)


class _Volcano(_Nvidia):
    volcano_count: str = _key("resourceCountName", "volcano.sh/vgpu-number")
    volcano_memory: str = _key("resourceMemoryName", "volcano.sh/vgpu-memory")
    volcano_memory_percentage: str = _key("resourceMemoryPercentageName", "volcano.sh/vgpu-memory-percentage")
    volcano_cores: str = _key("resourceCoreName", "volcano.sh/vgpu-cores")
    volcano_memory_unit_mib: Factor = _key("gpuMemoryFactor", 1)


_BLOCKS: dict[str, type[_Nvidia]] = {"hami": _Hami, "volcano": _Volcano}

NOT_SUPPORTED = {
    "overwriteEnv": "environment variables of containers without GPUs are left alone",
    "preConfiguredDeviceMemory": "memory of a card is what its node reports",
    "enableNumaTopology": "cards of one NUMA node are chosen for pods that ask for it by annotation",
    "libCudaLogLevel": "set LIBCUDA_LOG_LEVEL in the container",
    "disableCoreLimit": "it is for the library in the container, which is not ours",
    "gpuCorePolicy": "it is for the library in the container, which is not ours",
    "runtimeClassName": "set it in the pod",
    "migProfileAllowlist": "MIG devices are not made here: cut the cards beforehand",
    "knownMigGeometries": "MIG devices are not made here: cut the cards beforehand",
    "passDeviceSpecs": "it is for Volcano's device plugin itself",
}
"""Keys of both systems that have no effect here -> what to know instead."""

OTHER_BLOCKS = "resources of other vendors are rows of the table of vendors: see the setting vendors_file"


class _FilterDevices(BaseModel):
    model_config = ConfigDict(strict=True)

    uuid: list[str] = []
    index: list[Annotated[int, Field(ge=0, le=MAX_INDEX)]] = []


class _NodeEntry(BaseModel):
    """One node's overrides; what is 0 or absent is as everywhere else."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=253)]
    operatingmode: Literal["", "auto", "none", "hami-core", "mig", "mps", "driver"] = ""
    devicememoryscaling: Annotated[float, Field(ge=0, le=100)] = 0.0
    devicecorescaling: Annotated[float, Field(ge=0, le=100)] = 0.0
    devicesplitcount: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = 0
    filterdevices: _FilterDevices | None = None

    def over(self, everywhere: NodeConfig) -> NodeConfig:
        """Return the node's configuration."""
        hidden = self.filterdevices or _FilterDevices()
        return NodeConfig(
            split_count=self.devicesplitcount or everywhere.split_count,
            memory_scaling=self.devicememoryscaling or everywhere.memory_scaling,
            core_scaling=self.devicecorescaling or everywhere.core_scaling,
            mode=self.operatingmode,
            hidden_uuids=frozenset(hidden.uuid),
            hidden_indexes=frozenset(hidden.index),
        )


class _NodeFile(BaseModel):
    model_config = ConfigDict(strict=True)

    nodeconfig: list[_NodeEntry]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """A ConfigMap, as gpuledger reads it."""

    settings: Mapping[str, object] = field(default_factory=dict)
    nodes: NodeConfigs | None = None
    not_supported: tuple[str, ...] = ()
    """Sentences on keys without effect."""


def device_config(text: str, system: str, where: str) -> DeviceConfig:
    """Return what a device configuration of `hami` or `volcano` says: the ConfigMap, or what is in its key.

    Raises BadInput that names the key that can't be used.
    """
    content = _content(text, "device-config.yaml", where)
    block = content.get("nvidia")
    if not isinstance(block, dict):
        raise BadInput(f"{where} has no block `nvidia`")
    try:
        found = _BLOCKS[system].model_validate(block)
    except ValidationError as error:
        raise BadInput(_problem(error, f"{where}, nvidia")) from None
    ignored = [f"nvidia.{key}: {NOT_SUPPORTED.get(key, 'this key is not known')}" for key in found.model_extra or {}]
    ignored += [f"{key}: {OTHER_BLOCKS}" for key in content if key != "nvidia"]
    return DeviceConfig(found.settings(), NodeConfigs(found.of_nodes()), tuple(ignored))


def node_configs(text: str, everywhere: NodeConfig, where: str) -> tuple[NodeConfigs, tuple[str, ...]]:
    """Return the nodes' configurations, and sentences on keys without effect. Raises BadInput."""
    try:
        found = _NodeFile.model_validate(_content(text, "config.json", where))
    except ValidationError as error:
        raise BadInput(_problem(error, where)) from None
    names = [entry.name for entry in found.nodeconfig]
    if len(set(names)) < len(names):
        raise BadInput(f"{where}: a node is listed twice")
    extra = ((each.name, key) for each in found.nodeconfig for key in each.model_extra or {})
    ignored = [f"nodeconfig {name}, {key}: not supported" for name, key in extra]
    return NodeConfigs(everywhere, {entry.name: entry.over(everywhere) for entry in found.nodeconfig}), tuple(ignored)


def _content(text: str, key: str, where: str) -> dict[str, Any]:
    content = yaml_of(text, where)
    if isinstance(content, dict) and content.get("kind") == "ConfigMap":
        inner = (content.get("data") or {}).get(key)
        if not isinstance(inner, str):
            raise BadInput(f"{where}: the ConfigMap has no {key}")
        content = yaml_of(inner, f"{where}, {key}")
    if not isinstance(content, dict):
        raise BadInput(f"{where} is no configuration: it must be a list of `key: value` lines")
    return content


def _problem(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    return f"{where}, {'.'.join(map(str, first['loc']))}: {first['msg']}"
