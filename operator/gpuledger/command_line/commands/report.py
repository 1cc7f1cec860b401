"""`report`: what namespaces, queues, owners and nodes held of GPUs, from one day to another, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import Common, common_options
from gpuledger.command_line.output import all_cards, utc_now
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.custom_resource.usage import DATE_LABEL, NAMESPACE_LABEL, line_json
from gpuledger.ledger.usage import ended_share, lines_of
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import StoredCard
from gpuledger.model.usage import MS_PER_HOUR
from gpuledger.reports.account import (
    WAYS,
    Account,
    Days,
    Prices,
    accounts,
    existed_ms,
    in_all,
)
from gpuledger.reports.tables import Cell, Column, Terminal, table

DAYS_AGO = re.compile(r"(\d{1,4})d")
MOST_DAYS = 366

NO_RECORDS = "the cluster has no GPUUsages: its administrator installs the CRD of this release"
NOT_ALLOWED = (
    "your account may not list gpuusages.gpuledger.dev: the ClusterRole gpuledger-viewer may, which an administrator "
    "can bind to you"
)

COLUMNS = (
    Column("CARD-HOURS", right=True),
    Column("MEM GIB-H", right=True, spare=3),
    Column("CORE-HOURS", right=True, spare=2),
    Column("SHARES", right=True, spare=1),
    Column("WAITED-H", right=True),
    Column("COST", right=True),
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
@common_options("csv", namespaced=True)
def report(since: str | None, until: str | None, by: str, price: Path | None, common: Common) -> None:
    """Show what was held of GPUs, and how long pods had waited: shares that have ended, and those that run.

    A card hour is a card that one pod held for an hour, or two of which each held half of its memory or cores,
    whichever is more. All namespaces count, unless one is named. Exit status: 0, or 2 after an error.
    """
    now = utc_now()
    days, prices = _days(since, until, now), None if price is None else _prices(price)
    with common.cluster() as cluster:
        cards = [(each, stored_card(each)) for each in all_cards(cluster)]
        lines = _lines(cluster, [card for _, card in cards], days, common.namespace, now)
        rows = accounts(lines, by, days, prices)
        created = [datetime.fromisoformat(each["metadata"]["creationTimestamp"]) for each, _ in cards]
        card_hours = round(existed_ms(created, days, now) / MS_PER_HOUR, 3)
        found: Json = {
            "since": days.begin.isoformat(),
            "until": days.end.isoformat(),
            "by": by,
            "rows": [{"name": name} | row.as_json() for name, row in rows.items()],
            "total": in_all(rows).as_json(),
            "cluster": {"cards": len(cards), "cardHours": card_hours},
        }
        common.show(found, lambda terminal: report_lines(rows, found, terminal))


def report_lines(rows: dict[str, Account], found: Json, terminal: Terminal) -> Iterator[str]:
    """Yield the table, with its sum, and how much of the cards' time that was."""
    last = date.fromisoformat(found["until"]) - timedelta(days=1)
    if not terminal.csv:
        yield f"GPUs held from {found['since']} to {last} (UTC)"
        yield ""
        if not rows:
            yield "Nothing was held."
            return
    priced = any(row.cost is not None for row in rows.values())
    columns = [Column(found["by"].upper()), *COLUMNS[: len(COLUMNS) - (not priced)]]
    entries = [_cells(name, row.as_json()) for name, row in rows.items()]
    if not terminal.csv:
        entries.append(_cells("total", found["total"]))
    yield from table(terminal, columns, entries)
    if not terminal.csv and found["cluster"]["cardHours"]:
        part = found["total"]["cardHours"] / found["cluster"]["cardHours"]
        cluster = found["cluster"]
        yield ""
        yield f"{part:.0%} of the {cluster['cardHours']:,.2f} hours of the {cluster['cards']} cards that are there now"


def _cells(name: str, sums: Json) -> list[Cell]:
    numbers = [f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" for value in sums.values()]
    return [name, *numbers]


def _lines(
    cluster: ClusterAccess, cards_of: list[StoredCard], days: Days, namespace: str | None, now: datetime
) -> Iterator[tuple[str, Json]]:
    """Yield what was held: by the records, by cards' lists of what they do not have yet, and by shares that run."""
    entered: set[str] = set()
    for each in _records(cluster, days, namespace, now):
        status = each.get("status") or {}
        entered.update(share["key"] for share in status.get("entered") or ())
        for line in status.get("lines") or ():
            yield each["spec"]["namespace"], line
    for card in cards_of:
        running = filter(None, (ended_share(holder, card.card, now) for holder in card.holders or ()))
        for ended in (*(card.ended or ()), *running):  # they were read before the records
            if ended.key not in entered and namespace in (None, ended.namespace):
                for line, held in lines_of(ended, card.card.model, card.card.node_name):
                    yield ended.namespace, line_json(line, held)


def _records(cluster: ClusterAccess, days: Days, namespace: str | None, now: datetime) -> Iterator[Json]:
    """Yield the records of all days on which a share that was held in these can have ended. Raises BadInput."""
    from gpuledger.command_line.owners import path_of

    last = max(now.date(), days.begin)
    dates = [days.begin + timedelta(days=number) for number in range((last - days.begin).days + 2)]
    selector = f"{DATE_LABEL} in ({','.join(each.isoformat() for each in dates)})"
    if namespace:
        selector += f",{NAMESPACE_LABEL}={namespace}"
    try:
        yield from cluster.begin(path_of("gpuusage", ""), {"labelSelector": selector})
    except NotFound:
        raise BadInput(NO_RECORDS) from None
    except Denied:
        raise BadInput(NOT_ALLOWED) from None


def _days(since: str | None, until: str | None, now: datetime) -> Days:
    """Return the days that are meant. Raises click.UsageError."""
    today = now.astimezone(UTC).date()
    ago = DAYS_AGO.fullmatch(since or "30d")
    begin = today - timedelta(days=int(ago[1])) if ago else _date(since or "", "--since")
    days = Days(begin, _date(until, "--until") if until else today + timedelta(days=1))
    if not days.begin < days.end:
        raise click.UsageError(f"there is no day from {days.begin} until {days.end}")
    if (today - days.begin).days > MOST_DAYS:
        raise click.UsageError(f"--since {since} is more than {MOST_DAYS} days ago")
    return days


def _date(text: str, option: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} takes a day, such as 2026-11-01, not {text!r}") from None


def _prices(path: Path) -> Prices:
    """Read a file of prices. Raises click.UsageError."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
        return {str(model): float(price) for model, price in found.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise click.UsageError(f"{path} has no lines `MODEL: PRICE`: {error}") from None
