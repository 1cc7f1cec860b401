"""`top --usage`: the ledger and the agents' answers, read and put together; or the operator's own, by its address."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.cards import NO_CARDS, begin_cards, uncollected
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.operator_view import ask
from gpuledger.command_line.top.agents import agents_asked, begin_agents
from gpuledger.command_line.top.usage_rows import SORTS, notes, usage_rows, usage_table
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import by_node, node_use, report_of_stored
from gpuledger.reports.tables import harmless


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """What is to be shown, and how."""

    view: str | None
    sort: str
    output: str
    no_color: bool
    idle_after_s: int
    node: str | None
    selector: str | None
    operator_url: str | None


def show_usage(cluster: ClusterAccess, options: UsageOptions) -> None:
    """Print what is used beside what is held. Raises BadInput, ApiError."""
    view = options.view or "containers"
    if view == "models":
        raise BadInput("--usage has no view of models: leave the view out, or use cards, nodes or namespaces")
    if options.sort not in ("name", *SORTS):
        raise BadInput(f"--usage can't sort by {options.sort}: use name, {' or '.join(SORTS)}")
    nodes = _nodes(cluster, options)
    if options.output in ("json", "yaml"):
        out.write([out.data({"idleAfterS": options.idle_after_s, "nodes": nodes}, options.output).rstrip("\n")])
        return
    rows = usage_rows(view, nodes, options.sort)
    terminal = out.terminal_of(options.no_color)
    if rows:
        out.write(usage_table(view, rows, terminal, options.output == "wide"))
    else:
        click.echo("No pod holds a card there." if nodes else NO_CARDS, err=True)
    for note in notes(nodes):
        click.echo(harmless(note), err=True)  # an agent chooses some of it


def _nodes(cluster: ClusterAccess, options: UsageOptions) -> list[Json]:
    """Return the nodes with what is held and used of their cards."""
    items = None if options.operator_url else begin_cards(cluster, options.node)
    pods = None if options.operator_url else begin_agents(cluster, options.node)
    chosen = cluster.begin("/api/v1/nodes", {"labelSelector": options.selector}) if options.selector else None
    names = {node["metadata"]["name"] for node in chosen} if chosen else None
    if items is None or pods is None:
        asked = {"idleAfterS": str(options.idle_after_s)}
        found = ask("/v1/usage", asked, options.operator_url, None, None)["nodes"]
        return [node for node in found if _is_meant(node["node"], options.node, names)]
    with uncollected():
        reports = [report_of_stored(stored_card(item)) for item in items]
    nodes = [node for node in by_node(reports) if _is_meant(node.name, options.node, names)]
    answers = agents_asked(cluster, pods, [node.name for node in nodes])
    return [node_use(node, answers[node.name], options.idle_after_s).json() for node in nodes]


def _is_meant(name: str, node: str | None, names: Collection[str] | None) -> bool:
    return node in (None, name) and (names is None or name in names)
