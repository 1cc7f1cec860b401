"""Names of gangs are free: however many one namespace makes, and whatever they wait for, those of others start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from builders import cards_of, whole_share
from fakes.api_server import ApiServer
from fakes.objects import GPU, MEMORY, a_pod_object, with_conditions
from fakes.operator_parts import RELEASE_DELAY_S, OperatorParts, an_operator
from fakes.virtual_time import LoopClock, WorkingClock, now_s, settle
from gpuledger.formats.dialects.selection import USE_UUID
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.ledger.seats import Seat
from gpuledger.model.gang import GangName
from gpuledger.model.share import Placement
from gpuledger.workflows.gangs.plans import TRY_PAUSE_S
from gpuledger.workflows.gangs.starvation_guard import LONGEST_S, MOST_OVERTAKING
from gpuledger.workflows.gangs.turns import Turn
from gpuledger.workflows.pending.queue import PASS_S

Json = dict[str, Any]
CARDS = cards_of("node-a", 4)
HOSTILE, OURS = "hostile", "ours"
AT_ONCE_S = 5.0
PART = {GPU: "1", MEMORY: "1"}


class Lab:
    """A node with four cards, and gangs of several namespaces."""

    def __init__(self, api: ApiServer, clock: LoopClock) -> None:
        for card in CARDS:
            api.put_card(card)
        self.api = api
        self.parts: OperatorParts = an_operator(api, clock=clock)
        self._numbers: Iterator[int] = count()
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, namespace: str, gang: str, size: int = 2, limits: Json | None = None, card: str = "") -> None:
        """Have all pods of a gang created, later than those that have come before."""
        number = next(self._numbers)
        for name in self.names(gang, size):
            created = f"2030-01-01T{number // 60:02}:{number % 60:02}:00Z"
            pod = a_pod_object(name, limits or {GPU: "1"}, created=created, uid=f"uid-{namespace}-{name}")
            pod["metadata"] |= {
                "namespace": namespace,
                "labels": {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": str(size)},
                "annotations": {USE_UUID[0]: card} if card else {},
            }
            self.api.put_pod(pod)
        self.parts.watch()

    @staticmethod
    def names(gang: str, size: int) -> list[str]:
        return [f"{gang}-{number}" for number in range(size)]

    def asks(self, namespace: str, name: str) -> bool:
        """Have kube-scheduler ask for a pod; return whether it finds cards."""
        pod = self.api.pods[namespace, name]
        return bool(self.parts.placer.filter(FilterArguments(pod, ["node-a"])).node_names)

    def bind(self, namespace: str, name: str) -> asyncio.Task[None]:
        """Have kube-scheduler send the Bind of a pod."""
        arguments = BindArguments(f"uid-{namespace}-{name}", namespace, name, "node-a")
        task = asyncio.create_task(self.parts.placer.bind(arguments))
        self.tasks.append(task)
        return task

    async def starts(self, namespace: str, gang: str, size: int = 2) -> bool:
        """Have kube-scheduler ask for all members, and bind them if all find cards; return whether they do."""
        await asyncio.sleep(TRY_PAUSE_S)
        names = self.names(gang, size)
        found = [self.asks(namespace, name) for name in names]
        if not all(found):
            return False
        await asyncio.gather(*(self.bind(namespace, name) for name in names))
        self.parts.watch()
        return True

    async def starts_within(self, most_s: float, namespace: str, gang: str, size: int = 2) -> bool:
        """Have a gang asked for until it starts; return whether that takes no longer than so many seconds."""
        until_s = now_s() + most_s
        while not await self.starts(namespace, gang, size):
            if now_s() > until_s:
                return False
        return now_s() <= until_s

    async def ends(self, namespace: str, gang: str, size: int = 2) -> None:
        for name in self.names(gang, size):
            self.api.delete_pod(name, namespace)
        self.parts.watch()
        await asyncio.sleep(RELEASE_DELAY_S * 2)
        await self.parts.idle()

    async def look(self) -> None:
        """Let the operator look who goes first."""
        await self.parts.workflows.queue.give_room()
        await settle()

    def precedence_of(self, namespace: str, gang: str) -> Turn | None:
        return self.parts.workflows.gangs.precedence.turn_of(GangName(namespace, gang))


@pytest.fixture
async def lab(api: ApiServer) -> Lab:
    return Lab(api, LoopClock())


# A gang that goes first.


async def wait_for_a_card(lab: Lab, of: str) -> None:
    """Let a gang hold a card for ever, and another one of the hostile namespace wait for just that card."""
    lab.come(of, "holder", 1)
    assert await lab.starts(of, "holder", 1)
    (card,) = (entry.card.uuid for entry in lab.parts.ledger.entries() if entry.holders)
    lab.come(HOSTILE, "waits", 1, card=card)
    assert not await lab.starts(HOSTILE, "waits", 1)


async def overtake(lab: Lab, by: str, times: int = MOST_OVERTAKING, first: str = "waits") -> None:
    for number in range(times):
        name = f"overtakes-{first}-{number}"
        lab.come(by, name, 1, PART)
        assert not await lab.starts(HOSTILE, first, 1)
        assert await lab.starts(by, name, 1)
    await lab.look()


async def test_a_gang_that_its_own_namespace_overtakes_goes_first_there_and_holds_back_no_other(lab: Lab) -> None:
    await wait_for_a_card(lab, of=HOSTILE)
    await overtake(lab, by=HOSTILE, times=1)
    await asyncio.sleep(86_400)
    await overtake(lab, by=HOSTILE, first="waits")
    assert lab.precedence_of(HOSTILE, "waits")
    lab.come(OURS, "mine")
    assert await lab.starts_within(AT_ONCE_S, OURS, "mine")
    lab.come(HOSTILE, "younger", 1, PART)
    assert not await lab.starts(HOSTILE, "younger", 1)


async def test_what_its_own_namespace_holds_is_no_reason_to_hold_back_others(lab: Lab) -> None:
    """Others have overtaken it often enough; that they end would be of no use to it."""
    await wait_for_a_card(lab, of=HOSTILE)
    await overtake(lab, by=OURS)
    lab.come(OURS, "mine")
    assert await lab.starts_within(AT_ONCE_S, OURS, "mine")


async def test_that_its_own_namespace_overtakes_it_is_no_reason_to_hold_back_others(lab: Lab) -> None:
    await wait_for_a_card(lab, of=OURS)
    await overtake(lab, by=HOSTILE)
    lab.come(OURS, "mine")
    assert await lab.starts_within(AT_ONCE_S, OURS, "mine")


async def test_others_are_held_back_for_minutes_at_most_however_long_a_gang_has_waited(lab: Lab) -> None:
    await wait_for_a_card(lab, of=OURS)
    await overtake(lab, by=OURS, times=1)
    await asyncio.sleep(86_400)
    await overtake(lab, by=OURS)
    lab.come(OURS, "mine", 1, PART)
    assert not await lab.starts_within(LONGEST_S / 2, OURS, "mine", 1)
    assert await lab.starts_within(LONGEST_S, OURS, "mine", 1)


async def test_with_many_gangs_that_go_first_in_vain_a_namespace_holds_others_back_less_and_less(lab: Lab) -> None:
    await wait_for_a_card(lab, of=OURS)
    (card,) = (entry.card.uuid for entry in lab.parts.ledger.entries() if entry.holders)
    for number in range(10):
        lab.come(HOSTILE, f"waits-{number}", 1, card=card)
        assert not await lab.starts(HOSTILE, f"waits-{number}", 1)
    await overtake(lab, by=OURS)
    lab.come(OURS, "mine", 1)
    workflows = lab.parts.workflows
    mine = next(state for state in workflows.gangs.members.waiting() if state.name.namespace == OURS)
    held_back_s, hours = [0, 0, 0], 3_600
    for second in range(0, 3 * hours, 30):
        await asyncio.sleep(30.0)
        await lab.look()
        held_back_s[second // hours] += 30 * (workflows.gangs.precedence.holding_back(mine) is not None)
    assert held_back_s[0] > LONGEST_S
    assert held_back_s[2] <= 2 * LONGEST_S


# Gangs that are tried alone.


async def never_complete(lab: Lab, number: int) -> None:
    """Let gangs come of which all members but one come to Bind."""
    for each in range(number):
        lab.come(HOSTILE, f"late-{each}", 4, PART)
        for name in lab.names(f"late-{each}", 4)[:-1]:
            if lab.asks(HOSTILE, name):
                lab.bind(HOSTILE, name)
    await settle()


async def test_gangs_that_never_are_complete_keep_no_gang_of_another_namespace_from_starting(lab: Lab) -> None:
    await never_complete(lab, 40)
    were_tried_alone = 0
    for _ in range(20):
        await asyncio.sleep(17.0)
        were_tried_alone += lab.parts.workflows.gangs.turn_of(GangName(HOSTILE, "late-0")) is not None
        name = f"mine-{now_s():.0f}"
        lab.come(OURS, name, 2, PART)
        assert await lab.starts_within(AT_ONCE_S, OURS, name)
        await lab.ends(OURS, name)
        for each in range(40):
            for pod in lab.names(f"late-{each}", 4)[:-1]:
                if lab.asks(HOSTILE, pod):
                    lab.bind(HOSTILE, pod)
    assert were_tried_alone
    await asyncio.gather(*lab.tasks, return_exceptions=True)


async def test_a_gang_with_a_member_that_has_no_node_by_any_rule_gets_no_turn(lab: Lab) -> None:
    lab.come(HOSTILE, "late-0", 4, PART)
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: none.",
    }
    lab.api.put_pod(with_conditions(lab.api.pods[HOSTILE, "late-0-3"], [said]))
    lab.parts.watch()
    binds = [lab.bind(HOSTILE, name) for name in lab.names("late-0", 4)[:-1] if lab.asks(HOSTILE, name)]
    assert len(binds) == 3
    await asyncio.gather(*binds, return_exceptions=True)
    assert lab.parts.workflows.gangs.turn_of(GangName(HOSTILE, "late-0")) is None
    (state,) = lab.parts.workflows.gangs.members.waiting()
    assert lab.parts.workflows.gangs.pauses.left_s(state, lab.parts.clock.now_s()) > 0
    assert state.has_too_few_nodes
    lab.asks(HOSTILE, "late-0-3")  # kube-scheduler has found a node for it
    assert not state.has_too_few_nodes


# Many that do not fit.


async def test_a_gang_behind_a_crowd_of_another_namespace_is_tried_whatever_changes(api: ApiServer) -> None:
    lab = Lab(api, WorkingClock())
    lab.come(OURS, "busy", 1, {GPU: "4"})
    assert await lab.starts(OURS, "busy", 1)
    for number in range(100):
        lab.come(HOSTILE, f"crowd-{number}", 2, {GPU: "4"})
        assert not await lab.starts(HOSTILE, f"crowd-{number}")
    lab.come(OURS, "mine", 4)
    assert not await lab.starts(OURS, "mine", 4)
    await lab.ends(OURS, "busy", 1)
    passes = 0
    while lab.parts.ledger.seats.of(f"uid-{OURS}-mine-0") is None:
        lab.parts.ledger.seats.take(Seat("other", Placement("node-a", (whole_share(CARDS[0]),)), now_s() + 1.0))
        lab.parts.ledger.seats.give_up("other")
        await lab.parts.workflows.queue.give_room()
        await asyncio.sleep(3 * PASS_S)  # as long as the operator rests then
        passes += 1
        assert passes < 4
    assert passes > 1, "there is time for all of them"
