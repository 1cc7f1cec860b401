"""The slices of a node: what is in them, and what has to be written when something is different."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.resource_claims.slices import NodeOwner, SliceChanges, device_name, slice_changes, slices_of
from gpuledger.model.card import Amounts, Card

Json = dict[str, Any]

NODE = NodeOwner("node-a", "uid-1")
FIRST, SECOND = "node-a-gpu.gpuledger.dev", "node-a-gpu.gpuledger.dev-2"


def cards(count: int) -> list[Card]:
    return [Card(f"GPU-{index}", "node-a", index, Amounts(1000, 100, 10)) for index in range(count)]


def stored(slices: Mapping[str, Json]) -> dict[str, Json]:
    """Return slices as the API server has them: with a version, and the times at which taints came."""
    found = deepcopy(dict(slices))
    for each in found.values():
        each["metadata"]["resourceVersion"] = "7"
        for device in each["spec"]["devices"]:
            for taint in device["taints"]:
                taint["timeAdded"] = "2026-11-26T22:58:08Z"
    return found


def after(changes: SliceChanges, before: Mapping[str, Json]) -> dict[str, Json]:
    """Return what is stored after the changes."""
    written = {each["metadata"]["name"]: each for each in (*changes.create, *changes.replace)}
    return stored({name: each for name, each in {**before, **written}.items() if name not in changes.delete})


def test_a_slice_is_owned_by_its_node_and_lists_its_cards_in_their_order() -> None:
    (found,) = slices_of(NODE, reversed(cards(3)), generation=4).values()
    assert found["metadata"] == {
        "name": FIRST,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1", "controller": True}],
    }
    spec = found["spec"]
    assert (spec["driver"], spec["nodeName"]) == ("gpu.gpuledger.dev", "node-a")
    assert spec["pool"] == {"name": "node-a", "generation": 4, "resourceSliceCount": 1}
    assert [device["name"] for device in spec["devices"]] == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_a_pool_has_as_many_slices_as_the_limit_for_devices_with_taints_needs(count: int, sizes: list[int]) -> None:
    found = list(slices_of(NODE, cards(count), 1).values())
    assert [len(each["spec"]["devices"]) for each in found] == sizes
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in found} <= {len(sizes)}


def test_the_name_of_a_slice_is_never_too_long() -> None:
    long = NodeOwner("n" * 240, "uid-1")
    names = list(slices_of(long, cards(65), 1))
    assert len({*names}) == 2
    assert all(len(name) <= 253 for name in names)


def test_gpus_that_nobody_can_get_are_not_shown() -> None:
    parent, other = cards(2)
    (found,) = slices_of(NODE, [replace(parent, mode="mig-parent"), other], 1).values()
    assert [device["name"] for device in found["spec"]["devices"]] == ["gpu-1"]


def test_nothing_is_written_where_the_slices_show_the_cards() -> None:
    assert not slice_changes(NODE, cards(70), stored(slices_of(NODE, cards(70), 3)))
    assert not slice_changes(NODE, [], {})


def test_new_cards_are_shown_in_new_slices() -> None:
    changes = slice_changes(NODE, cards(1), {})
    assert [each["metadata"]["name"] for each in changes.create] == [FIRST]
    assert (changes.replace, changes.delete) == ((), ())


def test_a_change_of_one_card_makes_a_new_generation_of_all_slices() -> None:
    before = stored(slices_of(NODE, cards(70), 3))
    changed = [*cards(69), replace(cards(70)[69], healthy=False)]
    changes = slice_changes(NODE, changed, before)
    assert [each["metadata"]["name"] for each in changes.replace] == [FIRST, SECOND]
    assert {each["spec"]["pool"]["generation"] for each in changes.replace} == {4}
    assert {each["metadata"]["resourceVersion"] for each in changes.replace} == {"7"}


def test_cards_that_are_gone_take_the_last_slice_with_them() -> None:
    changes = slice_changes(NODE, cards(64), stored(slices_of(NODE, cards(65), 1)))
    assert [each["metadata"]["name"] for each in changes.replace] == [FIRST]
    assert changes.replace[0]["spec"]["pool"]["resourceSliceCount"] == 1
    assert changes.delete == (SECOND,)


def test_a_slice_that_was_deleted_comes_back_as_it_was() -> None:
    before = stored(slices_of(NODE, cards(65), 3))
    changes = slice_changes(NODE, cards(65), {FIRST: before[FIRST]})
    assert (changes.replace, changes.delete) == ((), ())
    lost = slices_of(NODE, cards(65), 3)[SECOND]
    assert changes.create == (lost,)


def test_slices_of_a_node_that_was_made_anew_get_its_new_uid() -> None:
    before = stored(slices_of(NODE, cards(1), 3))
    (changed,) = slice_changes(NodeOwner("node-a", "uid-2"), cards(1), before).replace
    assert changed["metadata"]["ownerReferences"][0]["uid"] == "uid-2"
    assert changed["spec"] == slices_of(NODE, cards(1), 3)[FIRST]["spec"]


def test_a_slice_of_our_driver_that_no_agent_has_made_is_deleted() -> None:
    before = stored(slices_of(NODE, cards(1), 1))
    changes = slice_changes(NODE, cards(1), {**before, "forged": before[FIRST]})
    assert (changes.create, changes.replace, changes.delete) == ((), (), ("forged",))


some_cards = st.integers(0, 70).flatmap(
    lambda count: st.lists(st.booleans(), min_size=count, max_size=count).map(
        lambda healthy: [replace(card, healthy=works) for card, works in zip(cards(count), healthy, strict=True)]
    )
)


@given(st.lists(some_cards, min_size=1, max_size=5), st.integers(0, 2**20))
def test_after_the_changes_the_pool_shows_each_card_once_whatever_was_left_of_it(
    lives: list[list[Card]], lost: int
) -> None:
    kept: dict[str, Json] = {}
    for number, life in enumerate(lives):
        kept = {name: each for at, (name, each) in enumerate(sorted(kept.items())) if not lost >> (number * 3 + at) & 1}
        before = max((each["spec"]["pool"]["generation"] for each in kept.values()), default=0)
        kept = after(slice_changes(NODE, life, kept), kept)
        assert not slice_changes(NODE, life, kept)
        pools = {tuple(sorted(each["spec"]["pool"].items())) for each in kept.values()}
        assert len(pools) <= 1
        assert all(each["spec"]["pool"]["resourceSliceCount"] == len(kept) for each in kept.values())
        assert all(each["spec"]["pool"]["generation"] >= before for each in kept.values())
        shown = [device["name"] for name in sorted(kept) for device in kept[name]["spec"]["devices"]]
        assert shown == [device_name(card.uuid) for card in life]
