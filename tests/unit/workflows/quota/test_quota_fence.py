"""Two operators that both take themselves for active keep a namespace to its quota, whatever each of them has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from builders import cards_of
from fakes.api_server import ApiServer, Operation, hold_request
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.workflows.list_and_watch import WatchedUpTo
from gpuledger.workflows.quota import WATCH_TIMEOUT_S

NODE_A, NODE_B = cards_of("node-a", 1), cards_of("node-b", 1)
ASKS = {GPU: "1", MEMORY: "1000"}


@pytest.fixture
def first(api: ApiServer) -> OperatorParts:
    """Return an operator over two nodes, where pods of 1,000 MiB wait: `a`, `b` and `c`."""
    for card in (*NODE_A, *NODE_B):
        api.put_card(card)
    for name in "abc":
        api.put_pod(a_pod_object(name, ASKS))
    return a_replica(api)


@pytest.fixture
def second(api: ApiServer, first: OperatorParts) -> OperatorParts:
    """Return another one, which takes itself for active as well."""
    return a_replica(api)


def a_replica(api: ApiServer) -> OperatorParts:
    parts = an_operator(api)
    parts.watch()
    return parts


def allow(mib: int, *replicas: OperatorParts) -> None:
    metadata = {"uid": "uid-of-gpus", "name": "gpus", "namespace": "default"}
    for parts in replicas:
        quota = {"metadata": metadata, "spec": {"hard": {"limits.nvidia.com/gpumem": str(mib)}}}
        parts.workflows.quotas.observe(quota, gone=False)


async def begin(parts: OperatorParts, name: str, node_name: str) -> asyncio.Task[None]:
    """Have an operator bind a pod, until it needs its watch; it sees none of what others have written since."""
    assert parts.filter(name, node_name).node_names == [node_name]
    binding = asyncio.create_task(parts.bind(name, node_name))
    await settle()
    return binding


async def outcomes(*bindings: asyncio.Task[None]) -> list[str]:
    """Return what became of them: nothing, where the pod is bound."""
    found = await asyncio.gather(*bindings, return_exceptions=True)
    return ["" if each is None else str(each) for each in found]


def bound(api: ApiServer) -> Mapping[str, str]:
    return {name: node for name in "abc" if (node := api.node_of(name))}


async def test_of_two_that_have_both_chosen_one_binds_and_the_other_gives_its_share_back(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    allow(1_000, first, second)
    mine = await begin(first, "a", "node-a")
    first.watch()
    assert await outcomes(mine) == [""]
    theirs = await begin(second, "b", "node-b")
    assert not theirs.done(), "it does not know yet what was entered before"
    second.watch()
    assert "quota" in (await outcomes(theirs))[0]
    await second.idle()
    assert bound(api) == {"a": "node-a"}
    assert api.holders_of(*NODE_B) == []


async def test_both_may_give_up_when_both_have_seen_both_and_never_do_both_bind(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    allow(1_000, first, second)
    mine, theirs = await begin(first, "a", "node-a"), await begin(second, "b", "node-b")
    first.watch()
    second.watch()
    assert sum(not each for each in await outcomes(mine, theirs)) <= 1
    assert len(bound(api)) <= 1


async def test_one_that_was_stopped_between_its_share_and_its_binding_is_found_by_the_next(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    """Its Binding comes when the other one has long been active: its share was there before."""
    allow(1_000, first, second)
    go_on = asyncio.Event()
    api.queue(Operation.BIND, hold_request(go_on))
    stopped = await begin(first, "a", "node-a")
    first.watch()
    await settle()
    theirs = await begin(second, "b", "node-b")
    second.watch()
    assert "quota" in (await outcomes(theirs))[0]
    go_on.set()
    assert await outcomes(stopped) == [""]
    assert bound(api) == {"a": "node-a"}


async def test_pods_that_the_quota_allows_together_are_both_bound(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    allow(2_000, first, second)
    mine, theirs = await begin(first, "a", "node-a"), await begin(second, "b", "node-b")
    first.watch()
    second.watch()
    assert await outcomes(mine, theirs) == ["", ""]


async def test_what_is_only_on_hold_takes_nothing_from_what_is_in_the_ledger(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    """The first one keeps 1,000 MiB for `c`, the other has bound `b` meanwhile: `a` is within the quota still."""
    allow(2_000, first, second)
    theirs = await begin(second, "b", "node-b")
    second.watch()
    assert await outcomes(theirs) == [""]
    assert first.filter("c", "node-a").node_names
    mine = await begin(first, "a", "node-a")
    first.watch()
    assert await outcomes(mine) == [""]
    late = asyncio.create_task(first.bind("c", "node-a"))
    await settle()
    first.watch()
    assert "quota" in (await outcomes(late))[0]
    assert bound(api) == {"a": "node-a", "b": "node-b"}


async def test_a_gang_is_bound_by_one_operator_or_by_none(
    api: ApiServer, first: OperatorParts, second: OperatorParts
) -> None:
    """Its members are judged when they are entered, so all of them before the first is bound."""
    for name in "ab":
        pod = a_pod_object(name, ASKS)
        pod["metadata"]["labels"] = {GANG_LABEL: "pair", MINIMUM_LABEL: "2"}
        api.put_pod(pod)
    first.watch()
    second.watch()
    allow(2_000, first, second)
    theirs = await begin(second, "c", "node-b")
    second.watch()
    assert await outcomes(theirs) == [""]
    members = [await begin(first, name, "node-a") for name in "ab"]
    for _ in range(20):
        first.watch()
        await settle()
    await asyncio.gather(*members, return_exceptions=True)
    assert bound(api) == {"c": "node-b"}


async def test_a_watch_that_is_behind_binds_nothing_and_leaves_nothing(api: ApiServer, first: OperatorParts) -> None:
    allow(1_000, first)
    begin_s = asyncio.get_running_loop().time()
    binding = await begin(first, "a", "node-a")
    assert "behind" in (await outcomes(binding))[0]
    assert asyncio.get_running_loop().time() - begin_s < WATCH_TIMEOUT_S + 5
    await first.idle()
    assert bound(api) == {}
    assert api.holders_of(*NODE_A) == []


async def test_pods_of_other_namespaces_wait_for_no_watch_and_nothing_more_is_written(
    api: ApiServer, first: OperatorParts
) -> None:
    first.filter("a", "node-a")
    await first.bind("a", "node-a")
    allow(5_000, first)
    written = len(api.calls)
    await first.bind_watching("b", "node-a") if first.filter("b", "node-a").node_names else pytest.fail("no room")
    assert [call.operation for call in api.calls[written:]] == [Operation.WRITE_STATUS, Operation.BIND]


async def test_a_list_counts_when_it_is_complete() -> None:
    """Its objects come in the order of their names: the newest one may be the first."""
    watched = WatchedUpTo()
    watched.note(5)
    listed = watched.listing()
    watched.note(9)
    waiting = asyncio.create_task(watched.reaches(7))
    await settle()
    assert not waiting.done()
    listed(set())
    await settle()
    assert waiting.done()


async def test_a_list_that_breaks_off_counts_for_nothing() -> None:
    watched = WatchedUpTo()
    watched.listing()
    watched.note(9)
    listed = watched.listing()
    watched.note(3)
    listed(set())
    waiting = asyncio.create_task(watched.reaches(4))
    await settle()
    assert not waiting.done()
    watched.note(4)
    await waiting
