"""`gpuledger top`: how much of the GPUs is taken, and by whom."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import Common, common_options, completed_names, usage_operator_option
from gpuledger.command_line.output import NO_CARDS, NoLedger, begin_cards, uncollected
from gpuledger.command_line.top import SORTS, VIEWS
from gpuledger.model.json_object import Json


@click.command(short_help="How much of the GPUs is used, and by which pods.")
@click.argument("view", type=click.Choice(list(VIEWS)), default=None, required=False, metavar=f"[{'|'.join(VIEWS)}]")
@click.option(
    "--by",
    type=click.Choice(["namespace", "queue"]),
    help="What each namespace, or each ClusterQueue of Kueue, may have, holds, and waits for.",
)
@click.option(
    "--usage",
    is_flag=True,
    help="What is used beside what is held, and what is held and idle: of each container, or of the cards, nodes or "
    "namespaces.",
)
@click.option(
    "--idle-after-s",
    type=click.IntRange(1, 365 * 86_400),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="With --usage: how long ago the last kernel of an idle container began, at least.",
)
@click.option("-w", "--watch", is_flag=True, help="Keep running and show changes, until Ctrl-C.")
@click.option("--node", shell_complete=completed_names("node"), help="Only the cards of this node.")
@click.option("-l", "--selector", help="Only the cards of nodes with these labels, like kubectl's -l.")
@click.option("--gang", metavar="NAMESPACE/NAME", help="Only the cards of which pods of this gang hold a part.")
@click.option(
    "--sort",
    type=click.Choice(["name", *SORTS]),
    default="name",
    show_default=True,
    help="By name, or the fullest first.",
)
@usage_operator_option
@common_options("csv", namespaced=True)
def top(
    view: str | None,
    by: str | None,
    usage: bool,
    idle_after_s: int,
    watch: bool,
    node: str | None,
    selector: str | None,
    gang: str | None,
    sort: str,
    operator_url: str | None,
    common: Common,
) -> None:
    """Show how much of the GPUs is used: memory, compute, slots.

    Reads the ledger from the API server; the operator need not run. With --usage, it asks the nodes' agents, too,
    through the API server. With -n, one namespace's row of --by namespace; so it is where the account may not read
    the ledger. Exit status: 0, or 2 after an error.
    """
    narrowed, csv = bool(view or node or selector or gang), common.output == "csv"
    if common.namespace and (narrowed or usage or by == "queue"):
        raise click.UsageError("-n is a row of --by namespace: leave out the view, --usage, --node, -l and --gang")
    _check(watch, csv, bool(by), usage, narrowed=narrowed, labelled=bool(selector), gang=gang)
    if by or common.namespace:
        with common.cluster() as cluster:
            _show_teams(cluster, by or "namespace", watch, sort, common)
        return
    if usage:
        with common.cluster() as cluster:
            from gpuledger.command_line.top.usage import UsageOptions, show_usage

            show_usage(cluster, common, UsageOptions(view, sort, idle_after_s, node, selector, operator_url))
        return
    with common.cluster() as cluster:
        try:
            _show_view(cluster, view or "nodes", watch, node, selector, gang, sort, common)
        except NoLedger:
            if view not in (None, "namespaces") or node or selector or gang or watch:
                raise
            _show_teams(cluster, "namespace", watch, sort, common)


def _show_view(
    cluster: ClusterAccess,
    view: str,
    watch: bool,
    node: str | None,
    selector: str | None,
    gang: str | None,
    sort: str,
    common: Common,
) -> None:
    items = begin_cards(cluster, node)  # on its way while the rest is imported
    from gpuledger.command_line import output as out
    from gpuledger.command_line.top import rows

    wanted = rows.gang_named(gang) if gang else None
    members = rows.begin_members(cluster, wanted) if wanted or (view == "cards" and not watch) else ()
    chosen = cluster.begin("/api/v1/nodes", {"labelSelector": selector}) if selector else None
    from gpuledger.formats.custom_resource.stored_card import stored_card
    from gpuledger.reports.cards import report_of_stored

    coming = chosen
    if chosen is None and view in ("nodes", "cards"):  # the others say nothing of nodes
        coming = rows.begin_nodes(cluster, node, only_cordoned=view == "cards")
    growth = rows.begin_stand_ins(cluster) if view == "nodes" and common.for_people and not watch else ()
    if watch:
        from gpuledger.command_line.top.live import TopOptions, watch_top

        logging.getLogger("gpuledger").setLevel(logging.WARNING)  # the picture says what keeps news away
        cards, nodes = list(items), None if coming is None else rows.nodes_read(coming)
        with_gpus = rows.other_nodes((nodes or ()) if view == "nodes" else (), in_ledger=())
        _check_there(cluster, node, is_found=bool(cards or nodes))
        options = TopOptions(view, common.output, sort, out.terminal_of(common.no_color), node, with_gpus)
        cluster.run(lambda: watch_top(cluster, options, cards, nodes))
        return
    with uncollected():
        found = list(chosen or ())
        names = {item["metadata"]["name"] for item in found} if chosen else None
        gangs = rows.gangs_read(members, wanted)
        reports = [report_of_stored(stored_card(item), gangs) for item in _of_nodes(items, names)]
        if coming is not None and coming is not chosen:
            found = rows.nodes_read(coming) or []
    in_ledger = {report.card.node_name for report in reports}
    others = rows.other_nodes(found if view == "nodes" and not wanted else (), in_ledger)
    if wanted:
        reports = list(rows.held_by_gangs(reports))
    cordoned = rows.cordoned_nodes(found)
    _check_there(cluster, node, is_found=bool(reports or found))
    if common.for_people and not reports and not others:
        nothing = "No cards in the ledger of these nodes." if node or selector else NO_CARDS
        click.echo(f"No pod of gang {wanted} holds a card." if wanted else nothing, err=True)
        return
    lines = rows.lines_of(view, reports, sort, others, cordoned)
    common.show(
        rows.top_json(view, reports, others, cordoned),
        lambda terminal: rows.top_table(view, lines, terminal, common.wide, terminal.width is not None),
    )
    for note in rows.asked_for(growth):
        click.echo(note, err=True)


def _check_there(cluster: ClusterAccess, node: str | None, is_found: bool) -> None:
    """Raise BadInput for the name of a node of which nothing was found, if there is none of this name."""
    if node is not None and not is_found:
        from gpuledger.command_line.objects import check_node

        check_node(cluster, node)


def _check(watch: bool, csv: bool, by: bool, usage: bool, *, narrowed: bool, labelled: bool, gang: str | None) -> None:
    """Raise for options that don't go together."""
    if usage and (watch or by or gang):
        raise click.UsageError("--usage is read once, whatever the gang: leave out --watch, --by and --gang")
    if watch and csv:
        raise click.UsageError("--watch prints no csv: use -o json, a line for each change")
    if watch and labelled:
        raise click.UsageError("--watch can't follow the labels of nodes: use --node")
    if watch and gang:
        raise click.UsageError("--watch can't follow which pods are of a gang")
    if by and narrowed:
        raise click.UsageError(
            "--by is a view of its own, of all cards: leave out the other view, --node, -l and --gang"
        )


def _of_nodes(objects: Iterable[Json], names: Container[str] | None) -> Iterator[Json]:
    return (item for item in objects if names is None or item["spec"]["nodeName"] in names)


def _show_teams(cluster: ClusterAccess, by: str, watch: bool, sort: str, common: Common) -> None:
    from gpuledger.command_line.top.teams import Teams

    namespace = common.namespace or ""
    if watch:
        from gpuledger.command_line.output import terminal_of
        from gpuledger.command_line.top.teams import watch_teams

        watch_teams(lambda: Teams(cluster, by, sort, namespace), terminal_of(common.no_color), common.output)
        return
    teams = Teams(cluster, by, sort, namespace)
    for note in teams.notes:
        click.echo(note, err=True)
    common.show(teams.json(), lambda terminal: teams.table(terminal, common.wide))
