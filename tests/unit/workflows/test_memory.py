"""Of pods that are gone, the workflows keep nothing but what has an upper limit, however many pods come and go."""

import asyncio
import gc
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain

import pytest

from builders import cards_of
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import GPU, MEMORY, PERCENTAGE, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import Denied

CARDS = cards_of("node-a", 2)
QUARTER, WHOLE, TOO_MUCH = {GPU: "1", PERCENTAGE: "25"}, {GPU: "1"}, {GPU: "1", MEMORY: "900k"}
LONG_S = 7_200.0
LIMITED = (BoundedMap, types.ModuleType, type, asyncio.AbstractEventLoop, ApiServer, OperatorParts)
"""What is not looked into: what has a limit, what all programs share, and what plays the cluster."""

Gang = dict[str, str]


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with two cards."""
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    parts = OperatorParts(api, nominate_ahead_nodes=1)
    parts.read_cards()
    return parts


class Lives:
    """Pods that come, fare differently, and go."""

    def __init__(self, api: ApiServer, parts: OperatorParts) -> None:
        self.api, self.parts = api, parts

    def come(self, name: str, limits: dict[str, str], gang: Gang | None = None) -> None:
        pod = a_pod_object(name, limits)
        pod["metadata"]["labels"] = gang or {}
        self.api.put_pod(pod)
        self.parts.watch()

    async def bound(self, *names: str) -> None:
        """Have kube-scheduler ask for pods, and bind those that find cards."""
        found = {name: self.parts.filter(name, "node-a").node_names for name in names}
        binds = [self.parts.bind(name, "node-a") for name, nodes in found.items() if nodes]
        await asyncio.gather(*binds, return_exceptions=True)
        self.parts.watch()

    def become(self, name: str, phase: str) -> None:
        pod = self.api.pods["default", name]
        self.api.put_pod({**pod, "status": {**pod["status"], "phase": phase, "startTime": "2030-01-01T00:00:00Z"}})
        self.parts.watch()

    async def gone(self, *names: str) -> None:
        for name in names:
            self.api.delete_pod(name)
        await self.parts.idle()

    async def ends(self, name: str = "ends") -> None:
        self.come(name, QUARTER)
        await self.bound(name)
        assert self.api.node_of(name) == "node-a"
        self.become(name, "Running")
        self.become(name, "Succeeded")
        await self.parts.idle()
        await self.gone(name)

    async def is_killed(self) -> None:
        self.come("killed", QUARTER)
        await self.bound("killed")
        await self.gone("killed")

    async def waits(self) -> None:
        self.come("waits", TOO_MUCH)
        for _ in range(3):
            await self.bound("waits")
            await asyncio.sleep(30.0)
        await self.parts.explainer.explain("default", "waits")
        await self.gone("waits")

    async def is_never_bound(self) -> None:
        self.come("asked", QUARTER)
        self.parts.filter("asked", "node-a")
        self.come("unasked", QUARTER)
        await self.gone("asked", "unasked")

    async def are_nominated(self) -> None:
        for name in ("asked-for", "left-out", "nominated", "queued"):
            self.come(name, QUARTER)
        await self.parts.placer.answer(FilterArguments(self.api.pods["default", "asked-for"], ["node-a"]))
        await asyncio.sleep(1.0)
        await self.parts.idle()
        assert self.api.pods["default", "nominated"]["status"]["nominatedNodeName"] == "node-a"
        await self.gone("asked-for", "left-out", "nominated", "queued")

    async def can_not_be_bound(self) -> None:
        self.come("denied", QUARTER)
        for _ in range(4):  # after that it is put off
            self.api.queue(Operation.BIND, refuse(Denied("not here", 403)))
            await self.bound("denied")
        assert self.api.node_of("denied") == ""
        await self.gone("denied")

    async def come_in_a_gang(self) -> None:
        gang = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
        self.come("first", WHOLE, gang)
        self.come("second", WHOLE, gang)
        await self.bound("first", "second")
        assert [self.api.node_of(name) for name in ("first", "second")] == ["node-a", "node-a"]
        self.become("first", "Failed")
        await self.gone("first", "second")

    async def come_in_an_incomplete_gang(self) -> None:
        self.come("alone", WHOLE, {"gpuledger.dev/gang": "lost", "gpuledger.dev/gang-minimum": "2"})
        await self.bound("alone")
        await asyncio.sleep(60.0)
        await self.gone("alone")


async def test_of_pods_that_are_gone_nothing_is_kept_that_has_no_limit(api: ApiServer, parts: OperatorParts) -> None:
    lives = Lives(api, parts)
    await lives.ends()
    await lives.is_killed()
    await lives.waits()
    await lives.is_never_bound()
    await lives.are_nominated()
    await lives.can_not_be_bound()
    await asyncio.sleep(LONG_S)
    await parts.idle()
    await lives.come_in_a_gang()
    await lives.come_in_an_incomplete_gang()
    uids = {change.object["metadata"]["uid"] for change in api.changes if change.kind == "Pod"}
    assert len(uids) == 13
    await lives.ends("last")  # what has room for one pod has this one now
    await asyncio.sleep(LONG_S)
    await parts.idle()
    assert [parts.shares_left(uid) for uid in uids] == [[]] * len(uids)
    assert list(ways_to(uids, parts.workflows)) == []


async def test_the_search_finds_what_is_kept(api: ApiServer, parts: OperatorParts) -> None:
    lives = Lives(api, parts)
    lives.come("stays", TOO_MUCH)
    await lives.bound("stays")
    assert any("WaitingPods" in way for way in ways_to({"uid-stays"}, parts.workflows))


def ways_to(uids: Collection[str], root: object) -> Iterator[str]:
    """Yield how each UID is reached from an object, by the types on the way."""
    shared = {id(vars(module)) for module in list(sys.modules.values()) if module is not None}
    seen, open_ends = {id(root)}, deque([(root, type(root).__name__)])
    while open_ends:
        found, way = open_ends.popleft()
        keys = found if isinstance(found, dict) else ()  # the collector has no need of those that are strings
        for referent in chain(keys, gc.get_referents(found)):
            if isinstance(referent, str):
                if referent in uids:
                    yield f"{way}: {referent}"
            elif id(referent) not in seen and id(referent) not in shared and not _has_a_limit(referent):
                seen.add(id(referent))
                open_ends.append((referent, f"{way} > {type(referent).__name__}"))


def _has_a_limit(found: object) -> bool:
    if isinstance(found, deque):
        return found.maxlen is not None
    if hasattr(found, "cache_info"):
        return found.cache_info().maxsize is not None
    return isinstance(found, LIMITED)
