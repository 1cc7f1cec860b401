"""The cases, each on a site that it leaves as it was. Who is compared takes turns, round by round."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmark.claims import CASE, PODS_PER_CARD, SUBJECTS, measure_claims, prepare
from benchmark.direct_writes import DirectWriter
from benchmark.gangs import SIZES, OrderWatch, in_gangs
from benchmark.machine import cpu_s, memory_mib
from benchmark.measuring import Figures, costs, cpu_times, look, measure, times
from benchmark.onlookers import WAITING_POD, onlookers
from benchmark.progress import Story
from benchmark.results import Row, medians
from benchmark.shapes import CARDS_PER_NODE, FILLED, OURS, QUARTER, SHAPES, Shape, burst, pod, whole
from benchmark.site import PATIENCE_S, Site
from benchmark.slow_writes import measure_slow_writes
from benchmark.table import BASES, GANGS
from benchmark.watching import PodWatch

TURNS = (*BASES, OURS)
LOOKED_AT = "gpuledger, looked at"
PACE_PER_S, PACED_S = 100.0, 15
PENDING_PODS = 500
MOST_TOGETHER = 4
"""Pods of a quarter card that share it."""

START_UP_HOLDERS_PER_NODE = 4
"""20,000 on 5,000 nodes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    pods: int
    rounds: int


class Cases:
    """All cases on one site."""

    def __init__(self, site: Site, effort: Effort, story: Story, rows: list[Row]) -> None:
        self._site, self._effort, self._story, self._rows = site, effort, story, rows
        self._nodes = len(site.nodes)

    async def first_start(self) -> None:
        """Start the operator on an empty ledger."""
        site, before = self._site, look(self._site)
        seconds = await site.first_start()
        used_s = cpu_times(site)
        figures = {
            "seconds": seconds,
            "writes_per_card": len(site.plane.api_writes(before.audit_offset)) / site.cards,
            "operator_cpu_ms_per_card": 1000 * used_s["operator"] / site.cards,
            "api_server_cpu_ms_per_card": 1000 * (used_s["api_server"] - before.cpu_s["api_server"]) / site.cards,
        }
        self._keep("first-start", "gpuledger", 0, figures)

    # With a scheduler.

    async def shape(self, shape: Shape) -> None:
        """Schedule pods as fast as it goes."""
        count = shape.pods_for(self._nodes, self._effort.pods)
        for number in range(self._effort.rounds):
            for subject in TURNS:
                self._tell(f"{count} pods, {shape.name}", subject, number)
                await self._site.start_scheduler(subject)
                figures = await measure(self._site, burst(shape, count, subject))
                if subject == "gpuledger":
                    figures |= await self._release(count)
                else:
                    await self._site.delete_pods()
                self._keep(shape.name, subject, number, figures)

    async def paced(self) -> None:
        """Schedule a steady stream of pods."""
        shape = SHAPES["quarter-card"]
        count = shape.pods_for(self._nodes, int(PACE_PER_S * PACED_S))
        for number in range(self._effort.rounds):
            for subject in ("plain", OURS):
                self._tell(f"{PACE_PER_S:g} pods/s", subject, number)
                await self._site.start_scheduler(subject)
                figures = await measure(self._site, burst(shape, count, subject), per_s=PACE_PER_S)
                await self._site.delete_pods()
                self._keep("paced", subject, number, figures)

    async def full_cluster(self) -> None:
        """Say no to pods, and say yes to as many on an empty cluster."""
        site = self._site
        fillers = [pod(f"filler-{n}", "gpuledger", whole(8), "filler") for n in range(self._nodes)]
        pods = [pod(f"pod-{n}", "gpuledger", QUARTER) for n in range(PENDING_PODS)]
        fitting = pods[: SHAPES["quarter-card"].pods_for(self._nodes, PENDING_PODS)]
        for number in range(self._effort.rounds):
            await site.start_scheduler("gpuledger")
            self._tell(f"{len(fitting)} pods, empty cluster", "gpuledger", number)
            self._keep("empty-cluster", "gpuledger", number, await measure(site, fitting))
            await site.delete_pods()
            self._tell(f"{len(pods)} pods, full cluster", "gpuledger", number)
            await measure(site, fillers)
            self._keep("full-cluster", "gpuledger", number, await measure(site, pods, refused=True))
            await site.delete_pods("measured")
            await site.delete_pods()

    async def looked_at(self) -> None:
        """Schedule pods while nobody looks, and while a page is open, metrics are read and somebody asks why."""
        shape, site = SHAPES["quarter-card"], self._site
        count = shape.pods_for(self._nodes, self._effort.pods)
        await site.start_scheduler(OURS)
        waits = pod(WAITING_POD.partition("/")[2], OURS, whole(CARDS_PER_NODE + 1), "onlooked")
        for number in range(self._effort.rounds):
            for subject in (OURS, LOOKED_AT):
                self._tell(f"{count} pods", subject, number)
                await site.create(waits)
                async with AsyncExitStack() as looking:
                    answers: dict[str, int] = {}
                    if subject == LOOKED_AT:
                        urls = site.installation.view_url, site.installation.health_url
                        answers = await looking.enter_async_context(onlookers(*urls))
                    figures = await measure(site, burst(shape, count, OURS))
                    figures |= {name: float(number) for name, number in answers.items()}
                await site.delete_pods()
                self._keep("looked-at", subject, number, figures)

    async def gangs(self, case: str) -> None:
        """Schedule pods in gangs, and the same pods without, in turns."""
        shape, size, site = SHAPES["whole-card"], SIZES[case], self._site
        count = max(1, shape.pods_for(self._nodes, self._effort.pods) // size) * size
        await site.start_scheduler(OURS)
        for number in range(self._effort.rounds):
            for subject in (OURS, GANGS):
                self._tell(f"{count} pods, {case}", subject, number)
                gangs = subject == GANGS
                bodies = in_gangs(shape, count, OURS, size, number) if gangs else burst(shape, count, OURS)
                async with OrderWatch(site.admin) as watch:
                    figures = await measure(site, bodies)
                    await watch.until_seen(count)
                if gangs:
                    figures["early_bindings"] = float(watch.early_bindings(size))
                await site.delete_pods()
                self._keep(case, subject, number, figures)

    async def claims(self) -> None:
        """Schedule pods in classic words, the same with claims, and with claims that kube-scheduler allocates."""
        count = max(1, min(self._effort.pods, int(FILLED * self._site.cards * PODS_PER_CARD)))
        await prepare(self._site)
        for number in range(self._effort.rounds):
            for subject in SUBJECTS:
                self._tell(f"{count} pods, {CASE}", subject, number)
                self._keep(CASE, subject, number, await measure_claims(self._site, subject, count))

    async def slow_writes(self) -> None:
        """Place pods on a nearly full cluster whose API server is slow. Ends operator and scheduler."""
        self._tell("nearly full, every write slow", "gpuledger", 0)
        self._keep("slow-writes", "gpuledger", 0, await measure_slow_writes(self._site))

    # Without one.

    async def floor(self, shape: Shape) -> None:
        """Send the requests that the pods of a shape take, and nothing else. The operator must not run.

        As many pods share a write of their card as did with gpuledger in this run.
        """
        count = shape.pods_for(self._nodes, self._effort.pods)
        together = self._pods_per_ledger_write(shape)
        for number in range(self._effort.rounds):
            self._tell(f"{count} pods, {shape.name}", "floor", number)
            writer = DirectWriter(self._site)
            await writer.read()
            bodies = burst(shape, count, "floor")
            planned = writer.plan(bodies)
            before = look(self._site)
            async with PodWatch(self._site.admin, bodies) as watch:
                begin_s = time.monotonic()
                await writer.write(planned, together)
                await watch.wait(watch.bound, PATIENCE_S)
            figures = times(begin_s, writer.created, watch.bound, bodies) | costs(self._site, before, count)
            await writer.clear()
            await self._site.delete_pods()
            self._keep(shape.name, "floor", number, figures)

    async def start_up(self) -> None:
        """Start the operator on a ledger full of holders. It must not run before; the holders stay."""
        count, site = START_UP_HOLDERS_PER_NODE * self._nodes, self._site
        self._tell(f"start-up with {count} holders", "gpuledger", 0)
        writer = DirectWriter(site)
        await writer.read()
        bodies = [pod(f"holder-{n}", "gpuledger", QUARTER) for n in range(count)]
        await writer.write(writer.plan(bodies), 4)
        offset = site.plane.audit_offset()
        seconds = await site.start_operator()
        operator = site.operator
        assert operator is not None
        figures: Figures = {
            "pods": count,
            "seconds": seconds,
            "ready_rss_mib": memory_mib(operator.pid)[0],
            "ready_cpu_s": cpu_s(operator.pid),
        }
        await site.quiet()
        figures["operator_rss_mib"], figures["operator_peak_mib"] = memory_mib(operator.pid)
        figures["writes"] = len(
            [e for e in site.plane.api_writes(offset) if e.resource != "leases" and "gpuledger" in e.user]
        )
        self._keep("start-up", "gpuledger", 0, figures)

    # Inside.

    async def _release(self, pods: int) -> Figures:
        """Delete all pods; return what giving their shares back took."""
        before = look(self._site)
        await self._site.delete_pods()
        await self._site.quiet()
        after = costs(self._site, before, pods)
        names = ("ledger_writes_per_pod", "operator_cpu_ms_per_pod")
        return {f"release_{name}": after[name] for name in names}

    def _pods_per_ledger_write(self, shape: Shape) -> int:
        measured = medians(self._rows).get((shape.name, self._nodes, "gpuledger"))
        if not measured:
            return 1
        return min(MOST_TOGETHER, max(1, round(shape.shares_per_pod / measured["ledger_writes_per_pod"])))

    def _keep(self, case: str, subject: str, number: int, figures: Figures) -> None:
        rounded = {name: round(value, 5) for name, value in figures.items()}
        self._rows.append(Row(case, self._nodes, subject, number, rounded))

    def _tell(self, what: str, subject: str, number: int) -> None:
        self._story.step(f"{self._nodes} nodes: {subject}, {what}, round {number + 1} of {self._effort.rounds}")
