"""The register is written when it differs, and at no other time, whatever others do to it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.api_server import ApiServer, Operation, lose_answer, refuse
from fakes.objects import a_node_object
from fakes.virtual_time import now_s, settle
from gpuledger.agent.node_entry import LONGEST_PAUSE_S, NodeAnnotation
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.errors import ApiError, Denied, Unreachable


class Shown(KubeWrites):
    """A node, its watch, and the times at which somebody wrote."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.register = NodeAnnotation("node-a", self.api.store, REGISTER_ANNOTATION)
        self.times: list[float] = []
        self.fights = False

    def put(self, text: str | None) -> None:
        """Have somebody else write the annotation; the watch shows it."""
        node = a_node_object("node-a", register=text or "")
        if text is None:
            node["metadata"]["annotations"] = {}
        self.register.observe(self.api.put_node(node), False)

    async def annotate_own_node(self, name: str, annotation: str, value: str) -> None:
        """Stand between the register and the API server."""
        self.times.append(now_s())
        await self.api.store.annotate_own_node(name, annotation, value)
        if self.fights:
            self.put("mine!")
        else:
            self.register.observe(self.api.nodes["node-a"], False)

    @property
    def text(self) -> str | None:
        found: dict[str, Any] = self.api.nodes["node-a"]["metadata"]["annotations"]
        return found.get(REGISTER_ANNOTATION)

    @property
    def tries(self) -> int:
        return len(self.api.called(Operation.ANNOTATE_NODE))


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    found = Shown()
    found.register._nodes = found
    task = asyncio.create_task(found.register.run())
    yield found
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_cards_are_written_once(shown: Shown) -> None:
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(3_600)
    assert (shown.text, shown.tries, shown.register.writes) == ("[1]", 1, 1)
    assert shown.register.written


async def test_an_empty_value_removes_it_and_where_there_is_none_nothing_is_written(shown: Shown) -> None:
    shown.put("true")
    shown.register.want("")
    await settle()
    assert (shown.text, len(shown.times)) == (None, 1)
    shown.put(None)
    shown.register.want("")
    await settle()
    assert len(shown.times) == 1


async def test_what_is_there_already_is_not_written(shown: Shown) -> None:
    shown.put("[1]")
    shown.register.want("[1]")
    await asyncio.sleep(3_600)
    assert shown.tries == 0
    assert shown.register.written


@pytest.mark.parametrize("first", ["node", "cards"])
async def test_nothing_is_written_before_node_and_cards_are_known(shown: Shown, first: str) -> None:
    if first == "node":
        shown.put(None)
    else:
        shown.register.want("[1]")
    await asyncio.sleep(60)
    assert shown.tries == 0
    assert not shown.register.written


async def test_a_change_is_written_at_once_whenever_the_last_one_was(shown: Shown) -> None:
    shown.put(None)
    for number in range(5):
        shown.register.want(f"[{number}]")
        await settle()
        assert shown.text == f"[{number}]"
    assert shown.tries == 5


@pytest.mark.parametrize("text", [None, "", "[0]"])
async def test_what_somebody_removed_or_edited_is_put_back(shown: Shown, text: str | None) -> None:
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(3_600)
    shown.put(text)
    assert not shown.register.written
    await asyncio.sleep(2)
    assert (shown.text, shown.tries) == ("[1]", 2)


async def test_an_event_from_before_our_write_makes_no_second_one(shown: Shown) -> None:
    shown.put(None)
    old = shown.api.nodes["node-a"]
    shown.register.want("[1]")
    await settle()
    shown.register.observe(old, False)
    await settle()
    shown.register.observe(shown.api.nodes["node-a"], False)
    await asyncio.sleep(3_600)
    assert shown.tries == 1


async def test_somebody_who_fights_is_answered_later_and_later(shown: Shown) -> None:
    shown.fights = True
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(3_600)
    pauses = [later - earlier for earlier, later in zip(shown.times, shown.times[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 1
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
    assert len(shown.times) < 3_600 / LONGEST_PAUSE_S + 10


async def fight_for_half_an_hour(shown: Shown) -> None:
    shown.fights = True
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(1_800)
    shown.fights = False


async def test_a_broken_card_is_told_at_once_even_in_a_fight(shown: Shown) -> None:
    await fight_for_half_an_hour(shown)
    begin_s = now_s()
    shown.register.want("[2]")
    await settle()
    assert shown.text == "[2]"
    assert shown.times[-1] - begin_s < 0.1


async def test_a_fight_that_is_over_is_forgotten(shown: Shown) -> None:
    await fight_for_half_an_hour(shown)
    await asyncio.sleep(1_800)
    shown.put(None)
    await settle()
    assert shown.text == "[1]"
    shown.put(None)
    await asyncio.sleep(2)
    assert shown.text == "[1]"


@pytest.mark.parametrize("error", [Unreachable("no answer"), Denied("refused by a policy", 403)])
async def test_a_server_that_fails_is_asked_again_with_a_pause(shown: Shown, error: ApiError) -> None:
    shown.api.queue(Operation.ANNOTATE_NODE, *[refuse(error)] * 1_000)
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(600)
    assert 5 < shown.tries < 20
    assert shown.register.writes == 0
    assert not shown.register.written
    shown.api._faults.clear()
    await asyncio.sleep(LONGEST_PAUSE_S + 1)
    assert shown.text == "[1]"


async def test_a_write_whose_answer_got_lost_is_not_repeated_once_it_is_seen(shown: Shown) -> None:
    shown.api.queue(Operation.ANNOTATE_NODE, lose_answer())
    shown.put(None)
    shown.register.want("[1]")
    await settle()
    shown.register.observe(shown.api.nodes["node-a"], False)
    await asyncio.sleep(3_600)
    assert shown.tries == 1
    assert shown.register.written


async def test_a_node_that_was_deleted_is_left_alone_until_it_is_created_anew(shown: Shown) -> None:
    shown.put(None)
    shown.register.want("[1]")
    await settle()
    node = shown.api.nodes["node-a"]
    shown.api.delete_node("node-a")
    shown.register.observe(node, True)
    shown.register.want("[2]")
    await asyncio.sleep(600)
    assert shown.tries == 1
    shown.put(None)
    await settle()
    assert shown.text == "[2]"


async def test_what_is_wanted_while_a_write_is_on_its_way_is_written_after_it(shown: Shown) -> None:
    shown.put(None)
    shown.register.want("[1]")
    await asyncio.sleep(0)
    shown.register.want("[2]")
    await settle()
    assert shown.text == "[2]"
    assert shown.register.written
