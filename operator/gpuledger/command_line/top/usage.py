"""`top --usage`: use beside shares, of each container, card or node, or by each namespace.

The data come from the ledger and the agents, asked through the API server with the caller's account, or from the
operator by its address. Tables are made of what `-o json` prints, so both look alike. An agent that does not answer is
reported for its node, and is no error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from gpuledger.command_line.cluster_access import ClusterAccess, Objects, where_asked
from gpuledger.command_line.objects import check_node
from gpuledger.command_line.operator_view import ask
from gpuledger.command_line.options import Common
from gpuledger.command_line.output import AGES, FROM_MEMORY, NO_CARDS, bar, begin_cards, in_reading_order, uncollected
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.kubernetes.node import AgentPod, agent_pod, best_by_node
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES, read_node_usage
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import AnswerTooLong, ApiError, BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeUsage
from gpuledger.model.request import entry_text
from gpuledger.reports.cards import NO_AGENT, TOO_LONG, TOO_OLD, UseState, by_node, node_use, report_of_stored
from gpuledger.reports.tables import Cell, Column, Terminal, harmless, listed, table
from gpuledger.workflows.kinds import AGENT_SELECTOR
from gpuledger.workflows.tasks import all_within

MIB_PER_GIB = 1024
VIEWS = {"containers": ("NODE", "INDEX", "POD", "CONTAINER"), "cards": ("NODE", "INDEX"), "nodes": ("NODE",)} | {
    "namespaces": ("NAMESPACE",)
}
"""View -> the titles of its rows' first columns."""

NOT_KNOWN = "?"
PARTLY_KNOWN = "+"
"""Follows a sum of which some is not known."""
FREE = "free"
"""State of a card or part without a holder."""

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
"""Sort orders besides the name -> key: the largest share, or the largest idle share."""


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
        hint = f". {NETWORK_POLICY}" if reason in (NO_ANSWER, UNREACHED) else ""
        yield f"not known of {listed(sorted(names, key=in_reading_order))}: {reason}{hint}"


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
        Column("USED OF HELD", spare=5, drawn=True),
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


NAMESPACE = LEASE_NAMESPACE
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

AT_ONCE = 16
"""Agents that are asked at a time, each by a connection of the API server's."""
AGENT_TIMEOUT_S = 5.0
ALL_TIMEOUT_S = 30.0
"""For all agents together: agents that were not reached by then are left out."""

NOT_RUNNING = "its agent does not run yet, or not any more"
NO_TIME = f"not asked: others took {ALL_TIMEOUT_S:g} s"
NOT_ALLOWED = f"your account may not `get` pods/proxy in namespace {NAMESPACE}"
UNREACHED = "the API server does not reach its agent"
NO_ANSWER = f"its agent does not answer within {AGENT_TIMEOUT_S:g} s"
NETWORK_POLICY = (
    "Where NetworkPolicies are enforced, let in the API server's addresses (docs/installing.md, Who reaches the "
    "ports), or have the operator ask: --operator-url"
)

Answers = dict[str, NodeUsage | str]
"""Node name -> what its agent has measured, or why that is not known."""


def begin_agents(cluster: ClusterAccess, node: str | None) -> Objects:
    """Start to read the agents' pods, all or the one of a node."""
    on_node = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    return cluster.begin(PODS, FROM_MEMORY | {"labelSelector": AGENT_SELECTOR} | on_node)


def agents_asked(cluster: ClusterAccess, pods: Iterable[Json], nodes: Collection[str]) -> Answers:
    """Return the answers of the agents of these nodes. Raises Denied for who may not list their pods, and ApiError."""
    try:
        agents = best_by_node(map(agent_pod, pods))
    except Denied as error:
        raise Denied(
            f"{error}; --usage needs `list` on pods and `get` on pods/proxy in namespace {NAMESPACE}"
        ) from None
    answers: Answers = {name: NOT_RUNNING if name in agents else NO_AGENT for name in nodes}
    to_ask = [agents[name] for name in nodes if name in agents and agents[name].address and agents[name].port]
    if to_ask:
        cluster.open()
        with where_asked():
            cluster.run(lambda: _ask_all(cluster, to_ask, answers))
    return answers


async def _ask_all(cluster: ClusterAccess, agents: Iterable[AgentPod], answers: Answers) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(agent: AgentPod) -> None:
        async with turns:
            answers[agent.node_name] = NO_ANSWER  # until it has answered
            answers[agent.node_name] = await _ask(client, agent)

    async with cluster.client() as client:
        for agent in agents:
            answers[agent.node_name] = NO_TIME
        await all_within(ALL_TIMEOUT_S, map(ask, agents))


async def _ask(client: KubeClient, agent: AgentPod) -> NodeUsage | str:
    path = f"{PODS}/{agent.name}:{agent.port}/proxy/usage"
    try:
        found = await client.request(
            "GET", path, timeout_s=AGENT_TIMEOUT_S, longest_bytes=LONGEST_ANSWER_BYTES, follow=False
        )
        return read_node_usage(found, agent.node_name)
    except NotFound as error:
        return NOT_RUNNING if "pods " in _said(error, path) else TOO_OLD  # the API server's own words, or the agent's
    except Denied:
        return NOT_ALLOWED
    except AnswerTooLong:
        return TOO_LONG
    except ApiError as error:
        return NO_ANSWER if isinstance(error.__cause__, TimeoutError) else f"{UNREACHED}: {_said(error, path)}"
    except BadInput as error:
        return f"its agent's answer can't be read: {error}"


def _said(error: ApiError, path: str) -> str:
    """Return the API server's message about an agent, without the request."""
    return " ".join(str(error).split()).removeprefix(f"GET {path}: ").removeprefix(f"{error.status}: ")


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """The view to show, and its form."""

    view: str | None
    sort: str
    idle_after_s: int
    node: str | None
    selector: str | None
    operator_url: str | None


def show_usage(cluster: ClusterAccess, common: Common, options: UsageOptions) -> None:
    """Print what is used beside what is held. Raises BadInput, ApiError."""
    view = options.view or "containers"
    if view == "models":
        raise BadInput("--usage has no view of models: leave the view out, or use cards, nodes or namespaces")
    if options.sort not in ("name", *SORTS):
        raise BadInput(f"--usage can't sort by {options.sort}: use name, {' or '.join(SORTS)}")
    nodes = _nodes(cluster, options)
    rows = usage_rows(view, nodes, options.sort)
    if rows or not common.for_people:
        data = {"idleAfterS": options.idle_after_s, "nodes": nodes}
        common.show(data, lambda terminal: usage_table(view, rows, terminal, common.wide))
    else:
        click.echo("No pod holds a card there." if nodes else NO_CARDS, err=True)
    if common.output in ("json", "yaml"):
        return
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
        known = [node for node in found if _is_meant(node["node"], options.node, names)]
        if options.node is not None and not known:
            raise BadInput(f"the operator knows no node {options.node!r} with cards")
        return known
    with uncollected():
        reports = [report_of_stored(stored_card(item)) for item in items]
    nodes = [node for node in by_node(reports) if _is_meant(node.name, options.node, names)]
    if options.node is not None and not nodes:
        check_node(cluster, options.node)
    answers = agents_asked(cluster, pods, [node.name for node in nodes])
    return [node_use(node, answers[node.name], options.idle_after_s).json() for node in nodes]


def _is_meant(name: str, node: str | None, names: Collection[str] | None) -> bool:
    return node in (None, name) and (names is None or name in names)
