"""From the settings to the words that pods and nodes may use."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.configuration.file_content import content_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.vendors import VendorRow, check_names, in_use, vendor_rows
from gpuledger.formats.dialects.vocabulary import (
    HAMI,
    KOORDINATOR,
    VOLCANO,
    VOLCANO_CLASSIC,
    Dialects,
    NodeRegister,
    Vocabulary,
)
from gpuledger.formats.objects.node import REGISTER_ANNOTATION
from gpuledger.model.node_offer import Dialect
from gpuledger.model.request import NVIDIAS_COUNT


def dialects_of(settings: Settings) -> Dialects:
    """Return the words that the settings name. Raises BadInput for a table of vendors that can't be used."""
    rows = in_use(vendor_rows(_own_rows(settings.vendors_file), settings.vendors_file), settings.vendors)
    nvidia = (
        replace(
            _with_defaults(HAMI, settings),
            count=settings.resource_count,
            memory=settings.resource_memory,
            memory_percentage=settings.resource_memory_percentage,
            cores=settings.resource_cores,
            priority=settings.resource_priority,
            memory_unit_mib=settings.resource_memory_unit_mib,
        ),
        replace(
            _with_defaults(VOLCANO, settings),
            count=settings.volcano_count,
            memory=settings.volcano_memory,
            memory_percentage=settings.volcano_memory_percentage,
            cores=settings.volcano_cores,
            memory_unit_mib=settings.volcano_memory_unit_mib,
        ),
        replace(
            VOLCANO_CLASSIC,
            count=settings.volcano_classic_count,
            memory=settings.volcano_classic_memory,
            memory_unit_mib=settings.volcano_memory_unit_mib,
        ),
        *((KOORDINATOR,) if settings.koordinator_names else ()),
    )
    others = tuple(row.vocabulary() for row in rows)
    ours = {name for each in nvidia for name in each.resources}
    check_names("settings", [("NVIDIA", ours), *((each.name, each.resources) for each in others)])
    assignments = {
        (row.vendor, row.model): annotations
        for row in rows
        if (annotations := row.assignment_annotations()) is not None
    }
    key, _, value = settings.node_label.partition("=")
    label = (key, value) if key else None
    registers = tuple(_registers(settings, rows))
    counted = any(each.count == NVIDIAS_COUNT for each in nvidia)
    elsewhere = NVIDIAS_COUNT if label and settings.whole_gpus_elsewhere and counted else ""
    return Dialects((*nvidia, *others), registers, assignments, label, elsewhere, settings.most_containers)


def _with_defaults(vocabulary: Vocabulary, settings: Settings) -> Vocabulary:
    return replace(
        vocabulary,
        default_gpus=settings.default_gpus,
        default_memory_mib=settings.default_memory_mib,
        default_cores=settings.default_cores,
    )


def _registers(settings: Settings, rows: tuple[VendorRow, ...]) -> list[NodeRegister]:
    nvidia = [
        NodeRegister(REGISTER_ANNOTATION, "native", Dialect.NATIVE, settings.resource_count),
        NodeRegister("hami.io/node-nvidia-register", "hami", Dialect.HAMI, settings.resource_count),
        NodeRegister(
            "volcano.sh/node-vgpu-register",
            "volcano",
            Dialect.VOLCANO,
            settings.volcano_count,
            memory_unit_mib=settings.volcano_memory_unit_mib,
        ),
    ]
    others = {each.place: each for row in rows if (each := row.node_register()) is not None}
    return [*nvidia, *others.values()]


def _own_rows(file: str) -> str:
    return content_of(file, "vendors_file") if file else ""
