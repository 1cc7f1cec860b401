"""What happened to pods, cards and nodes: the operator's records, for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpuledger.model.errors import BadInput
from gpuledger.plugin.spelling import amounts_of, clock, share_text
from gpuledger.plugin.tables import Column, Page, table

Json = dict[str, Any]

STYLES = {"assigned": "green", "adopted": "green", "evicted": "red", "refused": "yellow", "given-up": "yellow"}


def question(named: str | None, namespace: str, kind: str | None, limit: int) -> dict[str, str]:
    """Return the parameters that ask for the records of pod/NAME, card/UUID, node/NAME or all. Raises BadInput."""
    asked = {"limit": str(limit)} | ({"kind": kind} if kind else {})
    if named is None:
        return asked
    what, _, name = named.partition("/")
    if not name or what not in ("pod", "po", "pods", "card", "cards", "node", "no", "nodes"):
        raise BadInput(f"{named!r} is none of pod/NAME, card/UUID and node/NAME")
    if what.startswith("po"):
        return asked | {"namespace": namespace, "pod": name}
    return asked | {"card" if what.startswith("card") else "node": name}


def history_lines(found: Json, page: Page, now: datetime, wide: bool = False) -> list[str]:
    """Return the records, newest last; with `wide`, the cards and what else there was."""
    records = found["records"]
    if not records:
        return [f"Nothing is recorded of that; the operator keeps {found['kept']} records since it has started."]
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
            clock(each["time"], now),
            ((each["kind"], STYLES.get(each["kind"], "")),),
            f"{each['namespace']}/{each['pod']}",
            each["node"],
            each["text"],
            *((_cards(each), _alternatives(each)) if wide else ()),
        )
        for each in records
    ]
    return table(page, columns, rows)


def _cards(record: Json) -> str:
    return "; ".join(f"{card['uuid']}: {share_text(amounts_of(card), False)}" for card in record["cards"])


def _alternatives(record: Json) -> str:
    return ", ".join(each["node"] for each in record["alternatives"])
