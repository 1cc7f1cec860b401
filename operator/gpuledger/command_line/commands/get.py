"""`gpuledger get`: of a pod its cards, of a card its holders."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.cluster_access import ClusterAccess, cluster_access
from gpuledger.command_line.options import (
    Named,
    access_options,
    completed_names,
    errors_shown,
    named_objects,
    namespace_option,
    no_such,
    output_option,
)
from gpuledger.command_line.output import (
    NO_CARDS,
    all_cards,
    amounts_of,
    bar,
    begin_cards,
    card_named,
    cordon_of,
    share_text,
)
from gpuledger.formats.annotations import DEVICES_ANNOTATION, read_devices
from gpuledger.formats.custom_resource.stored_card import (
    NODE_CORDON_ANNOTATION,
    amounts_json,
    claim_json,
    misfit_json,
    stored_card,
)
from gpuledger.formats.kubernetes.workload import queue_of
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import entry_text
from gpuledger.model.share import StoredCard
from gpuledger.reports.cards import report_of_stored
from gpuledger.reports.tables import Column, Terminal, gathered, nodes_named, table, title_of

CROWD = 10
"""How many holders of a card are named one by one."""


@click.command(short_help="A pod's cards, or a card's holders.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[pod/NAME | card/UUID | pods | cards]...",
    shell_complete=completed_names("pod", "card"),
)
@namespace_option
@output_option("table", "wide", "json", "yaml")
@access_options
def get(
    names: tuple[str, ...],
    namespace: str | None,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Show a pod's cards and each container's part of them, or the pods that hold a card.

    A unique prefix of a UUID is enough; "pods" are those of the namespace that hold or wait for cards: of many that are
    alike it shows one, with -o wide each. Exit status: 0, or 2 after an error or if there is no such pod or card.
    """
    with errors_shown(), cluster_access(kubeconfig, context) as cluster:
        wanted = named_objects(names, ("pod", "card"), all_of=("pod", "card"))
        in_namespace = (namespace or cluster.namespace()) if any(each.kind == "pod" for each in wanted) else ""
        found = [item for each in wanted for item in _found(cluster, each, in_namespace)]
        if not found and output in ("table", "wide"):
            nobody = f"No pod of namespace {in_namespace} holds or claims a card."
            click.echo(nobody if in_namespace else NO_CARDS, err=True)
        one = wanted[0].name is not None and len(wanted) == 1
        wide, by_name = output == "wide", any(each.name for each in wanted)
        data = found[0] if one else {"items": found}
        out.show(data, output, lambda terminal: all_lines(found, terminal, by_name, wide), no_color)


def _found(cluster: ClusterAccess, wanted: Named, namespace: str) -> Iterator[Json]:
    if wanted.kind == "card":
        cards = all_cards(cluster)
        if wanted.name is not None:
            yield card_json(card_named(cards, wanted.name))
        else:
            yield from map(card_json, sorted(cards, key=lambda item: _place(stored_card(item))))
    elif wanted.name is not None:
        yield pod_json(cluster, namespace, wanted.name)
    else:
        yield from pods_json(cluster, namespace)


def card_json(found: Json) -> Json:
    """Return all that is known of a card, of its GPUAllocation."""
    card = stored_card(found)
    return {
        **report_of_stored(card).json(),
        "healthy": card.card.healthy,
        "cordoned": cordon_of(found),
        "nodeCordoned": cordon_of(found, NODE_CORDON_ANNOTATION),
        "links": dict(card.card.links),
        "claimedBy": [claim_json(claim) for claim in card.claims],
        "conflictsWith": [misfit_json(misfit) for misfit in card.misfits],
    }


def pod_json(cluster: ClusterAccess, namespace: str, name: str) -> Json:
    """Return a pod's shares as the ledger has them, and what its annotation names. Raises BadInput and ApiError."""
    try:
        pod = cluster.read(f"/api/v1/namespaces/{namespace}/pods/{name}")
    except NotFound:
        raise BadInput(no_such("pod", name, namespace)) from None
    return _pod_json(pod, namespace, [stored_card(item) for item in begin_cards(cluster, pod["spec"].get("nodeName"))])


def pods_json(cluster: ClusterAccess, namespace: str) -> Iterator[Json]:
    """Yield the same for each pod of a namespace that holds cards or claims them. Raises as `pod_json`."""
    pods = cluster.begin(f"/api/v1/namespaces/{namespace}/pods")
    cards = [stored_card(item) for item in all_cards(cluster)]
    found = (_pod_json(pod, namespace, cards) for pod in pods)
    yield from (each for each in found if each["shares"])


def _pod_json(pod: Json, namespace: str, cards: Iterable[StoredCard]) -> Json:
    uid = pod["metadata"]["uid"]
    return {
        "namespace": namespace,
        "pod": pod["metadata"]["name"],
        "podUID": uid,
        "node": pod["spec"].get("nodeName"),
        "queue": queue_of(pod) or None,
        "phase": (pod.get("status") or {}).get("phase", ""),
        "shares": [share for card in sorted(cards, key=_place) for share in _shares_of(card, uid)],
        **_annotated(pod),
    }


def all_lines(found: Sequence[Json], terminal: Terminal, by_name: bool, wide: bool) -> Iterator[str]:
    """Yield what was found, for people, with an empty line between two.

    Of pods that are alike one is shown, unless they were named or each is wanted.
    """
    groups = [[one] for one in found] if by_name or wide else gathered(found, _name, _shown)
    for position, alike in enumerate(groups):
        yield from [""] * bool(position)
        yield from card_lines(alike[0], terminal, wide) if "holders" in alike[0] else pod_lines(alike, terminal)


def _name(found: Json) -> str:
    return f"{found['namespace']}/{found['pod']}" if "pod" in found else str(found["uuid"])


def _shown(found: Json) -> Hashable:
    """Return the common properties of pods that are shown as one: all but the cards of their shares."""
    if "pod" not in found:
        return str(found["uuid"])
    shares = tuple((each["state"], amounts_of(each), each["exclusive"]) for each in found["shares"])
    told = tuple((each["container"], each["memoryMiB"], each["cores"]) for each in found["told"])
    return str(found["phase"]), bool(found["node"]), found["queue"], shares, told, str(found["toldProblem"])


def card_lines(card: Json, terminal: Terminal, wide: bool) -> list[str]:
    """Return a card for people; a group of similar holders is one row, unless wide."""
    state = "green" if card["phase"] == "Ready" else "yellow"
    lines = [
        f"{terminal.paint(card['uuid'], 'bold')}: card {card['index']} of node {card['node']}, {card['model']}",
        "  state    "
        + terminal.paint(card["phase"] or "Pending", state)
        + (f": {card['reason']}" if card["reason"] else ""),
        *([f"  cordoned {card['cordoned'] or 'without a reason'}"] if card["cordoned"] is not None else []),
        *_amount_lines(card, terminal),
        *_facts(card, terminal),
    ]
    lines += _pods_table("held by", card["holders"], terminal, wide)
    lines += _pods_table("claimed by, once other pods have left", card["claimedBy"], terminal, wide)
    lines += _pods_table("found on it, without room", card["conflictsWith"], terminal, wide)
    if not card["holders"]:
        lines += ["", "No pod holds it."]
    return lines


def pod_lines(alike: Sequence[Json], terminal: Terminal) -> list[str]:
    """Return a pod for people; of several similar ones, their nodes, and the shares of the first."""
    pod, names = alike[0], list(map(_name, alike))
    first, whose = ("", "the pod's") if len(alike) == 1 else (f", of {names[0]}", "its")
    queue = f", in queue {pod['queue']}" if pod["queue"] else ""
    lines = [f"{terminal.paint(title_of(names), 'bold')}: {pod['phase'] or 'Pending'}, {_where(alike)}{queue}"]
    if pod["shares"]:
        columns = [Column("CARD"), Column("INDEX", right=True), Column("STATE"), Column("SHARE", fold=True)]
        rows = [
            (each["card"], str(each["index"]), each["state"], share_text(amounts_of(each), each["exclusive"]))
            for each in pod["shares"]
        ]
        lines += ["", f"In the ledger{first}:", *table(terminal, columns, rows)]
    else:
        lines += ["", _why_no_share(pod)]
    if pod["told"]:
        titles = [Column("CONTAINER"), Column("CARD"), Column("MIB", right=True), Column("CORES %", right=True)]
        annotated = [
            (entry_text(each["container"]), each["uuid"], str(each["memoryMiB"]), str(each["cores"]))
            for each in pod["told"]
        ]
        lines += [
            "",
            f"In {whose} annotation, by container:",
            *table(terminal, titles, annotated),
        ]
    if pod["toldProblem"]:
        lines += ["", terminal.paint(pod["toldProblem"], "yellow")]
    return lines


def _why_no_share(pod: Json) -> str:
    """Return why the ledger has nothing of a pod, as far as the pod tells, and the command that tells more."""
    name = f"{pod['pod']} -n {pod['namespace']}"
    if pod["phase"] in ("Succeeded", "Failed"):
        return "The ledger has no share of it any more: it has ended."
    if not pod["node"]:
        return f"The ledger has no share of it yet: `kubectl gpuledger explain pod/{name}` says why it waits."
    if pod["told"]:
        return "The ledger has no share of it, and its annotation names cards: `gpuledger audit` says what that means."
    return "The ledger has no share of it: it asks for no card of ours, or `gpuledger audit` names it."


def _where(alike: Sequence[Json]) -> str:
    nodes = [pod["node"] for pod in alike if pod["node"]]
    one = len(set(nodes)) == 1
    return f"on node {nodes[0]}" if one else nodes_named(nodes) if nodes else "without a node"


def _annotated(pod: Json) -> Json:
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION)
    try:
        annotated = read_devices(text) if text else ()
    except BadInput as error:
        return {"told": [], "toldProblem": str(error)}
    cards = [{"container": t.container, "uuid": t.uuid, "memoryMiB": t.memory_mib, "cores": t.cores} for t in annotated]
    return {"told": cards, "toldProblem": None}


def _place(card: StoredCard) -> tuple[str, tuple[int, str]]:
    return card.card.node_name, card.card.place


def _shares_of(card: StoredCard, uid: str) -> Iterable[Json]:
    where = {"card": card.card.uuid, "node": card.card.node_name, "index": card.card.index}
    for holder in card.holders or ():
        if holder.pod.uid == uid:
            yield {**where, "state": holder.state.value, **_share_json(holder.share.amounts, holder.share.exclusive)}
    for claim in card.claims:
        if claim.holder.pod.uid == uid:
            yield {**where, "state": "claimed", **_share_json(claim.share.amounts, claim.share.exclusive)}


def _share_json(amounts: Amounts, exclusive: bool) -> Json:
    return {**amounts_json(amounts), "exclusive": exclusive}


def _amount_lines(card: Json, terminal: Terminal) -> Iterable[str]:
    kinds = (
        ("memory", "memoryMiB", "MiB", "cyan"),
        ("compute", "cores", "%", "blue"),
        ("slots", "number", "", "magenta"),
    )
    for title, key, unit, style in kinds:
        used, capacity = card["used"][key], card["capacity"][key]
        drawn = "".join(terminal.paint(*part) for part in bar(terminal, used, capacity, style, 20))
        yield f"  {title:<8} {drawn} {used} of {capacity} {unit}".rstrip()


def _facts(card: Json, terminal: Terminal) -> Iterable[str]:
    if card["mode"]:
        yield f"  mode     {card['mode']}"
    if card["numaNode"] is not None:
        yield f"  NUMA     {card['numaNode']}"
    if card["links"]:
        scores: dict[int, list[str]] = {}
        for peer, score in card["links"].items():
            scores.setdefault(score, []).append(peer)
        for score, peers in sorted(scores.items(), reverse=True):
            for position, line in enumerate(terminal.folded(f"score {score}: {', '.join(peers)}", indent=11)):
                yield f"  {'' if position else 'links':<8} {line}"


def _pods_table(title: str, pods: Sequence[Json], terminal: Terminal, wide: bool) -> list[str]:
    if not pods:
        return []
    cells = [
        (each.get("state") or each.get("why", ""), str(each.get("priority", "")), _share_of(each)) for each in pods
    ]
    named = list(zip(map(_name, pods), cells, strict=True))
    groups = [[row] for row in named] if wide else gathered(named, lambda row: row[0], lambda row: row[1], CROWD)
    rows = [(title_of([name for name, _ in alike]), *alike[0][1]) for alike in groups]
    columns = [
        Column("POD"),
        Column("STATE", spare=3),
        Column("PRIORITY", right=True, spare=2),
        Column("SHARE", fold=True),
    ]
    return ["", f"{title[0].upper()}{title[1:]}:", *table(terminal, columns, rows)]


def _share_of(found: Json) -> str:
    return share_text(amounts_of(found), found.get("exclusive", False))
