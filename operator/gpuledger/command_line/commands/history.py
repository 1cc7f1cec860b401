"""`gpuledger history`: what happened to pods, gangs, cards and nodes; the operator's records, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import click

from gpuledger.command_line.operator_view import history_of
from gpuledger.command_line.options import (
    Common,
    common_options,
    completed_names,
    duration_of,
    one_object,
    operator_option,
)
from gpuledger.command_line.output import amounts_of, clock, plural, share_text, utc_now
from gpuledger.model.errors import BadInput
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
    "active": "yellow",
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
@click.option("--kind", type=click.Choice([kind.value for kind in RecordKind]), help="Only records of this kind.")
@click.option(
    "--since", help="Only records since a time, such as 2026-11-29T02:00:00Z, or for so long, such as 8h or 1d12h."
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Number of records to show.")
@operator_option
@common_options("csv", namespaced=True)
def history(
    names: tuple[str, ...],
    kind: str | None,
    since: str | None,
    limit: int,
    operator_url: str | None,
    common: Common,
) -> None:
    """Show what happened to a pod, a gang and its members, a card, a node or all of them, newest last.

    Asks the operator, which keeps the last records over restarts and upgrades; where the account may not, it shows the
    Events of the namespace. What happens to many pods that are alike at one time is one row; -o wide shows each. Exit
    status: 0, or 2 after an error.
    """
    with common.cluster() as cluster:
        now = utc_now().astimezone()
        begin = None if since is None else begin_of(since, now)
        asked = question(names, kind, limit)
        if begin:
            asked["since"] = str(max(int(begin.timestamp()), 0))
        if not common.all_namespaces and (common.namespace or "pod" in asked or "gang" in asked):
            asked["namespace"] = common.namespace or cluster.namespace()
        found = history_of(cluster, asked, operator_url)
        common.show(found, lambda terminal: history_lines(found, terminal, now, common.wide, begin))


def question(words: Sequence[str], kind: str | None, limit: int) -> dict[str, str]:
    """Return the parameters that ask for the records of the named objects, of all if there are none. Raises BadInput.

    Of pods and gangs, the caller adds the namespace; an empty `pod` stands for all of it.
    """
    asked = {"limit": str(limit)} | ({"kind": kind} if kind else {})
    if not words:
        return asked
    wanted = one_object(words, ("pod", "gang", "card", "node"), all_of=("pod",))
    return asked | {wanted.kind: wanted.name or ""}


def begin_of(since: str, now: datetime) -> datetime:
    """Return the moment that a duration or a time stands for; without a zone, it is this machine's. Raises BadInput."""
    if (duration := duration_of(since)) is not None:
        return now - duration
    try:
        return datetime.fromisoformat(since).astimezone()
    except (ValueError, OverflowError):
        text = "must be a duration, such as 8h or 1d12h, or a time, such as 2026-11-29T02:00:00Z"
        raise BadInput(f"--since {text}, not {since!r}") from None


def history_lines(
    found: Json, terminal: Terminal, now: datetime, wide: bool = False, begin: datetime | None = None
) -> list[str]:
    """Return the records, newest last; with `wide`, each of them, the cards and what else there was.

    Below them is where they begin, if that is later than was asked for.
    """
    records, kept_since = found["records"], found.get("keptSince")
    below = []
    if found.get("more"):
        below = [f"Older records match, too: these are the last {len(records)}, and --limit shows more."]
    elif kept_since and (begin is None or datetime.fromisoformat(kept_since) > begin):
        below = [f"Records before {clock(kept_since, now)} are not kept."]
    if not records and not terminal.csv:
        if found.get("byEvents"):
            return ["No Event of the namespace says anything of GPUs."]
        return [f"No record matches, of {plural(found['kept'], 'record')}.", *below]
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
    return [*table(terminal, columns, rows), *([] if terminal.csv else below)]


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
    """Return the subject of a record: a pod, a gang, a card, or the operator."""
    if record["pod"]:
        return f"{record['namespace']}/{record['pod']}"
    if record["gang"]:
        return f"gang {record['namespace']}/{record['gang']}"
    return f"card {record['cards'][0]['uuid']}" if record["cards"] else "operator"


def _cards(record: Json) -> str:
    return "; ".join(f"{card['uuid']}: {share_text(amounts_of(card), False)}" for card in record["cards"])


def _alternatives(record: Json) -> str:
    return ", ".join(each["node"] for each in record["alternatives"])
