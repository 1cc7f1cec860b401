"""PodGroups are followed while a pod names one and the API server has them; what is not named is not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest

from builders import cards_of
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.kube_api.reads import groups_of
from gpuledger.model.errors import ApiError, Denied, NotFound, Unreachable
from gpuledger.model.gang import GangWay
from gpuledger.workflows.gangs.turns import QUIET_S
from gpuledger.workflows.kinds import DENIED, POD_GROUPS, follow_kind

Json = dict[str, Any]
COSCHEDULING = groups_of("scheduling.x-k8s.io", "v1alpha1", "podgroups")
KIND = POD_GROUPS[GangWay.COSCHEDULING]
OLD, NEW = (
    groups_of("scheduling.k8s.io", "v1alpha2", "podgroups"),
    groups_of("scheduling.k8s.io", "v1beta1", "podgroups"),
)


class Server:
    """Stands where KubeClient stands: has the PodGroups of some APIs, and shows changes of these."""

    def __init__(self) -> None:
        self.served: dict[str, list[Json]] = {}
        self.error: ApiError | None = None
        self.asked: list[str] = []
        self.watched: list[str] = []
        self.shown: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def request(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None = None, longest_bytes: int | None = None
    ) -> Json:
        assert method == "GET"
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        if path not in self.served:
            raise NotFound("the server could not find the requested resource", 404)
        return {"metadata": {"resourceVersion": "1"}, "items": list(self.served[path])}

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        if path not in self.served:
            raise NotFound("the server could not find the requested resource", 404)
        self.watched.append(path)
        yield self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        while line := await self.shown.get():
            yield line

    def show(self, kind: str, found: Json) -> None:
        self.shown.put_nowait(orjson.dumps({"type": kind, "object": found}))

    def uninstall(self, path: str) -> None:
        """Delete a kind: its watches end, and it is not known any more."""
        del self.served[path]
        self.shown.put_nowait(None)


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    for card in cards_of("node-a", 4):
        api.put_card(card)
    return an_operator(api)


@pytest.fixture
def server(parts: OperatorParts) -> Server:
    return Server()


@contextlib.asynccontextmanager
async def followed(server: Server, parts: OperatorParts) -> AsyncIterator[None]:
    followers = parts.workflows.gangs.pod_groups.subscriptions(parts.workflows.gangs.members.names)
    tasks = [asyncio.create_task(follow_kind(server, each)) for each in followers]
    try:
        await settle()
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def group(minimum: int, name: str = "train") -> Json:
    metadata = {"namespace": "default", "name": name, "uid": name, "resourceVersion": "2"}
    return {"metadata": metadata, "spec": {"minMember": minimum}}


def native(minimum: int) -> Json:
    return {**group(0), "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}}


def come(api: ApiServer, parts: OperatorParts, *names: str) -> None:
    for name in names:
        pod = a_pod_object(name, {GPU: "1"})
        pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
        api.put_pod(pod)
    parts.watch()


def why(parts: OperatorParts, name: str = "a") -> str:
    return parts.filter(name, "node-a").refused.get("node-a", "")


async def test_what_no_pod_names_is_not_read(api: ApiServer, parts: OperatorParts, server: Server) -> None:
    server.served = {COSCHEDULING: [group(2)]}
    async with followed(server, parts):
        await asyncio.sleep(600)
        assert server.asked == []
        come(api, parts, "a", "b")
        await settle()
        assert {*server.asked} == {COSCHEDULING}
        assert why(parts) == ""


async def test_each_change_is_seen(api: ApiServer, parts: OperatorParts, server: Server) -> None:
    server.served = {COSCHEDULING: []}
    async with followed(server, parts):
        come(api, parts, "a")
        await asyncio.sleep(QUIET_S)
        assert "does not exist" in why(parts)
        server.show("ADDED", group(2))
        await settle()
        assert "fewer than 2 members" in why(parts)
        server.show("MODIFIED", group(3))
        await settle()
        assert "fewer than 3 members" in why(parts)
        server.show("DELETED", group(3))
        await settle()
        assert "does not exist" in why(parts)


async def test_a_kind_that_is_installed_later_is_found_while_a_pod_waits_for_it(
    api: ApiServer, parts: OperatorParts, server: Server
) -> None:
    async with followed(server, parts):
        come(api, parts, "a")
        await settle()
        assert KIND.absent in why(parts)
        server.served = {COSCHEDULING: [group(1)]}
        await asyncio.sleep(KIND.pause_s + 1)
        assert why(parts) == ""


async def test_a_kind_that_does_not_exist_is_not_looked_for_once_nobody_waits_for_it(
    api: ApiServer, parts: OperatorParts, server: Server
) -> None:
    async with followed(server, parts):
        come(api, parts, "a")
        await asyncio.sleep(60)
        assert 2 <= len(server.asked) <= 60 / KIND.pause_s + 1
        api.delete_pod("a")
        parts.watch()
        await asyncio.sleep(KIND.pause_s)
        server.asked.clear()
        await asyncio.sleep(600)
        assert server.asked == []
        server.served = {COSCHEDULING: [group(1)]}
        come(api, parts, "b")
        await settle()
        assert why(parts, "b") == ""


async def test_a_kind_can_be_deleted_and_come_back(api: ApiServer, parts: OperatorParts, server: Server) -> None:
    server.served = {COSCHEDULING: [group(2)]}
    async with followed(server, parts):
        come(api, parts, "a")
        await asyncio.sleep(QUIET_S)
        assert "fewer than 2 members" in why(parts)
        server.uninstall(COSCHEDULING)
        await asyncio.sleep(KIND.pause_s)
        assert KIND.absent in why(parts)
        server.served = {COSCHEDULING: [group(3)]}
        await asyncio.sleep(2 * KIND.pause_s)
        assert "fewer than 3 members" in why(parts)


async def test_the_version_is_read_that_the_api_server_has(
    api: ApiServer, parts: OperatorParts, server: Server
) -> None:
    """An upgrade takes one version away and brings another."""
    server.served = {OLD: [native(2)]}
    async with followed(server, parts):
        pod = a_pod_object("a", {GPU: "1"})
        pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
        api.put_pod(pod)
        parts.watch()
        await asyncio.sleep(QUIET_S)
        assert "fewer than 2 members" in why(parts)
        server.uninstall(OLD)
        server.served = {NEW: [native(3)]}
        await asyncio.sleep(KIND.pause_s + 1)
        assert "fewer than 3 members" in why(parts)
        assert server.watched == [OLD, NEW]


@pytest.mark.parametrize(
    ("error", "said"),
    [(Denied("forbidden", 403), DENIED), (Unreachable("no answer"), "not been read yet")],
)
async def test_what_can_not_be_read_keeps_its_pods_waiting_with_the_reason_and_is_read_later(
    api: ApiServer, parts: OperatorParts, server: Server, error: ApiError, said: str
) -> None:
    server.served, server.error = {COSCHEDULING: [group(1)]}, error
    async with followed(server, parts):
        come(api, parts, "a")
        await settle()
        assert said in why(parts)
        server.error = None
        await asyncio.sleep(KIND.pause_s + 1)
        assert why(parts) == ""


async def test_what_pods_have_named_is_listed_or_known_to_be_missing(
    api: ApiServer, parts: OperatorParts, server: Server
) -> None:
    """The start waits for that."""
    come(api, parts, "a")
    followers = parts.workflows.gangs.pod_groups.subscriptions(parts.workflows.gangs.members.names)
    named = [each for each in followers if each.wanted and each.wanted.is_set()]
    assert [each.kind for each in named] == [KIND]
    task = asyncio.create_task(follow_kind(server, named[0]))
    await named[0].listed.wait()
    task.cancel()
