"""Filter by itself: the operator's own code in this process, with no API server, scheduler, or HTTP.

A question is what kube-scheduler sends, JSON that names every node; the time is from its bytes to those of the answer.
Between two questions the ledger changes as it would: what was placed is stored, and an old pod ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.table import Table

from benchmark.sampling import Samples
from benchmark.shapes import CARDS_PER_NODE, QUARTER, SHAPES, Limits, cards_of, pod, whole
from benchmark.table import wide_console
from fakes.api_server import ApiServer
from fakes.operator_parts import OperatorParts
from gpuledger.agent.simulated import fake_nodes
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.scheduler import filter_answer, filter_arguments
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import HostAmounts
from gpuledger.model.share import Holder, Pod, StoredCard
from gpuledger.placement.policy import Preference
from gpuledger.workflows.system_clock import SystemClock

FULL = 0.7
"""Share of the cards that is taken while Filters are measured."""

PROFILE_ROWS = 12
HOST = HostAmounts(cpu_milli=128_000, memory_mib=1_000_000)
SERVED = NodeOffer(resources=frozenset({"nvidia.com/gpu"}))
READY = "Ready"
NEW, NEW_SHAPES = "first of its shape", 10
REFUSED = "refused"

Json = dict[str, Any]
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many nodes, one after the other, questions at each size, and by which policy they are answered."""

    nodes: Sequence[int]
    filters: int
    policy: Preference


@dataclass
class Ledger:
    """An operator's memory, and the pods in it."""

    nodes: int
    samples: Samples
    policy: Preference
    namespaces: Sequence[str] = ("default",)
    """Of which the pods are, one after the other."""
    times_ms: list[tuple[float, float]] = field(default_factory=list)
    parts: OperatorParts = field(init=False)
    pods: deque[str] = field(default_factory=deque)
    """UIDs of the pods that have cards, oldest first."""
    _number: int = 0
    _version: int = 1

    def __post_init__(self) -> None:
        self.parts = OperatorParts(ApiServer(), policy=self.policy, clock=SystemClock())
        listed = fake_nodes("bench", self.nodes, CARDS_PER_NODE, "A100-40GB")
        self.names = [node.name for node in listed]
        for node in listed:
            self.parts.ledger.set_offer(node.name, SERVED)
            self.parts.ledger.hosts.set_capacity(node.name, HOST)
            for card in node.cards:
                self.parts.ledger.load(StoredCard(card, 1, (), READY))

    def _come(self, limits: Limits) -> tuple[Json, bytes]:
        """Show a new pod to the operator's watch; return it, and what kube-scheduler asks about it."""
        self._number += 1
        uid = f"00000000-0000-0000-0000-{self._number:012}"
        body = pod(f"pod-{self._number}", "gpuledger", limits)
        namespace = self.namespaces[self._number % len(self.namespaces)]
        body["metadata"] |= {"uid": uid, "resourceVersion": "1", "creationTimestamp": "2030-01-01T00:00:00Z"}
        body["metadata"]["namespace"] = namespace
        body["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        self.parts.learner.observe_pending(body)
        return body, orjson.dumps({"Pod": body, "Nodes": None, "NodeNames": self.names})

    def ask(self, limits: Limits, subject: str = "") -> Json:
        """Ask about a new pod; return it. What it took, of clock and CPU, is added to `times_ms`."""
        body, question = self._come(limits)
        with self.samples.of(subject and f"{self.nodes} nodes, {subject}"):
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            result = self.parts.placer.filter(filter_arguments(question))
            orjson.dumps(filter_answer(result.node_names, result.refused))
            cpu_s, wall_s = time.thread_time() - begin_cpu_s, time.perf_counter() - begin_s
        self.times_ms.append((1000 * wall_s, 1000 * cpu_s))
        return body

    def place(self, limits: Limits, subject: str = "") -> bool:
        """Ask about a new pod, and store it if it fits; return whether it does."""
        body = self.ask(limits, subject)
        uid = body["metadata"]["uid"]
        fits = self.parts.ledger.seats.of(uid) is not None
        if fits:
            self._store(pod_identity(body))
            self.parts.learner.observe_bound(body, bound_before=False)
        self.parts.workflows.context.chooser.look_further()  # as the operator does after each change of the room
        self.parts.placer.forget_pending(uid)
        self.parts.workflows.quotas.forget_pending(uid)
        return fits

    def _store(self, placed: Pod) -> None:
        """Take in that the API server has stored what is on hold for a pod."""
        hold = self.parts.ledger.seats.of(placed.uid)
        assert hold is not None
        for share in hold.placement.shares:
            self._change(share.uuid, placed.uid, Holder(placed, share, attempt="first"))
        self.pods.append(placed.uid)

    def fill(self) -> int:
        """Place pods of the mix until 70 % of the cards are taken; return how many. Which is oldest is chance then."""
        taken, position = 0.0, 0
        while taken < FULL * self.nodes * CARDS_PER_NODE:
            limits = SHAPES["mix"].limits(position)
            position, taken = position + 1, taken + cards_of(limits)
            self.place(limits)
        shuffled = list(self.pods)
        random.Random(1).shuffle(shuffled)  # noqa: S311 - no secret
        self.pods = deque(shuffled)
        return position

    def end_oldest(self) -> None:
        """Take in that the oldest pod has left its cards."""
        uid = self.pods.popleft()
        self.parts.learner.forget_bound(uid, None)
        for card, _ in self.parts.ledger.holders.of(uid):
            self._change(card.uuid, uid, None)

    def _change(self, uuid: str, uid: str, holder: Holder | None) -> None:
        entry = self.parts.ledger.entry(uuid)
        assert entry is not None
        self._version += 1
        holders = {key: held for key, held in entry.holders.items() if key != uid}
        stored = (*holders.values(), holder) if holder else tuple(holders.values())
        self.parts.ledger.load(StoredCard(replace(entry.card), self._version, stored, READY))


async def measure_filters(sizes: Sizes, profile: Path | None, as_json: bool) -> None:
    """Measure at each size and print a table; profile all of it, if a file is given, which takes time itself."""
    samples, rows = Samples(), []
    with samples.taken() if profile else contextlib.nullcontext():
        for nodes in sizes.nodes:
            print(f"{nodes} nodes, {sizes.policy}: filling the ledger", file=sys.stderr)
            ledger = Ledger(nodes, samples, sizes.policy)
            rows += _measure(ledger, sizes.filters)
            await stop_what_was_started()
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        table = Table(box=box.SIMPLE_HEAD)
        for head in rows[0]:
            table.add_column(head, justify="left" if head in ("policy", "question") else "right")
        for row in rows:
            table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
        wide_console().print(table)
    if profile:
        samples.save(profile)
        for subject in samples.subjects():
            wide_console(stderr=as_json).print(samples.top(subject, PROFILE_ROWS))


async def stop_what_was_started() -> None:
    """Cancel what the operator's parts would do next: explain, preempt, nominate.

    Questions alone are measured, so none of it has had its turn. Nothing but its ledger refers to such a task.
    """
    started = asyncio.all_tasks() - {asyncio.current_task()}
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


def _measure(ledger: Ledger, filters: int) -> list[Row]:
    mix, position = SHAPES["mix"], ledger.fill()
    rows: list[Row] = []
    for name, limits_of in (("mix", mix.limits), ("quarter-card", lambda _: QUARTER)):
        with _observed(ledger, name, rows):
            for number in range(filters):
                ledger.place(limits_of(position + number), name)
                ledger.end_oldest()
    with _observed(ledger, NEW, rows):  # amounts that nobody has asked for before: each node is looked at
        for number in range(NEW_SHAPES):
            ledger.place({"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1000 + number)}, NEW)
    for limits in (whole(CARDS_PER_NODE), whole(1), QUARTER):
        while ledger.place(limits):
            pass
    with _observed(ledger, REFUSED, rows):
        for _ in range(filters):
            ledger.ask(QUARTER, REFUSED)
    return rows


@contextlib.contextmanager
def _observed(ledger: Ledger, question: str, rows: list[Row]) -> Iterator[None]:
    """Add a row on the questions that are asked meanwhile."""
    pauses_ms, begin_s, before = [0.0], 0.0, ledger.parts.chooser.evaluations

    def collected(phase: str, _: object) -> None:
        nonlocal begin_s
        if phase == "start":
            begin_s = time.perf_counter()
        else:
            pauses_ms.append(1000 * (time.perf_counter() - begin_s))

    ledger.times_ms.clear()
    gc.callbacks.append(collected)
    yield
    gc.callbacks.remove(collected)
    wall, cpu = (sorted(times) for times in zip(*ledger.times_ms, strict=True))
    rows.append(
        {
            "nodes": ledger.nodes,
            "policy": str(ledger.policy),
            "question": question,
            "asked": len(wall),
            "p50 ms": wall[len(wall) // 2],
            "p99 ms": wall[int(len(wall) * 0.99)],
            "max ms": wall[-1],
            "p99 CPU ms": cpu[int(len(cpu) * 0.99)],
            "longest GC ms": max(pauses_ms),
            "evaluations": (ledger.parts.chooser.evaluations - before) / len(wall),
        }
    )
