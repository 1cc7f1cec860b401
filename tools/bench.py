"""Pods per second, in one run on one machine: kube-scheduler by itself, and with gpuledger.

    python tools/bench.py                      a table
    python tools/bench.py -o json              the same for scripts

Both schedule the same number of pods onto the same nodes; plain kube-scheduler schedules pods without GPUs, looking at
every node as gpuledger does. Absolute figures mean little, for everything shares the machine; the ratio is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from control_plane import ControlPlane
from gpuledger.agent.fake_nodes import fake_nodes, register_node
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import NotFound
from installation import NO_KUBELET, USER, Installation

IN_FLIGHT = 32
WATCH_SILENCE_S = 600.0
CLIENT_LIMITS = {"qps": 5000, "burst": 10000}
PLAIN_CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "clientConnection": CLIENT_LIMITS,
    "profiles": [{"schedulerName": "plain", "percentageOfNodesToScore": 100}],
}
SHAPES = {
    "quarter card": {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "25"},
    "whole card": {"nvidia.com/gpu": "1"},
    "8 cards": {"nvidia.com/gpu": "8"},
}
PODS_PER_CARD = {"quarter card": 4, "whole card": 1, "8 cards": 1 / 8}
CARDS_PER_NODE = 8

progress = Console(stderr=True)


@dataclass(frozen=True)
class Result:
    """One row: `pods` pods of a shape on `nodes` nodes."""

    scheduler: str
    shape: str
    nodes: int
    pods: int
    seconds: float
    latency_p50_s: float
    latency_p99_s: float
    ledger_writes_per_pod: float
    filter_ms: float

    @property
    def pods_per_s(self) -> float:
        """Throughput, from the first creation to the last binding."""
        return self.pods / self.seconds


class Bench:
    """One installation with its nodes, and what is measured on it."""

    def __init__(self, plane: ControlPlane, client: KubeClient, installation: Installation, nodes: int) -> None:
        self.plane, self.client, self.installation, self.nodes = plane, client, installation, nodes

    async def prepare(self) -> None:
        """Register the nodes and wait until every card is in the ledger."""
        progress.print(f"registering {self.nodes} nodes with {CARDS_PER_NODE} cards each ...")
        for node in fake_nodes("bench", self.nodes, CARDS_PER_NODE, "A100-40GB"):
            await register_node(self.client, node, ["nvidia.com/gpu"])
        cards = self.nodes * CARDS_PER_NODE
        await self._until(lambda: self.installation.metrics()["gpuledger_ledger_patches_total"] >= cards)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not await asyncio.to_thread(done):  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.2)

    async def measure(self, scheduler: str, shape: str, limits: dict[str, str], count: int) -> Result:
        """Create pods and wait until all are bound; then delete them."""
        progress.print(f"{scheduler}: {count} pods, {shape}, {self.nodes} nodes ...")
        before, offset = self.installation.metrics(), self.plane.audit_offset()
        bound: dict[str, float] = {}
        watching = asyncio.Event()
        watcher = asyncio.create_task(self._watch(bound, count, watching))
        await watching.wait()
        places = asyncio.Semaphore(IN_FLIGHT)
        created: dict[str, float] = {}

        async def create(position: int) -> None:
            async with places:
                name = f"pod-{position}"
                created[name] = time.monotonic()
                await self.client.request("POST", PODS, _pod(name, scheduler, limits))

        begin = time.monotonic()
        await asyncio.gather(*(create(position) for position in range(count)))
        await asyncio.wait_for(watcher, 600)
        seconds = max(bound.values()) - begin
        after = self.installation.metrics()
        await self._delete_all()
        latencies = sorted(bound[name] - created[name] for name in created)
        filters = after.get("gpuledger_filter_seconds_count", 0) - before.get("gpuledger_filter_seconds_count", 0)
        filter_s = after.get("gpuledger_filter_seconds_sum", 0) - before.get("gpuledger_filter_seconds_sum", 0)
        written = Counter(
            (event.resource, event.subresource) for event in self.plane.api_writes(offset) if event.user == USER
        )
        return Result(
            scheduler,
            shape,
            self.nodes,
            count,
            seconds,
            statistics.median(latencies),
            latencies[int(len(latencies) * 0.99)],
            written["gpuallocations", "status"] / count / 2,  # every share is entered once and removed once
            1000 * filter_s / filters if filters else 0.0,
        )

    async def _watch(self, bound: dict[str, float], count: int, watching: asyncio.Event) -> None:
        version = (await self.client.request("GET", PODS, parameters={"limit": "1"}))["metadata"]["resourceVersion"]
        while len(bound) < count:  # the server may close a watch at any time
            async with self.client.stream(PODS, {"watch": "1", "resourceVersion": version}, WATCH_SILENCE_S) as lines:
                watching.set()
                async for line in lines:
                    pod = json.loads(line)["object"]
                    version = pod["metadata"]["resourceVersion"]
                    if pod["spec"].get("nodeName"):
                        bound.setdefault(pod["metadata"]["name"], time.monotonic())
                        if len(bound) == count:
                            return

    async def _delete_all(self) -> None:
        await self.client.request("DELETE", PODS, {"gracePeriodSeconds": 0}, timeout_s=300)
        await self._until(lambda: not self.plane.kubectl("get", "pods", "-o", "name"))
        await self._until(lambda: not self.installation.metrics()["gpuledger_holders"])


PODS = "/api/v1/namespaces/default/pods"


def _pod(name: str, scheduler: str, limits: dict[str, str]) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def run(plane: ControlPlane, nodes: int, pods: int) -> list[Result]:
    """Measure everything on one control plane."""
    installation = Installation(plane, NO_KUBELET)
    installation.start()
    plain = plane.directory / "plain.yaml"
    plain.write_text(yaml.safe_dump(PLAIN_CONFIG))
    plane.start_scheduler(plain, plane.kubeconfig, name="plain-scheduler")
    client = await KubeClient.connect(plane.kubeconfig)
    try:
        bench = Bench(plane, client, installation, nodes)
        await bench.prepare()
        results = [await bench.measure("plain", "no card", {}, pods)]
        for shape, limits in SHAPES.items():
            room = int(nodes * CARDS_PER_NODE * PODS_PER_CARD[shape])
            results.append(await bench.measure("gpuledger", shape, limits, min(pods, room)))
        results.append(await bench.measure("plain", "no card", {}, pods))
        return results
    except NotFound as error:
        raise SystemExit(f"the control plane lost something: {error}") from error
    finally:
        await client.close()


def show(results: list[Result]) -> None:
    """Print the table."""
    plain = statistics.mean(result.pods_per_s for result in results if result.scheduler == "plain")
    table = Table(title=f"pods per second, {results[0].nodes} nodes x {CARDS_PER_NODE} cards")
    for column in (
        "scheduler",
        "shape",
        "pods",
        "pods/s",
        "to plain",
        "p50 s",
        "p99 s",
        "ledger writes/pod",
        "filter ms",
    ):
        table.add_column(column, justify="left" if column in ("scheduler", "shape") else "right")
    for result in results:
        numbers = (
            f"{result.pods}",
            f"{result.pods_per_s:.0f}",
            f"{result.pods_per_s / plain:.2f}",
            f"{result.latency_p50_s:.2f}",
            f"{result.latency_p99_s:.2f}",
        )
        ours = (f"{result.ledger_writes_per_pod:.2f}", f"{result.filter_ms:.2f}")
        table.add_row(result.scheduler, result.shape, *numbers, *(ours if result.scheduler != "plain" else ("", "")))
    Console().print(table)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--save", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    with ControlPlane.run() as plane:
        results = asyncio.run(run(plane, arguments.nodes, arguments.pods))
    machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.release()}
    content = json.dumps({"machine": machine, "results": [asdict(result) for result in results]}, indent=2)
    if arguments.save:
        arguments.save.write_text(content)
    if arguments.output == "json":
        sys.stdout.write(content + "\n")
    else:
        show(results)


if __name__ == "__main__":
    main()
