"""Random lives of two operators over one API server: what is in the records is what the ledger has shown.

The oracle knows nothing of accounts. It sees each version of each card, and adds up for how long pods that were bound
stood on it, and what of the card nobody else could have had meanwhile. In every other life somebody sets the API
server's clock now and then.
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import a_card
from effort import seeds_for, times
from fakes.api_server import ApiServer, Operation, lose_answer, lose_request
from fakes.api_server import refuse as refuse_with
from fakes.objects import CORES, GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, settle, wall
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.custom_resource.usage import record
from gpuledger.model.errors import Conflict, GpuledgerError
from gpuledger.model.share import StoredCard, part_of_card
from gpuledger.model.usage import Held, total_of
from gpuledger.workflows.accounts import GATHER_S, SETTLE_S

CARDS = [a_card(0), a_card(1), a_card(2, number=2)]
REQUESTS = (("1", "1000", "0"), ("1", "8000", "0"), ("2", "3000", "30"), ("1", "12000", "25"), ("1", "4000", "25"))
"""Cards, MiB and percent of the cores of each."""
STEPS = 120
Json = dict[str, Any]

FAULTY = (
    Operation.WRITE_STATUS,
    Operation.WRITE_USAGE,
    Operation.CREATE_USAGE,
    Operation.READ_USAGE,
    Operation.READ_CARD,
    Operation.BIND,
)


class Oracle:
    """Adds up what pods held, by what the API server stores."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._began: dict[tuple[str, str], datetime] = {}  # UUID of a card and UID of a pod -> when it was entered
        self._part: dict[tuple[str, str], float] = {}
        self._held_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._wasted_s: defaultdict[str, float] = defaultdict(float)
        self._seen: dict[str, tuple[StoredCard, datetime]] = {}  # UUID of a card -> as it was last, and since when
        self.bound: set[str] = set()
        """UIDs of the pods that got a node."""
        api.rules.append(self._look)

    def _now(self) -> datetime:
        now = self._api.server_clock.now()
        assert now is not None
        return now

    def _look(self, allocation: Json) -> bool:
        card = stored_card({**allocation, "metadata": {**allocation["metadata"], "resourceVersion": "1"}})
        self._add_wasted(card)
        there = {holder.pod.uid: holder for holder in card.holders or () if holder.since}
        self.bound |= {pod["metadata"]["uid"] for pod in self._api.pods.values() if pod["spec"].get("nodeName")}
        for (uuid, uid), since in list(self._began.items()):
            if uuid == card.card.uuid and uid not in there:
                part = self._part.pop((uuid, uid))
                self._held_s[uuid, uid] += part * max(0.0, (self._now() - since).total_seconds())
                del self._began[uuid, uid]
        for uid, holder in there.items():
            self._began.setdefault((card.card.uuid, uid), self._now())
            self._part[card.card.uuid, uid] = part_of_card(holder.share, card.card)
        return True

    def _add_wasted(self, card: StoredCard) -> None:
        """Share out what was left of a card, and could not be had, among those that were on it until now."""
        before, since = self._seen.get(card.card.uuid, (card, self._now()))
        self._seen[card.card.uuid] = (card, self._now())
        shares = [holder.share.amounts for holder in before.holders or ()]
        capacity = card.card.capacity
        memory = capacity.memory_mib - sum(share.memory_mib for share in shares)
        cores = capacity.cores - sum(share.cores for share in shares)
        if capacity.number > len(shares) and memory and cores:
            return
        wasted = max(memory / capacity.memory_mib, cores / capacity.cores if all(s.cores for s in shares) else 0)
        charged = {h.pod.uid: part_of_card(h.share, card.card) for h in before.holders or () if h.since}
        for uid, part in charged.items():
            self._wasted_s[uid] += wasted * part / sum(charged.values()) * (self._now() - since).total_seconds()

    def wasted_s(self) -> float:
        """Return the seconds of cards that were wasted beside bound pods."""
        return sum(seconds for uid, seconds in self._wasted_s.items() if uid in self.bound)

    def held_s(self) -> float:
        """Return the seconds of cards that bound pods have held."""
        return sum(seconds for (_, uid), seconds in self._held_s.items() if uid in self.bound)


class Life:
    """Operators that come and go, pods that come and go, and requests that fail."""

    def __init__(self, api: ApiServer, seed: int) -> None:
        self.api, self.random, self.oracle = api, random.Random(seed), Oracle(api)  # noqa: S311 - no secret
        self.operators: list[OperatorParts] = []
        self.sets_clock = seed % 2 == 0
        self.pods: list[str] = []
        self.number = 0

    async def start(self) -> None:
        """Start an operator."""
        parts = OperatorParts(self.api, clock=LoopClock())
        await self._in_time(parts.observer.take_over())
        self.operators.append(parts)

    async def live(self) -> None:
        """Live for a while, and come to rest without faults."""
        await self.start()
        for _ in range(STEPS):
            await self.step()
        for faults in self.api._faults.values():
            faults.clear()
        for operator in self.operators[1:]:
            await operator.workflows.stop()
        del self.operators[1:]
        for name in list(self.pods):
            self.end(name)
        for _ in range(4):
            await self._rest(GATHER_S + SETTLE_S)

    async def step(self) -> None:
        """Let one thing happen, and some time pass."""
        kind = self.random.choice(["pod"] * 5 + ["end"] * 4 + ["fault"] * 3 + ["start", "kill", "clock"])
        if kind == "pod":
            await self.bind()
        elif kind == "end" and self.pods:
            self.end(self.random.choice(self.pods))
        elif kind == "fault":
            conflict = refuse_with(Conflict("another was first", 409))
            fault = self.random.choice([lose_answer(), lose_request(), conflict])
            self.api.queue(self.random.choice(FAULTY), *[None] * self.random.randrange(3), fault)
        elif kind == "start" and len(self.operators) < 2:
            await self.start()
        elif kind == "kill":
            await self.operators.pop(self.random.randrange(len(self.operators))).workflows.stop()
            if not self.operators:
                await self.start()
        elif kind == "clock" and self.sets_clock:
            self.api.server_clock.ahead += timedelta(seconds=self.random.choice([-3600, -30, 30, 3600]))
        await self._rest(self.random.choice([0.1, 1, 7, GATHER_S, SETTLE_S]))

    async def bind(self) -> None:
        """Have a pod bound, or tried in vain."""
        self.number += 1
        name, parts = f"p{self.number}", self.random.choice(self.operators)
        number, memory, cores = self.random.choice(REQUESTS)
        self.api.put_pod(a_pod_object(name, {GPU: number, MEMORY: memory, CORES: cores}))
        for operator in self.operators:
            operator.watch()
        with contextlib.suppress(GpuledgerError):
            await self._in_time(parts.bind(name, "node-a"))
        pod = self.api.pods["default", name]
        if pod["spec"].get("nodeName"):
            self.pods.append(name)
        else:
            self.api.delete_pod(name)

    async def _in_time(self, steps: Any) -> None:
        task = asyncio.ensure_future(steps)
        while not task.done():
            await settle()
            for operator in self.operators:
                operator.watch()
            await asyncio.sleep(0.05)
        await task

    def end(self, name: str) -> None:
        """Let a pod end."""
        self.pods.remove(name)
        pod = self.api.pods["default", name]
        self.api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})

    async def _rest(self, seconds: float) -> None:
        until = wall() + timedelta(seconds=seconds)
        while wall() < until:
            for operator in self.operators:
                operator.watch()
            await asyncio.sleep(max(0.1, seconds / 20))


@pytest.mark.parametrize("seed", seeds_for("accounts", times(12, 400, check=3)))
async def test_what_is_in_the_records_is_what_the_ledger_has_shown(api: ApiServer, seed: int) -> None:
    api.keep_accounts()
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    life, began = Life(api, seed), wall()
    await life.live()
    held = sum((total_of(record(each).lines) for each in api.usages.values()), Held())
    assert [api.card(card).ended for card in CARDS] == [(), (), ()]
    assert [api.holders_of(card) for card in CARDS] == [[], [], []]
    assert held.shares > STEPS / 12
    assert held.card_ms / 1000 == pytest.approx(life.oracle.held_s(), abs=0.01 * (1 + held.shares))
    if not life.sets_clock:
        existed_s = (wall() - began).total_seconds()
        assert held.card_ms / 1000 < len(CARDS) * existed_s
        assert held.wasted_card_ms / 1000 == pytest.approx(life.oracle.wasted_s(), abs=0.01 * (1 + held.shares))
