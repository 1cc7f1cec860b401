"""The rows of `top`: how much is taken of each node, card or model, and by each namespace.

Nodes are read beside the ledger for those that are cordoned, and those whose GPUs are not in it: another device plugin
counts and gives out these. The ledger does not know gangs, so pods are read for the gangs that hold cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpuledger.command_line.cluster_access import ClusterAccess, Objects
from gpuledger.command_line.output import FROM_MEMORY, bar, in_reading_order, plural
from gpuledger.command_line.top import SORTS, VIEWS
from gpuledger.formats.annotations import OWN_NAMESPACE, STAND_IN_LABEL
from gpuledger.formats.custom_resource.stored_card import amounts_json
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.kubernetes.gang import NAMING_LABELS, gang_name_of
from gpuledger.formats.quantity import counted_cards
from gpuledger.model.card import NOTHING, Amounts, CardPhase, total
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.gang import GangName
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import CardReport, NodeCards, by_model, by_namespace, by_node
from gpuledger.reports.tables import Cell, Column, Terminal, pods_named, table

NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node, and how many GPUs it offers to pods under which name."""

    name: str
    resource: str
    gpus: int
    cordoned: bool = False

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        cordoned = {"unschedulable": True} if self.cordoned else {}
        return {"node": self.name, "resource": self.resource, "gpus": self.gpus, **cordoned}


def begin_nodes(cluster: ClusterAccess, node: str | None, only_cordoned: bool = False) -> Objects:
    """Start to read all nodes, or the one of this name; or of these, those that are cordoned."""
    return cluster.begin(NODES, FROM_MEMORY | nodes_selected(node, only_cordoned))


def nodes_selected(node: str | None, only_cordoned: bool) -> dict[str, str]:
    """Return the parameters that select these nodes."""
    fields = [*([f"metadata.name={node}"] if node else []), *(["spec.unschedulable=true"] if only_cordoned else [])]
    return {"fieldSelector": ",".join(fields)} if fields else {}


def nodes_read(coming: Iterable[Json]) -> list[Json] | None:
    """Return nodes; None for a person who may not read them, but may read the ledger. Raises ApiError."""
    try:
        return list(coming)
    except (Denied, NotFound):
        return None


def begin_stand_ins(cluster: ClusterAccess) -> Objects:
    """Start to read the pods by which nodes are asked for."""
    selected = {"labelSelector": STAND_IN_LABEL}
    return cluster.begin(f"/api/v1/namespaces/{OWN_NAMESPACE}/pods", FROM_MEMORY | selected)


def asked_for(coming: Iterable[Json]) -> list[str]:
    """Return a sentence for each template of which nodes are asked for; none for who may not read that."""
    found = Counter(str(pod["metadata"]["labels"][STAND_IN_LABEL]) for pod in nodes_read(coming) or ())
    return [
        f"{plural(count, 'node')} of template {name} asked for, for pods that wait" for name, count in found.items()
    ]


def is_cordoned(node: Mapping[str, Any]) -> bool:
    """Return whether a person, or a controller, wants no new pods on a node."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def cordoned_nodes(nodes: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of those of these nodes that are cordoned."""
    return frozenset(node["metadata"]["name"] for node in nodes if is_cordoned(node))


def other_nodes(nodes: Iterable[Mapping[str, Any]], in_ledger: Collection[str]) -> tuple[OtherNode, ...]:
    """Return those of these nodes that offer GPUs and have none in the ledger, by name."""
    found = []
    for node in nodes:
        name = node["metadata"]["name"]
        counts = ((resource, counted_cards(node, resource)) for resource in KNOWN_COUNTS if name not in in_ledger)
        found += [OtherNode(name, resource, gpus, is_cordoned(node)) for resource, gpus in counts if gpus][:1]
    return tuple(sorted(found, key=lambda each: each.name))


def gang_named(text: str) -> GangName:
    """Return the gang in NAMESPACE/NAME. Raises BadInput."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"{text!r} is no gang: write NAMESPACE/NAME")
    return GangName(namespace, name)


def begin_members(cluster: ClusterAccess, gang: GangName | None) -> Iterable[Json]:
    """Start to read the pods that may be of this gang; without one, those that name theirs by a label.

    Who is named by an annotation or a field can't be selected, and reading all pods would take longer than the rest.
    """
    if gang:
        return cluster.begin(f"/api/v1/namespaces/{gang.namespace}/pods", FROM_MEMORY)
    coming = [cluster.begin("/api/v1/pods", FROM_MEMORY | {"labelSelector": label}) for label in NAMING_LABELS]
    return chain.from_iterable(coming)


def gangs_read(coming: Iterable[Json], wanted: GangName | None) -> dict[str, str]:
    """Return the UID of each member of this gang, or of any -> the name of that.

    Nobody, for a person who may not read the pods of all namespaces, but may read the ledger. Raises ApiError.
    """
    try:
        found = ((pod["metadata"]["uid"], gang_name_of(pod)) for pod in coming)
        return {uid: gang.name for uid, gang in found if gang and (wanted is None or gang[:2] == wanted[:2])}
    except (Denied, NotFound):
        if wanted:
            raise
        return {}


def held_by_gangs(reports: Iterable[CardReport]) -> Iterator[CardReport]:
    """Yield the cards of which a gang that is known holds a part."""
    return (report for report in reports if report.gangs)


MIB_PER_GIB = 1024
READY = CardPhase.READY.value
GANGS_NAMED = 2
"""Of those on one card; the others are counted."""
NOT_OURS = "Not ours"
"""State of a node whose own device plugin counts its GPUs, and gives them out."""
NODE_CORDONED = ", node cordoned"
"""Follows the state of a node that takes no new pods of any kind, and that of its cards."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of any view."""

    name: str
    capacity: Amounts
    used: Amounts
    cards: int
    pods: int
    state: str
    lead: tuple[str, ...] = ()
    """The columns before the name: where the card is."""
    extra: tuple[str, ...] = ()
    """The columns that only `-o wide` shows."""
    gang: str = ""
    """Whose pods hold a part of the card, as far as they are of gangs."""

    @property
    def in_ledger(self) -> bool:
        """Return whether it is known what is taken."""
        return not self.state.startswith(NOT_OURS)

    @property
    def ready(self) -> bool:
        """Return whether there is nothing to act on."""
        return self.state in (READY, NOT_OURS, "")


EXTRA_TITLES = {
    "nodes": ("MODELS", "IDLE", "CLAIMS", "CONFLICTS"),
    "cards": ("MODEL", "MODE", "NUMA", "CLAIMS", "CONFLICTS", "HELD BY", "REASON"),
    "models": ("NODES", "IDLE"),
    "namespaces": ("NODES",),
}


def top_json(
    view: str, reports: Sequence[CardReport], others: Sequence[OtherNode] = (), cordoned: Container[str] = ()
) -> Json:
    """Return a view as data: nodes and cards in the operator's own JSON.

    `cordoned` are the nodes that are, whose rows and cards say so.
    """
    if view == "nodes":
        return {
            "nodes": [node.json() | _flag("unschedulable", node.name in cordoned) for node in by_node(reports)],
            **({"notOurs": [other.json() for other in others]} if others else {}),
        }
    if view == "cards":
        return {
            "cards": [
                card.json() | _flag("nodeUnschedulable", node.name in cordoned)
                for node in by_node(reports)
                for card in node.cards
            ]
        }
    key = "model" if view == "models" else "namespace"
    return {view: [_line_json(key, line) for line in lines_of(view, reports)]}


def lines_of(
    view: str,
    reports: Sequence[CardReport],
    sort: str | None = None,
    others: Sequence[OtherNode] = (),
    cordoned: Container[str] = (),
) -> list[Line]:
    """Return the rows of a view by name, or by one of SORTS; last of all, nodes that are not in the ledger.

    `cordoned` are the nodes that are, whose rows and cards say so.
    """
    nodes = by_node(reports)
    if view == "nodes":
        lines = [_node_line(node, node.name in cordoned) for node in nodes]
    elif view == "cards":
        lines = [_card_line(card, node.name in cordoned) for node in nodes for card in node.cards]
    elif view == "models":
        lines = [_model_line(model, cards) for model, cards in by_model(reports).items()]
    else:
        lines = _namespace_lines(reports)
    lines.sort(key=_in_reading_order)
    lines = sorted(lines, key=SORTS[sort]) if sort in SORTS else lines
    return [*lines, *sorted(map(_other_line, others), key=_in_reading_order)]


def top_table(
    view: str, lines: Sequence[Line], terminal: Terminal, wide: bool = False, sums: bool = False
) -> list[str]:
    """Return the table of a view; with `sums`, all of it together in a last row."""
    gangs = any(line.gang for line in lines)
    columns = [*_columns(view, wide), *([Column("GANG", spare=8)] if gangs else [])]
    rows = [[*_row(line, view, terminal, wide), *([line.gang] if gangs else [])] for line in lines]
    counted = [line for line in lines if line.in_ledger]
    if sums and len(counted) > 1 and view in ("nodes", "models"):
        rows.append(_row(_sum(counted), view, terminal, wide))
    return table(terminal, columns, rows)


def _columns(view: str, wide: bool) -> list[Column]:
    per_card = view == "cards"
    return [
        *([Column("NODE"), Column("INDEX", right=True)] if per_card else []),
        Column(VIEWS[view]),
        *([] if per_card else [Column("CARDS", right=True, spare=2)]),
        *([] if view == "namespaces" else [Column("MEMORY", spare=5, drawn=True)]),
        Column("MIB" if wide else "GIB", right=True),
        *([] if view == "namespaces" else [Column("COMPUTE", spare=6, drawn=True)]),
        Column("CORES %", right=True, spare=1),
        *([] if view == "namespaces" else [Column("SHARES", spare=7, drawn=True)]),
        Column("SLOTS", right=True, spare=4),
        Column("PODS", right=True, spare=3),
        *([] if view == "namespaces" else [Column("STATE")]),
        *([Column(title, spare=8) for title in EXTRA_TITLES[view]] if wide else []),
    ]


def _row(line: Line, view: str, terminal: Terminal, wide: bool) -> list[Cell]:
    if not line.in_ledger:
        return [line.name, str(line.cards), *[""] * 7, ((line.state, "dim"),), *(line.extra if wide else ())]
    used, capacity = line.used, line.capacity
    memory = _of(used.memory_mib, capacity.memory_mib) if wide else _gib(used.memory_mib, capacity.memory_mib)
    held_only = view == "namespaces"
    return [
        *line.lead,
        line.name,
        *([] if view == "cards" else [str(line.cards)]),
        *([] if held_only else [bar(terminal, used.memory_mib, capacity.memory_mib, "cyan")]),
        memory,
        *([] if held_only else [bar(terminal, used.cores, capacity.cores, "blue")]),
        _of(used.cores, capacity.cores),
        *([] if held_only else [bar(terminal, used.number, capacity.number, "magenta")]),
        _of(used.number, capacity.number),
        str(line.pods),
        *([] if held_only else [((line.state, "green" if line.ready else "yellow"),)]),
        *(line.extra if wide else ()),
    ]


def _flag(name: str, is_so: bool) -> Json:
    """Return a field that is left out where it is not so, as in a Node."""
    return {name: True} if is_so else {}


def _node_line(node: NodeCards, cordoned: bool) -> Line:
    cards = node.cards
    models = ",".join(sorted({report.card.model for report in cards}))
    claims, conflicts = (str(sum(counts)) for counts in ([r.claims for r in cards], [r.conflicts for r in cards]))
    return Line(
        node.name,
        node.capacity,
        node.used,
        len(cards),
        _pods(cards),
        _states(cards) + NODE_CORDONED * cordoned,
        (),
        (models, _idle(cards), claims, conflicts),
    )


def _other_line(other: OtherNode) -> Line:
    state = NOT_OURS + NODE_CORDONED * other.cordoned
    return Line(other.name, NOTHING, NOTHING, other.gpus, 0, state, (), (other.resource, "", "", ""))


def _card_line(report: CardReport, cordoned: bool) -> Line:
    card, holders = report.card, report.holders
    numa = "" if card.numa_node is None else str(card.numa_node)
    held_by = pods_named([holder.title for holder in holders], most=2)
    extra = (card.model, card.mode, numa, str(report.claims), str(report.conflicts), held_by, report.reason)
    phase = (report.phase or CardPhase.PENDING.value) + NODE_CORDONED * cordoned
    lead = (card.node_name, str(card.index))
    gangs = sorted({f"{h.pod.namespace}/{report.gangs[h.pod.uid]}" for h in holders if h.pod.uid in report.gangs})
    gang = ", ".join(gangs[:GANGS_NAMED]) + (f" +{len(gangs) - GANGS_NAMED}" if len(gangs) > GANGS_NAMED else "")
    return Line(card.uuid, card.capacity, report.used, 1, _pods([report]), phase, lead, extra, gang)


def _model_line(model: str, cards: Sequence[CardReport]) -> Line:
    capacity, used = total(report.card.capacity for report in cards), total(report.used for report in cards)
    nodes = str(len({report.card.node_name for report in cards}))
    pods, state = _pods(cards), _states(cards)
    return Line(model or "unknown", capacity, used, len(cards), pods, state, (), (nodes, _idle(cards)))


def _namespace_lines(reports: Sequence[CardReport]) -> list[Line]:
    cards: Counter[str] = Counter()
    pods: dict[str, set[str]] = {}
    nodes: dict[str, set[str]] = {}
    for report in reports:
        for namespace in {holder.pod.namespace for holder in report.holders}:
            cards[namespace] += 1
            nodes.setdefault(namespace, set()).add(report.card.node_name)
        for holder in report.holders:
            of_namespace = pods.setdefault(holder.pod.namespace, set())
            if not holder.is_seat:
                of_namespace.add(holder.pod.uid)
    return [
        Line(name, NOTHING, used, cards[name], len(pods[name]), "", (), (str(len(nodes[name])),))
        for name, used in by_namespace(reports).items()
    ]


def _sum(lines: Sequence[Line]) -> Line:
    capacity, used = total(line.capacity for line in lines), total(line.used for line in lines)
    extra = ("",) * len(lines[0].extra)
    cards, pods = sum(line.cards for line in lines), sum(line.pods for line in lines)
    return Line("all", capacity, used, cards, pods, "", (), extra)


def _in_reading_order(line: Line) -> list[tuple[int, str]]:
    return in_reading_order("/".join(line.lead) or line.name)


def _line_json(key: str, line: Line) -> Json:
    capacity = {} if line.capacity == NOTHING else {"capacity": amounts_json(line.capacity)}
    return {key: line.name, "cards": line.cards, "pods": line.pods, **capacity, "used": amounts_json(line.used)}


def _states(reports: Sequence[CardReport]) -> str:
    """Return one word where all cards are alike: "Ready", else "6 Ready, 2 Unhealthy"."""
    counts = Counter(report.phase or CardPhase.PENDING.value for report in reports)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items(), key=lambda each: each[0] != READY))


def _pods(reports: Iterable[CardReport]) -> int:
    return len({holder.pod.uid for report in reports for holder in report.holders if not holder.is_seat})


def _idle(reports: Iterable[CardReport]) -> str:
    return str(sum(not report.holders for report in reports))


def _gib(used_mib: int, capacity_mib: int) -> str:
    used = f"{used_mib / MIB_PER_GIB:.1f}"
    return f"{used}/{capacity_mib / MIB_PER_GIB:.0f}" if capacity_mib else used


def _of(used: int, capacity: int) -> str:
    return f"{used}/{capacity}" if capacity else str(used)
