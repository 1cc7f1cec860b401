"""What people are told of a gang: how many members find cards at once, where, and what the others lack."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_card, a_holder, cards_of, whole_share
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.kubernetes.gang import OF_WAY
from gpuledger.model.errors import Denied, NotFound
from gpuledger.reports.explanation import redacted_for
from gpuledger.workflows.gangs.turns import QUIET_S
from gpuledger.workflows.pending.pod_condition import PAUSE_S
from unit.workflows.gangs.test_gangs import come, member

Json = dict[str, Any]
HERE = cards_of("node-a", 3)
THERE = cards_of("node-b", 2)
GATHER_S = 20.0


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over five cards on two nodes."""
    for card in (*HERE, *THERE):
        api.put_card(card)
    return an_operator(api)


async def reported(parts: OperatorParts, name: str = "train") -> Json:
    return (await parts.workflows.explainer.gangs.explain("default", name)).json()


async def test_it_says_how_many_find_cards_at_once_where_and_what_the_others_lack(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(f"m-{number}", minimum=8) for number in range(8)))
    for number in range(8):
        assert not parts.filter(f"m-{number}", "node-a", "node-b").node_names
    found = await reported(parts)
    assert (found["state"], found["members"]["fits"], found["members"]["minimum"]) == ("waiting", 5, 8)
    assert found["members"]["fitsOn"] == [{"node": "node-a", "members": 3}, {"node": "node-b", "members": 2}]
    assert found["members"]["missing"] == [{"request": "1 whole card", "members": 3, "cards": 3}]
    for words in ("5 of 8 members find cards at once", "node-a 3", "node-b 2", "3 cards"):
        assert words in found["summary"]
    states = [each["state"] for each in found["members"]["pods"]]
    assert (states.count("fits"), states.count("no-cards")) == (5, 3)


async def test_the_nodes_of_a_member_that_finds_none_are_shown_beside_those_that_do(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Alone it would fit on each of them."""
    come(api, parts, *(member(f"m-{number}", minimum=6) for number in range(6)))
    found = await reported(parts)
    assert found["example"] == "m-5"
    assert {node["node"]: node["fits"] for node in found["nodes"]} == {"node-a": False, "node-b": False}
    by = {pod for node in found["nodes"] for card in node["cards"] for pod in card["by"]}
    assert by == {f"default/m-{number}" for number in range(5)}


async def test_asking_keeps_nothing_and_changes_nothing(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *(member(name, minimum=2) for name in "ab"))
    before = parts.ledger.changes
    await reported(parts)
    await parts.explainer.explain("default", "a")
    assert parts.ledger.changes == before
    assert not any(entry.seats for entry in parts.ledger.entries())


async def test_it_counts_those_that_were_not_created(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "ab"))
    found = await reported(parts)
    assert (found["state"], found["members"]["notCreated"], found["members"]["waiting"], found["members"]["fits"]) == (
        "incomplete",
        1,
        2,
        2,
    )
    assert "1 has not been created" in found["summary"]


async def test_large_members_are_tried_first_and_unequal_ones_are_named_by_what_they_ask_for(
    api: ApiServer, parts: OperatorParts
) -> None:
    pods = [member(f"small-{number}", minimum=4) for number in range(3)]
    come(api, parts, *pods, member("large", minimum=4, limits={GPU: "3"}))
    found = await reported(parts)
    assert found["members"]["fits"] == 3  # the large one on node-a, two on node-b
    assert found["members"]["missing"] == [{"request": "1 whole card", "members": 1, "cards": 1}]


async def test_members_with_room_and_in_bind_are_counted(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "abc"))
    assert parts.filter("a", "node-a").node_names
    found = await reported(parts)
    assert (found["state"], found["members"]["onHold"], found["members"]["inBind"], found["members"]["fits"]) == (
        "room-found",
        3,
        0,
        3,
    )
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    found = await reported(parts)
    assert (found["state"], found["members"]["inBind"]) == ("gathering", 1)
    assert "1 of 3 members stand in Bind" in found["summary"]
    results = await asyncio.gather(*(parts.bind(name, "node-a") for name in "bc"), binding)
    assert results == [None] * 3
    await parts.idle()
    found = await reported(parts)
    assert (found["state"], found["members"]["running"], found["members"]["waiting"]) == ("running", 3, 0)
    assert [(each["pod"], each["state"], each["node"]) for each in found["members"]["pods"]] == [
        (name, "running", "node-a") for name in "abc"
    ]


async def test_a_member_without_gpus_is_there_and_needs_no_card(api: ApiServer, parts: OperatorParts) -> None:
    launcher = member("launcher", minimum=7)
    launcher["spec"]["containers"][0]["resources"] = {}
    come(api, parts, launcher, *(member(f"m-{number}", minimum=7) for number in range(6)))
    found = await reported(parts)
    assert (
        found["state"],
        found["members"]["withoutGPUs"],
        found["members"]["notCreated"],
        found["members"]["fits"],
    ) == ("waiting", 1, 0, 5)
    assert "5 of 6 members find cards at once" in found["summary"]


async def test_the_place_that_is_kept_for_a_replacement_counts_as_room_of_its_gang_alone(
    api: ApiServer, parts: OperatorParts
) -> None:
    pods = [member(name, minimum=5) for name in "abcde"]
    come(api, parts, *pods)
    for name in "abcde":
        parts.filter(name, "node-a", "node-b")
    where = {name: parts.ledger.seats.of(f"uid-{name}") for name in "abcde"}
    await asyncio.gather(*(parts.bind(name, hold.placement.node_name) for name, hold in where.items() if hold))
    await parts.idle()
    api.put_pod({**api.pods["default", "b"], "status": {"phase": "Failed"}})
    await parts.idle()
    come(api, parts, member("new", minimum=5), member("single", gang="single", minimum=1))
    found = await reported(parts)
    assert (
        found["members"]["keptPlaces"],
        found["members"]["running"],
        found["members"]["fits"],
        found["members"]["missing"],
    ) == (1, 4, 1, [])
    other = await reported(parts, "single")
    assert (other["members"]["fits"], other["members"]["keptPlaces"]) == (0, 0)
    by = {pod for node in other["nodes"] for card in node["cards"] for pod in card["by"]}
    assert "default/train (kept for a member)" in by


async def test_a_gang_that_pauses_after_a_failure_says_for_how_long(api: ApiServer, parts: OperatorParts) -> None:
    come(api, parts, *map(member, "abc"))
    for name in "abc":
        parts.filter(name, "node-a")
    api.queue(Operation.WRITE_STATUS, *[refuse(Denied("a policy refuses", 403))] * 3)
    await asyncio.gather(*(parts.bind(name, "node-a") for name in "abc"), return_exceptions=True)
    found = await reported(parts)
    assert (found["state"], found["members"]["pausesForSeconds"]) == ("waiting", 1)
    assert "could not be bound" in found["summary"]


async def test_a_gang_whose_pod_group_does_not_exist_says_so(api: ApiServer, parts: OperatorParts) -> None:
    for words in OF_WAY.values():
        parts.workflows.gangs.pod_groups.listing(words)(set())
    named = a_pod_object("a", {GPU: "1"})
    named["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
    come(api, parts, named)
    found = await reported(parts)
    assert "PodGroup" in found["gangWords"]
    assert "PodGroup" in found["summary"]
    assert found["members"]["notCreated"] == 0


async def test_the_gang_that_is_tried_alone_is_named_but_not_to_other_namespaces(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "abc"), *(member(name, gang="other", minimum=2) for name in "xy"))
    parts.filter("a", "node-a")
    await asyncio.gather(parts.bind("a", "node-a"), return_exceptions=True)  # nobody follows: it has the turn next
    found = await reported(parts, "other")
    assert (found["state"], found["members"]["turn"]["gang"]) == ("others-turn", "default/train")
    assert found["members"]["turn"]["secondsLeft"] > 0
    assert "train" not in found["summary"]
    assert redacted_for(found, "default")["members"]["turn"]["gang"] == "default/train"
    assert redacted_for(found, "elsewhere")["members"]["turn"]["gang"] is None


async def test_a_gang_without_a_pod_is_not_found(parts: OperatorParts) -> None:
    with pytest.raises(NotFound, match="no pod of namespace default is of a gang 'train'"):
        await reported(parts)


async def test_a_member_is_explained_by_its_gang_and_others_cards_do_not_count_as_its_own(
    api: ApiServer, parts: OperatorParts
) -> None:
    api.put_card(THERE[0], a_holder("tenant", whole_share(THERE[0])))
    parts.read_cards()
    come(api, parts, *(member(f"m-{number}", minimum=5) for number in range(5)))
    parts.filter("m-0", "node-a")
    found = (await parts.explainer.explain("default", "m-0")).json()
    assert (found["gang"], found["state"], found["lastTried"] is None) == ("train", "waiting", False)
    assert {node["node"]: node["offered"] for node in found["nodes"]} == {"node-a": True, "node-b": False}
    assert "4 of 5 members find cards at once" in found["summary"]


async def test_a_member_that_is_told_says_gang_and_is_not_written_again_while_numbers_change(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *(member(f"m-{number}", minimum=6) for number in range(6)))
    parts.filter("m-0", "node-a", "node-b")
    await asyncio.sleep(parts.settings.tell_waiting_after_s + 1)
    (said,) = api.pods["default", "m-0"]["status"]["conditions"]
    assert (said["status"], said["reason"]) == ("False", "Gang")
    assert "5 of 6 members find cards at once" in said["message"]
    writes = parts.pod_condition_writer.writes
    api.put_card(HERE[0], a_holder("tenant", whole_share(HERE[0])))
    parts.read_cards()
    parts.filter("m-0", "node-a", "node-b")
    await asyncio.sleep(120)
    assert parts.pod_condition_writer.writes == writes


async def test_a_member_that_was_told_that_others_are_missing_is_told_once_more_when_they_have_come(
    api: ApiServer, parts: OperatorParts
) -> None:
    pods = [member(f"m-{number}", minimum=6) for number in range(6)]
    come(api, parts, *pods[:5])
    await asyncio.sleep(QUIET_S)
    parts.filter("m-0", "node-a", "node-b")
    await asyncio.sleep(parts.settings.tell_waiting_after_s + 1)
    (said,) = api.pods["default", "m-0"]["status"]["conditions"]
    assert "1 has not been created" in said["message"]
    parts.watch()
    come(api, parts, pods[5])
    await asyncio.sleep(1)
    parts.filter("m-0", "node-a", "node-b")
    await asyncio.sleep(PAUSE_S + 1)
    (said,) = api.pods["default", "m-0"]["status"]["conditions"]
    assert "5 of 6 members find cards at once" in said["message"]
    assert [key for *_, key in parts.told_once] == ["Gang incomplete", "Gang"]


async def test_thousands_of_nodes_and_members_that_differ_are_not_all_looked_at(api: ApiServer) -> None:
    for number in range(600):
        card = a_card(0, f"node-{number}")
        api.put_card(card, a_holder(f"tenant-{number}", whole_share(card)))
    parts = an_operator(api)
    pods = [member(f"m-{number}", minimum=200, limits={GPU: "1", MEMORY: str(1_000 + number)}) for number in range(200)]
    come(api, parts, *pods)
    found = await reported(parts)
    assert found["members"]["fits"] == 0
    assert "at least 0 of 200" in found["summary"]
