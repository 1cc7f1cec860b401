"""`gpuledger history`: what happened to pods, gangs, cards and nodes; the operator's records, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.cluster_access import namespace_of
from gpuledger.command_line.operator_view import ask
from gpuledger.command_line.options import (
    access_options,
    completed_names,
    errors_shown,
    namespace_option,
    one_object,
    operator_option,
    output_option,
)
from gpuledger.command_line.output import amounts_of, clock, share_text, utc_now
from gpuledger.model.json_object import Json
from gpuledger.reports.records import RecordKind
from gpuledger.reports.tables import FEW, Column, Terminal, family, nodes_named, table, title_of

BURST_S = 10.0
"""Equal events of pods of one owner within this time are one row."""

STYLES = {
    "assigned": "green",
    "adopted": "green",
    "gang-bound": "green",
    "cordoned": "yellow",
    "uncordoned": "green",
    "evicted": "red",
    "refused": "yellow",
    "given-up": "yellow",
    "gang-given-up": "yellow",
    "gang-first": "yellow",
}


@click.command(short_help="What happened to a pod, a gang, a card or a node.")
@click.argument(
    "names",
    nargs=-1,
    metavar="[pod/NAME | gang/NAME | card/UUID | node/NAME | pods]",
    shell_complete=completed_names("pod", "gang", "card", "node"),
)
@namespace_option
@click.option("--kind", type=click.Choice([kind.value for kind in RecordKind]), help="Only records of this kind.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Number of records to show.")
@operator_option
@output_option("table", "wide", "json", "yaml")
@access_options
def history(
    names: tuple[str, ...],
    namespace: str | None,
    kind: str | None,
    limit: int,
    operator_url: str | None,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Show what happened to a pod, a gang and its members, a card, a node or all of them, newest last.

    Asks the operator, which has records since it started. What happens to many pods that are alike at one time is one
    row; -o wide shows each. Exit status: 0, or 2 after an error.
    """
    with errors_shown():
        asked = question(names, kind, limit)
        if namespace or "pod" in asked or "gang" in asked:
            asked["namespace"] = namespace or namespace_of(kubeconfig, context)
        found = ask("/v1/history", asked, operator_url, kubeconfig, context)
        now = utc_now().astimezone()
        out.show(found, output, lambda terminal: history_lines(found, terminal, now, output == "wide"), no_color)


def question(words: Sequence[str], kind: str | None, limit: int) -> dict[str, str]:
    """Return the parameters that ask for the records of the named objects, of all if there are none. Raises BadInput.

    Of pods and gangs, the caller adds the namespace; an empty `pod` stands for all of it.
    """
    asked = {"limit": str(limit)} | ({"kind": kind} if kind else {})
    if not words:
        return asked
    wanted = one_object(words, ("pod", "gang", "card", "node"), all_of=("pod",))
    return asked | {wanted.kind: wanted.name or ""}


def history_lines(found: Json, terminal: Terminal, now: datetime, wide: bool = False) -> list[str]:
    """Return the records, newest last; with `wide`, each of them, the cards and what else there was."""
    records = found["records"]
    if not records:
        return [f"No record matches; the operator has kept {found['kept']} records since it started."]
    columns = [
        Column("TIME"),
        Column("WHAT"),
        Column("POD"),
        Column("NODE", spare=1),
        Column("WHY", fold=True),
        *([Column("CARDS"), Column("OTHER NODES")] if wide else []),
    ]
    rows = [
        (
            clock(alike[-1]["time"], now),
            ((alike[-1]["kind"], STYLES.get(alike[-1]["kind"], "")),),
            title_of(list(map(_pod, alike))),
            nodes_named(each["node"] for each in alike),
            alike[-1]["text"],
            *((_cards(alike[-1]), _alternatives(alike[-1])) if wide else ()),
        )
        for alike in ([[each] for each in records] if wide else _bursts(records))
    ]
    return table(terminal, columns, rows)


@dataclass(slots=True)
class Burst:
    """Records that say the same of pods of one maker, within a short time."""

    places: list[int] = field(default_factory=list)
    """Where they are among all records."""
    pods: set[str] = field(default_factory=set)


def _bursts(records: Sequence[Json]) -> list[list[Json]]:
    """Return the records, those of a burst together where the last of them stands."""
    latest: dict[tuple[str, str, str], Burst] = {}  # all that is shown, but names, nodes and time
    bursts: list[Burst] = []
    for place, record in enumerate(records):
        pod = _pod(record)
        key = (family(pod), record["kind"], record["text"])
        burst = latest.get(key)
        if burst is None or pod in burst.pods or _seconds(records[burst.places[0]], record) > BURST_S:
            burst = latest[key] = Burst()
            bursts.append(burst)
        burst.places.append(place)
        burst.pods.add(pod)
    many = [burst.places for burst in bursts if len(burst.pods) > FEW]
    alone = [[place] for burst in bursts if len(burst.pods) <= FEW for place in burst.places]
    return [[records[place] for place in places] for places in sorted(many + alone, key=lambda places: places[-1])]


def _seconds(first: Json, last: Json) -> float:
    return (datetime.fromisoformat(last["time"]) - datetime.fromisoformat(first["time"])).total_seconds()


def _pod(record: Json) -> str:
    """Return the subject of a record: a pod, a gang, or a card."""
    if record["pod"]:
        return f"{record['namespace']}/{record['pod']}"
    return f"gang {record['namespace']}/{record['gang']}" if record["gang"] else f"card {record['cards'][0]['uuid']}"


def _cards(record: Json) -> str:
    return "; ".join(f"{card['uuid']}: {share_text(amounts_of(card), False)}" for card in record["cards"])


def _alternatives(record: Json) -> str:
    return ", ".join(each["node"] for each in record["alternatives"])
