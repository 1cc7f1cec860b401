"""An audit of a cluster that places and ends a hundred pods a second, with answers that come late: never a finding."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from builders import cards_of
from effort import seeds_for, times
from fakes.api_server import ApiServer, Fault, Operation
from fakes.objects import GPU, MEMORY, PERCENTAGE, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import LoopClock
from gpuledger.command_line.commands.audit import audit_settings
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import GpuledgerError
from gpuledger.workflows.repair import Auditor, Report

NODES = [f"node-{number}" for number in range(10)]
PODS_PER_S = 100
AUDITS = 3
SETTLE_S = 2.0
LIFETIMES_S = (0.0, 0.1, SETTLE_S - 0.2, SETTLE_S, SETTLE_S + 0.2, 3.0)
"""Also about as long as the time between two reads: then both fall into a moment of change."""


class SlowApiServer(ApiServer):
    """Each request waits before it is carried out, and its answer after that; lists of many pages wait longer."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def _fare(self, fault: Fault, apply: Callable[[], Any]) -> Any:
        await asyncio.sleep(self.chance.uniform(0.0, 0.03))
        answer = await super()._fare(fault, apply)
        await asyncio.sleep(self.chance.uniform(0.0, 0.03))
        return answer

    async def pages(self, path: str, parameters: Any = None) -> Any:
        """Yield the pages of a list that is as old as its first page."""
        async for page in super().pages(path, parameters):
            yield page
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))


class Traffic:
    """Pods that come, are bound by an operator, and go."""

    def __init__(self, api: SlowApiServer) -> None:
        self.api = api
        self.parts: OperatorParts = an_operator(api)
        self.parts.observer.synced = True
        self.bound = 0
        self._lives: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Go on until cancelled."""
        number = 0
        while True:
            number += 1
            life = asyncio.create_task(self._live(f"pod-{number}"))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)
            await asyncio.sleep(1 / PODS_PER_S)
            self.parts.watch()

    async def _live(self, name: str) -> None:
        chance = self.api.chance
        limits = chance.choice([{GPU: "1", MEMORY: "4k"}, {GPU: "2", MEMORY: "2k"}, {GPU: "1", PERCENTAGE: "10"}])
        self.api.put_pod(a_pod_object(name, limits))
        try:
            found = self.parts.filter(name, *NODES)
            for node_name in found.node_names:
                await self.parts.bind(name, node_name)
                self.bound += 1
                await asyncio.sleep(chance.choice(LIFETIMES_S))
        except GpuledgerError:
            pass  # no room, or too slow: it goes without
        if chance.random() < 0.5:
            pod = self.api.pods["default", name]
            self.api.put_pod({**pod, "status": {"phase": "Succeeded"}})
            await asyncio.sleep(chance.uniform(0.0, 0.1))
        self.api.delete_pod(name)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", seeds_for("audit in traffic", times(1, 20)))
async def test_pods_that_come_and_go_are_never_a_finding(seed: int) -> None:
    api = SlowApiServer(random.Random(seed))  # noqa: S311 - nothing secret
    for node in NODES:
        api.put_node(a_node_object(node, cards_of(node)))
        for card in cards_of(node):
            api.put_card(card)
    traffic = Traffic(api)
    running = asyncio.create_task(traffic.run())
    auditor = Auditor(api.store, audit_settings(Settings(), SETTLE_S), clock=LoopClock())
    for _ in range(AUDITS):
        assert await auditor.look() == Report((), ())
    running.cancel()
    assert traffic.bound > AUDITS * PODS_PER_S
    # One read alone shows something nearly each time.
    assert len(api.called(Operation.LIST_PODS)) > 1.5 * AUDITS
