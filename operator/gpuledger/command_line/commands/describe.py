"""`gpuledger describe`: of a pod its cards, of a card its holders, of a node its cards, each in a block of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import click

from gpuledger.command_line.objects import LedgerReader, kind_of, name_of
from gpuledger.command_line.options import Common, common_options, completed_names, named_objects
from gpuledger.command_line.output import NO_CARDS, amounts_of, bar, plural, share_text
from gpuledger.model.json_object import Json
from gpuledger.model.request import entry_text
from gpuledger.reports.cards import holder_name
from gpuledger.reports.tables import Column, Terminal, gathered, nodes_named, pods_named, table, title_of

KINDS_SHOWN = ("pod", "card", "node")

CROWD = 10
"""How many holders of a card are named one by one."""


@click.command(short_help="A pod's cards, a card's holders, or a node's cards, in full.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[pod/NAME | card/UUID | node/NAME | pods | cards | nodes]...",
    shell_complete=completed_names(*KINDS_SHOWN, all_of=KINDS_SHOWN),
)
@common_options("name", namespaced=True)
def describe(names: tuple[str, ...], common: Common) -> None:
    """Show a pod's cards and each container's part of them, the pods that hold a card, or a node's cards.

    A unique prefix of a UUID is enough; "pods" are those of the namespace that hold cards or wait for some: of many
    that are alike it shows one, with -o wide each. Exit status: 0, or 2 after an error or if there is no such object.
    """
    found, by_name = objects_named(names, common)
    one = by_name and len(found) == 1
    common.show(
        found[0] if one else {"items": found},
        lambda terminal: all_lines(found, terminal, by_name, common.wide),
        map(name_of, found),
    )


def objects_named(words: Sequence[str], common: Common) -> tuple[list[Json], bool]:
    """Return the objects that the words name, and whether they name each; a line says that there are none.

    An error ends the program.
    """
    with common.cluster() as cluster:
        wanted = named_objects(words, KINDS_SHOWN, all_of=KINDS_SHOWN)
        are_pods = any(each.kind == "pod" for each in wanted)
        namespace = common.namespace_named(cluster, wanted) if are_pods else ""
        reader = LedgerReader(cluster, namespace)
        found = [item for each in wanted for item in reader.found(each)]
    if not found and common.for_people:
        where = f"of namespace {namespace}" if namespace else "of the cluster"
        click.echo(f"No pod {where} holds a card or waits for one." if are_pods else NO_CARDS, err=True)
    return found, any(each.name is not None for each in wanted)


def all_lines(found: Sequence[Json], terminal: Terminal, by_name: bool, wide: bool) -> Iterator[str]:
    """Yield what was found, for people, with an empty line between two.

    Of pods that are alike one is shown, unless they were named or each is wanted.
    """
    groups = [[one] for one in found] if by_name or wide else gathered(found, _name, _shown)
    for position, alike in enumerate(groups):
        yield from [""] * bool(position)
        kind = kind_of(alike[0])
        if kind == "pod":
            yield from pod_lines(alike, terminal)
        else:
            yield from card_lines(alike[0], terminal, wide) if kind == "card" else node_lines(alike[0], terminal)


def _name(found: Json) -> str:
    return holder_name(found) if "pod" in found else name_of(found)


def _shown(found: Json) -> Hashable:
    """Return the common properties of pods that are shown as one: all but the cards of their shares."""
    if "pod" not in found:
        return name_of(found)
    shares = tuple((each["state"], amounts_of(each), each["exclusive"]) for each in found["shares"])
    told = tuple((each["container"], each["memoryMiB"], each["cores"]) for each in found["told"])
    return str(found["phase"]), bool(found["node"]), found["queue"], shares, told, str(found["toldProblem"])


def card_lines(card: Json, terminal: Terminal, wide: bool) -> list[str]:
    """Return a card for people; a group of similar holders is one row, unless wide."""
    state = "green" if card["phase"] == "Ready" else "yellow"
    lines = [
        f"{terminal.paint(card['uuid'], 'bold')}: card {card['index']} of node {card['node']}, {card['model']}",
        "  state    "
        + terminal.paint(card["phase"] or "Pending", state)
        + (f": {card['reason']}" if card["reason"] else ""),
        *([f"  cordoned {card['cordoned'] or 'without a reason'}"] if card["cordoned"] is not None else []),
        *_amount_lines(card, terminal),
        *_facts(card, terminal),
    ]
    lines += _pods_table("held by", card["holders"], terminal, wide)
    lines += _pods_table("claimed by, once other pods have left", card["claimedBy"], terminal, wide)
    lines += _pods_table("found on it, without room", card["conflictsWith"], terminal, wide)
    if not card["holders"]:
        lines += ["", "No pod holds it."]
    return lines


def node_lines(node: Json, terminal: Terminal) -> list[str]:
    """Return a node for people: its sums, and a row for each of its cards."""
    columns = [
        Column("INDEX", right=True),
        Column("CARD"),
        Column("MODEL", spare=2),
        Column("MIB", right=True),
        Column("CORES %", right=True, spare=1),
        Column("STATE"),
        Column("HELD BY", fold=True),
    ]
    rows = [
        (
            str(card["index"]),
            card["uuid"],
            card["model"],
            f"{card['used']['memoryMiB']}/{card['capacity']['memoryMiB']}",
            f"{card['used']['cores']}/{card['capacity']['cores']}",
            card["phase"] or "Pending",
            pods_named(map(_name, card["holders"])),
        )
        for card in node["cards"]
    ]
    return [
        f"{terminal.paint(node['node'], 'bold')}: node with {plural(len(rows), 'card')}",
        *(["  cordoned by kubectl: takes no new pods of any kind"] if node["unschedulable"] else []),
        *_amount_lines(node, terminal),
        "",
        *table(terminal, columns, rows),
    ]


def pod_lines(alike: Sequence[Json], terminal: Terminal) -> list[str]:
    """Return a pod for people; of several similar ones, their nodes, and the shares of the first."""
    pod, names = alike[0], list(map(_name, alike))
    first, whose = ("", "the pod's") if len(alike) == 1 else (f", of {names[0]}", "its")
    queue = f", in queue {pod['queue']}" if pod["queue"] else ""
    lines = [f"{terminal.paint(title_of(names), 'bold')}: {pod['phase'] or 'Pending'}, {_where(alike)}{queue}"]
    if pod["shares"] and not pod["byAnnotation"]:
        columns = [Column("CARD"), Column("INDEX", right=True), Column("STATE"), Column("SHARE", fold=True)]
        rows = [
            (each["card"], str(each["index"]), each["state"], share_text(amounts_of(each), each["exclusive"]))
            for each in pod["shares"]
        ]
        lines += ["", f"In the ledger{first}:", *table(terminal, columns, rows)]
    else:
        lines += ["", _why_no_share(pod)]
    if pod["told"]:
        titles = [Column("CONTAINER"), Column("CARD"), Column("MIB", right=True), Column("CORES %", right=True)]
        annotated = [
            (entry_text(each["container"]), each["uuid"], str(each["memoryMiB"]), str(each["cores"]))
            for each in pod["told"]
        ]
        lines += [
            "",
            f"In {whose} annotation, by container:",
            *table(terminal, titles, annotated),
        ]
    if pod["toldProblem"]:
        lines += ["", terminal.paint(pod["toldProblem"], "yellow")]
    return lines


def _why_no_share(pod: Json) -> str:
    """Return why the ledger has nothing of a pod, as far as the pod tells, and the command that tells more."""
    name = f"{pod['pod']} -n {pod['namespace']}"
    if pod["byAnnotation"] and pod["node"]:
        return "Your account may not read its shares in the ledger."
    if pod["phase"] in ("Succeeded", "Failed"):
        return "The ledger has no share of it any more: it has ended."
    if not pod["node"]:
        return f"The ledger has no share of it yet: `kubectl gpuledger explain pod/{name}` says why it waits."
    if pod["told"]:
        return "The ledger has no share of it, and its annotation names cards: `gpuledger audit` says what that means."
    return "The ledger has no share of it: it asks for no card of ours, or `gpuledger audit` names it."


def _where(alike: Sequence[Json]) -> str:
    nodes = [pod["node"] for pod in alike if pod["node"]]
    one = len(set(nodes)) == 1
    return f"on node {nodes[0]}" if one else nodes_named(nodes) if nodes else "without a node"


def _amount_lines(card: Json, terminal: Terminal) -> Iterable[str]:
    kinds = (
        ("memory", "memoryMiB", "MiB", "cyan"),
        ("compute", "cores", "%", "blue"),
        ("slots", "number", "", "magenta"),
    )
    for title, key, unit, style in kinds:
        used, capacity = card["used"][key], card["capacity"][key]
        drawn = "".join(terminal.paint(*part) for part in bar(terminal, used, capacity, style, 20))
        yield f"  {title:<8} {drawn} {used} of {capacity} {unit}".rstrip()


def _facts(card: Json, terminal: Terminal) -> Iterable[str]:
    if card["mode"]:
        yield f"  mode     {card['mode']}"
    if card["numaNode"] is not None:
        yield f"  NUMA     {card['numaNode']}"
    if card["links"]:
        scores: dict[int, list[str]] = {}
        for peer, score in card["links"].items():
            scores.setdefault(score, []).append(peer)
        for score, peers in sorted(scores.items(), reverse=True):
            for position, line in enumerate(terminal.folded(f"score {score}: {', '.join(peers)}", indent=11)):
                yield f"  {'' if position else 'links':<8} {line}"


def _pods_table(title: str, pods: Sequence[Json], terminal: Terminal, wide: bool) -> list[str]:
    if not pods:
        return []
    cells = [
        (each.get("state") or each.get("why", ""), str(each.get("priority", "")), _share_of(each)) for each in pods
    ]
    named = list(zip(map(_name, pods), cells, strict=True))
    groups = [[row] for row in named] if wide else gathered(named, lambda row: row[0], lambda row: row[1], CROWD)
    rows = [(title_of([name for name, _ in alike]), *alike[0][1]) for alike in groups]
    columns = [
        Column("POD"),
        Column("STATE", spare=3),
        Column("PRIORITY", right=True, spare=2),
        Column("SHARE", fold=True),
    ]
    return ["", f"{title[0].upper()}{title[1:]}:", *table(terminal, columns, rows)]


def _share_of(found: Json) -> str:
    return share_text(amounts_of(found), found.get("exclusive", False))
