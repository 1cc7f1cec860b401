"""However containers name requests: each gets one device with exactly what it names, or the pod is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from gpuledger.agent.grants.claims import Unit, shared_unit, units_of_pod
from gpuledger.agent.grants.ledger_view import HeldClaims, HeldPart
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.model.errors import StartRefused
from gpuledger.model.share import ClaimRef, Pod

Json = dict[str, Any]

CLAIMS, REQUESTS, CARDS = ("c0", "c1"), ("a", "b", "c"), range(3)
KEYS = [(claim, request) for claim in CLAIMS for request in REQUESTS]


def a_part(key: tuple[str, str], index: int, memory_mib: int, cores: int, shared: bool = False) -> HeldPart:
    card = GrantedCard(f"GPU-{index}", index, "nvidia", "", memory_mib, cores, exclusive=False)
    return HeldPart(ClaimRef(f"made-{key[0]}", f"uid-{key[0]}", shared), "/".join(key), card)


PARTS = st.dictionaries(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(CARDS)),
    st.tuples(st.integers(1, 9), st.integers(0, 9)),
    min_size=1,
).map(lambda found: tuple(a_part(key, index, *amounts) for (key, index), amounts in found.items()))
USE = st.sampled_from([{"name": claim} for claim in CLAIMS] + [{"name": c, "request": r} for c, r in KEYS])
CONTAINERS = st.dictionaries(st.sampled_from(["x", "y", "z"]), st.lists(USE, max_size=3), min_size=1)


def a_pod(uses: dict[str, list[Json]]) -> Json:
    first, *others = [{"name": name, "resources": {"claims": claims}} for name, claims in uses.items()]
    return {"spec": {"initContainers": [first], "containers": others}}


def named(part: HeldPart, claims: list[Json]) -> bool:
    return any(each["name"] == part.pod_claim and each.get("request", part.request) == part.request for each in claims)


@settings(max_examples=times(200, 5_000))
@given(PARTS, CONTAINERS)
def test_a_container_gets_one_unit_with_all_that_it_names_and_nothing_else(
    parts: tuple[HeldPart, ...], uses: dict[str, list[Json]]
) -> None:
    held = HeldClaims(Pod("uid-a", "default", "a"), parts)
    wanted = {name: {part for part in parts if named(part, claims)} for name, claims in uses.items()}
    try:
        units = units_of_pod(held, a_pod(uses))
    except StartRefused:
        sets = [each for each in wanted.values() if each]
        assert any(one & other and one != other for one in sets for other in sets)
        return
    assert Counter(part for unit in units for part in unit.parts) == Counter(parts)
    for listed in wanted.values():
        got = [unit for unit in units if listed & set(unit.parts)]
        assert [set(unit.parts) for unit in got] == ([listed] if listed else [])


@given(PARTS)
def test_a_unit_has_each_card_once_with_the_sum_of_what_it_has_of_it(parts: tuple[HeldPart, ...]) -> None:
    cards = shared_unit(HeldClaims(None, parts)).cards
    assert [card.index for card in cards] == sorted({part.card.index for part in parts})
    for card in cards:
        of_it = [part.card for part in parts if part.card.uuid == card.uuid]
        assert card.memory_mib == sum(each.memory_mib for each in of_it)
        assert card.cores == (sum(each.cores for each in of_it) if all(each.cores for each in of_it) else 0)


@given(st.permutations([a_part(key, index, 1, 1) for key in KEYS for index in CARDS]), CONTAINERS)
def test_the_order_in_the_ledger_changes_nothing(parts: list[HeldPart], uses: dict[str, list[Json]]) -> None:
    """The name of a unit is that of its file, and containers restart by it."""

    def units(listed: list[HeldPart]) -> list[Unit] | str:
        try:
            return units_of_pod(HeldClaims(Pod("uid-a", "default", "a"), tuple(listed)), a_pod(uses))
        except StartRefused as error:
            return str(error)

    assert units(parts) == units(sorted(parts, key=str))


@pytest.mark.parametrize(
    ("first", "later", "at_once"),
    [
        ({}, ["a"], 1),
        ({}, ["a", "b", "c"], 3),
        ({"a": False}, ["b"], 1),
        ({"a": False, "b": False}, [], 1),
        ({"a": True}, ["b"], 2),
        ({"a": True, "b": False}, [], 2),
        ({"a": True}, [], 1),
    ],
    ids=str,
)
def test_so_many_containers_use_a_unit_at_the_same_time(first: dict[str, bool], later: list[str], at_once: int) -> None:
    """Of init containers, `first` says whether they are sidecars."""
    uses = {"resources": {"claims": [{"name": "c0"}]}}
    early: list[Json] = [
        {"name": name, **uses, **({"restartPolicy": "Always"} if sidecar else {})} for name, sidecar in first.items()
    ]
    others = [{"name": "idle", "restartPolicy": "Always"}]
    pod: Json = {"initContainers": early + others, "containers": [{"name": name, **uses} for name in later] + others}
    held = HeldClaims(Pod("uid-a", "default", "a"), (a_part(("c0", "a"), 0, 1, 0),))
    assert [unit.containers for unit in units_of_pod(held, {"spec": pod})] == [at_once]
