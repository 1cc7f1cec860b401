"""The probes' answers: what a restart would mend, what pods need, and numbers."""

from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.core import Metric

from gpuledger.agent.metrics import HealthServer, counter, gauge


async def nothing() -> dict[str, Any]:
    return {"containers": []}


async def test_each_probe_answers_for_its_own_problems() -> None:
    dead: list[str] = []
    not_ready: list[str] = []
    async with TestClient(
        TestServer(HealthServer(lambda: dead, lambda: not_ready, list, nothing).application())
    ) as client:

        async def answers() -> dict[str, tuple[int, str]]:
            found = {}
            for path in ("/healthz", "/readyz"):
                async with client.get(path) as answer:
                    found[path] = answer.status, await answer.text()
            return found

        assert await answers() == {"/healthz": (200, "ok\n"), "/readyz": (200, "ok\n")}
        not_ready.append("the cards are not known yet")
        assert await answers() == {"/healthz": (200, "ok\n"), "/readyz": (503, "the cards are not known yet\n")}
        dead.append("the thread hangs")
        found = await answers()
        assert found["/healthz"] == (503, "the thread hangs\n")
        assert found["/readyz"] == (503, "the thread hangs\nthe cards are not known yet\n")


async def test_metrics_are_read_when_somebody_asks() -> None:
    writes = 1

    def metrics() -> list[Metric]:
        return [
            counter("node_writes", "Writes.", [([], float(writes))]),
            gauge("card_healthy", "Cards.", [(["GPU-1", "0"], 1.0)], ["uuid", "index"]),
        ]

    async with TestClient(TestServer(HealthServer(list, list, metrics, nothing).application())) as client:
        writes = 3
        answer: aiohttp.ClientResponse = await client.get("/metrics")
        lines = (await answer.text()).splitlines()
    assert "gpuledger_agent_node_writes_total 3.0" in lines
    assert 'gpuledger_agent_card_healthy{index="0",uuid="GPU-1"} 1.0' in lines


async def test_what_is_used_is_asked_for_at_each_request() -> None:
    asked = []

    async def usage() -> dict[str, Any]:
        asked.append(True)
        return {"node": "node-a", "containers": []}

    async with TestClient(TestServer(HealthServer(list, list, list, usage).application())) as client:
        for _ in range(2):
            answer: aiohttp.ClientResponse = await client.get("/usage")
            assert await answer.json() == {"node": "node-a", "containers": []}
    assert len(asked) == 2
