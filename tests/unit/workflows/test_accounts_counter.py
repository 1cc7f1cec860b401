"""The counter of held time never goes back while shares end and operators restart, and agrees with the records."""

import asyncio
from datetime import timedelta

import pytest

from builders import a_card
from fakes.api_server import ApiServer
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, wall
from gpuledger.controller.telemetry.usage_metrics import LAG_S, Shown, UsageTime
from gpuledger.formats.custom_resource.usage import record
from gpuledger.model.usage import total_of
from gpuledger.reports.cards import report_of

CARD = a_card(0)
HALF = {GPU: "1", MEMORY: str(CARD.capacity.memory_mib // 2)}


def total(usage: UsageTime) -> float:
    """Return the sum of a scrape."""
    (family,) = usage.collect()
    return float(sum(sample.value for sample in family.samples if sample.name.endswith("_total")))


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    """Return an API server with a node of one card, whose definition knows accounts."""
    api.keep_accounts()
    api.put_node(a_node_object("node-a", [CARD]))
    api.put_card(CARD)
    return api


async def an_operator(api: ApiServer) -> OperatorParts:
    parts = OperatorParts(api, clock=LoopClock())
    await parts.observer.take_over()
    parts.workflows.accounting.accounts.today()  # it begins to read
    await parts.workflows.accounting.accounts.worker.idle()
    return parts


class Looks:
    """Scrapes, each of which is compared with the one before."""

    def __init__(self) -> None:
        self._last = 0.0

    def look(self, parts: OperatorParts) -> float:
        """Return the sum of the counter in a process that has just begun to be looked at."""
        usage = UsageTime(parts.workflows.accounting.accounts.today(), Shown())
        for entry in parts.ledger.entries():
            usage.count(report_of(entry))
        found = total(usage)
        assert found >= self._last
        self._last = found
        return found


async def test_through_every_step_of_a_share_and_restarts_it_only_grows_and_ends_as_the_record(api: ApiServer) -> None:
    looks, parts = Looks(), await an_operator(api)
    api.put_pod(a_pod_object("a", HALF))
    parts.watch()
    await parts.bind("a", "node-a")
    for second in range(300):
        if second == 60:
            pod = api.pods["default", "a"]
            api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
        if second % 50 == 49:  # just killed
            await parts.workflows.stop()
            parts = await an_operator(api)
        await parts.idle()
        await parts.workflows.accounting.accounts.worker.idle()
        looks.look(parts)
        await asyncio.sleep(1)
    (usage,) = api.usages.values()
    assert looks.look(parts) == pytest.approx(total_of(record(usage).lines).card_ms / 1000)
    assert looks.look(parts) == pytest.approx(30, abs=1)


async def test_at_midnight_it_begins_anew(api: ApiServer) -> None:
    parts = await an_operator(api)
    api.put_pod(a_pod_object("a", HALF))
    parts.watch()
    await parts.bind("a", "node-a")
    midnight = (wall() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    await asyncio.sleep((midnight - wall()).total_seconds() - 1)
    await parts.idle()
    before = Looks().look(parts)
    await asyncio.sleep(101)
    await parts.idle()
    assert Looks().look(parts) == pytest.approx(0.5 * (100 - LAG_S), abs=1)
    assert before > 3600
