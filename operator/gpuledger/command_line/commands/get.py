"""`gpuledger get`: a row for each pod, card or node, as kubectl lists objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from gpuledger.command_line.commands.describe import KINDS_SHOWN, objects_named
from gpuledger.command_line.objects import kind_of, name_of
from gpuledger.command_line.options import Common, common_options, completed_names
from gpuledger.command_line.output import age, utc_now
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import holder_name, number_of_pods
from gpuledger.reports.tables import Cell, Column, Terminal, pods_named, table


@click.command(short_help="List pods with their cards, cards, or nodes.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[pods | cards | nodes | pod/NAME | card/UUID | node/NAME]...",
    shell_complete=completed_names(*KINDS_SHOWN, all_of=KINDS_SHOWN),
)
@common_options("name", "csv", namespaced=True)
def get(names: tuple[str, ...], common: Common) -> None:
    """List pods, cards or nodes, with a row for each: all, or those that are named.

    "pods" are those of the namespace that hold cards or wait for some. A unique prefix of a card's UUID is enough. What
    `describe` shows in full. Exit status: 0, or 2 after an error or if there is no such object.
    """
    found, by_name = objects_named(names, common)
    if common.output == "csv" and len({kind_of(each) for each in found}) > 1:
        raise click.UsageError("-o csv is of one kind of objects: the columns differ")
    one = by_name and len(found) == 1
    common.show(
        found[0] if one else {"items": found},
        lambda terminal: list_lines(found, terminal, utc_now(), common.wide, common.all_namespaces),
        map(name_of, found),
    )


def list_lines(
    found: Sequence[Json], terminal: Terminal, now: datetime, wide: bool = False, all_namespaces: bool = False
) -> Iterator[str]:
    """Yield a table of each kind."""
    kinds = [kind for kind in TABLES if any(kind_of(each) == kind for each in found)]
    for place, kind in enumerate(kinds):
        yield from [""] * bool(place)
        columns, row_of = TABLES[kind]
        rows = [row_of(each, now) for each in found if kind_of(each) == kind]
        # A namespace is a column where there are several; the first column is always that.
        shown = [
            place
            for place, column in enumerate(columns)
            if (wide or column not in WIDE) and (all_namespaces or wide or column is not NAMESPACE)
        ]
        yield from table(terminal, [columns[at] for at in shown], [[row[at] for at in shown] for row in rows])


NAMESPACE = Column("NAMESPACE")
MIB, CORES, STATE = Column("MIB", right=True), Column("CORES %", right=True, spare=1), Column("STATE")
CARDS, PODS = Column("CARDS", right=True), Column("PODS", right=True)

QUEUE, AGE, UUIDS = Column("QUEUE"), Column("AGE"), Column("CARD UUIDS")
SLOTS, MODEL, MODELS = Column("SLOTS", right=True), Column("MODEL"), Column("MODELS")
HELD_BY, CORDONED, REASON = Column("HELD BY"), Column("CORDONED", fold=True), Column("REASON", fold=True)
IDLE = Column("IDLE", right=True)
WIDE = {QUEUE, AGE, UUIDS, SLOTS, MODELS, HELD_BY, CORDONED, REASON, IDLE}
"""The columns that -o wide has beyond the others."""


def _pod(found: Json, now: datetime) -> list[Cell]:
    shares = found["shares"]
    return [
        found["namespace"],
        found["pod"],
        found["node"] or "",
        str(len(shares)),
        str(sum(share["memoryMiB"] for share in shares)),
        str(sum(share["cores"] for share in shares)),
        found["state"],
        found["queue"] or "",
        age(found["created"], now) if found["created"] else "",
        " ".join(share["card"] for share in shares),
        found["reason"] or "",
    ]


def _card(found: Json, _: datetime) -> list[Cell]:
    marks = (found["cordoned"], found["nodeCordoned"])
    return [
        found["uuid"],
        found["node"],
        str(found["index"]),
        found["model"],
        _part(found, "memoryMiB"),
        _part(found, "cores"),
        str(number_of_pods([found])),
        ((found["phase"] or "Pending", "green" if found["phase"] == "Ready" else "yellow"),),
        _part(found, "number"),
        pods_named(map(holder_name, found["holders"]), most=2),
        "; ".join(mark or "without a reason" for mark in marks if mark is not None),
        found["reason"],
    ]


def _node(found: Json, _: datetime) -> list[Cell]:
    cards = found["cards"]
    ready = sum(card["phase"] == "Ready" for card in cards)
    state = "Ready" if ready == len(cards) else f"{ready} of {len(cards)} Ready"
    if found["unschedulable"]:
        state += ", cordoned"
    return [
        found["node"],
        str(len(cards)),
        _part(found, "memoryMiB"),
        _part(found, "cores"),
        str(number_of_pods(cards)),
        ((state, "green" if state == "Ready" else "yellow"),),
        _part(found, "number"),
        str(sum(not card["holders"] for card in cards)),
        ",".join(sorted({card["model"] for card in cards})),
    ]


def _part(found: Json, key: str) -> str:
    return f"{found['used'][key]}/{found['capacity'][key]}"


CARD_WIDE = (SLOTS, HELD_BY, CORDONED, REASON)
TABLES = {
    "pod": ((NAMESPACE, Column("POD"), Column("NODE"), CARDS, MIB, CORES, STATE, QUEUE, AGE, UUIDS, REASON), _pod),
    "card": (
        (Column("CARD"), Column("NODE"), Column("INDEX", right=True), MODEL, MIB, CORES, PODS, STATE, *CARD_WIDE),
        _card,
    ),
    "node": ((Column("NODE"), CARDS, MIB, CORES, PODS, STATE, SLOTS, IDLE, MODELS), _node),
}
"""Kind -> its columns, and what makes a row of an object and the time."""
