"""Other vendors' cards, as data: the table that comes with the program, and a file of the user's own rows."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from importlib import resources
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpuledger.formats.custom_resource.gpu_allocation import MAX_MEMORY_MIB, Word
from gpuledger.formats.dialects.vocabulary import AssignmentAnnotations, Several, Template, Vocabulary
from gpuledger.model.errors import BadInput

ResourceName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9_.-]+$", max_length=317)]
AnnotationName = ResourceName
Units = Annotated[int, Field(ge=1, le=MAX_MEMORY_MIB)]


UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors of PyYAML for text that it can't read, such as `!!bool x` or the 45th of a month."""


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


class _Assignment(_Row):
    prefix: AnnotationName
    word: Word
    details: AnnotationName | None = None


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
    refused: tuple[ResourceName, ...] = ()
    several: Several = Several.SPLIT
    default_cores: Annotated[int, Field(ge=0, le=100)] = 0
    register_: Annotated[AnnotationName | None, Field(alias="register")] = None
    assignment: _Assignment | None = None
    use_uuid: AnnotationName | None = None
    avoid_uuid: AnnotationName | None = None

    @model_validator(mode="after")
    def _ascending(self) -> VendorRow:
        sizes = [template.memory_mib for template in self.templates]
        if list(self.memory_choices) != sorted(set(self.memory_choices)) or sizes != sorted(set(sizes)):
            raise ValueError("memory_choices and templates must ascend")
        if self.templates and (self.resources.memory is None or self.memory_of_card_mib < sizes[-1]):
            raise ValueError("templates need resources.memory, and a memory_of_card_mib that is not less than they")
        if any(template.core_units > self.cores_of_card for template in self.templates):
            raise ValueError("templates can't have more core_units than cores_of_card")
        if self.several is Several.REFUSE and not self.templates:
            raise ValueError("several: refuse goes with templates; without, whole says the same")
        return self

    @model_validator(mode="after")
    def _register_and_assignment(self) -> VendorRow:
        if (self.register_ is None) != (self.assignment is None):
            raise ValueError("register and assignment go together: cards that a plugin lists are given out through it")
        return self

    def assignment_annotations(self) -> AssignmentAnnotations | None:
        """Return how HAMi's device plugin for these cards learns which ones a pod has."""
        assignment = self.assignment
        if assignment is None:
            return None
        return AssignmentAnnotations(
            to_allocate=f"{assignment.prefix}-to-allocate",
            allocated=f"{assignment.prefix}-allocated",
            word=assignment.word,
            details=assignment.details or "",
            templates=self.vocabulary().templates,
        )

    def vocabulary(self) -> Vocabulary:
        """Return the words of this row."""
        return Vocabulary(
            name=self.name,
            count=self.resources.count,
            memory=self.resources.memory or "",
            cores=self.resources.cores or "",
            vendor=self.vendor,
            model=self.model,
            memory_unit_mib=self.memory_unit_mib,
            memory_choices=self.memory_choices,
            templates=tuple(Template(each.name, each.memory_mib, each.core_units) for each in self.templates),
            memory_of_card_mib=self.memory_of_card_mib,
            cores_of_card=self.cores_of_card,
            refused=self.refused,
            several=self.several,
            default_cores=self.default_cores,
            use_uuid=self.use_uuid or "",
            avoid_uuid=self.avoid_uuid or "",
        )


class _Table(_Row):
    vendors: tuple[VendorRow, ...]


def vendor_rows(own: str = "", where: str = "vendors_file") -> tuple[VendorRow, ...]:
    """Return the table, with the rows of the user's own YAML text, which replace those of the same name.

    Raises BadInput that says which row and key are wrong.
    """
    rows = {row.name: row for row in _built_in()}
    rows |= _by_name(_read(yaml_of(own, where), where), where) if own else {}
    check_names(where, ((row.name, row.vocabulary().resources) for row in rows.values()))
    return tuple(rows.values())


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


def in_use(rows: tuple[VendorRow, ...], names: Collection[str]) -> tuple[VendorRow, ...]:
    """Return the rows of these names; `all` stands for every row. Raises BadInput for a name that no row has."""
    if "all" in names:
        return rows
    unknown = set(names) - {row.name for row in rows}
    if unknown:
        raise BadInput(f"settings: vendors: there is no row {min(unknown)!r}")
    return tuple(row for row in rows if row.name in names)


def yaml_of(text: str, where: str) -> Any:
    """Return what a YAML text holds. Raises BadInput."""
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
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadInput(f"{where}, {place}: {first['msg']}") from None
