"""What `top --usage` shows: what is used beside what is held, of each container, card or node, or by each namespace.

Made of the data that `-o json` prints, so that it does not matter who has put them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger.command_line.bars import bar
from gpuledger.command_line.formatting import AGES, in_reading_order
from gpuledger.model.json_object import Json
from gpuledger.model.request import entry_text
from gpuledger.reports.cards import UseState
from gpuledger.reports.grouping import listed
from gpuledger.reports.tables import Cell, Column, Terminal, table

MIB_PER_GIB = 1024
VIEWS = {"containers": ("NODE", "INDEX", "POD", "CONTAINER"), "cards": ("NODE", "INDEX"), "nodes": ("NODE",)} | {
    "namespaces": ("NAMESPACE",)
}
"""View -> the titles of what its rows are about."""

NOT_KNOWN = "?"
PARTLY_KNOWN = "+"
"""Follows a sum of which some is not known."""
FREE = "free"
"""State of what nobody holds anything of."""

STYLES = {UseState.IN_USE: "green", UseState.IDLE: "yellow", FREE: "dim"}


@dataclass(slots=True)
class UsageRow:
    """One row of any view, summed up over what it is about."""

    names: tuple[str, ...]
    capacity_mib: int = 0
    held_mib: int = 0
    used_mib: int = 0
    """As far as it is known."""
    known: set[bool] = field(default_factory=set)
    """Of each part that was added, whether it is known."""
    idle_mib: int = 0
    cores_held: int = 0
    utilization_percent: list[int | None] = field(default_factory=list)
    """Of each card, or of the container."""
    states: Counter[str] = field(default_factory=Counter)
    pods: set[str] = field(default_factory=set)
    limit_mib: int | None = None
    last_kernel_s: int | None = None
    uuid: str = ""
    source: str = ""

    def use(self, used_mib: int | None) -> None:
        """Add what is used of a part; None: it is not known."""
        self.known.add(used_mib is not None)
        self.used_mib += used_mib or 0

    @property
    def state(self) -> str:
        """Return one word where all containers are alike: "idle", else "1 idle, 2 in use"."""
        if len(self.states) == 1:
            return next(iter(self.states))
        return ", ".join(f"{self.states[state]} {state}" for state in UseState if self.states[state]) or FREE

    @property
    def style(self) -> str:
        """Return how the state is shown: what is held and idle stands out."""
        return STYLES[UseState.IDLE] if self.idle_mib else STYLES.get(self.state, "")


SORTS: dict[str, Callable[[UsageRow], Any]] = {
    "memory": lambda row: -row.held_mib,
    "state": lambda row: (-row.idle_mib, row.style == STYLES[UseState.IN_USE]),
}
"""What to sort by, besides the name -> key: the most that is held, or the most that is held and idle."""


def usage_rows(view: str, nodes: Iterable[Json], sort: str | None = None) -> list[UsageRow]:
    """Return the rows of a view of these nodes, by name, or by one of SORTS."""
    if view == "containers":
        rows = list(_containers(nodes))
    else:
        rows = _namespaces(nodes) if view == "namespaces" else _places(view, nodes)
        rows.sort(key=lambda row: in_reading_order("/".join(row.names)))
    return sorted(rows, key=SORTS[sort]) if sort in SORTS else rows


def usage_table(view: str, rows: Sequence[UsageRow], terminal: Terminal, wide: bool = False) -> list[str]:
    """Return the table of a view."""
    return table(terminal, _columns(view, wide), [_cells(row, view, terminal, wide) for row in rows])


def notes(nodes: Iterable[Json]) -> Iterator[str]:
    """Yield a line for each reason why it is not known what is used, with the nodes of which that is said."""
    reasons: dict[str, list[str]] = {}
    for node in nodes:
        if node["problem"]:
            reasons.setdefault(node["problem"], []).append(node["node"])
    for reason, names in reasons.items():
        yield f"not known of {listed(sorted(names, key=in_reading_order))}: {reason}"


def _containers(nodes: Iterable[Json]) -> Iterator[UsageRow]:
    for node in sorted(nodes, key=lambda node: in_reading_order(node["node"])):
        for card in node["cards"]:
            for pod in card["pods"]:
                for use in pod["containers"]:
                    yield _container(node["node"], card, f"{pod['namespace']}/{pod['pod']}", use)


def _container(node: str, card: Json, pod: str, use: Json) -> UsageRow:
    row = UsageRow(
        (node, str(card["index"]), pod, entry_text(use["container"])),
        held_mib=use["memoryHeldMiB"],
        idle_mib=use["memoryHeldMiB"] * (use["state"] == UseState.IDLE),
        cores_held=use["coresHeld"],
        utilization_percent=[use["utilizationPercent"]],
        limit_mib=use["memoryLimitMiB"],
        last_kernel_s=use["lastKernelSecondsAgo"],
        uuid=card["uuid"],
        source=use["source"] or "",
    )
    row.use(use["memoryUsedMiB"])
    row.states[use["state"]] += 1
    return row


def _places(view: str, nodes: Iterable[Json]) -> list[UsageRow]:
    rows: dict[tuple[str, ...], UsageRow] = {}
    for node in nodes:
        for card in node["cards"]:
            names = (node["node"], str(card["index"])) if view == "cards" else (node["node"],)
            row = rows.setdefault(names, UsageRow(names))
            row.uuid = card["uuid"]
            row.capacity_mib += card["memoryMiB"]
            row.held_mib += card["memoryHeldMiB"]
            row.idle_mib += card["memoryIdleMiB"]
            row.cores_held += card["coresHeld"]
            row.use(card["memoryUsedMiB"])
            row.utilization_percent.append(card["utilizationPercent"])
            row.states.update(use["state"] for pod in card["pods"] for use in pod["containers"])
            row.pods |= {pod["podUID"] for pod in card["pods"]}
    return list(rows.values())


def _namespaces(nodes: Iterable[Json]) -> list[UsageRow]:
    rows: dict[str, UsageRow] = {}
    for node in nodes:
        for card in node["cards"]:
            for pod in card["pods"]:
                row = rows.setdefault(pod["namespace"], UsageRow((pod["namespace"],)))
                row.held_mib += pod["memoryHeldMiB"]
                row.idle_mib += pod["memoryIdleMiB"]
                row.cores_held += pod["coresHeld"]
                row.pods.add(pod["podUID"])
                for use in pod["containers"]:
                    row.use(0 if use["state"] == UseState.NOT_STARTED else use["memoryUsedMiB"])
                    row.states[use["state"]] += 1
    return list(rows.values())


def _columns(view: str, wide: bool) -> list[Column]:
    unit = "MIB" if wide else "GIB"
    containers, own_cards = view == "containers", view in ("cards", "nodes")
    return [
        *(Column(title, right=title == "INDEX") for title in VIEWS[view]),
        Column("USED OF HELD", spare=5),
        Column(f"USED {unit}", right=True),
        Column(f"HELD {unit}", right=True),
        Column(f"LIMIT {unit}" if containers else f"IDLE {unit}", right=True, spare=2),
        *([Column(f"OF {unit}", right=True, spare=3)] if own_cards else []),
        Column("CORES %", right=True, spare=4),
        *([] if view == "namespaces" else [Column("BUSY %", right=True)]),
        Column("LAST KERNEL" if containers else "PODS", right=True, spare=1),
        Column("STATE"),
        *([Column("CARD", spare=8)] if wide and view in ("containers", "cards") else []),
        *([Column("MEASURED BY", spare=8)] if wide and containers else []),
    ]


def _cells(row: UsageRow, view: str, terminal: Terminal, wide: bool) -> list[Cell]:
    containers, own_cards = view == "containers", view in ("cards", "nodes")
    amount = str if wide else _gib
    busy = [percent for percent in row.utilization_percent if percent is not None]
    kernel = "" if row.last_kernel_s is None else _ago(row.last_kernel_s)
    third = ("" if row.limit_mib is None else amount(row.limit_mib)) if containers else amount(row.idle_mib)
    return [
        *row.names,
        bar(terminal, row.used_mib, row.held_mib or row.capacity_mib, "cyan"),
        f"{amount(row.used_mib)}{PARTLY_KNOWN if False in row.known else ''}" if True in row.known else NOT_KNOWN,
        amount(row.held_mib),
        third,
        *([amount(row.capacity_mib)] if own_cards else []),
        str(row.cores_held),
        *([] if view == "namespaces" else [str(round(sum(busy) / len(busy))) if busy else NOT_KNOWN]),
        kernel if containers else str(len(row.pods)),
        ((row.state, row.style),),
        *([row.uuid] if wide and view in ("containers", "cards") else []),
        *([row.source] if wide and containers else []),
    ]


def _gib(amount_mib: int) -> str:
    return f"{amount_mib / MIB_PER_GIB:.1f}"


def _ago(seconds: int) -> str:
    size, unit = next((each for each in AGES if seconds >= each[0]), AGES[-1])
    return f"{seconds // size} {unit} ago"
