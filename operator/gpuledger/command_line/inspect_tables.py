"""Tables of `gpuledger inspect`, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuledger.command_line.tables import printed

Json = dict[str, Any]


def as_tables(found: Iterable[Json]) -> str:
    """Return what was understood, object by object; in colours if it goes to a terminal."""
    return printed(Group(*_shown(each), "") for each in found)


def _shown(found: Json) -> Iterator[RenderableType]:
    yield Text(_title(found), style="bold")
    if found.get("gpus"):
        yield _gpus(found["gpus"])
    if found.get("containers"):
        yield _containers(found["containers"])
    for name, value in {**found.get("settings", {}), **found.get("everywhere", {}), **found.get("nodes", {})}.items():
        yield Text(f"  {name}: {value}")
    for sentence in found.get("notSupported", ()):
        yield Text(f"  not supported: {sentence}", style="yellow")
    for name, value in found.get("selectors", {}).items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        yield Text(f"  {name}: {shown}")
    for note in found.get("notes", ()):
        yield Text(f"  note: {note}")
    for warning in found.get("warnings", ()):
        yield Text(f"  warning: {warning}", style="yellow")
    for problem in found["problems"]:
        yield Text(f"  problem: {problem}", style="red")


def _title(found: Json) -> str:
    name = "/".join(part for part in (found.get("namespace"), found.get("name")) if part)
    title = f"{found['kind'] or 'object'} {name}".strip()
    if found["kind"] == "Node":
        serves = ", ".join(found.get("serves", ())) or "nothing"
        words = f"words of {found['dialect']}, " if found["dialect"] else "no register of GPUs, "
        title += f": {words}its device plugin serves {serves}"
    return title


def _gpus(gpus: Iterable[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("UUID", "INDEX", "MODEL", "MIB", "CORES", "NUMBER", "NUMA", "MODE", "HEALTHY", "LINKS"):
        table.add_column(column, justify="right" if column in ("INDEX", "MIB", "CORES", "NUMBER", "NUMA") else "left")
    for gpu in gpus:
        numa = "" if gpu["numaNode"] is None else str(gpu["numaNode"])
        amounts = (str(gpu[name]) for name in ("memoryMiB", "cores", "number"))
        links = " ".join(f"{peer}={score}" for peer, score in gpu["links"].items())
        healthy = Text("yes") if gpu["healthy"] else Text("no", style="red")
        table.add_row(gpu["uuid"], str(gpu["index"]), gpu["model"], *amounts, numa, gpu["mode"], healthy, links)
    return table


def _containers(containers: Iterable[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("CONTAINER", "NUMBER", "MEMORY OF EACH", "CORES OF EACH", "ALONE", "WORDS"):
        table.add_column(column)
    for container in containers:
        asked = container["request"]
        if asked is None:
            nothing = Text("no GPU") if container["readable"] else Text("can't be read", style="red")
            table.add_row(container["name"], nothing)
            continue
        memory, unit = ("memoryMiB", " MiB") if "memoryMiB" in asked else ("percentage", " %")
        limit = ", at most the card" if asked.get("atMostCard") else ""
        table.add_row(
            container["name"],
            _marked(asked, "number"),
            _marked(asked, memory, unit) + limit,
            _marked(asked, "cores", " %"),
            "yes" if asked["exclusive"] else "no",
            asked["words"],
        )
    return table


def _marked(asked: Json, name: str, unit: str = "") -> str:
    return f"{asked[name]}{unit}" + (" (default)" if name in asked["defaults"] else "")
