"""Traces of a GPU cluster: nodes and pods from CSV files, in the format of Alibaba's cluster-trace-gpu-v2023.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023; github.com/alibaba/clusterdata, cluster-trace-gpu-v2023. An amount of GPU is in thousandths of a card.

kube-scheduler asks the operator only about nodes that have a pod's CPU and memory. To list these for every pod would be
a walk over all nodes; a placement looks at few of them, so the set answers when it is asked.

A trace's cluster is a ledger, and the placement is the operator's own. A card has 1000 MiB, so that thousandths of a
card are MiB of it. CPU and memory of the nodes are kube-scheduler's to check: it shows the operator only nodes that
have them, and so does `HostRoom` here.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat
from gpuledger.model.card import ALL_CORES, Amounts, Card, CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import ANY_NVIDIA, Demand, HostAmounts, PodRequest
from gpuledger.model.share import Placement, StoredCard
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Asking
from gpuledger.placement.policy import Policy
from gpuledger.what_if.gangs import hold_all
from replay.mix import History, expected_mix
from replay.yardsticks import WITH_YARDSTICKS

CARD_MILLI = 1000
"""A whole card."""

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIME_COLUMNS = ("creation_time", "deletion_time")
GANG_COLUMN = "gang"
"""Optional: pods with the same name there start together, or none of them does."""

LARGEST = 1 << 40
"""Of any amount or time: more is a mistake."""

MOST_CARDS = 1024
"""Of one node or pod."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node with equal cards."""

    name: str
    host: HostAmounts
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class PodKind:
    """What a pod asks for. Thousands of pods are of a few kinds."""

    host: HostAmounts
    cards: int
    milli: int
    """Of each card; 1000 is the whole card, and no other pod on it."""
    models: tuple[str, ...] = ()
    """Models that will do; none named: all of them."""

    @property
    def asked_milli(self) -> int:
        """Return what it asks for in all."""
        return self.cards * self.milli


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, with the time of its life in seconds, both 0 if these do not matter."""

    name: str
    kind: PodKind
    created_s: int = 0
    deleted_s: int = 0
    gang: str = ""
    """The pods that start together name the same; empty: it starts by itself."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster, and the pods that came to it."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity_milli(self) -> int:
        """Return what all cards have."""
        return sum(node.cards for node in self.nodes) * CARD_MILLI

    @property
    def has_gangs(self) -> bool:
        """Return whether some pods start together."""
        return any(pod.gang for pod in self.pods)


def together(pods: Iterable[TracePod]) -> list[tuple[TracePod, ...]]:
    """Return the pods as they start: those of a gang together, in the place of the first of them."""
    found: dict[object, list[TracePod]] = {}
    for place, pod in enumerate(pods):
        found.setdefault(pod.gang or place, []).append(pod)
    return [tuple(each) for each in found.values()]


def in_gangs(trace: Trace, size: int) -> Trace:
    """Return a trace in which pods that ask for whole cards start in gangs of this size, as workers of a training do.

    A gang is of pods that ask for the same, the next ones in the order in which they came. They come when the first of
    them came, and each runs as long as it did. Those that are left over, too few for another gang, come by themselves.
    Raises BadInput if there is no gang.
    """
    alike: dict[PodKind, list[int]] = {}  # kind -> places of its pods, the oldest first
    for place, _ in sorted(enumerate(trace.pods), key=lambda each: each[1].created_s):
        kind = trace.pods[place].kind
        if kind.cards and kind.milli == CARD_MILLI:
            alike.setdefault(kind, []).append(place)
    pods = list(trace.pods)
    for places in alike.values():
        for start in range(0, len(places) - size + 1, size):
            first = trace.pods[places[start]]
            for place in places[start : start + size]:
                pod = trace.pods[place]
                runs_s = pod.deleted_s - pod.created_s
                pods[place] = replace(
                    pod, created_s=first.created_s, deleted_s=first.created_s + runs_s, gang=first.name
                )
    if size > 1 and not any(pod.gang for pod in pods):
        raise BadInput(f"the trace has no {size} pods that ask for the same whole cards: no gang of {size} can be made")
    return Trace(trace.nodes, tuple(pods))


def read_trace(nodes_file: Path, pods_file: Path, with_times: bool = False) -> Trace:
    """Read both files. Raises BadInput with file, line, column and what to write."""
    nodes = tuple(_nodes(nodes_file))
    if not any(node.cards for node in nodes):
        raise BadInput(f"{nodes_file} has no node with a GPU: column gpu is its number of cards")
    pods = tuple(_pods(pods_file, with_times))
    if not any(pod.kind.asked_milli for pod in pods):
        raise BadInput(f"{pods_file} has no pod that asks for a GPU: column num_gpu is its number of cards")
    return Trace(nodes, pods)


def _with_ends(pods: Sequence[TracePod], unended: set[int]) -> Iterator[TracePod]:
    """Yield the pods; those at these places, of which the trace does not say when they end, run until its last time."""
    last_s = max((max(pod.created_s, pod.deleted_s) for pod in pods), default=0)
    for place, pod in enumerate(pods):
        yield replace(pod, deleted_s=last_s) if place in unended else pod


def _nodes(file: Path) -> Iterator[TraceNode]:
    names: set[str] = set()
    for row in _rows(file, NODE_COLUMNS):
        name = row.text("sn")
        if name in names:
            raise row.wrong("sn", f"there is a node {name!r} already; each node has a line of its own")
        names.add(name)
        yield TraceNode(name, row.host(), row.number("gpu", 0, MOST_CARDS), row.cells["model"].strip())


def _pods(file: Path, with_times: bool) -> Iterator[TracePod]:
    pods: list[TracePod] = []
    unended: set[int] = set()
    kinds: dict[PodKind, PodKind] = {}  # equal kinds become one object
    for row in _rows(file, (*POD_COLUMNS, *(TIME_COLUMNS if with_times else ()))):
        cards = row.number("num_gpu", 0, MOST_CARDS)
        milli = row.number("gpu_milli", 1, CARD_MILLI) if cards else 0
        models = tuple(dict.fromkeys(part.strip() for part in row.cells.get("gpu_spec", "").split("|")))
        kind = PodKind(row.host(), cards, milli, tuple(part for part in models if part) if cards else ())
        created = deleted = 0
        if with_times:
            created = deleted = row.number("creation_time", 0, LARGEST)
            if row.cells["deletion_time"].strip():
                deleted = row.number("deletion_time", 0, LARGEST)
            else:
                unended.add(len(pods))
            if deleted < created:
                raise row.wrong("deletion_time", f"{deleted} is before the pod's creation_time {created}")
        gang = row.cells.get(GANG_COLUMN, "").strip()
        pods.append(TracePod(row.text("name"), kinds.setdefault(kind, kind), created, deleted, gang))
    return _with_ends(pods, unended)


@dataclass(frozen=True, slots=True)
class _Row:
    file: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        text = self.cells[column].strip()
        if not text:
            raise self.wrong(column, "it is empty; write a name")
        return text

    def number(self, column: str, least: int, most: int) -> int:
        text = self.cells[column].strip()
        try:
            value = float(text)  # some tools write 12000.0
        except ValueError:
            value = -1.0
        if not least <= value <= most or value != int(value):
            raise self.wrong(column, f"{text[:40]!r} is no whole number from {least} to {most}")
        return int(value)

    def host(self) -> HostAmounts:
        return HostAmounts(self.number("cpu_milli", 0, LARGEST), self.number("memory_mib", 0, LARGEST))

    def wrong(self, column: str, what: str) -> BadInput:
        return BadInput(f"{self.file}, line {self.line}, column {column}: {what}")


def _rows(file: Path, columns: Sequence[str]) -> Iterator[_Row]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise BadInput(
                    f"{file} lacks the column {missing[0]}: its first line must name {', '.join(columns)}, in any order"
                )
            for cells in reader:
                yield _row(file, reader.line_num, cells, columns)
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is no text in UTF-8: {error}") from None
    except csv.Error as error:
        raise BadInput(f"{file} is no CSV: {error}") from None
    except OSError as error:
        raise BadInput(f"{file} can't be read: {error.strerror}") from None


def _row(file: Path, line: int, cells: Mapping[str | None, str | None], columns: Sequence[str]) -> _Row:
    if None in cells:
        raise BadInput(f"{file}, line {line}: it has more cells than the first line has names")
    for column in columns:
        if cells[column] is None:
            raise BadInput(f"{file}, line {line}, column {column}: the line ends before it")
    return _Row(file, line, {str(column): cell or "" for column, cell in cells.items()})


class HostRoom(Container[str]):
    """The nodes that have the CPU and memory that was asked for last."""

    def __init__(self, hosts: Mapping[str, HostAmounts]) -> None:
        # node name -> free CPU in thousandths, free memory in MiB: plain numbers, for this is the inner loop
        self.free = {name: [host.cpu_milli, host.memory_mib] for name, host in hosts.items()}
        self._cpu_milli = self._memory_mib = 0

    def __contains__(self, name: object) -> bool:
        cpu_milli, memory_mib = self.free[name]  # type: ignore[index]
        return cpu_milli >= self._cpu_milli and memory_mib >= self._memory_mib

    def asked(self, amounts: HostAmounts) -> HostRoom:
        """Return itself, as the set of the nodes that have these amounts."""
        self._cpu_milli, self._memory_mib = amounts.cpu_milli, amounts.memory_mib
        return self

    def has(self, name: str, amounts: HostAmounts) -> bool:
        """Return whether a node has these amounts."""
        cpu_milli, memory_mib = self.free[name]
        return cpu_milli >= amounts.cpu_milli and memory_mib >= amounts.memory_mib

    def change(self, name: str, amounts: HostAmounts, sign: int) -> None:
        """Give amounts back to a node, or take them with a negative sign."""
        free = self.free[name]
        free[0] += sign * amounts.cpu_milli
        free[1] += sign * amounts.memory_mib

    def only(self, names: Collection[str]) -> HostRoom:
        """Return the same room on some of the nodes."""
        return _Some(self, names)

    def recorded(self, amounts: HostAmounts) -> Lacking:
        """Return an empty set of nodes, which notes what the nodes lack that are looked for in it."""
        return Lacking(self, amounts)


class _Some(HostRoom):
    def __init__(self, all_hosts: HostRoom, names: Collection[str]) -> None:
        super().__init__({})
        self.free = all_hosts.free
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names and super().__contains__(name)


class Lacking(Container[str]):
    """No node; `lacks` says what those lack that were looked for: cpu, memory, cpu-and-memory."""

    def __init__(self, hosts: HostRoom, amounts: HostAmounts) -> None:
        self._hosts = hosts
        self._amounts = amounts
        self.lacks: set[str] = set()

    def __contains__(self, name: object) -> bool:
        cpu_milli, memory_mib = self._hosts.free[name]  # type: ignore[index]
        short = [cpu_milli < self._amounts.cpu_milli, memory_mib < self._amounts.memory_mib]
        if any(short):
            self.lacks.add("cpu-and-memory" if all(short) else "cpu" if short[0] else "memory")
        return False


SLOTS = CARD_MILLI
"""Of a card: a share can be as small as a thousandth."""


class Why(StrEnum):
    """Why a pod found no place: what alone would have let it in, the first that applies."""

    HOST_CPU = "host-cpu"
    """There are cards for it on nodes with too little CPU."""
    HOST_CPU_AND_MEMORY = "host-cpu-and-memory"
    """There are cards for it on nodes that lack both."""
    HOST_MEMORY = "host-memory"
    """There are cards for it on nodes with too little memory."""
    OTHER_MODELS = "other-models"
    """There is room on cards of models that it does not allow."""
    TOO_FEW_CARDS = "too-few-cards"
    """No node of the cluster has as many cards."""
    NO_WHOLE_CARD = "no-whole-card"
    """No node with its CPU and memory has as many cards entirely free."""
    NO_SHARE = "no-share"
    """No card, on nodes with its CPU and memory, has that much free."""
    NOT_ALL_AT_ONCE = "not-all-at-once"
    """There is room for some members of its gang, and not for all of them together."""


class TraceCluster:
    """Nodes with their cards in a ledger, the pods that are placed there, and who chooses.

    `pods` says how many of each kind the trace has.
    """

    def __init__(
        self, nodes: Sequence[TraceNode], pods: Mapping[PodKind, int], policy: Policy, history: History
    ) -> None:
        self.hosts = HostRoom({node.name: node.host for node in nodes})
        self.capacity_milli = sum(node.cards for node in nodes) * CARD_MILLI
        self.allocated_milli = 0
        self.free_milli = [[CARD_MILLI] * node.cards for node in nodes]
        """What is left on each node's cards, in the order of the nodes."""
        self._ledger = _ledger_of(nodes)
        self._requests = {kind: request_of(kind) for kind in pods}
        mix = expected_mix({self._requests[kind]: count for kind, count in pods.items()}, history)
        self._chooser = Chooser(self._ledger, policy, mix, len(pods) * len(nodes), WITH_YARDSTICKS)
        self._row_of = {node.name: row for row, node in enumerate(nodes)}
        self._index_of = {_uuid(node.name, index): index for node in nodes for index in range(node.cards)}
        self._largest_node = max(node.cards for node in nodes)
        self._placed: dict[str, tuple[PodKind, Placement]] = {}  # pod -> what it is and where

    def arrived(self, kind: PodKind) -> None:
        """Tell the policy that a new pod has come."""
        self._chooser.arrived(self._requests[kind])

    def place(self, pod: str, kind: PodKind, only: HostRoom | None = None) -> Placement | None:
        """Place a pod on one of the nodes that have its CPU and memory; None if it fits nowhere."""
        hosts = only or self.hosts
        placement = self._chooser.best(self._requests[kind], hosts.asked(kind.host))
        while self._chooser.look_further():
            pass  # the operator does this between its questions
        if placement is not None:
            self._ledger.seats.take(Seat(pod, placement, FOREVER))
            self._take(pod, kind, placement)
        return placement

    def place_all(self, pods: Mapping[str, PodKind]) -> bool:
        """Place the pods of a gang as the operator does, all or none; return whether they are placed."""
        seats = [Asking(pod, self._requests[kind]) for pod, kind in pods.items()]
        if hold_all(self._ledger, self._chooser, seats) < len(seats):
            return False
        for pod, kind in pods.items():
            hold = self._ledger.seats.of(pod)
            if hold is not None:
                self._take(pod, kind, hold.placement)
        return True

    def _take(self, pod: str, kind: PodKind, placement: Placement) -> None:
        self._placed[pod] = (kind, placement)
        self._count(kind, placement, +1)
        self._chooser.given_out(kind.asked_milli / CARD_MILLI)

    def remove(self, pod: str) -> str:
        """Take a placed pod off its cards; return its node's name."""
        kind, placement = self._placed.pop(pod)
        self._ledger.seats.give_up(pod)
        self._count(kind, placement, -1)
        self._chooser.given_back(kind.asked_milli / CARD_MILLI)
        return placement.node_name

    def why_not(self, kind: PodKind) -> Why:
        """Return why a pod of a kind that fits nowhere does not: what would have to be different for it."""
        if kind.cards > self._largest_node:
            return Why.TOO_FEW_CARDS
        short = self.hosts.recorded(kind.host)
        self._chooser.best(self._requests[kind], short)
        if short.lacks:
            return Why(f"host-{min(short.lacks)}")
        any_model = request_of(PodKind(kind.host, kind.cards, kind.milli))
        if kind.models and self._chooser.best(any_model, self.hosts.asked(kind.host)):
            return Why.OTHER_MODELS
        return Why.NO_WHOLE_CARD if kind.milli == CARD_MILLI else Why.NO_SHARE

    def why_not_all(self, kinds: Iterable[PodKind]) -> Why:
        """Return why a gang finds no place: what one of its members lacks by itself, if one finds none."""
        for kind in dict.fromkeys(kinds):
            if self._chooser.best(self._requests[kind], self.hosts.asked(kind.host)) is None:
                return self.why_not(kind)
        return Why.NOT_ALL_AT_ONCE

    def could_take(self, kind: PodKind, node_name: str) -> bool:
        """Return whether a node has a pod's CPU, memory and cards, models apart: quicker than a placement."""
        if not self.hosts.has(node_name, kind.host):
            return False
        free = self.free_milli[self._row_of[node_name]]
        return sum(milli >= kind.milli for milli in free) >= kind.cards

    def _count(self, kind: PodKind, placement: Placement, sign: int) -> None:
        self.hosts.change(placement.node_name, kind.host, -sign)
        self.allocated_milli += sign * kind.asked_milli
        free = self.free_milli[self._row_of[placement.node_name]]
        for share in placement.shares:
            free[self._index_of[share.uuid]] -= sign * share.amounts.memory_mib


def request_of(kind: PodKind) -> PodRequest:
    """Return what a pod of a kind asks for, as the operator would read it."""
    if not kind.cards:
        return PodRequest((), (), host=kind.host)
    wanted = CardFilter(use_models=tuple(map(_marked, kind.models))) if kind.models else ANY_NVIDIA
    whole = kind.milli == CARD_MILLI
    demand = Demand(kind.cards, None if whole else kind.milli, exclusive=whole, wanted=wanted)
    return PodRequest(("main",), (demand,), host=kind.host)


def _ledger_of(nodes: Iterable[TraceNode]) -> Ledger:
    ledger = Ledger()
    for node in nodes:
        ledger.hosts.set_capacity(node.name, node.host)
        ledger.set_offer(node.name, NodeOffer())
        for index in range(node.cards):
            capacity = Amounts(CARD_MILLI, ALL_CORES, SLOTS)
            card = Card(_uuid(node.name, index), node.name, index, capacity, model=_marked(node.model))
            ledger.load(StoredCard(card, 1, (), "Ready"))
    return ledger


def _uuid(node_name: str, index: int) -> str:
    return f"GPU-{node_name}-{index}"


def _marked(model: str) -> str:
    """Return a model's name with its ends: names are compared as parts, and V100 is a part of V100M16."""
    return f"<{model}>"
