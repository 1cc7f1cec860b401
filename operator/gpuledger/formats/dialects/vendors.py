"""What is configured of dialects: the table of other vendors' cards, and the ConfigMaps of HAMi and Volcano's vGPU.

The table comes with the program; a file of the user's own rows adds to it, and replaces those of the same name.

The ConfigMaps are read as they are. `hami-scheduler-device` and `volcano-vgpu-device-config` hold YAML about a vendor's
resources; `hami-device-plugin` and `volcano-vgpu-node-config` hold JSON about single nodes. Every key has its
documented name and default, or is listed as not supported. Sources: HAMi 2.10,
charts/hami/templates/scheduler/device-configmap.yaml and docs/config.md; volcano-vgpu-device-plugin,
pkg/config/config.go and doc/config.md.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from itertools import permutations
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpuledger.formats.custom_resource.gpu_allocation import Word
from gpuledger.formats.custom_resource.stored_card import MAX_INDEX, MAX_MEMORY_MIB, MAX_SLOTS
from gpuledger.formats.dialects.vocabulary import (
    HAMI_PHASE,
    PARTS,
    AssignmentAnnotations,
    Details,
    Layout,
    NodeCapacity,
    NodeRegister,
    Several,
    Template,
    Vocabulary,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.node import Dialect, NodeConfig, NodeConfigs

ResourceName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9_.-]+$", max_length=317)]
AnnotationName = ResourceName
AnyAnnotation = Annotated[str, Field(pattern=r"^([a-zA-Z0-9.-]+/)?[a-zA-Z0-9_.-]+$", max_length=317)]
IdOfCard = Annotated[str, Field(pattern=r"^([a-zA-Z0-9]+(-[a-zA-Z0-9]+)*)?$", max_length=64)]
PartOfCard = Literal["uuid", "index", "model", "memory_mib", "cores", "number", "numa_node", "mode", "healthy"]
Units = Annotated[int, Field(ge=1, le=MAX_MEMORY_MIB)]
SomeUnits = Annotated[int, Field(ge=0, le=MAX_MEMORY_MIB)]


UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors of PyYAML for text that it can't read, such as `!!bool x` or the 45th of a month."""


Made = TypeVar("Made", NodeCapacity, NodeRegister, Template, Vocabulary)


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Resources(_Row):
    count: ResourceName
    memory: ResourceName | None = None
    cores: ResourceName | None = None


class _Template(_Row):
    name: Word
    memory_mib: Units
    core_units: Units
    id: Word = ""


class _Register(_Row):
    annotation: AnnotationName
    entries: Annotated[str, Field(max_length=64)] = ""
    id: IdOfCard = ""
    fields: Mapping[PartOfCard, Annotated[str, Field(min_length=1, max_length=64)]] = {}
    memory_mib: SomeUnits = 0


class _Capacity(_Row):
    cards: ResourceName
    id: Annotated[IdOfCard, Field(min_length=1)]
    per_card: Units = 1
    memory: ResourceName | None = None
    memory_mib: SomeUnits = 0
    number: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    numa_nodes: Annotated[int, Field(ge=0, le=64)] = 0
    unless: AnnotationName | None = None

    @model_validator(mode="after")
    def _has_memory(self) -> _Capacity:
        if (self.memory is None) == (not self.memory_mib):
            raise ValueError("either memory, or memory_mib: how much memory a card has")
        return self


class _Details(_Row):
    layout: Layout
    fields: dict[str, str | bool]

    @model_validator(mode="after")
    def _known_parts(self) -> _Details:
        unknown = {part for part in self.fields.values() if isinstance(part, str)} - {*PARTS}
        if unknown:
            raise ValueError(f"{min(unknown)!r} is no part of a share; parts are {', '.join(PARTS)}")
        return self


class _Assignment(_Row):
    prefix: AnnotationName
    word: Word
    answer: Annotated[str, Field(pattern=r"^(hami|none|[a-zA-Z0-9._/-]+)$", max_length=317)] = "hami"
    details: dict[AnyAnnotation, _Details] = {}
    texts: dict[AnyAnnotation, Annotated[str, Field(max_length=256)]] = {}
    texts_by_cores: dict[AnyAnnotation, Annotated[str, Field(max_length=256)]] = {}

    @model_validator(mode="after")
    def _known_parts(self) -> _Assignment:
        for name, text in (*self.texts.items(), *self.texts_by_cores.items()):
            try:
                text.format(**dict.fromkeys(PARTS, ""))
            except (LookupError, ValueError, AttributeError):
                raise ValueError(f"{name}: braces may hold {', '.join(PARTS)}") from None
        return self


def _as_register(given: object) -> object:
    """Read a name alone as the annotation of a register in HAMi's form."""
    return {"annotation": given} if isinstance(given, str) else given


class VendorRow(_Row):
    """One line of the table. The keys are explained at the head of vendors.yaml."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    vendor: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=32)]
    model: Annotated[str, Field(max_length=256)] = ""
    resources: _Resources
    memory_unit_mib: Units = 1
    memory_choices: tuple[Units, ...] = ()
    cores_of_card: Annotated[int, Field(ge=1, le=10_000)] = 100
    templates: tuple[_Template, ...] = ()
    memory_of_card_mib: Annotated[int, Field(ge=0, le=MAX_MEMORY_MIB)] = 0
    memory_in_bytes: bool = False
    cores_in_percent: bool = False
    cores_span_cards: bool = False
    count_is_cores: bool = False
    count_multiple: Annotated[int, Field(ge=1, le=64)] = 1
    one_container: bool = False
    refused: tuple[ResourceName, ...] = ()
    several: Several = Several.SPLIT
    default_cores: Annotated[int, Field(ge=0, le=100)] = 0
    register_: Annotated[_Register | None, Field(alias="register"), BeforeValidator(_as_register)] = None
    capacity: _Capacity | None = None
    assignment: _Assignment | None = None
    use_uuid: AnnotationName | None = None
    avoid_uuid: AnnotationName | None = None
    use_model: AnnotationName | None = None
    avoid_model: AnnotationName | None = None

    @model_validator(mode="after")
    def _ascending(self) -> VendorRow:
        sizes = [template.memory_mib for template in self.templates]
        if list(self.memory_choices) != sorted(set(self.memory_choices)) or sizes != sorted(set(sizes)):
            raise ValueError("memory_choices and templates must ascend")
        if self.templates and (self.resources.memory is None or self.memory_of_card_mib < sizes[-1]):
            raise ValueError("templates need resources.memory, and a memory_of_card_mib that is not less than they")
        if any(template.core_units > self.cores_of_card for template in self.templates):
            raise ValueError("templates can't have more core_units than cores_of_card")
        if self.count_is_cores and not self.templates:
            raise ValueError("count_is_cores needs templates: a count stands for one of them")
        return self

    @model_validator(mode="after")
    def _source_and_assignment(self) -> VendorRow:
        if self.register_ is not None and self.capacity is not None:
            raise ValueError("register or capacity: two rows, if there are two ways in which the cards are listed")
        if (self.register_ is None and self.capacity is None) != (self.assignment is None):
            raise ValueError(
                "register or capacity goes with an assignment: cards that a plugin lists are given out through it"
            )
        return self

    @property
    def id_of_cards(self) -> str:
        """Return the common part of the names of these cards, where they have no UUID of their own."""
        source = self.register_ or self.capacity
        return source.id if source is not None else ""

    def node_register(self) -> NodeRegister | None:
        """Return where nodes list these cards, None if only our own agent does."""
        common: dict[str, Any] = {"dialect": Dialect.HAMI, "count": self.resources.count}
        common |= {"vendor": self.vendor, "model": self.model}
        if self.register_ is not None:
            return _like(NodeRegister, self.register_, format="hami", cores_of_card=self.cores_of_card, **common)
        capacity = self.capacity
        if capacity is None:
            return None
        return NodeRegister(
            annotation="",
            format="capacity",
            memory_unit_mib=self.memory_unit_mib,
            memory_mib=capacity.memory_mib,
            id=capacity.id,
            alive=capacity.cards,
            capacity=_like(NodeCapacity, capacity),
            **common,
        )

    def assignment_annotations(self) -> AssignmentAnnotations | None:
        """Return how HAMi's device plugin for these cards learns which ones a pod has."""
        assignment = self.assignment
        if assignment is None:
            return None
        return AssignmentAnnotations(
            to_allocate=f"{assignment.prefix}-to-allocate",
            allocated=f"{assignment.prefix}-allocated",
            word=assignment.word,
            details=tuple(
                Details(name, each.layout, tuple(each.fields.items())) for name, each in assignment.details.items()
            ),
            templates=self.vocabulary().templates,
            texts=tuple(assignment.texts.items()),
            texts_by_cores=tuple(assignment.texts_by_cores.items()),
            answer={"hami": HAMI_PHASE, "none": ""}.get(assignment.answer, assignment.answer),
            cores_of_card=self.cores_of_card,
            memory_unit_mib=self.memory_unit_mib,
        )

    def vocabulary(self) -> Vocabulary:
        """Return the words of this row."""
        templates = tuple(_like(Template, each) for each in self.templates)
        return _like(Vocabulary, self, **_given(self.resources), templates=templates)


def _given(row: _Row) -> dict[str, Any]:
    """Return what a row says, by the names of its fields; what it leaves out is missing."""
    return {name: value for name, value in row if value is not None}


def _like(kind: type[Made], row: _Row, **more: Any) -> Made:
    """Return an object with the fields of a row that have the same names, and more."""
    names = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in _given(row).items() if name in names} | more)


class _Table(_Row):
    vendors: tuple[VendorRow, ...]


def vendor_rows(own: str = "", where: str = "vendors_file") -> tuple[VendorRow, ...]:
    """Return the table, with the rows of the user's own YAML text, which replace those of the same name.

    Raises BadInput that says which row and key are wrong.
    """
    rows = {row.name: row for row in _built_in()}
    rows |= _by_name(_read(yaml_of(own, where), where), where) if own else {}
    check_names(where, ((row.name, row.vocabulary().resources) for row in rows.values()))
    _check_ids(where, [row for row in rows.values() if row.id_of_cards])
    return tuple(rows.values())


def _check_ids(where: str, rows: Sequence[VendorRow]) -> None:
    """Raise BadInput if cards of two nodes could have the same name: `a-b` with `c` is `a` with `b-c`."""
    for row, other in permutations(rows, 2):
        if f"-{row.id_of_cards}".endswith(f"-{other.id_of_cards}"):
            raise BadInput(f"{where}: cards of {row.name} and {other.name} could have the same name: change an id")


def check_names(where: str, tables: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Raise BadInput if two rows, or one row twice, use a resource: containers that name it could mean either."""
    users: dict[str, str] = {}
    for row, names in tables:
        for name in names:
            if name in users:
                raise BadInput(f"{where}: {row} and {users[name]} both have the resource {name}")
            users[name] = row


def _by_name(rows: Iterable[VendorRow], where: str) -> dict[str, VendorRow]:
    found: dict[str, VendorRow] = {}
    for row in rows:
        if found.setdefault(row.name, row) is not row:
            raise BadInput(f"{where}: there are two rows {row.name!r}")
    return found


def rows_in_use(rows: tuple[VendorRow, ...], names: Collection[str]) -> tuple[VendorRow, ...]:
    """Return the rows of these names; `all` stands for every row. Raises BadInput for a name that no row has."""
    if "all" in names:
        return rows
    unknown = set(names) - {row.name for row in rows}
    if unknown:
        raise BadInput(f"settings: vendors: there is no row {min(unknown)!r}")
    return tuple(row for row in rows if row.name in names)


def yaml_of(text: str, where: str) -> Any:
    """Return the content of a YAML text. Raises BadInput."""
    try:
        return yaml.safe_load(text)
    except UNREADABLE as error:
        raise BadInput(f"{where} is not YAML: {error}") from None


@functools.cache
def _built_in() -> tuple[VendorRow, ...]:
    """Return the rows that this release has. They are frozen, and reading them takes a tenth of a second."""
    file = resources.files("gpuledger.formats.dialects") / "vendors.yaml"
    return _read(yaml.safe_load(file.read_text()), file.name)


def _read(content: Any, where: str) -> tuple[VendorRow, ...]:
    try:
        return _Table.model_validate(content).vendors
    except ValidationError as error:
        raise BadInput(_problem(error, where)) from None


Scaling = Annotated[float, Field(gt=0, le=100)]
Mib = Annotated[int, Field(ge=0, le=MAX_MEMORY_MIB)]
Factor = Annotated[int, Field(ge=1, le=MAX_MEMORY_MIB)]
LogLevel = Annotated[int, Field(ge=0, le=4)]


def _key(name: str, default: Any) -> Any:
    """Declare a key of the file: the field is called as our setting that says the same, or as that of NodeConfig."""
    return Field(default, alias=name)


_NO_SETTINGS = {each.name for each in fields(NodeConfig)} | {"disables_core_limit", "core_policy", "log_level"}
"""Fields whose names are not those of settings."""


class _Nvidia(BaseModel):
    """The common part of both systems' `nvidia` blocks, with the documented defaults."""

    model_config = ConfigDict(extra="allow", strict=True)

    default_memory_mib: Mib = _key("defaultMemory", 0)
    default_cores: Annotated[int, Field(ge=0, le=100)] = _key("defaultCores", 0)
    default_gpus: Annotated[int, Field(ge=0, le=1024)] = _key("defaultGPUNum", 1)
    split_count: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = _key("deviceSplitCount", 10)
    memory_scaling: Scaling = _key("deviceMemoryScaling", 1.0)
    core_scaling: Scaling = _key("deviceCoreScaling", 1.0)
    overwrite_env: bool = _key("overwriteEnv", False)
    disables_core_limit: bool = _key("disableCoreLimit", False)
    core_policy: Literal["", "default", "force", "disable"] = _key("gpuCorePolicy", "")
    log_level: LogLevel | None = _key("libCudaLogLevel", None)

    def of_nodes(self) -> NodeConfig:
        """Return the settings for the cards of every node."""
        return NodeConfig(self.split_count, self.memory_scaling, self.core_scaling)

    def settings(self) -> dict[str, object]:
        """Return our settings that say the same."""
        others = {name: getattr(self, name) for name in type(self).model_fields if name not in _NO_SETTINGS}
        own = {"slots_per_card": self.split_count, "memory_scaling": self.memory_scaling}
        return {**others, **own, **self._of_the_library()}

    def _of_the_library(self) -> dict[str, object]:
        """Return what is said of HAMi-core. There, the policy is a container's variable, which goes before a switch."""
        found: dict[str, object] = {} if self.log_level is None else {"hami_core_log_level": self.log_level}
        policy = self.core_policy
        if self.disables_core_limit and policy in ("", "default"):
            policy = "disable"
        return {**found, "hami_core_policy": policy} if policy else found


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
    "preConfiguredDeviceMemory": "set unified_memory_mib for cards without memory of their own",
    "enableNumaTopology": "cards of one NUMA node are chosen for pods that ask for it by annotation",
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
    libcudaloglevel: LogLevel | None = None

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
            log_level=self.libcudaloglevel,
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
    """Return the content of a device configuration of `hami` or `volcano`: the ConfigMap, or the text in its key.

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
