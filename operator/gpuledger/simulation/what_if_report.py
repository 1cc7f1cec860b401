"""Where pods would go, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuledger.reports.tables import NARROW_GAP, Cell, Column, Terminal, table
from gpuledger.simulation.object_cluster import PodOutcome, PodStatus
from gpuledger.simulation.what_if import Answer, Placed

Json = dict[str, Any]

NO_GPU = "asks for no GPU: kube-scheduler places it"


def as_json(answer: Answer) -> Json:
    """Return the answer for scripts: fields may be added, and none goes."""
    return {
        "pods": [_pod(placed) for placed in answer.pods],
        "fit": answer.fit,
        "noRoom": answer.waiting,
        "addedNodes": list(answer.added),
        **({} if answer.fit_before is None else {"fitWithoutAddedNodes": answer.fit_before}),
        "problems": [{"file": each.file, "object": each.object, "problem": each.text} for each in answer.problems],
        "notes": list(answer.notes),
    }


def as_lines(answer: Answer, terminal: Terminal) -> Iterator[str]:
    """Yield the table, the reasons of those that found no room, and a line that sums up."""
    if answer.pods:
        yield from _table(answer, terminal)
    for placed in answer.pods:
        if placed.outcome.status is PodStatus.NO_ROOM:
            yield ""
            yield from terminal.folded(f"{placed.outcome.pod} finds no room:")
            for (reason, text), count in _ranked(placed.outcome.reasons):
                yield from terminal.folded(f"  {count} node{'s' * (count != 1)}: {text} ({reason})")
    yield ""
    yield from terminal.folded(_summary(answer))


def _pod(placed: Placed) -> Json:
    outcome = placed.outcome
    return {
        "pod": outcome.pod,
        "status": outcome.status.value,
        "node": outcome.node_name or None,
        "onAddedNode": placed.on_added_node,
        "containers": {
            name: [
                {"uuid": uuid, "index": placed.indexes[uuid], "memoryMiB": memory_mib, "cores": cores}
                for uuid, memory_mib, cores in cards
            ]
            for name, cards in _devices(outcome).items()
        },
        "reasons": [
            {"reason": reason, "text": text, "nodes": count} for (reason, text), count in _ranked(outcome.reasons)
        ],
    }


def _devices(outcome: PodOutcome) -> dict[str, list[tuple[str, int, int]]]:
    """Return the cards of each container: UUID, memory and cores, in the order of the cards' index."""
    devices: dict[str, list[tuple[str, int, int]]] = {}
    for share in outcome.shares:
        for container in share.containers:
            devices.setdefault(container.name, []).append((share.uuid, container.memory_mib, container.cores))
    return devices


def _ranked(reasons: Mapping[tuple[str, str], int]) -> list[tuple[tuple[str, str], int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def _table(answer: Answer, terminal: Terminal) -> list[str]:
    titles = ("POD", "NODE", "CONTAINER", "GPU", "UUID", "MIB", "CORES")
    columns = [Column(title, right=title in ("GPU", "MIB", "CORES"), fold=True) for title in titles]
    rows: list[tuple[Cell, ...]] = []
    for placed in answer.pods:
        first: tuple[Cell, ...] = (placed.outcome.pod, _node(placed))
        for name, cards in _devices(placed.outcome).items():
            for uuid, memory_mib, cores in cards:
                row = (name, str(placed.indexes[uuid]), uuid, str(memory_mib), str(cores) if cores else "")
                rows.append((*first, *row))
                first, name = ("", ""), ""
        if not placed.outcome.shares:
            there = placed.outcome.status in (PodStatus.PLACED, PodStatus.BOUND)
            rows.append((*first, "", "", "chosen by the node's own plugin" if there else "", "", ""))
    return table(terminal, columns, rows, gap=NARROW_GAP)


def _node(placed: Placed) -> Cell:
    match placed.outcome.status:
        case PodStatus.NO_ROOM:
            return (("no room", "red"),)
        case PodStatus.NO_GPU:
            return ((NO_GPU, "dim"),)
        case PodStatus.BOUND:
            return f"{placed.outcome.node_name} (bound)"
    return ((placed.outcome.node_name, "green"),)


def _summary(answer: Answer) -> str:
    asked = answer.fit + answer.waiting
    if not asked:
        return "No pod here waits for a GPU."
    if answer.fit_before is None:
        return f"{answer.fit} of {asked} pods fit."
    nodes = "1 more node" if len(answer.added) == 1 else f"{len(answer.added)} more nodes"
    return f"{answer.fit_before} of {asked} pods fit now, {answer.fit} with {nodes} like {answer.like}."
