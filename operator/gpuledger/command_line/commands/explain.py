"""`gpuledger explain`: why a pod waits, or where it is; the operator's explanation, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.cluster_access import namespace_of
from gpuledger.command_line.operator_view import explanation_of, is_volcano_job
from gpuledger.command_line.options import (
    KIND_OF,
    Named,
    access_options,
    completed_names,
    errors_shown,
    namespace_option,
    one_object,
    operator_option,
    output_option,
)
from gpuledger.command_line.output import age, amounts_of, plural, share_text, utc_now
from gpuledger.model.errors import NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import entry_text
from gpuledger.reports.tables import Cell, Column, Terminal, family, pods_named, spans, table

FEW_KINDS = 3
"""Of so many kinds of nodes, the cards of one are shown."""


@click.command(short_help="Why a pod, a gang, or a job in a queue waits, node by node.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="pod/NAME | gang/NAME | workload/NAME",
    shell_complete=completed_names("pod", "gang"),
)
@namespace_option
@operator_option
@output_option("table", "wide", "json", "yaml")
@access_options
def explain(
    names: tuple[str, ...],
    namespace: str | None,
    operator_url: str | None,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Explain why a pod waits: for each node, what is missing and what would help; with -o wide, for each card.

    Of a gang, pods that start together: how many members find cards at once and where, and what the others lack.

    Of a workload of Kueue, named by itself or as job/NAME: whether it waits for quota or for cards, and why it finds
    none.

    Asks the operator. Exit status: 0 if the pod has its place, or as many of the gang as it needs, or the workload is
    admitted; 1 if not, 2 after an error or if the operator does not know it.
    """
    with errors_shown():
        asked = asked_for(names)
        namespace = namespace or namespace_of(kubeconfig, context)
        try:
            found = explanation_of(asked.kind, namespace, str(asked.name), operator_url, kubeconfig, context)
        except NotFound as error:
            if asked.kind == "pod" and is_volcano_job(namespace, str(asked.name), kubeconfig, context):
                from gpuledger.formats.inspection import VOLCANO_JOB

                raise NotFound(f"{error}; {VOLCANO_JOB}") from error
            raise
        lines = {"gang": gang_lines, "workload": workload_lines}.get(asked.kind, explain_lines)
        out.show(found, output, lambda terminal: lines(found, terminal, utc_now(), output == "wide"), no_color)
        placed = is_placed(found)
    sys.exit(0 if placed else 1)


def asked_for(words: Sequence[str]) -> Named:
    """Return the object named by pod/NAME, pod NAME, NAME alone, or the same of another kind. Raises BadInput."""
    if len(words) == 1 and "/" not in words[0] and words[0].lower() not in KIND_OF:
        return Named("pod", words[0])
    return one_object(words, ("pod", "gang", "workload"))


@dataclass(slots=True)
class Alike:
    """Nodes that say the same."""

    first: Json
    names: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Return the text in the column of nodes."""
        count = len(self.names)
        return self.names[0] if count == 1 else f"{count} nodes like {self.names[0]}"


def is_placed(explanation: Json) -> bool:
    """Return whether it has its place, or is admitted: else the answer to the question whether it runs is no."""
    return explanation["state"] in ("placed", "running", "admitted", "finished")


def explain_lines(found: Json, terminal: Terminal, now: datetime, wide: bool = False) -> list[str]:
    """Return an explanation, its summary first."""
    lines = _head(found, found["pod"], _facts(found, now), terminal)
    if found["holds"]:
        lines += ["", "Its cards:", *_holds(found["holds"], terminal)]
    return [*lines, *node_lines(found["nodes"], terminal, wide)]


def _head(found: Json, name: str, facts: dict[str, str], terminal: Terminal) -> list[str]:
    """Return what each explanation begins with: name and state, summary, facts, and warnings."""
    style = "green" if is_placed(found) else "yellow"
    return [
        f"{terminal.paint(found['namespace'] + '/' + name, 'bold')}: {terminal.paint(found['state'], style)}",
        *terminal.folded(found["summary"]),
        "",
        *_fact_lines(facts, terminal),
        *warning_lines(found, terminal),
    ]


def warning_lines(found: Json, terminal: Terminal) -> list[str]:
    """Return the warnings of an explanation."""
    lines = []
    for warning in found.get("warnings", ()):  # an operator of an earlier release says none
        first, *rest = terminal.folded(f"warning: {warning}", indent=4)
        lines += [f"  {terminal.paint(first, 'yellow')}", *(f"    {line}" for line in rest)]
    return lines


def node_lines(nodes: Sequence[Json], terminal: Terminal, wide: bool) -> list[str]:
    """Return why nodes do not take a pod, with an empty line before."""
    if not nodes:
        return []
    shown = nodes if wide else [group.first for group in alike(nodes)[:FEW_KINDS]]
    cards = [line for node in shown if node["cards"] for line in ("", *_cards(node, terminal, wide))]
    return ["", *_nodes(nodes, terminal), *cards]


def gang_lines(found: Json, terminal: Terminal, now: datetime, wide: bool = False) -> list[str]:
    """Return how far a gang has come, its summary first."""
    lines = _head(found, found["gang"], _gang_facts(found, now), terminal)
    if found["fitsOn"]:
        rows = [(each["node"], str(each["members"])) for each in found["fitsOn"]]
        lines += ["", *table(terminal, [Column("MEMBERS FIND CARDS ON"), Column("MEMBERS", right=True)], rows)]
    if wide and found["members"]:
        members = [(each["pod"], each["state"], each["node"] or "") for each in found["members"]]
        lines += ["", *table(terminal, [Column("MEMBER"), Column("STATE"), Column("NODE")], members)]
        if found["membersLeftOut"]:
            lines.append(f"and {plural(found['membersLeftOut'], 'more member')}")
    if found["nodes"]:
        lines += ["", *terminal.folded(f"Why {found['example']} finds none beside them:")]
    return [*lines, *node_lines(found["nodes"], terminal, wide)[1:]]


def workload_lines(found: Json, terminal: Terminal, now: datetime, wide: bool = False) -> list[str]:
    """Return why a workload of Kueue waits, its summary first."""
    facts = {
        "stands for": found["owner"] or "",
        "queue": found["queue"] or "",
        "quota of": found["clusterQueue"] or "",
        "pods": "; ".join(found["pods"]),
        "priority": str(found["priority"]),
        "created": f"{age(found['since'], now)} ago" if found["since"] else "",
    }
    lines = _head(found, found["workload"], facts, terminal)
    if found["nodes"]:
        lines += ["", *terminal.folded(f"Why a pod of {found['example']} finds no cards beside the others:")]
    return [*lines, *node_lines(found["nodes"], terminal, wide)[1:]]


def _gang_facts(found: Json, now: datetime) -> dict[str, str]:
    turn, missing = found["turn"], found["missing"]
    absent = f", {found['notCreated']} not created" if found["notCreated"] else ""
    room = "" if found["fits"] is None else f"{found['onHold']} have cards on hold, {found['inBind']} stand in Bind"
    kept, more = found["keptPlaces"], found["withoutGPUs"]
    apart = f", {plural(more, 'member')} without GPUs" if more else ""
    passed = found.get("overtakenBy", 0)
    kinds = "; ".join(f"{plural(each['members'], 'member')}: {each['request']}" for each in missing)
    return {
        "named by": found["source"] or "",
        "members": f"{found['minimum']} start together: {found['running']} run, {found['waiting']} wait{absent}{apart}",
        "room": room,
        "kept": f"{plural(kept, 'place')} of members that are gone, for those that replace them" if kept else "",
        "missing": kinds,
        "priority": str(found["priority"]),
        "waits": f"for {age(found['since'], now)}" if found["since"] and not is_placed(found) else "",
        "overtaken": f"by {plural(passed, 'gang')} that came after it" if passed else "",
        "turn": _turn_text(turn) if turn else "",
    }


def _turn_text(turn: Json) -> str:
    whose = turn["gang"] or "a gang of another namespace"
    what = "goes first" if turn.get("kind") == "first" else "is tried alone"
    return f"{whose} {what}, for {turn['secondsLeft']} s more"


def alike(nodes: Iterable[Json]) -> list[Alike]:
    """Group nodes that have the same reason, in the order in which each reason comes first.

    What would help names cards and pods, so it differs from node to node: only that there is something counts.
    """
    groups: dict[object, Alike] = {}
    for node in nodes:
        why = node.get("kubeScheduler") or {}
        key = (node["fits"], node["offered"], node["reason"], node["text"], bool(node["remedy"]), why.get("reason"))
        groups.setdefault(key, Alike(node)).names.append(node["node"])
    return list(groups.values())


def _facts(found: Json, now: datetime) -> dict[str, str]:
    asked = "; ".join(_asked(container) for container in found["containers"])
    shared = (f"{each['claim']} ({each['resourceClaim']})" for each in found.get("sharedClaims", ()))
    facts = {
        "asks for": asked,
        "shares claims": ", ".join(shared),
        "priority": str(found["priority"]),
        "waits" if not is_placed(found) else "created": _since(found, now),
        "kube-scheduler says": found["schedulerSays"] or "",
    }
    if found["schedulerRefused"]:
        refused = plural(found["schedulerRefused"], "node")
        facts["not offered"] = f"{refused} with cards, which kube-scheduler itself had ruled out (see its message)"
    facts["queue"] = found.get("queue") or ""
    if found.get("gang"):
        words = found.get("gangWords") or found["gang"]
        facts["gang"] = f"{words}; see gpuledger explain gang/{found['gang']} -n {found['namespace']}"
    return facts


def _fact_lines(facts: dict[str, str], terminal: Terminal) -> Iterable[str]:
    width = max(map(len, facts))
    for title, text in facts.items():
        if text:
            first, *rest = terminal.folded(text, indent=width + 4)
            yield f"  {title:<{width}}  {first}"
            yield from (" " * (width + 4) + line for line in rest)


def _since(found: Json, now: datetime) -> str:
    if not found["since"]:
        return ""
    if is_placed(found):
        return f"{age(found['since'], now)} ago"
    return f"for {age(found['since'], now)}, {_tried(found, now)}"


def _tried(found: Json, now: datetime) -> str:
    """Return when kube-scheduler tried the pod last, as far as the operator can know: it is not always asked."""
    if found.get("schedulerRefusedAll"):
        return "tried, and refused without a look at cards"
    if found["lastTried"]:
        return f"last tried {age(found['lastTried'], now)} ago"
    return "tried before this operator started" if found["schedulerSays"] else "not tried yet"


def _asked(container: Json) -> str:
    memory = ""
    if container["memoryMiB"] is not None:
        memory = f", {container['memoryMiB']} MiB each"
    elif container["memoryPercent"] is not None:
        memory = f", {container['memoryPercent']} % of its memory"
    cores = f", {container['cores']} % cores" if container["cores"] else ""
    alone = ", alone" if container["exclusive"] else ""
    return f"{entry_text(container['name'])}: {plural(container['gpus'], 'card')}{memory}{cores}{alone}"


def _nodes(nodes: Sequence[Json], terminal: Terminal) -> list[str]:
    columns = [
        Column("NODES"),
        Column("KUBE-SCHEDULER", spare=2),
        Column("REASON", spare=3),
        Column("MISSING", fold=True),
        Column("KUBE-SCHEDULER'S REASON", fold=True),
        Column("WHAT WOULD HELP", fold=True),
        Column("WOULD HAVE TO LEAVE", spare=1),
    ]
    rows = [
        (
            group.title,
            _offered(group.first),
            (("fits", "green"),) if group.first["fits"] else ((group.first["reason"] or "", "yellow"),),
            group.first["text"],
            _why_refused(group),
            _help(group),
            pods_named(group.first["wouldHaveToLeave"]),
        )
        for group in alike(nodes)
    ]
    kept = [p for p in range(len(columns)) if p < 4 or any(row[p] for row in rows)]
    return table(terminal, [columns[p] for p in kept], [[row[p] for p in kept] for row in rows])


def _offered(node: Json) -> Cell:
    """Return whether kube-scheduler lets the pod go to a node; nothing if it has not said."""
    if node["offered"] is None:
        return ""
    return "offers" if node["offered"] else (("refuses", "yellow"),)


def _why_refused(group: Alike) -> str:
    return _on_first(group, (group.first.get("kubeScheduler") or {}).get("text") or "")


def _help(group: Alike) -> str:
    return _on_first(group, group.first["remedy"] or "")


def _on_first(group: Alike, text: str) -> str:
    """Return a text about the first node of several: its numbers are not those of the others."""
    return f"on {group.names[0]}: {text}" if text and len(group.names) > 1 else text


def _cards(node: Json, terminal: Terminal, wide: bool) -> list[str]:
    columns = [
        Column("INDEX", right=True),
        Column("CARD", spare=1),
        Column("REASON", spare=2),
        Column("MISSING", fold=True),
        Column("HELD BY", fold=True),
    ]
    rows = [
        (
            str(cards[0]["index"]) if len(cards) == 1 else f"{len(cards)} cards",
            cards[0]["uuid"] if len(cards) == 1 else "index " + spans(card["index"] for card in cards),
            (("fits", "green"),) if cards[0]["fits"] else ((cards[0]["reason"] or "", "yellow"),),
            cards[0]["text"],
            pods_named(dict.fromkeys(pod for card in cards for pod in card["by"])),
        )
        for cards in _same(node["cards"], wide)
    ]
    return [f"Cards of {terminal.paint(node['node'], 'bold')}:", *table(terminal, columns, rows)]


def _same(cards: Iterable[Json], wide: bool) -> list[list[Json]]:
    """Return the cards that say the same together, in the order of the first of each.

    That other replicas of the same makers hold them is no difference, unless all of it is wanted.
    """
    groups: dict[object, list[Json]] = {}
    for card in cards:
        by = tuple(card["by"]) if wide else frozenset(map(family, card["by"]))
        groups.setdefault((card["fits"], card["reason"], card["text"], by), []).append(card)
    return list(groups.values())


def _holds(holds: Iterable[Json], terminal: Terminal) -> list[str]:
    columns = [Column("NODE"), Column("INDEX", right=True), Column("CARD"), Column("STATE", spare=1), Column("SHARE")]
    rows = [
        (each["node"], str(each["index"]), each["uuid"], each["state"], share_text(amounts_of(each), each["exclusive"]))
        for each in holds
    ]
    return table(terminal, columns, rows)
