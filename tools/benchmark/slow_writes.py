"""The report of a cluster of 200 nodes whose scheduler took ten minutes for a pod.

Nearly all nodes are full, and three have room. Nodes are updated all the time, and every write takes 200 ms longer than
it would. The scheduler of the report wrote to the nodes in its cycle, and lost its view of those with room. Here a pod
has to be placed in its first cycle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from benchmark.measuring import Figures, measure
from benchmark.shapes import CARDS_PER_NODE, pod, whole
from benchmark.site import Json, Site
from faults.kinds import Delay
from faults.proxy import Proxy
from faults.requests import Match
from gpuledger.kube_api.writes import STRATEGIC_PATCH

ROOMY_NODES = 3
DELAY_S = 0.2
NODE_UPDATE_EVERY_S = 5.0
WRITES = Match("write", lambda request: request.method in ("POST", "PUT", "PATCH", "DELETE"))


async def measure_slow_writes(site: Site) -> Figures:
    """Fill the cluster but for three nodes, slow the writes down, and schedule as many pods as these have cards.

    Leaves the site without pods, operator and scheduler.
    """
    await site.start_scheduler("gpuledger")
    full = len(site.nodes) - ROOMY_NODES
    await measure(site, [pod(f"filler-{n}", "gpuledger", whole(8), "filler") for n in range(full)])
    site.stop_scheduler()
    site.stop_operator()
    pods = [pod(f"pod-{n}", "gpuledger", whole(1)) for n in range(min(ROOMY_NODES, len(site.nodes)) * CARDS_PER_NODE)]
    with Proxy.before_api_server(site.installation.kubeconfig) as proxy:
        through = proxy.kubeconfig_from(site.installation.kubeconfig)
        await site.start_operator(through)
        await site.start_scheduler("gpuledger", through)
        slow = proxy.arm(WRITES, Delay(DELAY_S), times=None)
        async with _node_updates(site):
            await asyncio.sleep(NODE_UPDATE_EVERY_S)  # once around
            figures = await measure(site, pods)
        figures["slowed_writes"] = slow.seen
        proxy.disarm()
        await site.delete_pods()
        site.stop_scheduler()
        site.stop_operator()
    return figures


@contextlib.asynccontextmanager
async def _node_updates(site: Site) -> AsyncIterator[None]:
    """Have every node's kubelet say every few seconds that it is alive. They, too, wait for each write."""
    pause_s = NODE_UPDATE_EVERY_S / len(site.nodes)

    async def update(name: str) -> None:
        await asyncio.sleep(DELAY_S)
        path = f"/api/v1/nodes/{name}/status"
        await site.admin.request("PATCH", path, _alive(), content_type=STRATEGIC_PATCH)

    async def go_on() -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for node in site.nodes:
                    group.create_task(update(node.name))
                    await asyncio.sleep(pause_s)

    task = asyncio.create_task(go_on())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _alive() -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now}]}}
