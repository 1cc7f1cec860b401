"""Traces of a GPU cluster: nodes and pods from CSV files, in the format of Alibaba's cluster-trace-gpu-v2023.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023; github.com/alibaba/clusterdata, cluster-trace-gpu-v2023. An amount of GPU is in thousandths of a card.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuledger.model.errors import BadInput
from gpuledger.model.request import HostAmounts

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
