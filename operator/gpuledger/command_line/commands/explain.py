"""`gpuledger explain`: why a pod, a gang or a workload waits, or where it is; what the operator says, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.operator_view import explanation_of, is_volcano_job, waiting_pods
from gpuledger.command_line.options import (
    KIND_OF,
    OWNER_OF,
    OWNERS,
    Common,
    Named,
    common_options,
    completed_names,
    one_object,
    operator_option,
)
from gpuledger.command_line.output import NARROWEST, age, amounts_of, plural, share_text, utc_now
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import entry_text
from gpuledger.reports.tables import (
    Cell,
    Column,
    Terminal,
    family,
    listed,
    pods_named,
    spans,
    table,
    title_of,
)

if TYPE_CHECKING:
    from gpuledger.command_line.owners import Subject

FEW_KINDS = 3
"""Of so many kinds of nodes, the cards of one are shown."""


KINDS = ("pod", "gang", "workload")


@click.command(short_help="Why pods, gangs, or jobs in a queue wait, node by node.")
@click.argument(
    "names",
    nargs=-1,
    metavar="[pod/NAME | gang/NAME | workload/NAME | job/NAME | deploy/NAME | ... | pods | gangs | workloads]",
    shell_complete=completed_names(*KINDS, *OWNERS, all_of=KINDS),
)
@operator_option
@common_options("name", "csv", namespaced=True)
def explain(names: tuple[str, ...], operator_url: str | None, common: Common) -> None:
    """Explain why a pod waits: for each node, what is missing and what would help; with -o wide, for each card.

    Of a gang, pods that start together: how many members find cards at once and where, and what the others lack.

    Of a workload of Kueue: whether it waits for quota or for cards, and why it finds none.

    Of what makes pods, such as job/NAME, deploy/NAME, sts/NAME or rs/NAME: the same of its workload, else its gang,
    else its oldest pod that waits.

    Without a name: a row for all that waits, with the reason; "pods" has the members of gangs one by one.

    Asks the operator. Exit status of one: 0 if the pod has its place, or as many of the gang as it needs, or the
    workload is admitted; 1 if not. 2 after an error or if there is no such object.
    """
    with common.cluster() as cluster:
        asked = asked_for(names)
        namespace = common.namespace_named(cluster, [asked])
        if asked.name is None:
            _show_waiting(waiting_rows(cluster, asked.kind, namespace, operator_url), namespace, common)
            return
        found = _explanation(cluster, asked, namespace, operator_url)
        common.show(
            found,
            lambda terminal: (
                row_lines([_row_of(found)], terminal, utc_now(), True, False)
                if terminal.csv
                else explain_lines(found, terminal, utc_now(), common.wide)
            ),
            [f"{found['kind']}/{found['name']}"],
        )
    sys.exit(0 if found["hasPlace"] else 1)


def asked_for(words: Sequence[str]) -> Named:
    """Return the object named by pod/NAME, pod NAME, NAME alone, or the same of another kind. Raises BadInput.

    Its kind is one of KINDS, or in small letters that of something that makes pods; without words it is empty.
    """
    if not words:
        return Named("", None)
    kind, slash, name = words[0].partition("/")
    word = kind.lower()
    if len(words) == 1 and not slash and word not in {*KIND_OF, *OWNER_OF}:
        return Named("pod", words[0])
    makes_pods = word in OWNER_OF or (word not in KIND_OF and slash)
    if makes_pods and (slash or len(words) == 2) and len(words) < 3 - bool(slash):
        name = name if slash else words[1]
        if name and "/" not in name:
            return Named(OWNER_OF.get(word, word), name)
    return one_object(words, KINDS, all_of=KINDS)


def _explanation(cluster: ClusterAccess, asked: Named, namespace: str, url: str | None) -> Json:
    """Return the operator's explanation. Raises BadInput and ApiError."""
    subject: Subject | None = None
    if asked.kind not in KINDS:
        from gpuledger.command_line.owners import subject_of

        subject = subject_of(cluster, asked, namespace)
    named = subject.named if subject else asked
    try:
        found = explanation_of(cluster, named.kind, namespace, str(named.name), url)
    except NotFound as error:
        if named.kind == "pod" and is_volcano_job(cluster, namespace, str(named.name)):
            from gpuledger.formats.inspection import VOLCANO_JOB

            raise NotFound(f"{error}; {VOLCANO_JOB}") from error
        raise
    if "kind" not in found:
        raise BadInput("the operator is of another release: ask it with the gpuledger of that release")
    return found | ({"owner": subject.owner, "alsoWaiting": list(subject.also_waiting)} if subject else {})


def waiting_rows(cluster: ClusterAccess, kind: str, namespace: str, url: str | None) -> list[Json]:
    """Return all that waits in a namespace, or in all, of a kind, or of any. Raises BadInput and ApiError."""
    from gpuledger.command_line.owners import workloads_read
    from gpuledger.reports.explanation import workload_explanation

    rows: dict[tuple[str, str, str], Json] = {}
    for pod in waiting_pods(cluster, namespace, url) if kind != "workload" else ():
        row = _row_of_pod(pod)
        if kind != "pod" and pod["gang"]:
            row |= {"kind": "gang", "name": pod["gang"]}
        first = rows.setdefault((row["kind"], row["namespace"], row["name"]), row | {"pods": 0})
        first["pods"] += 1
    found = [row for row in rows.values() if kind in ("", row["kind"])]
    if kind in ("", "workload"):
        explained = map(workload_explanation, workloads_read(cluster, namespace))
        found += [_row_of(each.json()) for each in explained if not each.json()["hasPlace"]]
    return found


def _row_of_pod(pod: Json) -> Json:
    """Return a row of what the operator reports of a pending pod."""
    reasons = pod["reasons"]
    many = sum(each["nodes"] for each in reasons) > 1
    texts = [each["text"] + (f" ({plural(each['nodes'], 'node')})" if many else "") for each in reasons]
    return {
        "kind": "pod",
        "namespace": pod["namespace"],
        "name": pod["pod"],
        "reason": reasons[0]["reason"] if reasons else "room-found",
        "text": "; ".join(texts) or "a node takes it now: kube-scheduler retries it in its turn",
        "since": pod["since"],
        "priority": pod["priority"],
        "queue": pod["queue"],
        "gang": pod["gang"],
        "request": pod["request"],
    }


def _row_of(found: Json) -> Json:
    """Return the same of an explanation."""
    names = ("kind", "namespace", "name", "since", "priority", "queue", "gang")
    more = {"reason": found["reason"] or found["state"], "text": found["summary"]}
    request = "; ".join(map(_asked, found["requests"])) or None
    return {name: found[name] for name in names} | more | {"request": request, "pods": 1}


def _show_waiting(rows: Sequence[Json], namespace: str, common: Common) -> None:
    if not rows and common.for_people:
        where = f" in namespace {namespace}" if namespace else ""
        click.echo(f"Nothing waits{where}.", err=True)
        return
    common.show(
        {"items": rows},
        lambda terminal: row_lines(rows, terminal, utc_now(), common.wide, not namespace),
        (f"{row['kind']}/{row['name']}" for row in rows),
        NARROWEST,
    )


def row_lines(
    rows: Sequence[Json], terminal: Terminal, now: datetime, wide: bool, all_namespaces: bool
) -> Sequence[str]:
    """Return a table of all that waits."""
    columns = [
        *([Column("NAMESPACE")] if wide or all_namespaces else []),
        Column("WHAT"),
        Column("PODS", right=True, spare=2),
        Column("WAITS FOR", spare=1),
        *([Column("PRIORITY", right=True), Column("QUEUE"), Column("ASKS FOR", fold=True)] if wide else []),
        Column("REASON"),
        Column("WHY", fold=True),
    ]
    cells = [
        (
            *([row["namespace"]] if wide or all_namespaces else []),
            f"{row['kind']}/{row['name']}",
            str(row["pods"]),
            age(row["since"], now) if row["since"] else "",
            *([str(row["priority"]), row["queue"] or "", row["request"] or ""] if wide else []),
            ((row["reason"], "yellow"),),
            row["text"],
        )
        for row in rows
    ]
    return table(terminal, columns, cells)


def explain_lines(found: Json, terminal: Terminal, now: datetime, wide: bool = False) -> list[str]:
    """Return an explanation, its summary first."""
    style = "green" if found["hasPlace"] else "yellow"
    lines = [
        f"{terminal.paint(found['namespace'] + '/' + found['name'], 'bold')}: {terminal.paint(found['state'], style)}",
        *terminal.folded(found["summary"]),
        "",
        *_fact_lines(dict(_facts(found, now)), terminal),
    ]
    for warning in found["warnings"]:
        first, *rest = terminal.folded(f"warning: {warning}", indent=4)
        lines += [f"  {terminal.paint(first, 'yellow')}", *(f"    {line}" for line in rest)]
    if found["holds"]:
        lines += ["", "Its cards:", *_holds(found["holds"], terminal)]
    if found["kind"] == "gang":
        lines += _members(found["members"], terminal, wide)
    nodes = found["nodes"]
    if not nodes:
        return lines
    whom = found["example"] if found["kind"] == "gang" else f"a pod of {found['example']}"
    lines += ["", *(terminal.folded(f"Why {whom} finds no cards beside the others:") if found["example"] else ())]
    lines += _nodes(nodes, terminal)
    shown = nodes if wide else [first for first, *_ in alike(nodes)[:FEW_KINDS]]
    return lines + [line for node in shown if node["cards"] for line in ("", *_cards(node, terminal, wide))]


def _facts(found: Json, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield what is known beside the summary: title, text; empty texts are not shown."""
    yield "stands for", found["owner"] or ""
    yield "wait as well", listed(found["alsoWaiting"]) if found["alsoWaiting"] else ""
    yield "gang", _gang(found)
    yield "asks for", "; ".join(map(_asked, found["requests"]))
    shared = (f"{each['claim']} ({each['resourceClaim']})" for each in found["sharedClaims"])
    yield "shares claims", ", ".join(shared)
    if found["kind"] == "gang":
        yield from _member_facts(found["members"])
    yield "queue", found["queue"] or ""
    yield "quota of", found["clusterQueue"] or ""
    yield "priority", str(found["priority"])
    if found["since"] and found["hasPlace"]:
        yield "created", f"{age(found['since'], now)} ago"
    elif found["since"]:
        yield "waits", f"for {age(found['since'], now)}{_tried(found, now)}"
    yield "kube-scheduler says", found["schedulerSays"] or ""
    yield "new nodes", "; ".join(_new_nodes(each, now) for each in found.get("newNodes", ()))
    if refused := sum(node["offered"] is False for node in found["nodes"]):
        which = plural(refused, "node")
        yield "not offered", f"{which} with cards, which kube-scheduler itself had ruled out (see its message)"


def _new_nodes(nodes: Json, now: datetime) -> str:
    if not nodes["wanted"]:
        return f"those of template {nodes['template']} are of no help: {nodes['text']}"
    which = f"{plural(nodes['wanted'], 'node')} of template {nodes['template']}"
    return f"{which} asked for, {age(nodes['since'], now)} ago"


def _gang(found: Json) -> str:
    where = f"; see gpuledger explain gang/{found['gang']} -n {found['namespace']}" if found["kind"] == "pod" else ""
    return f"{found['gangWords']}{where}" if found["gang"] else ""


def _asked(request: Json) -> str:
    pods = request["pods"]
    return f"{entry_text(request['name'])}: {f'{pods} pods, each ' if pods > 1 else ''}{request['text']}"


def _member_facts(gang: Json) -> Iterator[tuple[str, str]]:
    absent = f", {gang['notCreated']} not created" if gang["notCreated"] else ""
    apart = f", {plural(gang['withoutGPUs'], 'member')} without GPUs" if gang["withoutGPUs"] else ""
    yield "members", f"{gang['running']} run, {gang['waiting']} wait{absent}{apart}"
    if gang["fits"] is not None:
        yield "room", f"{gang['onHold']} have cards on hold, {gang['inBind']} stand in Bind"
    if kept := gang["keptPlaces"]:
        yield "kept", f"{plural(kept, 'place')} of members that are gone, for those that replace them"
    yield "missing", "; ".join(f"{plural(each['members'], 'member')}: {each['request']}" for each in gang["missing"])
    if passed := gang["overtakenBy"]:
        yield "overtaken", f"by {plural(passed, 'gang')} that came after it"
    if turn := gang["turn"]:
        what = "goes first" if turn["kind"] == "first" else "is tried alone"
        yield "turn", f"{turn['gang'] or 'a gang of another namespace'} {what}, for {turn['secondsLeft']} s more"


def _members(gang: Json, terminal: Terminal, wide: bool) -> list[str]:
    lines = []
    if gang["fitsOn"]:
        rows = [(each["node"], str(each["members"])) for each in gang["fitsOn"]]
        lines += ["", *table(terminal, [Column("MEMBERS FIND CARDS ON"), Column("MEMBERS", right=True)], rows)]
    if wide and gang["pods"]:
        members = [(each["pod"], each["state"], each["node"] or "") for each in gang["pods"]]
        lines += ["", *table(terminal, [Column("MEMBER"), Column("STATE"), Column("NODE")], members)]
    if wide and gang["podsLeftOut"]:
        lines.append(f"and {plural(gang['podsLeftOut'], 'more member')}")
    return lines


def alike(nodes: Iterable[Json]) -> list[list[Json]]:
    """Group nodes that have the same reason, in the order in which each reason comes first.

    What would help names cards and pods, so it differs from node to node: only that there is something counts.
    """
    groups: dict[object, list[Json]] = {}
    for node in nodes:
        why = node["kubeScheduler"] or {}
        key = (node["fits"], node["offered"], node["reason"], node["text"], bool(node["remedy"]), why.get("reason"))
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _fact_lines(facts: dict[str, str], terminal: Terminal) -> Iterable[str]:
    width = max(map(len, facts))
    for title, text in facts.items():
        if text:
            first, *rest = terminal.folded(text, indent=width + 4)
            yield f"  {title:<{width}}  {first}"
            yield from (" " * (width + 4) + line for line in rest)


def _tried(found: Json, now: datetime) -> str:
    """Return when kube-scheduler tried a pod last, as far as the operator can know: it is not always asked."""
    if found["kind"] != "pod":
        return ""
    if found["schedulerRefusedAll"]:
        return ", tried, and refused without a look at cards"
    if found["lastTried"]:
        return f", last tried {age(found['lastTried'], now)} ago"
    if not found["schedulerSays"]:
        return ", not tried yet"
    return ", tried before this operator started" if found["nodes"] else ""  # without nodes no operator was asked


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
            title_of([node["node"] for node in group], "nodes"),
            _offered(group[0]),
            (("fits", "green"),) if group[0]["fits"] else ((group[0]["reason"] or "", "yellow"),),
            group[0]["text"],
            _on_first(group, (group[0]["kubeScheduler"] or {}).get("text", "")),
            _on_first(group, group[0]["remedy"] or ""),
            pods_named(group[0]["wouldHaveToLeave"]),
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


def _on_first(group: Sequence[Json], text: str) -> str:
    """Return a text about the first node of several: its numbers are not those of the others."""
    return f"on {group[0]['node']}: {text}" if text and len(group) > 1 else text


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
