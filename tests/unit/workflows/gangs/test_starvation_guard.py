"""A gang that others overtake goes first after a while: nobody waits for ever, and nobody waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer
from fakes.counters import by_label
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import RELEASE_DELAY_S, OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.model.gang import GangName
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.gangs.plans import TRY_PAUSE_S
from gpuledger.workflows.gangs.starvation_guard import LOOK_PAUSE_S, MOST_OVERTAKING, SHORTEST_S
from gpuledger.workflows.gangs.turns import Turn
from gpuledger.workflows.trail import RecordFilter

Json = dict[str, Any]
CARDS = cards_of("node-a", 4)
LARGE = GangName("default", "large")


class Lab:
    """A node with four cards: small gangs of two come and go, and a large one may need all of them."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.parts: OperatorParts = an_operator(api)
        self._numbers: Iterator[int] = count(1)

    def come(self, gang: str, size: int, priority: int = 0) -> None:
        """Have all pods of a gang created, later than those that have come before."""
        self.create(gang, size, *self.names(gang, size), priority=priority)

    def create(self, gang: str, size: int, *names: str, priority: int = 0) -> None:
        """Have pods of a gang created."""
        created = f"2030-01-01T00:{next(self._numbers):02}:00Z"
        for name in names:
            pod = a_pod_object(name, {GPU: "1"}, created=created, priority=priority)
            pod["metadata"]["labels"] = {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": str(size)}
            self.api.put_pod(pod)
        self.parts.watch()

    @staticmethod
    def names(gang: str, size: int) -> list[str]:
        return [f"{gang}-{number}" for number in range(size)]

    async def starts(self, gang: str, size: int) -> bool:
        """Have kube-scheduler ask for all members, and bind those that get cards; return whether all did."""
        await asyncio.sleep(TRY_PAUSE_S)
        names = self.names(gang, size)
        found = [self.parts.filter(name, "node-a").node_names for name in names]
        if not all(found):
            return False
        await asyncio.gather(*(self.parts.bind(name, "node-a") for name in names))
        self.parts.watch()
        return True

    async def ends(self, gang: str, size: int) -> None:
        await self.leave(*self.names(gang, size))

    async def leave(self, *names: str) -> None:
        for name in names:
            self.api.delete_pod(name)
        self.parts.watch()
        await asyncio.sleep(RELEASE_DELAY_S * 2)
        await self.parts.idle()

    async def overtaken(self, times: int = MOST_OVERTAKING) -> None:
        """Have small gangs come, start and end; two cards are free at the end, and a gang runs on the others."""
        for number in range(times):
            self.come(f"small{number}", 2)
            assert not await self.starts("large", 4)
            assert await self.starts(f"small{number}", 2)
            await self.ends(f"small{number}", 2)
        await self.look()

    async def look(self) -> None:
        await self.parts.workflows.queue.give_room()
        await settle()

    def first(self) -> GangName | None:
        """Return the gang that goes first, if it is the large one."""
        turn = self.turn()
        return turn.name if turn else None

    def turn(self) -> Turn | None:
        """Return the time in which the large gang goes first."""
        return self.parts.workflows.gangs.precedence.turn_of(LARGE)


@pytest.fixture
async def lab(api: ApiServer) -> Lab:
    """Return a lab in which a gang runs on two cards, and a large one waits since then."""
    for card in CARDS:
        api.put_card(card)
    found = Lab(api)
    found.come("sitting", 2)
    assert await found.starts("sitting", 2)
    found.come("large", 4)
    assert not await found.starts("large", 4)
    return found


async def test_a_gang_that_was_overtaken_often_gets_what_becomes_free_and_the_others_go_on_afterwards(lab: Lab) -> None:
    await lab.overtaken()
    assert lab.first() == LARGE
    lab.come("young", 2)
    assert not await lab.starts("young", 2)  # two cards are free
    await lab.ends("sitting", 2)
    assert not await lab.starts("young", 2)
    assert await lab.starts("large", 4)
    assert lab.first() is None
    await lab.ends("large", 4)
    assert await lab.starts("young", 2)


async def test_fewer_gangs_may_overtake_one(lab: Lab) -> None:
    await lab.overtaken(MOST_OVERTAKING - 1)
    assert lab.first() is None
    lab.come("young", 2)
    assert await lab.starts("young", 2)


async def test_it_is_given_although_nothing_changes_any_more(lab: Lab) -> None:
    """Who is overtaken is counted behind the change that wakes all who wait."""
    for number in range(MOST_OVERTAKING - 1):
        lab.come(f"small{number}", 1)
        assert await lab.starts(f"small{number}", 1)
        await lab.ends(f"small{number}", 1)
    assert not await lab.starts("large", 4)
    lab.come("last", 1)
    assert await lab.starts("last", 1)
    await settle()
    assert lab.first() == LARGE


async def test_pods_without_a_gang_and_gangs_of_higher_priority_are_not_held_back(lab: Lab) -> None:
    await lab.overtaken()
    lab.come("urgent", 2, priority=10)
    assert await lab.starts("urgent", 2)
    await lab.ends("urgent", 2)
    lab.api.put_pod(a_pod_object("single", {GPU: "1"}, created="2030-01-02T00:00:00Z"))
    lab.parts.watch()
    assert lab.parts.filter("single", "node-a").node_names == ["node-a"]
    assert lab.first() == LARGE


async def test_nobody_is_held_back_for_a_gang_that_would_not_fit_if_the_others_ended(lab: Lab) -> None:
    lab.api.put_pod(a_pod_object("service", {GPU: "1"}))
    lab.parts.watch()
    assert lab.parts.filter("service", "node-a").node_names == ["node-a"]
    await lab.parts.bind("service", "node-a")
    await lab.ends("sitting", 2)
    await lab.overtaken()
    assert lab.first() is None
    await lab.leave("service")
    lab.come("sits", 2)
    assert await lab.starts("sits", 2)
    await asyncio.sleep(LOOK_PAUSE_S)
    assert not await lab.starts("large", 4)
    await lab.look()
    assert lab.first() == LARGE


async def test_it_ends_when_pods_without_a_gang_have_taken_what_it_needs(lab: Lab) -> None:
    await lab.overtaken()
    assert lab.first() == LARGE
    lab.come("young", 2)
    assert not await lab.starts("young", 2)
    lab.api.put_pod(a_pod_object("service", {GPU: "1", MEMORY: "1000"}))
    lab.parts.watch()
    assert lab.parts.filter("service", "node-a").node_names == ["node-a"]
    await lab.parts.bind("service", "node-a")
    await asyncio.sleep(LOOK_PAUSE_S)
    lab.parts.workflows.context.room_has_changed.clear()
    await lab.look()
    assert lab.first() is None
    assert lab.parts.workflows.context.room_has_changed.is_set()


async def test_it_ends_after_as_long_as_the_gang_was_overtaken_and_all_are_tried_for_as_long(lab: Lab) -> None:
    await lab.overtaken()
    lab.come("young", 2)
    assert not await lab.starts("young", 2)
    turn = lab.turn()
    assert turn is not None
    assert turn.most_s >= SHORTEST_S
    await asyncio.sleep(turn.most_s)
    assert lab.first() is None
    assert await lab.starts("young", 2)


async def test_it_ends_when_a_member_is_gone_and_the_others_are_tried_at_once(lab: Lab) -> None:
    await lab.overtaken()
    lab.come("young", 2)
    assert not await lab.starts("young", 2)
    lab.parts.workflows.context.room_has_changed.clear()
    lab.api.delete_pod("large-0")
    lab.parts.watch()
    await settle()
    assert lab.first() is None
    assert lab.parts.workflows.context.room_has_changed.is_set()
    assert await lab.starts("young", 2)


async def test_a_gang_that_was_deleted_and_created_again_begins_anew(lab: Lab) -> None:
    await lab.overtaken(MOST_OVERTAKING - 1)
    await lab.leave(*lab.names("large", 4))
    lab.come("large", 4)
    await lab.overtaken(1)
    assert lab.first() is None


async def test_it_is_remembered_and_counted(lab: Lab) -> None:
    await lab.overtaken()
    found, _ = lab.parts.trail.latest(RecordFilter("default", gang="large", kind=RecordKind.GANG_FIRST), 100)
    (record,) = [each.json() for each in found]
    assert f"{MOST_OVERTAKING} gangs have started" in record["text"]
    assert by_label(lab.parts.counts.gangs_first) == {"": 1}


async def test_members_that_replace_others_of_a_gang_that_runs_are_not_held_back(lab: Lab) -> None:
    await lab.overtaken()
    assert lab.first() == LARGE
    lab.api.delete_pod("sitting-0")
    lab.parts.watch()
    await asyncio.sleep(RELEASE_DELAY_S * 2)
    lab.create("sitting", 2, "sitting-new")
    assert lab.parts.filter("sitting-new", "node-a").node_names == ["node-a"]


async def test_those_that_are_held_back_are_told_without_the_others_name_and_explain_names_it(lab: Lab) -> None:
    await lab.overtaken()
    lab.come("young", 2)
    (told,) = lab.parts.filter("young-0", "node-a").refused.values()
    assert "goes first" in told
    assert "large" not in told
    found = (await lab.parts.workflows.explainer.gangs.explain("default", "young")).json()
    assert (found["state"], found["members"]["turn"]["gang"], found["members"]["turn"]["kind"]) == (
        "held-back",
        "default/large",
        "first",
    )
    own = (await lab.parts.workflows.explainer.gangs.explain("default", "large")).json()
    assert (own["state"], own["members"]["overtakenBy"], own["members"]["turn"]["gang"]) == (
        "waiting",
        MOST_OVERTAKING,
        "default/large",
    )
