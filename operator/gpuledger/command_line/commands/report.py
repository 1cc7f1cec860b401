"""`report`: what namespaces, queues, owners and nodes held of GPUs, from one day to another, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import Common, common_options
from gpuledger.command_line.output import FROM_MEMORY, TO_READ, NoLedger, age, all_cards, bar, uncollected, utc_now
from gpuledger.command_line.top.rows import MIB_PER_GIB, NODES
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.custom_resource.usage import records_of, side_by_side
from gpuledger.formats.idle import Idleness, ShareKey, read_idle
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.account import NO_RECORDS, WAYS, Days, Prices, Question, Tally, days_asked
from gpuledger.reports.idle import idle_shares
from gpuledger.reports.tables import Cell, Column, Terminal, table

NOT_ALLOWED = (
    "your account may not list gpuusages.gpuledger.dev: the ClusterRole gpuledger-viewer may, which an administrator "
    "can bind to you"
)

LISTS = 3
"""Of records, at a time: for the API server, tens of thousands are seconds of one core."""

BAR_WIDTH = 20

COLUMNS = (
    Column("CARD-HOURS", right=True),
    Column("MEM GIB-H", right=True, spare=3),
    Column("CORE-HOURS", right=True, spare=2),
    Column("SHARES", right=True, spare=1),
    Column("WAITED-H", right=True),
    Column("IDLE-H", right=True),
    Column("WASTED-H", right=True),
    Column("COST", right=True),
)

IDLE_COLUMNS = (
    Column("NAMESPACE"),
    Column("POD"),
    Column("OWNER", spare=3),
    Column("NODE", spare=2),
    Column("CARD", right=True, spare=1),
    Column("CARDS", right=True),
    Column("MEM GIB", right=True, spare=4),
    Column("IDLE FOR", right=True),
)


@click.command(short_help="GPU-hours by namespace, queue, owner, model, node or day, and their price.")
@click.option("--since", help="First day (of UTC), such as 2026-11-01, or so many days ago: 30d. By default, 30d.")
@click.option("--until", help="First day that is not counted, such as 2026-12-01. By default, today is counted, too.")
@click.option("--by", type=click.Choice(list(WAYS)), default="namespace", show_default=True, help="The rows.")
@click.option(
    "--price",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a line `MODEL: PRICE` for each model of card: what an hour of one costs.",
)
@click.option("--idle", is_flag=True, help="In place of that, the shares that nothing computes with now.")
@common_options("csv", namespaced=True)
def report(since: str | None, until: str | None, by: str, price: Path | None, idle: bool, common: Common) -> None:
    """Show what was held of GPUs, and how long pods had waited: shares that have ended, and those that run.

    A card hour is a card that one pod held for an hour, or two of which each held half of its memory or cores,
    whichever is more. All namespaces count, unless one is named. Exit status: 0, or 2 after an error.
    """
    now = utc_now()
    if idle:
        with common.cluster() as cluster:
            rows = _idle_now(cluster, common, now)
            common.show({"idle": rows}, lambda terminal: idle_lines(rows, now, terminal))
        return
    days, prices = _days(since, until, now), None if price is None else _prices(price)
    with common.cluster() as cluster:
        asked = Question(by, days, (common.namespace,) if common.namespace else ())
        try:
            found = _summed(cluster, asked, now, prices)
        except NoLedger as error:
            found = _own_namespace(cluster, common, asked, error, priced=prices is not None)
        common.show(found, lambda terminal: report_lines(found, terminal))


def _summed(cluster: ClusterAccess, asked: Question, now: datetime, prices: Prices | None) -> Json:
    """Return the report by what the account reads itself. Raises NoLedger where it may not, BadInput and ApiError."""
    cards = list(map(stored_card, all_cards(cluster)))  # before the records
    tally = Tally(asked, now, prices)
    with uncollected():
        for each in _records(cluster, asked, now):
            tally.add_record(each)
    for card in cards:
        for ended in card.ended or ():
            tally.add_share(ended, card.card)
        tally.add_holders(card.holders or (), card.card, card.wasted)
    return tally.report(datetime.fromisoformat(card.created) for card in cards)


def _own_namespace(cluster: ClusterAccess, common: Common, asked: Question, error: NoLedger, *, priced: bool) -> Json:
    """Return what the operator tells an account of one namespace. Raises NoLedger where the account may not ask."""
    from gpuledger.command_line.own_namespace import TO_ASK, report_as_developer

    if common.all_namespaces:
        raise error
    if priced:
        raise BadInput(f"--price needs the records themselves: {error}")
    namespace = common.namespace_named(cluster)
    try:
        found = report_as_developer(cluster, namespace, asked)
    except (Denied, NotFound) as refused:  # NotFound: the Service is not there
        raise NoLedger(f"{error}. Or for namespace {namespace} alone, {TO_ASK}: {refused}", error.status) from None
    if common.namespace is None:
        cluster.notes.append(f"This is namespace {namespace} alone; {TO_READ}.")
    return found


def _idle_now(cluster: ClusterAccess, common: Common, now: datetime) -> list[Json]:
    """Return the shares that are idle now. Raises NoLedger, and Denied where the account may not list Nodes."""
    nodes = cluster.begin(NODES, FROM_MEMORY)
    cards = list(map(stored_card, all_cards(cluster)))
    said: dict[str, Mapping[ShareKey, Idleness]] = {}
    for node in nodes:
        name = str(node["metadata"]["name"])
        try:
            said[name] = read_idle(node).shares
        except BadInput as error:
            cluster.notes.append(f"Node {name}: {error}")
    holders = ((card.card, holder) for card in cards for holder in card.holders or ())
    of_namespace = (each for each in holders if common.namespace in (None, each[1].pod.namespace))
    return idle_shares(of_namespace, said, now)


def idle_lines(rows: Sequence[Json], now: datetime, terminal: Terminal) -> Iterator[str]:
    """Yield the table of shares that are idle."""
    if not rows and not terminal.csv:
        yield "No share is idle, as far as the agents of the nodes can tell."
        return
    yield from table(terminal, IDLE_COLUMNS, [_idle_cells(row, now) for row in rows])


def _idle_cells(row: Json, now: datetime) -> list[Cell]:
    memory = f"{row['memoryMiB'] / MIB_PER_GIB:,.1f}"
    where = [row["owner"] or "", row["node"], str(row["index"])]
    return [row["namespace"], row["pod"], *where, f"{row['cards']:.2f}", memory, age(row["idleSince"], now)]


def report_lines(found: Json, terminal: Terminal) -> Iterator[str]:
    """Yield the table, with its sum, and how much of the cards' time that was."""
    last = date.fromisoformat(found["until"]) - timedelta(days=1)
    if not terminal.csv:
        yield f"GPUs held from {found['since']} to {last} (UTC)"
        yield ""
        if not found["rows"]:
            yield "Nothing was held."
            return
    priced = any("cost" in row for row in found["rows"])
    by_day = found["by"] == "day"
    drawn = [Column("", spare=4, drawn=True)] if by_day else []
    columns = [Column(found["by"].upper()), *drawn, *COLUMNS[: len(COLUMNS) - (not priced)]]
    most = max((row["cardHours"] for row in found["rows"]), default=0)
    bars = [[bar(terminal, row["cardHours"], most, "cyan", BAR_WIDTH)] if by_day else [] for row in found["rows"]]
    entries = [_cells(row, drawn) for row, drawn in zip(found["rows"], bars, strict=True)]
    if not terminal.csv:
        entries.append(_cells({"name": "total"} | found["total"], [""] if by_day else []))
    yield from table(terminal, columns, entries)
    if not terminal.csv and found["cluster"]["cardHours"]:
        part = found["total"]["cardHours"] / found["cluster"]["cardHours"]
        cluster = found["cluster"]
        yield ""
        yield f"{part:.0%} of the {cluster['cardHours']:,.2f} hours of the {cluster['cards']} cards that are there now"


def _cells(row: Json, drawn: Sequence[Cell]) -> list[Cell]:
    name, *numbers = row.values()
    return [name, *drawn, *(f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" for value in numbers)]


def _records(cluster: ClusterAccess, asked: Question, now: datetime) -> Iterator[Json]:
    """Yield the records of all days on which a share that was held in these can have ended. Raises BadInput."""
    from gpuledger.command_line.owners import path_of

    dates = asked.days.of_records(now.astimezone(UTC).date())
    try:
        parts = [records_of(part, asked.namespaces) for part in side_by_side(dates, LISTS)]
        yield from cluster.begin(path_of("gpuusage", ""), *parts)
    except NotFound:
        raise BadInput(NO_RECORDS) from None
    except Denied as error:
        raise NoLedger(f"{error}; {NOT_ALLOWED}", error.status) from None


def _days(since: str | None, until: str | None, now: datetime) -> Days:
    """Return the days that are meant. Raises click.UsageError."""
    try:
        return days_asked(since, until, now.astimezone(UTC).date())
    except BadInput as error:
        raise click.UsageError(f"--{error}") from None


def _prices(path: Path) -> Prices:
    """Read a file of prices. Raises click.UsageError."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
        return {str(model): float(price) for model, price in found.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise click.UsageError(f"{path} has no lines `MODEL: PRICE`: {error}") from None
