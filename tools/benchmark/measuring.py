"""One measurement: pods are created, and what comes of it is counted."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.machine import cpu_s, memory_mib
from benchmark.shapes import cards_of
from benchmark.site import PATIENCE_S, Json, Site, in_parallel
from benchmark.watching import PodWatch
from control_plane import AuditEvent
from installation import USER

Figures = dict[str, float]

FILTER_SECONDS = "gpuledger_filter_seconds"
FILTERS, EVALUATIONS = "gpuledger_filters_total", "gpuledger_shape_evaluations_total"
ATTEMPTS = "scheduler_schedule_attempts_total"


@dataclass(frozen=True, slots=True)
class Moment:
    """What has been counted up to now. A measurement is the difference of two."""

    metrics: Mapping[str, float]
    attempts: float
    cpu_s: Mapping[str, float]
    audit_offset: int


def look(site: Site) -> Moment:
    """Read all counters, CPU times last: to read the operator's metrics takes it as long as many pods."""
    scheduled = site.plane.metrics_of(site.scheduler.url) if site.scheduler and site.scheduler.url else {}
    return Moment(
        metrics=site.installation.metrics() if site.operator else {},
        attempts=sum(value for name, value in scheduled.items() if name.startswith(ATTEMPTS)),
        cpu_s=cpu_times(site),
        audit_offset=site.plane.audit_offset(),
    )


def cpu_times(site: Site) -> dict[str, float]:
    """Return the CPU time of each program up to now, in seconds."""
    programs = {"operator": site.operator, "scheduler": site.scheduler, "api_server": site.plane.api_server}
    used_s = {name: cpu_s(program.pid if program else None) for name, program in programs.items()}
    return used_s | {"bench": cpu_s(os.getpid())}


async def measure(site: Site, pods: Sequence[Json], refused: bool = False, per_s: float | None = None) -> Figures:
    """Create pods, wait until all are bound, or all are refused, and say what it took.

    They are created as fast as it goes, or so many per second, however long each one takes.
    """
    before = look(site)
    async with PodWatch(site.admin, pods) as watch:
        seen = watch.refused if refused else watch.bound
        begin_s = time.monotonic()
        created = await (_create(site, pods) if per_s is None else _create_paced(site, pods, per_s))
        await watch.wait(seen, PATIENCE_S)
    await site.quiet()
    return times(begin_s, created, seen, pods) | costs(site, before, len(pods))


def times(begin_s: float, created: Mapping[str, float], seen: Mapping[str, float], pods: Sequence[Json]) -> Figures:
    """Return how long it took."""
    seconds = max(seen[name] for name in created) - begin_s
    cards = sum(cards_of(body["spec"]["containers"][0]["resources"]["limits"]) for body in pods)
    latencies = sorted(seen[name] - created[name] for name in created)
    return {
        "pods": len(pods),
        "seconds": seconds,
        "pods_per_s": len(pods) / seconds,
        "cards_per_s": cards / seconds,
        "bound_p50_s": statistics.median(latencies),
        "bound_p99_s": latencies[int(len(latencies) * 0.99)],
    }


def costs(site: Site, before: Moment, pods: int) -> Figures:
    """Return what it took of API server, CPU and memory, by pod."""
    used_s = cpu_times(site)
    after = look(site)
    figures = _writes(site, before, pods)
    for name, value in used_s.items():
        figures[f"{name}_cpu_ms_per_pod"] = 1000 * (value - before.cpu_s[name]) / pods
    if site.scheduler:
        figures["attempts_per_pod"] = (after.attempts - before.attempts) / pods
    if site.operator:
        grown = {name: value - before.metrics.get(name, 0) for name, value in after.metrics.items()}
        if grown.get(FILTERS):
            figures["operator_rss_mib"], figures["operator_peak_mib"] = memory_mib(site.operator.pid)
            figures["filters_per_pod"] = grown[FILTERS] / pods
            figures["evaluations_per_filter"] = grown[EVALUATIONS] / grown[FILTERS]
            figures["filter_p50_ms"] = 1000 * quantile(grown, FILTER_SECONDS, 0.5)
            figures["filter_p99_ms"] = 1000 * quantile(grown, FILTER_SECONDS, 0.99)
    return figures


def _writes(site: Site, before: Moment, pods: int) -> Figures:
    counted = {"ledger": 0, "binding": 0, "other": 0, "scheduler": 0}
    for event in site.plane.api_writes(before.audit_offset):
        if event.user == USER:
            counted[_kind(event)] += 1
    return {f"{name}_writes_per_pod": number / pods for name, number in counted.items()}


def _kind(event: AuditEvent) -> str:
    """Sort a write of the account that both programs have. The scheduler's are Events and pods' conditions."""
    target = (event.resource, event.subresource)
    if target == ("pods", "binding"):
        return "binding"
    if target == ("gpuallocations", "status"):
        return "ledger"
    return "scheduler" if event.agent.startswith("kube-scheduler") else "other"


def quantile(grown: Mapping[str, float], histogram: str, share: float) -> float:
    """Return a quantile from a histogram's buckets, taken as evenly filled."""
    pattern = re.compile(re.escape(histogram) + r'_bucket\{le="([^"]+)"\}')
    found = ((pattern.fullmatch(name), value) for name, value in grown.items())
    buckets = sorted((float(match[1]), value) for match, value in found if match)
    wanted = share * buckets[-1][1]
    for (low, below), (high, upto) in itertools.pairwise([(0.0, 0.0), *buckets]):
        if upto >= wanted:
            return low if high == float("inf") else low + (high - low) * (wanted - below) / max(upto - below, 1)
    return buckets[-1][0]


async def _create(site: Site, pods: Sequence[Json]) -> dict[str, float]:
    """Create pods as fast as it goes; return when each was sent."""
    created: dict[str, float] = {}

    async def create(body: Json) -> None:
        created[body["metadata"]["name"]] = time.monotonic()
        await site.create(body)

    await in_parallel(create, pods)
    return created


async def _create_paced(site: Site, pods: Sequence[Json], per_s: float) -> dict[str, float]:
    """Create so many pods per second; return when each was due: who is late has to answer for it."""
    begin_s = time.monotonic()
    due = {body["metadata"]["name"]: begin_s + number / per_s for number, body in enumerate(pods)}
    async with asyncio.TaskGroup() as group:
        for body in pods:
            await asyncio.sleep(max(0.0, due[body["metadata"]["name"]] - time.monotonic()))
            group.create_task(site.create(body))
    return due
