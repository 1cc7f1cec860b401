"""`top --by namespace` and `top --by queue`: each team's limits, holdings, and pending pods.

Pods, quotas and queues are read beside the ledger, as far as the account may read them; with `--watch` again every few
seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.output import FROM_MEMORY, NoLedger, Screen, begin_cards, uncollected, utc_now, write
from gpuledger.command_line.top import SORTS
from gpuledger.command_line.top.rows import MIB_PER_GIB, Line
from gpuledger.formats.custom_resource.stored_card import amounts_json, stored_card
from gpuledger.formats.dialects.vocabulary import HAMI, KOORDINATOR, VOLCANO, VOLCANO_CLASSIC, Dialects
from gpuledger.formats.kubernetes.budgets import budgets_of, hours_shown
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of, limits_of, used_of
from gpuledger.formats.kubernetes.workload import (
    CLUSTER_QUEUE_LABEL,
    GROUP,
    QueueAmount,
    QueueState,
    cluster_queue_of,
    number,
    queue_state,
)
from gpuledger.formats.quantity import resources_asked
from gpuledger.model.card import NOTHING, Amounts
from gpuledger.model.errors import Denied, NotFound, Unreachable
from gpuledger.model.gang import Counted, Kind, QuotaLimit, kind_of
from gpuledger.model.json_object import Json
from gpuledger.model.usage import Budget
from gpuledger.reports.cards import CardReport, report_of_stored
from gpuledger.reports.tables import Cell, Column, Terminal, table

NO_BUDGETS: Mapping[str, Sequence[tuple[Budget, int | None]]] = MappingProxyType({})

NO_QUEUE = "-"
"""Name of the row with the pods that are in no queue."""
UNKNOWN = "?"


@dataclass(slots=True)
class Held:
    """The shares of a team's pods in the ledger."""

    amounts: Amounts = NOTHING
    pods: set[str] = field(default_factory=set)
    cards: set[str] = field(default_factory=set)
    of_kind: dict[Kind, Amounts] = field(default_factory=dict)

    def line(self, name: str) -> Line:
        """Return it as the other views sort their rows."""
        return Line(name, NOTHING, self.amounts, len(self.cards), len(self.pods), "")

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        return {"cards": len(self.cards), "pods": len(self.pods), "used": amounts_json(self.amounts)}

    def of(self, limit: QuotaLimit) -> int:
        """Return how much counts for a limit."""
        return sum(limit.counted.of(amounts) for kind, amounts in self.of_kind.items() if limit.counts(*kind))


def held_by(reports: Iterable[CardReport], team_of: Mapping[str, str] | None) -> dict[str, Held]:
    """Return each team's shares: by the team of each pod's UID, "" for the others; without these, by namespace."""
    found: dict[str, Held] = {}
    for report in reports:
        for holder in report.holders:
            pod, amounts = holder.pod, holder.share.amounts
            held = found.setdefault(pod.namespace if team_of is None else team_of.get(pod.uid, ""), Held())
            held.amounts += amounts
            held.pods |= set() if holder.is_seat else {pod.uid}
            held.cards.add(report.card.uuid)
            kind = kind_of(report.card)
            held.of_kind[kind] = held.of_kind.get(kind, NOTHING) + amounts
    return found


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A namespace."""

    name: str
    held: Held
    limits: Sequence[QuotaLimit] | None
    """None if quotas can't be read."""
    waiting: int | None
    """Pods without a node; None if pods can't be read."""
    said: Mapping[QuotaLimit, int] = field(default_factory=dict)
    """How much counts for limits by the status of their ResourceQuotas, where the ledger can't be read."""
    budgets: Sequence[tuple[Budget, int | None]] = ()
    """Each with the card hours that its ResourceQuota's status shows as spent; None where it shows none yet."""

    def tightest(self, counted: Counted) -> int | None:
        """Return the least that the namespace may have of this, of all cards together; None if no limit says it."""
        limits = [each.most for each in self.limits or () if each.counted is counted and not each.model]
        return min(limits, default=None)

    def of(self, limit: QuotaLimit) -> int:
        """Return how much counts for a limit."""
        return self.said.get(limit, self.held.of(limit))

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        quota = None
        if self.limits is not None:
            quota = [
                {"resourceQuota": each.quota, "key": each.key, "used": self.of(each), "limit": each.most}
                for each in self.limits
            ]
        budgets = [
            {"resourceQuota": each.quota, "key": each.key, "cardHours": each.card_hours, "spentCardHours": hours}
            for each, hours in self.budgets
        ]
        return {
            "namespace": self.name,
            **self.held.json(),
            "quota": quota,
            "budgets": budgets,
            "waiting": self.waiting,
        }


def namespace_rows(
    reports: Iterable[CardReport],
    limits: Mapping[str, Sequence[QuotaLimit]] | None,
    waiting: Mapping[str, int] | None,
    sort: str | None = None,
    budgets: Mapping[str, Sequence[tuple[Budget, int | None]]] = NO_BUDGETS,
) -> list[NamespaceRow]:
    """Return a row for each namespace whose pods hold cards or wait for some, or that has a quota or a budget."""
    held = held_by(reports, None)
    rows = [
        NamespaceRow(
            name,
            held.get(name, Held()),
            None if limits is None else limits.get(name, ()),
            None if waiting is None else waiting.get(name, 0),
            budgets=budgets.get(name, ()),
        )
        for name in sorted({*held, *(limits or ()), *(waiting or ()), *budgets})
    ]
    return sorted(rows, key=lambda row: SORTS[sort](row.held.line(row.name))) if sort in SORTS else rows


def namespace_table(rows: Sequence[NamespaceRow], terminal: Terminal, wide: bool = False) -> list[str]:
    """Return the table of namespaces; with `wide`, memory in MiB, and each limit."""
    has_budgets = any(row.budgets for row in rows)
    columns = [
        Column("NAMESPACE"),
        Column("PODS", right=True, spare=2),
        Column("SLOTS", right=True, spare=1),
        Column("MIB" if wide else "GIB", right=True),
        Column("CORES %", right=True),
        Column("WAITING", right=True),
        *([Column("CARD-HOURS", spare=4)] if has_budgets else []),
        *([Column("CARDS", right=True, spare=8), Column("QUOTA", spare=8)] if wide else []),
    ]
    return table(terminal, columns, [_namespace_row(row, has_budgets, wide) for row in rows])


def _namespace_row(row: NamespaceRow, has_budgets: bool, wide: bool) -> list[Cell]:
    used = row.held.amounts
    return [
        row.name,
        str(len(row.held.pods)),
        _of(used.number, row.tightest(Counted.SLOTS)),
        _memory(used.memory_mib, row.tightest(Counted.MEMORY), wide),
        _of(used.cores, row.tightest(Counted.CORES)),
        _waiting(row.waiting),
        *([_budget(row.budgets)] if has_budgets else []),
        *([str(len(row.held.cards)), _limits(row)] if wide else []),
    ]


def _budget(budgets: Sequence[tuple[Budget, int | None]]) -> Cell:
    """Return of which budget the largest part is spent: "450/500 a month"."""
    if not budgets:
        return ""
    budget, hours = max(budgets, key=lambda each: (each[1] or 0) / max(each[0].card_hours, 1))
    text = f"{UNKNOWN if hours is None else hours}/{budget.card_hours} a {budget.period}"
    return ((text, "red" if hours is not None and hours >= budget.card_hours else ""),)


def _limits(row: NamespaceRow) -> str:
    if row.limits is None:
        return UNKNOWN
    return ", ".join(f"{each.quota}: {each.key} {row.of(each)}/{each.most}" for each in row.limits)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A ClusterQueue, or the pods that are in none."""

    name: str
    held: Held
    state: QueueState | None
    """None for pods that are in none, and where ClusterQueues can't be read."""

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        state = self.state.json() if self.state else {"cohort": None, "quota": None, "workloads": None}
        return {"queue": self.name or None, **self.held.json(), **state}


def queue_rows(
    reports: Iterable[CardReport],
    queue_of: Mapping[str, str] | None,
    states: Iterable[QueueState],
    sort: str | None = None,
) -> list[QueueRow]:
    """Return a row for each ClusterQueue, and a last one for pods that hold cards and are in none.

    `queue_of` is None where pods can't be read: then the queue of none of them is known.
    """
    held, known = held_by(reports, queue_of or {}), {each.name: each for each in states}
    names = sorted({*held, *known} - {""})
    rows = [QueueRow(name, held.get(name, Held()), known.get(name)) for name in names]
    rows = sorted(rows, key=lambda row: SORTS[sort](row.held.line(row.name))) if sort in SORTS else rows
    nameless = UNKNOWN if queue_of is None else ""
    return [*rows, *([QueueRow(nameless, held[""], None)] if "" in held else [])]


def queue_table(rows: Sequence[QueueRow], terminal: Terminal, wide: bool = False) -> list[str]:
    """Return the table of queues; with `wide`, memory in MiB, whole names of resources, and the cohort."""
    columns = [
        Column("QUEUE"),
        *([Column("COHORT", spare=8)] if wide else []),
        Column("RESERVED / OWN QUOTA", spare=3),
        Column("BORROWED", spare=2),
        Column("PODS", right=True, spare=5),
        Column("SLOTS", right=True, spare=4),
        Column("MIB" if wide else "GIB", right=True),
        Column("CORES %", right=True),
        Column("ADMITTED", right=True),
        Column("WAIT FOR CARDS", right=True),
        Column("WAIT FOR QUOTA", right=True),
    ]
    return table(terminal, columns, [_queue_row(row, wide) for row in rows])


def _queue_row(row: QueueRow, wide: bool) -> list[Cell]:
    used, state = row.held.amounts, row.state
    amounts = state.amounts if state else {}
    own = [f"{_short(name, wide)} {number(it.reserved)}/{number(it.nominal)}" for name, it in amounts.items()]
    workloads: list[Cell] = ["", "", ""]
    if state:
        workloads = [str(state.admitted), _waiting(state.with_quota), _waiting(state.without_quota)]
    return [
        row.name or NO_QUEUE,
        *([state.cohort if state else ""] if wide else []),
        ", ".join(own),
        ((_borrowed(amounts, wide), "yellow"),),
        str(len(row.held.pods)),
        str(used.number),
        _memory(used.memory_mib, None, wide),
        str(used.cores),
        *workloads,
    ]


def _borrowed(amounts: Mapping[str, QueueAmount], wide: bool) -> str:
    return ", ".join(f"{_short(name, wide)} {number(it.borrowed)}" for name, it in amounts.items() if it.borrowed)


def _short(resource: str, wide: bool) -> str:
    return resource if wide else resource.rpartition("/")[2]


def _waiting(number: int | None) -> Cell:
    return UNKNOWN if number is None else ((str(number), "yellow" if number else ""),)


def _memory(used_mib: int, most_mib: int | None, wide: bool) -> str:
    if wide:
        return _of(used_mib, most_mib)
    most = "" if most_mib is None else f"/{most_mib / MIB_PER_GIB:.1f}"
    return f"{used_mib / MIB_PER_GIB:.1f}{most}"


def _of(used: int, most: int | None) -> str:
    return str(used) if most is None else f"{used}/{most}"


PODS, QUOTAS = "/api/v1/pods", "/api/v1/resourcequotas"
CLUSTER_QUEUES = f"/apis/{GROUP}/clusterqueues"
WITHOUT_NODE = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}

WORDS = Dialects((HAMI, VOLCANO, VOLCANO_CLASSIC, KOORDINATOR))
"""As they are without settings, whose reading takes longer than everything else here."""


class Teams:
    """One reading of a view: its table, its data, and what could not be read."""

    def __init__(self, cluster: ClusterAccess, by: str, sort: str | None, namespace: str = "") -> None:
        """Read, of one namespace if it is named. Raises BadInput without the CRD, ApiError."""
        self.by = by
        self.notes: list[str] = []
        cards = begin_cards(cluster)
        if by == "namespace":
            quotas = cluster.begin(_in(namespace, QUOTAS), FROM_MEMORY)
            waiting = cluster.begin(_in(namespace, PODS), FROM_MEMORY | WITHOUT_NODE)
            try:
                reports = _reports(cards)
            except NoLedger as error:
                try:
                    self._namespaces = [self._own(cluster, namespace or cluster.namespace())]
                except (Denied, NotFound):
                    raise error from None
                return
            objects, pods = self._read(quotas, "resourcequotas"), self._read(waiting, "pods")
            limits = None if objects is None else _limits_of(objects)
            of_pods = None if pods is None else _waiting_pods(pods)
            rows = namespace_rows(reports, limits, of_pods, sort, _budgets_of(objects or ()))
            self._namespaces = [row for row in rows if namespace in ("", row.name)]
        else:
            queues = cluster.begin(CLUSTER_QUEUES)
            queued = cluster.begin(PODS, FROM_MEMORY | {"labelSelector": CLUSTER_QUEUE_LABEL})
            reports = _reports(cards)
            states = map(queue_state, self._read(queues, "clusterqueues.kueue.x-k8s.io") or ())
            pods = self._read(queued, "pods")
            queue_of = None if pods is None else {pod["metadata"]["uid"]: cluster_queue_of(pod) for pod in pods}
            self._queues = queue_rows(reports, queue_of, states, sort)

    def _own(self, cluster: ClusterAccess, namespace: str) -> NamespaceRow:
        """Return a namespace by its pods' annotations and its ResourceQuotas' status. Raises ApiError."""
        from gpuledger.command_line.objects import HINT, pods_of_interest

        pods, quotas = cluster.begin(_in(namespace, PODS)), cluster.begin(_in(namespace, QUOTAS))
        held, waiting = Held(), 0
        for pod in pods_of_interest(pods, namespace, None):
            waiting += not pod["shares"]
            held.pods |= {pod["podUID"]} if pod["shares"] else set()
            for share in pod["shares"]:
                held.amounts += Amounts(share["memoryMiB"], share["cores"], share["number"])
                held.cards.add(share["card"])
        said: dict[QuotaLimit, int] = {}
        objects = self._read(quotas, "resourcequotas") or ()
        for quota in objects:
            limits, _ = limits_of(quota, WORDS)
            used = used_of(quota, limits)
            said |= {limit: used.get(limit.key, 0) * limit.unit for limit in limits}
        self.notes.append(HINT)
        return NamespaceRow(namespace, held, tuple(said), waiting, said, _budgets_of(objects).get(namespace, ()))

    def json(self) -> Json:
        """Return the data of `-o json`."""
        if self.by == "namespace":
            return {"namespaces": [row.json() for row in self._namespaces]}
        return {"queues": [row.json() for row in self._queues]}

    def table(self, terminal: Terminal, wide: bool) -> list[str]:
        """Return the table."""
        if self.by == "namespace":
            return namespace_table(self._namespaces, terminal, wide)
        return queue_table(self._queues, terminal, wide)

    def _read(self, coming: Iterable[Json], what: str) -> list[Json] | None:
        """Return objects; None, with a note, for what the cluster lacks or the account may not read."""
        try:
            return list(coming)
        except Denied:
            self.notes.append(f"Your account may not list {what} of the whole cluster: what they say is left out.")
        except NotFound:
            self.notes.append(f"This cluster has no {what}: what they say is left out.")
        return None


def _limits_of(quotas: Iterable[Json]) -> dict[str, Sequence[QuotaLimit]]:
    found: dict[str, Sequence[QuotaLimit]] = {}
    for quota in quotas:
        limits, _ = limits_of(quota, WORDS)
        if limits:
            namespace = str(quota["metadata"]["namespace"])
            found[namespace] = (*found.get(namespace, ()), *limits)
    return found


def _budgets_of(quotas: Iterable[Json]) -> dict[str, Sequence[tuple[Budget, int | None]]]:
    """Return the budgets of each namespace, with the hours that are shown as spent."""
    found: dict[str, Sequence[tuple[Budget, int | None]]] = {}
    for quota in quotas:
        budgets, _ = budgets_of(quota)
        shown = hours_shown(quota, budgets)
        if budgets:
            namespace = str(quota["metadata"]["namespace"])
            found[namespace] = (*found.get(namespace, ()), *((each, shown.get(each.key)) for each in budgets))
    return found


def _in(namespace: str, path: str) -> str:
    """Return the path of a list, narrowed to a namespace if one is named."""
    return path.replace("/v1/", f"/v1/namespaces/{namespace}/") if namespace else path


def _reports(cards: Iterable[Json]) -> list[CardReport]:
    with uncollected():
        return [report_of_stored(stored_card(item)) for item in cards]


def _waiting_pods(pods: Iterable[Json]) -> Counter[str]:
    """Return how many of these pods, which have no node, wait for cards in each namespace."""
    return Counter(str(pod["metadata"]["namespace"]) for pod in pods if asks_for_cards(pod))


def asks_for_cards(pod: Json) -> bool:
    """Return whether a pod uses a known word, or the operator has written that it waits."""
    return any(name in WORDS.by_name for name in resources_asked(pod)) or condition_of(pod, ALLOCATED) is not None


PAUSE_S = 5.0
"""Between two readings: each is of all cards, and of the pods concerned."""


def watch_teams(read: Callable[[], Teams], terminal: Terminal, output: str) -> None:
    """Show a view until a signal comes. Raises SystemExit then, and what the first reading raises.

    On a terminal one picture that changes; anywhere else it is printed again when it has changed.
    """
    teams = read()
    if sys.stdout.isatty() and output in ("table", "wide"):
        with Screen(sys.stdout) as screen:
            _draw(screen, read, teams, terminal, output == "wide")
    _append(read, teams, terminal, output)


def _draw(screen: Screen, read: Callable[[], Teams], teams: Teams, terminal: Terminal, wide: bool) -> None:
    trouble = ""
    while True:
        size = shutil.get_terminal_size()
        shown = replace(terminal, width=size.columns)
        head = f"gpuledger top --by {teams.by}  {utc_now().astimezone():%H:%M:%S}"
        notes = [*([f"no news: {trouble}"] if trouble else []), *teams.notes]
        lines = [head, *(shown.paint(note[: size.columns], "yellow") for note in notes), "", *teams.table(shown, wide)]
        screen.show(lines[: size.lines])
        time.sleep(PAUSE_S)
        teams, trouble = _again(read, teams)


def _append(read: Callable[[], Teams], teams: Teams, terminal: Terminal, output: str) -> None:
    before: list[str] = []
    told = ""
    while True:
        lines = _lines(teams, terminal, output)
        if lines != before:
            write(lines)
            before = lines
        time.sleep(PAUSE_S)
        teams, trouble = _again(read, teams)
        if trouble and trouble != told:
            sys.stderr.write(f"no news: {trouble}\n")
        told = trouble


def _again(read: Callable[[], Teams], teams: Teams) -> tuple[Teams, str]:
    """Return a new reading; the one before, and what is wrong, while there is none."""
    try:
        return read(), ""
    except Unreachable as error:
        return teams, " ".join(str(error).split())


def _lines(teams: Teams, terminal: Terminal, output: str) -> list[str]:
    """Return the table, or the data as one line of JSON or one YAML document."""
    if output in ("table", "wide"):
        return teams.table(terminal, output == "wide")
    if output == "json":
        import orjson

        return [orjson.dumps(teams.json()).decode()]
    import yaml

    return ["---", *yaml.safe_dump(teams.json(), sort_keys=False).splitlines()]
