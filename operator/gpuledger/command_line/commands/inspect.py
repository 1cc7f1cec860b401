"""`gpuledger inspect`: reads objects from files or from the cluster, and shows what is understood."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.command_line.options import (
    Common,
    Named,
    common_options,
    errors_shown,
    named_objects,
    no_such,
    read_settings,
    settings_option,
)
from gpuledger.command_line.output import NARROWEST
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.tables import NARROW_GAP, Cell, Column, Terminal, family, gathered, table, title_of

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient


MOST_NAMED = 8
"""Objects that are only mentioned: of a whole release there are dozens."""


@click.command()
@settings_option
@click.argument("names", nargs=-1, metavar="[node/NAME | pod/NAME | nodes | pods]...")
@click.option("-f", "--filename", "files", multiple=True, help="YAML or JSON file to read; - for standard input.")
@common_options(namespaced=True)
@click.pass_context
def inspect(
    command: click.Context,
    /,
    settings_file: Path | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    common: Common,
) -> None:
    """Show how gpuledger reads Nodes and Pods: their GPUs, containers' requests, and every problem.

    Reads files, which needs no cluster, or objects of the cluster: by name, all Nodes, or all Pods of a namespace.
    Those that are read alike are shown once; -o wide shows each. Exit status: 1 if there is a problem, 2 after an
    error.
    """
    if not names and not files:
        raise click.UsageError("name something to inspect: -f FILE, -f -, node/NAME, pod/NAME, nodes or pods")
    settings = read_settings(settings_file, common.kubeconfig, common.context)
    found, namespace = list[Json](), ""
    with errors_shown():
        for file in files:
            found.extend(inspect_text(_text_of(file), "standard input" if file == "-" else file, settings))
        wanted = named_objects(names, ("node", "pod"), all_of=("node", "pod"))
        if any(each.kind == "pod" for each in wanted):
            with common.cluster() as cluster:
                namespace = common.namespace_named(cluster, wanted)

    async def read(client: KubeClient) -> list[Json]:
        return [item for each in wanted for item in await _read(client, each, namespace)]

    if wanted:
        found.extend(_inspected(common.in_cluster(read), settings))
    if found or not common.for_people:
        common.show(as_json(found), lambda terminal: as_lines(found, terminal, common.wide), narrowest=NARROWEST)
    else:
        click.echo("Nothing found.", err=True)
    command.exit(1 if has_problems(found) else 0)


async def _read(client: KubeClient, wanted: Named, namespace: str) -> list[Json]:
    """Return the objects that are meant. Raises BadInput if there is none of a name, ApiError."""
    kind = wanted.kind.capitalize()
    path = "/api/v1/nodes" if kind == "Node" else f"/api/v1{f'/namespaces/{namespace}' if namespace else ''}/pods"
    if wanted.name is None:
        return [{"kind": kind, **item} async for page in client.pages(path) for item in page]
    try:
        return [{"kind": kind, **await client.request("GET", f"{path}/{wanted.name}")}]
    except NotFound:
        raise BadInput(no_such(wanted.kind, wanted.name, namespace if kind == "Pod" else "")) from None


def _text_of(file: str) -> str:
    try:
        with click.open_file(file, encoding="utf-8") as opened:
            return str(opened.read())
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not text: {error}") from None


def inspect_text(text: str, where: str, settings: Settings) -> list[Json]:
    """Return the reading of the documents of a YAML or JSON text. Raises BadInput if it is neither."""
    from gpuledger.formats.kubernetes.templates import read_documents

    return _inspected(read_documents(text, where), settings)


def _inspected(documents: Iterable[Any], settings: Settings) -> list[Json]:
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.formats.inspection import SAYS_NOTHING, inspected
    from gpuledger.what_if.scene import claims_in

    dialects, documents = dialects_of(settings), list(documents)
    claims = claims_in(documents)
    found = [each for document in documents for each in inspected(document, dialects, claims)]
    if found and all(each.get("skipped") for each in found):  # so there is nothing to show
        return [{**each, "problems": [f"a {each['kind']} {SAYS_NOTHING}"]} for each in found]
    return found


def as_json(found: list[Json]) -> Json:
    """Return one object as itself and several as a List, like kubectl."""
    return found[0] if len(found) == 1 else {"kind": "List", "items": found}


def as_lines(found: Iterable[Json], terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield what was understood, object by object; those that are read alike once, unless each is wanted."""
    skipped, shown = [], []
    for each in found:
        if each.get("skipped") and not each["problems"]:
            skipped.append(_title(each))
        else:
            shown.append(each)
    for alike in [[each] for each in shown] if wide else gathered(shown, _name, _reading):
        yield from _shown(alike, terminal)
        yield ""
    if skipped:
        more = f", and {len(skipped) - MOST_NAMED} more" if len(skipped) > MOST_NAMED else ""
        yield from _line(f"Without pods or GPUs: {', '.join(skipped[:MOST_NAMED])}{more}", terminal)


def has_problems(found: Iterable[Json]) -> bool:
    """Return whether something would not be taken as it is."""
    return any(each["problems"] for each in found)


def _name(found: Json) -> str:
    return "/".join(part for part in (found.get("namespace"), found.get("name")) if part)


def _reading(found: Json) -> Hashable:
    """Return the common properties of objects that are shown as one: all but names, and the identity of cards."""
    import orjson

    gpus = [{**gpu, "uuid": "", "links": sorted(gpu["links"].values())} for gpu in found.get("gpus", ())]
    alike = {**found, "name": "", "of": family(found.get("of", "")), "gpus": gpus}
    return orjson.dumps(alike, option=orjson.OPT_SORT_KEYS)


def _shown(alike: Sequence[Json], terminal: Terminal) -> Iterator[str]:
    found = alike[0]
    yield from _line(_title(found, list(map(_name, alike))), terminal, "bold")
    if found.get("gpus"):
        yield from _gpus(found["gpus"], terminal)
    if found.get("containers"):
        yield from _containers(found["containers"], terminal)
    for name, value in {**found.get("settings", {}), **found.get("everywhere", {}), **found.get("nodes", {})}.items():
        yield from _line(f"  {name}: {value}", terminal)
    for sentence in found.get("notSupported", ()):
        yield from _line(f"  not supported: {sentence}", terminal, "yellow")
    for name, value in found.get("selectors", {}).items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        yield from _line(f"  {name}: {shown}", terminal)
    for note in found.get("notes", ()):
        yield from _line(f"  note: {note}", terminal)
    for warning in found.get("warnings", ()):
        yield from _line(f"  warning: {warning}", terminal, "yellow")
    for problem in found["problems"]:
        yield from _line(f"  problem: {problem}", terminal, "red")


def _title(found: Json, names: Sequence[str] = ()) -> str:
    kind = found["kind"] or "object"
    title = title_of(names, f"{kind}s") if len(names) > 1 else f"{kind} {_name(found)}".strip()
    if found["kind"] == "Node":
        title += f": {_cards_of_node(found)}"
    if "of" in found:
        copies = f", {found['copies']} of {'each' if len(names) > 1 else 'them'}" if found["copies"] != 1 else ""
        title += f" ({found['template']} of {found['of']}{copies})"
    return title


def _cards_of_node(found: Json) -> str:
    """Return where a node's cards are listed, and by which names pods get them there."""
    source = f"words of {found['dialect']}" if found["dialect"] else "no register of GPUs"
    if serves := found.get("serves"):
        return f"{source}, its device plugin serves {', '.join(serves)}"
    offers = ", ".join(f"{amount} {name}" for name, amount in found.get("offers", {}).items())
    return f"{source}, allocatable {offers}" if offers else f"{source}, and nothing of them is allocatable"


def _line(text: str, terminal: Terminal, style: str = "") -> Iterator[str]:
    return (terminal.paint(line, style) for line in terminal.folded(text))


def _gpus(gpus: Iterable[Json], terminal: Terminal) -> list[str]:
    titles = ("UUID", "INDEX", "MODEL", "MIB", "CORES", "SLOTS", "NUMA", "MODE", "HEALTHY", "LINKS")
    right = ("INDEX", "MIB", "CORES", "SLOTS", "NUMA")
    rows: list[tuple[Cell, ...]] = []
    for gpu in gpus:
        numa = "" if gpu["numaNode"] is None else str(gpu["numaNode"])
        amounts = (str(gpu[name]) for name in ("memoryMiB", "cores", "number"))
        links = " ".join(f"{peer}={score}" for peer, score in gpu["links"].items())
        healthy = "yes" if gpu["healthy"] else (("no", "red"),)
        rows.append((gpu["uuid"], str(gpu["index"]), gpu["model"], *amounts, numa, gpu["mode"], healthy, links))
    columns = [Column(title, right=title in right, fold=title == "LINKS") for title in titles]
    return table(terminal, columns, rows, gap=NARROW_GAP)


def _containers(containers: Iterable[Json], terminal: Terminal) -> list[str]:
    titles = ("CONTAINER", "GPUS", "MEMORY OF EACH", "CORES OF EACH", "ALONE", "WORDS")
    rows = [_container(container) for container in containers]
    return table(terminal, [Column(title, fold=True) for title in titles], rows, gap=NARROW_GAP)


def _container(container: Json) -> tuple[Cell, ...]:
    asked = container["request"]
    if asked is None:
        nothing: Cell = "no GPU" if container["readable"] else (("can't be read", "red"),)
        return container["name"], nothing, "", "", "", ""
    memory, unit = ("memoryMiB", " MiB") if "memoryMiB" in asked else ("percentage", " %")
    limit = ", at most the card" if asked.get("atMostCard") else ""
    return (
        container["name"],
        _marked(asked, "gpus"),
        _marked(asked, memory, unit) + limit,
        _marked(asked, "cores", " %"),
        "yes" if asked["exclusive"] else "no",
        asked["words"],
    )


def _marked(asked: Json, name: str, unit: str = "") -> str:
    return f"{asked[name]}{unit}" + (" (default)" if name in asked["defaults"] else "")
